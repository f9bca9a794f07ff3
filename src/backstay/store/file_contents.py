"""The files of a checkpoint as they are read, and contents on their way into a store."""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

from backstay.codec import held_in
from backstay.errors import NotFoundError
from backstay.grouping import contents_of, is_forgotten
from backstay.listing import FORGOTTEN, OUTSIDE, SECRET, FileDiff, FileEntry, Listing, difference, from_value
from backstay.port import Backend
from backstay.sealing import Remnant, is_cut, open_held, pack_held
from backstay.store.fields import is_captured
from backstay.store.reading import Loaded

CARRIED = "carried"
_PORTION_BYTES = 2 * 1024 * 1024  # about 1 MiB once it is packed
_MOST_PAUSE_S = 0.05


class GroupReader:
    """Groups of contents from a store, verified, or what is left of them; those read last stay at hand."""

    def __init__(self, backend: Backend, budget_bytes: int = 16 * 1024 * 1024) -> None:
        self._backend = backend
        self._budget = budget_bytes
        self._kept: dict[bytes, bytes | Remnant] = {}
        self._whole: set[bytes] = set()
        self.beside: Mapping[bytes, bytes] = {}  # groups that are not in the store yet

    def __call__(self, digests: Collection[bytes]) -> Mapping[bytes, bytes | Remnant]:
        """The groups with these digests; one that is missing is left out."""
        found: dict[bytes, bytes | Remnant] = {digest: self._kept[digest] for digest in digests if digest in self._kept}
        found |= {digest: self.beside[digest] for digest in digests if digest in self.beside}
        wanted = [digest for digest in digests if digest not in found]
        if not wanted:
            return found
        for digest, data in self._backend.blobs(wanted).items():
            found[digest] = open_held(data, digest)
        if _weight(self._kept) + _weight(found) > self._budget:
            self._kept = {}
        if _weight(found) <= self._budget:
            self._kept |= found
        return found

    def cut(self, digests: Collection[bytes]) -> set[bytes]:
        """Those of which contents were forgotten, or that are missing; no contents are read."""
        asked = {digest for digest in digests if digest not in self.beside and digest not in self._whole}
        found = set(self._backend.absent(asked)) if asked else set()
        self._whole |= asked - found
        return found

    def forget(self) -> None:
        """What was read may have been forgotten since."""
        self._kept, self._whole = {}, set()


def _weight(groups: Mapping[bytes, bytes | Remnant]) -> int:
    return sum([group.size if isinstance(group, Remnant) else len(group) for group in groups.values()])


def remnants_of(backend: Backend, digests: Collection[bytes]) -> dict[bytes, Remnant]:
    """What is left of the groups among these of which contents were forgotten."""
    found: dict[bytes, Remnant] = {}
    for digest, data in backend.blobs(backend.absent(digests)).items():
        left = open_held(data, digest) if is_cut(digest, data) else None
        if isinstance(left, Remnant):
            found[digest] = left
    return found


class CheckpointFile:
    """One path of a checkpoint's files; see `backstay.file_model.File`."""

    __slots__ = ("_files", "entry")

    def __init__(self, files: CheckpointFiles, entry: FileEntry) -> None:
        self._files = files
        self.entry = entry

    def __repr__(self) -> str:
        return f"<{self.kind} {self.path!r}, {self.size:,} bytes>"

    @property
    def path(self) -> str:
        """Where it is."""
        return os.fsdecode(self.entry.path)

    @property
    def kind(self) -> Literal["file", "link", "folder"]:
        """What it is."""
        return self.entry.kind

    @property
    def size(self) -> int:
        """The length of its contents."""
        return self.entry.size

    @property
    def mode(self) -> int:
        """Its permission bits."""
        return self.entry.mode & 0o7777

    @property
    def digest(self) -> str | None:
        """The sha256 of its contents."""
        return self.entry.digest.hex() if self.kind == "file" and self.entry.mark != SECRET else None

    @property
    def target(self) -> str | None:
        """Where a link leads."""
        return os.fsdecode(self.entry.target) if self.kind == "link" else None

    @property
    def author(self) -> str:
        """The author of its last change."""
        changes = self._files.listing.changes_of(self.entry.path)
        return changes[-1][1] if changes else OUTSIDE

    @property
    def mark(self) -> str:
        """Why its contents are not those of the file."""
        return FORGOTTEN if self._files.is_forgotten(self.entry) else self.entry.mark

    def read(self) -> bytes:
        """Its contents, verified."""
        return self._files.contents(self.entry)


class CheckpointFiles:
    """The files of a checkpoint; see `backstay.file_model.Files`."""

    def __init__(self, backend: Backend, loaded: Loaded) -> None:
        self.listing: Listing = from_value(loaded.files)
        self.is_captured = is_captured(loaded.row)
        self._backend = backend
        self._fetch = GroupReader(backend)
        self._remnants: dict[bytes, Remnant] | None = None

    def __repr__(self) -> str:
        return f"<Files of {self.root!r}: {self.count:,}, {self.bytes:,} bytes>"

    @property
    def root(self) -> str:
        """The folder that was captured."""
        return self.listing.about.root

    @property
    def count(self) -> int:
        """How many files and links there are."""
        return self.listing.about.files

    @property
    def bytes(self) -> int:
        """How long the contents of all files are together."""
        return self.listing.about.size_bytes

    @property
    def left_out(self) -> Mapping[str, tuple[int, int, tuple[str, ...]]]:
        """The paths that were not captured, by reason."""
        return {why: (out.count, out.size_bytes, out.first) for why, out in self.listing.about.why.items()}

    @property
    def exact(self) -> bool:
        """True if every file is as it was at this checkpoint."""
        return self.is_captured and self.listing.about.exact

    @property
    def author(self) -> str:
        """The author of the last capture's changes."""
        return self.listing.about.author if self.is_captured else CARRIED

    def __getitem__(self, path: str | builtins.bytes) -> CheckpointFile:
        entry = self.listing.find(_raw(path))
        if entry is None or not entry.path:
            raise KeyError(path)
        return CheckpointFile(self, entry)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | builtins.bytes) and bool(path) and _raw(path) in self.listing

    def __iter__(self) -> Iterator[str]:
        return iter([os.fsdecode(entry.path) for entry in self.listing])

    def __len__(self) -> int:
        return len(self.listing)

    def list(self, folder: str = "") -> builtins.list[CheckpointFile]:
        """Everything at and below a path."""
        return [CheckpointFile(self, entry) for entry in self.listing.below(_raw(folder)) if entry.path]

    def contents(self, entry: FileEntry) -> builtins.bytes:
        """The contents of a file, verified."""
        if not entry.has_contents or entry.kind != "file":
            why = "a secret, of which only a digest is kept" if entry.mark == SECRET else f"a {entry.kind}"
            message = f"{os.fsdecode(entry.path)} is {why}: its contents cannot be read"
            raise NotFoundError(message)
        return contents_of(self.listing, entry, self._fetch)

    def is_forgotten(self, entry: FileEntry) -> bool:
        """True if the contents of a file were kept once and are no longer."""
        if self._remnants is None:
            self._remnants = remnants_of(self._backend, held_in(self.listing.groups))
        return is_forgotten(self.listing, entry, self._remnants)

    @property
    def forgotten(self) -> tuple[str, ...]:
        """The paths of files whose contents were forgotten."""
        return tuple([os.fsdecode(entry.path) for entry in self.listing if self.is_forgotten(entry)])

    def export_to(self, folder: str, *, partial: bool = False) -> int:
        """Write all of it into a folder that is new or empty; how many files and links that were."""
        from backstay.store.file_export import export_files  # noqa: PLC0415 - few who look at files write them

        return export_files(self, folder, partial=partial)


def files_between(old: CheckpointFiles, new: CheckpointFiles) -> FileDiff:
    """What differs from the files of one checkpoint to those of another."""
    return FileDiff(difference(old.listing, new.listing), old.contents, new.contents)


def _raw(path: str | builtins.bytes) -> builtins.bytes:
    return os.fsencode(path).strip(b"/") if isinstance(path, str) else path.strip(b"/")


class BlobSink:
    """Takes groups on their way into a store, ahead of the commit that needs them: few at a time, and those it has not.

    A few small ones wait for the commit itself. Between two portions it pauses for as long as one took, so that other
    sessions' commits come through. With `dry` nothing is kept.
    """

    def __init__(self, backend: Backend, *, dry: bool = False) -> None:
        self._backend = backend
        self._dry = dry
        self.waiting: dict[bytes, bytes] = {}
        self.needs: set[bytes] = set()  # groups that must be whole when the list is committed
        self.put_bytes = 0  # went into the store ahead of the next commit
        self._weight = 0

    def __call__(self, digest: bytes, contents: bytes) -> None:
        """A group."""
        if digest in self.waiting or self._dry:
            return
        self.waiting[digest] = contents
        self._weight += len(contents)
        if self._weight >= _PORTION_BYTES:
            began = time.monotonic()
            self._flush()
            time.sleep(min(time.monotonic() - began, _MOST_PAUSE_S))

    def taken(self) -> dict[bytes, bytes]:
        """The groups that go with the commit; they wait until `forget`, because a commit may be tried again."""
        return {digest: pack_held(contents) for digest, contents in self.waiting.items()}

    @property
    def waiting_bytes(self) -> int:
        """How long the groups are that go with the commit."""
        return self._weight

    def forget(self) -> None:
        """They were committed."""
        self.waiting, self._weight, self.needs = {}, 0, set()

    def _flush(self) -> None:
        absent = self._backend.absent(list(self.waiting))
        self._backend.put_blobs({digest: pack_held(self.waiting[digest]) for digest in absent})
        self.put_bytes += self._weight
        self.waiting, self._weight = {}, 0
