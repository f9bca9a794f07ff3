"""The rule of a commit: a checkpoint on the expected head of a branch, by its run or by another caller."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from backstay.ids import MAX_SEQUENCE, checkpoint_digest, make_id
from backstay.port import (
    Ask,
    Batch,
    CallKey,
    CallRow,
    CheckpointRow,
    Decide,
    KeyframeRow,
    Kind,
    LaneRow,
    Row,
    SessionRow,
    Stale,
    Unreadable,
    View,
)
from backstay.port.rows import INBOX, WAITING, Head, Took
from backstay.rules import refusals
from backstay.rules.refusals import Lease
from backstay.rules.runs import aged, ended, let_go, renewed, stood_at
from backstay.rules.sessions import About, filled


class Totals(msgspec.Struct, frozen=True, gc=False):
    """The totals in a session's line after this checkpoint."""

    agent: str | None
    status: str
    reason: str | None
    last_step: int | None
    usage: bytes
    at_us: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    """One checkpoint to be written, prepared as far as that can be done before its sequence is known.

    `uid` is that of the session it was sealed for: a fresh one where there was none. `id` is given where the caller has
    names of his own. `expect` is the head it must find, None for a branch without one.

    With the `lease` of a run it is a boundary, which takes in the pending calls of the branch; of those in `places` the
    result is dropped and its place in the state kept, and the messages that they `received` go; `ends_run` ends the
    run, completed. Any other commit, with a lease that is held for a purpose too, leaves pending calls with the head
    they were made on. `undoable`: a restore, which parks them for the undo that takes it back; `takes_up`: an undo,
    which goes back to those that were parked. `keeps_journal`: the state is that of the head, so they stay pending.
    `settles` is a call that this commit brings to its end: it goes. `whole`: blobs of which nothing may be cut.
    `forgets`: what is known of the head was read when the session counted so many; None if nothing is known.
    """

    session: str
    branch: str
    uid: bytes
    tail: bytes
    expect: str | None
    fields: bytes
    state_digest: bytes
    size_bytes: int
    totals: Totals
    delta: bytes = b""
    refs: tuple[bytes, ...] = ()
    keyframe: bytes | None = None
    keyframe_refs: tuple[bytes, ...] = ()
    blobs: Mapping[bytes, bytes] = {}
    id: str | None = None
    undoable: bool = False
    takes_up: bool = False
    lease: Lease | None = None
    places: Mapping[CallKey, bytes] = {}
    received: tuple[int, ...] = ()
    ends_run: bool = False
    about: About | None = None
    keeps_journal: bool = False
    settles: CallKey | None = None
    whole: Collection[bytes] = ()
    forgets: int | None = None

    @property
    def is_of_run(self) -> bool:
        """True if a run writes it, whose own calls are not in doubt."""
        return self.lease is not None and self.lease.purpose is None

    @property
    def is_boundary(self) -> bool:
        """True if a run records how far it has come."""
        return self.is_of_run and not self.keeps_journal

    @property
    def ask(self) -> Ask:
        """What the rule looks at."""
        names = (self.branch,)
        return Ask(
            self.session,
            names=names,
            ids=() if self.id is None else (self.id,),
            pending=() if self.is_of_run else names,
            counted=names if self.is_boundary else (),
            calls=tuple(self.places),
        )


def commit(new: Commit) -> Decide:
    """The rule; its answer is the CheckpointRow, of an earlier try of the same commit too."""
    assert not (new.is_boundary and (new.undoable or new.takes_up)), "a run does not go back"  # noqa: S101

    def decide(view: View) -> Batch:
        lane = view.lanes.get(new.branch)
        done = _written(new, view) if view.checkpoints else None
        if done is not None:
            return Batch(answer=done)
        session = view.session
        if session is not None and (session.uid != new.uid or new.forgets not in (None, session.forgets)):
            raise Stale  # what was known of it is of another session, or was forgotten since
        _refuse(new, view, lane)
        if new.ends_run and new.is_boundary and lane is not None and lane.stop is not None:
            raise refusals.StopAsked(lane.stop)
        sequence = 1 if session is None else session.sequence + 1
        branch = _lane(new, view, lane, sequence)
        line = _session(new, view, session, lane, sequence)
        if branch.wait is not None:  # an undo takes up a run that was left waiting
            line = msgspec.structs.replace(line, status=branch.status, reason=branch.reason)
        row = _row(new, sequence, lane, None if lane is None else _took(new, view, lane))
        head = Head(sequence, row.id, row.digest, row.state_digest)
        puts: list[Row] = [row, msgspec.structs.replace(branch, head=head), line]
        if new.keyframe is not None:
            puts.append(KeyframeRow(row.sequence, new.keyframe, new.keyframe_refs))
        for at, place in new.places.items():
            call = view.calls.get(at)
            if isinstance(call, CallRow) and call.result is not None:
                puts.append(msgspec.structs.replace(call, result=None, place=place))
        drops = tuple([(Kind.CALL, (branch.run, INBOX, n)) for n in new.received]) if new.received else ()
        if new.settles is not None:
            drops += ((Kind.CALL, new.settles),)
        return Batch(tuple(puts), drops, blobs=new.blobs, wakes=new.ends_run, answer=row, whole=new.whole)

    return decide


def _written(new: Commit, view: View) -> CheckpointRow | None:
    """The checkpoint, if an earlier try of this very commit went through: its random tail tells."""
    wanted = new.tail, new.state_digest, new.fields
    for row in view.checkpoints.values():
        if isinstance(row, CheckpointRow) and (row.tail, row.state_digest, row.fields) == wanted:
            return row
    return None


def _refuse(new: Commit, view: View, lane: LaneRow | None) -> None:
    found: list[refusals.Found] = []
    if new.branch in view.tags:
        found.append(refusals.name_taken(new.branch))
    if new.lease is None:
        if new.branch in view.live and not refusals.is_edited(lane):
            found += refusals.held(view, new.branch)
    elif not refusals.holds(lane, new.lease):
        found.append(refusals.fenced(new.lease))
    calls = _pending(new, view)
    if calls and not new.is_of_run:
        found += refusals.doubtful(new.session, new.branch, calls)
    head = None if lane is None or lane.head is None else lane.head.id
    if head != new.expect:
        found.append(refusals.moved(new.session, new.branch, head=head, expect=new.expect))
    if new.id is not None and (new.id in view.foreign or any([_has(row, new.id) for row in view.checkpoints.values()])):
        found.append(refusals.id_taken(new.session, new.id))
    if view.session is not None and view.session.sequence >= MAX_SEQUENCE:
        found.append(refusals.full(new.session))
    if found:
        refusals.settle(found)


def _pending(new: Commit, view: View) -> Sequence[CallRow | Unreadable]:
    """The calls that are pending, without the one that this commit brings to its end."""
    calls = view.pending.get(new.branch, ())
    if new.settles is None:
        return calls
    return [call for call in calls if not isinstance(call, CallRow) or call.at != new.settles]


def _has(row: CheckpointRow | Unreadable, id_: str) -> bool:
    """True if a row has an id; one that cannot be read was looked for by it."""
    return isinstance(row, Unreadable) or row.id == id_


def _row(new: Commit, sequence: int, lane: LaneRow | None, took: Took | None) -> CheckpointRow:
    head = None if lane is None else lane.head
    id_ = new.id if new.id is not None else make_id(sequence, new.uid, new.tail)
    parent = None if head is None else head.digest
    return CheckpointRow(
        sequence,
        id_,
        new.tail,
        None if head is None else head.sequence,
        None if head is None else head.id,
        parent,
        new.state_digest,
        checkpoint_digest(id_=id_, parent=parent, state=new.state_digest, sequence=sequence, fields=new.fields),
        new.size_bytes,
        new.keyframe is not None,
        took,
        new.fields,
        new.delta,
        new.refs,
    )


def _took(new: Commit, view: View, lane: LaneRow) -> Took | None:
    """The calls that go with this checkpoint from now on: taken in, or left behind.

    So each call belongs to one checkpoint, or to a branch that has it pending or parked; and goes with that.
    """
    if new.is_boundary:
        count = view.counts.get(new.branch, 0)
        return Took(lane.run, lane.journal, count) if count else None
    if new.takes_up:
        return None  # what is pending and what was parked change places
    if new.undoable and lane.head is not None:  # what is pending is parked; what was parked before, no undo leads to
        parked = lane.undo_calls
        return Took(lane.run, lane.undo_journal or 0, parked, lane.undo) if parked else None
    if new.keeps_journal:
        return None
    count = len(_pending(new, view))
    return Took(lane.run, lane.journal, count, stood_at(lane)) if count else None


def _lane(new: Commit, view: View, lane: LaneRow | None, sequence: int) -> LaneRow:
    """The branch after this checkpoint, but for its head."""
    before = LaneRow(new.branch) if lane is None else lane
    change: dict[str, object] = {
        "journal": sequence,
        "calls": 0,
        "status": new.totals.status,
        "reason": new.totals.reason,
    }
    if before.wait is not None:
        change["wait"] = None
    if new.takes_up and before.undo_journal is not None:
        change |= {"journal": before.undo_journal, "calls": before.undo_calls}
        if before.undo_wait is not None:  # the calls that it waits for are pending again
            change |= {"wait": before.undo_wait, "status": WAITING, "reason": before.undo_wait.reason}
    if new.keeps_journal:
        change |= {"journal": before.journal, "calls": before.calls}
    if new.settles is not None:
        change["doubts"] = 0
    if (new.undoable or new.takes_up) and before.head is not None:
        parked = len(_pending(new, view))
        change |= {"undo": before.head.sequence, "undo_journal": before.journal, "undo_calls": parked}
        change["undo_wait"] = before.wait
    if new.received:
        change["inbox"] = max(0, before.inbox - len(new.received))
    if new.lease is None and (before.entered or before.claim is not None) and not refusals.is_edited(before):
        # A run that was silent for longer than its lease may yet wake: it must not write behind a head that moved.
        change["token"] = before.token + 1
    after: LaneRow = msgspec.structs.replace(before, **change)
    if new.lease is None:
        return after
    if new.ends_run:
        return ended(after, completed=True) if new.is_boundary else let_go(after)
    return renewed(after, view, new.lease) if aged(after, view, new.lease) else after


def _session(new: Commit, view: View, session: SessionRow | None, lane: LaneRow | None, sequence: int) -> SessionRow:
    totals = new.totals
    if session is None:
        session = SessionRow(new.session, new.uid, totals.at_us, totals.at_us)
    if new.about is not None:
        session = filled(session, new.about)
    return msgspec.structs.replace(
        session,
        updated_us=totals.at_us,
        touched=view.fresh,
        sequence=sequence,
        checkpoints=session.checkpoints + 1,
        lanes=session.lanes + (lane is None),
        logical_bytes=session.logical_bytes + new.size_bytes,
        agent=totals.agent,
        status=totals.status,
        reason=totals.reason,
        last_step=totals.last_step,
        usage=totals.usage,
    )
