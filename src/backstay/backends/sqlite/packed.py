"""The segments of a session: found by a checkpoint in them, counted, put in the place of rows, and dropped.

A segment's key is that of its first checkpoint. What leads to its checkpoints (`lookup`) is as it was when they had
rows of their own, so packing changes no entry of the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from backstay.backends.sqlite import schema
from backstay.backends.sqlite.connections import Connection, is_damage
from backstay.backends.sqlite.schema import SEQUENCE_BITS, Entry, child_entries, key_of, sequence_in
from backstay.errors import CorruptionError
from backstay.ids import MAX_SEQUENCE
from backstay.port import CheckpointRow, SegmentRow, Unreadable
from backstay.port.segments import Segment, open_segment

# Columns that come before the body can be read where the body is in a damaged page.
_LINKS = "SELECT key, last, needs, links FROM segments "
_AT = _LINKS + "WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC LIMIT 1"
_UP = _LINKS + "WHERE key >= ?1 AND key < ?2 AND last > ?3 ORDER BY key LIMIT ?4"
_DOWN = _LINKS + "WHERE key >= ?1 AND key < ?2 AND last > ?3 ORDER BY key DESC LIMIT ?4"
# From the one that begins at `first` or before it: a session may have thousands.
_REACHING = _LINKS + (
    "WHERE key >= ifnull((SELECT key FROM segments WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC LIMIT 1), ?2) "
    "AND key <= ?3 AND last >= ?4 ORDER BY key"
)
_ALL = _LINKS + "WHERE key BETWEEN ?1 AND ?2 ORDER BY key"
_BETWEEN = (
    "SELECT key, last, needs, links, body FROM segments WHERE key >= "
    "(SELECT key FROM segments WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC LIMIT 1) AND key <= ?3 ORDER BY key DESC"
)
_BODY = "SELECT body FROM segments WHERE key = ?"
_PUT = "INSERT INTO segments(key, last, needs, links, body) VALUES(?, ?, ?, ?, ?)"
_DROP = "DELETE FROM segments WHERE key = ?"


def _row(connection: Connection, columns: Any) -> SegmentRow | Unreadable:
    """A segment; without a body where that is in a damaged page, so that at least its links are there."""
    key, last, needs, links = columns
    first = sequence_in(key)
    if not (type(last) is int and type(links) is bytes and isinstance(needs, int | None)):
        return Unreadable(first, f"the segment of checkpoint #{first} is damaged")
    try:
        found: Any = connection.execute(_BODY, (key,)).fetchone()
        body = found[0] if found is not None and type(found[0]) is bytes else b""
    except apsw.Error as error:
        if not is_damage(error):
            raise
        body = b""
    return SegmentRow(first, last, needs, links, body)


def find(connection: Connection, sid: int, uid: bytes, sequence: int) -> Segment | Unreadable | None:
    """The segment that a packed checkpoint lies in; None if there is none."""
    kept = find_row(connection, sid, sequence)
    return open_segment(kept, uid=uid) if isinstance(kept, SegmentRow) else kept


def find_row(connection: Connection, sid: int, sequence: int) -> SegmentRow | Unreadable | None:
    """The same as it is kept."""
    if not connection.has("segments"):
        return None
    found: Any = connection.execute(_AT, (key_of(sid, 0), key_of(sid, sequence))).fetchone()
    if found is None or (type(found[1]) is int and found[1] < sequence):
        return None
    return _row(connection, found)


def line(
    connection: Connection, sid: int, uid: bytes, sequence: int, *, delta: bool
) -> list[CheckpointRow | Unreadable]:
    """A packed checkpoint and its ancestors, newest first, down to one with a keyframe, or to one that is not there."""
    rows: list[CheckpointRow | Unreadable] = []
    at: int | None = sequence
    while at is not None:
        segment = find(connection, sid, uid, at)
        if isinstance(segment, Unreadable):
            rows.append(Unreadable(at, segment.why))
            break
        found = [] if segment is None else segment.rows(segment.line(at), delta=delta, refs=delta)
        rows += found
        if not found or (isinstance(found[-1], CheckpointRow) and found[-1].keyframe):
            break
        at = found[-1].parent
    return rows


def stretches(
    connection: Connection, sid: int, uid: bytes, keyframe: int, sequence: int
) -> list[tuple[Segment, list[int]]] | None:
    """The same as places in segments, oldest first; None if it does not end at this keyframe, or anything is amiss."""
    found: list[tuple[Segment, list[int]]] = []
    low = sid << SEQUENCE_BITS
    bounds = low, low + keyframe, low + sequence
    rows: Any = connection.execute(_BETWEEN, bounds).fetchall() if connection.has("segments") else ()
    at: int | None = sequence
    for key, last, needs, links, body in rows:
        if type(last) is not int or type(links) is not bytes or type(body) is not bytes:
            return None
        first = key - low
        if at is None or not first <= at <= last:
            continue
        segment = open_segment(SegmentRow(first, last, needs, links, body), uid=uid)
        places = segment.line(at)[::-1] if segment.is_readable else []
        if not places:
            return None
        found.append((segment, places))
        at = segment.parent(places[0])
        if segment.sequences[places[0]] == keyframe:
            return found[::-1]
    return None


def page(
    connection: Connection, sid: int, *, after: int, before: int, limit: int, down: bool
) -> Iterator[SegmentRow | Unreadable]:
    """Segments whose last is behind `after` and whose first is before `before`, one by one."""
    if connection.has("segments"):
        bounds = key_of(sid, 0), key_of(sid, 0) + before, after, limit
        rows: Any = connection.execute(_DOWN if down else _UP, bounds).fetchall()
        for columns in rows:
            yield _row(connection, columns)


def count(connection: Connection, sid: int, uid: bytes) -> int:
    """How many checkpoints are packed, each counted once: segments that overlap are pages in the place of others."""
    if not connection.has("segments"):
        return 0
    total = before = 0
    rows: Any = connection.execute(_ALL, (key_of(sid, 0), key_of(sid, MAX_SEQUENCE)))
    for key, last, needs, links in rows:
        first = sequence_in(key)
        if type(last) is int and type(links) is bytes and first > before:
            total += len(Segment(SegmentRow(first, last, needs, links, b""), uid))
            before = last
    return total


def entries_of(connection: Connection, sid: int, uid: bytes) -> Iterator[tuple[Segment | Unreadable, set[Entry]]]:
    """Every segment of a session with what must lead to its checkpoints."""
    if connection.has("segments"):
        rows: Any = connection.execute(_ALL, (key_of(sid, 0), key_of(sid, MAX_SEQUENCE))).fetchall()
        for columns in rows:
            kept = _row(connection, columns)
            if isinstance(kept, Unreadable):
                yield kept, set()
            else:
                segment = Segment(kept, uid)
                yield segment, _entries(segment, sid)


def _entries(segment: Segment, sid: int) -> set[Entry]:
    found: set[Entry] = set()
    for sequence, parent in segment.links:
        if parent != sequence - 1:
            found |= child_entries(sequence, parent, sid)
    try:
        found |= {(schema.FOREIGN, id_, sid, at) for at, id_ in segment.foreign().items()}
    except CorruptionError:
        return found
    return found


# writing


def reaching(connection: Connection, sid: int, first: int, last: int) -> list[SegmentRow | Unreadable]:
    """The segments that reach into a stretch of checkpoints."""
    if not connection.has("segments"):
        return []
    bounds = key_of(sid, 0), key_of(sid, first), key_of(sid, last), first
    rows: Any = connection.execute(_REACHING, bounds).fetchall()
    return [_row(connection, columns) for columns in rows]


def put(connection: Connection, sid: int, row: SegmentRow) -> None:
    """A segment where none is."""
    connection.execute(_PUT, (key_of(sid, row.first), row.last, row.needs, row.links, row.body))


def drop(connection: Connection, sid: int, first: int) -> None:
    """A segment goes."""
    connection.execute(_DROP, (key_of(sid, first),))


def entries(kept: SegmentRow | Unreadable | None, sid: int, uid: bytes) -> set[Entry]:
    """What leads to the checkpoints of a segment, as far as it can be read."""
    return _entries(open_segment(kept, uid=uid), sid) if isinstance(kept, SegmentRow) else set()
