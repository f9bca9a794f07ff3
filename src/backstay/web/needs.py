"""What needs a person: waits for an answer or an approval, calls in doubt, crashed runs, damage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.errors import BackstayError, CorruptionError
from backstay.face.calls_beside import calls_session
from backstay.face.run_status import RunStatus, run_statuses
from backstay.hints import in_shell
from backstay.model import Status, counted
from backstay.shapes.text import brief, safe
from backstay.store.overview import branch_statuses
from backstay.web.words import clock

if TYPE_CHECKING:
    from backstay.face import Session, Store
    from backstay.model import Call, Problem, RunInfo, Wait

MAX_SHOWN = 3
_LOOKED_AT = 60  # sessions: more than that is a list, not a panel
_ARGS, _ARG_CHARS = 6, 300
_INTERRUPT = "for the answer to an interrupt: "  # as a thread of LangGraph says that it waits
_QUESTIONS = ("question", "prompt", "message", "text")


class Need(NamedTuple):
    """One thing to settle. `kind` is approval, answer, framework, doubt, crash or damage; `ref` its call or wait.

    `asker` is the session that asked for the call, where calls are kept beside it.
    """

    id: str
    kind: str
    session: str
    branch: str
    agent: str | None
    name: str
    since: datetime | None
    args: list[tuple[str, str]]
    ref: str = ""
    question: str = ""
    why: str = ""
    raw_args: str = ""
    asker: str = ""


def needs_of_store(store: Store, damaged: Iterable[Problem]) -> list[Need]:
    """Of all sessions, the one touched last first; damage that verify found behind them."""
    found: list[Need] = []
    try:
        for wait in store.waiting()[:_LOOKED_AT]:
            found += _of_wait(wait)
        for info in store.crashed()[:_LOOKED_AT]:
            asker = info.id.removesuffix("/tools")
            asker = asker if not info.checkpoints and calls_session(asker) == info.id else ""
            needs = _of_runs(store, store.session(info.id), info.agent)
            found += [need._replace(asker=asker) for need in needs]
    except CorruptionError as error:
        found.append(_unreadable("", None, error))
    return found + [_of_problem(problem) for problem in damaged]


def needs_of_session(store: Store, session: Session, agent: str | None, damaged: Iterable[Problem]) -> list[Need]:
    """Of one session, on all its branches."""
    found: list[Need] = []
    try:
        for branch, (status, _) in branch_statuses(store.backend, session.id).items():
            if status == Status.WAITING.value:
                for wait in session.waiting(branch):
                    found += _of_wait(wait)
    except CorruptionError as error:
        found.append(_unreadable(session.id, agent, error))
    found += _of_runs(store, session, agent) + _of_runs(store, store.session(calls_session(session.id)), agent)
    return found + [_of_problem(problem) for problem in damaged if problem.session_id == session.id]


def doubts_in(needs: Iterable[Need]) -> set[str]:
    """The calls among these needs that are in doubt, by their ids."""
    return {need.ref for need in needs if need.kind == "doubt"}


def _of_wait(wait: Wait) -> list[Need]:
    kind = {"answer": "answer", "approval": "approval", "framework": "framework"}.get(wait.what)
    if kind is None:
        return []  # a time or a message: it goes on by itself, or another program sends it
    question, args = wait.name.removeprefix(_INTERRUPT) if kind == "framework" else "", wait.args
    if kind == "answer" and isinstance(args, str):
        question, args = args, None
    elif kind == "answer" and isinstance(args, Mapping):
        key = next((key for key in _QUESTIONS if isinstance(args.get(key), str)), None)
        if key is not None:
            question, args = args[key], {name: value for name, value in args.items() if name != key}
    return [
        Need(
            _id("w", wait.session_id, wait.branch, wait.id or wait.name),
            kind,
            wait.session_id,
            wait.branch,
            wait.agent,
            wait.name,
            wait.since,
            arg_lines(args),
            ref=wait.id or "",
            question=question,
            raw_args=_as_json(wait.args) if kind == "approval" else "",
        )
    ]


def _of_runs(store: Store, session: Session, agent: str | None) -> list[Need]:
    try:
        statuses = run_statuses(store.backend, session)
        runs = {run.branch: run for run in session.runs()}
    except BackstayError as error:
        return [_unreadable(session.id, agent, error)]
    found = []
    for status in statuses:
        if status.live:
            continue
        found += [_of_doubt(session, status, call, agent, runs.get(status.branch)) for call in status.in_doubt]
        if not status.in_doubt:
            found.append(_of_crash(session, status, agent, runs.get(status.branch)))
    return found


def _of_doubt(session: Session, status: RunStatus, call: Call, agent: str | None, run: RunInfo | None) -> Need:
    holder = "" if run is None or run.holder is None else f", {run.holder.partition(' on ')[0]}"
    lines = [*arg_lines(call.args), ("started", f"{clock(call.started_at)}{holder}")]
    if call.error is not None:
        lines.append(("outcome", "done, and its result could not be kept"))
    else:
        lines.append(("outcome", "unknown, the process is gone"))
    why = "The process died inside this call. Look where it would have left a trace, then say."
    return Need(
        _id("d", session.id, status.branch, call.id),
        "doubt",
        session.id,
        status.branch,
        agent,
        call.name,
        call.started_at,
        lines,
        ref=call.id,
        why=why,
    )


def _of_crash(session: Session, status: RunStatus, agent: str | None, run: RunInfo | None) -> Need:
    lines = []
    if run is not None and run.holder is not None:
        lines.append(("process", run.holder))
    if status.crashes > 1:
        lines.append(("crashes", f"{status.crashes} at this spot"))
    if status.head is not None:
        lines.append(("stood at", f"{status.head.id[:8]}, {safe(status.head.summary)}"))
    why = "Nothing is in doubt: the line of code that started this run goes on with it."
    since = run.since if run is not None else None
    return Need(
        _id("c", session.id, status.branch, ""), "crash", session.id, status.branch, agent, "", since, lines, why=why
    )


def _of_problem(problem: Problem) -> Need:
    lines = [("found by", "verify")]
    if problem.checkpoints:
        named = ", ".join([id_[:8] for id_ in problem.checkpoints[:4]])
        more = f" and {len(problem.checkpoints) - 4} more" if len(problem.checkpoints) > 4 else ""  # noqa: PLR2004
        lines.append(("damaged", named + more))
    lines += [(word, said) for word, said in (("costs", problem.cost), ("remedy", problem.remedy)) if said]
    session = problem.session_id or ""
    name = f"{counted(len(problem.checkpoints), 'checkpoint')} cannot be read" if problem.checkpoints else problem.what
    return Need(
        _id("v", session, "", problem.what), "damage", session, "", None, name, None, lines, question=problem.what
    )


def _unreadable(session: str, agent: str | None, error: BackstayError) -> Need:
    lines = [("remedy", in_shell(error.hint))] if error.hint else []
    return Need(_id("v", session, "", error.message), "damage", session, "", agent, error.message, None, lines)


def arg_lines(args: Any) -> list[tuple[str, str]]:
    """Arguments, a line each: name and value."""
    if args is None:
        return []
    items = list(args.items()) if isinstance(args, Mapping) else [("value", args)]
    lines = [(safe(str(key)), _written(value)) for key, value in items[:_ARGS]]
    return lines + ([("…", f"{len(items) - _ARGS} more")] if len(items) > _ARGS else [])


def _written(value: Any) -> str:
    """A value as it stands in JSON, where it is a text; as in Python, where it is anything else."""
    if isinstance(value, str):
        return f'"{safe(value[:_ARG_CHARS])}"' + ("…" if len(value) > _ARG_CHARS else "")
    return brief(value, chars=_ARG_CHARS)


def _as_json(args: Any) -> str:
    import json  # noqa: PLC0415 - most pages show none

    from backstay.shapes import plain  # noqa: PLC0415

    return json.dumps(plain(args), indent=1, ensure_ascii=False)


def _id(lead: str, *parts: str) -> str:
    """An id for the page that is the same as long as the need is."""
    return f"{lead}-{hashlib.sha256(chr(0).join(parts).encode('utf-8', 'replace')).hexdigest()[:10]}"
