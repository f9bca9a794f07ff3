"""A session's history: along the parents, and by page."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import apsw

from backstay.backends.sqlite import journals, packed, schema
from backstay.backends.sqlite.connections import Connection, is_damage
from backstay.backends.sqlite.schema import key_of, sequence_in
from backstay.backends.sqlite.views import (
    Line,
    find_checkpoint,
    find_line,
    open_body,
    open_found,
    refuse_miscount,
    refuse_miscounted_names,
    walk,
)
from backstay.errors import CorruptionError
from backstay.ids import MAX_SEQUENCE
from backstay.port import CheckpointRow, Key, KeyframeRow, Kind, Row, Unreadable
from backstay.port.row_codec import open_checkpoints, open_name
from backstay.port.segments import open_segment

_CHECKPOINTS = "SELECT key, parent, body FROM checkpoints WHERE key > ?1 AND key < ?2 ORDER BY key {} LIMIT ?3"
_KEYFRAMES = "SELECT key, body FROM keyframes WHERE key > ?1 AND key < ?2 ORDER BY key {} LIMIT ?3"
_NAMES = "SELECT name, body FROM rows WHERE sid = ? AND kind = 1 AND name > ? AND name < ? ORDER BY name {} LIMIT ?"


def ancestors(connection: Connection, session: str, sequence: int, limit: int) -> Sequence[CheckpointRow | Unreadable]:
    """A checkpoint and its ancestors."""
    line = find_line(connection, session)
    if line is None or limit <= 0:
        return []
    found = list(itertools.islice(walk(connection, line, sequence, expected=False), limit))
    if not found:
        refuse_miscount(connection, line)
    return found


# pages


def _some(cursor: Any) -> list[Any]:
    """Rows up to a weight that can be held: those of a file from outside may each be as long as they please."""
    found: list[Any] = []
    weight = 0
    for row in cursor:
        found.append(row)
        weight += len(row[-1]) if type(row[-1]) is bytes else 0
        if weight > schema.PAGE_BYTES:
            cursor.close()
            break
    return found


def scan(
    connection: Connection, line: Line, kind: Kind, *, after: Key | None, before: Key | None, limit: int
) -> list[Row | Unreadable]:
    """A page of rows of one kind. Where it comes to an end, the whole is counted: absence is verified."""
    order = "ASC" if before is None else "DESC"
    if kind is Kind.NAME:
        # Bytes come after every text.
        bounds: Any = (line.sid, after or "", b"" if before is None else before, limit)
        rows: Any = _some(connection.execute(_NAMES.format(order), bounds))
        if len(rows) < limit:
            refuse_miscounted_names(connection, line)
        return [_named(line, name, body) for name, body in rows]
    if kind is Kind.CALL:
        ends: Any = {"after": after, "before": before}
        return [*journals.page(connection, line.sid, line.row.uid, **ends, limit=limit)]
    if kind not in (Kind.CHECKPOINT, Kind.KEYFRAME, Kind.SEGMENT):
        return []
    first = min(max(after, 0), MAX_SEQUENCE) if isinstance(after, int) else 0
    last = min(max(before, 0), MAX_SEQUENCE + 1) if isinstance(before, int) else MAX_SEQUENCE + 1
    if kind is Kind.SEGMENT:
        down = before is not None
        return list(packed.page(connection, line.sid, after=first, before=last, limit=limit, down=down))
    bounds = (key_of(line.sid, first), key_of(line.sid, 0) + last, limit)
    if kind is Kind.KEYFRAME:
        rows = connection.execute(_KEYFRAMES.format(order), bounds)
        return [KeyframeRow(sequence_in(key), open_body(body)) for key, body in _some(rows)]
    if not line.row.packed:
        return _checkpoints(connection, line, order, bounds)
    return _both(connection, line, first, last, limit, down=before is not None)


def _both(connection: Connection, line: Line, first: int, last: int, limit: int, *, down: bool) -> list[Any]:
    """A page of checkpoints behind `first` and before `last`: those that are packed, and those behind them."""
    edge = line.row.packed
    low, high = key_of(line.sid, max(first, edge)), key_of(line.sid, 0) + last
    found: list[Any] = []
    if down:
        if last > edge + 1:
            found = _checkpoints(connection, line, "DESC", (low, high, limit))
            if (
                len(found) >= limit
                or sum([len(row.delta) for row in found if isinstance(row, CheckpointRow)]) > schema.PAGE_BYTES
            ):
                return found
        found += _packed(connection, line, first, min(last, edge + 1), limit - len(found), down=True)[0]
        if not found:
            refuse_miscount(connection, line)
        return found
    if first < edge:
        found, cut = _packed(connection, line, first, min(last, edge + 1), limit, down=False)
        if cut:
            return found
    return found + _checkpoints(connection, line, "ASC", (low, high, limit - len(found)))


def _packed(
    connection: Connection, line: Line, first: int, last: int, limit: int, *, down: bool
) -> tuple[list[Any], bool]:
    """Packed checkpoints, and whether there are more of them, or enough came."""
    found: list[Any] = []
    weight = 0
    for kept in packed.page(connection, line.sid, after=first, before=last, limit=limit, down=down):
        if isinstance(kept, Unreadable):
            found.append(kept)
            continue
        segment = open_segment(kept, uid=line.row.uid)
        places = [place for place, at in enumerate(segment.sequences) if first < at < last]
        found += segment.rows(places[:: -1 if down else 1][: limit - len(found)], delta=True)
        weight += segment.size_bytes
        if len(found) >= limit or weight > schema.PAGE_BYTES:
            return found, True
    return found, False


def _named(line: Line, name: Any, body: Any) -> Row | Unreadable:
    try:
        return open_name(open_body(body), uid=line.row.uid, name=name)
    except CorruptionError as error:
        return Unreadable(name, str(error.args[0]))


def _checkpoints(connection: Connection, line: Line, order: str, bounds: tuple[int, int, int]) -> list[Any]:
    try:
        rows = _some(connection.execute(_CHECKPOINTS.format(order), bounds))
        if len(rows) < bounds[2]:
            refuse_miscount(connection, line)
        columns = [(sequence_in(key), parent, body) for key, parent, body in rows]
        if all([type(body) is bytes and isinstance(parent, int | None) for _, parent, body in columns]):
            return [*open_checkpoints(columns, uid=line.row.uid)]
        return [open_found(line, *row) for row in columns]
    except apsw.Error as error:
        if not is_damage(error):
            raise
    # A page is damaged: what lies in others can be had one by one.
    numbers = range(sequence_in(bounds[0]) + 1, min(bounds[1] - key_of(line.sid, 0), line.row.sequence + 1))
    found = []
    for sequence in numbers if order == "ASC" else reversed(numbers):
        row = find_checkpoint(connection, line, sequence)
        if row is not None:
            found.append(row)
        if len(found) >= bounds[2]:
            break
    return found
