"""Deletion: what goes, what must be written anew because it leaned on what goes, and who moves where.

Runs inside a write transaction. The order mirrors that of a commit: names first, then records, checkpoints, blobs.
"""

from __future__ import annotations

from collections.abc import Collection

import apsw

from backstay import leaning, packing
from backstay.backend import Deletion, Rewrite
from backstay.backends.sqlite import running
from backstay.backends.sqlite.reads import WHOLE, Rows, cid_of, half, one, sid_of, unpack_id
from backstay.backends.sqlite.writes import drop_blobs, fit, put_blobs
from backstay.chains import spilled
from backstay.errors import ConflictError

_SHAPE = (
    "SELECT cid, sequence, link, place, whole IS NOT NULL, delta IS NOT NULL, base, size, took_run, took_stood, id, "
    "state_digest, digest, lost_parent_id, lost_parent_digest FROM checkpoints WHERE sid = ? ORDER BY cid"
)
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


def delete_checkpoints(connection: apsw.Connection, deletion: Deletion) -> None:
    """Remove checkpoints; see the port."""
    sid = sid_of(connection, deletion.session)
    gone = {cid_of(connection, sid, id_) for id_ in deletion.ids}
    shapes: leaning.Shapes = {row[0]: leaning.Shape(*row) for row in connection.execute(_SHAPE, (sid,))}
    rewrites = {cid_of(connection, sid, rewrite.id): rewrite for rewrite in deletion.rewrites}
    orphans = leaning.orphans(deletion.session, gone, shapes, rewrites)
    names = list(connection.execute(_NAMES, (sid,)))
    for name, is_tag, cid, _ in names:
        if cid in gone and not is_tag:
            running.refuse_head_gone(connection, deletion.session, sid, name, shapes[cid].sequence)
    # The deltas behind each orphan in its group were packed against bodies that now go: read them before, pack after.
    rows = Rows(connection)
    rest = [each for orphan in orphans for each in leaning.rest_of_group(orphan, rewrites[orphan], shapes, gone, rows)]
    for name, target, drops_undo in leaning.moves(names, gone, shapes, spare=deletion.spare_names):
        if target is not None:
            connection.execute(_MOVE, (target, sid, name))
        if drops_undo:
            connection.execute(_DROP_UNDO, (sid, name))
    for owner in leaning.rolls_over(gone, shapes):
        connection.execute(_DROP_ROLL, (owner,))
    for orphan in orphans:
        _rewrite(connection, shapes[orphan], rewrites[orphan], gone, shapes)
    for repack in rest:
        connection.execute(_SET_DELTA, (fit(connection, repack.number, repack.seal()), repack.number))
    for cid in gone:
        drop_blobs(connection, cid)
    connection.executemany(_DELETE_CHECKPOINT, [(cid,) for cid in gone])
    connection.execute(_SHRINK_SESSION, (len(gone), sum([shapes[cid].size for cid in gone]), sid))
    taken = {shape.took for shape in shapes.values() if shape.took_run is not None and shape.number not in gone}
    took = {shapes[cid].took for cid in gone if shapes[cid].took_run is not None}
    running.forget_checkpoints(connection, sid, took, taken, [shapes[cid].sequence for cid in gone])


def _rewrite(
    connection: apsw.Connection,
    shape: leaning.Shape,
    rewrite: Rewrite,
    gone: Collection[int],
    shapes: leaning.Shapes,
) -> None:
    cid, anchor = shape.number, leaning.anchor(shape.link, gone, shapes)
    connection.execute(_ORPHAN, (cid, anchor, *leaning.committed_on(shape, shapes)))
    if shape.complete:
        kept = {*spilled(one(connection, _WHOLE, (cid,))[0]), *packing.refs_in(half(connection, cid, WHOLE))}
        drop_blobs(connection, cid, keep=kept)
        return
    record, sealed = leaning.sealed_anew(shape, rewrite, None if anchor is None else shapes[anchor], unpack_id)
    put_blobs(connection, cid, record.refs, rewrite.blobs)
    drop_blobs(connection, cid, keep=record.refs)
    statement = _REBASE if rewrite.whole is None else _SET_WHOLE
    connection.execute(statement, (fit(connection, cid, sealed), cid))


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
