"""Entries as packed bytes: one value per folder, so that a change of one file is a small patch of one value.

A folder with many entries is cut into several values by the digests of their names, so that two edits far apart stay
two small patches and no value is long enough to be kept as a blob. The key of a value names its folder; behind a NUL,
which no path has, stand the number of bits that were used and the piece: `src`, `src NUL 2:3`. A folder whose name is
not UTF-8 is a NUL, an `x` and its bytes in hexadecimal.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from backstay.errors import CorruptionError
from backstay.listing.entries import KEPT, ContentPlace, FileEntry

_PIECE_BYTES = 4096  # a fresh cut has pieces shorter than this on average: well below what is kept as a blob
_MOST_BITS = 12
_WHOLE = "0:0"

_encode = msgspec.msgpack.Encoder().encode


class _EntryRow(msgspec.Struct, array_like=True, gc=False):
    """An entry as it is kept. `content`: the size of a file, the target of a link."""

    name: bytes
    mode: int
    content: int | bytes = 0
    digest: bytes = b""
    group: int = -1
    offset: int = 0
    mtime_ns: int = 0
    mark: str = KEPT
    pieces: int = 0


_decode = msgspec.msgpack.Decoder(list[_EntryRow]).decode


def key_of(folder: bytes) -> str:
    """A folder, or a path, as a text that every backend keeps."""
    try:
        return folder.decode()
    except UnicodeDecodeError:
        return "\0x" + folder.hex()


def folder_of(key: str) -> bytes:
    """The folder, or the path, that a key names."""
    if key.startswith("\0x"):
        return bytes.fromhex(key[2:].partition("\0")[0])
    return key.partition("\0")[0].encode()


def pack_entry(entry: FileEntry) -> bytes:
    """An entry without its folder."""
    name, mode = entry.path.rpartition(b"/")[2], entry.mode
    row: list[Any]
    if stat.S_ISLNK(mode):
        row = [name, mode, entry.target]
    elif stat.S_ISDIR(mode):
        row = [b"", mode]
    else:
        place = entry.place
        row = [name, mode, entry.size, entry.digest, -1, 0, entry.mtime_ns]
        if place is not None:
            row[4:6] = [place.group, place.offset]
        if entry.mark or (place is not None and place.pieces):
            row += [entry.mark, 0 if place is None else place.pieces]
    return _encode(row)


def pack_folder(folder: bytes, entries: Iterable[FileEntry], before: Iterable[str] = ()) -> dict[str, bytes]:
    """The values of a folder by their keys. `before` are the keys that it had: their cut is kept while it fits."""
    packed = {entry.path: pack_entry(entry) for entry in entries}
    key = key_of(folder)
    bits = _bits_of(before)
    size = sum(map(len, packed.values()))
    if bits is None or not (2 * (size >> bits) <= 3 * _PIECE_BYTES and (not bits or size >> bits > _PIECE_BYTES // 4)):
        bits = min((size // _PIECE_BYTES).bit_length(), _MOST_BITS)
    if not bits:
        return {key: _joined([packed[path] for path in sorted(packed)])}
    pieces: dict[int, list[bytes]] = {}
    for path in sorted(packed):
        pieces.setdefault(_piece_of(path.rpartition(b"/")[2] if path != folder else b"", bits), []).append(packed[path])
    return {f"{key}\0{bits}:{piece}": _joined(rows) for piece, rows in sorted(pieces.items())}


def unpack_folder(folder: bytes, values: Iterable[bytes]) -> dict[bytes, FileEntry]:
    """The entries of a folder by their paths, the folder's own among them."""
    if folder and not all([_is_name(part) for part in folder.split(b"/")]):
        raise CorruptionError(f"a list of files has a folder {folder[:64]!r}, which cannot be")
    start = folder + b"/" if folder else b""
    found: dict[bytes, FileEntry] = {}
    try:
        for value in values:
            for row in _decode(value):
                if row.name and not _is_name(row.name):
                    raise ValueError(row.name)
                path = start + row.name if row.name else folder
                found[path] = _entry(path, row)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        message = f"the list of files in {folder!r} does not decode"
        raise CorruptionError(message) from error
    return found


def _entry(path: bytes, row: _EntryRow) -> FileEntry:
    mode, content = row.mode, row.content
    if stat.S_ISDIR(mode) is bool(row.name):
        raise ValueError(path)
    if not row.name:
        return FileEntry(path, mode)
    if isinstance(content, bytes):
        if not stat.S_ISLNK(mode):
            raise ValueError(path)
        return FileEntry(path, mode, target=content)
    if not stat.S_ISREG(mode) or content < 0:
        raise ValueError(path)
    place = None if row.group < 0 else ContentPlace(row.group, row.offset, row.pieces)
    return FileEntry(path, mode, content, row.digest, b"", row.mtime_ns, place, row.mark)


def _is_name(name: bytes) -> bool:
    """True for a name that a file can have: whatever a list from elsewhere says, it stays below its root."""
    return bool(name) and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def by_folder(tree: Mapping[str, bytes]) -> dict[bytes, list[str]]:
    """The keys of each folder."""
    found: dict[bytes, list[str]] = {}
    for key in tree:
        found.setdefault(folder_of(key), []).append(key)
    return found


def _bits_of(keys: Iterable[str]) -> int | None:
    for key in keys:
        cut = (key.removeprefix("\0x")).partition("\0")[2] or _WHOLE
        return int(cut.partition(":")[0])
    return None


def _piece_of(name: bytes, bits: int) -> int:
    return int.from_bytes(sha256(name).digest()[:2]) >> (16 - bits)


def _joined(rows: list[bytes]) -> bytes:
    return b"\xdd" + len(rows).to_bytes(4, "big") + b"".join(rows)
