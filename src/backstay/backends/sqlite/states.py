"""A state: the rows from a keyframe to a checkpoint, packed or not, with their blobs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import apsw

from backstay.backends.sqlite import packed
from backstay.backends.sqlite.connections import Connection, is_damage
from backstay.backends.sqlite.schema import SEQUENCE_BITS, key_of
from backstay.backends.sqlite.views import (
    Line,
    blobs,
    find_line,
    open_body,
    refuse_miscount,
    refuse_miscounted_names,
    walk,
)
from backstay.codec import is_held
from backstay.errors import CorruptionError
from backstay.ids import MAX_SEQUENCE
from backstay.port import CheckpointRow, Kind, LaneRow, Records, TagRow, Unreadable
from backstay.port.packed_line import PackedLine
from backstay.port.row_codec import open_checkpoints

_KEYFRAME = "SELECT body FROM keyframes WHERE key = ?"
_LAST_KEYFRAME = "SELECT key, body FROM keyframes WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC LIMIT 1"
_UP = "SELECT key, parent, body FROM checkpoints WHERE key BETWEEN ?1 AND ?2 ORDER BY key"
_REFS = "SELECT number, digest FROM refs WHERE sid = ? AND kind = ? AND number BETWEEN ? AND ?"

_NO_BLOBS: dict[bytes, bytes] = {}


def state(session: str, ref: str | int, connection: Connection, *, salvage: bool, without: Collection[int]) -> Records:
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
    if at is not None and not salvage and not without:
        straight = _straight(connection, line, at)
        if straight is not None:
            no_blobs = connection.tables.get("refs") is False
            pieces = _NO_BLOBS if no_blobs else _blobs_of(connection, line, straight[0])
            return Records(line.row, lane, straight[0], straight[1], pieces)
    rows: list[CheckpointRow | Unreadable] = []
    keyframe: bytes | None = None
    for row in () if at is None else walk(connection, line, at, expected=line.name is not None, delta=True):
        if isinstance(row, Unreadable) and not salvage:
            raise CorruptionError(f"session {line.row.id!r}: {row.why}", hint="run verify")
        rows.append(row)
        keyframe = _keyframe(connection, line, row, salvage=salvage, without=without)
        if keyframe is not None:
            break
    if not rows and isinstance(ref, int):
        refuse_miscount(connection, line)
    rows.reverse()
    return Records(line.row, lane, tuple(rows), keyframe, _blobs_of(connection, line, rows, salvage=salvage))


def _straight(connection: Connection, line: Line, at: int) -> tuple[Sequence[CheckpointRow | Unreadable], bytes] | None:
    """The rows from a keyframe to a checkpoint, oldest first, where those that are not packed rest on one another.

    That is how most lie, and then they are opened in one go. None if they do not, or anything is amiss: then they are
    looked for one by one, and what is wrong is said.
    """
    low, high, edge = line.sid << SEQUENCE_BITS, line.sid << SEQUENCE_BITS | at, line.row.packed
    if not 0 < at <= MAX_SEQUENCE:
        return None
    try:
        last: Any = connection.execute(_LAST_KEYFRAME, (low, high)).fetchone()
        if last is None or type(last[1]) is not bytes:
            return None
        first = max(last[0], low + edge + 1)
        found: Any = connection.execute(_UP, (first, high)).fetchall() if at > edge else []
        if len(found) != max(high - first + 1, 0):
            return None
        columns = []
        sequence = first - low
        for key, parent, body in found:
            if key != low + sequence or type(body) is not bytes:
                return None
            if parent != sequence - 1 if key != first else not isinstance(parent, int | None):
                return None
            columns.append((sequence, parent, body))
            sequence += 1
        rows = open_checkpoints(columns, uid=line.row.uid)
        for row in rows:
            if type(row) is not CheckpointRow or row.keyframe is not (row.sequence == last[0] - low):
                return None
        if last[0] - low > edge:
            return rows, last[1]
        start = rows[0].parent if rows else at
        if start is not None and last[0] - low > start:
            last = connection.execute(_LAST_KEYFRAME, (low, low + start)).fetchone()
        if start is None or last is None or type(last[1]) is not bytes:
            return None
        parts = packed.stretches(connection, line.sid, line.row.uid, last[0] - low, start)
    except apsw.Error as error:
        if not is_damage(error):
            raise
        return None
    return None if parts is None else (PackedLine(parts, rows), last[1])


def _keyframe(
    connection: Connection, line: Line, row: CheckpointRow | Unreadable, *, salvage: bool, without: Collection[int]
) -> bytes | None:
    sequence = _number(row)
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
        raise CorruptionError(message, hint="run verify")
    return None if found is None else open_body(found[0])


def _number(row: CheckpointRow | Unreadable) -> Any:
    return row.key if isinstance(row, Unreadable) else row.sequence


def _blobs_of(
    connection: Connection, line: Line, rows: Sequence[CheckpointRow | Unreadable], *, salvage: bool = False
) -> dict[bytes, bytes]:
    """The blobs of rows that are oldest first: the oldest needs those of its keyframe, the others their own."""
    if not rows or not connection.has("refs"):
        return {}
    oldest = _number(rows.oldest if isinstance(rows, PackedLine) else rows[0])
    wanted: Any = connection.execute(_REFS, (line.sid, Kind.KEYFRAME, oldest, oldest)).fetchall()
    if isinstance(rows, PackedLine):
        wanted += [(0, digest) for digest in rows.refs]
        others = {_number(row) for row in rows.rows}
    else:
        others = {at for at in map(_number, rows[1:]) if at > line.row.packed}
        for row in rows[1:]:
            if isinstance(row, CheckpointRow) and row.sequence <= line.row.packed:
                wanted += [(row.sequence, digest) for digest in row.refs or ()]
    if others:
        between: Any = connection.execute(_REFS, (line.sid, Kind.CHECKPOINT, min(others), max(others)))
        wanted += [(number, digest) for number, digest in between if number in others]
    odd = [digest for _, digest in wanted if type(digest) is not bytes]
    if odd and not salvage:
        raise CorruptionError(f"session {line.row.id[:64]!r} has a reference that is no digest")
    digests = {digest for _, digest in wanted if type(digest) is bytes and not is_held(digest)}
    if not salvage:
        return blobs(connection, digests)
    found: dict[bytes, bytes] = {}
    for digest in digests:
        with contextlib.suppress(apsw.CorruptError, apsw.IOError):  # one in a damaged page costs its own value
            found |= blobs(connection, (digest,))
    return found
