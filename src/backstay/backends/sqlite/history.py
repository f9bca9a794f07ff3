"""A session's history: along the parents, by page, and the records that a state is read from."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import apsw

from backstay.backends.sqlite import journals, schema
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
)
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.ids import MAX_SEQUENCE
from backstay.port import CheckpointRow, Key, KeyframeRow, Kind, LaneRow, Records, Row, TagRow, Unreadable
from backstay.port.row_codec import open_name

_DOWN = "SELECT key, parent, body FROM checkpoints WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC"
_KEYFRAME = "SELECT body FROM keyframes WHERE key = ?"
_REFS = "SELECT number, digest FROM refs WHERE sid = ? AND kind = ? AND number BETWEEN ? AND ?"
_BLOB = "SELECT digest, data FROM blobs WHERE digest = ?"
_CHECKPOINTS = "SELECT key, parent, body FROM checkpoints WHERE key > ?1 AND key < ?2 ORDER BY key {} LIMIT ?3"
_KEYFRAMES = "SELECT key, body FROM keyframes WHERE key > ?1 AND key < ?2 ORDER BY key {} LIMIT ?3"
_NAMES = "SELECT name, body FROM rows WHERE sid = ? AND kind = 1 AND name > ? AND name < ? ORDER BY name {} LIMIT ?"


def walk(connection: Connection, line: Line, sequence: int, *, expected: bool) -> Iterator[CheckpointRow | Unreadable]:
    """A checkpoint and its ancestors along `parent`, newest first; Unreadable where one is missing.

    Most rest on the one before, so they are read as they lie; where one does not, its parent is looked for.
    `expected`: something leads to the first; otherwise it may be absent, and then nothing comes.
    """
    at: int | None = sequence
    while at is not None and 0 < at <= MAX_SEQUENCE:
        here = at
        try:
            rows: Any = connection.execute(_DOWN, (key_of(line.sid, 0), key_of(line.sid, at)))
            for key, parent, body in rows:
                if sequence_in(key) != at:
                    break
                row = open_found(line, at, parent, body)
                yield row
                at, expected = row.parent, True
                if at is None:
                    return
        except apsw.Error as error:
            if not is_damage(error):
                raise
            if at == here:
                yield Unreadable(here, f"checkpoint #{here} is in a damaged page")
                return
        if at == here:
            if expected:
                yield Unreadable(here, f"checkpoint #{here} is missing")
            return


def ancestors(connection: Connection, session: str, sequence: int, limit: int) -> Sequence[CheckpointRow | Unreadable]:
    """A checkpoint and its ancestors."""
    line = find_line(connection, session)
    if line is None or limit <= 0:
        return []
    found = list(itertools.islice(walk(connection, line, sequence, expected=False), limit))
    if not found:
        refuse_miscount(connection, line)
    return found


def state(connection: Connection, session: str, ref: str | int, *, salvage: bool, without: Collection[int]) -> Records:
    """The rows down to a keyframe, with their blobs."""
    line = find_line(connection, session, name=ref if isinstance(ref, str) else None)
    if line is None:
        return Records(None)
    lane = line.name if isinstance(line.name, LaneRow) else None
    at = ref if isinstance(ref, int) else None
    if isinstance(line.name, TagRow):
        at = line.name.sequence
    if lane is not None and lane.head is not None:
        at = lane.head.sequence
    if line.name is None and isinstance(ref, str):
        refuse_miscounted_names(connection, line)
    rows: list[CheckpointRow | Unreadable] = []
    keyframe: bytes | None = None
    for row in () if at is None else walk(connection, line, at, expected=line.name is not None):
        if isinstance(row, Unreadable) and not salvage:
            raise CorruptionError(f"session {line.row.id!r}: {row.why}", hint=RUN_VERIFY)
        rows.append(row)
        keyframe = _keyframe(connection, line, row, salvage=salvage, without=without)
        if keyframe is not None:
            break
    if not rows and isinstance(ref, int):
        refuse_miscount(connection, line)
    return Records(line.row, lane, tuple(rows[::-1]), keyframe, _blobs_of(connection, line, rows))


def _keyframe(
    connection: Connection, line: Line, row: CheckpointRow | Unreadable, *, salvage: bool, without: Collection[int]
) -> bytes | None:
    sequence: Any = row.key if isinstance(row, Unreadable) else row.sequence
    if sequence in without or (isinstance(row, CheckpointRow) and not row.keyframe):
        return None
    try:
        found: Any = connection.execute(_KEYFRAME, (key_of(line.sid, sequence),)).fetchone()
    except apsw.Error as error:
        if not salvage or not is_damage(error):
            raise
        return None
    if found is None and not salvage:
        message = f"session {line.row.id!r}: the keyframe of checkpoint #{sequence} is missing"
        raise CorruptionError(message, hint=RUN_VERIFY)
    return None if found is None else open_body(found[0])


def _blobs_of(connection: Connection, line: Line, rows: Sequence[CheckpointRow | Unreadable]) -> dict[bytes, bytes]:
    """The blobs of rows that are newest first: the oldest needs those of its keyframe, the others their own."""
    if not rows or not connection.has("refs"):
        return {}
    numbers: list[Any] = [row.key if isinstance(row, Unreadable) else row.sequence for row in rows]
    oldest, others = numbers[-1], set(numbers[:-1])
    wanted: Any = connection.execute(_REFS, (line.sid, Kind.KEYFRAME, oldest, oldest)).fetchall()
    if others:
        between: Any = connection.execute(_REFS, (line.sid, Kind.CHECKPOINT, min(others), max(others)))
        wanted += [(number, digest) for number, digest in between if number in others]
    return blobs(connection, {digest for _, digest in wanted})


def blobs(connection: Connection, digests: Iterable[bytes]) -> dict[bytes, bytes]:
    """Blobs as they are kept; what is not here is left out."""
    if not connection.has("blobs"):
        return {}
    rows: Any = connection.executemany(_BLOB, [(digest,) for digest in digests])
    return {digest: open_body(data) for digest, data in rows}


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
    if kind not in (Kind.CHECKPOINT, Kind.KEYFRAME):
        return []
    first = min(max(after, 0), MAX_SEQUENCE) if isinstance(after, int) else 0
    last = min(max(before, 0), MAX_SEQUENCE + 1) if isinstance(before, int) else MAX_SEQUENCE + 1
    bounds = (key_of(line.sid, first), key_of(line.sid, 0) + last, limit)
    if kind is Kind.KEYFRAME:
        rows = connection.execute(_KEYFRAMES.format(order), bounds)
        return [KeyframeRow(sequence_in(key), open_body(body)) for key, body in _some(rows)]
    return _checkpoints(connection, line, order, bounds)


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
        return [open_found(line, sequence_in(key), parent, body) for key, parent, body in rows]
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
