"""Records, blobs and journaled values as the bytes of a row: sealed so that damage shows, packed where that pays.

A delta stays as it is: it is read often while it is new, and a segment packs it later. A keyframe is zstd, at most 16
times shorter than what it holds. A record
has two halves (see delta.record); a check of its own on the shape lets `salvage` use it where the values are damaged.
A seal names the session, the checkpoint's random tail and the digests of the states it leads from and to: bytes that
stand in another row, session or store do not open. A record beyond the limit of a row is cut into blobs, and the row
names them.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from backstay.codec import held_digest, is_held
from backstay.delta import LOST, Record
from backstay.errors import CorruptionError, InvalidInputError
from backstay.model import MAX_STATE_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SEAL_BYTES = 12
DIGEST_BYTES = 32
MAX_ROW_BYTES = 16 * 1024 * 1024
MAX_BLOB_BYTES = 16 * 1024 * 1024

# A body may exceed the state limit by what a delta both drops and adds; a header that announces more is damage.
_MAX_BODY_BYTES = 2 * MAX_STATE_BYTES
_PACK_FROM_BYTES = 1024  # below that a compressor costs more than it saves
_LEVEL = 6  # for keyframes: rare, and read often
_FAST_LEVEL = 3
_FAST_FROM_BYTES = 1024 * 1024
# Nothing is packed into less than this part of itself, and nothing that claims to be is unpacked: a short file from
# outside must not take gigabytes. What packs better has a frame of zeros behind it that every zstd passes over.
MAX_RATIO = 16
_SKIP, _SKIPPED = 0x184D2A50, struct.Struct("<II")
_INLINE, _SPILLED = b"\0", b"\1"
_RAW, _ZSTD, _CUT = range(3)

CUT = bytes([_CUT])  # the first byte of a blob of which contents were forgotten

# A load unpacks some hundred kilobytes at a time. glibc asks the system for each buffer of 128 KiB or more and returns
# it, and the system clears each page of it. Once a longer one was returned it keeps those that are shorter.
bytes(2 * 1024 * 1024)

_presses: dict[int, list[Any]] = {}  # compressors at rest, by level
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, bytes, bytes, int, int, bytes]).decode


def seal_delta(record: Record, *, uid: bytes, tail: bytes, base: bytes, state: bytes) -> bytes:
    """A delta, from the state with digest `base` to the one with digest `state`."""
    return _seal(record, b"delta\0" + uid + tail + base + state, pack=False)


def spill_delta(
    record: Record, *, uid: bytes, tail: bytes, base: bytes, state: bytes
) -> tuple[bytes, tuple[bytes, ...], dict[bytes, bytes]]:
    """A delta as it goes into its row, the blobs that the row needs, and those that were made for it here."""
    data, parts = spill(_seal(record, b"delta\0" + uid + tail + base + state, pack=False))
    return data, (*record.refs, *parts), parts


def open_delta(data: bytes, *, uid: bytes, tail: bytes, base: bytes, state: bytes, limit: int | None = None) -> Record:
    """The delta in these bytes, or a CorruptionError; `limit`: one that announces more bytes is not unpacked."""
    return _open(data, b"delta\0" + uid + tail + base + state, limit)


def open_deltas(
    rows: Iterable[tuple[bytes, bytes, bytes]], blobs: Mapping[bytes, bytes], *, uid: bytes, base: bytes
) -> list[Record]:
    """A chain of deltas from the state with digest `base`: each as its row has it, with its tail and its state."""
    records: list[Record] = []
    for spilt, tail, state in rows:
        data = spilt[1:] if spilt[:1] == _INLINE else unspill(spilt, blobs)
        rest = data[SEAL_BYTES:]
        if sha256(b"".join([b"delta\0", uid, tail, base, state, rest])).digest()[:SEAL_BYTES] != data[:SEAL_BYTES]:
            raise CorruptionError("a stored record is damaged, or stands in the place of another")
        base = state
        try:
            _, ops, refs, mode, size, packed = _decode(rest)
        except msgspec.DecodeError as error:
            raise CorruptionError("a stored record is sealed but does not decode") from error
        if not 0 <= size <= _MAX_BODY_BYTES:
            raise CorruptionError("a stored record announces more than its state may have")
        body = packed if mode == _RAW else _unpack(mode, packed, size)
        records.append(Record(ops, body, split_digests(refs) if refs else ()))
    return records


def check_deltas(deltas: Iterable[tuple[DeltaParts, bytes, bytes, bytes]], *, uid: bytes) -> None:
    """CorruptionError unless each leads from one state to another: its parts, its tail, and the digests of both."""
    for parts, tail, base, state in deltas:
        if not is_sealed(join_delta(parts), uid=uid, tail=tail, base=base, state=state):
            raise CorruptionError("a stored record is damaged, or stands in the place of another")


def seal_keyframe(record: Record, *, uid: bytes, tail: bytes, state: bytes) -> bytes:
    """A whole copy of a state."""
    return _seal(record, b"keyframe\0" + uid + tail + state, pack=True)


def open_keyframe(data: bytes, *, uid: bytes, tail: bytes, state: bytes, limit: int | None = None) -> Record:
    """The whole copy in these bytes, or a CorruptionError; `limit` as for a delta."""
    return _open(data, b"keyframe\0" + uid + tail + state, limit)


def salvage(data: bytes) -> Record | None:
    """The shape of a record whose seal is broken, if that much can be trusted; its values are lost."""
    try:
        check, ops, refs, _, _, _ = _decode(data[SEAL_BYTES:])
    except msgspec.DecodeError:
        return None
    return Record(ops, LOST, split_digests(refs)) if check == _check(ops, refs) else None


def peek(data: bytes) -> Record | None:
    """The record in these bytes, not verified: for whoever looks for something before it is read properly."""
    try:
        _, ops, refs, mode, size, packed = _decode(data[SEAL_BYTES:])
        return Record(ops, _unpack(mode, packed, min(max(size, 0), _MAX_BODY_BYTES)), split_digests(refs))
    except (msgspec.DecodeError, CorruptionError):
        return None


def refs_in(data: bytes) -> tuple[bytes, ...]:
    """The blobs that the record in these bytes refers to, not verified; its body is not unpacked."""
    try:
        return split_digests(_decode(data[SEAL_BYTES:])[2])
    except msgspec.DecodeError:
        return ()


def spill(data: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """What goes into a row: the bytes themselves, or the digests of the blobs that hold them."""
    if len(data) < MAX_ROW_BYTES:
        return _INLINE + data, {}
    parts = [data[at : at + MAX_BLOB_BYTES] for at in range(0, len(data), MAX_BLOB_BYTES)]
    digests = [sha256(part).digest() for part in parts]
    return _SPILLED + b"".join(digests), {digest: pack_blob(part) for digest, part in zip(digests, parts, strict=True)}


def spilled(data: bytes) -> tuple[bytes, ...]:
    """The blobs that a row's bytes were cut into; none if they stand in the row."""
    return split_digests(data[1:]) if data[:1] == _SPILLED else ()


def unspill(data: bytes, blobs: Mapping[bytes, bytes]) -> bytes:
    """The bytes again; `blobs` are packed, as they were kept."""
    if data[:1] == _INLINE:
        return data[1:]
    if data[:1] != _SPILLED:
        raise CorruptionError("a stored record does not say where it is")
    try:
        return b"".join([open_blob(blobs[digest], digest) for digest in spilled(data)])
    except KeyError as missing:
        raise CorruptionError(f"a part of a long record is missing: {missing.args[0].hex()[:12]}") from None


class DeltaParts(msgspec.Struct, frozen=True, gc=False):
    """A delta of a row taken apart: its seal, how many ops it has, these joined, what it refers to, and its values."""

    seal: bytes
    count: int
    ops: bytes
    refs: bytes
    body: bytes


def cut_delta(delta: bytes, *, as_sealed: bool = False) -> DeltaParts | None:
    """The parts of a delta; None if they would not give the same bytes again: it is cut into blobs, or is no delta.

    `as_sealed`: if it is one, it was made by `seal_delta`, or joined of such parts.
    """
    if delta[:1] != _INLINE:
        return None
    try:
        _, ops, refs, _, _, body = _decode(delta[1 + SEAL_BYTES :])
    except msgspec.DecodeError:
        return None
    count, start = _array_in(ops)
    parts = DeltaParts(delta[1 : 1 + SEAL_BYTES], count, ops[start:], refs, body)
    return parts if as_sealed or join_delta(parts) == delta else None


def join_delta(parts: DeltaParts) -> bytes:
    """The delta again."""
    ops, refs = _array_of(parts.count) + parts.ops, parts.refs
    rest = _encode((zlib.crc32(ops + refs), ops, refs, _RAW, len(parts.body), parts.body))
    return b"".join([_INLINE, parts.seal, rest])


def is_sealed(delta: bytes, *, uid: bytes, tail: bytes, base: bytes, state: bytes) -> bool:
    """True if a delta that stands in its row leads from one state to another."""
    names = b"".join([b"delta\0", uid, tail, base, state, delta[1 + SEAL_BYTES :]])
    return sha256(names).digest()[:SEAL_BYTES] == delta[1 : 1 + SEAL_BYTES]


def delta_refs(delta: bytes, blobs: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """The blobs that a row with this delta needs; `blobs` has those that it was cut into. Its seal is not looked at."""
    if not delta:
        return ()
    try:
        refs = _decode(unspill(delta, blobs)[SEAL_BYTES:])[2]
    except msgspec.DecodeError as error:
        raise CorruptionError("a stored record does not decode") from error
    return (*split_digests(refs), *spilled(delta))


def pack_blob(content: bytes) -> bytes:
    """A blob as it is kept; its digest is its seal."""
    mode, packed = _pack(content)
    return bytes([mode]) + packed


def pack_held(content: bytes) -> bytes:
    """As `pack_blob`, for contents of files: there are many, and most are read once at the most."""
    if len(content) < _PACK_FROM_BYTES:
        return bytes([_RAW]) + content
    packed = _padded(compress(content, _FAST_LEVEL), content)
    return bytes([_ZSTD]) + packed if len(packed) < len(content) else bytes([_RAW]) + content


def open_blob(data: bytes, digest: bytes) -> bytes:
    """The blob in these bytes, or a CorruptionError."""
    if data:
        content = _unpack(data[0], data[1:], MAX_BLOB_BYTES)
        if (held_digest(content) if is_held(digest) else sha256(content).digest()) == digest:
            return content
    raise CorruptionError(f"blob {digest.hex()[:12]} is damaged")


class Remnant(msgspec.Struct, frozen=True, array_like=True):
    """A blob of which contents of files were forgotten: `parts` are left, each from its offset on, of `size` bytes.

    `wholes`: contents by their sha256 that were patches on what was forgotten. `forgotten` counts the contents gone.
    """

    size: int
    forgotten: int
    parts: tuple[tuple[int, bytes], ...] = ()
    wholes: dict[bytes, bytes] = {}

    def read(self, offset: int, size: int) -> bytes | None:
        """Bytes of the blob; None if they were forgotten."""
        for start, part in self.parts:
            if start <= offset and offset + size <= start + len(part):
                return part[offset - start : offset - start + size]
        return b"" if not size else None


_decode_remnant = msgspec.msgpack.Decoder(Remnant).decode


def is_cut(digest: bytes, data: bytes) -> bool:
    """True if this is the remnant of a blob, as it is kept, or its first byte: the blob may take its place."""
    return data[:1] == CUT and is_held(digest)


def pack_remnant(remnant: Remnant, digest: bytes) -> bytes:
    """A remnant as it is kept in the place of its blob, sealed to it."""
    rest = pack_held(_encode(remnant))
    return CUT + sha256(digest + rest).digest()[:SEAL_BYTES] + rest


def open_held(data: bytes, digest: bytes) -> bytes | Remnant:
    """The contents that states hold under a digest, or what is left of them; or a CorruptionError."""
    if not is_cut(digest, data):
        return open_blob(data, digest)
    seal, rest = data[1 : 1 + SEAL_BYTES], data[1 + SEAL_BYTES :]
    if rest and sha256(digest + rest).digest()[:SEAL_BYTES] == seal:
        try:
            return _decode_remnant(_unpack(rest[0], rest[1:], MAX_BLOB_BYTES))
        except msgspec.DecodeError as error:
            raise CorruptionError(f"what is left of blob {digest.hex()[:12]} does not decode") from error
    raise CorruptionError(f"what is left of blob {digest.hex()[:12]} is damaged")


def compress(data: bytes, level: int) -> bytes:
    """A zstd frame, for data that is not long. A compressor that is used again is twice as fast."""
    resting = _presses.setdefault(level, [])
    try:  # a thread that uses one has taken it out of the list
        press = resting.pop()
    except IndexError:
        press = zstd.ZstdCompressor(level)
    packed: bytes = press.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    resting.append(press)
    return packed


def pack_value(data: bytes) -> bytes:
    """A journaled value (arguments, a result, an input) as it stands in its row, which seals it."""
    if len(data) > MAX_ROW_BYTES:
        message = f"a journaled value has {len(data):,} bytes, more than the limit of {MAX_ROW_BYTES:,}"
        raise InvalidInputError(message, hint="keep large things outside and store where they are")
    mode, packed = _pack(data)
    return bytes([mode]) + packed


def open_value(data: bytes) -> bytes:
    """The journaled value again."""
    return _unpack(data[0], data[1:], MAX_ROW_BYTES) if data else b""


def _seal(record: Record, names: bytes, *, pack: bool) -> bytes:
    mode, packed = _pack(record.body) if pack else (_RAW, record.body)
    refs = b"".join(record.refs)
    data = _encode((zlib.crc32(record.ops + refs), record.ops, refs, mode, len(record.body), packed))
    return sha256(names + data).digest()[:SEAL_BYTES] + data


def _open(data: bytes, names: bytes, limit: int | None) -> Record:
    rest = memoryview(data)[SEAL_BYTES:]
    hashed = sha256(names)
    hashed.update(rest)
    if hashed.digest()[:SEAL_BYTES] != data[:SEAL_BYTES]:
        raise CorruptionError("a stored record is damaged, or stands in the place of another")
    try:
        _, ops, refs, mode, size, packed = _decode(rest)
    except msgspec.DecodeError as error:
        raise CorruptionError("a stored record is sealed but does not decode") from error
    if not 0 <= size <= (_MAX_BODY_BYTES if limit is None else min(limit, _MAX_BODY_BYTES)):
        raise CorruptionError("a stored record announces more than its state may have")
    return Record(ops, _unpack(mode, packed, size), split_digests(refs) if refs else ())


# The header of an array as msgpack writes it: in the first byte, or as 16 or 32 bits behind it.
_FIX_ARRAY, _ARRAY_16, _ARRAY_32 = 0x90, 0xDC, 0xDD


def _array_of(count: int) -> bytes:
    if count < 1 << 4:
        return bytes([_FIX_ARRAY | count])
    return struct.pack(">BH", _ARRAY_16, count) if count < 1 << 16 else struct.pack(">BI", _ARRAY_32, count)


def _array_in(data: bytes) -> tuple[int, int]:
    """How many values an array announces, and where they begin."""
    code = data[0] if data else 0
    if code & 0xF0 == _FIX_ARRAY:
        return code & 0xF, 1
    end = {_ARRAY_16: 3, _ARRAY_32: 5}.get(code, 0)
    return int.from_bytes(data[1:end], "big"), end


def _check(ops: bytes, refs: bytes) -> int:
    """Enough to trust the shape of a record whose seal is broken elsewhere."""
    return zlib.crc32(ops + refs)


def split_digests(refs: bytes) -> tuple[bytes, ...]:
    """Digests that were joined."""
    return tuple([refs[at : at + DIGEST_BYTES] for at in range(0, len(refs), DIGEST_BYTES)])


def _pack(body: bytes) -> tuple[int, bytes]:
    if len(body) < _PACK_FROM_BYTES:
        return _RAW, body
    packed = compress(body, _LEVEL) if len(body) < _FAST_FROM_BYTES else zstd.compress(body, _FAST_LEVEL)
    packed = _padded(packed, body)
    return (_ZSTD, packed) if len(packed) < len(body) else (_RAW, body)


def _padded(packed: bytes, body: bytes) -> bytes:
    if len(packed) * MAX_RATIO < len(body):
        rest = max(-(-len(body) // MAX_RATIO) - len(packed) - _SKIPPED.size, 0)
        packed += _SKIPPED.pack(_SKIP, rest) + bytes(rest)
    return packed


def _unpack(mode: int, packed: bytes, limit: int) -> bytes:
    if mode == _RAW:
        return packed
    limit = min(limit, MAX_RATIO * len(packed))
    try:
        if mode == _ZSTD:
            press: Any = zstd.ZstdDecompressor()
            body = bytes(press.decompress(packed, limit + 1))
            if len(body) <= limit and press.eof and not press.unused_data[_SKIPPED.size :].strip(b"\0"):
                return body
    except zstd.ZstdError as error:
        raise CorruptionError("stored bytes do not unpack") from error
    raise CorruptionError("stored bytes do not unpack to what they announce")
