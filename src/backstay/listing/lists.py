"""A list of files: what a checkpoint says of the folder that its agent worked in.

It is made of packed folders, which are opened when they are asked for: most looks at a list are at a few of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from backstay.codec import HeldBlobs, is_held
from backstay.errors import CorruptionError
from backstay.listing.entries import FileEntry, parent_of
from backstay.listing.folders import by_folder, folder_of, key_of, unpack_folder

OUTSIDE = "outside"  # the author of what no call has done
RESTORE = "restore"  # with `@` and a number: of the whole version that a path had at that capture of the same line
LOST = "lost"  # by a power cut: see workspace.losses
MISSING = "missing"  # not there, in another folder than the one that was captured before: not removed by anyone
CALL = "call:"  # and the call's id; `calls:` and several, where they were in flight at once
_CHANGE_BYTES = 8

_NO_BYTES: Mapping[str, bytes] = {}


class LeftOut(msgspec.Struct, frozen=True):
    """Paths that were not captured for one reason: how many, their bytes as far as known, and the first of them."""

    count: int
    size_bytes: int
    first: tuple[str, ...] = ()


class Captured(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a list says of its capture.

    `capture` counts the captures of a line of checkpoints, `groups` the groups of contents made by them. `exact` is
    False where a file was being written, or time ran out. `rules` is a digest of what decided which files belong.
    `git`: HEAD and branch, where there is git.
    """

    capture: int = 0
    groups: int = 0
    files: int = 0
    size_bytes: int = 0
    author: str = OUTSIDE
    exact: bool = True
    git: tuple[str, str] | None = None
    root: str = ""
    rules: bytes = b""
    why: Mapping[str, LeftOut] = {}


class Listing:
    """The files of a checkpoint. Paths are bytes; `listing[path]` is its FileEntry, `path in listing` looks cheaply.

    `tree`, `groups`, `patches` and `who` are as they are kept; see docs/format.md. Never changed once made.
    """

    __slots__ = ("_folders", "_keys", "_starts", "about", "authors", "groups", "patches", "tree", "who")

    def __init__(
        self,
        tree: Mapping[str, bytes],
        *,
        groups: Mapping[str, HeldBlobs] | None = None,
        patches: Mapping[str, list[bytes]] | None = None,
        who: Mapping[str, bytes] = _NO_BYTES,
        authors: tuple[str, ...] = (),
        about: Captured | None = None,
    ) -> None:
        self.tree = tree
        self.groups: Mapping[str, HeldBlobs] = {} if groups is None else groups
        self.patches: Mapping[str, list[bytes]] = {} if patches is None else patches
        self.who = who
        self.authors = authors
        self.about = Captured() if about is None else about
        self._keys: dict[bytes, list[str]] | None = None
        self._starts: list[int] | None = None
        self._folders: dict[bytes, dict[bytes, FileEntry]] = {}

    @property
    def keys_by_folder(self) -> dict[bytes, list[str]]:
        """The keys of `tree` by the folder that they are of."""
        if self._keys is None:
            self._keys = by_folder(self.tree)
        return self._keys

    def folder(self, folder: bytes) -> Mapping[bytes, FileEntry]:
        """The entries of one folder by their paths, its own among them; empty if there is no such folder."""
        found = self._folders.get(folder)
        if found is None:
            keys = self.keys_by_folder.get(folder, [])
            found = self._folders[folder] = unpack_folder(folder, [self.tree[key] for key in keys])
        return found

    def find(self, path: bytes) -> FileEntry | None:
        """The entry of a path; None if it was not captured."""
        own = self.folder(path).get(path) if path in self.keys_by_folder else None
        return own if own is not None else self.folder(parent_of(path)).get(path)

    def __getitem__(self, path: bytes) -> FileEntry:
        found = self.find(path)
        if found is None:
            raise KeyError(path)
        return found

    def __contains__(self, path: object) -> bool:
        return isinstance(path, bytes) and self.find(path) is not None

    def __iter__(self) -> Iterator[FileEntry]:
        """All entries, sorted by path, without the root's own."""
        found = [entry for folder in self.keys_by_folder for entry in self.folder(folder).values()]
        return iter(sorted([entry for entry in found if entry.path], key=lambda entry: entry.path))

    def __len__(self) -> int:
        return sum([len(self.folder(folder)) for folder in self.keys_by_folder]) - (b"" in self)

    def below(self, start: bytes) -> Iterator[FileEntry]:
        """The entry of a path, and of all below it."""
        own = self.find(start)
        if own is not None and own.kind != "folder":
            yield own
            return
        inside = start + b"/" if start else b""
        folders = [at for at in self.keys_by_folder if at == start or at.startswith(inside)]
        for folder in sorted(folders):
            yield from sorted(self.folder(folder).values(), key=lambda entry: entry.path)

    def folders_that_differ(self, other: Listing) -> list[bytes]:
        """The folders whose packed bytes are not the same in both."""
        mine, theirs = self.tree, other.tree
        keys = [key for key, value in mine.items() if theirs.get(key) != value]
        keys += [key for key in theirs if key not in mine]
        return sorted({folder_of(key) for key in keys})

    def group(self, number: int) -> bytes:
        """The digest of a group by its number."""
        if self._starts is None:
            self._starts = sorted([int(key) for key in self.groups])
        at = bisect_right(self._starts, number) - 1
        if at >= 0 and number >= 0:
            start = self._starts[at]
            digest = self.groups[str(start)].digests[32 * (number - start) : 32 * (number - start + 1)]
            if is_held(digest):
                return digest
        raise CorruptionError(f"a list of files names group {number}, which it does not have")

    def authors_since(self, path: bytes, capture: int) -> tuple[str, ...]:
        """The authors of the version of a path that is there, after a capture; see OUTSIDE and those below it.

        `target.about.capture` is the capture of a list to go back to. A path that was put back as a whole has the
        authors that it had then: what was changed in between is not there any more.
        """
        authors: list[tuple[int, str]] = []
        versions: list[tuple[int, list[tuple[int, str]]]] = []
        for at, author in self._changes(path):
            target = author.removeprefix(f"{RESTORE}@")
            if target != author and target.isdecimal():
                authors = next((then for when, then in reversed(versions) if when <= int(target)), [])
            authors = [*authors, (at, author.partition("@")[0] if target != author else author)]
            versions.append((at, authors))
        return tuple([author for at, author in authors if at > capture])

    def changes_of(self, path: bytes) -> list[tuple[int, str]]:
        """Every change of a path since the first capture, oldest first: the number of the capture, and the author."""
        return [(at, RESTORE if author.startswith(f"{RESTORE}@") else author) for at, author in self._changes(path)]

    def _changes(self, path: bytes) -> list[tuple[int, str]]:
        data = self.who.get(key_of(path), b"")
        if len(data) % _CHANGE_BYTES:
            raise CorruptionError("the authors of a file do not decode")
        found: list[tuple[int, str]] = []
        for at in range(0, len(data), _CHANGE_BYTES):
            number = int.from_bytes(data[at + 4 : at + 8])
            author = self.authors[number] if number < len(self.authors) else OUTSIDE
            found.append((int.from_bytes(data[at : at + 4]), author))
        return found


EMPTY = Listing({})

_about_encoder = msgspec.msgpack.Encoder()
_about_decoder = msgspec.msgpack.Decoder(Captured)


def to_value(listing: Listing) -> dict[str, Any]:
    """A list as a part of a state: texts, bytes, and what it holds."""
    return {
        "about": _about_encoder.encode(listing.about),
        "authors": list(listing.authors),
        "groups": listing.groups,
        "patched": listing.patches,
        "tree": listing.tree,
        "who": listing.who,
    }


def from_value(value: object) -> Listing:
    """The list that a part of a state is; CorruptionError if it is none."""
    try:
        if not isinstance(value, dict):
            raise TypeError
        about = _about_decoder.decode(value["about"])
        tree, who, patched = (_dict_of(value[key]) for key in ("tree", "who", "patched"))
        authors = tuple([str(author) for author in value["authors"]])
        groups = {str(int(key)): held for key, held in _dict_of(value["groups"]).items() if isinstance(held, HeldBlobs)}
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise CorruptionError("the list of files of a checkpoint does not decode") from error
    return Listing(tree, groups=groups, patches=patched, who=who, authors=authors, about=about)


def _dict_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value
