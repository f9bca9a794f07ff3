"""Deletion: what goes, what must be written anew because it leaned on what goes, and who moves where.

Runs inside a write transaction. The order mirrors that of a commit: names first, then records, checkpoints, blobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import apsw

from holdfast import packing
from holdfast.backend import GROUP_DELTAS, Deletion, Rewrite, next_prefix
from holdfast.backends.sqlite import running
from holdfast.backends.sqlite.reads import DELTA, WHOLE, cid_of, half, one, open_at, sid_of, spilled, unpack_id
from holdfast.backends.sqlite.writes import drop_blobs, fit, put_blobs
from holdfast.delta import Record
from holdfast.errors import ConflictError, InvalidInputError

_SHAPE = (
    "SELECT cid, link, place, whole IS NOT NULL, base, size, sequence, took_run, took_stood FROM checkpoints "
    "WHERE sid = ? ORDER BY cid"
)
_ONE = "SELECT id, whole IS NOT NULL, state_digest, lost_parent_id, lost_parent_digest FROM checkpoints WHERE cid = ?"
_PARENT = "SELECT id, digest FROM checkpoints WHERE cid = ?"
_DIGEST = "SELECT state_digest FROM checkpoints WHERE cid = ?"
_HAS_DELTA = "SELECT delta IS NOT NULL FROM checkpoints WHERE cid = ?"
_WHOLE = "SELECT whole FROM checkpoints WHERE cid = ?"
_NAMES = "SELECT name, tag, cid, undo FROM names WHERE sid = ?"
_MOVE = "UPDATE names SET cid = ? WHERE sid = ? AND name = ?"
_DROP_UNDO = "UPDATE names SET undo = NULL WHERE sid = ? AND name = ?"
_DROP_ROLL = "UPDATE checkpoints SET base = NULL, roll = NULL WHERE cid = ?"
_ORPHAN = "UPDATE checkpoints SET link = ?2, lost_parent_id = ?3, lost_parent_digest = ?4, delta = NULL WHERE cid = ?1"
_SET_WHOLE = "UPDATE checkpoints SET whole = ? WHERE cid = ?"
_SET_DELTA = "UPDATE checkpoints SET delta = ? WHERE cid = ?"
_REBASE = "UPDATE checkpoints SET delta = ?, place = 1 WHERE cid = ?"
_DELETE_CHECKPOINT = "DELETE FROM checkpoints WHERE cid = ?"
_SHRINK_SESSION = (
    "UPDATE sessions SET checkpoints = checkpoints - ?1, logical = logical - ?2, epoch = epoch + 1, "
    "touched = (SELECT coalesce(max(cid), -?3) FROM checkpoints WHERE sid = ?3) WHERE sid = ?3"
)
_TOUCHED = "SELECT touched FROM sessions WHERE sid = ?"
_SESSION_CIDS = "SELECT cid FROM checkpoints WHERE sid = ?"
_DELETE_SESSION = (
    "DELETE FROM names WHERE sid = ?",
    "DELETE FROM checkpoints WHERE sid = ?",
    "DELETE FROM sessions WHERE sid = ?",
)


class _Shape(NamedTuple):
    """Where a checkpoint stands among the others of its session."""

    cid: int
    link: int | None
    place: int
    complete: int
    base: int | None
    size: int
    sequence: int
    took_run: int | None
    took_stood: int

    @property
    def took(self) -> tuple[int, int]:
        return self.took_run or 0, self.took_stood


_Shapes = Mapping[int, _Shape]
_Repack = tuple[int, Record, bytes, bytes, bytes]  # cid, record, prefix, base and state digests


def delete_checkpoints(connection: apsw.Connection, deletion: Deletion) -> None:
    """Remove checkpoints; see the port."""
    sid = sid_of(connection, deletion.session)
    gone = {cid_of(connection, sid, id_) for id_ in deletion.ids}
    shapes: _Shapes = {row[0]: _Shape(*row) for row in connection.execute(_SHAPE, (sid,))}
    rewrites = {cid_of(connection, sid, rewrite.id): rewrite for rewrite in deletion.rewrites}
    orphans = {shape.cid for shape in shapes.values() if shape.link in gone and shape.cid not in gone}
    if orphans != set(rewrites):
        message = f"session {deletion.session!r}: other checkpoints lean on those to be deleted than a moment ago"
        raise ConflictError(message, hint="try again")

    for branch, cid in _heads(connection, sid, gone):
        running.refuse_head_gone(connection, deletion.session, sid, branch, shapes[cid].sequence)
    # The deltas behind each orphan in its group were packed against bodies that now go: read them before, pack after.
    repacks = [_rest_of_group(connection, orphan, rewrites[orphan], shapes, gone) for orphan in orphans]
    _move_names(connection, sid, gone, shapes, spare=deletion.spare_names)
    for owner in _rolls_over(gone, shapes):
        connection.execute(_DROP_ROLL, (owner,))
    for orphan in orphans:
        _rewrite(connection, shapes[orphan], rewrites[orphan], _anchor(shapes[orphan].link, gone, shapes))
    for rest in repacks:
        for cid, record, prefix, base, state in rest:
            sealed = packing.seal_delta(record, prefix=prefix, base=base, state=state)
            connection.execute(_SET_DELTA, (fit(connection, cid, sealed), cid))
    for cid in gone:
        drop_blobs(connection, cid)
    connection.executemany(_DELETE_CHECKPOINT, [(cid,) for cid in gone])
    connection.execute(_SHRINK_SESSION, (len(gone), sum([shapes[cid].size for cid in gone]), sid))
    taken = {shape.took for shape in shapes.values() if shape.took_run is not None and shape.cid not in gone}
    took = {shapes[cid].took for cid in gone if shapes[cid].took_run is not None}
    running.forget_checkpoints(connection, sid, took, taken, [shapes[cid].sequence for cid in gone])


def _heads(connection: apsw.Connection, sid: int, gone: Collection[int]) -> list[tuple[str, int]]:
    """The branches that stand on a checkpoint which goes."""
    names = list(connection.execute(_NAMES, (sid,)))
    return [(name, cid) for name, tagged, cid, _ in names if not tagged and cid in gone]


def _anchor(link: int | None, gone: Collection[int], shapes: _Shapes) -> int | None:
    """The nearest ancestor that stays."""
    while link is not None and link in gone:
        link = shapes[link].link
    return link


def _move_names(connection: apsw.Connection, sid: int, gone: Collection[int], shapes: _Shapes, *, spare: bool) -> None:
    for name, tagged, cid, undo in list(connection.execute(_NAMES, (sid,))):
        if cid in gone and tagged:
            message = f"the checkpoint is tagged {name!r}"
            raise InvalidInputError(message, hint="untag it first")
        if spare and (cid in gone or undo in gone):
            message = f"branch {name!r} needs a checkpoint that was to be deleted"
            raise ConflictError(message, hint="try again")
        if cid in gone:
            anchor = _anchor(cid, gone, shapes)
            if anchor is None:
                message = f"branch {name!r} has no other checkpoint to stand on"
                raise InvalidInputError(message, hint="delete the branch or the whole session instead")
            connection.execute(_MOVE, (anchor, sid, name))
        if undo in gone:
            connection.execute(_DROP_UNDO, (sid, name))


def _rolls_over(gone: Collection[int], shapes: _Shapes) -> list[int]:
    """Those that stay whose roll starts from, or leads over, one that goes: what it held must go from there too."""
    found = []
    for owner in shapes.values():
        at: int | None = owner.cid
        while owner.base is not None and owner.cid not in gone and at is not None:
            if at in gone:
                found.append(owner.cid)
                break
            if at == owner.base:
                break
            at = shapes[at].link if at in shapes else None
    return found


def _rest_of_group(
    connection: apsw.Connection, orphan: int, rewrite: Rewrite, shapes: _Shapes, gone: Collection[int]
) -> list[_Repack]:
    """The deltas below an orphan in its group, opened, each with the prefix it will have once that is rewritten."""
    if shapes[orphan].complete:
        return []  # what follows a whole copy never leaned on what was before it
    below: dict[int, list[_Shape]] = {}
    for shape in shapes.values():
        # Below one that goes stands another orphan, which is rewritten itself: its old delta must not come back.
        if shape.link is not None and shape.cid not in gone and (shape.place - 1) % GROUP_DELTAS:
            below.setdefault(shape.link, []).append(shape)
    rest: list[_Repack] = []
    start = b"" if rewrite.whole is not None or rewrite.delta is None else next_prefix(1, b"", rewrite.delta.body)
    todo = [(orphan, start)]
    while todo:
        parent, prefix = todo.pop()
        for shape in below.get(parent, ()):
            if not one(connection, _HAS_DELTA, (shape.cid,))[0]:
                continue  # a whole copy stands on its own
            base, state = (one(connection, _DIGEST, (cid,))[0] for cid in (parent, shape.cid))
            old = open_at(connection, parent).prefix
            record = packing.open_delta(half(connection, shape.cid, DELTA), prefix=old, base=base, state=state)
            rest.append((shape.cid, record, prefix, base, state))
            if not shape.complete:
                todo.append((shape.cid, next_prefix(shape.place, prefix, record.body)))
    return rest


def _rewrite(connection: apsw.Connection, shape: _Shape, rewrite: Rewrite, anchor: int | None) -> None:
    cid = shape.cid
    id_, complete, state_digest, lost_id, lost_digest = one(connection, _ONE, (cid,))
    if lost_id is None:  # the parent it was committed on is remembered, even if that was deleted before this one
        lost_id, lost_digest = one(connection, _PARENT, (shape.link,))
    connection.execute(_ORPHAN, (cid, anchor, lost_id, lost_digest))
    if complete:
        kept = {*spilled(one(connection, _WHOLE, (cid,))[0]), *packing.refs_in(half(connection, cid, WHOLE))}
        drop_blobs(connection, cid, keep=kept)
        return
    record = rewrite.whole or rewrite.delta
    if record is None:
        message = f"checkpoint {unpack_id(id_)[:12]} has no whole copy yet"
        raise ConflictError(message, hint="try again")
    put_blobs(connection, cid, record.refs, rewrite.blobs)
    drop_blobs(connection, cid, keep=record.refs)
    if rewrite.whole is not None:
        sealed = packing.seal_whole(rewrite.whole, state=state_digest)
        connection.execute(_SET_WHOLE, (fit(connection, cid, sealed), cid))
        return
    if anchor is None or one(connection, _DIGEST, (anchor,))[0] != rewrite.base_digest:
        message = f"checkpoint {unpack_id(id_)[:12]} would stand on another state than a moment ago"
        raise ConflictError(message, hint="try again")
    sealed = packing.seal_delta(record, prefix=b"", base=rewrite.base_digest or b"", state=state_digest)
    connection.execute(_REBASE, (fit(connection, cid, sealed), cid))


def delete_session(connection: apsw.Connection, session: str, touched: int | None) -> None:
    """Remove a session and the blobs that only it needed."""
    sid = sid_of(connection, session)
    if touched not in (None, one(connection, _TOUCHED, (sid,))[0]):
        message = f"session {session!r} was written to meanwhile"
        raise ConflictError(message, hint="look again")
    running.forget_session(connection, session, sid)
    for (cid,) in list(connection.execute(_SESSION_CIDS, (sid,))):
        drop_blobs(connection, cid)
    for statement in _DELETE_SESSION:
        connection.execute(statement, (sid,))
