"""A page of a session's history, read once: checkpoints newest first, the calls of each, names, and what is pending.

Rows are read as they are kept, a page at a time, and their calls in one more read; no state is loaded. A row that is
damaged has its place among the others and says so.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from backstay.bookkeeping import PART, is_writes, owner_of
from backstay.codec import decode
from backstay.errors import BackstayError, CorruptionError
from backstay.face.calls_beside import calls_session
from backstay.port import EVERY, Ask, CallRow, CheckpointRow, Kind, Unreadable
from backstay.port.rows import FOR_CHILD, WAIT
from backstay.sealing import open_value
from backstay.shapes.text import brief, safe, short
from backstay.store.fields import to_datetime
from backstay.store.history import History
from backstay.store.overview import calls_by_checkpoint

if TYPE_CHECKING:
    from backstay.face import Session, Store
    from backstay.model import Checkpoint

PAGE = 150
_BEYOND = 2**40  # no sequence is as large
_ARG_CHARS, _ARGS = 80, 3
_SHOWN_KINDS = {"llm": "model", "tool": "tool"}
_TOOL_SAID = ("tool: ", "tool_result: ", "function_call_output: ")
_ASKED = re.compile(r"\w+: -> ([^\s,]+)(.*)", re.DOTALL)  # the summary of an answer that is a call
OPEN = ("started", "in_doubt", "waiting")


class HistoryStep(NamedTuple):
    """A checkpoint and the calls that led to it; `damage` says why it cannot be read, and then there is no point.

    `asked` are calls that a framework's step asked for and that have no outcome yet.
    """

    sequence: int
    point: Checkpoint | None
    calls: list[CallRow]
    damage: str = ""
    asked: tuple[CallRow, ...] = ()


class Page(NamedTuple):
    """Steps, newest first; `older` is the id that the next page is before, empty if there is none.

    Rows that only record writes of a framework's tasks are left out; `between` has the parent of each.
    """

    steps: list[HistoryStep]
    older: str
    between: dict[str, str | None]

    @property
    def points(self) -> list[Checkpoint]:
        """The checkpoints that can be read."""
        return [step.point for step in self.steps if step.point is not None]

    def parent_of(self, point: Checkpoint) -> str | None:
        """The checkpoint before, past the rows that are left out."""
        parent: str | None = point.parent_id
        while parent in self.between:
            parent = self.between[parent or ""]
        return parent


def history_page(store: Store, session: Session, *, before: str | None = None, branch: str | None = None) -> Page:
    """The newest checkpoints of all branches, or those behind `before`; with `branch`, those that led to its head."""
    history = History(store.backend, store.events, session.id, agent=None)
    if branch is not None:
        at = session.checkpoint(before or branch)
        limit = PAGE + 1 + (before is not None)
        rows = list(store.backend.ancestors(session.id, at.sequence, limit=limit))[int(before is not None) :]
    else:
        below = _BEYOND if before is None else session.checkpoint(before).sequence
        rows = _scan(store, session.id, below, PAGE + 1)
    steps = steps_of(store, session.id, rows[:PAGE], history)
    last = next((step.point.id for step in reversed(steps) if step.point is not None), "")
    between: dict[str, str | None] = {
        step.point.id: step.point.parent_id for step in steps if step.point is not None and is_writes(step.point)
    }
    return Page(_told(steps), last if len(rows) > PAGE else "", between)


def _told(steps: list[HistoryStep]) -> list[HistoryStep]:
    """Steps as people are told of them: without rows of writes, the newest of which says how its checkpoint stands."""
    found: list[HistoryStep] = []
    ends: dict[str, Checkpoint] = {}
    for step in steps:
        if step.point is None or not is_writes(step.point):
            end = None if step.point is None else ends.get(step.point.id)
            found.append(step if end is None else step._replace(point=_as_ended(step.point, end)))
        else:
            ends.setdefault(owner_of(step.point), step.point)
    return found


def _as_ended(point: Checkpoint | None, end: Checkpoint) -> Checkpoint | None:
    return None if point is None else msgspec.structs.replace(point, status=end.status, reason=end.reason)


class MadeCall(NamedTuple):
    """A call, the checkpoint that took it in (None while it is pending), and its branch."""

    row: CallRow
    point: Checkpoint | None
    branch: str


def calls_page(store: Store, session: Session, *, before: str | None, most: int) -> tuple[Page, list[MadeCall]]:
    """The newest steps of a page with at most so many calls together, and those calls, the newest first."""
    page = trimmed(history_page(store, session, before=before), most)
    made: list[MadeCall] = []
    if before is None:
        for branch, calls in pending_calls(store, session.id).items():
            made += [MadeCall(call, None, branch) for call in reversed(calls)]
    for step in page.steps:
        if step.point is not None:
            made += [MadeCall(call, None, step.point.branch) for call in reversed(step.asked)]
            made += [MadeCall(call, step.point, step.point.branch) for call in reversed(step.calls)]
    return page, [call for call in made if kind_of_call(call.row) is not None]


def trimmed(page: Page, most: int) -> Page:
    """The newest steps of a page, as many as have together at most so many calls; at least one."""
    kept, calls = list[HistoryStep](), 0
    for step in page.steps:
        calls += len(step.calls)
        if calls > most and kept:
            last = next((each.point.id for each in reversed(kept) if each.point is not None), page.older)
            return page._replace(steps=kept, older=last)
        kept.append(step)
    return page


def is_bookkeeping(step: HistoryStep) -> bool:
    """True for a row that people do not mean when they speak of checkpoints."""
    return step.point is not None and is_writes(step.point)


def _scan(store: Store, session: str, below: int, limit: int) -> list[CheckpointRow | Unreadable]:
    found: list[CheckpointRow | Unreadable] = []
    while len(found) < limit:
        page = store.backend.scan(session, Kind.CHECKPOINT, before=below, limit=min(100, limit - len(found)))
        found += [row for row in page if isinstance(row, CheckpointRow | Unreadable)]
        if not page:
            break
        below = _sequence(found[-1])
    return found


def _sequence(row: CheckpointRow | Unreadable) -> int:
    return row.sequence if isinstance(row, CheckpointRow) else int(row.key)  # type: ignore[arg-type]  # a checkpoint's


def steps_of(
    store: Store, session: str, rows: Sequence[CheckpointRow | Unreadable], history: History | None = None
) -> list[HistoryStep]:
    """Rows as checkpoints with their calls."""
    history = history or History(store.backend, store.events, store.session(session).id, agent=None)
    calls = _calls(store, session, [row for row in rows if isinstance(row, CheckpointRow)])
    found = []
    for row in rows:
        if isinstance(row, Unreadable):
            found.append(HistoryStep(_sequence(row), None, [], row.why))
            continue
        try:
            found.append(HistoryStep(row.sequence, history.checkpoint(row), calls.get(row.sequence, [])))
        except CorruptionError as error:
            found.append(HistoryStep(row.sequence, None, [], error.message))
    return _with_those_beside(store, session, found)


def _with_those_beside(store: Store, session: str, steps: list[HistoryStep]) -> list[HistoryStep]:
    """A framework's steps with the calls that they asked for, which are kept in a session beside."""
    ids = {step.point.id for step in steps if step.point is not None and PART in step.point.metadata}
    if not ids:
        return steps
    beside = calls_session(session)
    lanes = store.backend.read(Ask(beside, names=EVERY)).lanes
    wanted = tuple([name for name in lanes if name.partition("/")[0] in ids])
    made: dict[str, list[CallRow]] = {}
    if wanted:
        for name, rows in store.backend.read(Ask(beside, names=wanted, pending=wanted)).pending.items():
            made.setdefault(name.partition("/")[0], []).extend([row for row in rows if isinstance(row, CallRow)])
    return [step if step.point is None else _asking(step, made.get(step.point.id, [])) for step in steps]


def _asking(step: HistoryStep, made: list[CallRow]) -> HistoryStep:
    made.sort(key=lambda call: call.started_us)
    ended = [call for call in made if call.status not in OPEN]
    return step._replace(calls=step.calls + ended, asked=tuple([call for call in made if call.status in OPEN]))


def _calls(store: Store, session: str, rows: list[CheckpointRow]) -> dict[int, list[CallRow]]:
    """The calls of checkpoints; where some of them cannot be read, those of the others."""
    try:
        return calls_by_checkpoint(store.backend, session, rows)
    except CorruptionError:
        found: dict[int, list[CallRow]] = {}
        for row in rows:
            with contextlib.suppress(CorruptionError):
                found |= calls_by_checkpoint(store.backend, session, [row])
        return found


def last_steps(store: Store, session: str, count: int) -> list[Checkpoint]:
    """The checkpoints made last, newest first; those that cannot be read are left out."""
    rows = _scan(store, session, _BEYOND, count)
    history = History(store.backend, store.events, store.session(session).id, agent=None)
    found = []
    for row in rows:
        try:
            if isinstance(row, CheckpointRow):
                point = history.checkpoint(row)
                found += [] if is_writes(point) else [point]
        except CorruptionError:
            continue
    return found


def pending_calls(store: Store, session: str) -> dict[str, list[CallRow]]:
    """By branch: the calls since its head; none where they cannot be read, which what needs a person then says."""
    try:
        view = store.backend.read(Ask(session, names=None, pending=None))
    except CorruptionError:
        return {}
    return {name: [row for row in rows if isinstance(row, CallRow)] for name, rows in view.pending.items() if rows}


def kind_of_call(row: CallRow) -> str | None:
    """The kind of bar that a call is drawn as; None for a recorded value, or a message."""
    if row.kind == WAIT:
        return "child" if row.wait is not None and row.wait.what == FOR_CHILD else "wait"
    if row.status in ("started", "in_doubt"):
        return "doubt"
    if row.status in ("failed", "rejected", "timed_out") and row.kind == "tool":
        return "bad"
    return _SHOWN_KINDS.get(row.kind)


def sort_of_call(row: CallRow) -> str:
    """What a call is, in a word: model, tool, wait or child."""
    return (kind_of_call(row) or row.kind) if row.kind == WAIT else _SHOWN_KINDS.get(row.kind, row.kind)


def seconds_of(row: CallRow) -> float:
    """How long a call took; nothing while it is open."""
    return 0.0 if row.ended_us is None else max(0, row.ended_us - row.started_us) / 1e6


def bars_of(calls: Iterable[CallRow]) -> list[tuple[str, float]]:
    """The calls of a step as `drawing.bars` takes them; those made inside another are in its time."""
    kinds = [(kind_of_call(row), seconds_of(row)) for row in calls if row.parent is None]
    return [(kind, seconds) for kind, seconds in kinds if kind is not None]


def args_of(row: CallRow) -> Any:
    """The arguments of a call; None where there are none, or where they cannot be read."""
    try:
        return None if row.args is None else decode(open_value(row.args))
    except BackstayError:
        return None


def arg_words(args: Any) -> str:
    """Arguments in a few words: the first values, bare."""
    values = list(args.values()) if isinstance(args, dict) else [] if args is None else [args]
    words = [
        safe(value[:_ARG_CHARS]) if isinstance(value, str) else brief(value)[:_ARG_CHARS] for value in values[:_ARGS]
    ]
    return " ".join(words)[: 2 * _ARG_CHARS]


def described(point: Checkpoint, calls: Sequence[CallRow]) -> tuple[str, str]:
    """What a step did: the tool that it called last, if any, and the rest of the sentence."""
    if point.restored_from is not None:
        return "", f"state as of {short(point.restored_from)}"
    tools = [row for row in calls if row.parent is None and kind_of_call(row) in ("tool", "child", "bad", "doubt")]
    summary = point.summary
    if not tools:
        asked = _ASKED.fullmatch(summary)
        return (asked[1], asked[2].strip()) if asked else ("", summary)
    last = tools[-1]
    words = "child session" if kind_of_call(last) == "child" else arg_words(args_of(last))
    said = next((summary[len(lead) :] for lead in _TOOL_SAID if summary.startswith(lead)), "")
    if last.error is not None:
        said = last.error[1].partition("\n")[0]
    more = f", and {len(tools) - 1} more" if len(tools) > 1 else ""
    return last.name, ": ".join(filter(None, [words, said])) + more or summary


def when(row: CallRow) -> Any:
    """When a call began."""
    return to_datetime(row.started_us)
