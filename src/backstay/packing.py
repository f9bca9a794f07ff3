"""Records and blobs as the bytes of a row: packed small, sealed so that damage shows.

A delta's body is deflated with the bodies before it in its group as preset dictionary (for a kilobyte that is both
smaller and four times faster to read than zstd, whose decompressor costs more to make than to run); what is larger is
zstd. A group is 16 deltas, so damage never reaches further than that. The seal of a delta names the digests of the
state it starts from and the state it leads to: a row that is changed, or stands in another's place, does not open.
"""

from __future__ import annotations

import sys
import zlib
from hashlib import sha256
from typing import Any

import msgspec

from backstay.delta import LOST, Record
from backstay.errors import CorruptionError
from backstay.model import MAX_STATE_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SEAL_BYTES = 12
_WINDOW = -13  # raw deflate with a window of 8 KiB: what zlib clears for every delta then stays in the cache
_WINDOW_BYTES = 8 * 1024
_DEFLATE_BELOW_BYTES = 4096
_WORTH_PACKING_BYTES = 48
_MEMORY = 5
# A body may exceed the state limit by what a delta both drops and adds; what announces more is damage, not data.
_MAX_BODY_BYTES = 2 * MAX_STATE_BYTES
_MAX_BLOB_BYTES = 16 * 1024 * 1024  # as much as a row may hold: larger values are cut before they become blobs

# Whole copies are rare and read often: worth a higher level as long as they are of ordinary size.
_LEVEL = 6
_LEVEL_UP_TO_BYTES = 1024 * 1024

_RAW, _DEFLATE, _ZSTD = range(3)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, bytes, bytes, int, int, bytes]).decode


def seal_delta(record: Record, *, prefix: bytes, base: bytes, state: bytes) -> bytes:
    """A delta as one row: from the state with digest `base` to the one with digest `state`."""
    return _seal(record, prefix, b"delta\0" + base + state)


def open_delta(data: bytes, *, prefix: bytes, base: bytes, state: bytes) -> Record:
    """The delta in these bytes, or a CorruptionError."""
    return _open(data, prefix, b"delta\0" + base + state)


def seal_whole(record: Record, *, state: bytes) -> bytes:
    """A whole copy as one row."""
    return _seal(record, b"", b"whole\0" + state)


def open_whole(data: bytes, *, state: bytes) -> Record:
    """The whole copy in these bytes, or a CorruptionError."""
    return _open(data, b"", b"whole\0" + state)


def seal_roll(record: Record, *, base: bytes, state: bytes) -> bytes:
    """Many deltas merged into one, as one row."""
    return _seal(record, b"", b"roll\0" + base + state)


def open_roll(data: bytes, *, base: bytes, state: bytes) -> Record:
    """The merged deltas in these bytes, or a CorruptionError."""
    return _open(data, b"", b"roll\0" + base + state)


def salvage(data: bytes) -> Record | None:
    """The shape of a record whose seal is broken, if that much can still be trusted; its values are lost."""
    try:
        check, ops, refs, _, _, _ = _decode(data[SEAL_BYTES:])
    except msgspec.DecodeError:
        return None
    return Record(ops, LOST, _split(refs)) if check == _check(ops, refs) else None


def needs_prefix(data: bytes) -> bool:
    """True when a sealed delta was packed against the bodies before it."""
    try:
        return _decode(data[SEAL_BYTES:])[3] == _DEFLATE
    except msgspec.DecodeError:
        return True


def refs_in(data: bytes | None) -> tuple[bytes, ...]:
    """The blobs that a sealed record needs, without unpacking it."""
    return _split(_decode(data[SEAL_BYTES:])[2]) if data else ()


def seal_call(content: bytes, *, run: int) -> bytes:
    """A journaled call as one row."""
    mode, packed = _pack(content, b"")
    data = bytes([mode]) + packed
    return sha256(b"call\0%d\0" % run + data).digest()[:SEAL_BYTES] + data


def open_call(data: bytes, *, run: int) -> bytes:
    """The call in these bytes, or a CorruptionError."""
    rest = data[SEAL_BYTES:]
    if not rest or sha256(b"call\0%d\0" % run + rest).digest()[:SEAL_BYTES] != data[:SEAL_BYTES]:
        message = "a journaled call is damaged, or stands in the place of another"
        raise CorruptionError(message, hint="run verify to see what is intact")
    return _unpack(rest[0], rest[1:], b"", None)


def seal_blob(content: bytes) -> bytes:
    """A blob as one row; its own digest is its seal."""
    mode, packed = _pack(content, b"")
    return bytes([mode]) + packed


def open_blob(data: bytes, digest: bytes) -> bytes:
    """The blob in these bytes, or a CorruptionError."""
    if data:
        content = _unpack(data[0], data[1:], b"", None)
        if sha256(content).digest() == digest:
            return content
    message = f"blob {digest.hex()[:12]} is damaged"
    raise CorruptionError(message)


def _seal(record: Record, prefix: bytes, names: bytes) -> bytes:
    mode, packed = _pack(record.body, prefix)
    refs = b"".join(record.refs)
    data = _encode((_check(record.ops, refs), record.ops, refs, mode, len(record.body), packed))
    return sha256(names + data).digest()[:SEAL_BYTES] + data


def _open(data: bytes, prefix: bytes, names: bytes) -> Record:
    rest = data[SEAL_BYTES:]
    if sha256(names + rest).digest()[:SEAL_BYTES] != data[:SEAL_BYTES]:
        message = "a stored record is damaged, or stands in the place of another"
        raise CorruptionError(message)
    try:
        _, ops, refs, mode, size, packed = _decode(rest)
    except msgspec.DecodeError as error:
        message = "a stored record is sealed but does not decode"
        raise CorruptionError(message) from error
    return Record(ops, _unpack(mode, packed, prefix, size), _split(refs) if refs else ())


def _check(ops: bytes, refs: bytes) -> int:
    """Enough to trust the shape of a record whose seal is broken elsewhere."""
    return zlib.crc32(ops + refs) & 0xFFFF


def _split(refs: bytes) -> tuple[bytes, ...]:
    return tuple([refs[at : at + 32] for at in range(0, len(refs), 32)])


def _pack(body: bytes, prefix: bytes) -> tuple[int, bytes]:
    if len(body) < _WORTH_PACKING_BYTES:
        return _RAW, body
    if len(body) < _DEFLATE_BELOW_BYTES:
        mode, packed = _DEFLATE, _deflate(body, prefix[-_WINDOW_BYTES:])
    else:
        mode, packed = _ZSTD, zstd.compress(body, _LEVEL if len(body) <= _LEVEL_UP_TO_BYTES else 3)
    return (mode, packed) if len(packed) < len(body) else (_RAW, body)


def _deflate(body: bytes, prefix: bytes) -> bytes:
    if prefix:
        press = zlib.compressobj(6, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=prefix)
    else:
        press = zlib.compressobj(6, zlib.DEFLATED, _WINDOW, _MEMORY)
    return press.compress(body) + press.flush()


def _unpack(mode: int, packed: bytes, prefix: bytes, size: int | None) -> bytes:
    """The body again. Never makes more than was announced, nor more than a state may hold, or a row if it is a blob."""
    limit = _MAX_BLOB_BYTES if size is None else size
    try:
        body = packed if mode == _RAW else _inflate(mode, packed, prefix[-_WINDOW_BYTES:], limit)
    except (zlib.error, zstd.ZstdError, EOFError, ValueError, MemoryError) as error:
        message = "stored bytes do not unpack"
        raise CorruptionError(message) from error
    if limit > _MAX_BODY_BYTES or len(body) > limit or (size is not None and len(body) != size):
        message = "stored bytes unpack to another length than they announce"
        raise CorruptionError(message)
    return body


def _inflate(mode: int, packed: bytes, prefix: bytes, limit: int) -> bytes:
    if not 0 <= limit <= _MAX_BODY_BYTES:  # below zero would be no limit at all to zlib
        raise ValueError(limit)
    if mode == _DEFLATE:
        press = zlib.decompressobj(_WINDOW, zdict=prefix) if prefix else zlib.decompressobj(_WINDOW)
        return press.decompress(packed, limit + 1)
    if mode == _ZSTD:
        press_: Any = zstd.ZstdDecompressor()
        return bytes(press_.decompress(packed, limit + 1))
    raise ValueError(mode)
