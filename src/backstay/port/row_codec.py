"""Rows as bytes, once for all backends: one sealed body each.

A seal names the row's kind, the uid of its session and its key: a body that is changed, or stands in the place of
another, does not open. A checkpoint's header is sealed apart from its delta, which is the long part and has a seal of
its own: the header is made inside a transaction, where the sequence is known, the delta before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.ids import TAIL_BYTES, id_starts, make_id, match_ours
from backstay.port import LaneQuery
from backstay.port.rows import (
    DOUBTFUL,
    DUE_BITS,
    ENTERED,
    MARK_READY,
    MARK_WAITING,
    WAITING,
    CallKey,
    CallRow,
    CheckpointRow,
    KeyframeRow,
    Kind,
    LaneRow,
    LaneWait,
    Row,
    SegmentRow,
    SessionRow,
    TagRow,
    Took,
    Unreadable,
)
from backstay.sealing import SEAL_BYTES

_LENGTH_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
_session = msgspec.msgpack.Decoder(SessionRow).decode
_lane = msgspec.msgpack.Decoder(LaneRow).decode
_tag = msgspec.msgpack.Decoder(TagRow).decode
_call = msgspec.msgpack.Decoder(CallRow).decode
_segment = msgspec.msgpack.Decoder(tuple[int, int | None, bytes, bytes]).decode

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)  # text that is no UTF-8 is another error than all else
_LANE, _TAG = b"L", b"T"
_TEXT, _RAW = b"T", b"R"


class _Header(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A checkpoint's row without its delta. `id` is empty where it follows from sequence, uid and tail."""

    sequence: int
    id: str
    tail: bytes
    parent: int | None
    parent_id: bytes | None
    parent_digest: bytes | None
    state_digest: bytes
    digest: bytes
    size_bytes: int
    keyframe: bool
    took: Took | None
    fields: bytes


_header = msgspec.msgpack.Decoder(_Header).decode


# Lines and names that were opened or made here, by their keys and their very bytes: every write looks at those that the
# one before it left, and what is the same in every byte, under the same key, need not be unsealed again.
known_lines: dict[tuple[bytes, str], SessionRow] = {}
known_names: dict[tuple[bytes, bytes, str], tuple[LaneRow | TagRow, int]] = {}  # with their marks
_KNOWN_ROWS = 256


def _remember_line(body: bytes, row: SessionRow) -> None:
    if len(known_lines) >= _KNOWN_ROWS:
        known_lines.clear()
    known_lines[body, row.id] = row


def _remember_name(body: bytes, uid: bytes, row: LaneRow | TagRow) -> None:
    if len(known_names) >= _KNOWN_ROWS:
        known_names.clear()
    known_names[body, uid, row.name] = row, marks_of(row)


def pack(row: Row, uid: bytes) -> bytes:
    """The body of a row of the session with this uid."""
    kind = type(row)
    if kind is CheckpointRow:
        return _pack_checkpoint(row, uid)  # type: ignore[arg-type]
    if kind is KeyframeRow:
        return row.data  # type: ignore[union-attr] # sealed by the hall, with the checkpoint's tail and state
    if kind is SegmentRow:  # its parts have seals of their own; a backend may keep them in columns
        return _encode((row.last, row.needs, row.links, row.body))  # type: ignore[union-attr]
    data = _encode(row)
    if kind is CallRow:
        names: tuple[Any, ...] = ("call", uid, row.run, row.journal, row.n)  # type: ignore[union-attr]
        return sha256(_encode(names) + data).digest()[:SEAL_BYTES] + data
    if kind is SessionRow:
        body = sha256(_encode(("session", row.id)) + data).digest()[:SEAL_BYTES] + data  # type: ignore[union-attr]
        _remember_line(body, row)  # type: ignore[arg-type]
        return body
    data = (_LANE if kind is LaneRow else _TAG) + data
    body = sha256(_encode(("name", uid, row.name)) + data).digest()[:SEAL_BYTES] + data  # type: ignore[union-attr]
    _remember_name(body, uid, row)  # type: ignore[arg-type]
    return body


def pack_all(rows: Iterable[Row], uid: bytes) -> list[tuple[Row, bytes, int]]:
    """Rows with their bodies, and what an index says of each: the marks of a name, 1 for a checkpoint's foreign id."""
    packed: list[tuple[Row, bytes, int]] = []
    for row in rows:
        kind = type(row)
        index = 0
        if kind is CheckpointRow:
            index = row.id != make_id(row.sequence, uid, row.tail)  # type: ignore[union-attr]
        elif kind is LaneRow:
            index = marks_of(row)  # type: ignore[arg-type]
        packed.append((row, pack(row, uid), index))
    return packed


def seal(data: bytes, *names: bytes | int | str) -> bytes:
    """A small seal over some bytes and what they are called. Written out where rows come in numbers, to save calls."""
    return sha256(_encode(names) + data).digest()[:SEAL_BYTES]


def open_session(body: bytes, *, id_: str, hidden: bool | None = False) -> SessionRow:
    """A session's line, or a CorruptionError. `hidden` as it must be, None for either."""
    row = known_lines.get((body, id_))
    if row is None:
        data = body[SEAL_BYTES:]
        if sha256(_encode(("session", id_)) + data).digest()[:SEAL_BYTES] != body[:SEAL_BYTES]:
            raise _misplaced(f"the line of session {id_!r}")
        try:
            row = _session(data)
        except _UNREADABLE as error:
            raise CorruptionError(f"the line of session {id_!r} is sealed but does not decode") from error
        if row.id == id_:
            _remember_line(body, row)
    if row.id != id_ or (hidden is not None and row.hidden is not hidden):
        raise _misplaced(f"the line of session {id_!r}")
    return row


def open_name(body: bytes, *, uid: bytes, name: str) -> LaneRow | TagRow:
    """A branch or a tag, or a CorruptionError."""
    known = known_names.get((body, uid, name))
    if known is not None:
        return known[0]
    data = body[SEAL_BYTES:]
    if sha256(_encode(("name", uid, name)) + data).digest()[:SEAL_BYTES] != body[:SEAL_BYTES]:
        raise _misplaced(f"the row of {name!r}")
    try:
        row = _lane(data[1:]) if data[:1] == _LANE else _tag(data[1:])
    except _UNREADABLE as error:
        raise _misplaced(f"the row of {name!r}") from error
    if row.name != name:
        raise _misplaced(f"the row of {name!r}")
    _remember_name(body, uid, row)
    return row


def open_names(rows: Iterable[tuple[Any, Any, Any]], *, uid: bytes) -> dict[str, LaneRow | TagRow]:
    """All branches and tags of a session by name, marks and body, each as `open_name` would open it.

    They are too many to be remembered. CorruptionError if marks are not those of the row.
    """
    found: dict[str, LaneRow | TagRow] = {}
    start = _encode(("name", uid, ""))[:-1]
    for name, marks, body in rows:
        data = body[SEAL_BYTES:] if type(body) is bytes else b""
        if not data or sha256(b"".join([start, _encode(name), data])).digest()[:SEAL_BYTES] != body[:SEAL_BYTES]:
            raise _misplaced(f"the row of {name!r}")
        try:
            row = _lane(data[1:]) if data[:1] == _LANE else _tag(data[1:])
        except msgspec.DecodeError as error:
            raise _misplaced(f"the row of {name!r}") from error
        if row.name != name:
            raise _misplaced(f"the row of {name!r}")
        if marks != marks_of(row):
            raise CorruptionError(f"the row of {name!r} does not agree with its index", hint=RUN_VERIFY)
        found[name] = row
    return found


def marks_of(row: LaneRow | TagRow) -> int:
    """The marks a backend keeps beside the body of a branch, and above them when it is due; a tag has none."""
    if type(row) is not LaneRow:
        return 0
    marks = (ENTERED if row.entered else 0) | (DOUBTFUL if row.doubts else 0)
    if row.status == WAITING:
        marks |= MARK_WAITING
    if type(row.wait) is LaneWait:
        marks |= MARK_READY if row.wait.ready else 0
        if row.wait.due_us is not None:  # never early: rounded up
            marks |= max(1, -(-row.wait.due_us // 1000)) << DUE_BITS
    return marks


def are_wanted(marks: int, query: LaneQuery, wall_us: int) -> bool:
    """True if a branch with these marks is one that a query asks for."""
    return bool(marks & query.marks) or (query.due and 0 < marks >> DUE_BITS <= wall_us // 1000)


def joined(marks: Iterable[int]) -> int:
    """The marks of several branches as one: a query that wants one of the branches wants this."""
    flags, due = 0, 0
    for each in marks:
        flags |= each & ((1 << DUE_BITS) - 1)
        at = each >> DUE_BITS
        due = min(due, at) if due and at else due or at
    return flags | due << DUE_BITS


def open_call(body: bytes, *, uid: bytes, at: CallKey) -> CallRow | Unreadable:
    """A journaled call; Unreadable where it is damaged, because a run can be given up all the same."""
    data = body[SEAL_BYTES:]
    if sha256(_encode(("call", uid, *at)) + data).digest()[:SEAL_BYTES] != body[:SEAL_BYTES]:
        return Unreadable(at, "a journaled call is damaged, or stands in the place of another")
    try:
        row = _call(data)
    except _UNREADABLE:
        return Unreadable(at, "a journaled call is sealed but does not decode")
    if (row.run, row.journal, row.n) != at:
        return Unreadable(at, "a journaled call stands in the place of another")
    return row


def open_checkpoint(body: bytes, *, uid: bytes, sequence: int, parent: int | None) -> CheckpointRow | Unreadable:
    """A checkpoint; Unreadable where its header is damaged or does not agree with its index columns."""
    return open_checkpoints([(sequence, parent, body)], uid=uid)[0]


def open_checkpoints(rows: Sequence[tuple[int, int | None, bytes]], *, uid: bytes) -> list[CheckpointRow | Unreadable]:
    """Checkpoints by sequence, parent and body, each as `open_checkpoint` would open it: a long chain in one go."""
    found: list[CheckpointRow | Unreadable] = []
    starts = id_starts([row[0] for row in rows], uid)
    start = SEAL_BYTES + _LENGTH_BYTES
    why = ""
    for (sequence, parent, body), id_start in zip(rows, starts, strict=True):
        if parent is not None and parent >= sequence:  # whoever follows it must come to an end
            found.append(Unreadable(sequence, f"checkpoint #{sequence} does not agree with its index"))
            continue
        end = start + int.from_bytes(body[SEAL_BYTES:start], "big")
        data = body[start:end]
        if sha256(_encode(("checkpoint", uid, sequence)) + data).digest()[:SEAL_BYTES] != body[:SEAL_BYTES]:
            why = "is damaged, or stands in the place of another"
        elif len(body) < end:
            why = "is cut off"
        else:
            try:
                header = _header(data)
                short = header.parent_id
                parent_id = None if short is None else short[1:].hex() if short[:1] == _RAW else short[1:].decode()
                if header.sequence != sequence or header.parent != parent or len(header.tail) != TAIL_BYTES:
                    why = "does not agree with its index"
            except _UNREADABLE:
                why = "is sealed but does not decode"
        if why:
            found.append(Unreadable(sequence, f"checkpoint #{sequence} {why}", parent))
            why = ""
            continue
        found.append(
            CheckpointRow(
                sequence,
                header.id or id_start + header.tail.hex(),
                header.tail,
                parent,
                parent_id,
                header.parent_digest,
                header.state_digest,
                header.digest,
                header.size_bytes,
                header.keyframe,
                header.took,
                header.fields,
                body[end:],
            )
        )
    return found


def open_row(kind: Kind, key: Any, body: bytes, *, uid: bytes, parent: int | None = None) -> Row | Unreadable:
    """A row of any kind but a session's line; as the function for its kind says."""
    if kind is Kind.NAME:
        return open_name(body, uid=uid, name=key)
    if kind is Kind.CALL:
        return open_call(body, uid=uid, at=key)
    if kind is Kind.KEYFRAME:
        return KeyframeRow(key, body)
    if kind is Kind.SEGMENT:
        return _open_segment(key, body)
    return open_checkpoint(body, uid=uid, sequence=key, parent=parent)


def _open_segment(first: int, body: bytes) -> SegmentRow | Unreadable:
    try:
        return SegmentRow(first, *_segment(body))
    except msgspec.DecodeError:
        return Unreadable(first, f"the segment of checkpoint #{first} does not decode")


def foreign_id(body: bytes, *, uid: bytes, sequence: int) -> str | None:
    """The id of a checkpoint, if it does not say where its row is; CorruptionError if its header is damaged."""
    at = SEAL_BYTES + _LENGTH_BYTES
    data = body[at : at + int.from_bytes(body[SEAL_BYTES:at], "big")]
    if seal(data, "checkpoint", uid, sequence) != body[:SEAL_BYTES]:
        raise _misplaced(f"checkpoint #{sequence}")
    try:
        return _header(data).id or None
    except _UNREADABLE as error:
        raise CorruptionError(f"checkpoint #{sequence} is sealed but does not decode") from error


def _pack_checkpoint(row: CheckpointRow, uid: bytes) -> bytes:
    ours = row.id == make_id(row.sequence, uid, row.tail)
    parent = row.parent_id
    if parent is not None:  # an id in few bytes: one of our making as its raw bytes, any other as its text
        short = _RAW + bytes.fromhex(parent) if match_ours(parent) else _TEXT + parent.encode()
    header = _encode(
        _Header(
            row.sequence,
            "" if ours else row.id,
            row.tail,
            row.parent,
            None if parent is None else short,
            row.parent_digest,
            row.state_digest,
            row.digest,
            row.size_bytes,
            row.keyframe,
            row.took,
            row.fields,
        )
    )
    stamp = sha256(_encode(("checkpoint", uid, row.sequence)) + header).digest()[:SEAL_BYTES]
    return b"".join([stamp, len(header).to_bytes(_LENGTH_BYTES, "big"), header, row.delta])


def is_foreign(row: CheckpointRow, uid: bytes) -> bool:
    """True if a checkpoint's id does not say where its row is, and needs an index."""
    return row.id != make_id(row.sequence, uid, row.tail)


def _misplaced(what: str) -> CorruptionError:
    return CorruptionError(f"{what} is damaged, or stands in the place of another", hint=RUN_VERIFY)
