"""A checkpoint: the conversation up to it, its state, its calls, its fields, and what can be done from here."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from backstay import shapes
from backstay.bookkeeping import PART, visible
from backstay.difference import difference, same
from backstay.errors import BackstayError, CorruptionError, InvalidInputError
from backstay.face.calls_beside import CallsBeside
from backstay.model import counted
from backstay.port import Ask, CheckpointRow
from backstay.shapes.conversation import answered_by, asked_in, said_in, speaker_of
from backstay.shapes.going_back import aside, leaving
from backstay.shapes.points import names_told, point_at
from backstay.shapes.text import short
from backstay.web.about_session import crumbs_of, info_of
from backstay.web.file_views import path_in
from backstay.web.history import OPEN, arg_words, args_of, described, is_bookkeeping, seconds_of, sort_of_call, steps_of
from backstay.web.needs import doubts_in, needs_of_session
from backstay.web.pages import files as files_tab
from backstay.web.paths import Links
from backstay.web.reader import Room, pretty, turns_of
from backstay.web.tree import tree_of
from backstay.web.view import Shown

if TYPE_CHECKING:
    from backstay.face import Session, Store
    from backstay.model import Checkpoint
    from backstay.port import CallRow
    from backstay.web.view import Visit

WINDOW = 60
TABS = ("conversation", "state", "calls", "files", "raw", "fields")
_TAB_WORDS = tuple(zip(TABS, ("Conversation", "State", "Calls", "Files", "Raw JSON", "Fields and digest"), strict=True))
_EARLIER, _LATER = 11, 8
_LISTED, _LEAVING = 8, 300
_RAW_CHARS = 80_000
_CALLS = 100
_TITLE_CHARS = 140


def show(visit: Visit) -> Shown:
    """The page."""
    session, store = visit.session(), visit.store
    info = info_of(visit, session)
    point = point_at(session, visit.parts[3])
    named = names_told(store, session)
    state, damage = _state(session, point)
    state = visible(state)
    messages = state.get("messages")
    messages = messages if isinstance(messages, list) else []
    tab = visit.query.get("tab") or ("conversation" if messages else "state")
    if tab not in TABS:
        raise InvalidInputError(f"there is no tab {tab!r}")
    steps, at = _neighbours(store, session, point)
    calls = steps[at][1]
    files = files_tab.files_of(point)
    heads = {name: id_ for id_, names in named.items() for name, kind in names if kind == "branch"}
    later = [each for each, _ in steps[at + 1 :]]
    refs = named.get(point.id, [])
    data: dict[str, Any] = {
        "info": info,
        "session_id": session.id,
        "point": point,
        "refs": refs,
        "ref": _ref(point, later, heads) if not refs else "",
        "title_code": described(point, calls)[0],
        "title_text": _title(point, calls, messages),
        "tab": tab,
        "steps": [(each, _nav_words(each, made)) for each, made in steps],
        "previous": steps[at - 1][0] if at else None,
        "next": later[0] if later else None,
        "damage": damage,
        "metadata": {key: value for key, value in point.metadata.items() if key != PART},
        "count": {"conversation": len(messages), "calls": len(calls), "files": 0 if files is None else files.count},
        "tabs": [(each, word) for each, word in _TAB_WORDS if each != "files" or files is not None or tab == "files"],
        "changed": files_tab.changes_of(session, point, files, only=path_in(visit.query) if tab == "files" else ""),
        "calls": _call_views(calls, _doubted(store, session, calls)) if tab == "calls" else [],
        "seconds": sum(seconds_of(call) for call in calls if call.parent is None),
        "actions": _actions(visit, session, point, heads, state),
        "in_framework": PART in point.metadata,
        "changed_since": point.parent_id,
        "in_session": False,
    }
    if tab == "files":
        names = {call.id: call.name for _, made in steps for call in made}
        data |= files_tab.tab_data(files, visit.query, names)
    data |= _tab_data(visit, session, point, state, messages, calls, tab)
    title = f"{data['title_code']} {data['title_text']}".strip() or short(point.id)
    crumbs = crumbs_of(visit, session, (short(point.id), None))

    def shape() -> Any:
        if tab == "files":
            return files_tab.shape_of(files, visit.query)
        return _shape(store, session, point, [name for name, _ in refs], state)

    return Shown("checkpoint.html", title, crumbs, data, shape)


def _state(session: Session, point: Checkpoint) -> tuple[dict[str, Any], str]:
    """The state, and why it is not whole if it is not."""
    try:
        return point.state, ""
    except CorruptionError as error:
        try:
            return dict(session.load(point, salvage=True)), error.message
        except BackstayError:
            return {}, error.message


def _tab_data(
    visit: Visit,
    session: Session,
    point: Checkpoint,
    state: dict[str, Any],
    messages: list[Any],
    calls: list[CallRow],
    tab: str,
) -> dict[str, Any]:
    if tab == "state":
        return {"tree": tree_of(state)}
    if tab == "raw":
        whole = pretty(state)
        return {
            "raw": whole[:_RAW_CHARS],
            "raw_size": len(whole.encode("utf-8", "replace")),
            "raw_cut": len(whole) > _RAW_CHARS,
        }
    if tab == "conversation":
        return conversation_data(session, point, messages, calls, visit.query)
    return {}


def conversation_data(
    session: Session, point: Checkpoint, messages: list[Any], calls: list[CallRow], query: Any
) -> dict[str, Any]:
    """The turns: the first message, earlier ones folded, and what is new in this checkpoint."""
    new_from = _new_from(session, point, messages)
    start = _number(query.get("from")) if query.get("from") else max(0, len(messages) - WINDOW)
    window = range(min(start, len(messages)), min(len(messages), start + WINDOW))
    full, image = _number(query.get("full"), -1), _number(query.get("image"), -1)
    turns = turns_of(messages, window, new_from=new_from, calls=calls, full=full, image=image)
    new = [turn for turn in turns if turn.is_new]
    old = [turn for turn in turns if not turn.is_new]
    first = old[:1] if old and window.start == 0 else []
    while first and first[-1].speaker in ("system", "developer") and len(first) < len(old):
        first = old[: len(first) + 1]
    whole = bool(query.get("from")) or not new
    shown_old = old if whole else first
    return {
        "first_turns": shown_old,
        "earlier": [] if whole else old[len(first) :],
        "new_turns": new,
        "unfold": _unfolds(old[len(first) :], full, image),
        "window": window,
        "messages": len(messages),
        "window_size": WINDOW,
        "new_words": _new_words(messages, new_from),
    }


def _new_words(messages: list[Any], new_from: int) -> str:
    """What is new, counted: answers, tool calls, results."""
    new = [message for message in messages[new_from:] if isinstance(message, dict)]
    answers = [message for message in new if speaker_of(message) == "assistant"]
    calls = sum(len(asked_in(message)) for message in answers)
    results = 0 if answers else sum(len(answered_by(message)) for message in new)
    counts = ((len(answers), "answer"), (calls, "tool call"), (results, "result"))
    return ", ".join([counted(number, word) for number, word in counts if number])


def _unfolds(turns: list[Any], full: int, image: int) -> bool:
    """True if what was asked to be shown whole is among the folded turns."""
    numbers = {piece.image.number for turn in turns for piece in turn.pieces if piece.image is not None}
    return any(turn.number == full for turn in turns) or image in numbers


def _new_from(session: Session, point: Checkpoint, messages: list[Any]) -> int:
    """The first message that the parent did not have; all are old where the parent is gone."""
    if point.parent_id is None:
        return 0
    try:
        before = session.load(point.parent_id).get("messages")
    except BackstayError:
        return len(messages)
    before = before if isinstance(before, list) else []
    for at, (one, other) in enumerate(zip(before, messages, strict=False)):
        if not same(one, other):
            return at
    return min(len(before), len(messages))


def _number(given: str | None, otherwise: int = 0) -> int:
    return int(given) if given and given.isdecimal() and len(given) < 10 else otherwise  # noqa: PLR2004


def _neighbours(
    store: Store, session: Session, point: Checkpoint
) -> tuple[list[tuple[Checkpoint, list[CallRow]]], int]:
    """The checkpoints before and behind this one on its branch, oldest first, with their calls; and where it is."""
    earlier = list(store.backend.ancestors(session.id, point.sequence, limit=_EARLIER + 1))
    later: list[CheckpointRow] = []
    sequence = point.sequence
    while len(later) < _LATER:
        children = store.backend.read(Ask(session.id, children_of=(sequence,))).children.get(sequence, ())
        rows = store.backend.read(Ask(session.id, sequences=tuple(children))).checkpoints
        steps = [row for row in rows.values() if isinstance(row, CheckpointRow)]
        own = [row for row in steps if _branch(store, session, row) == point.branch]
        if not own:
            break
        later.append(own[0])
        sequence = own[0].sequence
    found = steps_of(store, session.id, [*reversed(earlier), *later])
    kept = [
        (step.point, [*step.calls, *step.asked])
        for step in found
        if step.point is not None and not is_bookkeeping(step)
    ]
    if all(each.id != point.id for each, _ in kept):  # writes of a checkpoint that was pruned
        kept.append((point, []))
    return kept, next(n for n, (each, _) in enumerate(kept) if each.id == point.id)


def _branch(store: Store, session: Session, row: CheckpointRow) -> str:
    step = steps_of(store, session.id, [row])[0]
    return "" if step.point is None else step.point.branch


def _ref(point: Checkpoint, later: list[Checkpoint], heads: dict[str, str]) -> str:
    """`main~3`, where the head is near."""
    head = heads.get(point.branch)
    return next((f"{point.branch}~{n}" for n, each in enumerate(later, 1) if each.id == head), "")


def _title(point: Checkpoint, calls: list[CallRow], messages: list[Any]) -> str:
    if point.label:
        return point.label
    code, text = described(point, calls)
    if not code and text == point.summary and ": " in text[:12]:
        text = _first_line(messages) or text.partition(": ")[2]  # who says it stands below
    return text or ("" if code else point.trigger)


def _first_line(messages: list[Any]) -> str:
    """The first line of the last message, which a summary has cut."""
    last = messages[-1] if messages and isinstance(messages[-1], dict) else {}
    text = next((said.text for said in said_in(last) if said.text and said.text.strip()), "")
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _TITLE_CHARS else f"{line[:_TITLE_CHARS].rsplit(' ', 1)[0]} …"


def _nav_words(point: Checkpoint, calls: list[CallRow]) -> str:
    if point.restored_from is not None:
        return f"{point.trigger} {short(point.restored_from)}"
    code, text = described(point, calls)
    return f"{code} {text}".strip() if code else point.label or text or point.trigger


def _doubted(store: Store, session: Session, calls: list[CallRow]) -> set[str]:
    """The calls among these that are in doubt."""
    has_open = any(call.status in OPEN for call in calls)
    return doubts_in(needs_of_session(store, session, None, ())) if has_open else set()


def _call_views(calls: list[CallRow], doubted: set[str]) -> list[dict[str, Any]]:
    room = Room()
    return [_call_view(call, room) | ({"status": "in_doubt"} if call.id in doubted else {}) for call in calls[:_CALLS]]


def _call_view(call: CallRow, room: Room) -> dict[str, Any]:
    args = args_of(call)
    return {
        "id": call.id,
        "name": call.name,
        "kind": sort_of_call(call),
        "status": call.status,
        "words": arg_words(args),
        "args": room.fold(pretty(args)) if args not in (None, {}) else None,
        "error": None if call.error is None else ": ".join(call.error),
        "result": room.fold(_result(call)) if call.result is not None else None,
        "in_state": call.place is not None,
        "seconds": seconds_of(call) if call.ended_us is not None else None,
        "nested": call.parent is not None,
        "started_us": call.started_us,
    }


def _result(call: CallRow) -> str:
    from backstay.codec import decode  # noqa: PLC0415 - only where there is one
    from backstay.sealing import open_value  # noqa: PLC0415

    try:
        value = decode(open_value(call.result or b""))
    except BackstayError as error:
        return error.message
    return value if isinstance(value, str) else pretty(value)


def _actions(
    visit: Visit, session: Session, point: Checkpoint, heads: dict[str, str], state: dict[str, Any]
) -> dict[str, Any]:
    """The forms beside the conversation; a restore only with its preview."""
    act, branch = visit.query.get("act", ""), visit.query.get("branch") or point.branch
    branch = branch if branch in heads else "main" if "main" in heads else next(iter(heads), "")
    data: dict[str, Any] = {"act": act, "branch": branch, "branches": sorted(heads), "plan": None, "edit": None}
    data["is_head"] = heads.get(branch) == point.id
    number = 2
    while f"{branch}-{number}" in heads:
        number += 1
    data["new_name"] = f"{branch or 'main'}-{number}"
    if act == "restore" and branch and not data["is_head"]:
        data["plan"] = _plan(session, point, branch, state)
    if act == "fork" and visit.query.get("index") and PART not in point.metadata:
        data["edit"] = _edit(point, _number(visit.query.get("index"), -1))
    data["here"] = Links().checkpoint(session.id, point.id)
    return data


def _plan(session: Session, point: Checkpoint, branch: str, state: dict[str, Any]) -> dict[str, Any]:
    head = session.head(branch)
    assert head is not None  # noqa: S101 - the branch is there
    gone = leaving(session, head, point, most=_LEAVING)
    try:
        parts = [
            (str(stat.part), stat.added, stat.removed, stat.changed)
            for stat in difference(visible(session.load(head)), state, a="", b="").stat()
        ]
    except CorruptionError:
        parts = None
    pending = session.calls(branch, pending=True)
    files = files_tab.files_of(head)
    return {
        "head": head,
        "folder": None if files is None else files.root,
        "rewind": f"backstay rewind {shlex.quote(session.id)} {short(point.id)}",
        "leaving": (gone or [])[:_LISTED],
        "leaving_more": max(0, len(gone or []) - _LISTED),
        "aside": aside(head, most=_LEAVING) if gone is None else "",
        "parts": parts,
        "doubts": sum(call.status == "in_doubt" for call in pending),
        "pending": sum(call.status in ("started", "waiting") for call in pending),
    }


def _edit(point: Checkpoint, index: int) -> dict[str, Any] | None:
    """A message that can be written anew in a fork: its number and its text."""
    messages = point.state.get("messages")
    if not isinstance(messages, list) or not 0 <= index < len(messages):
        return None
    message = messages[index]
    if not isinstance(message, dict):
        return {"index": index, "text": message} if isinstance(message, str) else None
    text = "\n".join([said.text for said in said_in(message) if said.text is not None])
    return {"index": index, "text": text}


def _shape(store: Store, session: Session, point: Checkpoint, refs: list[str], state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint in the shape that `backstay show --json` has."""
    calls = [shapes.call(call) for call in [*session.calls(point), *CallsBeside(store, session).at(point.id)]]
    return {**shapes.checkpoint(point), "refs": refs, "state": shapes.plain(state), "calls": calls}
