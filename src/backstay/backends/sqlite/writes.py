"""Writing: each function is given the writing connection inside a transaction, and raises to undo its part.

The order of a commit is visible in `commit`: blobs, records with their checkpoint, head, totals. Deletion mirrors it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256

import apsw

from backstay import packing
from backstay.backend import GROUP_DELTAS, MAX_ROW_BYTES, Commit, Row
from backstay.backends.sqlite import running
from backstay.backends.sqlite.reads import chain, cid_of, find_row, one, pack_id, sid_of, unpack_id
from backstay.backends.sqlite.running import Standing
from backstay.chains import SPILLED
from backstay.digest import checkpoint_digest
from backstay.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError

# One row, whether or not there is such a session: the number for the next checkpoint comes with it.
_HEAD = (
    "SELECT 1 + k.last, s.sid, coalesce(s.sequence, 0), coalesce(s.epoch, 0), n.cid, n.tag, c.id, c.digest, c.place, "
    "c.whole IS NOT NULL, r.run, r.token, r.claim, r.entered, coalesce(c.sequence, 0) "
    "FROM (SELECT coalesce(max(cid), 0) AS last FROM checkpoints) k LEFT JOIN sessions s ON s.id = ?1 "
    "LEFT JOIN names n ON n.sid = s.sid AND n.name = ?2 LEFT JOIN checkpoints c ON c.cid = n.cid "
    "LEFT JOIN runs r ON r.sid = s.sid AND r.branch = ?2"
)
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
    "base, roll, took_run, took_stood, took_calls) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
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


def commit(connection: apsw.Connection, new: Commit) -> Row:
    """Write one checkpoint and move its branch, or raise and leave nothing."""
    found = one(connection, _HEAD, (new.session, new.branch))
    cid, sid, sequence, epoch, head, tagged, kept_id, parent_digest, place, complete, *run = found
    standing = None if run[0] is None else Standing(*run)
    if tagged:
        raise _taken(new.branch)
    head_id = None if kept_id is None else unpack_id(kept_id)
    if head is not None and head_id is None:
        message = f"session {new.session!r}: branch {new.branch!r} points at a checkpoint that is not there"
        raise CorruptionError(message, hint="run verify")
    if head_id != new.expect:
        return _settle_conflict(connection, new, head_id, standing)
    if standing is not None or new.lease is not None:
        running.check_commit(connection, new, standing)
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
        put_blobs(connection, cid, refs, new.blobs)
    totals = new.totals
    spent = (totals.at_us, totals.agent, totals.status, totals.reason, totals.last_step, totals.usage)
    if sid is None:
        connection.execute(_NEW_SESSION, (new.session, new.size_bytes, cid, totals.at_us, *spent))
        sid = connection.last_insert_rowid()
    else:
        connection.execute(_UPDATE_SESSION, (sid, sequence, head is None, new.size_bytes, cid, *spent))
    digests = new.state_digest, digest
    took = running.took_by(connection, new, standing)
    halves = fit(connection, cid, delta), fit(connection, cid, whole)
    connection.execute(
        _NEW_CHECKPOINT,
        (
            *(cid, sid, sequence, pack_id(new.id), head, place, new.size_bytes),
            *(*digests, new.fields, *halves, base, roll, *took),
        ),
    )
    if standing is not None:
        running.take_in(connection, new, standing, sid, sequence)
    undo = None if new.undo_to is None else cid_of(connection, sid, new.undo_to)
    if head is None:
        connection.execute(_NEW_NAME, (sid, new.branch, 0, cid, undo))
    elif new.undo_to is None:
        connection.execute(_MOVE_BRANCH, (cid, sid, new.branch))
    else:
        connection.execute(_MOVE_BRANCH_UNDO, (cid, undo, sid, new.branch))
    return Row(new.id, sequence, head_id, parent_digest, head_id, new.state_digest, digest, new.fields)


def _settle_conflict(connection: apsw.Connection, new: Commit, head_id: str | None, standing: Standing | None) -> Row:
    # The same id is already here: an earlier try of this very commit did go through.
    done = find_row(connection, new.session, new.id)
    if done is not None:
        return done
    running.check_commit(connection, new, standing)
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


def fit(connection: apsw.Connection, cid: int, data: bytes | None) -> bytes | None:
    """What goes into the row itself; a record beyond the row limit is cut into blobs and the row names them."""
    if data is None or len(data) <= MAX_ROW_BYTES:
        return data
    parts = [data[at : at + MAX_ROW_BYTES] for at in range(0, len(data), MAX_ROW_BYTES)]
    contents = {sha256(part).digest(): part for part in parts}
    put_blobs(connection, cid, contents, contents)
    return SPILLED + b"".join([sha256(part).digest() for part in parts])


def put_blobs(connection: apsw.Connection, cid: int, refs: Iterable[bytes], contents: Mapping[bytes, bytes]) -> None:
    """Keep the blobs that a checkpoint needs, each once per store."""
    for digest in refs:
        found = connection.execute(_FIND_BLOB, (digest,)).fetchone()
        if found is None:
            if digest not in contents:
                message = f"blob {digest.hex()[:12]} is needed and not here"
                raise CorruptionError(message, hint="run verify")
            connection.execute(_NEW_BLOB, (digest, packing.seal_blob(contents[digest])))
            found = (connection.last_insert_rowid(),)
        connection.execute(_NEW_REF, (found[0], cid))


def drop_blobs(connection: apsw.Connection, cid: int, *, keep: Collection[bytes] = ()) -> None:
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
    running.forget_branch(connection, session, sid, branch)


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
