"""The rules of deletion: some checkpoints of a session, in portions; a whole session; and the way in of an import.

A checkpoint that stays but whose parent goes is rewritten to rest on its nearest ancestor that stays. A session goes,
and comes, through a hidden name: it is hidden at once and emptied in portions, or filled in portions and shown at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from backstay.ids import MAX_SEQUENCE
from backstay.port import (
    EVERY,
    Ask,
    Batch,
    CheckpointRow,
    Decide,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    More,
    Row,
    SegmentRow,
    SessionRow,
    Unreadable,
    View,
)
from backstay.port.lease import Holder
from backstay.port.rows import WAITING, Took
from backstay.rules import refusals
from backstay.rules.packing import is_same
from backstay.rules.runs import claim_for

MAX_CHECKPOINTS = 200  # in one portion
MAX_RUN = 2**62  # half of what a column holds
_EMPTYING_US = 60 * 1_000_000


class Rewrite(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint after its parent was deleted: resting on `parent`, the nearest ancestor that stays.

    `delta` leads there from the state with `base_digest`; it is empty where the checkpoint has a keyframe, or gets one.
    `inherits`: calls that parents which go had left behind at a head that stays (see `left_behind`).
    """

    sequence: int
    parent: int | None
    base_digest: bytes | None = None
    delta: bytes = b""
    refs: tuple[bytes, ...] = ()
    keyframe: bytes | None = None
    keyframe_refs: tuple[bytes, ...] = ()
    inherits: tuple[Took, ...] = ()


class Deletion(msgspec.Struct, frozen=True, gc=False):
    """Checkpoints to be removed together: at most MAX_CHECKPOINTS.

    `rewrites` must name exactly the staying children of those that go; `anchors` are the nearest staying ancestors, for
    branches that move back. With `spare_names` it is a ConflictError if a branch or an undo leads to one that goes.

    Checkpoints up to `packed` are in segments: those concerned are in `before` as they were read, and in `segments` as
    they will be, without what goes and with what is rewritten; one of which nothing is left has no successor.

    Calls go with the checkpoint that took them in. Those that wait at the head which a branch moves back to (parked by
    a restore that goes, or left behind by a commit that goes) are pending there again: what was done stays done. Where
    the commit goes and the branch stays ahead of that head, the next checkpoint keeps them for the day it goes back.
    """

    session: str
    uid: bytes
    gone: tuple[int, ...]
    rewrites: tuple[Rewrite, ...] = ()
    anchors: tuple[int, ...] = ()
    blobs: Mapping[bytes, bytes] = {}
    spare_names: bool = False
    packed: int = 0
    before: tuple[SegmentRow, ...] = ()
    segments: tuple[SegmentRow, ...] = ()

    @property
    def ask(self) -> Ask:
        """The rows that the rule reads."""
        staying = [at for rewrite in self.rewrites for at in (rewrite.sequence, rewrite.parent) if at is not None]
        return Ask(
            self.session,
            names=EVERY,
            sequences=tuple(dict.fromkeys([*self.gone, *staying, *self.anchors])),
            children_of=self.gone,
            segments=tuple([segment.first for segment in self.before]),
        )


def delete_checkpoints(deletion: Deletion) -> Decide:
    """Remove checkpoints; branches on them move back. The answer is how many went."""
    gone = frozenset(deletion.gone)

    def decide(view: View) -> Batch | More:
        session = view.session
        same = session is not None and session.uid == deletion.uid
        if view.again and not (same and gone & view.checkpoints.keys()):
            return Batch(answer=len(gone))  # they are gone: an earlier try of this very deletion went through
        if session is None:
            raise refusals.no_session(deletion.session)[1]
        if not same:
            raise refusals.changed(deletion.session, "it was deleted and made again")[1]
        moving = [lane for lane in view.lanes.values() if lane.head is not None and lane.head.sequence in gone]
        if any([lane.run and lane.name not in view.pending for lane in moving]):
            # Of every branch: another may stand on one of them by the time of the second look, which is the last.
            return More(msgspec.structs.replace(deletion.ask, pending=EVERY))
        _refuse(deletion, view, gone, moving)
        rows = [row for row in (view.checkpoints[sequence] for sequence in gone) if isinstance(row, CheckpointRow)]
        lanes = list(_lanes(view, gone, rows))
        puts: list[Row] = [*lanes, *rewritten_rows(deletion.rewrites, deletion.packed, view), *deletion.segments]
        line = msgspec.structs.replace(
            session,
            touched=view.fresh,
            checkpoints=session.checkpoints - len(gone),
            logical_bytes=session.logical_bytes - sum([row.size_bytes for row in rows]),
        )
        drops = [*_drops(deletion, view, rows, lanes), *_emptied(deletion)]
        return Batch((line, *puts), tuple(drops), blobs=deletion.blobs, answer=len(gone))

    return decide


def _refuse(deletion: Deletion, view: View, gone: frozenset[int], moving: list[LaneRow]) -> None:
    session = deletion.session
    found: list[refusals.Found] = []
    missing = [sequence for sequence in deletion.gone if sequence not in view.checkpoints]
    if missing:
        found.append(refusals.no_checkpoint(session, f"#{missing[0]}"))
    for lane in moving:
        found += refusals.held(view, lane.name)
        found += refusals.doubtful(session, lane.name, view.pending.get(lane.name, ()))
        at = _staying(view, lane.head.sequence if lane.head else None, gone)
        anchor = None if at is None else view.checkpoints.get(at)
        if at is None:
            found.append(refusals.last_of_branch(lane.name))
        elif anchor is None:
            found.append(refusals.changed(session, "a branch has moved to a checkpoint that was to be deleted"))
        elif isinstance(anchor, Unreadable):
            found.append(refusals.damaged_checkpoint(session, anchor.why))
    children = {child for parent in gone for child in view.children.get(parent, ())} - gone
    if children != {rewrite.sequence for rewrite in deletion.rewrites}:
        found.append(refusals.changed(session, "other checkpoints rest on those to be deleted than a moment ago"))
    same = [is_same(view.segments.get(segment.first), segment) for segment in deletion.before]
    if not all(same) or (view.session is not None and view.session.packed != deletion.packed):
        found.append(refusals.changed(session, "checkpoints were packed meanwhile"))
    found += [reason for rewrite in deletion.rewrites for reason in _unfit(session, rewrite, view, gone)]
    if deletion.spare_names and (moving or any([lane.undo in gone for lane in view.lanes.values()])):
        found.append(refusals.changed(session, "a branch needs a checkpoint that was to be deleted"))
    found += [refusals.tagged(tag.name) for tag in view.tags.values() if tag.sequence in gone]
    refusals.settle(found)


def _unfit(session: str, rewrite: Rewrite, view: View, gone: frozenset[int]) -> Iterable[refusals.Found]:
    """Why a checkpoint that stays could not be read any more if it were rewritten like this."""
    row = view.checkpoints.get(rewrite.sequence)
    base = None if rewrite.parent is None else view.checkpoints.get(rewrite.parent)
    if isinstance(row, Unreadable):
        yield refusals.damaged_checkpoint(session, row.why)
    elif row is None or _staying(view, row.parent, gone) != rewrite.parent:
        yield refusals.changed(session, "a checkpoint would rest on another than a moment ago")
    elif not (rewrite.delta or rewrite.keyframe is not None or row.keyframe):
        yield refusals.changed(session, "a checkpoint would rest on nothing")
    elif not set(rewrite.inherits) <= set(left_behind(view.checkpoints, row.parent, gone)):
        yield refusals.changed(session, "a checkpoint would keep other calls than were left behind")
    if rewrite.delta and (not isinstance(base, CheckpointRow) or base.state_digest != rewrite.base_digest):
        yield refusals.changed(session, "a checkpoint would rest on another state than a moment ago")


def _staying(view: View, at: int | None, gone: frozenset[int]) -> int | None:
    """A checkpoint, or its nearest ancestor that stays."""
    while at is not None and at in gone:
        row = view.checkpoints.get(at)
        at = None if row is None else row.parent
    return at


def left_behind(
    rows: Mapping[int, CheckpointRow | Unreadable], at: int | None, gone: Collection[int]
) -> tuple[Took, ...]:
    """The calls that some checkpoints which go, from one upwards, had left at heads that stay; the nearest first."""
    found: list[Took] = []
    while at is not None and at in gone:
        row = rows.get(at)
        if not isinstance(row, CheckpointRow):
            break
        tooks = () if row.took is None else row.took.each
        found += [msgspec.structs.replace(took, also=()) for took in tooks if took.left and took.left not in gone]
        at = row.parent
    return tuple(found)


_NO_UNDO: Mapping[str, object] = {"undo": None, "undo_journal": None, "undo_calls": 0, "undo_wait": None}


def _lanes(view: View, gone: frozenset[int], rows: Iterable[CheckpointRow]) -> Iterable[LaneRow]:
    """The branches that move back, or lose what an undo would lead to."""
    tooks = [took for row in rows if row.took for took in row.took.each]
    left = {(took.run, took.left): (took.journal, took.count) for took in tooks if took.left is not None}
    for lane in view.lanes.values():
        change: dict[str, object] = {}
        if lane.undo is not None and lane.undo in gone:
            change |= _NO_UNDO
        if lane.head is not None and lane.head.sequence in gone:
            at = _staying(view, lane.head.sequence, gone)
            anchor = None if at is None else view.checkpoints.get(at)
            assert isinstance(anchor, CheckpointRow)  # noqa: S101 - refused before
            journal, calls = left.get((lane.run, anchor.sequence), (anchor.sequence, 0))
            if lane.wait is not None:  # what it waited for goes with the head
                change |= {"wait": None, "status": "in_progress", "reason": None}
            if lane.undo == anchor.sequence and lane.undo_journal is not None:
                journal, calls = (
                    lane.undo_journal,
                    lane.undo_calls,
                )  # the restore goes that parked them; there is nothing left to undo
                if lane.undo_wait is not None:
                    change |= {"wait": lane.undo_wait, "status": WAITING, "reason": lane.undo_wait.reason}
                change |= _NO_UNDO
            change |= {"head": anchor.head, "journal": journal, "calls": calls, "token": lane.token + 1}
        if change:
            yield msgspec.structs.replace(lane, **change)


def rewritten_rows(rewrites: Iterable[Rewrite], packed: int, view: View) -> Iterable[Row]:
    """The rows of checkpoints that are written anew: those that are not packed, and whole states."""
    for rewrite in rewrites:
        row = view.checkpoints[rewrite.sequence]
        assert isinstance(row, CheckpointRow)  # noqa: S101 - refused before
        if row.sequence > packed:
            yield rewritten(row, rewrite)
        if rewrite.keyframe is not None:
            yield KeyframeRow(row.sequence, rewrite.keyframe, rewrite.keyframe_refs)


def rewritten(row: CheckpointRow, rewrite: Rewrite) -> CheckpointRow:
    """A checkpoint as it is after its parent was deleted."""
    keyframe = row.keyframe or rewrite.keyframe is not None
    tooks = (*(() if row.took is None else row.took.each), *rewrite.inherits)
    took = msgspec.structs.replace(tooks[0], also=tooks[1:]) if tooks else None
    return msgspec.structs.replace(
        row,
        parent=rewrite.parent,
        delta=rewrite.delta,
        refs=rewrite.refs,
        keyframe=keyframe,
        took=took,
    )


def _emptied(deletion: Deletion) -> list[tuple[Kind, Key]]:
    """The segments that nothing takes the place of."""
    spans = [(segment.first, segment.last) for segment in deletion.segments]
    return [
        (Kind.SEGMENT, old.first)
        for old in deletion.before
        if not any([first <= old.last and last >= old.first for first, last in spans])
    ]


def _drops(
    deletion: Deletion, view: View, rows: Iterable[CheckpointRow], moved: Iterable[LaneRow]
) -> list[tuple[Kind, Key]]:
    gone = frozenset(deletion.gone)
    tooks = [took for row in rows if row.took for took in row.took.each]
    taken = {(took.run, took.journal) for took in tooks if took.left is None}
    calls = [(took.run, took.journal) for took in tooks]
    for lane in view.lanes.values():
        if lane.run and lane.head is not None and lane.head.sequence in gone:
            calls.append((lane.run, lane.journal))
        if lane.run and lane.undo in gone and lane.undo_journal is not None:
            calls.append((lane.run, lane.undo_journal))
    found_again = {(lane.run, lane.journal) for lane in moved} - taken
    kept_on = {(took.run, took.journal) for new in deletion.rewrites for took in new.inherits}
    stay = found_again | kept_on
    drops: list[tuple[Kind, Key]] = [(Kind.CALL, at) for at in dict.fromkeys(calls) if at not in stay]
    for sequence in sorted(gone):
        row = view.checkpoints[sequence]
        if isinstance(row, Unreadable) or row.keyframe:  # of one that cannot be read it is not known
            drops.append((Kind.KEYFRAME, sequence))
        if sequence > deletion.packed:
            drops.append((Kind.CHECKPOINT, sequence))
    return drops


# whole sessions


def hide_ask(session: str) -> Ask:
    """The rows that `hide` reads."""
    return Ask(session, names=EVERY)


def hide(session: str, *, touched: int | None = None, holder: Holder | None = None) -> Decide:
    """Begin to delete a session: no reader sees it from now on. The answer is its row, hidden under a name of its own.

    `holder` empties it: until a while has passed, or it is dead, no sweep takes it for an orphan.

    Not under its uid alone: a session that was imported twice has it twice, and both may be on their way out. The
    answer is None where an earlier try went through: what it hid is among the hidden sessions.
    """

    def decide(view: View) -> Batch:
        row = view.session
        if row is None and view.again:
            return Batch()
        if row is None:
            raise refusals.no_session(session)[1]
        found = [reason for lane in view.lanes for reason in refusals.held(view, lane)]
        if touched is not None and row.touched != touched:
            found.append(refusals.changed(session, "it was written to meanwhile"))
        refusals.settle(found)
        name = f"{row.uid.hex()}.{view.fresh}"
        claim = None if holder is None else claim_for(view, holder, _EMPTYING_US)
        hidden = msgspec.structs.replace(row, id=name, hidden=True, claim=claim, touched=view.fresh)
        return Batch((hidden,), wakes=True, answer=hidden)

    return decide


def drop_rows(keys: Iterable[tuple[Kind, Key]]) -> Decide:
    """A portion of a hidden session goes."""
    drops = tuple(keys)

    def decide(view: View) -> Batch:
        return Batch(drops=drops if view.session is not None else ())

    return decide


def drop_session() -> Decide:
    """The last of a hidden session goes: its line."""

    def decide(view: View) -> Batch:
        row = view.session
        return Batch(drops=() if row is None else ((Kind.SESSION, row.id),), wakes=True)

    return decide


def arrive(row: SessionRow) -> Decide:
    """Begin an import: the session's line, hidden under its uid, for its rows to be put beside. See `show_ask`."""
    assert row.hidden, "it is shown when it is complete"  # noqa: S101

    def decide(view: View) -> Batch:
        there = view.session
        if view.again and there is not None and msgspec.structs.replace(there, touched=row.touched) == row:
            return Batch()  # an earlier try of this very write went through
        if view.beside is not None:
            raise refusals.session_exists(view.beside.id)[1]
        if there is not None:
            raise refusals.changed(row.id, "it is being imported already")[1]
        return Batch((msgspec.structs.replace(row, touched=view.fresh),))

    return decide


def add_rows(session: str, rows: Iterable[Row], blobs: Mapping[bytes, bytes]) -> Decide:
    """A portion of a session that arrives. Leases do not travel, and a session that arrives has not crashed here."""
    puts = tuple([_at_rest(row) if isinstance(row, LaneRow) else row for row in rows])

    def decide(view: View) -> Batch:
        if view.session is None:
            raise refusals.changed(session, "its import was swept away")[1]
        return Batch(puts, blobs=blobs)

    return decide


def _at_rest(lane: LaneRow) -> LaneRow:
    rest = {"claim": None, "entered": False, "crashes": 0, "spot": b"", "nonce": b"", "purpose": None}
    return msgspec.structs.replace(lane, unfinished=lane.unfinished or lane.entered, **rest)


def show_ask(row: SessionRow, *, hidden: str | None = None) -> Ask:
    """The rows that `arrive` and `show` read: the hidden session, by its uid or another name, and its id if taken."""
    return Ask(row.uid.hex() if hidden is None else hidden, hidden=True, beside=row.id)


def show(row: SessionRow, *, last_run: int) -> Decide:
    """End an import: the session appears under its name, with all its rows. `last_run`: the largest number of a run."""
    if last_run > MAX_RUN or row.sequence > MAX_SEQUENCE:
        raise refusals.full(row.id)[1]  # a store's own numbers go on behind these: they must not run out

    def decide(view: View) -> Batch:
        if view.again and view.session is None and view.beside is not None and view.beside.uid == row.uid:
            return Batch()  # an earlier try of this very write went through
        found: list[refusals.Found] = []
        if view.beside is not None:
            found.append(refusals.session_exists(row.id))
        if view.session is None:
            found.append(refusals.changed(row.id, "its import was swept away"))
        refusals.settle(found)
        # Runs of this store get numbers beyond those that came along: journals are told apart by them.
        touched = max(view.fresh, last_run + 1)
        return Batch((msgspec.structs.replace(row, touched=touched, hidden=False, claim=None),), wakes=True)

    return decide
