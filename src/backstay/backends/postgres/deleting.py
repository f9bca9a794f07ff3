"""Deletion: what goes, what must be written anew because it leaned on what goes, and who moves where.

Runs inside a write transaction with the session's row locked. The order mirrors that of a commit: names first, then
records, checkpoints, blobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from backstay import leaning
from backstay.backend import Deletion, Rewrite
from backstay.backends.postgres import running
from backstay.backends.postgres.chains import Rows, refs_of_half
from backstay.backends.postgres.reads import no_checkpoint, no_session
from backstay.backends.postgres.texts import pack, pack_id, unpack, unpack_id
from backstay.backends.postgres.wire import Wire
from backstay.backends.postgres.writes import LOCK_SESSION, cut, drop_blobs, lock_session, put_blobs
from backstay.errors import ConflictError

_SHAPE = (
    "SELECT sequence, link, place, whole IS NOT NULL, delta IS NOT NULL, base, size, took_run, took_stood, id, "
    "state_digest, digest, lost_parent_id, lost_parent_digest FROM {schema}.checkpoints WHERE sid = %s "
    "ORDER BY sequence"
)
_WHOLE = "SELECT whole FROM {schema}.checkpoints WHERE sid = %s AND sequence = %s"
_NAMES = "SELECT name, tag, sequence, undo FROM {schema}.names WHERE sid = %s ORDER BY name"
_MOVE = "UPDATE {schema}.names SET sequence = %s WHERE sid = %s AND name = %s"
_DROP_UNDO = "UPDATE {schema}.names SET undo = NULL WHERE sid = %s AND name = %s"
_DROP_ROLLS = "UPDATE {schema}.checkpoints SET base = NULL, roll = NULL WHERE sid = %s AND sequence = ANY(%s::bigint[])"
_ORPHAN = (
    "UPDATE {schema}.checkpoints SET link = %s, lost_parent_id = %s, lost_parent_digest = %s, delta = NULL "
    "WHERE sid = %s AND sequence = %s"
)
_SET_WHOLE = "UPDATE {schema}.checkpoints SET whole = %s WHERE sid = %s AND sequence = %s"
_SET_DELTA = "UPDATE {schema}.checkpoints SET delta = %s WHERE sid = %s AND sequence = %s"
_REBASE = "UPDATE {schema}.checkpoints SET delta = %s, place = 1 WHERE sid = %s AND sequence = %s"
_DELETE_CHECKPOINTS = "DELETE FROM {schema}.checkpoints WHERE sid = %s AND sequence = ANY(%s::bigint[])"
_SHRINK_SESSION = (
    "UPDATE {schema}.sessions SET checkpoints = checkpoints - %s, logical = logical - %s, epoch = epoch + 1, touched = "
    "coalesce((SELECT c.touched FROM {schema}.checkpoints c WHERE c.sid = %s ORDER BY c.sequence DESC LIMIT 1), -sid) "
    "WHERE sid = %s"
)
_TOUCHED = "SELECT touched FROM {schema}.sessions WHERE sid = %s"
_SEQUENCES = "SELECT DISTINCT sequence FROM {schema}.blob_refs WHERE sid = %s"
_DELETE_SESSION = (
    "DELETE FROM {schema}.names WHERE sid = %s",
    "DELETE FROM {schema}.checkpoints WHERE sid = %s",
    "DELETE FROM {schema}.sessions WHERE sid = %s",
)


def delete_checkpoints(wire: Wire, deletion: Deletion, *, again: bool) -> None:
    """Remove checkpoints; see the port."""
    with wire.writing():
        sid, _ = lock_session(wire, deletion.session)
        shapes: leaning.Shapes = {row[0]: leaning.Shape(row[0], *row) for row in wire.rows(_SHAPE, sid)}
        known = {shape.id: shape.sequence for shape in shapes.values()}
        if again and not known.keys() & {pack_id(id_) for id_ in deletion.ids}:
            return  # an earlier try went through
        gone = {_known(known, id_) for id_ in deletion.ids}
        rewrites = {_known(known, rewrite.id): rewrite for rewrite in deletion.rewrites}
        orphans = leaning.orphans(deletion.session, gone, shapes, rewrites)
        names = [(unpack(name), is_tag, at, undo) for name, is_tag, at, undo in wire.rows(_NAMES, sid)]
        for name, is_tag, at, _ in names:
            if at in gone and not is_tag:
                running.refuse_head_gone(wire, deletion.session, sid, name, at)
        # The deltas behind each orphan in its group were packed against bodies that now go: read before, packed after.
        rows = Rows(wire, sid)
        rest = [each for at in orphans for each in leaning.rest_of_group(at, rewrites[at], shapes, gone, rows)]
        for name, target, drops_undo in leaning.moves(names, gone, shapes, spare=deletion.spare_names):
            if target is not None:
                wire.do(_MOVE, target, sid, pack(name))
            if drops_undo:
                wire.do(_DROP_UNDO, sid, pack(name))
        wire.do(_DROP_ROLLS, sid, leaning.rolls_over(gone, shapes))
        for orphan in orphans:
            _rewrite(wire, sid, shapes[orphan], rewrites[orphan], gone, shapes)
        for repack in rest:
            wire.do(_SET_DELTA, _fit(wire, sid, repack.number, repack.seal()), sid, repack.number)
        drop_blobs(wire, sid, sorted(gone))
        wire.do(_DELETE_CHECKPOINTS, sid, sorted(gone))
        wire.do(_SHRINK_SESSION, len(gone), sum([shapes[sequence].size for sequence in gone]), sid, sid)
        taken = {shape.took for shape in shapes.values() if shape.took_run is not None and shape.sequence not in gone}
        took = {shapes[sequence].took for sequence in gone if shapes[sequence].took_run is not None}
        running.forget_checkpoints(wire, sid, took, taken, gone)


def _known(known: Mapping[str | bytes, int], id_: str) -> int:
    found = known.get(pack_id(id_))
    if found is None:
        raise no_checkpoint(id_)
    return found


def _rewrite(
    wire: Wire, sid: int, shape: leaning.Shape, rewrite: Rewrite, gone: Collection[int], shapes: leaning.Shapes
) -> None:
    sequence, anchor = shape.sequence, leaning.anchor(shape.link, gone, shapes)
    wire.do(_ORPHAN, anchor, *leaning.committed_on(shape, shapes), sid, sequence)
    if shape.complete:
        drop_blobs(wire, sid, [sequence], keep=refs_of_half(wire, wire.one(_WHOLE, sid, sequence)[0]))
        return
    record, sealed = leaning.sealed_anew(shape, rewrite, None if anchor is None else shapes[anchor], unpack_id)
    put_blobs(wire, sid, sequence, record.refs, rewrite.blobs)
    drop_blobs(wire, sid, [sequence], keep=record.refs)
    statement = _REBASE if rewrite.whole is None else _SET_WHOLE
    wire.do(statement, _fit(wire, sid, sequence, sealed), sid, sequence)


def _fit(wire: Wire, sid: int, sequence: int, data: bytes) -> bytes:
    half, parts = cut(data)
    put_blobs(wire, sid, sequence, parts, parts)
    return half


def delete_session(wire: Wire, session: str, touched: int | None, *, again: bool) -> None:
    """Remove a session and the blobs that only it needed."""
    with wire.writing():
        found = wire.find(LOCK_SESSION, pack(session))
        if found is None:
            if again:
                return
            raise no_session(session)
        sid = found[0]
        if touched not in (None, wire.one(_TOUCHED, sid)[0]):
            message = f"session {session!r} was written to meanwhile"
            raise ConflictError(message, hint="look again")
        running.forget_session(wire, session, sid)
        drop_blobs(wire, sid, [row[0] for row in wire.rows(_SEQUENCES, sid)])
        for statement in _DELETE_SESSION:
            wire.do(statement, sid)
