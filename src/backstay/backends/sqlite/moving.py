"""Sessions that come and go as a whole: a history read page by page, and one written in a single transaction."""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import apsw

from backstay import packing
from backstay.backend import GROUP_DELTAS, Kept, Moved, next_prefix
from backstay.backends.sqlite import running
from backstay.backends.sqlite.reads import Rows, find_sid, one, open_at, pack_id, row_of, sid_of
from backstay.backends.sqlite.writes import fit, put_blobs
from backstay.chains import join
from backstay.errors import AlreadyExistsError, CorruptionError, InvalidInputError

_KEPT = (
    "SELECT c.link, c.id, c.sequence, c.lost_parent_id, c.lost_parent_digest, p.id, p.digest, c.state_digest, "
    "c.digest, c.fields, c.cid, c.place, c.size, c.delta, c.whole, p.state_digest, c.took_run, c.took_stood"
)
# Along the table, passing over the rows of others; or, where those would be most of it, the session's own picked by
# its index, their numbers sorted and not their records. Within a session cids rise as sequences do.
_PAGE_ALONG = (
    f"{_KEPT} FROM checkpoints c LEFT JOIN checkpoints p ON p.cid = c.link "
    "WHERE +c.sid = ?1 AND c.cid > ?2 ORDER BY c.cid LIMIT ?3"
)
_PAGE_PICKED = (
    f"{_KEPT} FROM (SELECT cid FROM checkpoints WHERE sid = ?1 AND cid > ?2 ORDER BY cid LIMIT ?3) k "
    "CROSS JOIN checkpoints c ON c.cid = k.cid LEFT JOIN checkpoints p ON p.cid = c.link ORDER BY k.cid"
)
_SESSION = "SELECT sid, checkpoints FROM sessions WHERE id = ?"
_LAST_CID = "SELECT coalesce(max(cid), 0) FROM checkpoints"
_IS_AT = "SELECT 1 FROM checkpoints WHERE cid = ? AND sid = ? AND sequence = ?"
_CID_UP_TO = "SELECT coalesce(max(cid), 0) FROM checkpoints WHERE sid = ? AND sequence <= ?"
_OTHERS_AT_MOST = 4  # rows of others passed over for each row of the session
_ROW_COLUMNS = 10
_NEW_SESSION = (
    "INSERT INTO sessions(id, sequence, checkpoints, branches, logical, epoch, touched, created_us, updated_us, agent, "
    "status, reason, last_step, usage) VALUES(?, ?, 0, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?, ?)"
)
_NEW_CHECKPOINT = (
    "INSERT INTO checkpoints(cid, sid, sequence, id, link, place, size, state_digest, digest, lost_parent_id, "
    "lost_parent_digest, fields, delta, whole, took_run, took_stood, took_calls) "
    "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FOUND = "SELECT cid, place, whole IS NOT NULL, state_digest FROM checkpoints WHERE sid = ? AND id = ?"
_NEXT_CID = "SELECT coalesce(max(cid), 0) + 1 FROM checkpoints"
_NEW_NAME = "INSERT INTO names(sid, name, tag, cid, undo) VALUES(?, ?, ?, ?, ?)"
_FINISH = (
    "UPDATE sessions SET (checkpoints, logical, touched) = "
    "(SELECT count(*), coalesce(sum(size), 0), coalesce(max(cid), -?1) FROM checkpoints WHERE sid = ?1) WHERE sid = ?1"
)

_TIPS = 64  # lines whose prefixes are kept at hand while a history is read or written


class _Prefixes:
    """The prefix for the next delta behind recent checkpoints; for others it is read."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._known: dict[int, bytes] = {}  # the oldest first

    def behind(self, cid: int) -> bytes:
        found = self._known.get(cid)
        return open_at(self._connection, cid).prefix if found is None else found

    def note(self, cid: int, prefix: bytes) -> None:
        self._known[cid] = prefix
        if len(self._known) > _TIPS:
            del self._known[next(iter(self._known))]


class _Calls:
    """The calls that come with a session: how their runs are numbered here, and how many there are of each."""

    def __init__(self, runs: Mapping[int, int], moved: Moved) -> None:
        self._runs = runs
        self._counts = Counter([(journaled.run, journaled.after) for journaled in moved.calls])

    def taken_by(self, kept: Kept) -> tuple[int | None, ...]:
        """What a checkpoint says of the calls it took in."""
        count = 0 if kept.took is None else self._counts[kept.took]
        return (None, None, None) if not count or kept.took is None else (self._runs[kept.took[0]], kept.took[1], count)


class Marks:
    """Where the last pages ended, so that the next one need not be searched for. A hint: it is checked before use."""

    def __init__(self) -> None:
        self._marks: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def find(self, connection: apsw.Connection, session: str, sid: int, after: int) -> int:
        """The cid behind which the page begins that comes after a sequence."""
        if after <= 0:
            return 0
        sequence, cid = self._marks.get(session, (0, 0))
        if sequence == after and connection.execute(_IS_AT, (cid, sid, after)).fetchone() is not None:
            return cid
        return int(one(connection, _CID_UP_TO, (sid, after))[0])

    def note(self, session: str, sequence: int, cid: int) -> None:
        self._marks[session] = sequence, cid
        if len(self._marks) > _TIPS:
            with contextlib.suppress(KeyError):  # another thread was first
                self._marks.popitem(last=False)


def history(connection: apsw.Connection, marks: Marks, session: str, after: int, limit: int) -> list[Kept]:
    """A page of a session's checkpoints with their records, oldest first."""
    found = connection.execute(_SESSION, (session,)).fetchone()
    sid, count = (sid_of(connection, session), 0) if found is None else found
    start = marks.find(connection, session, sid, after)
    rows = _page(connection, count, (sid, start, limit))
    prefixes = _Prefixes(connection)
    page = [_kept(connection, row, prefixes) for row in rows]
    if page:
        cid: Any = rows[-1][_ROW_COLUMNS]
        marks.note(session, page[-1].row.sequence, cid)
    return page


def _page(connection: apsw.Connection, count: int, wanted: tuple[int, int, int]) -> list[Any]:
    (last,) = one(connection, _LAST_CID)
    if last - wanted[1] <= _OTHERS_AT_MOST * count:
        # On the way may lie a damaged page of another session, which is nothing to this one.
        with contextlib.suppress(apsw.Error):
            return connection.execute(_PAGE_ALONG, wanted).fetchall()
    return connection.execute(_PAGE_PICKED, wanted).fetchall()


def _kept(connection: apsw.Connection, found: Any, prefixes: _Prefixes) -> Kept:
    row = row_of(found[:_ROW_COLUMNS])
    link = found[0]
    cid, place, size, delta, whole, base, took_run, took_stood = found[_ROW_COLUMNS:]
    record, prefix = None, b""
    if delta is not None and link is not None:
        prefix = b"" if (place - 1) % GROUP_DELTAS == 0 else prefixes.behind(link)
        record = packing.open_delta(join(Rows(connection), delta), prefix=prefix, base=base, state=row.state_digest)
        prefix = next_prefix(place, prefix, record.body)
    complete = None if whole is None else packing.open_whole(join(Rows(connection), whole), state=row.state_digest)
    prefixes.note(cid, b"" if complete is not None else prefix)
    return Kept(row, size, record, complete, None if took_run is None else (took_run, took_stood))


def adopt(connection: apsw.Connection, moved: Moved, arriving: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
    """Write a whole session; see the port."""
    line, totals = moved.line, moved.line.totals
    if find_sid(connection, line.id) is not None:
        message = f"there is already a session {line.id!r}"
        raise AlreadyExistsError(message, hint="import it under another name, or delete the old one first")
    fixed = line.id, moved.sequence, len(moved.names.branches), line.created_us, totals.at_us
    connection.execute(
        _NEW_SESSION, (*fixed, totals.agent, totals.status, totals.reason, totals.last_step, totals.usage)
    )
    sid = connection.last_insert_rowid()
    (cid,) = one(connection, _NEXT_CID)
    prefixes = _Prefixes(connection)
    calls = _Calls(running.arrive(connection, sid, moved), moved)
    for kept, blobs in arriving:
        _write(connection, sid, cid, kept, blobs, prefixes, calls)
        cid += 1
    for branch in moved.names.branches:
        undo = None if branch.undo_id is None else _find(connection, sid, branch.undo_id)[0]
        connection.execute(_NEW_NAME, (sid, branch.name, 0, _find(connection, sid, branch.head_id)[0], undo))
    for tag in moved.names.tags:
        connection.execute(_NEW_NAME, (sid, tag.name, 1, _find(connection, sid, tag.id)[0], None))
    connection.execute(_FINISH, (sid,))


def _find(connection: apsw.Connection, sid: int, id_: str) -> Any:
    found = connection.execute(_FOUND, (sid, pack_id(id_))).fetchone()
    if found is None:
        message = f"checkpoint {id_[:12]} is referred to before it comes, or never comes"
        raise CorruptionError(message, hint="the history is not complete")
    return found


def _write(
    connection: apsw.Connection,
    sid: int,
    cid: int,
    kept: Kept,
    blobs: Mapping[bytes, bytes],
    prefixes: _Prefixes,
    calls: _Calls,
) -> None:
    row = kept.row
    link, place, delta, prefix = None, 0, None, b""
    if row.link_id is not None:
        link, before, complete, base = _find(connection, sid, row.link_id)
        place = 1 if complete else before + 1
        if kept.delta is not None:
            prefix = b"" if (place - 1) % GROUP_DELTAS == 0 else prefixes.behind(link)
            delta = packing.seal_delta(kept.delta, prefix=prefix, base=base, state=row.state_digest)
            prefix = next_prefix(place, prefix, kept.delta.body)
    if delta is None and kept.whole is None:
        message = f"checkpoint {row.id[:12]} comes without a record"
        raise InvalidInputError(message, hint="the history is not complete")
    whole = None if kept.whole is None else packing.seal_whole(kept.whole, state=row.state_digest)
    prefixes.note(cid, b"" if whole is not None else prefix)
    refs = {ref for record in (kept.delta, kept.whole) if record is not None for ref in record.refs}
    put_blobs(connection, cid, refs, blobs)
    lost: tuple[str | bytes | None, bytes | None] = (None, None)
    if row.parent_id is not None and row.parent_id != row.link_id:
        lost = pack_id(row.parent_id), row.parent_digest
    place_of = cid, sid, row.sequence, pack_id(row.id), link, place, kept.size_bytes
    halves = fit(connection, cid, delta), fit(connection, cid, whole)
    took = calls.taken_by(kept)
    digests = row.state_digest, row.digest
    connection.execute(_NEW_CHECKPOINT, (*place_of, *digests, *lost, row.fields, *halves, *took))
