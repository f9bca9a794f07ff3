"""The tables of format 2, and what a store must look like to be opened.

A commit writes two pages: a leaf of `rows`, where a session's line and its names are neighbours, and the last leaf of
its session in `checkpoints`. All that is looked for by something else than its key is in one index, `lookup`, whose
entries change seldom: so a small store has one page of them, and most commits write none.

    what     value                            sid   at
    SHOWN    the id of a session              it    0        (HIDDEN: of one that is being imported or deleted)
    UID      the first bytes of its uid       it    0
    ERA      touched // 256                   it    0        sessions newest first, and the next `touched`
    MARKS    the marks of a branch            its   name     only where there are any
    FOREIGN  a checkpoint id not of our making its  sequence
    CHILD    sid and parent                   its   sequence only where the parent is not the sequence before
    JOURNAL  sid, run and journal             its   a number of the calls under it
    FACET    a facet of a session             it    0        as long as it is shown
    TIME     when it was updated, // 2**29 us it    0        the same
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw

from backstay.backends.sqlite.connections import DATA_VERSION, Connection
from backstay.errors import CorruptionError, FormatError
from backstay.port import KNOWN, Features, LaneRow, SessionRow, TagRow, refuse_unknown
from backstay.port.facets import facets_of, time_era
from backstay.port.row_codec import marks_of

APPLICATION_ID = 0x4261636B  # "Back"
SHOWN, HIDDEN, UID, ERA, MARKS, FOREIGN, CHILD, JOURNAL, FACET, TIME = range(10)
UID_START_BYTES = 4
ERA_BITS = 8
SEQUENCE_BITS = 32
PAGE_BYTES = 16 * 1024 * 1024  # of a page of rows, and whatever the last one adds
MAX_SID = 2**31 - 1

_REQUIRED = {
    "meta": "CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "rows": (
        "CREATE TABLE rows(sid INTEGER NOT NULL, kind INTEGER NOT NULL, name TEXT NOT NULL, marks INTEGER NOT NULL, "
        "body BLOB NOT NULL, PRIMARY KEY(sid, kind, name)) WITHOUT ROWID"
    ),
    "lookup": (
        "CREATE TABLE lookup(what INTEGER NOT NULL, value NOT NULL, sid INTEGER NOT NULL, at NOT NULL, "
        "PRIMARY KEY(what, value, sid, at)) WITHOUT ROWID"
    ),
    # Tables by row number, because their leaves hold rows of up to 4 KB whole; key = sid << 32 | sequence.
    "checkpoints": "CREATE TABLE checkpoints(key INTEGER PRIMARY KEY, parent INTEGER, body BLOB NOT NULL)",
    "keyframes": "CREATE TABLE keyframes(key INTEGER PRIMARY KEY, body BLOB NOT NULL)",
}
# An empty table takes a page, so these are made when they are first written to.
ON_DEMAND = {
    "calls": {
        "calls": (
            "CREATE TABLE calls(key INTEGER PRIMARY KEY, sid INTEGER NOT NULL, run INTEGER NOT NULL, "
            "journal INTEGER NOT NULL, body BLOB NOT NULL)"
        ),
    },
    "segments": {
        "segments": (
            "CREATE TABLE segments(key INTEGER PRIMARY KEY, last INTEGER NOT NULL, needs INTEGER, "
            "links BLOB NOT NULL, body BLOB NOT NULL)"
        ),
    },
    "blobs": {
        "blobs": "CREATE TABLE blobs(digest BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",
        "refs": (
            "CREATE TABLE refs(sid INTEGER NOT NULL, kind INTEGER NOT NULL, number INTEGER NOT NULL, "
            "digest BLOB NOT NULL, PRIMARY KEY(sid, kind, number, digest)) WITHOUT ROWID"
        ),
        "refs_digest": "CREATE INDEX refs_digest ON refs(digest)",
    },
}
_PUT_ENTRY = "INSERT OR IGNORE INTO lookup(what, value, sid, at) VALUES(?, ?, ?, ?)"
_DROP_ENTRY = "DELETE FROM lookup WHERE what = ? AND value = ? AND sid = ? AND at = ?"
_SCHEMA = "SELECT type, name, tbl_name, sql, rootpage FROM sqlite_schema LIMIT 100"
_INDEX = "CREATE INDEX"
_MADE_LATER = ("calls", "segments", "blobs", "refs")
_LATER = "SELECT name FROM sqlite_schema WHERE name IN ('calls', 'segments', 'blobs', 'refs')"
_ADD_FEATURE = "UPDATE meta SET value = value | ?1 WHERE key IN ('read', 'write') AND value & ?1 <> ?1"
_META = "SELECT key, value FROM meta"
_COUNT = "SELECT count(*) FROM lookup WHERE what = ?"
PUT_META = "INSERT INTO meta VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = max(value, ?2)"

# Keys of meta beside the features. Floors: what a counter must stay above although the row that had it is gone.
TOUCHED_FLOOR, SID_FLOOR = "touched", "sid"
SCRUB = "scrub"  # something was deleted since the store was last written anew
EXPORT = "export"  # 0 for one that is being written; for a whole one, 1 and the number of its sessions


def create(connection: apsw.Connection, *, export: bool = False) -> None:
    """Make the tables of an empty file."""
    connection.execute("BEGIN IMMEDIATE")
    for sql in _REQUIRED.values():
        connection.execute(sql)
    for key, value in (("read", 0), ("write", 0), *(((EXPORT, 0),) if export else ())):
        connection.execute(PUT_META, (key, value))
    connection.pragma("application_id", APPLICATION_ID)
    connection.execute("COMMIT")


def verify(connection: apsw.Connection) -> None:
    """FormatError unless there are the tables of this version, word for word, and nothing else."""
    # With its type and its table: a trigger may have the name of a table, and be listed before it.
    rows: Any = connection.execute(_SCHEMA).fetchall()
    found: list[tuple[Any, ...]] = [row[:-1] for row in rows]
    names, pages = {row[1] for row in found}, {row[-1] for row in rows}
    known = dict(_REQUIRED)
    for group in ON_DEMAND.values():
        known |= group if group.keys() & names else {}
    if not len(found) == len(known) == len(pages) or set(found) != {_entry(name, sql) for name, sql in known.items()}:
        strange = sorted([str(name) for name in known.keys() ^ names]) or ["other columns, or one twice"]
        message = f"this store has other tables than this version makes ({', '.join(strange[:8])})"
        raise FormatError(message, hint="it was made by another version, or changed by another program")


def _entry(name: str, sql: str) -> tuple[str, str, str, str]:
    """How SQLite lists what was made by these words."""
    kind, table = ("index", sql.partition(" ON ")[2].partition("(")[0]) if sql.startswith(_INDEX) else ("table", name)
    return kind, name, table, sql


def meta(connection: apsw.Connection, *, writing: bool = False) -> dict[str, int]:
    """What the store says of itself; FormatError if it uses what this version does not know."""
    found: dict[Any, Any] = dict(connection.execute(_META))
    if not found.keys() >= {"read", "write"} or not all([type(value) is int for value in found.values()]):
        raise CorruptionError("the store does not say what it needs", hint="run verify")
    if found["read"] & ~KNOWN.read or found["write"] & ~KNOWN.write:
        refuse_unknown(Features(found["read"], found["write"]), writing=writing)
    return found


def settle(connection: Connection, *, writing: bool = False) -> None:
    """What holds until another connection writes; FormatError if the store uses what this version does not know."""
    floor = meta(connection, writing=writing).get(TOUCHED_FLOOR, 0)
    connection.tables = dict.fromkeys(_MADE_LATER, False)
    for (name,) in connection.execute(_LATER):
        connection.tables[str(name)] = True
    connection.journal = connection.names = None
    connection.last_touched, connection.floor = None, floor
    connection.version = connection.execute(DATA_VERSION).fetchall()


def need(connection: apsw.Connection, feature: int) -> None:
    """From now on the store is neither read nor written by a version that does not know a feature."""
    connection.execute(_ADD_FEATURE, (feature,))


def count_sessions(connection: apsw.Connection) -> tuple[int, int]:
    """How many sessions there are, by their names and by when they were touched."""
    counts: list[Any] = [connection.execute(_COUNT, (what,)).fetchall()[0][0] for what in (SHOWN, ERA)]
    return counts[0], counts[1]


def key_of(sid: int, sequence: int) -> int:
    """The key of a checkpoint or keyframe."""
    return sid << SEQUENCE_BITS | sequence


def sequence_in(key: int) -> int:
    """The sequence in a key."""
    return key & (1 << SEQUENCE_BITS) - 1


Entry = tuple[int, Any, int, Any]  # a row of `lookup`


def lead(connection: apsw.Connection, *, drop: Iterable[Entry] = (), put: Iterable[Entry] = ()) -> None:
    """Take entries out of the index, then put others in."""
    for entry in drop:
        connection.execute(_DROP_ENTRY, entry)
    for entry in put:
        connection.execute(_PUT_ENTRY, entry)


def line_entries(row: SessionRow, sid: int) -> set[Entry]:
    """What leads to a session by its names, and to the newest ones."""
    return {
        (HIDDEN if row.hidden else SHOWN, row.id, sid, 0),
        (UID, row.uid[:UID_START_BYTES], sid, 0),
        (ERA, row.touched >> ERA_BITS, sid, 0),
    }


def facet_entries(row: SessionRow, sid: int) -> set[Entry]:
    """What leads to a session by what its line says."""
    if row.hidden:
        return set()
    return {(TIME, time_era(row.updated_us), sid, 0), *[(FACET, facet, sid, 0) for facet in facets_of(row)]}


def name_entries(row: LaneRow | TagRow, sid: int) -> set[Entry]:
    """What leads to a branch that needs attention."""
    marks = marks_of(row)
    return {(MARKS, marks, sid, row.name)} if marks else set()


def child_entries(sequence: int, parent: int | None, sid: int) -> set[Entry]:
    """What leads from a checkpoint to one that rests on it; none where that is the next one anyway."""
    return set() if parent is None or parent == sequence - 1 else {(CHILD, key_of(sid, parent), sid, sequence)}
