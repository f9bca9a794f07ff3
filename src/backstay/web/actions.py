"""What can be done from a page: each a plain form, posted with what was shown. What has moved since is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from backstay.bookkeeping import PART
from backstay.errors import InvalidInputError
from backstay.model import counted
from backstay.retention import Retention
from backstay.shapes.going_back import leaving, refuse_moved, standing_at
from backstay.shapes.text import short
from backstay.web.jobs import Preview
from backstay.web.pages.store import findings
from backstay.web.paths import Links
from backstay.web.view import Notice

if TYPE_CHECKING:
    from backstay.upkeep.progress import Progress
    from backstay.web.view import Visit

    Done = tuple[Notice, str | None]  # what was done, and the page to go to, if it is another
    Form = Mapping[str, str]
    Action = Callable[[Visit, Form], Done]

_BY, _LEAVING = "the page", 300
N = TypeVar("N", int, float)


def find_action(parts: list[str]) -> Action | None:
    """The action at an address."""
    match parts:
        case ["s", _, "do", name]:
            return ACTIONS.get(name)
        case ["store", "do", name]:
            return STORE_ACTIONS.get(name)
    return None


def fork(visit: Visit, form: Form) -> Done:
    """A new branch at a checkpoint; with an edited message, that is its first commit."""
    session, name = visit.session(), form.get("branch", "").strip()
    point = session.checkpoint(form.get("at", ""))
    edited, index = form.get("message"), form.get("index", "")
    if index and PART in point.metadata:
        message = "this thread is written by its framework, which goes on from its own checkpoints"
        raise InvalidInputError(message, hint="change the state there: LangGraph's update_state makes a branch")
    state = None if edited is None or not index else _edited(point.state, _number(index), edited.replace("\r\n", "\n"))
    session.fork(point, name)
    said = f"It is at {short(point.id)}, the checkpoint it was forked from."
    if state is not None:
        at = _number(index) + 1
        made = session.commit(state, branch=name, expect=point, trigger="edited", label=f"message {at} edited")
        said = f"Message {at} is as you wrote it, and those behind it are gone. It is at {short(made.id)}."
    return Notice("good", f"Forked: branch {name} is there.", said), Links().checkpoint(session.id, name)


def _edited(state: dict[str, Any], at: int, text: str) -> dict[str, Any] | None:
    """A state whose message says something else, and has none behind it; None if it says just that."""
    messages = state.get("messages")
    if not isinstance(messages, list) or not at < len(messages):
        raise InvalidInputError("the message to edit is not there any more")
    changed = _with_text(messages[at], text)
    return None if changed == messages[at] else {**state, "messages": [*messages[:at], changed]}


def _with_text(message: Any, text: str) -> Any:
    """A message with another text; blocks that are no text stay."""
    if not isinstance(message, dict):
        return text
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": text} if content != text else message
    others = [block for block in content if not (isinstance(block, dict) and block.get("type") == "text")]
    first = next((block for block in content if isinstance(block, dict) and block.get("type") == "text"), None)
    if first is not None and first.get("text") == text:
        return message
    return {**message, "content": [{**(first or {"type": "text"}), "text": text}, *others]}


def tag(visit: Visit, form: Form) -> Done:
    """A name for a checkpoint that does not move."""
    session, name = visit.session(), form.get("name", "").strip()
    point = session.checkpoint(form.get("at", ""))
    session.tag(point, name)
    return Notice("good", f"Tagged {short(point.id)} as {name}.", "Retention keeps it."), None


def restore(visit: Visit, form: Form) -> Done:
    """A branch goes back to a checkpoint, from where it was when the preview was shown."""
    session, branch = visit.session(), form.get("branch", "main")
    head, target = standing_at(session, branch), session.checkpoint(form.get("at", ""))
    refuse_moved(session, branch, form.get("head", ""))
    gone = leaving(session, head, target, most=_LEAVING)
    made = session.restore(target, branch=branch)
    left = "" if gone is None else f"{counted(len(gone), 'checkpoint')} left the head and stay in the history."
    left += " Files are as they were." if made.files is not None else ""
    notice = Notice("good", f"Restored {branch} to {short(target.id)}.", left, (session.id, branch, made.id))
    return notice, Links().session(session.id)


def undo(visit: Visit, form: Form) -> Done:
    """The last restore or undo of a branch is taken back."""
    session, branch = visit.session(), form.get("branch", "main")
    standing_at(session, branch)
    refuse_moved(session, branch, form.get("head", ""))
    if session.undo_moves_files(branch=branch):
        message = f"the last restore of {branch!r} moved files, and this page moves none"
        raise InvalidInputError(message, hint="`backstay undo` in the folder of the files takes it back")
    made = session.undo(branch=branch)
    text = f"It is at {short(made.id)}, a new checkpoint. Undo again to redo."
    notice = Notice("good", f"Undone on {branch}.", text, (session.id, branch, made.id))
    return notice, Links().session(session.id)


def resolve(visit: Visit, form: Form) -> Done:
    """A call in doubt is decided."""
    session, call, decision = visit.session(), form.get("call", ""), form.get("decision", "")
    if decision == "done":
        session.resolve(call, result=None)
        said = "recorded as done"
    elif decision == "result":
        session.resolve(call, result=_json(form.get("result", "")))
        said = "recorded as done, with that result"
    elif decision == "failed":
        session.resolve(call, failed=form.get("reason", "").strip() or "decided on the page")
        said = "recorded as failed"
    elif decision in ("retry", "skip"):
        session.resolve(call, "retry" if decision == "retry" else "skip")
        said = "made again by the next run" if decision == "retry" else "skipped: the next run is given None"
    else:
        raise InvalidInputError(f"a call cannot be decided by {decision!r}")
    return Notice("good", f"The call is {said}.", "The line of code that started the session goes on with it."), None


def abandon(visit: Visit, form: Form) -> Done:
    """All that is pending on a branch is given up."""
    session, branch = visit.session(), form.get("branch", "main")
    session.abandon(branch, reason=form.get("reason", "").strip() or "given up on the page")
    return Notice("good", f"What was pending on {branch} is given up.", "The calls stay in the history."), None


def answer(visit: Visit, form: Form) -> Done:
    """A wait is answered: approved, approved with other arguments, rejected, or given a value."""
    session, branch, wait = visit.session(), form.get("branch", "main"), form.get("wait", "")
    decision, by = form.get("decision", ""), form.get("by", "").strip() or _BY
    if decision == "reject":
        session.reject(wait, form.get("reason", "").strip() or "rejected on the page", branch=branch, by=by)
        return Notice("good", "Rejected.", "The next run of this session is told so."), None
    args = None
    if decision == "edit":
        args = _json(form.get("args", ""))
        if not isinstance(args, dict):
            raise InvalidInputError('the arguments of a call are an object, like {"order": 8}')
    value = True if decision in ("approve", "edit") else _value(form)
    session.answer(wait, value, branch=branch, by=by, args=args)
    said = {"approve": "Approved.", "edit": "Approved with these arguments."}.get(decision, "Answered.")
    return Notice("good", said, "The next run of this session goes on with it."), None


def verify(visit: Visit, form: Form) -> Done:  # noqa: ARG001 - there is nothing to say
    """Everything is read again."""
    begun = visit.jobs.verify.start(lambda progress: visit.store.verify(progress=progress))
    return Notice("good", "Verifying: everything is read again." if begun else "A verification is under way."), "/store"


def doctor(visit: Visit, form: Form) -> Done:  # noqa: ARG001 - there is nothing to say
    """The machine and the store are checked, as `backstay doctor` does it."""
    begun = visit.jobs.doctor.start(lambda _: findings(visit.store, visit.about))
    return Notice("good", "Checking this machine and the store." if begun else "A check is under way."), "/store#doctor"


def preview(visit: Visit, form: Form) -> Done:
    """What a retention would remove is worked out. The page removes nothing."""
    finished = _amount(form, "finished", float)
    retention = Retention(
        keep_last=_amount(form, "keep_last", int), keep_days=_amount(form, "keep_days", float), finished_days=finished
    )

    def work(progress: Progress) -> Preview:
        return Preview(retention, visit.store.prune(retention, dry_run=True, progress=progress))

    begun = visit.jobs.preview.start(work)
    said = "Working out what would go. Nothing is removed." if begun else "A preview is under way."
    return Notice("good", said), "/store#prune"


def _amount(form: Form, name: str, kind: Callable[[str], N]) -> N | None:
    text = form.get(name, "").strip()
    try:
        return kind(text) if text else None
    except ValueError:
        raise InvalidInputError(f"{text!r} is not a number") from None


def _value(form: Form) -> Any:
    text = form.get("value", "")
    return _json(text) if form.get("as_json") else text.replace("\r\n", "\n")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"this is not JSON: {error}") from None


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 - more than any list has
        raise InvalidInputError(f"{text!r} is not the number of a message")
    return int(text)


STORE_ACTIONS: dict[str, Action] = {"doctor": doctor, "preview": preview, "verify": verify}
ACTIONS: dict[str, Action] = {
    "abandon": abandon,
    "answer": answer,
    "fork": fork,
    "resolve": resolve,
    "restore": restore,
    "tag": tag,
    "undo": undo,
}
