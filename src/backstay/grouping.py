"""Contents of files as blobs: small ones together, changed ones as patches on what they were.

A group is the contents of several files, one after the other, packed as one: ten thousand small files are some sixty
blobs instead of ten thousand. A file of 64 KiB stands alone, one beyond 8 MiB is cut at fixed places, so that what
only grows keeps the pieces it had. A patch is a zstd frame that was made with the old contents as its prefix.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from backstay.codec import Withheld, held_digest
from backstay.errors import CorruptionError, NotFoundError
from backstay.listing import ContentPlace, FileEntry, Listing, shown
from backstay.listing.folders import key_of
from backstay.sealing import Remnant

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

GROUP_BYTES = 256 * 1024
ALONE_BYTES = 64 * 1024
PIECE_BYTES = 8 * 1024 * 1024
INLINE_BYTES = 2048  # a longer patch is a blob of its own, and its place stands in its stead

_LEVEL = 3
_LONG_FROM_BYTES = 256 * 1024  # from here on matches far apart are looked for, or a patch of a long file is a copy
_MOST_PATCHES, _MOST_LONG_PATCHES = 64, 16
_WORTH_BYTES = 32
_MAX_WINDOW = 31
_MAX_CONTENT_BYTES = 2 * 1024 * 1024 * 1024

_INLINE, _GROUP = b"\0", b"\1"
_PLACED = struct.Struct(">QQQQ")

_FORGOTTEN = "its list, its size and its digest stay; newer checkpoints may have newer contents"

Emit = Callable[[bytes, bytes], None]  # takes a blob's digest and its contents


class Grouper:
    """Puts contents into groups, in the order in which they come. `emit` is given each group once it is full.

    `digests` are those of the groups made so far, numbered from `first` on.
    """

    def __init__(self, first: int, emit: Emit) -> None:
        self._first = first
        self._emit = emit
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._open_at = -1  # its place among `digests`
        self.digests: list[bytes] = []

    def add(self, contents: bytes) -> ContentPlace:
        """Where these contents will lie."""
        size = len(contents)
        if size > PIECE_BYTES:
            first = self._first + len(self.digests)
            for at in range(0, size, PIECE_BYTES):
                self._close(contents[at : at + PIECE_BYTES], len(self.digests), new=True)
            return ContentPlace(first, 0, len(self.digests) + self._first - first)
        if size >= ALONE_BYTES:
            self._close(contents, len(self.digests), new=True)
            return ContentPlace(self._first + len(self.digests) - 1)
        if self._open_at >= 0 and self._open_bytes + size > GROUP_BYTES:
            self.flush()
        if self._open_at < 0:
            self._open_at = len(self.digests)
            self.digests.append(b"")  # its number is given, its contents come
        place = ContentPlace(self._first + self._open_at, self._open_bytes)
        self._open.append(contents)
        self._open_bytes += size
        return place

    def flush(self) -> None:
        """The group that is open is full."""
        if self._open_at >= 0:
            self._close(b"".join(self._open), self._open_at, new=False)
            self._open, self._open_bytes, self._open_at = [], 0, -1

    def _close(self, contents: bytes, at: int, *, new: bool) -> None:
        digest = held_digest(contents)
        if new:
            self.digests.append(digest)
        else:
            self.digests[at] = digest
        self._emit(digest, contents)


def make_patch(before: bytes, after: bytes) -> bytes:
    """A patch that turns the one into the other."""
    options: dict[Any, Any] = {zstd.CompressionParameter.compression_level: _LEVEL}
    if len(before) + len(after) > _LONG_FROM_BYTES:
        window = min(max((len(before) + len(after)).bit_length(), 10), _MAX_WINDOW)
        options |= {
            zstd.CompressionParameter.enable_long_distance_matching: 1,
            zstd.CompressionParameter.window_log: window,
        }
    return zstd.compress(after, options=options, zstd_dict=zstd.ZstdDict(before, is_raw=True).as_prefix)


def apply_patch(before: bytes, patch: bytes) -> bytes:
    """The contents that a patch leads to; CorruptionError if it does not fit."""
    try:
        size: int | None = zstd.get_frame_info(patch).decompressed_size
        if (size or 0) > _MAX_CONTENT_BYTES:
            raise CorruptionError("a patch makes a file longer than any that was captured")
        options: dict[Any, Any] = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW}
        return zstd.decompress(patch, zstd_dict=zstd.ZstdDict(before, is_raw=True).as_prefix, options=options)
    except (zstd.ZstdError, MemoryError) as error:
        raise CorruptionError("a patch of a file does not fit what it was made on") from error


def is_worth(patch: bytes, contents: bytes, weights: Sequence[int]) -> bool:
    """True if a patch behind others of these weights is better than the whole contents: by weight, not number alone."""
    size = len(contents)
    if len(weights) >= (_MOST_LONG_PATCHES if size > PIECE_BYTES else _MOST_PATCHES):
        return False
    if 2 * (len(patch) + sum(weights)) > size:
        return False
    return len(patch) <= _WORTH_BYTES or 8 * len(patch) < size or 2 * len(patch) < len(zstd.compress(contents, _LEVEL))


# A chain as a list keeps it: the length of the whole contents that it begins with, and the patches, oldest first.


def inline(patch: bytes) -> bytes:
    """A patch that stands in the list itself."""
    return _INLINE + patch


def placed(place: ContentPlace, size: int) -> bytes:
    """A patch that is kept as a blob: where, and how long it is."""
    return _GROUP + _PLACED.pack(place.group, place.offset, place.pieces, size)


def patch_of(kept: bytes | Withheld) -> bytes | tuple[ContentPlace, int] | None:
    """A patch as it is, or where it is kept and how long it is; None if it was forgotten."""
    if isinstance(kept, Withheld):
        return None
    if kept[:1] == _INLINE:
        return kept[1:]
    if kept[:1] != _GROUP or len(kept) != 1 + _PLACED.size:
        raise CorruptionError("a list of files has a patch that is none")
    group, offset, pieces, size = _PLACED.unpack(kept[1:])
    return ContentPlace(group, offset, pieces), size


def weight_of(kept: bytes | Withheld) -> int:
    """How long a patch of a chain is."""
    found = patch_of(kept)
    return 0 if found is None else len(found) if isinstance(found, bytes) else found[1]


Fetch = Callable[[Collection[bytes]], Mapping[bytes, bytes | Remnant]]  # groups by their digests, verified


class ForgottenError(NotFoundError):
    """Contents that were forgotten: the list has the file, and the store no longer what was in it."""


def contents_of(listing: Listing, entry: FileEntry, fetch: Fetch) -> bytes:
    """The contents of a file that a list has, verified; ForgottenError if they are no longer kept."""
    if entry.place is None:
        raise CorruptionError(f"{shown(entry.path)}: its contents are not kept")
    chain = chain_of(listing, entry)
    first = listing.group(entry.place.group)
    contents = _rewritten(fetch([first]).get(first), entry) if chain else None
    if contents is None:
        size = int.from_bytes(chain[0]) if chain else entry.size
        contents = _read(listing, entry, entry.place, size, fetch)
        for kept in chain[1:]:
            patch = patch_of(kept)
            if patch is None:
                raise _forgotten(entry)
            if not isinstance(patch, bytes):
                patch = _read(listing, entry, *patch, fetch)
            contents = apply_patch(contents, patch)
    if len(contents) != entry.size or sha256(contents).digest() != entry.digest:
        raise CorruptionError(f"{shown(entry.path)}: its contents do not match their digest")
    return contents


def _rewritten(group: bytes | Remnant | None, entry: FileEntry) -> bytes | None:
    """The whole contents of a file that was a patch on what was forgotten."""
    return group.wholes.get(entry.digest) if isinstance(group, Remnant) else None


def _forgotten(entry: FileEntry) -> ForgottenError:
    return ForgottenError(f"{shown(entry.path)}: its contents were forgotten", hint=_FORGOTTEN)


def is_forgotten(listing: Listing, entry: FileEntry, remnants: Mapping[bytes, Remnant]) -> bool:
    """True if the contents of a file are no longer kept; `remnants` are those of all groups that were cut."""
    if entry.place is None or not entry.size:
        return False
    chain = chain_of(listing, entry)
    if chain and _rewritten(remnants.get(listing.group(entry.place.group)), entry) is not None:
        return False
    if any([isinstance(kept, Withheld) for kept in chain]):
        return True
    return any([_is_gone(remnants.get(digest), offset, size) for digest, offset, size in ranges_of(listing, entry)])


def _is_gone(remnant: Remnant | None, offset: int, size: int) -> bool:
    return remnant is not None and remnant.read(offset, size) is None


def ranges_of(listing: Listing, entry: FileEntry) -> list[tuple[bytes, int, int]]:
    """The bytes that the contents of a file are read from: the digest of a group, an offset, a length."""
    if entry.place is None:
        return []
    chain = chain_of(listing, entry)
    found = _ranges(listing, entry.place, int.from_bytes(chain[0]) if chain else entry.size)
    for kept in chain[1:]:
        patch = patch_of(kept)
        found += _ranges(listing, *patch) if isinstance(patch, tuple) else []
    return found


def _ranges(listing: Listing, place: ContentPlace, size: int) -> list[tuple[bytes, int, int]]:
    if not place.pieces:
        return [(listing.group(place.group), place.offset, size)]
    return [
        (listing.group(place.group + at), 0, min(PIECE_BYTES, size - at * PIECE_BYTES)) for at in range(place.pieces)
    ]


def chain_of(listing: Listing, entry: FileEntry) -> list[Any]:
    """The patches of a file, bytes or Withheld: first the length of the whole contents; empty if it has none."""
    return listing.patches.get(key_of(entry.path), [])


def places_of(listing: Listing, entry: FileEntry) -> list[int]:
    """The numbers of all groups that the contents of a file need."""
    found = [entry.place] if entry.place is not None else []
    for kept in chain_of(listing, entry)[1:]:
        patch = patch_of(kept)
        found += [patch[0]] if isinstance(patch, tuple) else []
    return [number for place in found for number in range(place.group, place.group + max(place.pieces, 1))]


def _read(listing: Listing, entry: FileEntry, place: ContentPlace, size: int, fetch: Fetch) -> bytes:
    found: list[bytes] = []
    ranges = _ranges(listing, place, size)
    groups = fetch([digest for digest, _, _ in ranges])
    for digest, offset, length in ranges:
        group = groups.get(digest)
        if group is None:
            raise CorruptionError(f"a group of contents is missing: {digest.hex()[:24]}")
        part = group.read(offset, length) if isinstance(group, Remnant) else group[offset : offset + length]
        if part is None:
            raise _forgotten(entry)
        found.append(part)
    return b"".join(found)
