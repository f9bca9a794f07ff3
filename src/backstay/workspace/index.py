"""What is known of a folder's files since the last look, so that only what changed is read again.

By folder: the names that belong with the signature that `stat` gave and the digest of what was read then, and the
names that are ignored. A signature is trusted only if it is older than the look itself by a tick of the file system's
clock; one that is not is None, and the file is read again. The index is a cache: losing it costs one full read.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from hashlib import sha256

import msgspec

from backstay.errors import BackstayError
from backstay.workspace.open_root import OpenRoot

VERSION = 3
_FOLDER = b"index"

Signature = tuple[int, int, int, int, int]  # ctime, mtime, size, inode, mode


class KnownFile(msgspec.Struct, array_like=True, gc=False):
    """A file as it was read: its signature, or None if that is not to be trusted, and the digest of its contents."""

    signature: Signature | None
    digest: bytes = b""


class KnownFolder(msgspec.Struct, array_like=True):
    """A folder as it was scanned. `rules`: what decided on its names; `packed`: a digest of its values in the list.

    `folders` are those in it that belong. A name that is `ignored` ends in a slash if it is a folder: a rule may be
    about folders only.
    """

    mode: int
    rules: bytes
    files: dict[str, KnownFile]
    ignored: set[str]
    packed: bytes = b""
    folders: set[str] = set()


class _Saved(msgspec.Struct, array_like=True):
    """An index as it is kept."""

    version: int
    root: tuple[str, int, int]
    folders: dict[bytes, KnownFolder]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Saved).decode


def load(root: OpenRoot) -> dict[bytes, KnownFolder]:
    """The index of a folder; empty if there is none that fits."""
    with contextlib.suppress(OSError, BackstayError, msgspec.DecodeError, ValueError):
        above = root.own_folder(_FOLDER)
        try:
            handle = os.open(_name(root), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        finally:
            os.close(above)
        with os.fdopen(handle, "rb") as file:
            data = file.read()
        if zlib.crc32(data[4:]) == int.from_bytes(data[:4]):
            saved = _decode(data[4:])
            if saved.version == VERSION and saved.root == (root.path, root.device, root.inode):
                return saved.folders
    return {}


def save(root: OpenRoot, folders: dict[bytes, KnownFolder]) -> None:
    """Keep an index for other processes; it may be lost at any time."""
    with contextlib.suppress(OSError, BackstayError, UnicodeEncodeError):
        data = _encode(_Saved(VERSION, (root.path, root.device, root.inode), folders))
        above = root.own_folder(_FOLDER)
        name = _name(root)
        fresh = name + b".new"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=above), "wb") as file:
                file.write(zlib.crc32(data).to_bytes(4, "big") + data)
            os.rename(fresh, name, src_dir_fd=above, dst_dir_fd=above)
        finally:
            os.close(above)


def packed_digest(values: list[bytes]) -> bytes:
    """A digest of a folder's values in a list of files."""
    return sha256(b"".join(values)).digest()[:12]


def _name(root: OpenRoot) -> bytes:
    names = f"{root.path}\0{root.device}\0{root.inode}".encode("utf-8", "surrogateescape")
    return sha256(names).hexdigest()[:32].encode()
