"""What keeps a store in shape: pages given back to the disk, indexes mended, and the checks below the level of rows."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import apsw

from backstay.backends2.sqlite import journals, schema
from backstay.backends2.sqlite.connections import BUSY_S, Connection, is_damage
from backstay.backends2.sqlite.listing import open_line
from backstay.backends2.sqlite.schema import Entry, child_entries, line_entries, name_entries, sequence_in
from backstay.backends2.sqlite.views import open_body
from backstay.errors import CorruptionError
from backstay.model import Problem
from backstay.port import SessionRow
from backstay.port.row_codec import foreign_id, open_name

_LINES = "SELECT sid, name, marks, body FROM rows WHERE kind = 0 ORDER BY sid"
_NAMES = "SELECT name, body FROM rows WHERE sid = ? AND kind = 1"
_CHECKPOINTS = "SELECT key, parent, body FROM checkpoints WHERE key >= ?1 << 32 AND key < (?1 + 1) << 32"
_ENTRIES = "SELECT what, value, sid, at FROM lookup"
_PUT_ENTRY = "INSERT OR IGNORE INTO lookup(what, value, sid, at) VALUES(?, ?, ?, ?)"
_DROP_ENTRY = "DELETE FROM lookup WHERE what = ? AND value = ? AND sid = ? AND at = ?"
_ORPHAN_BLOBS = "FROM blobs WHERE NOT EXISTS(SELECT 1 FROM refs r WHERE r.digest = blobs.digest)"
_SWEEP = f"DELETE FROM blobs WHERE digest IN (SELECT digest {_ORPHAN_BLOBS} LIMIT ?)"
_DANGLING = "FROM refs WHERE NOT EXISTS(SELECT 1 FROM blobs b WHERE b.digest = refs.digest)"
_OWNERLESS = (
    "FROM refs WHERE NOT EXISTS(SELECT 1 FROM checkpoints c WHERE kind = 2 AND c.key = sid << 32 | number) "
    "AND NOT EXISTS(SELECT 1 FROM keyframes k WHERE kind = 3 AND k.key = sid << 32 | number)"
)
_STRAYS = (
    ("rows", "names", "FROM rows WHERE kind = 1 AND sid NOT IN (SELECT sid FROM rows WHERE kind = 0)"),
    ("checkpoints", "checkpoints", "FROM checkpoints WHERE key >> 32 NOT IN (SELECT sid FROM rows WHERE kind = 0)"),
    ("keyframes", "keyframes", "FROM keyframes WHERE key NOT IN (SELECT key FROM checkpoints)"),
    ("calls", "calls", "FROM calls WHERE sid NOT IN (SELECT sid FROM rows WHERE kind = 0)"),
    ("refs", "references to blobs", _OWNERLESS),
)
_SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
_VACUUM_PAGES = 256
_SWEEP_BLOBS = 64
_SCRUB_BYTES = 64 * 1024 * 1024


# Each of these is a short transaction of its own; True if there is more to do.


def sweep_some(connection: Connection) -> bool:
    """Remove some blobs that no row refers to."""
    if not connection.has("blobs"):
        return False
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
    """Remove what belongs to nothing, and make the index agree with the rows it leads to."""
    done = []
    for table, what, sql in _STRAYS:
        if table in schema.ON_DEMAND["calls"].keys() | schema.ON_DEMAND["blobs"].keys() and not connection.has(table):
            continue
        connection.execute(f"DELETE {sql}")
        if connection.changes():
            done.append(f"{connection.changes()} {what} of nothing, which nobody could read, were removed")
    true, found = _index(connection)
    for entry in found - true:
        connection.execute(_DROP_ENTRY, entry)
    for entry in true - found:
        connection.execute(_PUT_ENTRY, entry)
    if true != found:
        done.append(
            f"{len(found - true)} entries of the index that led astray, and {len(true - found)} that were not there"
        )
    return done


def _index(connection: Connection) -> tuple[set[Entry], set[Entry]]:
    """The index as the rows themselves say it, and as it is.

    Without what leads to a line or a name that cannot be read: it is lost, and must not seem never to have been.
    """
    true: set[Entry] = journals.entries(connection)
    unknown: set[tuple[int, Any]] = set()
    lines: Any = connection.execute(_LINES).fetchall()
    for sid, *columns in lines:
        try:
            _add_entries(connection, sid, open_line(*columns), true, unknown)
        except CorruptionError:
            unknown.add((sid, None))
    found: Any = connection.execute(_ENTRIES)
    return true, {entry for entry in found if not unknown & {(entry[2], None), (entry[2], entry[3])}}


def _add_entries(
    connection: Connection, sid: int, session: SessionRow, entries: set[Entry], unknown: set[tuple[int, Any]]
) -> None:
    entries |= line_entries(session, sid)
    names: Any = connection.execute(_NAMES, (sid,)).fetchall()
    for name, body in names:
        try:
            entries |= name_entries(open_name(open_body(body), uid=session.uid, name=name), sid)
        except CorruptionError:
            unknown.add((sid, name))
    rows: Any = connection.execute(_CHECKPOINTS, (sid,))
    for key, parent, body in rows:
        sequence = sequence_in(key)
        if parent != sequence - 1 and isinstance(parent, int | None):
            entries |= child_entries(sequence, parent, sid)
        foreign = foreign_id(body) if type(body) is bytes else None
        if foreign is not None:
            entries.add((schema.FOREIGN, foreign, sid, sequence))


def check(connection: Connection) -> list[Problem]:
    """Every page read with its checksum, the index compared with its rows, nothing left without an owner."""
    problems: list[Problem] = []
    try:
        for (text,) in connection.execute("PRAGMA integrity_check(100)"):
            if text != "ok":
                problems.append(Problem(what=f"SQLite: {text}", remedy="copy what is intact with export"))
        _check_owners(connection, problems)
        true, found = _index(connection)
        wrong = len(true ^ found)
        if wrong:
            what = f"{wrong} entries of the index do not agree with its rows"
            problems.append(Problem(what=what, cost="rows may not be found", remedy="verify(repair=True)"))
    except apsw.Error as error:
        if not is_damage(error):
            raise
        problems.append(Problem(what="pages cannot be read", remedy="copy what is intact with export"))
    return problems


def _check_owners(connection: Connection, problems: list[Problem]) -> None:
    wanted = [(what, sql, "space only") for table, what, sql in _STRAYS if connection.has(table)]
    if connection.has("blobs"):
        wanted.append(("blobs that no row refers to", _ORPHAN_BLOBS, "space only"))
        wanted.append(("blobs that rows refer to are missing", _DANGLING, "states that need them"))
    for what, sql, cost in wanted:
        count: Any = connection.execute(f"SELECT count(*) {sql}").fetchall()[0][0]
        if count:
            problems.append(Problem(what=f"{count} {what}", cost=cost, remedy="verify(repair=True)"))
