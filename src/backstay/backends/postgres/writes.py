"""Writing: a commit in one statement, names in short transactions. Each function raises to leave nothing behind.

The order of a commit is visible in `functions.py`: blobs, checkpoint with its records, head, totals, the run. A commit
with nothing to weigh takes a shorter way there. `again`
says that an earlier try may have been recorded: then what is found as it was wanted counts as done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256

import psycopg
from msgspec.structs import replace

from backstay import packing, whereabouts
from backstay.backend import FORMAT_VERSION, MAX_ROW_BYTES, Commit, Lease, Row, refuse_in_doubt
from backstay.backends.postgres import running
from backstay.backends.postgres.calls import seal_place
from backstay.backends.postgres.chains import prefix_behind
from backstay.backends.postgres.faults import NOT_ORDINARY
from backstay.backends.postgres.functions import (
    CONFLICT,
    DONE,
    EPOCH,
    FENCED,
    HELD,
    LOOK,
    LOST,
    MISSING,
    NEWER,
    OK,
    TAKEN,
)
from backstay.backends.postgres.reads import Claim, claim_for, claim_of, find_row, no_checkpoint, sequence_of
from backstay.backends.postgres.texts import mark_of, pack, pack_id, pack_or_none, unpack_id
from backstay.backends.postgres.wire import Wire, newer
from backstay.chains import SPILLED
from backstay.errors import AlreadyExistsError, BackstayError, ConflictError, CorruptionError, NotFoundError

_COMMIT = (
    "SELECT {schema}.commit_1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::bytea[], "
    "%s::bytea[], %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::bigint[], %s::bytea[], %s, %s, %s)"
)
_ORDINARY = "SELECT {schema}.commit_short_1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
LOCK_SESSION = "SELECT sid, epoch FROM {schema}.sessions WHERE id = %s FOR NO KEY UPDATE"
_FIND_NAME = (
    "SELECT n.tag, (SELECT c.id FROM {schema}.checkpoints c WHERE c.sid = n.sid AND c.sequence = n.sequence) "
    "FROM {schema}.names n WHERE n.sid = %s AND n.name = %s"
)
NEW_NAME = "INSERT INTO {schema}.names(sid, sequence, undo, tag, name) VALUES (%s, %s, %s, %s, %s)"
_COUNT_BRANCHES = "UPDATE {schema}.sessions SET branches = branches + %s WHERE sid = %s"
_DELETE_NAME = "DELETE FROM {schema}.names WHERE sid = %s AND name = %s AND tag = %s"
_LOCK_NAMED = "SELECT digest, bid FROM {schema}.blobs WHERE digest = ANY(%s::bytea[]) ORDER BY digest FOR KEY SHARE"
_NEW_BLOB = "INSERT INTO {schema}.blobs(digest, data) VALUES (%s, %s) ON CONFLICT (digest) DO NOTHING"
_NEW_REFS = (
    "INSERT INTO {schema}.blob_refs(sid, sequence, bid) SELECT %s, %s, unnest(%s::bigint[]) ON CONFLICT DO NOTHING"
)
_REFS = (
    "SELECT b.bid, b.digest FROM {schema}.blob_refs r JOIN {schema}.blobs b ON b.bid = r.bid "
    "WHERE r.sid = %s AND r.sequence = ANY(%s::bigint[])"
)
_DROP_REFS = (
    "DELETE FROM {schema}.blob_refs WHERE sid = %s AND sequence = ANY(%s::bigint[]) AND bid = ANY(%s::bigint[])"
)
_LOCK_BLOBS = "SELECT bid FROM {schema}.blobs WHERE bid = ANY(%s::bigint[]) ORDER BY digest FOR UPDATE"
_DROP_BLOBS = (
    "DELETE FROM {schema}.blobs b WHERE b.bid = ANY(%s::bigint[]) "
    "AND NOT EXISTS (SELECT 1 FROM {schema}.blob_refs r WHERE r.bid = b.bid)"
)


class _Packed:
    """What a commit becomes before it is sent: its halves sealed, what is too long for a row cut into blobs."""

    def __init__(self, new: Commit, *, prefix: bytes, with_roll: bool) -> None:
        self.blobs = {digest: packing.seal_blob(content) for digest, content in new.blobs.items()}
        self.refs = {ref for record in (new.delta, new.whole) if record is not None for ref in record.refs}
        self.delta = self.whole = self.roll = None
        if new.delta is not None and new.base_digest is not None and new.expect is not None:
            self.delta = self._fit(
                packing.seal_delta(new.delta, prefix=prefix, base=new.base_digest, state=new.state_digest)
            )
        if new.whole is not None:
            self.whole = self._fit(packing.seal_whole(new.whole, state=new.state_digest))
        if with_roll and new.roll is not None and new.roll_base is not None:
            # Its seal names the state it starts from, which the server looks up: it is put on there.
            body = packing.seal_roll(new.roll, base=b"", state=b"")[packing.SEAL_BYTES :]
            self.roll = body if len(body) <= MAX_ROW_BYTES else None

    def _fit(self, data: bytes) -> bytes:
        half, parts = cut(data)
        self.blobs |= {digest: packing.seal_blob(part) for digest, part in parts.items()}
        self.refs |= parts.keys()
        return half


def cut(data: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """What goes into the row itself; a record beyond the row limit is cut into blobs and the row names them."""
    if len(data) <= MAX_ROW_BYTES:
        return data, {}
    parts = [data[at : at + MAX_ROW_BYTES] for at in range(0, len(data), MAX_ROW_BYTES)]
    names = [sha256(part).digest() for part in parts]
    return SPILLED + b"".join(names), dict(zip(names, parts, strict=True))


def commit(wire: Wire, new: Commit) -> Row:
    """Write one checkpoint and move its branch, or raise and leave nothing."""
    packed = _Packed(new, prefix=new.prefix, with_roll=True)
    answer = _call_ordinary(wire, new, packed) if _is_ordinary(new, packed) else None
    if answer is None:
        answer = _call(wire, new, packed)
    if answer.startswith(HELD):
        until_us, token, claim = _held(answer)
        if not whereabouts.is_gone(claim.holder):
            raise running.held_by(new.session, new.branch, claim, until_us)
        answer = _call(wire, new, packed, gone=token)
    if answer in (LOOK, EPOCH):
        return _commit_looking(wire, new)
    return _row(wire, new, answer)


def _held(answer: bytes) -> tuple[int, int, Claim]:
    return number_in(answer), int.from_bytes(answer[9:17], "big"), claim_of(answer[17:])


def number_in(answer: bytes) -> int:
    """The number behind a verdict's letter."""
    return int.from_bytes(answer[1:9], "big")


def _commit_looking(wire: Wire, new: Commit) -> Row:
    """The longer way: for what must be read before it can be decided or packed, all in one transaction."""
    with wire.writing():
        sid, epoch = wire.find(LOCK_SESSION, pack(new.session)) or (None, new.epoch)
        gone = None
        if sid is not None and new.lease is None:
            standing = running.lock(wire, sid, new.branch)
            if standing is not None:
                running.refuse_live(new.session, standing)
                gone = standing.token
                refuse_in_doubt(new.session, new.branch, running.pending_on(wire, sid, standing))
        prefix = new.prefix
        if epoch != new.epoch and new.expect is not None and new.delta is not None and sid is not None:
            # A deletion packed this chain anew since it was read.
            prefix = prefix_behind(wire, sid, sequence_of(wire, sid, new.expect))
        packed = _Packed(new, prefix=prefix, with_roll=epoch == new.epoch)
        return _row(wire, new, _call(wire, replace(new, epoch=epoch), packed, gone=gone, looked=True))


def _is_ordinary(new: Commit, packed: _Packed) -> bool:
    return not (
        new.expect is None
        or new.lease is not None
        or packed.refs
        or packed.roll is not None
        or new.undo_to is not None
        or new.take_up is not None
    )


def _call_ordinary(wire: Wire, new: Commit, packed: _Packed) -> bytes | None:
    """The short way; None if it is not to be had, and nothing was changed."""
    totals = new.totals
    try:
        return wire.told_often(
            _ORDINARY,
            *(FORMAT_VERSION, wire.place.relaxed, pack(new.session), pack(new.branch), pack_id(new.id), _head(new)),
            *(None if new.expect is None else pack_id(new.expect), new.fields, new.state_digest, new.epoch),
            *(packed.delta, packed.whole, new.size_bytes, totals.at_us, pack_or_none(totals.agent)),
            *(pack(totals.status), pack_or_none(totals.reason), totals.last_step, totals.usage),
        )
    except psycopg.Error as error:
        if error.sqlstate != NOT_ORDINARY:
            raise
        return None


def _head(new: Commit) -> bytes:
    """What a checkpoint's digest begins with."""
    raw = pack(new.id)
    return b"checkpoint\0" + len(raw).to_bytes(4, "big") + raw


def _call(wire: Wire, new: Commit, packed: _Packed, *, gone: int | None = None, looked: bool = False) -> bytes:
    totals, lease = new.totals, new.lease
    refs = sorted(packed.refs)
    marks = list(new.kept_in_state) if lease is not None else []
    answer = wire.told(
        _COMMIT,
        *(FORMAT_VERSION, wire.place.relaxed, pack(new.session), pack(new.branch), pack_id(new.id), _head(new)),
        *(None if new.expect is None else pack_id(new.expect), new.fields, new.state_digest, new.epoch),
        *(packed.delta, packed.whole, packed.roll, None if new.roll_base is None else pack_id(new.roll_base)),
        *(new.size_bytes, refs, [packed.blobs.get(digest) for digest in refs]),
        *(totals.at_us, pack_or_none(totals.agent), pack(totals.status), pack_or_none(totals.reason)),
        *(totals.last_step, totals.usage),
        *(None if id_ is None else pack_id(id_) for id_ in (new.undo_to, new.take_up)),
        *((None, None, None, None) if lease is None else _lease(lease)),
        [mark_of(call_id) for call_id in marks],
        [seal_place(call_id, new.kept_in_state[call_id], lease.run) for call_id in marks if lease is not None],
        *(new.ends_run, gone, looked),
    )
    return answer or b""


def _lease(lease: Lease) -> tuple[int, int, int, bytes]:
    return lease.run, lease.token, lease.lease_us, claim_for(lease)


def _row(wire: Wire, new: Commit, answer: bytes) -> Row:
    """The row that was written, or that an earlier try has written; or the refusal in words."""
    if answer.startswith(OK):
        digest, parent_digest = answer[9:41], answer[41:] or None
        sequence = number_in(answer)
        return Row(new.id, sequence, new.expect, parent_digest, new.expect, new.state_digest, digest, new.fields)
    if answer == DONE:
        done = find_row(wire, new.session, new.id)
        if done is not None:
            return done
    raise _refusal(new, answer[:1], answer)


def _refusal(new: Commit, verdict: bytes, answer: bytes) -> BackstayError:
    where = f"session {new.session!r}: branch {new.branch!r}"
    if verdict == FENCED:
        return whereabouts.fenced(new.session, new.branch)
    if verdict == HELD:
        until_us, _, claim = _held(answer)
        return running.held_by(new.session, new.branch, claim, until_us)
    if verdict == TAKEN:
        return taken(new.branch)
    if verdict == LOST:
        return CorruptionError(f"{where} points at a checkpoint that is not there", hint="run verify")
    if verdict == MISSING:
        return no_checkpoint(unpack_id(answer[1:]))
    if verdict == NEWER:
        return newer(number_in(answer), "write")
    stands = f"stands at {unpack_id(answer[1:])[:12]}" if verdict == CONFLICT and answer[1:] else "does not exist"
    wanted = "expected not to exist" if new.expect is None else f"expected at {new.expect[:12]}"
    return ConflictError(f"{where} {stands}, {wanted}", hint="load the branch again, then decide")


# blobs, inside a transaction


def put_blobs(wire: Wire, sid: int, sequence: int, refs: Iterable[bytes], contents: Mapping[bytes, bytes]) -> None:
    """Keep the blobs that a checkpoint needs, each once per store, locked until the end."""
    wanted = sorted(refs)
    found: dict[bytes, int] = {}
    while missing := [digest for digest in wanted if digest not in found]:
        found |= dict(wire.rows(_LOCK_NAMED, missing))
        missing = [digest for digest in missing if digest not in found]
        for digest in missing:
            if digest not in contents:
                message = f"blob {digest.hex()[:12]} is needed and not here"
                raise CorruptionError(message, hint="run verify")
        # Two may find one missing. The insert settles it, and both lock what is there then.
        wire.each(_NEW_BLOB, [(digest, packing.seal_blob(contents[digest])) for digest in missing])
    if found:
        wire.do(_NEW_REFS, sid, sequence, list(found.values()))


def drop_blobs(wire: Wire, sid: int, sequences: Collection[int], *, keep: Collection[bytes] = ()) -> None:
    """Let go of the blobs that checkpoints needed; those that nobody else needs are removed."""
    bids = [bid for bid, digest in wire.rows(_REFS, sid, list(sequences)) if digest not in keep]
    if not bids:
        return
    wire.do(_DROP_REFS, sid, list(sequences), bids)
    # Locked first, then looked at: a commit that holds one of them has its reference in by the time it lets go.
    wire.rows(_LOCK_BLOBS, bids)
    wire.do(_DROP_BLOBS, bids)


# names


def lock_session(wire: Wire, session: str) -> tuple[int, int]:
    """The inner number and the epoch of a session that must be there, locked against every other writer."""
    found = wire.find(LOCK_SESSION, pack(session))
    if found is None:
        message = f"there is no session {session!r}"
        raise NotFoundError(message, hint="store.sessions() lists those there are")
    return int(found[0]), int(found[1])


def give_name(wire: Wire, session: str, id_: str, name: str, *, tag: bool, again: bool) -> None:
    """A new branch or tag at a checkpoint."""
    with wire.writing():
        sid, _ = lock_session(wire, session)
        sequence = sequence_of(wire, sid, id_)
        found = wire.find(_FIND_NAME, sid, pack(name))
        if found is not None:
            if again and found == (tag, pack_id(id_)):
                return
            raise taken(name)
        wire.do(NEW_NAME, sid, sequence, None, tag, pack(name))
        if not tag:
            wire.do(_COUNT_BRANCHES, 1, sid)


def taken(name: str) -> AlreadyExistsError:
    """The error for a name that is in use."""
    message = f"there is already a branch or tag named {name!r}"
    return AlreadyExistsError(message, hint="branches and tags share their names: choose another")


def delete_branch(wire: Wire, session: str, branch: str, *, again: bool) -> None:
    """Forget a branch."""
    with wire.writing():
        sid, _ = lock_session(wire, session)
        if not wire.do(_DELETE_NAME, sid, pack(branch), False):
            if again:
                return
            message = f"there is no branch {branch!r}"
            raise NotFoundError(message, hint="session.branches() lists those there are")
        wire.do(_COUNT_BRANCHES, -1, sid)
        running.forget_branch(wire, session, sid, branch)


def untag(wire: Wire, session: str, name: str, *, again: bool) -> None:
    """Forget a tag."""
    with wire.writing():
        sid, _ = lock_session(wire, session)
        if not wire.do(_DELETE_NAME, sid, pack(name), True) and not again:
            message = f"there is no tag {name!r}"
            raise NotFoundError(message, hint="session.tags() lists those there are")
