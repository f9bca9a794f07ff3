"""Reading: each function is given a connection inside a read transaction, so it sees one moment of the store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import apsw

from holdfast import packing
from holdfast.backend import GROUP_DELTAS, BranchRow, Chain, Names, Row, SessionRow, Sizes, TagRow, Totals, next_prefix
from holdfast.delta import Record
from holdfast.errors import CorruptionError, NotFoundError

_ROW = "c.link, c.id, c.sequence, c.lost_parent_id, c.lost_parent_digest, p.id, p.digest, c.state_digest, c.digest, c.fields"
_FROM = "FROM checkpoints c LEFT JOIN checkpoints p ON p.cid = c.link"
_BY_ID = f"SELECT {_ROW} {_FROM} WHERE c.sid = ? AND c.id = ?"
_SID = "SELECT sid FROM sessions WHERE id = ?"
_CID = "SELECT cid FROM checkpoints WHERE sid = ? AND id = ?"
_SESSION = (
    "SELECT id, agent, status, reason, last_step, usage, updated_us, branches, checkpoints, created_us, touched "
    "FROM sessions"
)
_SESSION_BY_ID = f"{_SESSION} WHERE id = ?"
_SESSIONS = (
    f"{_SESSION} WHERE touched < ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR agent = ?3) "
    "ORDER BY touched DESC LIMIT ?4"
)
_BRANCHES = (
    "SELECT b.name, h.id, u.id FROM branches b JOIN checkpoints h ON h.cid = b.head "
    "LEFT JOIN checkpoints u ON u.cid = b.undo WHERE b.sid = ?1 AND (?2 IS NULL OR b.name = ?2) ORDER BY b.name"
)
_TAGS = "SELECT t.name, c.id FROM tags t JOIN checkpoints c ON c.cid = t.cid WHERE t.sid = ? ORDER BY t.name"
_COUNT_BRANCHES = "SELECT count(*) FROM branches WHERE sid = ?"
_LINE = f"""
WITH RECURSIVE up(cid, link, depth) AS (
  SELECT cid, link, 1 FROM checkpoints WHERE sid = ?1 AND id = ?2
  UNION ALL SELECT c.cid, c.link, up.depth + 1 FROM up JOIN checkpoints c ON c.cid = up.link WHERE up.depth < ?3)
SELECT {_ROW} FROM up JOIN checkpoints c ON c.cid = up.cid LEFT JOIN checkpoints p ON p.cid = c.link ORDER BY up.depth
"""
_CHAIN = """
WITH RECURSIVE up(cid, link, place, state_digest, delta, complete, size) AS (
  SELECT cid, link, place, state_digest, delta, whole IS NOT NULL, size FROM checkpoints WHERE cid = ?1
  UNION ALL
  SELECT c.cid, c.link, c.place, c.state_digest, c.delta, c.whole IS NOT NULL, c.size
  FROM up JOIN checkpoints c ON c.cid = up.link WHERE NOT up.complete)
SELECT cid, link, place, state_digest, delta, complete, size FROM up
"""
_WHOLE = "SELECT whole FROM checkpoints WHERE cid = ?"
_SPILL = "SELECT data FROM spill WHERE cid = ? AND half = ? ORDER BY number"
_CHILDREN = "SELECT id FROM checkpoints WHERE sid = ? AND link = ? ORDER BY cid"
_IDS = "SELECT id FROM checkpoints WHERE sid = ? ORDER BY cid"
_EPOCH = "SELECT epoch FROM sessions WHERE sid = ?"
_BLOB = "SELECT data FROM blobs WHERE digest = ?"
_RANGE = "SELECT id FROM checkpoints WHERE sid = ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4"
_SIZES = "SELECT count(*), coalesce(sum(checkpoints), 0), coalesce(sum(logical), 0) FROM sessions"

DELTA, WHOLE = 0, 1  # the halves of a checkpoint that may spill over
SPILLED = b""  # stands in a row whose half lies in `spill`

_NATIVE_CHARS = 24


def pack_id(id_: str) -> str | bytes:
    """An id as it is kept: those Holdfast makes (24 hexadecimal digits) as 12 bytes, others as their text."""
    if len(id_) == _NATIVE_CHARS and id_.isascii() and all(char in "0123456789abcdef" for char in id_):
        return bytes.fromhex(id_)
    return id_


def unpack_id(kept: str | bytes) -> str:
    """The id again."""
    return kept if isinstance(kept, str) else kept.hex()


def find_sid(connection: apsw.Connection, session: str) -> int | None:
    """The inner number of a session."""
    row = connection.execute(_SID, (session,)).fetchone()
    return None if row is None else int(row[0])


def sid_of(connection: apsw.Connection, session: str) -> int:
    """The inner number of a session that must be there."""
    sid = find_sid(connection, session)
    if sid is None:
        message = f"there is no session {session!r}"
        raise NotFoundError(message, hint="store.sessions() lists those there are")
    return sid


def cid_of(connection: apsw.Connection, sid: int, id_: str) -> int:
    """The inner number of a checkpoint that must be there."""
    row = connection.execute(_CID, (sid, pack_id(id_))).fetchone()
    if row is None:
        message = f"there is no checkpoint {id_!r}"
        raise NotFoundError(message, hint="session.log() lists those there are")
    return int(row[0])


def _row(found: Sequence[Any]) -> Row:
    linked, id_, sequence, lost_id, lost_digest, link_id, link_digest, state_digest, digest, fields = found
    if linked is not None and link_id is None:
        message = f"the checkpoint before {unpack_id(id_)} is missing"
        raise CorruptionError(message, hint="run verify to see what is intact")
    link = None if link_id is None else unpack_id(link_id)
    if lost_id is not None:
        return Row(unpack_id(id_), sequence, unpack_id(lost_id), lost_digest, link, state_digest, digest, fields)
    return Row(unpack_id(id_), sequence, link, link_digest, link, state_digest, digest, fields)


def _session(found: Sequence[Any]) -> SessionRow:
    id_, agent, status, reason, last_step, usage, updated_us, branches, checkpoints, created_us, touched = found
    totals = Totals(agent, status, reason, last_step, usage, updated_us)
    return SessionRow(id_, totals, branches, checkpoints, created_us, touched)


def find_session(connection: apsw.Connection, session: str) -> SessionRow | None:
    found = connection.execute(_SESSION_BY_ID, (session,)).fetchone()
    return None if found is None else _session(found)


def sessions(
    connection: apsw.Connection, before: int | None, limit: int, status: str | None, agent: str | None
) -> list[SessionRow]:
    newest = 2**63 - 1 if before is None else before
    return [_session(found) for found in connection.execute(_SESSIONS, (newest, status, agent, limit))]


def names(connection: apsw.Connection, session: str) -> Names:
    sid = find_sid(connection, session)
    if sid is None:
        return Names((), ())
    branches = _branches(connection, sid, None)
    # A head that points nowhere drops out of the join: that is damage, not absence.
    if len(branches) != connection.execute(_COUNT_BRANCHES, (sid,)).fetchone()[0]:
        message = f"session {session!r}: a branch points at a checkpoint that is not there"
        raise CorruptionError(message, hint="run verify")
    tags = [TagRow(name, unpack_id(id_)) for name, id_ in connection.execute(_TAGS, (sid,))]
    return Names(tuple(branches), tuple(tags))


def _branches(connection: apsw.Connection, sid: int, name: str | None) -> list[BranchRow]:
    return [
        BranchRow(found, unpack_id(head), None if undo is None else unpack_id(undo))
        for found, head, undo in connection.execute(_BRANCHES, (sid, name))
    ]


def find_branch(connection: apsw.Connection, session: str, branch: str) -> BranchRow | None:
    sid = find_sid(connection, session)
    found = _branches(connection, sid, branch) if sid is not None else []
    return found[0] if found else None


def find_row(connection: apsw.Connection, session: str, id_: str) -> Row | None:
    sid = find_sid(connection, session)
    found = connection.execute(_BY_ID, (sid, pack_id(id_))).fetchone() if sid is not None else None
    return None if found is None else _row(found)


def find_ids(connection: apsw.Connection, session: str, prefix: str, limit: int) -> list[str]:
    sid = find_sid(connection, session)
    if sid is None or not prefix:
        return []
    ranges: list[tuple[str | bytes, str | bytes]] = [(prefix, prefix + "\U0010ffff")]
    if prefix.isascii() and all(char in "0123456789abcdef" for char in prefix) and len(prefix) <= _NATIVE_CHARS:
        low = bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "0"))
        high = bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "f")) + b"\0"
        ranges.append((low, high))
    found = [id_ for low, high in ranges for (id_,) in connection.execute(_RANGE, (sid, low, high, limit))]
    return [unpack_id(id_) for id_ in found][:limit]


def line(connection: apsw.Connection, session: str, id_: str, limit: int) -> list[Row]:
    sid = sid_of(connection, session)
    cid_of(connection, sid, id_)
    return [_row(found) for found in connection.execute(_LINE, (sid, pack_id(id_), limit))]


def children(connection: apsw.Connection, session: str, id_: str) -> list[str]:
    sid = sid_of(connection, session)
    return [unpack_id(found) for (found,) in connection.execute(_CHILDREN, (sid, cid_of(connection, sid, id_)))]


def ids(connection: apsw.Connection, session: str) -> list[str]:
    sid = find_sid(connection, session)
    return [] if sid is None else [unpack_id(found) for (found,) in connection.execute(_IDS, (sid,))]


def blobs(connection: apsw.Connection, digests: Collection[bytes], *, salvage: bool) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for digest in digests:
        try:
            row = connection.execute(_BLOB, (digest,)).fetchone()
            if row is None:
                message = f"blob {digest.hex()[:12]} is missing"
                raise CorruptionError(message, hint="run verify to see which checkpoints need it")
            found[digest] = packing.open_blob(row[0], digest)
        except (CorruptionError, apsw.Error):
            if not salvage:
                raise
    return found


def chain(connection: apsw.Connection, session: str, id_: str, *, salvage: bool = False) -> Chain:
    """The records of one state, read from its nearest whole copy; from an older one if that is damaged."""
    sid = sid_of(connection, session)
    cid = cid_of(connection, sid, id_)
    row = find_row(connection, session, id_)
    if row is None:  # pragma: no cover - cid_of has just found it
        raise NotFoundError(id_)
    links = list(connection.execute(_CHAIN, (cid,)))[::-1]
    records, place, prefix = _open_chain(connection, links, salvage=salvage)
    (epoch,) = connection.execute(_EPOCH, (sid,)).fetchone()
    return Chain(row, tuple(records), links[0][6], place, prefix, epoch)


Link = Sequence[Any]  # cid, link, place, state_digest, delta, complete, size


def _open_chain(connection: apsw.Connection, links: list[Link], *, salvage: bool) -> tuple[list[Record], int, bytes]:
    cid, parent, place, state_digest, _, complete, _ = links[0]
    if not complete:
        message = "the whole copy at the beginning of a chain is missing"
        raise CorruptionError(message, hint="run verify to see what is intact")
    lost = False
    try:
        records = [packing.open_whole(half(connection, cid, WHOLE), state=state_digest)]
        prefix = b""
        place = 0
    except (CorruptionError, apsw.Error):
        # The same state can still be had the long way round, if the chain before it is there.
        if parent is not None and links[0][4] is not None:
            older = list(connection.execute(_CHAIN, (parent,)))[::-1]
            records, place, prefix = _open_chain(connection, [*older, links[0]], salvage=salvage)
            prefix, place = b"", 0
        elif salvage:
            shape = packing.salvage(half(connection, cid, WHOLE))
            records, prefix, place = ([shape] if shape else [Record(b"\x90", b"")]), b"", 0
        else:
            raise
    for before, after in zip(links, links[1:], strict=False):
        place = after[2]
        if (place - 1) % GROUP_DELTAS == 0:
            prefix, lost = b"", False
        record = _open_delta(connection, before, after, prefix, salvage=salvage, lost=lost)
        if record is None:
            lost = True
            continue
        lost = lost or record.body == packing.LOST
        records.append(record)
        prefix = next_prefix(place, prefix, record.body)
        if after[5]:
            place, prefix = 0, b""
    return records, place, prefix


def _open_delta(
    connection: apsw.Connection, before: Link, after: Link, prefix: bytes, *, salvage: bool, lost: bool
) -> Record | None:
    data = after[4]
    if data == SPILLED:
        data = half(connection, after[0], DELTA)
    if data is None:
        if salvage:
            return None
        message = "a delta is missing from a chain"
        raise CorruptionError(message, hint="run verify to see what is intact")
    try:
        if lost and packing.needs_prefix(data):
            return packing.salvage(data)
        return packing.open_delta(data, prefix=prefix, base=before[3], state=after[3])
    except CorruptionError:
        if not salvage:
            raise
        return packing.salvage(data)


def half(connection: apsw.Connection, cid: int, which: int) -> bytes:
    """The sealed delta or whole copy of a checkpoint, joined if it was cut."""
    column = "whole" if which == WHOLE else "delta"
    (data,) = connection.execute(f"SELECT {column} FROM checkpoints WHERE cid = ?", (cid,)).fetchone()
    if data == SPILLED:
        data = b"".join([part for (part,) in connection.execute(_SPILL, (cid, which))])
    if not data:
        message = "a stored record is missing"
        raise CorruptionError(message, hint="run verify to see what is intact")
    return bytes(data)


def sizes(connection: apsw.Connection, stored_bytes: int) -> Sizes:
    count, checkpoints, logical = connection.execute(_SIZES).fetchone()
    return Sizes(count, checkpoints, logical, stored_bytes)
