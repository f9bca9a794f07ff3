"""Writing: each function is given the writing connection inside a transaction, and raises to undo its part.

The order of a commit is visible in `commit`: blobs, records with their checkpoint, head, totals. Deletion mirrors it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import apsw

from holdfast import packing
from holdfast.backend import GROUP_DELTAS, MAX_ROW_BYTES, Commit, Deletion, Rewrite, Row, next_prefix
from holdfast.backends.sqlite.reads import (
    DELTA,
    SPILLED,
    WHOLE,
    chain,
    cid_of,
    find_row,
    half,
    one,
    pack_id,
    sid_of,
    spilled,
    unpack_id,
)
from holdfast.delta import Record
from holdfast.digest import checkpoint_digest
from holdfast.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError, NotFoundError

_HEAD = (
    "SELECT s.sid, s.sequence, s.epoch, n.cid, n.tag, c.id, c.digest, c.place, c.whole IS NOT NULL FROM sessions s "
    "LEFT JOIN names n ON n.sid = s.sid AND n.name = ?2 LEFT JOIN checkpoints c ON c.cid = n.cid WHERE s.id = ?1"
)
_NEXT_CID = "SELECT coalesce(max(cid), 0) + 1 FROM checkpoints"
_NEW_SESSION = (
    "INSERT INTO sessions(id, sequence, checkpoints, branches, logical, epoch, touched, created_us, updated_us, agent, "
    "status, reason, last_step, usage) VALUES(?, 1, 1, 1, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE_SESSION = (
    "UPDATE sessions SET sequence = ?2, checkpoints = checkpoints + 1, branches = branches + ?3, "
    "logical = logical + ?4, touched = ?5, updated_us = ?6, agent = ?7, status = ?8, reason = ?9, last_step = ?10, "
    "usage = ?11 WHERE sid = ?1"
)
_NEW_CHECKPOINT = (
    "INSERT INTO checkpoints(cid, sid, sequence, id, link, place, size, state_digest, digest, fields, delta, whole, "
    "base, roll) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_NEW_NAME = "INSERT INTO names(sid, name, tag, cid, undo) VALUES(?, ?, ?, ?, ?)"
_MOVE_BRANCH = "UPDATE names SET cid = ? WHERE sid = ? AND name = ?"
_MOVE_BRANCH_UNDO = "UPDATE names SET cid = ?, undo = ? WHERE sid = ? AND name = ?"
_NAME_TAKEN = "SELECT 1 FROM names WHERE sid = ? AND name = ?"
_COUNT_BRANCHES = "UPDATE sessions SET branches = branches + ? WHERE sid = ?"
_DELETE_NAME = "DELETE FROM names WHERE sid = ? AND name = ? AND tag = ?"
_FIND_BLOB = "SELECT bid FROM blobs WHERE digest = ?"
_NEW_BLOB = "INSERT INTO blobs(digest, data) VALUES(?, ?)"
_NEW_REF = "INSERT OR IGNORE INTO blob_refs(bid, cid) VALUES(?, ?)"
_REFS = "SELECT b.bid, b.digest FROM blob_refs r JOIN blobs b ON b.bid = r.bid WHERE r.cid = ?"
_DROP_REF = "DELETE FROM blob_refs WHERE cid = ? AND bid = ?"
_DROP_BLOB = "DELETE FROM blobs WHERE bid = ?1 AND NOT EXISTS(SELECT 1 FROM blob_refs WHERE bid = ?1)"
_SHAPE = "SELECT cid, link, place, whole IS NOT NULL, base FROM checkpoints WHERE sid = ? ORDER BY cid"
_DROP_ROLL = "UPDATE checkpoints SET base = NULL, roll = NULL WHERE cid = ?"
_ONE = (
    "SELECT id, digest, link, size, whole IS NOT NULL, state_digest, lost_parent_id, lost_parent_digest "
    "FROM checkpoints WHERE cid = ?"
)
_SET_DELTA = "UPDATE checkpoints SET delta = ? WHERE cid = ?"
_ORPHAN = "UPDATE checkpoints SET link = ?2, lost_parent_id = ?3, lost_parent_digest = ?4, delta = NULL WHERE cid = ?1"
_SET_WHOLE = "UPDATE checkpoints SET whole = ? WHERE cid = ?"
_NAMES_AT = "SELECT name, tag FROM names WHERE sid = ? AND cid = ?"
_MOVE_HEADS = "UPDATE names SET cid = ? WHERE sid = ? AND cid = ?"
_DROP_UNDOS = "UPDATE names SET undo = NULL WHERE sid = ? AND undo = ?"
_DELETE_CHECKPOINT = "DELETE FROM checkpoints WHERE cid = ?"
_SHRINK_SESSION = (
    "UPDATE sessions SET checkpoints = checkpoints - 1, logical = logical - ?1, epoch = epoch + 1, "
    "touched = (SELECT coalesce(max(cid), -?2) FROM checkpoints WHERE sid = ?2) WHERE sid = ?2"
)
_SESSION_CIDS = "SELECT cid FROM checkpoints WHERE sid = ?"
_DELETE_SESSION = (
    "DELETE FROM names WHERE sid = ?",
    "DELETE FROM checkpoints WHERE sid = ?",
    "DELETE FROM sessions WHERE sid = ?",
)


_NOTHING = (None, 0, 0, None, 0, None, None, 0, 0)


def commit(connection: apsw.Connection, new: Commit) -> Row:
    """Write one checkpoint and move its branch, or raise and leave nothing."""
    found = connection.execute(_HEAD, (new.session, new.branch)).fetchone()
    sid, sequence, epoch, head, tagged, kept_id, parent_digest, place, complete = found or _NOTHING
    if tagged:
        raise _taken(new.branch)
    head_id = None if kept_id is None else unpack_id(kept_id)
    if head is not None and head_id is None:
        message = f"session {new.session!r}: branch {new.branch!r} points at a checkpoint that is not there"
        raise CorruptionError(message, hint="run verify")
    if head_id != new.expect:
        return _settle_conflict(connection, new, head_id)
    (cid,) = one(connection, _NEXT_CID)
    sequence += 1
    place = 0 if head is None else 1 if complete else place + 1
    delta = _seal_delta(connection, new, head_id, epoch)
    whole = None if new.whole is None else packing.seal_whole(new.whole, state=new.state_digest)
    base, roll = _seal_roll(connection, new, sid, epoch, place)
    digest = checkpoint_digest(
        id_=new.id, parent=parent_digest, state=new.state_digest, sequence=sequence, fields=new.fields
    )

    if new.blobs or (new.delta and new.delta.refs) or (new.whole and new.whole.refs):
        refs = {*(new.delta.refs if new.delta else ()), *(new.whole.refs if new.whole else ())}
        _put_blobs(connection, cid, refs, new.blobs)
    totals = new.totals
    spent = (totals.at_us, totals.agent, totals.status, totals.reason, totals.last_step, totals.usage)
    if sid is None:
        connection.execute(_NEW_SESSION, (new.session, new.size_bytes, cid, totals.at_us, *spent))
        sid = connection.last_insert_rowid()
    else:
        connection.execute(_UPDATE_SESSION, (sid, sequence, head is None, new.size_bytes, cid, *spent))
    digests = new.state_digest, digest
    halves = _fit(connection, cid, delta), _fit(connection, cid, whole)
    connection.execute(
        _NEW_CHECKPOINT,
        (cid, sid, sequence, pack_id(new.id), head, place, new.size_bytes, *digests, new.fields, *halves, base, roll),
    )
    undo = None if new.undo_to is None else cid_of(connection, sid, new.undo_to)
    if head is None:
        connection.execute(_NEW_NAME, (sid, new.branch, 0, cid, undo))
    elif new.undo_to is None:
        connection.execute(_MOVE_BRANCH, (cid, sid, new.branch))
    else:
        connection.execute(_MOVE_BRANCH_UNDO, (cid, undo, sid, new.branch))
    return Row(new.id, sequence, head_id, parent_digest, head_id, new.state_digest, digest, new.fields)


def _settle_conflict(connection: apsw.Connection, new: Commit, head_id: str | None) -> Row:
    # The same id is already here: an earlier try of this very commit did go through.
    done = find_row(connection, new.session, new.id)
    if done is not None:
        return done
    where = "does not exist" if head_id is None else f"stands at {head_id[:12]}"
    wanted = "expected not to exist" if new.expect is None else f"expected at {new.expect[:12]}"
    message = f"session {new.session!r}: branch {new.branch!r} {where}, {wanted}"
    raise ConflictError(message, hint="load the branch again, then decide")


def _seal_delta(connection: apsw.Connection, new: Commit, head_id: str | None, epoch: int) -> bytes | None:
    if new.delta is None or new.base_digest is None or head_id is None:
        return None
    prefix = new.prefix
    if epoch != new.epoch:  # a deletion packed this chain anew since it was read
        prefix = chain(connection, new.session, head_id).prefix
    return packing.seal_delta(new.delta, prefix=prefix, base=new.base_digest, state=new.state_digest)


def _seal_roll(
    connection: apsw.Connection, new: Commit, sid: int | None, epoch: int, place: int
) -> tuple[int | None, bytes | None]:
    # A roll only saves reading time: after a deletion, or if it would not fit a row, it is left out. So is one that
    # ends inside a group: who reads the roll does not have the bodies that the deltas behind it are packed against.
    if new.roll is None or new.roll_base is None or sid is None or epoch != new.epoch or place % GROUP_DELTAS:
        return None, None
    base = cid_of(connection, sid, new.roll_base)
    (base_digest,) = one(connection, "SELECT state_digest FROM checkpoints WHERE cid = ?", (base,))
    sealed = packing.seal_roll(new.roll, base=base_digest, state=new.state_digest)
    return (base, sealed) if len(sealed) <= MAX_ROW_BYTES else (None, None)


def _fit(connection: apsw.Connection, cid: int, data: bytes | None) -> bytes | None:
    """What goes into the row itself; a record beyond the row limit is cut into blobs and the row names them."""
    if data is None or len(data) <= MAX_ROW_BYTES:
        return data
    parts = [data[at : at + MAX_ROW_BYTES] for at in range(0, len(data), MAX_ROW_BYTES)]
    contents = {sha256(part).digest(): part for part in parts}
    _put_blobs(connection, cid, contents, contents)
    return SPILLED + b"".join([sha256(part).digest() for part in parts])


def _put_blobs(connection: apsw.Connection, cid: int, refs: Iterable[bytes], contents: Mapping[bytes, bytes]) -> None:
    for digest in refs:
        found = connection.execute(_FIND_BLOB, (digest,)).fetchone()
        if found is None:
            if digest not in contents:
                message = f"blob {digest.hex()[:12]} is needed and not here"
                raise CorruptionError(message, hint="run verify")
            connection.execute(_NEW_BLOB, (digest, packing.seal_blob(contents[digest])))
            found = (connection.last_insert_rowid(),)
        connection.execute(_NEW_REF, (found[0], cid))


def _drop_blobs(connection: apsw.Connection, cid: int, *, keep: Collection[bytes] = ()) -> None:
    """Let go of the blobs a checkpoint needed; those that nobody else needs are removed."""
    for bid, digest in list(connection.execute(_REFS, (cid,))):
        if digest not in keep:
            connection.execute(_DROP_REF, (cid, bid))
            connection.execute(_DROP_BLOB, (bid,))


def fork(connection: apsw.Connection, session: str, id_: str, branch: str) -> None:
    """A new branch at a checkpoint."""
    sid = sid_of(connection, session)
    cid = cid_of(connection, sid, id_)
    _refuse_taken(connection, sid, branch)
    connection.execute(_NEW_NAME, (sid, branch, 0, cid, None))
    connection.execute(_COUNT_BRANCHES, (1, sid))


def _refuse_taken(connection: apsw.Connection, sid: int, name: str) -> None:
    if connection.execute(_NAME_TAKEN, (sid, name)).fetchone() is not None:
        raise _taken(name)


def _taken(name: str) -> AlreadyExistsError:
    message = f"there is already a branch or tag named {name!r}"
    return AlreadyExistsError(message, hint="branches and tags share their names: choose another")


def delete_branch(connection: apsw.Connection, session: str, branch: str) -> None:
    """Forget a branch."""
    sid = sid_of(connection, session)
    connection.execute(_DELETE_NAME, (sid, branch, 0))
    if not connection.changes():
        message = f"there is no branch {branch!r}"
        raise NotFoundError(message, hint="session.branches() lists those there are")
    connection.execute(_COUNT_BRANCHES, (-1, sid))


def tag(connection: apsw.Connection, session: str, id_: str, name: str) -> None:
    """A new tag at a checkpoint."""
    sid = sid_of(connection, session)
    cid = cid_of(connection, sid, id_)
    _refuse_taken(connection, sid, name)
    connection.execute(_NEW_NAME, (sid, name, 1, cid, None))


def untag(connection: apsw.Connection, session: str, name: str) -> None:
    """Forget a tag."""
    connection.execute(_DELETE_NAME, (sid_of(connection, session), name, 1))
    if not connection.changes():
        message = f"there is no tag {name!r}"
        raise NotFoundError(message, hint="session.tags() lists those there are")


def delete_checkpoint(connection: apsw.Connection, deletion: Deletion) -> None:
    """Remove one checkpoint; see the port."""
    sid = sid_of(connection, deletion.session)
    cid = cid_of(connection, sid, deletion.id)
    id_, digest, link, size, _, _, _, _ = one(connection, _ONE, (cid,))
    shape = {row[0]: _Shape(*row) for row in connection.execute(_SHAPE, (sid,))}
    rewrites = {cid_of(connection, sid, rewrite.id): rewrite for rewrite in deletion.rewrites}
    if {found.cid for found in shape.values() if found.link == cid} != set(rewrites):
        message = f"checkpoint {deletion.id[:12]} has other children than a moment ago"
        raise ConflictError(message, hint="try again")
    _refuse_pinned(connection, sid, cid, link)

    # The deltas behind each child in its group were packed against bodies that now go: read them before, pack after.
    repacks = {child: _rest_of_group(connection, deletion.session, child, shape) for child in rewrites}
    connection.execute(_MOVE_HEADS, (link, sid, cid))
    connection.execute(_DROP_UNDOS, (sid, cid))
    for found in _rolls_over(cid, shape):
        connection.execute(_DROP_ROLL, (found,))
    for child, rewrite in rewrites.items():
        _detach(connection, child, rewrite, link=link, parent_id=id_, parent_digest=digest)
        _repack(connection, repacks[child])
    _drop_blobs(connection, cid)
    connection.execute(_DELETE_CHECKPOINT, (cid,))
    connection.execute(_SHRINK_SESSION, (size, sid))


class _Shape(NamedTuple):
    """Where a checkpoint stands among the others of its session."""

    cid: int
    link: int | None
    place: int
    complete: int
    base: int | None


def _rolls_over(cid: int, shape: Mapping[int, _Shape]) -> list[int]:
    """The checkpoints whose roll starts from, or leads over, one that goes: what it held must go from there too."""
    found = []
    for owner in shape.values():
        at: int | None = owner.cid
        while owner.base is not None and at is not None:
            if at == cid:
                found.append(owner.cid)
                break
            if at == owner.base:
                break
            at = shape[at].link if at in shape else None
    return found


def _refuse_pinned(connection: apsw.Connection, sid: int, cid: int, link: int | None) -> None:
    for name, tagged in connection.execute(_NAMES_AT, (sid, cid)):
        if tagged:
            message = f"the checkpoint is tagged {name!r}"
            raise InvalidInputError(message, hint="untag it first")
        if link is None:
            message = f"branch {name!r} has no other checkpoint to stand on"
            raise InvalidInputError(message, hint="delete the branch or the whole session instead")


_Repack = tuple[int, Record, bytes, bytes, bytes]  # cid, record, prefix, base and state digests


def _rest_of_group(connection: apsw.Connection, session: str, child: int, shape: Mapping[int, _Shape]) -> list[_Repack]:
    """The deltas below `child` in its group, opened, each with the prefix it will have once `child` is whole."""
    if shape[child].complete:
        return []  # what follows a whole copy never leaned on what was before it
    below: dict[int, list[_Shape]] = {}
    for found in shape.values():
        if found.link is not None and (found.place - 1) % GROUP_DELTAS:
            below.setdefault(found.link, []).append(found)
    rest: list[_Repack] = []
    todo = [(child, b"")]
    while todo:
        parent, prefix = todo.pop()
        for found in below.get(parent, ()):
            (id_,) = one(connection, "SELECT id FROM checkpoints WHERE cid = ?", (found.cid,))
            opened = _last_delta(connection, session, unpack_id(id_))
            if opened is not None:
                record, base, state = opened
                rest.append((found.cid, record, prefix, base, state))
                if not found.complete:
                    todo.append((found.cid, next_prefix(found.place, prefix, record.body)))
    return rest


def _last_delta(connection: apsw.Connection, session: str, id_: str) -> tuple[Record, bytes, bytes] | None:
    row = find_row(connection, session, id_)
    parent = find_row(connection, session, row.link_id) if row and row.link_id else None
    if row is None or parent is None:
        message = f"checkpoint {id_[:12]} lost its parent"
        raise CorruptionError(message, hint="run verify")
    cid = cid_of(connection, sid_of(connection, session), id_)
    (kept,) = one(connection, "SELECT delta IS NOT NULL FROM checkpoints WHERE cid = ?", (cid,))
    if not kept:
        return None  # a whole copy stands on its own
    before = chain(connection, session, parent.id)
    data = half(connection, cid, DELTA)
    record = packing.open_delta(data, prefix=before.prefix, base=parent.state_digest, state=row.state_digest)
    return record, parent.state_digest, row.state_digest


def _detach(
    connection: apsw.Connection, child: int, rewrite: Rewrite, *, link: int | None, parent_id: Any, parent_digest: bytes
) -> None:
    id_, _, _, _, complete, state_digest, lost_id, lost_digest = one(connection, _ONE, (child,))
    if lost_id is None:  # the parent it was committed on is remembered, even if that was deleted before this one
        lost_id, lost_digest = parent_id, parent_digest
    connection.execute(_ORPHAN, (child, link, lost_id, lost_digest))
    if complete:
        (kept,) = one(connection, "SELECT whole FROM checkpoints WHERE cid = ?", (child,))
        _drop_blobs(connection, child, keep={*spilled(kept), *packing.refs_in(half(connection, child, WHOLE))})
        return
    if rewrite.whole is None:
        message = f"checkpoint {unpack_id(id_)[:12]} has no whole copy yet"
        raise ConflictError(message, hint="try again")
    _put_blobs(connection, child, rewrite.whole.refs, rewrite.blobs)
    _drop_blobs(connection, child, keep=rewrite.whole.refs)
    sealed = packing.seal_whole(rewrite.whole, state=state_digest)
    connection.execute(_SET_WHOLE, (_fit(connection, child, sealed), child))


def _repack(connection: apsw.Connection, rest: list[_Repack]) -> None:
    for cid, record, prefix, base, state in rest:
        sealed = packing.seal_delta(record, prefix=prefix, base=base, state=state)
        connection.execute(_SET_DELTA, (_fit(connection, cid, sealed), cid))


def delete_session(connection: apsw.Connection, session: str) -> None:
    """Remove a session and the blobs that only it needed."""
    sid = sid_of(connection, session)
    for (cid,) in list(connection.execute(_SESSION_CIDS, (sid,))):
        _drop_blobs(connection, cid)
    for statement in _DELETE_SESSION:
        connection.execute(statement, (sid,))
