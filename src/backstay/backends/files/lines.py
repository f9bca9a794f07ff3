"""What stands in a journal and in the note beside it: JSON lines, each sealed by the sum of its bytes. Pure.

    {"backstay":"journal","format":2,"born":"…","generation":1,"lines":0,"sum":"…"}
    {"n":1,"first":1,"prev":"…","rows":[{"kind":"checkpoint","key":1,"body":"…","id":"…"}, …],"sum":"…"}

One line is one batch. `n` counts the lines, `prev` is the sum of the line before, so that a missing line shows. `first`
is the number of the first line that may not have been synced when this one was written: a gap that begins there or
later may be what a power cut left of one write, any other gap is damage. `body` is a row's sealed body in base64, `to`
the name of the file from which on a line counts that renames its session.

A journal that is written anew has its checkpoints in *packed* lines, many together: their bodies as they are, without
base64, in one zstd frame.
"""

from __future__ import annotations

import sys
from binascii import b2a_base64
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from backstay.port import CheckpointRow, KeyframeRow, Kind, Row
from backstay.port.lease import Claim
from backstay.port.row_codec import is_foreign, pack
from backstay.port.rows import CallKey, key_of, kind_of
from backstay.sealing import DIGEST_BYTES, compress

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMAT = 2
PACKED_ROWS = 128
PACKED_BYTES = 256 * 1024  # of all bodies in a packed line; one that is longer is not packed
_MAX_UNPACKED_BYTES = 4 * PACKED_BYTES
_LEVEL = 6
_PLAIN = b"\0"  # before a body that stood in a packed line; JSON never begins so
TAIL_BYTES = 19  # 16 hex digits of the sum, and what closes the line
BLANKS = b" \0"
_SUM = b',"sum":"'

KIND_NAMES = {kind: kind.name.lower() for kind in Kind}
KINDS = {name: kind for kind, name in KIND_NAMES.items()}


class Put(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A row as it stands in a line. `id`, `foreign` and `parent` repeat what a checkpoint's body says."""

    kind: str
    key: str | int | CallKey
    body: msgspec.Raw
    id: str | None = None
    parent: int | None = None
    foreign: bool = False
    refs: tuple[str, ...] = ()


class JournalLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One batch."""

    n: int
    first: int
    prev: str
    to: str | None = None
    rows: tuple[Put, ...] = ()
    drops: tuple[tuple[str, str | int | tuple[int, ...]], ...] = ()
    packed: bytes = b""  # checkpoints; they are in `rows` too once the line is opened


class _PackedRows(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Checkpoints by column; in dicts, by place, what few of them have."""

    keys: list[int]
    parents: list[int | None]
    sizes: list[int]
    ids: dict[int, str]
    refs: dict[int, bytes]
    bodies: bytes


class Header(msgspec.Struct, frozen=True, gc=False):
    """The first line of a journal: which one it is, how often it was rewritten, how many lines it began with."""

    backstay: str
    format: int
    born: str
    generation: int
    lines: int


class Note(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What lies beside a journal and is never synced: how far it was acknowledged, its summary, and renewed leases.

    `boot` is set where nothing is synced: then the note is worth something until the machine goes down, no longer.
    `claims` are by branch: where its row stands that was renewed, and how.
    """

    born: str
    generation: int
    lines: int
    end: int
    last: str
    id: str
    body: msgspec.Raw
    boot: str = ""
    marks: int = 0
    foreign: bool = False
    claims: dict[str, tuple[int, Claim]] = {}


_encode = msgspec.json.Encoder().encode
_line = msgspec.json.Decoder(JournalLine).decode
_header = msgspec.json.Decoder(Header).decode
_note = msgspec.json.Decoder(Note).decode
_bytes = msgspec.json.Decoder(bytes).decode
_packed = msgspec.msgpack.Decoder(_PackedRows).decode


def pack_rows(puts: Sequence[Put]) -> bytes:
    """Checkpoints for a packed line, by rising sequence."""
    bodies = [body_of(put.body) for put in puts]
    keys: list[Any] = [put.key for put in puts]
    ids = {at: put.id for at, put in enumerate(puts) if put.foreign and put.id is not None}
    refs = {at: bytes.fromhex("".join(put.refs)) for at, put in enumerate(puts) if put.refs}
    rows = _PackedRows(keys, [put.parent for put in puts], list(map(len, bodies)), ids, refs, b"".join(bodies))
    return compress(msgspec.msgpack.encode(rows), _LEVEL)


def _unpack_rows(packed: bytes) -> tuple[Put, ...]:
    """The checkpoints of a packed line; ValueError, or an error of msgspec or zstd, if it means nothing."""
    press: Any = zstd.ZstdDecompressor()
    data = press.decompress(packed, _MAX_UNPACKED_BYTES)
    if not press.eof:
        raise ValueError("it is longer than it may be")
    rows, puts, end = _packed(data), [], 0
    for at, (key, parent, size) in enumerate(zip(rows.keys, rows.parents, rows.sizes, strict=True)):
        body = msgspec.Raw(_PLAIN + rows.bodies[end : end + size])
        end += size
        refs = rows.refs.get(at, b"")
        names = tuple([refs[i : i + DIGEST_BYTES].hex() for i in range(0, len(refs), DIGEST_BYTES)])
        puts.append(Put(KIND_NAMES[Kind.CHECKPOINT], key, body, rows.ids.get(at), parent, at in rows.ids, names))
    return tuple(puts)


def to_put(row: Row, uid: bytes, refs: tuple[str, ...]) -> Put:
    """A row of the session with this uid; `refs` are those of the row that it replaces."""
    kind = KIND_NAMES[kind_of(row)]
    body = msgspec.Raw(b'"%b"' % b2a_base64(pack(row, uid), newline=False))
    if not isinstance(row, CheckpointRow | KeyframeRow):
        return Put(kind, key_of(row), body)  # type: ignore[arg-type]  # a row has no JournalKey
    refs = refs if row.refs is None else tuple([ref.hex() for ref in row.refs])
    if isinstance(row, KeyframeRow):
        return Put(kind, row.sequence, body, refs=refs)
    return Put(kind, row.sequence, body, row.id, row.parent, is_foreign(row, uid), refs)


def body_of(raw: msgspec.Raw) -> bytes:
    """The sealed body of a row, or of a session in a note."""
    data = bytes(raw)
    return data[1:] if data[:1] == _PLAIN else _bytes(data)


def seal(value: JournalLine | Header | Note) -> bytes:
    """A line with its sum."""
    text = _encode(value)[:-1]
    return b'%b%b%b"}\n' % (text, _SUM, sha256(text).hexdigest()[:16].encode())


def sum_of(raw: bytes) -> str:
    """The sum at the end of a line."""
    return raw[-TAIL_BYTES:-3].decode("ascii", "replace")


def _unsealed(raw: bytes) -> bytes | None:
    at = len(raw) - TAIL_BYTES - len(_SUM)
    text = raw[: max(at, 0)]
    whole = at > 0 and raw[at:] == b'%b%b"}\n' % (_SUM, sha256(text).hexdigest()[:16].encode())
    return text + b"}" if whole else None


def open_line(raw: bytes, *, unpack: bool = True) -> JournalLine | None:
    """The batch in these bytes, if they are whole. Not `unpack`: what is packed stays so."""
    text = _unsealed(raw)
    try:
        line = None if text is None else _line(text)
        if line is not None and line.packed and unpack:
            line = msgspec.structs.replace(line, rows=(*line.rows, *_unpack_rows(line.packed)))
    except (msgspec.MsgspecError, zstd.ZstdError, ValueError):  # a UnicodeDecodeError is one
        return None
    return line


def open_header(raw: bytes) -> Header | None:
    """The first line, if it is whole."""
    text = _unsealed(raw)
    try:
        return None if text is None else _header(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def open_note(raw: bytes) -> Note | None:
    """The note in these bytes, if it is whole; what stands behind its end is left from a longer one."""
    text = _unsealed(raw[: raw.find(b"\n") + 1])
    try:
        return None if text is None else _note(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
