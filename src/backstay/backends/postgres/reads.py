"""Reading: each function is given a wire. Those of one statement see one moment; the others say what they need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from backstay import packing, whereabouts
from backstay.backend import BranchRow, Lease, Names, Row, SessionRow, Sizes, TagRow, Totals
from backstay.backends.postgres.texts import ids_from, pack, pack_id, pack_or_none, unpack, unpack_id, unpack_or_none
from backstay.backends.postgres.wire import Wire
from backstay.errors import CorruptionError, NotFoundError
from backstay.whereabouts import Holder

ROW = (
    "c.link, c.id, c.sequence, c.lost_parent_id, c.lost_parent_digest, p.id, p.digest, "
    "c.state_digest, c.digest, c.fields"
)
# In a query of its own (OFFSET 0), so that it is looked for by its whole key; see `functions`.
PARENT = (
    "LEFT JOIN LATERAL (SELECT k.id, k.digest, k.state_digest FROM {schema}.checkpoints k "
    "WHERE k.sid = c.sid AND k.sequence = c.link OFFSET 0) p ON true"
)
_BY_ID = (
    f"SELECT {ROW} FROM {{schema}}.sessions s JOIN {{schema}}.checkpoints c ON c.sid + 0 = s.sid {PARENT} "
    "WHERE s.id = %s AND c.id = %s"
)
_SID = "SELECT sid FROM {schema}.sessions WHERE id = %s"
_SEQUENCE = "SELECT sequence FROM {schema}.checkpoints WHERE sid + 0 = %s AND id = %s"
# A lease that has run out, or was given back, is an empty one; of the others it is asked whether the holder lives.
_CLAIMS = (
    "ARRAY(SELECT CASE WHEN r.until_us > {schema}.now_us() THEN r.holder ELSE ''::bytea END "
    "FROM {schema}.runs r WHERE r.sid = s.sid AND r.entered)"
)
SESSION = (
    "s.id, s.agent, s.status, s.reason, s.last_step, s.usage, s.updated_us, s.branches, s.checkpoints, s.created_us, "
    f"s.touched, {_CLAIMS}"
)
SESSION_COLUMNS = 12
_SESSION_BY_ID = f"SELECT {SESSION} FROM {{schema}}.sessions s WHERE s.id = %s"
_SESSIONS = (
    f"SELECT {SESSION} FROM {{schema}}.sessions s WHERE s.era <= %s >> 8 AND s.touched < %s "
    "AND (%s::bytea IS NULL OR s.status = %s) AND (%s::bytea IS NULL OR s.agent = %s) "
    "ORDER BY s.era DESC, s.touched DESC LIMIT %s"
)
_NAMES = (
    "SELECT n.name, n.tag, c.id, u.id FROM {schema}.sessions s JOIN {schema}.names n ON n.sid = s.sid "
    "LEFT JOIN LATERAL (SELECT k.id FROM {schema}.checkpoints k WHERE k.sid = n.sid AND k.sequence = n.sequence "
    "OFFSET 0) c ON true "
    "LEFT JOIN LATERAL (SELECT k.id FROM {schema}.checkpoints k WHERE k.sid = n.sid AND k.sequence = n.undo "
    "OFFSET 0) u ON true WHERE s.id = %s"
)
_ALL_NAMES = f"{_NAMES} ORDER BY n.name"
_ONE_NAME = f"{_NAMES} AND n.name = %s"
_LINE = "SELECT * FROM {schema}.line_1(%s, %s, %s)"
_CHILDREN = "SELECT id FROM {schema}.checkpoints WHERE sid = %s AND sequence > %s AND link = %s ORDER BY sequence"
_IDS = (
    "SELECT c.id FROM {schema}.sessions s JOIN {schema}.checkpoints c ON c.sid = s.sid WHERE s.id = %s "
    "ORDER BY c.sequence"
)
_RANGE = (
    "SELECT c.id FROM {schema}.sessions s JOIN {schema}.checkpoints c ON c.sid + 0 = s.sid "
    "WHERE s.id = %s AND c.id >= %s AND c.id < %s AND (octet_length(c.id) = 12) = %s ORDER BY c.id LIMIT %s"
)
_BLOBS = "SELECT digest, data FROM {schema}.blobs WHERE digest = ANY(%s::bytea[])"
_SIZES = (
    "SELECT count(*), coalesce(sum(checkpoints), 0)::bigint, coalesce(sum(logical), 0)::bigint, "
    "(SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r') FROM {schema}.sessions"
)

_BLOBS_AT_ONCE = 64
_NEWEST = 2**63 - 1


class Claim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Who holds a lease; `entry` tells one entering of a branch from every other."""

    holder: Holder
    entry: bytes


encode_claim = msgspec.msgpack.Encoder().encode
_decode_claim = msgspec.msgpack.Decoder(Claim).decode


def claim_of(data: bytes) -> Claim:
    """The claim in these bytes."""
    try:
        return _decode_claim(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = "the lease of a run cannot be read"
        raise CorruptionError(message, hint="run verify to see what is intact") from error


def claim_for(lease: Lease) -> bytes:
    """What a run writes when it holds on to its lease; its number and token tell it from every other entering."""
    return encode_claim(Claim(whereabouts.here(), b"%d %d" % (lease.run, lease.token)))


def is_held(data: bytes) -> bool:
    """True if a lease that has not run out is held by somebody who is not known to be dead."""
    return bool(data) and not whereabouts.is_gone(claim_of(data).holder)


def find_sid(wire: Wire, session: str) -> int | None:
    """The inner number of a session."""
    row = wire.find(_SID, pack(session))
    return None if row is None else int(row[0])


def no_session(session: str) -> NotFoundError:
    """The error for a session that must be there."""
    message = f"there is no session {session!r}"
    return NotFoundError(message, hint="store.sessions() lists those there are")


def no_checkpoint(id_: str) -> NotFoundError:
    """The error for a checkpoint that must be there."""
    return NotFoundError(f"there is no checkpoint {id_!r}", hint="session.log() lists those there are")


def sid_of(wire: Wire, session: str) -> int:
    """The inner number of a session that must be there."""
    sid = find_sid(wire, session)
    if sid is None:
        raise no_session(session)
    return sid


def sequence_of(wire: Wire, sid: int, id_: str) -> int:
    """The sequence of a checkpoint that must be there."""
    row = wire.find(_SEQUENCE, sid, pack_id(id_))
    if row is None:
        raise no_checkpoint(id_)
    return int(row[0])


def row_of(found: Sequence[Any]) -> Row:
    """A checkpoint's row, from its columns and those of its link."""
    linked, id_, sequence, lost_id, lost_digest, link_id, link_digest, state_digest, digest, fields = found
    if linked is not None and link_id is None:
        message = f"the checkpoint before {unpack_id(id_)} is missing"
        raise CorruptionError(message, hint="run verify to see what is intact")
    link = None if link_id is None else unpack_id(link_id)
    if lost_id is not None:
        return Row(unpack_id(id_), sequence, unpack_id(lost_id), lost_digest, link, state_digest, digest, fields)
    return Row(unpack_id(id_), sequence, link, link_digest, link, state_digest, digest, fields)


def session_line(found: Sequence[Any]) -> SessionRow:
    """A session's line, from its columns and the claims on its runs."""
    id_, agent, status, reason, last_step, usage, updated_us, branches, checkpoints, created_us, touched, claims = found
    totals = Totals(unpack_or_none(agent), unpack(status), unpack_or_none(reason), last_step, usage, updated_us)
    crashed = any([not is_held(claim) for claim in claims])
    return SessionRow(unpack(id_), totals, branches, checkpoints, created_us, touched, crashed)


def find_session(wire: Wire, session: str) -> SessionRow | None:
    """A session's line, or None."""
    found = wire.find(_SESSION_BY_ID, pack(session))
    return None if found is None else session_line(found)


def sessions(wire: Wire, before: int | None, limit: int, status: str | None, agent: str | None) -> list[SessionRow]:
    """A page of sessions, the one touched last first."""
    wanted = pack_or_none(status), pack_or_none(agent)
    newest = _NEWEST if before is None else before
    found = wire.rows(_SESSIONS, newest, newest, wanted[0], wanted[0], wanted[1], wanted[1], limit)
    return [session_line(row) for row in found]


def names(wire: Wire, session: str) -> Names:
    """Branches and tags of a session."""
    found = wire.rows(_ALL_NAMES, pack(session))
    branches = [_branch(session, *row) for row in found if not row[1]]
    tags = [TagRow(unpack(row[0]), _branch(session, *row).head_id) for row in found if row[1]]
    return Names(tuple(branches), tuple(tags))


def _branch(session: str, name: bytes, _tag: bool, head: bytes | None, undo: bytes | None) -> BranchRow:  # noqa: FBT001
    if head is None:  # a name that points nowhere is damage, not absence
        message = f"session {session!r}: {unpack(name)!r} points at a checkpoint that is not there"
        raise CorruptionError(message, hint="run verify")
    return BranchRow(unpack(name), unpack_id(head), None if undo is None else unpack_id(undo))


def find_branch(wire: Wire, session: str, branch: str) -> BranchRow | None:
    """One branch, or None."""
    found = wire.find(_ONE_NAME, pack(session), pack(branch))
    return None if found is None or found[1] else _branch(session, *found)


def find_row(wire: Wire, session: str, id_: str) -> Row | None:
    """One checkpoint, or None."""
    found = wire.find(_BY_ID, pack(session), pack_id(id_))
    return None if found is None else row_of(found)


def find_ids(wire: Wire, session: str, prefix: str, limit: int) -> list[str]:
    """Ids that begin like this."""
    if not prefix:
        return []
    found = [row[0] for range_ in ids_from(prefix) for row in wire.rows(_RANGE, pack(session), *range_, limit)]
    return [unpack_id(id_) for id_ in found][:limit]


def line(wire: Wire, session: str, id_: str, limit: int) -> list[Row]:
    """A checkpoint and its ancestors, newest first."""
    found = wire.rows(_LINE, pack(session), pack_id(id_), limit)
    if not found:
        sid_of(wire, session)
        raise no_checkpoint(id_)
    return [row_of(row) for row in found]


def children(wire: Wire, session: str, id_: str) -> list[str]:
    """The checkpoints linked to this one; a child comes after its parent."""
    sid = sid_of(wire, session)
    sequence = sequence_of(wire, sid, id_)
    return [unpack_id(row[0]) for row in wire.rows(_CHILDREN, sid, sequence, sequence)]


def ids(wire: Wire, session: str) -> list[str]:
    """All checkpoints of a session, oldest first."""
    return [unpack_id(row[0]) for row in wire.rows(_IDS, pack(session))]


def blobs(wire: Wire, digests: Collection[bytes], *, salvage: bool) -> dict[bytes, bytes]:
    """The contents of blobs, each verified."""
    wanted, found = list(dict.fromkeys(digests)), {}
    for at in range(0, len(wanted), _BLOBS_AT_ONCE):
        kept = dict(wire.rows(_BLOBS, wanted[at : at + _BLOBS_AT_ONCE]))
        for digest in wanted[at : at + _BLOBS_AT_ONCE]:
            try:
                if digest not in kept:
                    message = f"blob {digest.hex()[:12]} is missing"
                    raise CorruptionError(message, hint="run verify to see which checkpoints need it")
                found[digest] = packing.open_blob(kept[digest], digest)
            except CorruptionError:
                if not salvage:
                    raise
    return found


def sizes(wire: Wire) -> Sizes:
    """Running totals, and what the tables with their indexes take on the server's disk."""
    return Sizes(*wire.one(_SIZES, wire.place.schema))
