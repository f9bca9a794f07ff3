"""Deletion: what goes, what must be written anew because it leaned on what goes, and who moves where.

Runs inside a write transaction with the session's row locked. The order mirrors that of a commit: names first, then
records, checkpoints, blobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast import packing
from holdfast.backend import GROUP_DELTAS, Deletion, Rewrite, next_prefix
from holdfast.backends.postgres import running
from holdfast.backends.postgres.chains import join, prefix_behind, refs_of_half
from holdfast.backends.postgres.reads import no_checkpoint, no_session
from holdfast.backends.postgres.texts import pack, pack_id, unpack, unpack_id
from holdfast.backends.postgres.wire import Wire
from holdfast.backends.postgres.writes import LOCK_SESSION, cut, drop_blobs, lock_session, put_blobs
from holdfast.delta import Record
from holdfast.errors import ConflictError, CorruptionError, InvalidInputError

_SHAPE = (
    "SELECT sequence, link, place, whole IS NOT NULL, delta IS NOT NULL, base, size, took_run, took_stood, id, "
    "state_digest, digest, lost_parent_id, lost_parent_digest FROM {schema}.checkpoints WHERE sid = %s "
    "ORDER BY sequence"
)
_DELTA = "SELECT delta FROM {schema}.checkpoints WHERE sid = %s AND sequence = %s"
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


class _Shape(NamedTuple):
    """Where a checkpoint stands among the others of its session."""

    sequence: int
    link: int | None
    place: int
    complete: bool
    has_delta: bool
    base: int | None
    size: int
    took_run: int | None
    took_stood: int | None
    id: bytes
    state_digest: bytes
    digest: bytes
    lost_id: bytes | None
    lost_digest: bytes | None

    @property
    def took(self) -> tuple[int, int]:
        return self.took_run or 0, self.took_stood or 0


_Shapes = Mapping[int, _Shape]
_Repack = tuple[int, Record, bytes, bytes, bytes]  # sequence, record, prefix, base and state digests


def delete_checkpoints(wire: Wire, deletion: Deletion, *, again: bool) -> None:
    """Remove checkpoints; see the port."""
    with wire.writing():
        sid, _ = lock_session(wire, deletion.session)
        shapes: _Shapes = {row[0]: _Shape(*row) for row in wire.rows(_SHAPE, sid)}
        known = {shape.id: shape.sequence for shape in shapes.values()}
        if again and not known.keys() & {pack_id(id_) for id_ in deletion.ids}:
            return  # an earlier try went through
        gone = {_known(known, id_) for id_ in deletion.ids}
        rewrites = {_known(known, rewrite.id): rewrite for rewrite in deletion.rewrites}
        orphans = {shape.sequence for shape in shapes.values() if shape.link in gone and shape.sequence not in gone}
        if orphans != set(rewrites):
            message = f"session {deletion.session!r}: other checkpoints lean on those to be deleted than a moment ago"
            raise ConflictError(message, hint="try again")
        names = wire.rows(_NAMES, sid)
        for name, tagged, at, _ in names:
            if at in gone and not tagged:
                running.refuse_head_gone(wire, deletion.session, sid, unpack(name), at)
        # The deltas behind each orphan in its group were packed against bodies that now go: read before, packed after.
        repacks = [_rest_of_group(wire, sid, orphan, rewrites[orphan], shapes, gone) for orphan in sorted(orphans)]
        _move_names(wire, sid, names, gone, shapes, spare=deletion.spare_names)
        wire.do(_DROP_ROLLS, sid, _rolls_over(gone, shapes))
        for orphan in sorted(orphans):
            _rewrite(wire, sid, shapes[orphan], rewrites[orphan], gone, shapes)
        for rest in repacks:
            for sequence, record, prefix, base, state in rest:
                sealed = packing.seal_delta(record, prefix=prefix, base=base, state=state)
                wire.do(_SET_DELTA, _fit(wire, sid, sequence, sealed), sid, sequence)
        drop_blobs(wire, sid, sorted(gone))
        wire.do(_DELETE_CHECKPOINTS, sid, sorted(gone))
        wire.do(_SHRINK_SESSION, len(gone), sum([shapes[sequence].size for sequence in gone]), sid, sid)
        taken = {shape.took for shape in shapes.values() if shape.took_run is not None and shape.sequence not in gone}
        took = {shapes[sequence].took for sequence in gone if shapes[sequence].took_run is not None}
        running.forget_checkpoints(wire, sid, took, taken, gone)


def _known(known: Mapping[bytes, int], id_: str) -> int:
    found = known.get(pack_id(id_))
    if found is None:
        raise no_checkpoint(id_)
    return found


def _anchor(link: int | None, gone: Collection[int], shapes: _Shapes) -> int | None:
    """The nearest ancestor that stays."""
    while link is not None and link in gone:
        link = shapes[link].link
    return link


def _move_names(
    wire: Wire,
    sid: int,
    names: list[tuple[bytes, bool, int, int | None]],
    gone: Collection[int],
    shapes: _Shapes,
    *,
    spare: bool,
) -> None:
    for kept, tagged, at, undo in names:
        name = unpack(kept)
        if at in gone and tagged:
            message = f"the checkpoint is tagged {name!r}"
            raise InvalidInputError(message, hint="untag it first")
        if spare and (at in gone or undo in gone):
            message = f"branch {name!r} needs a checkpoint that was to be deleted"
            raise ConflictError(message, hint="try again")
        if at in gone:
            anchor = _anchor(at, gone, shapes)
            if anchor is None:
                message = f"branch {name!r} has no other checkpoint to stand on"
                raise InvalidInputError(message, hint="delete the branch or the whole session instead")
            wire.do(_MOVE, anchor, sid, kept)
        if undo in gone:
            wire.do(_DROP_UNDO, sid, kept)


def _rolls_over(gone: Collection[int], shapes: _Shapes) -> list[int]:
    """Those that stay whose roll starts from, or leads over, one that goes: what it held must go from there too."""
    found = []
    for owner in shapes.values():
        at: int | None = owner.sequence
        while owner.base is not None and owner.sequence not in gone and at is not None:
            if at in gone:
                found.append(owner.sequence)
                break
            if at == owner.base:
                break
            at = shapes[at].link if at in shapes else None
    return found


def _rest_of_group(
    wire: Wire, sid: int, orphan: int, rewrite: Rewrite, shapes: _Shapes, gone: Collection[int]
) -> list[_Repack]:
    """The deltas below an orphan in its group, opened, each with the prefix it will have once that is rewritten."""
    if shapes[orphan].complete:
        return []  # what follows a whole copy never leaned on what was before it
    below: dict[int, list[_Shape]] = {}
    for shape in shapes.values():
        # Below one that goes stands another orphan, which is rewritten itself: its old delta must not come back.
        if shape.link is not None and shape.sequence not in gone and (shape.place - 1) % GROUP_DELTAS:
            below.setdefault(shape.link, []).append(shape)
    rest: list[_Repack] = []
    start = b"" if rewrite.whole is not None or rewrite.delta is None else next_prefix(1, b"", rewrite.delta.body)
    todo = [(orphan, start, prefix_behind(wire, sid, orphan) if below.get(orphan) else b"")]
    while todo:
        parent, prefix, old = todo.pop()
        for shape in below.get(parent, ()):
            if not shape.has_delta:
                continue  # a whole copy stands on its own
            base, state = shapes[parent].state_digest, shape.state_digest
            data = wire.one(_DELTA, sid, shape.sequence)[0]
            record = packing.open_delta(join(wire, data), prefix=old, base=base, state=state)
            rest.append((shape.sequence, record, prefix, base, state))
            if not shape.complete:
                following = next_prefix(shape.place, prefix, record.body)
                todo.append((shape.sequence, following, next_prefix(shape.place, old, record.body)))
    return rest


def _rewrite(wire: Wire, sid: int, shape: _Shape, rewrite: Rewrite, gone: Collection[int], shapes: _Shapes) -> None:
    sequence, anchor = shape.sequence, _anchor(shape.link, gone, shapes)
    lost_id, lost_digest = shape.lost_id, shape.lost_digest
    if lost_id is None:  # the parent it was committed on is remembered, even if that was deleted before this one
        if shape.link is None or shape.link not in shapes:
            message = "a row that must be there cannot be read"
            raise CorruptionError(message, hint="run verify to see what is intact")
        lost_id, lost_digest = shapes[shape.link].id, shapes[shape.link].digest
    wire.do(_ORPHAN, anchor, lost_id, lost_digest, sid, sequence)
    if shape.complete:
        drop_blobs(wire, sid, [sequence], keep=refs_of_half(wire, wire.one(_WHOLE, sid, sequence)[0]))
        return
    record = rewrite.whole or rewrite.delta
    if record is None:
        message = f"checkpoint {unpack_id(shape.id)[:12]} has no whole copy yet"
        raise ConflictError(message, hint="try again")
    put_blobs(wire, sid, sequence, record.refs, rewrite.blobs)
    drop_blobs(wire, sid, [sequence], keep=record.refs)
    if rewrite.whole is not None:
        sealed = packing.seal_whole(rewrite.whole, state=shape.state_digest)
        wire.do(_SET_WHOLE, _fit(wire, sid, sequence, sealed), sid, sequence)
        return
    if anchor is None or shapes[anchor].state_digest != rewrite.base_digest:
        message = f"checkpoint {unpack_id(shape.id)[:12]} would stand on another state than a moment ago"
        raise ConflictError(message, hint="try again")
    sealed = packing.seal_delta(record, prefix=b"", base=rewrite.base_digest or b"", state=shape.state_digest)
    wire.do(_REBASE, _fit(wire, sid, sequence, sealed), sid, sequence)


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
