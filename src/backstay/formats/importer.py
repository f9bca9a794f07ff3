"""A session that was found elsewhere on its way into a store: with its own ids, all of it at once or not at all.

It is built in memory, one state after the other, each as what changed since the one before it on its line. Then it is
copied as any session is that moves from store to store: in portions, under a name that no reader sees.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from hashlib import sha256

import msgspec

from backstay.codec import Root, encode_stored
from backstay.errors import InvalidInputError
from backstay.formats.model import MAIN, FoundPoint, FoundSession, PendingCall
from backstay.messages import summarise
from backstay.model import NOTHING, SessionId, Usage
from backstay.names import check_name
from backstay.opening import open as open_store
from backstay.port import Ask, Backend, CallRow, CheckpointRow
from backstay.port.lease import here
from backstay.port.rows import IN_DOUBT
from backstay.rules import branches, refusals, runs
from backstay.run.options import digest_of
from backstay.sealing import pack_value
from backstay.store.events import Events
from backstay.store.fields import Fields, check_step, check_text, check_usage, encode_metadata, encode_usage, to_totals
from backstay.store.history import History
from backstay.upkeep.arrival import Arrival
from backstay.upkeep.copying import bring

_TIPS = 8  # lines whose last state is kept at hand
_LEASE_US = 30_000_000
_NONCE_BYTES = 8


def adopt(backend: Backend, found: FoundSession, name: str, tell: Callable[[], None]) -> Arrival:
    """Take a session in under a name; AlreadyExistsError if that is taken."""
    with open_store("memory://") as store:
        writer = PointWriter(store.backend, found, name)
        for point in found.points:
            writer.write(point)
            tell()
        writer.finish()
        arrival = bring(store.backend, backend, name)
    if arrival is None:
        raise refusals.no_session(name)[1]
    try:
        totals = to_totals(writer.fields[found.heads[MAIN]])
        arrival.show(
            name,
            created_us=min([point.at_us for point in found.points]),
            updated_us=totals.at_us,
            agent=totals.agent,
            status=totals.status,
            reason=totals.reason,
            last_step=totals.last_step,
            usage=totals.usage,
            title=found.title,
        )
    except BaseException:
        arrival.discard()
        raise
    return arrival


def rehearse(found: FoundSession, name: str, tell: Callable[[], None]) -> None:
    """All that `adopt` does before it touches the store: every state is read and checked."""
    with open_store("memory://") as store:
        writer = PointWriter(store.backend, found, name)
        for point in found.points:
            writer.write(point)
            tell()
        writer.finish()


class PointWriter:
    """Writes points of a session, parents first, each on the branch it belongs to."""

    def __init__(self, backend: Backend, found: FoundSession, name: str) -> None:
        self._backend = backend
        self._found = found
        self._name = name
        self._history = History(backend, Events(), SessionId(name), agent=None)
        self._tips: dict[str, None] = {}  # branches whose last state is at hand, the one used longest ago first
        self.fields = _fields_of(found)

    def write(self, point: FoundPoint) -> None:
        """The next point; ConflictError if its branch is not at its parent."""
        branch, parent = point.branch, point.parent
        if parent is not None and branch not in self._tips:
            self._make_branch(branch, parent)
        state = point.load()
        fields = msgspec.structs.replace(self.fields[point.id], summary=summarise(state))
        self._history.write(branch, state, fields, expect=NOTHING if parent is None else parent, id_=point.id)
        self._tips.pop(branch, None)
        self._tips[branch] = None
        if len(self._tips) > _TIPS:
            oldest = next(iter(self._tips))
            del self._tips[oldest]
            self._history.forget(oldest)

    def finish(self) -> None:
        """All points are written: branches without one of their own, and what is pending."""
        for branch, head in self._found.heads.items():
            self._make_branch(branch, head)
        self.leave_doubts()

    def _make_branch(self, branch: str, id_: str) -> None:
        """A branch at a checkpoint, unless there is one of that name."""
        if branch in self._backend.read(Ask(self._name, names=(branch,))).lanes:
            return
        row = rows_by_id(self._backend, self._name, [id_])[id_]
        ask = branches.naming_ask(self._name, branch, row.sequence)
        self._backend.write(ask, branches.fork(self._name, branch, sequence=row.sequence, id_=row.id))

    def leave_doubts(self) -> None:
        """The calls without an outcome at the head, as a run that was cut off would have left them."""
        lane = self._backend.read(Ask(self._name, names=(MAIN,))).lanes.get(MAIN)
        head = self._found.heads[MAIN]
        if not self._found.pending or lane is None or lane.head is None or lane.head.id != head:
            return
        point = next(point for point in self._found.points if point.id == head)
        intent = runs.Enter(
            self._name,
            MAIN,
            b"",
            secrets.token_bytes(_NONCE_BYTES),
            here(),
            point.agent,
            _LEASE_US,
            time.time_ns() // 1000,
            None,
        )
        entered: runs.Entered = self._backend.write(intent.ask, runs.enter(intent)).answer
        lease = entered.lease
        for call in _calls_of(self._found, self._name, lease.token, point.at_us):
            self._backend.write(runs.journal_ask(lease, None), runs.journal(lease, call, at=None))
        self._backend.write(runs.leave_ask(lease), runs.leave(lease, status=point.status, reason=point.reason))


def rows_by_id(backend: Backend, session: str, ids: Iterable[str]) -> dict[str, CheckpointRow]:
    """Those of the checkpoints with these ids that are here."""
    wanted = list(ids)
    found: dict[str, CheckpointRow] = {}
    for at in range(0, len(wanted), _TIPS):  # few at a time, because each comes with its delta
        view = backend.read(Ask(session, ids=tuple(wanted[at : at + _TIPS])))
        found |= {row.id: row for row in view.checkpoints.values() if isinstance(row, CheckpointRow)}
    return found


def _fields_of(found: FoundSession) -> dict[str, Fields]:
    """The fields of every point but the summary, which needs its state."""
    totals: dict[str, Usage] = {}
    made: dict[str, Fields] = {}
    for point in found.points:
        before = totals.get(point.parent or "", Usage())
        total = totals[point.id] = _countable(point.total)
        used = _since(before, total)
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
            total=encode_usage(total),
            metadata=encode_metadata(point.metadata),
            resume_hint=point.resume_hint,
        )
    return made


def _countable(told: Usage) -> Usage:
    """A figure that cannot be counted on with is left out of the totals; the metadata has it as it was told."""
    try:
        return check_usage(told)
    except InvalidInputError:
        fits = {}
        for name in ("tokens_in", "tokens_out", "cost", "tasks_completed"):
            with contextlib.suppress(InvalidInputError):
                check_usage(Usage(**{name: getattr(told, name)}))
                fits[name] = getattr(told, name)
        return Usage(**fits)


def _since(before: Usage, now: Usage) -> Usage:
    """What came on top; the other systems tell totals."""
    extra = {
        key: value - before.extra.get(key, 0)
        for key, value in now.extra.items()
        if isinstance(value, int) and value > before.extra.get(key, 0)
    }
    return Usage(
        tokens_in=max(0, now.tokens_in - before.tokens_in),
        tokens_out=max(0, now.tokens_out - before.tokens_out),
        cost=max(0.0, now.cost - before.cost),
        tasks_completed=max(0, now.tasks_completed - before.tasks_completed),
        extra=extra,
    )


def _calls_of(found: FoundSession, name: str, token: int, at_us: int) -> list[CallRow]:
    """The calls of which it is not known whether they happened."""
    asked: dict[tuple[str, str | None], int] = {}
    calls: list[CallRow] = []
    for number, call in enumerate(found.pending, 1):
        slot = _call_name(call.name), call.key
        nth = asked.get(slot, 0)
        asked[slot] = nth + 1
        calls.append(_call(call, nth=nth, id_=_call_id(name, found.heads[MAIN], number), token=token, at_us=at_us))
    return calls


def _call(call: PendingCall, *, nth: int, id_: str, token: int, at_us: int) -> CallRow:
    args = {} if call.args is None else call.args  # without any, it would be compared by its state
    data = pack_value(encode_stored(args, (Root("args"),)))
    name = _call_name(call.name)
    return CallRow(0, 0, 0, id_, None, name, call.key, nth, "tool", data, digest_of(args), IN_DOUBT, token, at_us)


def _call_name(name: str) -> str:
    try:
        return check_name(name, "the name of a call")
    except InvalidInputError:
        return "tool"


def _call_id(session: str, head: str, slot: int) -> str:
    return sha256(f"{len(session)}:{session}{head}:{slot}".encode()).hexdigest()[:16]
