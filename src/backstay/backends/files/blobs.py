"""Blobs: one file each, with the journals that use it written behind its contents.

    length, crc32 of the contents · the contents, packed, opaque · for each user: the journal's `born`, its crc32

A user is written down and synced before the line that refers to the blob, and never taken back: the users of a blob are
all who may need it. So that the last row that needs it is known without a look into every session.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from backstay.backends.files.folder import BLOBS, Folder, is_hex
from backstay.codec import is_held
from backstay.sealing import is_cut

_HEAD = struct.Struct(">QI")
_USER = struct.Struct(">8sI")
_DIGITS = 64


class BlobFolder:
    """See the module's text. What changes anything is called with the store's lock held, but for `write_aside`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._disk = folder.disk

    def path(self, digest: bytes) -> Path:
        """Where a blob lies, or would."""
        name = digest.hex()
        return self._folder.path / BLOBS / name[:2] / name

    def has(self, digest: bytes) -> bool:
        """True if there is such a blob."""
        path = self.path(digest)
        return self._disk.is_file(path) and not path.parent.is_symlink()

    def is_whole(self, digest: bytes) -> bool:
        """True if there is such a blob, and nothing was cut of it."""
        if not self.has(digest) or not is_held(digest):
            return self.has(digest)
        file = self._disk.open(self.path(digest))
        try:
            return not is_cut(digest, self._disk.read(file, 1, _HEAD.size))
        finally:
            self._disk.close(file)

    def read(self, digest: bytes) -> bytes | None:
        """The contents of a blob as they are, damaged too; None if there is none."""
        return None if (found := self._load(digest)) is None else found[0]

    def _load(self, digest: bytes) -> tuple[bytes, bool, set[bytes] | None] | None:
        """A blob, whether it is whole, and its users (None if they cannot be told)."""
        if not self.has(digest):
            return None
        data = self._disk.read_file(self.path(digest))
        if len(data) < _HEAD.size:
            return data, False, None
        size, check = _HEAD.unpack_from(data)
        contents, rest = data[_HEAD.size : _HEAD.size + size], data[_HEAD.size + size :]
        users = [_USER.unpack_from(rest, at) for at in range(0, len(rest) - _USER.size + 1, _USER.size)]
        sound = len(users) * _USER.size == len(rest) and all([zlib.crc32(user) == crc for user, crc in users])
        known = {user for user, _ in users} if sound and len(contents) == size else None
        return contents, zlib.crc32(contents) == check and len(contents) == size, known

    def users(self, digest: bytes) -> set[bytes] | None:
        """The journals that may use a blob; None if that cannot be told."""
        found = self._load(digest)
        return set() if found is None else found[2]

    def put(self, blobs: Mapping[bytes, bytes], user: bytes | None = None) -> None:
        """Have these on the disk, each with this user."""
        asides = {}
        try:
            for digest, contents in blobs.items():
                found = self._load(digest)
                users = set(() if found is None or found[2] is None else found[2]) | ({user} if user else set())
                if found is None or not found[1] or (is_cut(digest, found[0]) and not is_cut(digest, contents)):
                    asides[digest] = self.write_aside(contents, users)
                elif user is not None:
                    self.use((digest,), user)
            self.place(asides)
        finally:
            for aside in asides.values():
                with contextlib.suppress(OSError):
                    self._disk.unlink(aside)

    def write_aside(self, contents: bytes, users: Collection[bytes] = ()) -> Path:
        """A blob that is not yet in its place."""
        data = [_HEAD.pack(len(contents), zlib.crc32(contents)), contents]
        data += [_USER.pack(user, zlib.crc32(user)) for user in users]
        return self._folder.write_aside(b"".join(data), sync=self._folder.durable)

    def place(self, asides: Mapping[bytes, Path]) -> None:
        """Put blobs that were written aside in their places."""
        folders = set()
        for digest, aside in asides.items():
            path = self.path(digest)
            if self._disk.make_folder(path.parent):
                folders.add(path.parent.parent)
            self._disk.rename(aside, path)
            folders.add(path.parent)
        for folder in sorted(folders) if self._folder.durable else ():
            self._disk.sync_folder(folder)

    def cut(self, remnants: Mapping[bytes, bytes]) -> None:
        """Put what is left of blobs in their places; those who use them stay the same."""
        asides = {}
        for digest, data in remnants.items():
            found = self._load(digest)
            if found is not None:
                asides[digest] = self.write_aside(data, found[2] or ())
        self.place(asides)

    def use(self, digests: Collection[bytes], user: bytes) -> None:
        """A journal is about to refer to blobs that are here; whoever made them may not have synced their names."""
        for digest in digests:
            path = self.path(digest)
            users = self.users(digest)
            file = self._disk.open(path, write=True)
            try:
                if users is not None and user not in users:
                    self._disk.write(file, _USER.pack(user, zlib.crc32(user)), self._disk.stat(file).st_size)
                if self._folder.durable:
                    self._disk.sync(file)
            finally:
                self._disk.close(file)
            if self._folder.durable:
                self._disk.sync_folder(path.parent)
                self._disk.sync_folder(path.parent.parent)

    def drop(self, digest: bytes) -> None:
        """Remove a blob. One that only a link leads to is not there, and stays."""
        if self.has(digest):
            self._disk.unlink(self.path(digest))

    def every(self) -> Iterator[bytes]:
        """All blobs there are: files with names of our making, in their own folders."""
        root = self._folder.path / BLOBS
        for name in self._disk.names(root):
            if len(name) != 2 or not is_hex(name):  # noqa: PLR2004 - a byte of a digest
                continue
            for blob in self._disk.names(root / name):
                ours = len(blob) == _DIGITS and is_hex(blob) and blob.startswith(name)
                if ours and self._disk.is_file(root / name / blob):
                    yield bytes.fromhex(blob)

    def stored_bytes(self) -> tuple[int, int]:
        """What all blobs take, and those that states only hold."""
        total = held = 0
        for digest in self.every():
            with contextlib.suppress(FileNotFoundError):
                size = self._disk.stat(self.path(digest)).st_size
                total += size
                held += size if is_held(digest) else 0
        return total, held
