"""A session that was found elsewhere on its way into a store: in one transaction, with its own ids, or not at all.

States are read one after the other while the transaction takes them in; in memory are those of a few lines at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256

import msgspec

from backstay.backend import (
    IN_DOUBT,
    Backend,
    BranchRow,
    CallRow,
    Journaled,
    Kept,
    Moved,
    Names,
    Row,
    RunRow,
    SessionRow,
)
from backstay.codec import Root, encode_stored
from backstay.digest import checkpoint_digest
from backstay.errors import InvalidInputError
from backstay.formats.found import MAIN, FoundSession, PendingCall, Point
from backstay.names import check_name
from backstay.messages import summarise
from backstay.model import StateDict, Usage
from backstay.run.options import digest_of
from backstay.store.fields import Fields, check_step, check_text, encode_metadata, encode_usage, to_totals
from backstay.store.tip import Plan, Tip

_TIPS = 8  # lines whose last state is kept at hand


def adopt(backend: Backend, found: FoundSession, name: str, tell: Callable[[], None]) -> None:
    """Take a session in under a name; AlreadyExistsError if that is taken."""
    fields = fields_of(found)
    sequence = {point.id: at for at, point in enumerate(found.points, 1)}
    head = found.heads[MAIN]
    line = SessionRow(
        name,
        to_totals(fields[head]),
        len(found.heads),
        len(found.points),
        min([point.at_us for point in found.points]),
        0,
    )
    names = Names(tuple([BranchRow(branch, id_, None) for branch, id_ in found.heads.items()]), ())
    runs, calls = journal_of(found, name, sequence[head], fields[head].at_us)
    moved = Moved(line, names, len(found.points), runs, calls)
    backend.adopt(moved, _Passage(found, name, fields, tell).history())


def fields_of(found: FoundSession) -> dict[str, Fields]:
    """The fields of every point but the summary, which needs its state."""
    totals: dict[str, Usage] = {}
    made: dict[str, Fields] = {}
    for point in found.points:
        before = totals.get(point.parent or "", Usage())
        totals[point.id] = point.total
        used = Usage(
            tokens_in=max(0, point.total.tokens_in - before.tokens_in),
            cost=max(0.0, point.total.cost - before.cost),
            tasks_completed=max(0, point.total.tasks_completed - before.tasks_completed),
        )
        for what, text in (("a label", point.label), ("a resume hint", point.resume_hint), ("a reason", point.reason)):
            check_text(text, what)
        check_step(point.step)
        made[point.id] = Fields(
            at_us=point.at_us,
            branch=point.branch,
            trigger=point.trigger,
            status=point.status,
            step=point.step,
            label=point.label,
            reason=point.reason,
            agent=check_name(point.agent, "an agent name") if point.agent else None,
            usage=encode_usage(used),
            total=encode_usage(point.total),
            metadata=encode_metadata(point.metadata),
            resume_hint=point.resume_hint,
        )
    return made


def plan_of(session: str, point: Point, fields: Fields, state: StateDict, tip: Tip | None) -> Plan:
    """What is to be written of a point on top of another."""
    full = msgspec.structs.replace(fields, summary=summarise(state))
    return Plan(
        tip,
        state,
        session=session,
        id_=point.id,
        fields=full,
        undo_to=None,
        take_up=None,
        lease=None,
        kept={},
        ends_run=False,
    )


class _Passage:
    """The states of one session, each as what changed since the one before it on its line."""

    def __init__(self, found: FoundSession, name: str, fields: dict[str, Fields], tell: Callable[[], None]) -> None:
        self._points = {point.id: point for point in found.points}
        self._name = name
        self._fields = fields
        self._tell = tell
        self._rows: dict[str, Row] = {}
        self._tips: dict[str, Tip] = {}  # the oldest first
        self._given: set[bytes] = set()

    def history(self) -> Iterator[tuple[Kept, Mapping[bytes, bytes]]]:
        for point in self._points.values():
            yield self._take(point)
            self._tell()

    def _take(self, point: Point) -> tuple[Kept, Mapping[bytes, bytes]]:
        parent = None if point.parent is None else self._rows[point.parent]
        tip = None if parent is None else self._tip(parent)
        plan = self._plan(point, point.load(), tip)
        commit = plan.commit
        number = len(self._rows) + 1
        row = Row(
            id=point.id,
            sequence=number,
            parent_id=point.parent,
            parent_digest=None if parent is None else parent.digest,
            link_id=point.parent,
            state_digest=commit.state_digest,
            digest=checkpoint_digest(
                id_=point.id,
                parent=None if parent is None else parent.digest,
                state=commit.state_digest,
                sequence=number,
                fields=commit.fields,
            ),
            fields=commit.fields,
        )
        self._rows[point.id] = row
        self._keep(plan.tip(row))
        blobs = {digest: blob for digest, blob in commit.blobs.items() if digest not in self._given}
        self._given.update(blobs)
        return Kept(row, commit.size_bytes, commit.delta, commit.whole), blobs

    def _plan(self, point: Point, state: StateDict, tip: Tip | None) -> Plan:
        return plan_of(self._name, point, self._fields[point.id], state, tip)

    def _tip(self, row: Row) -> Tip | None:
        """What the next delta is made against; a state that is no longer at hand is read again."""
        tip = self._tips.pop(row.id, None)
        if tip is None:
            point = self._points[row.id]
            tip = self._plan(point, point.load(), None).tip(row)
        return tip

    def _keep(self, tip: Tip) -> None:
        self._tips[tip.row.id] = tip
        if len(self._tips) > _TIPS:
            del self._tips[next(iter(self._tips))]


def journal_of(
    found: FoundSession, name: str, after: int, at_us: int
) -> tuple[tuple[RunRow, ...], tuple[Journaled, ...]]:
    """Calls of which nobody knows whether they happened, as a run that was cut off would have left them."""
    if not found.pending:
        return (), ()
    run = RunRow(branch=MAIN, run=1, token=1, entered=False, live=False, unfinished=True, input=None)
    asked: dict[tuple[str, str | None], int] = {}
    calls: list[Journaled] = []
    for slot, call in enumerate(found.pending, 1):
        slot_name = _call_name(call.name), call.key
        nth = asked.get(slot_name, 0)
        asked[slot_name] = nth + 1
        made = _call(call, nth=nth, id_=_call_id(name, found.heads[MAIN], slot), at_us=at_us)
        calls.append(Journaled(run=1, after=after, slot=slot, call=made))
    return (run,), tuple(calls)


def _call(call: PendingCall, *, nth: int, id_: str, at_us: int) -> CallRow:
    args = {} if call.args is None else call.args  # without any, it would be compared by its state
    return CallRow(
        id=id_,
        parent=None,
        name=_call_name(call.name),
        key=call.key,
        nth=nth,
        kind="tool",
        args=encode_stored(args, (Root("args"),)),
        args_digest=digest_of(args),
        status=IN_DOUBT,
        token=1,
        started_us=at_us,
    )


def _call_name(name: str) -> str:
    try:
        return check_name(name, "the name of a call")
    except InvalidInputError:
        return "tool"


def _call_id(session: str, head: str, slot: int) -> str:
    return sha256(f"{len(session)}:{session}{head}:{slot}".encode()).hexdigest()[:16]
