"""The rules of waiting: a run is left for an answer, a time or a message; what makes it ready; who answers first.

A wait is a call of kind "wait" in the journal of its branch. A run left waiting has ended: its lease is free, it did
not crash, and its branch says what it waits for (`LaneWait`), so that ready work is found without opening anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backstay.codec import decode
from backstay.port import Ask, Batch, CallRow, Decide, LaneRow, More, SessionRow, View
from backstay.port.rows import (
    CANCELLED,
    DONE,
    FOR_MESSAGE,
    INBOX,
    MESSAGE,
    REJECTED,
    SENT,
    TIMED_OUT,
    WAITING,
    LaneWait,
)
from backstay.rules import refusals, runs
from backstay.rules.calls import doubts_in
from backstay.rules.refusals import Lease
from backstay.sealing import open_value

MAX_MESSAGES = 2**24  # that one branch was ever sent
MAX_MESSAGE_BYTES = 1 << 20

ANSWERED = (DONE, REJECTED, TIMED_OUT)


class Left(msgspec.Struct, frozen=True, gc=False):
    """A run that is about to be left waiting for these calls. `sent`: how many messages it knows of."""

    lease: Lease
    waits: tuple[CallRow, ...]
    reason: str
    sent: int
    at_us: int
    nonce: str

    @property
    def ask(self) -> Ask:
        """The rows that the rule reads."""
        names = (self.lease.branch,)
        return Ask(self.lease.session, names=names, pending=names, calls=tuple([row.at for row in self.waits]))


def leave(left: Left) -> Decide:
    """Give the lease back until something comes. The answer is why the run was cancelled instead, or None.

    What came while the run was leaving makes it ready at once: an answer, or more messages than it knows of.
    """
    cancelled = runs.leave(left.lease, status="waiting", reason=left.reason, at_us=left.at_us, nonce=left.nonce)

    def decide(view: View) -> Batch | More:
        lane = view.lanes.get(left.lease.branch)
        if lane is None or lane.stop is not None or not refusals.holds(lane, left.lease):
            return cancelled(view)  # stopped, fenced, or an earlier try of this very leave went through
        assert view.session is not None  # noqa: S101 - its lane is here
        names = tuple(sorted({row.name for row in left.waits if row.wait is not None and row.wait.what == FOR_MESSAGE}))
        ready = bool(names) and lane.sent > left.sent
        for row in left.waits:
            now = view.calls.get(row.at)
            ready = ready or not isinstance(now, CallRow) or now.status != WAITING
        due = [row.wait.due_us for row in left.waits if row.wait is not None and row.wait.due_us is not None]
        wait = LaneWait(left.reason, min(due, default=None), ready, names)
        pending = view.pending.get(lane.name, ())
        after = msgspec.structs.replace(
            runs.ended(lane, completed=False),
            status=WAITING,
            reason=left.reason,
            wait=wait,
            doubts=doubts_in(pending),
            calls=len(pending),
        )
        line = msgspec.structs.replace(view.session, touched=view.fresh, status=WAITING, reason=left.reason)
        return Batch((line, after), wakes=True)

    return decide


# answers


def answer_ask(session: str, branch: str, call: CallRow) -> Ask:
    """The rows that `answer` reads."""
    return Ask(session, names=(branch,), calls=(call.at,))


def answer(session: str, branch: str, *, before: CallRow, after: CallRow) -> Decide:
    """Give a wait its outcome, once. The answer is the row as it is then.

    The first one counts. One that says the same again is recognised, because its sender may not know what became of the
    first try; any other is told what the first one said and who gave it.
    """

    def decide(view: View) -> Batch:
        lane, kept = view.lanes.get(branch), view.calls.get(before.at)
        found: list[refusals.Found] = []
        if view.session is None:
            found.append(refusals.no_session(session))
        if not isinstance(kept, CallRow) or kept.id != before.id:
            found.append(refusals.call_moved(before.id))
        elif kept.status in ANSWERED:
            if _outcome(kept) == _outcome(after):
                return Batch(answer=kept)
            found.append(answered(kept))
        elif kept.status != WAITING or lane is None or (lane.run, lane.journal) != before.at[:2]:
            found.append(no_longer_waits(before))
        refusals.settle(found)
        assert lane is not None  # noqa: S101 - refused above
        assert view.session is not None  # noqa: S101 - refused above
        if branch in view.live:
            return Batch((after,), wakes=True, answer=after)
        wait = None if lane.wait is None else msgspec.structs.replace(lane.wait, ready=True)
        fenced = msgspec.structs.replace(lane, token=lane.token + 1, wait=wait)
        line = msgspec.structs.replace(view.session, touched=view.fresh)
        return Batch((after, fenced, line), wakes=True, answer=after)

    return decide


def _outcome(call: CallRow) -> object:
    wait = call.wait
    return call.status, call.result, call.error, None if wait is None else (wait.by, wait.args)


def answered(call: CallRow) -> refusals.Found:
    """For a second answer that is another: it is told the first."""
    by = "" if call.wait is None or call.wait.by is None else f" by {call.wait.by!r}"
    if call.status == DONE:
        said = f"was answered {refusals.short(None if call.result is None else decode(open_value(call.result)))}{by}"
    elif call.status == REJECTED:
        said = f"was rejected{by}: {call.error[1] if call.error else ''}"
    else:
        said = "was not answered in time"
    return refusals.already_answered(f"wait {call.name!r} ({call.id}) {said}")


def no_longer_waits(call: CallRow) -> refusals.Found:
    """For an answer that nothing waits for any more."""
    why = "was cancelled" if call.status == CANCELLED else "is no longer waited for"
    return refusals.already_answered(f"wait {call.name!r} ({call.id}) {why}")


def waits_of(calls: Iterable[object]) -> list[CallRow]:
    """Those of a branch's pending calls that wait."""
    return [call for call in calls if isinstance(call, CallRow) and call.status == WAITING]


# messages


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message about to be sent. `id` recognises an earlier try; `uid` is for a session that is made by it."""

    session: str
    branch: str
    name: str
    id: str
    value: bytes
    at_us: int
    uid: bytes
    agent: str | None = None

    @property
    def ask(self) -> Ask:
        """The rows that the rule reads."""
        return Ask(self.session, names=(self.branch,))


def send(new: Message) -> Decide:
    """Put a message into the inbox of a branch, making the session if there is none. The answer is its number.

    Messages are received in the order in which they were written here. A run that waits for one of this name is ready.
    """

    def decide(view: View) -> Batch:
        for kept in view.calls.values():
            if isinstance(kept, CallRow) and kept.id == new.id:
                return Batch(answer=kept.n)  # an earlier try of this very message went through
        session, lane = view.session, view.lanes.get(new.branch)
        found: list[refusals.Found] = []
        if new.branch in view.tags:
            found.append(refusals.name_taken(new.branch))
        elif lane is None and session is not None and session.checkpoints:
            found.append(refusals.no_branch(new.session, new.branch))
        if lane is not None and lane.sent >= MAX_MESSAGES:
            found.append(refusals.full(new.session))
        refusals.settle(found)
        before = LaneRow(new.branch) if lane is None else lane
        wait = before.wait
        wakes = wait is not None and not wait.ready and new.name in wait.names
        if wait is not None and wakes:
            wait = msgspec.structs.replace(wait, ready=True)
        after = msgspec.structs.replace(
            before, run=before.run or view.fresh, sent=before.sent + 1, inbox=before.inbox + 1, wait=wait
        )
        row = CallRow(
            *(after.run, INBOX, before.sent, new.id, None, new.name, None, 0, MESSAGE, None),
            *(bytes(16), SENT, 0, new.at_us),
            result=new.value,
        )
        if session is not None and lane is not None and not wakes:
            return Batch((row, after), wakes=True, answer=row.n)
        line = session or SessionRow(new.session, new.uid, new.at_us, new.at_us, agent=new.agent)
        line = msgspec.structs.replace(line, touched=view.fresh, lanes=line.lanes + (lane is None))
        return Batch((line, after, row), wakes=True, answer=row.n)

    return decide
