"""The export file: one line that says what it is, then blocks, each a zstd frame behind a header that is one too.

The header of a block is a skippable frame, so that `tail -n +2 file | zstd -dc` gives the contents. It carries the
block's kind, its lengths and a checksum; the last block counts everything and carries a digest over all checksums, so
that a file which was cut, or put together from others, is noticed. Contents are msgpack. docs/export.md says it all.

No files are touched here: bytes in, values out. What does not read as it should is a CorruptionError or FormatError,
before anything is made of the size that it announces.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from backstay.backend import BranchRow, Kept, Moved, Names, Row, SessionRow, TagRow, Totals
from backstay.delta import Record
from backstay.digest import DIGEST_BYTES
from backstay.errors import CorruptionError, FormatError
from backstay.model import MAX_STATE_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VERSION = 1
MAGIC = b"backstay-export %d\n" % VERSION
_MAGIC = re.compile(rb"backstay-export (\d{1,9})\n")
MAGIC_BYTES = 32  # enough of a file to tell

# Kinds. One that begins with a capital must be understood; one that begins with a small letter may be skipped.
OPEN, SESSION, RUNS, BLOBS, ROWS, DONE = b"OPEN", b"SESS", b"RUNS", b"BLOB", b"ROWS", b"DONE"

_SKIPPABLE = 0x184D2A5F
_HEADER = struct.Struct("<II4sII32s")  # frame magic, bytes that follow; kind, packed and unpacked length, checksum
HEADER_BYTES = _HEADER.size
_CONTENT_BYTES = HEADER_BYTES - 8
_LEVEL = 6

# A row holds at most a delta, a whole copy, and a copy of the state it stands on; none is larger than packing lets
# it be. Blobs are pieces of 8 MiB at most; a call, or the input of a run, is one row of 16 MiB at most.
_SLACK_BYTES = 64 * 1024 * 1024
_MAX_BYTES = {
    OPEN: 1024 * 1024,
    SESSION: 256 * 1024 * 1024,
    RUNS: 64 * 1024 * 1024,
    BLOBS: 64 * 1024 * 1024,
    ROWS: 6 * MAX_STATE_BYTES + _SLACK_BYTES,
    DONE: 1024 * 1024,
}
_MAX_RATIO = 64 * 1024  # zstd turns four bytes into 128 KiB at most

TIPS = 8


class Header(msgspec.Struct, frozen=True, gc=False):
    """What stands before a block."""

    kind: bytes
    packed: int
    unpacked: int
    digest: bytes

    @property
    def required(self) -> bool:
        """True when a reader that does not know the kind must stop."""
        return self.kind[:1].isupper()


class Opening(msgspec.Struct, frozen=True, omit_defaults=True):
    """OPEN: who made the file, and when by their clock."""

    made_by: str = ""
    made_us: int = 0


class _Session(msgspec.Struct, frozen=True):
    """SESS: a session's line and names."""

    id: str
    agent: str | None
    status: str
    reason: str | None
    last_step: int | None
    usage: bytes
    updated_us: int
    created_us: int
    sequence: int
    checkpoints: int
    branches: list[tuple[str, str, str | None]]
    tags: list[tuple[str, str]]


class _Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    ops: bytes
    body: bytes
    refs: bytes


class _Base(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A whole copy with its pieces beside it."""

    ops: bytes
    body: bytes
    pieces: list[bytes]


class _Lost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The parent a checkpoint was committed on, where that is not the checkpoint it is linked to."""

    id: str
    digest: bytes


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """ROWS holds these, one after the other."""

    id: str
    sequence: int
    link: str | None
    lost: _Lost | None
    state_digest: bytes
    digest: bytes
    fields: bytes
    size_bytes: int
    delta: _Record | None
    whole: _Record | None
    base: _Base | None


class Base(msgspec.Struct, frozen=True, gc=False):
    """The state that a row's delta starts from, for a reader who no longer has it."""

    record: Record
    pieces: Sequence[bytes]


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A row as it stands in the file. Where the parent is the link, its `parent_digest` is not repeated."""

    kept: Kept
    base: Base | None


class Done(msgspec.Struct, frozen=True):
    """DONE: how much came before it, and the sha256 over the checksums of all those blocks in order."""

    sessions: int
    checkpoints: int
    blobs: int
    blocks: int
    digest: bytes


class Tips:
    """Which states a reader has at hand: those of the last eight rows that no later row is linked to.

    Whoever writes the file and whoever reads it go by this one rule. `take` is asked for each row in order.
    """

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}

    def take(self, id_: str, link: str | None) -> tuple[bool, str | None]:
        """A row comes: whether the state of its link is at hand, and whose is let go to make room."""
        known = link is not None and link in self._ids
        if link is not None:
            self._ids.pop(link, None)
        self._ids[id_] = None
        if len(self._ids) <= TIPS:
            return known, None
        oldest = next(iter(self._ids))
        del self._ids[oldest]
        return known, oldest


_encode = msgspec.msgpack.Encoder().encode


def seal(kind: bytes, content: bytes) -> tuple[bytes, bytes]:
    """A block, and its checksum."""
    packed = zstd.compress(content, _LEVEL)
    lengths = struct.pack("<II", len(packed), len(content))
    digest = sha256(kind + lengths + packed).digest()
    return _HEADER.pack(_SKIPPABLE, _CONTENT_BYTES, kind, len(packed), len(content), digest) + packed, digest


def read_magic(start: bytes) -> int:
    """How long the first line is, or a FormatError."""
    found = _MAGIC.match(start)
    if found is None:
        message = "this is not an export of Backstay"
        raise FormatError(message, hint="store.export(path) writes one")
    if int(found[1]) != VERSION:
        message = f"this export has format {int(found[1])}, and this version reads format {VERSION}"
        raise FormatError(message, hint="import it with the version that made it, or a newer one")
    return found.end()


def read_header(data: bytes, *, left: int) -> Header:
    """The header in these bytes, with `left` bytes of the file behind it."""
    if len(data) != HEADER_BYTES:
        raise _cut()
    magic, size, kind, packed, unpacked, digest = _HEADER.unpack(data)
    if magic != _SKIPPABLE or size != _CONTENT_BYTES or not kind.isalpha():
        message = "the export is damaged: there is no block where one should begin"
        raise CorruptionError(message, hint="copy the file again, or export again")
    header = Header(kind, packed, unpacked, digest)
    if kind not in _MAX_BYTES and header.required:
        message = f"the export has blocks of a kind that this version does not know: {kind.decode()}"
        raise FormatError(message, hint="import it with the version that made it, or a newer one")
    if packed > left:
        raise _cut()
    if unpacked > min(_MAX_BYTES.get(kind, unpacked), packed * _MAX_RATIO):
        message = f"the export is damaged: a block announces {unpacked:,} bytes"
        raise CorruptionError(message)
    return header


def is_intact(header: Header, packed: bytes) -> bool:
    """True when these are the bytes that the header was made for."""
    lengths = struct.pack("<II", header.packed, header.unpacked)
    return len(packed) == header.packed and sha256(header.kind + lengths + packed).digest() == header.digest


def unpack(header: Header, packed: bytes) -> bytes:
    """The content of a block."""
    if not is_intact(header, packed):
        message = "the export is damaged: a block does not match its checksum"
        raise CorruptionError(message, hint="copy the file again, or export again")
    try:
        press: Any = zstd.ZstdDecompressor()
        content = bytes(press.decompress(packed, header.unpacked + 1))
    except (zstd.ZstdError, EOFError, ValueError, MemoryError) as error:
        message = "the export is damaged: a block does not unpack"
        raise CorruptionError(message) from error
    if len(content) != header.unpacked or not press.eof or press.unused_data:
        message = "the export is damaged: a block unpacks to another length than it announces"
        raise CorruptionError(message)
    return content


def _cut() -> CorruptionError:
    return CorruptionError("the export is cut off: it ends within a block", hint="copy the file again, or export again")


def decoded(decoder: msgspec.msgpack.Decoder[Any], content: bytes, kind: bytes) -> Any:
    """The content of a block as that decoder reads it."""
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the export is damaged: a block of kind {kind.decode()} does not decode: {error}"
        raise CorruptionError(message) from error


_openings = msgspec.msgpack.Decoder(Opening)
_sessions = msgspec.msgpack.Decoder(_Session)
_blobs = msgspec.msgpack.Decoder(list[bytes])
_rows = msgspec.msgpack.Decoder(list[_Row])
_dones = msgspec.msgpack.Decoder(Done)


def write_opening(opening: Opening) -> bytes:
    """The content of OPEN."""
    return _encode(opening)


def read_opening(content: bytes) -> Opening:
    """OPEN again."""
    opening: Opening = decoded(_openings, content, OPEN)
    return opening


def write_session(moved: Moved) -> bytes:
    """The content of SESS."""
    line, totals = moved.line, moved.line.totals
    return _encode(
        _Session(
            id=line.id,
            agent=totals.agent,
            status=totals.status,
            reason=totals.reason,
            last_step=totals.last_step,
            usage=totals.usage,
            updated_us=totals.at_us,
            created_us=line.created_us,
            sequence=moved.sequence,
            checkpoints=line.checkpoints,
            branches=[(branch.name, branch.head_id, branch.undo_id) for branch in moved.names.branches],
            tags=[(tag.name, tag.id) for tag in moved.names.tags],
        )
    )


def read_session(content: bytes) -> Moved:
    """SESS again."""
    found: _Session = decoded(_sessions, content, SESSION)
    totals = Totals(found.agent, found.status, found.reason, found.last_step, found.usage, found.updated_us)
    line = SessionRow(found.id, totals, len(found.branches), found.checkpoints, found.created_us, 0)
    branches = tuple([BranchRow(*branch) for branch in found.branches])
    return Moved(line, Names(branches, tuple([TagRow(*tag) for tag in found.tags])), found.sequence)


def write_blobs(contents: Iterable[bytes]) -> bytes:
    """The content of BLOB: no names, a blob is named by its own digest."""
    return _encode(list(contents))


def read_blobs(content: bytes) -> list[bytes]:
    """BLOB again."""
    found: list[bytes] = decoded(_blobs, content, BLOBS)
    return found


def write_rows(rows: Iterable[bytes]) -> bytes:
    """The content of ROWS, from rows that `write_row` made."""
    rows = list(rows)
    return b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(rows)


def write_row(kept: Kept, base: Base | None = None) -> bytes:
    """One row."""
    row = kept.row
    lost = None
    if row.parent_id is not None and row.parent_id != row.link_id:
        lost = _Lost(row.parent_id, row.parent_digest or b"")
    stands_on = None if base is None else _Base(base.record.ops, base.record.body, list(base.pieces))
    return _encode(
        _Row(
            id=row.id,
            sequence=row.sequence,
            link=row.link_id,
            lost=lost,
            state_digest=row.state_digest,
            digest=row.digest,
            fields=row.fields,
            size_bytes=kept.size_bytes,
            delta=_to_record(kept.delta),
            whole=_to_record(kept.whole),
            base=stands_on,
        )
    )


def read_rows(content: bytes) -> list[Arrival]:
    """ROWS again."""
    return [_arrival(found) for found in decoded(_rows, content, ROWS)]


def _arrival(found: _Row) -> Arrival:
    parent, digest = (found.link, None) if found.lost is None else (found.lost.id, found.lost.digest)
    for value in (found.state_digest, found.digest, *([] if digest is None else [digest])):
        if len(value) != DIGEST_BYTES:
            raise _odd(found.id, "a digest has another length than 32 bytes")
    row = Row(found.id, found.sequence, parent, digest, found.link, found.state_digest, found.digest, found.fields)
    kept = Kept(row, found.size_bytes, _from_record(found.id, found.delta), _from_record(found.id, found.whole))
    base = found.base
    return Arrival(kept, None if base is None else Base(Record(base.ops, base.body), base.pieces))


def _to_record(record: Record | None) -> _Record | None:
    return None if record is None else _Record(record.ops, record.body, b"".join(record.refs))


def _from_record(id_: str, record: _Record | None) -> Record | None:
    if record is None:
        return None
    refs = record.refs
    if len(refs) % DIGEST_BYTES:
        raise _odd(id_, "the blobs it needs are not named in full")
    named = tuple([refs[at : at + DIGEST_BYTES] for at in range(0, len(refs), DIGEST_BYTES)])
    return Record(record.ops, record.body, named)


def _odd(id_: str, what: str) -> CorruptionError:
    return CorruptionError(f"the export is damaged: checkpoint {id_[:12]!r}: {what}")


def write_done(done: Done) -> bytes:
    """The content of DONE."""
    return _encode(done)


def read_done(content: bytes) -> Done:
    """DONE again."""
    done: Done = decoded(_dones, content, DONE)
    return done
