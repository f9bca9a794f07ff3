"""Rows as bytes, once for all backends: one sealed body each.

A seal names the row's kind, the uid of its session and its key: a body that is changed, or stands in the place of
another, does not open. A checkpoint's header is sealed apart from its delta, which is the long part and has a seal of
its own: the header is made inside a transaction, where the sequence is known, the delta before it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.errors import CorruptionError
from backstay.ids import TAIL_BYTES, is_ours, make_id
from backstay.port.rows import (
    CallKey,
    CallRow,
    CheckpointRow,
    KeyframeRow,
    Kind,
    LaneRow,
    Row,
    SessionRow,
    TagRow,
    Took,
    Unreadable,
)
from backstay.sealing import SEAL_BYTES, seal

_LENGTH_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
_session = msgspec.msgpack.Decoder(SessionRow).decode
_lane = msgspec.msgpack.Decoder(LaneRow).decode
_tag = msgspec.msgpack.Decoder(TagRow).decode
_call = msgspec.msgpack.Decoder(CallRow).decode

_LANE, _TAG = b"L", b"T"
_NAMED = (LaneRow, TagRow)  # made once: with every call a union would be made anew
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


def pack(row: Row, uid: bytes) -> bytes:
    """The body of a row of the session with this uid."""
    if isinstance(row, CheckpointRow):
        return _pack_checkpoint(row, uid)
    if isinstance(row, KeyframeRow):
        return row.data  # sealed by the hall, with the checkpoint's tail and state
    data = _encode(row)
    if isinstance(row, _NAMED):
        data = (_LANE if isinstance(row, LaneRow) else _TAG) + data
        return seal(data, "name", uid, row.name) + data
    if isinstance(row, CallRow):
        return seal(data, "call", uid, *row.at) + data
    return seal(data, "session", row.id) + data


def open_session(body: bytes, *, id_: str, hidden: bool | None = False) -> SessionRow:
    """A session's line, or a CorruptionError. `hidden` as it must be, None for either."""
    what = f"the line of session {id_!r}"
    row: SessionRow = _opened(body, _session, what, "session", id_)
    if row.id != id_ or hidden not in (None, row.hidden):
        raise _misplaced(what)
    return row


def open_name(body: bytes, *, uid: bytes, name: str) -> LaneRow | TagRow:
    """A branch or a tag, or a CorruptionError."""
    data = body[SEAL_BYTES:]
    if seal(data, "name", uid, name) != body[:SEAL_BYTES]:
        raise _misplaced(f"the row of {name!r}")
    try:
        row = _lane(data[1:]) if data[:1] == _LANE else _tag(data[1:])
    except msgspec.DecodeError as error:
        raise _misplaced(f"the row of {name!r}") from error
    if row.name != name:
        raise _misplaced(f"the row of {name!r}")
    return row


def open_call(body: bytes, *, uid: bytes, at: CallKey) -> CallRow | Unreadable:
    """A journaled call; Unreadable where it is damaged, because a run can be given up all the same."""
    try:
        row = _opened(body, _call, "a journaled call", "call", uid, *at)
    except CorruptionError as error:
        return Unreadable(at, str(error.args[0]))
    return row if row.at == at else Unreadable(at, "a journaled call stands in the place of another")


def open_checkpoint(body: bytes, *, uid: bytes, sequence: int, parent: int | None) -> CheckpointRow | Unreadable:
    """A checkpoint; Unreadable where its header is damaged or does not agree with its index columns."""
    if parent is not None and parent >= sequence:  # whoever follows it must come to an end
        return Unreadable(sequence, f"checkpoint #{sequence} does not agree with its index")
    at = SEAL_BYTES + _LENGTH_BYTES
    size = int.from_bytes(body[SEAL_BYTES:at], "big")
    data = body[at : at + size]
    if len(data) != size or seal(data, "checkpoint", uid, sequence) != body[:SEAL_BYTES]:
        return Unreadable(sequence, f"checkpoint #{sequence} is damaged, or stands in the place of another", parent)
    try:
        header = _header(data)
        parent_id = None if header.parent_id is None else _long_id(header.parent_id)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Unreadable(sequence, f"checkpoint #{sequence} is sealed but does not decode", parent)
    if (header.sequence, header.parent) != (sequence, parent) or len(header.tail) != TAIL_BYTES:
        return Unreadable(sequence, f"checkpoint #{sequence} does not agree with its index", parent)
    return CheckpointRow(
        sequence,
        header.id or make_id(sequence, uid, header.tail),
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
        body[at + size :],
    )


def open_row(kind: Kind, key: Any, body: bytes, *, uid: bytes, parent: int | None = None) -> Row | Unreadable:
    """A row of any kind but a session's line; as the function for its kind says."""
    if kind is Kind.NAME:
        return open_name(body, uid=uid, name=key)
    if kind is Kind.CALL:
        return open_call(body, uid=uid, at=key)
    if kind is Kind.KEYFRAME:
        return KeyframeRow(key, body)
    return open_checkpoint(body, uid=uid, sequence=key, parent=parent)


def foreign_id(body: bytes, *, uid: bytes, sequence: int) -> str | None:
    """The id of a checkpoint, if it does not say where its row is; CorruptionError if its header is damaged."""
    at = SEAL_BYTES + _LENGTH_BYTES
    data = body[at : at + int.from_bytes(body[SEAL_BYTES:at], "big")]
    if seal(data, "checkpoint", uid, sequence) != body[:SEAL_BYTES]:
        raise _misplaced(f"checkpoint #{sequence}")
    try:
        return _header(data).id or None
    except msgspec.DecodeError as error:
        raise CorruptionError(f"checkpoint #{sequence} is sealed but does not decode") from error


def _pack_checkpoint(row: CheckpointRow, uid: bytes) -> bytes:
    ours = row.id == make_id(row.sequence, uid, row.tail)
    header = _encode(
        _Header(
            row.sequence,
            "" if ours else row.id,
            row.tail,
            row.parent,
            _short_id(row.parent_id),
            row.parent_digest,
            row.state_digest,
            row.digest,
            row.size_bytes,
            row.keyframe,
            row.took,
            row.fields,
        )
    )
    size = len(header).to_bytes(_LENGTH_BYTES, "big")
    return seal(header, "checkpoint", uid, row.sequence) + size + header + row.delta


def is_foreign(row: CheckpointRow, uid: bytes) -> bool:
    """True if a checkpoint's id does not say where its row is, and needs an index."""
    return row.id != make_id(row.sequence, uid, row.tail)


def _short_id(id_: str | None) -> bytes | None:
    """An id in few bytes: one of our making as its raw bytes, any other as its text."""
    if id_ is None:
        return None
    return _RAW + bytes.fromhex(id_) if is_ours(id_) else _TEXT + id_.encode()


def _long_id(data: bytes) -> str:
    return data[1:].hex() if data[:1] == _RAW else data[1:].decode()


def _opened(body: bytes, decode: Any, what: str, *names: Any) -> Any:
    data = body[SEAL_BYTES:]
    if seal(data, *names) != body[:SEAL_BYTES]:
        raise _misplaced(what)
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        raise CorruptionError(f"{what} is sealed but does not decode") from error


def _misplaced(what: str) -> CorruptionError:
    return CorruptionError(f"{what} is damaged, or stands in the place of another", hint="run verify")
