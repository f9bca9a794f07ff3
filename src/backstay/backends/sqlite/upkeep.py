"""What keeps a store in shape: pages given back to the disk, indexes mended, and the checks below the level of rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import apsw

from backstay.backends.sqlite import journals, packed, schema
from backstay.backends.sqlite.connections import BUSY_S, Connection, is_damage
from backstay.backends.sqlite.listing import open_line
from backstay.backends.sqlite.schema import (
    Entry,
    child_entries,
    facet_entries,
    lead,
    line_entries,
    name_entries,
    sequence_in,
)
from backstay.backends.sqlite.views import Line, open_body
from backstay.errors import CorruptionError
from backstay.hints import REPAIR, RUN_VERIFY
from backstay.model import Problem, counted
from backstay.port import SessionRow, Unreadable
from backstay.port.row_codec import foreign_id, open_name

_LINES = "SELECT sid, name, marks, body FROM rows WHERE kind = 0 ORDER BY sid"
_NAMES = "SELECT name, body FROM rows WHERE sid = ? AND kind = 1"
_CHECKPOINTS = "SELECT key, parent, body FROM checkpoints WHERE key >= ?1 << 32 AND key < (?1 + 1) << 32"
_ENTRIES = "SELECT what, value, sid, at FROM lookup"
_ORPHAN_BLOBS = "FROM blobs WHERE NOT EXISTS(SELECT 1 FROM refs r WHERE r.digest = blobs.digest)"
_SWEEP = f"DELETE FROM blobs WHERE digest IN (SELECT digest {_ORPHAN_BLOBS} LIMIT ?)"
_OWNERLESS = (
    "FROM refs WHERE NOT EXISTS(SELECT 1 FROM checkpoints c WHERE kind = 2 AND c.key = sid << 32 | number) "
    "AND NOT EXISTS(SELECT 1 FROM keyframes k WHERE kind = 3 AND k.key = sid << 32 | number)"
)
_OWNERLESS_PACKED = (
    f"{_OWNERLESS} AND NOT EXISTS(SELECT 1 FROM segments s WHERE kind = 4 AND s.key = sid << 32 | number)"
)
_LONE_KEYFRAMES = "FROM keyframes k WHERE key NOT IN (SELECT key FROM checkpoints)"
_LONE_PACKED = (
    f"{_LONE_KEYFRAMES} AND NOT EXISTS(SELECT 1 FROM segments s WHERE s.key <= k.key AND s.key > k.key >> 32 << 32 "
    "AND s.last >= k.key & 0xffffffff)"
)
# Reported and left alone: what seems to belong to nothing may be all that is left of something.
_STRAYS = (
    ("rows", "names of no session", "FROM rows WHERE kind = 1 AND sid NOT IN (SELECT sid FROM rows WHERE kind = 0)"),
    ("checkpoints", "checkpoints of no session", "FROM checkpoints WHERE key >> 32 NOT IN (SELECT sid FROM rows)"),
    (
        "segments",
        "segments of no session",
        "FROM segments WHERE key >> 32 NOT IN (SELECT sid FROM rows)",
    ),
    ("calls", "calls of no session", "FROM calls WHERE sid NOT IN (SELECT sid FROM rows WHERE kind = 0)"),
    ("blobs", "blobs that no row refers to", _ORPHAN_BLOBS),
)
_ANYTHING_OF = (
    "SELECT EXISTS(SELECT 1 FROM rows WHERE sid = ?1) OR "
    "EXISTS(SELECT 1 FROM checkpoints WHERE key >= ?1 << 32 AND key < (?1 + 1) << 32)"
)
_ANYTHING_PACKED = " OR EXISTS(SELECT 1 FROM segments WHERE key >= ?1 << 32 AND key < (?1 + 1) << 32)"
# Conditions that always hold, so that the table itself is counted in one, and its index in the other.
_COUNT_REFS = "SELECT (SELECT count(*) FROM refs WHERE sid > 0), (SELECT count(*) FROM refs WHERE digest > x'')"
_SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
_VACUUM_PAGES = 256
_SWEEP_BLOBS = 64
_SCRUB_BYTES = 64 * 1024 * 1024


# Each of these is a short transaction of its own; True if there is more to do.


def sweep_some(connection: Connection) -> bool:
    """Remove some blobs that no row refers to."""
    if not connection.has("blobs"):
        return False
    # Where references were lost with a page, blobs that are needed would seem not to be.
    ((rows, entries),) = connection.execute(_COUNT_REFS).fetchall()
    if rows != entries:
        raise CorruptionError("the references to blobs do not agree with their index", hint=RUN_VERIFY)
    connection.execute(_SWEEP, (_SWEEP_BLOBS,))
    return connection.changes() == _SWEEP_BLOBS


def vacuum_some(connection: Connection) -> bool:
    """Return some free pages to the disk."""
    connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
    left: Any = connection.execute("PRAGMA freelist_count").fetchall()[0][0]
    return bool(left)


def scrub(connection: Connection) -> None:
    """Write a store anew if a session was deleted from it and that takes no time. Outside of any transaction.

    SQLite zeroes what is deleted. But where rows moved to another page as it grew, copies of them may lie between the
    rows that are left, and only writing every page anew is sure to leave those behind.
    """
    size: Any = connection.execute(_SIZE).fetchall()[0][0]
    if size <= _SCRUB_BYTES and schema.meta(connection, writing=True).get(schema.SCRUB):
        with contextlib.suppress(apsw.BusyError):  # the deletion itself is done
            connection.execute("VACUUM")
            connection.execute("DELETE FROM meta WHERE key = ?", (schema.SCRUB,))


def empty_log(connection: Connection) -> None:
    """Move the log into the store and cut it, so that what was deleted is nowhere on the disk."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            return
        except apsw.BusyError:
            # Another process is moving its log at this moment. SQLite waits for readers, but not for that.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def repair(connection: Connection) -> list[str]:
    """Make the index agree with the rows it leads to."""
    astray, missing = _compare(connection)
    lead(connection, drop=astray, put=missing)
    connection.forget()  # where a journal was said to be
    return [f"{len(astray | missing)} entries of the index were mended"] if astray or missing else []


def _compare(connection: Connection) -> tuple[set[Entry], set[Entry]]:
    """Entries of the index that lead astray, and those that are missing.

    What leads to something that cannot be read stays: a damaged session must not become one that never was.
    """
    true, doubtful, healthy = journals.entries(connection), set[tuple[Any, Any]](), set[int]()
    for sid, session in _sessions(connection):
        if isinstance(session, SessionRow) and _note_entries(connection, Line(sid, session), true, doubtful):
            healthy.add(sid)
    rows: Any = connection.execute("SELECT what, value, sid, at FROM lookup")
    found: set[Entry] = set(rows)
    unhealthy = {entry[2] for entry in found} - healthy
    anything = _ANYTHING_OF + (_ANYTHING_PACKED if connection.has("segments") else "")
    lost = {sid for sid in unhealthy if connection.execute(anything, (sid,)).fetchall() == [(1,)]}
    astray = {entry for entry in found - true if entry[2] not in lost and entry[2:] not in doubtful}
    return astray, true - found


def _note_entries(connection: Connection, line: Line, true: set[Entry], doubtful: set[tuple[Any, Any]]) -> bool:
    """What must lead to a session and its rows, and which of them cannot tell. True if none of them is missing."""
    sid, uid = line.sid, line.row.uid
    true |= line_entries(line.row, sid) | facet_entries(line.row, sid)
    names: Any = connection.execute(_NAMES, (sid,)).fetchall()
    for name, body in names:
        try:
            true |= name_entries(open_name(open_body(body), uid=uid, name=name), sid)
        except CorruptionError:
            doubtful.add((sid, name))
    count = 0
    rows: Any = connection.execute(_CHECKPOINTS, (sid,))
    for key, parent, body in rows:
        count += 1
        sequence = sequence_in(key)
        if parent != sequence - 1:
            true |= child_entries(sequence, parent if isinstance(parent, int) else None, sid)
        try:
            foreign = foreign_id(open_body(body), uid=uid, sequence=sequence)
        except CorruptionError:
            doubtful.add((sid, sequence))
        else:
            true |= set() if foreign is None else {(schema.FOREIGN, foreign, sid, sequence)}
    for segment, entries in packed.entries_of(connection, sid, uid):
        if isinstance(segment, Unreadable) or segment.broken or not segment.is_readable:
            return False
        count += len(segment)
        true |= entries
    counted = line.row.checkpoints, line.row.lanes + line.row.tags
    return line.row.hidden or (count, len(names)) == counted


def _sessions(connection: Connection) -> Iterator[tuple[int, SessionRow | CorruptionError]]:
    rows: Any = connection.execute(_LINES).fetchall()
    for sid, *columns in rows:
        try:
            yield sid, open_line(*columns)
        except CorruptionError as error:
            yield sid, error


def check(connection: Connection) -> list[Problem]:
    """Every page read with its checksum, the index compared with its rows, nothing left without an owner."""
    problems: list[Problem] = []
    try:
        faults = connection.execute("PRAGMA integrity_check(100)").fetchall()
        if faults != [("ok",)]:
            what = f"{counted(len(faults), 'fault')} in the structure of the file"
            problems.append(Problem(what=what, remedy="copy what is intact with export"))
        packs = connection.has("segments")
        strays = [
            *_STRAYS,
            ("keyframes", "keyframes of no checkpoint", _LONE_PACKED if packs else _LONE_KEYFRAMES),
            ("refs", "references of no row", _OWNERLESS_PACKED if packs else _OWNERLESS),
        ]
        for table, what, sql in strays:
            count: Any = connection.execute(f"SELECT count(*) {sql}").fetchall()[0][0] if connection.has(table) else 0
            if count and table == "blobs":  # a capture that was killed before its commit leaves them: `tend` takes them
                problems.append(Problem(what=f"{what}: {count:,}", cost="space only", remedy=REPAIR))
            elif count:
                problems.append(Problem(what=f"{what}: {count:,}"))
        astray, missing = _compare(connection)
        if astray or missing:
            what = f"the index disagrees with its rows in {counted(len(astray | missing), 'entry')}"
            problems.append(Problem(what=what, cost="rows may not be found", remedy=REPAIR))
    except apsw.Error as error:
        if not is_damage(error):
            raise
        problems.append(Problem(what="pages cannot be read", remedy="copy what is intact with export"))
    return problems
