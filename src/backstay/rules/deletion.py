"""The rules of deletion: some checkpoints of a session, in portions; a whole session; and the way in of an import.

A checkpoint that stays but whose parent goes is rewritten to rest on its nearest ancestor that stays. A session goes,
and comes, through a hidden name: it is hidden at once and emptied in portions, or filled in portions and shown at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

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
    SessionRow,
    Unreadable,
    View,
)
from backstay.rules import refusals

MAX_CHECKPOINTS = 200  # in one portion


class Rewrite(msgspec.Struct, frozen=True, gc=False):
    """What a checkpoint becomes when its parent goes: resting on `parent`, the nearest ancestor that stays.

    `delta` leads there from the state with `base_digest`; it is empty where the checkpoint has a keyframe, or gets one.
    """

    sequence: int
    parent: int | None
    base_digest: bytes | None = None
    delta: bytes = b""
    refs: tuple[bytes, ...] = ()
    keyframe: bytes | None = None
    keyframe_refs: tuple[bytes, ...] = ()


class Deletion(msgspec.Struct, frozen=True, gc=False):
    """Checkpoints to be removed together: at most MAX_CHECKPOINTS.

    `rewrites` must name exactly the staying children of those that go; `anchors` are the nearest staying ancestors, for
    branches that move back. With `spare_names` it is a ConflictError if a branch or an undo leads to one that goes.
    """

    session: str
    uid: bytes
    gone: tuple[int, ...]
    rewrites: tuple[Rewrite, ...] = ()
    anchors: tuple[int, ...] = ()
    blobs: Mapping[bytes, bytes] = {}
    spare_names: bool = False

    @property
    def ask(self) -> Ask:
        """What the rule looks at."""
        staying = [rewrite.sequence for rewrite in self.rewrites]
        return Ask(
            self.session,
            names=EVERY,
            sequences=tuple(dict.fromkeys([*self.gone, *staying, *self.anchors])),
            children_of=self.gone,
        )


def delete_checkpoints(deletion: Deletion) -> Decide:
    """Remove checkpoints; branches on them move back. The answer is how many went."""
    gone = frozenset(deletion.gone)

    def decide(view: View) -> Batch | More:
        session = view.session
        if session is None:
            raise refusals.no_session(deletion.session)[1]
        if session.uid != deletion.uid:
            raise refusals.changed(deletion.session, "it was deleted and made again")[1]
        if view.again and not gone & view.checkpoints.keys():
            return Batch(answer=len(gone))
        moving = [lane for lane in view.lanes.values() if lane.head is not None and lane.head.sequence in gone]
        if moving and not view.pending and any(lane.run for lane in moving):
            return More(msgspec.structs.replace(deletion.ask, pending=tuple([lane.name for lane in moving])))
        _refuse(deletion, view, gone, moving)
        puts: list[Row] = [*_lanes(view, gone), *_rewritten(deletion, view)]
        rows = [row for row in (view.checkpoints[sequence] for sequence in gone) if isinstance(row, CheckpointRow)]
        line = msgspec.structs.replace(
            session,
            touched=view.fresh,
            checkpoints=session.checkpoints - len(gone),
            logical_bytes=session.logical_bytes - sum([row.size_bytes for row in rows]),
        )
        drops = _drops(view, gone, rows)
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
        if _anchor(view, lane, gone) is None:
            found.append(refusals.last_of_branch(lane.name))
    children = {child for parent in gone for child in view.children.get(parent, ())} - gone
    if children != {rewrite.sequence for rewrite in deletion.rewrites}:
        found.append(refusals.changed(session, "other checkpoints rest on those to be deleted than a moment ago"))
    for rewrite in deletion.rewrites:
        base = None if rewrite.parent is None else view.checkpoints.get(rewrite.parent)
        if rewrite.delta and (not isinstance(base, CheckpointRow) or base.state_digest != rewrite.base_digest):
            found.append(refusals.changed(session, "a checkpoint would rest on another state than a moment ago"))
    if deletion.spare_names and (moving or any([lane.undo in gone for lane in view.lanes.values()])):
        found.append(refusals.changed(session, "a branch needs a checkpoint that was to be deleted"))
    found += [refusals.tagged(tag.name) for tag in view.tags.values() if tag.sequence in gone]
    refusals.settle(found)


def _anchor(view: View, lane: LaneRow, gone: frozenset[int]) -> CheckpointRow | None:
    """The nearest ancestor of a branch's head that stays."""
    at = None if lane.head is None else lane.head.sequence
    while at is not None and at in gone:
        row = view.checkpoints.get(at)
        at = None if row is None else row.parent
    row = None if at is None else view.checkpoints.get(at)
    return row if isinstance(row, CheckpointRow) else None


def _lanes(view: View, gone: frozenset[int]) -> Iterable[LaneRow]:
    for lane in view.lanes.values():
        change: dict[str, object] = {}
        if lane.undo is not None and lane.undo in gone:
            change |= {"undo": None, "undo_journal": None}
        if lane.head is not None and lane.head.sequence in gone:
            anchor = _anchor(view, lane, gone)
            assert anchor is not None  # noqa: S101 - refused before
            change |= {"head": anchor.head, "journal": anchor.sequence, "token": lane.token + 1}
        if change:
            yield msgspec.structs.replace(lane, **change)


def _rewritten(deletion: Deletion, view: View) -> Iterable[Row]:
    for rewrite in deletion.rewrites:
        row = view.checkpoints[rewrite.sequence]
        if isinstance(row, Unreadable):
            raise refusals.changed(deletion.session, row.why)[1]
        has_keyframe = row.keyframe or rewrite.keyframe is not None
        yield msgspec.structs.replace(
            row, parent=rewrite.parent, delta=rewrite.delta, refs=rewrite.refs, keyframe=has_keyframe
        )
        if rewrite.keyframe is not None:
            yield KeyframeRow(row.sequence, rewrite.keyframe, rewrite.keyframe_refs)


def _drops(view: View, gone: frozenset[int], rows: Iterable[CheckpointRow]) -> list[tuple[Kind, Key]]:
    drops: list[tuple[Kind, Key]] = []
    for row in rows:
        if row.took is not None:
            drops.append((Kind.CALL, (row.took.run, row.took.journal)))
        if row.keyframe:
            drops.append((Kind.KEYFRAME, row.sequence))
    for lane in view.lanes.values():
        if lane.run and lane.head is not None and lane.head.sequence in gone:
            drops.append((Kind.CALL, (lane.run, lane.journal)))
        if lane.run and lane.undo in gone and lane.undo_journal is not None:
            drops.append((Kind.CALL, (lane.run, lane.undo_journal)))
    drops += [(Kind.CHECKPOINT, sequence) for sequence in sorted(gone)]
    return list(dict.fromkeys(drops))


# whole sessions


def hide_ask(session: str) -> Ask:
    """What `hide` looks at."""
    return Ask(session, names=EVERY)


def hide(session: str, *, touched: int | None = None) -> Decide:
    """Begin to delete a session: nobody sees it from now on. The answer is its row, hidden under its uid."""

    def decide(view: View) -> Batch:
        row = view.session
        if row is None:
            raise refusals.no_session(session)[1]
        found = [reason for lane in view.lanes for reason in refusals.held(view, lane)]
        if touched is not None and row.touched != touched:
            found.append(refusals.changed(session, "it was written to meanwhile"))
        refusals.settle(found)
        hidden = msgspec.structs.replace(row, id=row.uid.hex(), hidden=True, claim=None, touched=view.fresh)
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
    """Begin an import: the session's line, hidden under its uid, for its rows to be put beside."""

    def decide(view: View) -> Batch:
        if view.session is not None:
            raise refusals.changed(row.id, "it is being imported already")[1]
        return Batch((msgspec.structs.replace(row, touched=view.fresh),))

    return decide


def add_rows(session: str, rows: Iterable[Row], blobs: Mapping[bytes, bytes]) -> Decide:
    """A portion of a session that arrives."""
    puts = tuple(rows)

    def decide(view: View) -> Batch:
        if view.session is None:
            raise refusals.changed(session, "its import was swept away")[1]
        return Batch(puts, blobs=blobs)

    return decide


def show_ask(row: SessionRow) -> Ask:
    """What `show` looks at: the hidden session, and whether its name is taken."""
    return Ask(row.uid.hex(), hidden=True, beside=row.id)


def show(row: SessionRow, *, last_run: int) -> Decide:
    """End an import: the session appears under its name, with all its rows. `last_run`: the largest number of a run."""

    def decide(view: View) -> Batch:
        if view.session is None:
            if view.again and view.beside is not None and view.beside.uid == row.uid:
                return Batch()
            raise refusals.changed(row.id, "its import was swept away")[1]
        if view.beside is not None:
            raise refusals.session_exists(row.id)[1]
        # Runs of this store get numbers beyond those that came along: journals are told apart by them.
        touched = max(view.fresh, last_run + 1)
        return Batch((msgspec.structs.replace(row, touched=touched, hidden=False, claim=None),), wakes=True)

    return decide
