"""Reading: each function is given a connection inside a read transaction, so it sees one moment of the store."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import apsw

from backstay import packing
from backstay.backend import BranchRow, Chain, Names, Row, TagRow
from backstay.chains import Link, Opened, detour, join, missing, open_links
from backstay.errors import CorruptionError, NotFoundError

_ROW = (
    "c.link, c.id, c.sequence, c.lost_parent_id, c.lost_parent_digest, p.id, p.digest, "
    "c.state_digest, c.digest, c.fields"
)
_FROM = "FROM checkpoints c LEFT JOIN checkpoints p ON p.cid = c.link"
_BY_ID = f"SELECT {_ROW} {_FROM} WHERE c.sid = ? AND c.id = ?"
_SID = "SELECT sid FROM sessions WHERE id = ?"
_CID = "SELECT cid FROM checkpoints WHERE sid = ? AND id = ?"
_NAMES = (
    "SELECT n.name, n.tag, c.id, u.id FROM names n LEFT JOIN checkpoints c ON c.cid = n.cid "
    "LEFT JOIN checkpoints u ON u.cid = n.undo WHERE n.sid = ?"
)
_ALL_NAMES = f"{_NAMES} ORDER BY n.name"
_ONE_NAME = f"{_NAMES} AND n.name = ?"
_LINE = f"""
WITH RECURSIVE up(cid, link, depth) AS (
  SELECT cid, link, 1 FROM checkpoints WHERE sid = ?1 AND id = ?2
  UNION ALL SELECT c.cid, c.link, up.depth + 1 FROM up JOIN checkpoints c ON c.cid = up.link WHERE up.depth < ?3)
SELECT {_ROW} FROM up JOIN checkpoints c ON c.cid = up.cid LEFT JOIN checkpoints p ON p.cid = c.link ORDER BY up.depth
"""
_LINK = "c.cid, c.link, c.place, c.state_digest, c.size, c.whole IS NOT NULL"
_CHAIN = f"""
WITH RECURSIVE up(cid, next) AS (
  SELECT cid, CASE WHEN whole IS NULL THEN coalesce(base, link) END FROM checkpoints WHERE cid = ?1
  UNION ALL
  SELECT c.cid, CASE WHEN c.whole IS NULL THEN coalesce(c.base, c.link) END FROM up
  JOIN checkpoints c ON c.cid = up.next)
SELECT {_LINK}, CASE WHEN c.base IS NULL THEN c.delta END, c.roll FROM up CROSS JOIN checkpoints c ON c.cid = up.cid
"""
_STEP = f"SELECT {_LINK}, c.delta, c.roll FROM checkpoints c WHERE c.cid = ?"
_ID = "SELECT id FROM checkpoints WHERE cid = ?"
_DELTA = "SELECT delta FROM checkpoints WHERE cid = ?"
_WHOLE = "SELECT whole FROM checkpoints WHERE cid = ?"
_CHILDREN = "SELECT id FROM checkpoints WHERE sid = ? AND link = ? ORDER BY cid"
_IDS = "SELECT id FROM checkpoints WHERE sid = ? ORDER BY cid"
_COUNTS = (
    "SELECT checkpoints, (SELECT count(*) FROM checkpoints INDEXED BY checkpoints_id WHERE sid = ?1) "
    "FROM sessions WHERE sid = ?1"
)
_EPOCH = "SELECT epoch FROM sessions WHERE sid = ?"
_BLOB = "SELECT data FROM blobs WHERE digest = ?"
_RANGE = "SELECT id FROM checkpoints WHERE sid = ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4"

DELTA, WHOLE = "delta", "whole"  # the halves of a checkpoint

_NATIVE_CHARS = 24


def pack_id(id_: str) -> str | bytes:
    """An id as it is kept: those Backstay makes (24 hexadecimal digits) as 12 bytes, others as their text."""
    if len(id_) == _NATIVE_CHARS:
        try:
            packed = bytes.fromhex(id_)
        except ValueError:
            return id_
        if packed.hex() == id_:  # fromhex also takes capitals and spaces
            return packed
    return id_


def unpack_id(kept: str | bytes) -> str:
    """The id again."""
    if isinstance(kept, str):
        return kept
    if not isinstance(kept, bytes):  # a row of another table, where pages were exchanged
        raise missing("the id of a checkpoint")
    return kept.hex()


def warm_up(connection: apsw.Connection) -> None:
    """Compile what every load needs, so that the first one after opening a store is as fast as the next."""
    for sql, bindings in (
        (_SID, ("",)),
        (_ONE_NAME, (0, "")),
        (_BY_ID, (0, "")),
        (_CID, (0, "")),
        (_CHAIN, (0,)),
        (_EPOCH, (0,)),
        (_ID, (0,)),
        (_BLOB, (b"",)),
        (_WHOLE, (0,)),
    ):
        with contextlib.suppress(apsw.Error):  # a damaged page is the affair of those who need it
            connection.execute(sql, bindings).fetchall()


def one(connection: apsw.Connection, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
    """The single row that a statement must give; its absence is damage."""
    found = connection.execute(sql, bindings).fetchone()
    if found is None:
        raise missing("a row that must be there")
    return found


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
        _refuse_lost_index(connection, sid)
        raise _no_checkpoint(id_)
    return int(row[0])


def _no_checkpoint(id_: str) -> NotFoundError:
    return NotFoundError(f"there is no checkpoint {id_!r}", hint="session.log() lists those there are")


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


def names(connection: apsw.Connection, session: str) -> Names:
    """Branches and tags of a session."""
    sid = find_sid(connection, session)
    found = [] if sid is None else list(connection.execute(_ALL_NAMES, (sid,)))
    branches = [_branch(session, *row) for row in found if not row[1]]
    tags = [TagRow(row[0], _branch(session, *row).head_id) for row in found if row[1]]
    return Names(tuple(branches), tuple(tags))


def _branch(session: str, name: Any, _tag: Any, head: Any, undo: Any) -> BranchRow:
    if head is None:  # a name that points nowhere is damage, not absence
        message = f"session {session!r}: {name!r} points at a checkpoint that is not there"
        raise CorruptionError(message, hint="run verify")
    return BranchRow(name, unpack_id(head), None if undo is None else unpack_id(undo))


def find_branch(connection: apsw.Connection, session: str, branch: str) -> BranchRow | None:
    """One branch, or None."""
    sid = find_sid(connection, session)
    found = None if sid is None else connection.execute(_ONE_NAME, (sid, branch)).fetchone()
    return None if found is None or found[1] else _branch(session, *found)


def find_row(connection: apsw.Connection, session: str, id_: str) -> Row | None:
    """One checkpoint, or None."""
    sid = find_sid(connection, session)
    found = connection.execute(_BY_ID, (sid, pack_id(id_))).fetchone() if sid is not None else None
    if found is None and sid is not None:
        _refuse_lost_index(connection, sid)
    return None if found is None else row_of(found)


def _refuse_lost_index(connection: apsw.Connection, sid: int) -> None:
    """CorruptionError if the index knows fewer checkpoints than there are: one that it does not find may be there."""
    counted, known = one(connection, _COUNTS, (sid,))
    if known < counted:
        raise missing("the index of the checkpoints")


def find_ids(connection: apsw.Connection, session: str, prefix: str, limit: int) -> list[str]:
    """Ids that begin like this."""
    sid = find_sid(connection, session)
    if sid is None or not prefix:
        return []
    ranges: list[tuple[str | bytes, str | bytes]] = [(prefix, _behind(prefix))]
    if prefix.isascii() and all(char in "0123456789abcdef" for char in prefix) and len(prefix) <= _NATIVE_CHARS:
        low = bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "0"))
        high = bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "f")) + b"\0"
        ranges.append((low, high))
    found = [id_ for low, high in ranges for (id_,) in connection.execute(_RANGE, (sid, low, high, limit))]
    return [unpack_id(id_) for id_ in found][:limit]


def _behind(prefix: str) -> str | bytes:
    """The least key beyond all texts with this prefix; beyond all texts there are are the blobs."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return b""
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)  # noqa: PLR2004 - between lie the surrogates


def line(connection: apsw.Connection, session: str, id_: str, limit: int) -> list[Row]:
    """A checkpoint and its ancestors, newest first."""
    sid = sid_of(connection, session)
    cid_of(connection, sid, id_)
    return [row_of(found) for found in connection.execute(_LINE, (sid, pack_id(id_), limit))]


def children(connection: apsw.Connection, session: str, id_: str) -> list[str]:
    """The checkpoints linked to this one."""
    sid = sid_of(connection, session)
    return [unpack_id(found) for (found,) in connection.execute(_CHILDREN, (sid, cid_of(connection, sid, id_)))]


def ids(connection: apsw.Connection, session: str) -> list[str]:
    """All checkpoints of a session, oldest first."""
    sid = find_sid(connection, session)
    return [] if sid is None else [unpack_id(found) for (found,) in connection.execute(_IDS, (sid,))]


def blobs(connection: apsw.Connection, digests: Collection[bytes], *, salvage: bool) -> dict[bytes, bytes]:
    """The contents of blobs, each verified."""
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
    """The records of one state, by the shortest way; where that is damaged, by any other that is left."""
    sid = sid_of(connection, session)
    found = connection.execute(_BY_ID, (sid, pack_id(id_))).fetchone()
    if found is None:
        raise _no_checkpoint(id_)
    row = row_of(found)
    cid = cid_of(connection, sid, id_)
    opened = open_at(connection, cid, salvage=salvage)
    (epoch,) = one(connection, _EPOCH, (sid,))
    (base,) = (None,) if opened.base is None else one(connection, _ID, (opened.base.number,))
    return Chain(
        row=row,
        records=tuple(opened.records),
        singles=opened.singles,
        roll_base=None if base is None else unpack_id(base),
        whole_bytes=opened.whole_bytes,
        place=opened.place,
        prefix=opened.prefix,
        epoch=epoch,
    )


def open_at(connection: apsw.Connection, cid: int, *, salvage: bool = False) -> Opened:
    """The chain that ends at a checkpoint, opened."""
    rows = Rows(connection)
    try:
        return open_links(rows, [Link(*link) for link in connection.execute(_CHAIN, (cid,))][::-1])
    except rows.faults:
        return detour(rows, cid, salvage=salvage)


class Rows:
    """The rows as chains are read from them."""

    faults = (CorruptionError, apsw.Error)

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def step(self, number: int) -> Link | None:
        found = self._connection.execute(_STEP, (number,)).fetchone()
        return None if found is None else Link(*found)

    def whole(self, link: Link) -> bytes:
        return half(self._connection, link.number, WHOLE)

    def blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return blobs(self._connection, digests, salvage=False)

    def delta(self, number: int) -> bytes:
        return half(self._connection, number, DELTA)

    def prefix_behind(self, number: int) -> bytes:
        return open_at(self._connection, number).prefix


def half(connection: apsw.Connection, cid: int, which: str) -> bytes:
    """The sealed delta or whole copy of a checkpoint, joined if it was cut."""
    sql = _WHOLE if which == WHOLE else _DELTA
    (data,) = one(connection, sql, (cid,))
    if not data:
        raise missing("a stored record")
    return join(Rows(connection), data)
