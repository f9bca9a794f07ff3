"""Files read for a capture: through their folder's descriptor, never through a link, and never a special file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import sys
import time

import msgspec

from backstay.workspace.index import Signature

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_ATIME = getattr(os, "O_NOATIME", 0)
_TRIES, _PAUSE_S = 3, 0.01
_CHUNK = 1 << 20
_IS_LINK = frozenset({errno.ELOOP, getattr(errno, "EMLINK", errno.ELOOP)})  # what O_NOFOLLOW says, by system
_WRITE_OUT = 2  # SYNC_FILE_RANGE_WRITE


class ReadFile(msgspec.Struct, gc=False):
    """A file or link as it was read. `exact` is False if it was being written all the while."""

    signature: Signature
    contents: bytes
    exact: bool = True


def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    except OSError:
        return None


_libc = _library()


def read_file(folder: int, name: str, *, limit: int, hot: bool = False) -> ReadFile | None:
    """What a name in an open folder holds now; None if it is gone, no file any more, longer than `limit` or closed.

    A file that changed a moment ago (`hot`) has its pages written out first: a program that writes through a map into
    pages that are dirty already would not move the file's times, and the next look would take it for unchanged.
    """
    found: ReadFile | None = None
    for attempt in range(_TRIES):
        try:
            found = _read_once(folder, name, limit, hot=hot)
        except OSError as error:
            return _read_link(folder, name) if error.errno in _IS_LINK else None
        if found is None or found.exact:
            return found
        if attempt + 1 < _TRIES:
            time.sleep(_PAUSE_S)
    return found


def _read_link(folder: int, name: str) -> ReadFile | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return ReadFile(signature_of(status), os.fsencode(os.readlink(name, dir_fd=folder)))
    except OSError:
        return None


def signature_of(status: os.stat_result) -> Signature:
    """The numbers that change when a file does."""
    return status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def _read_once(folder: int, name: str, limit: int, *, hot: bool) -> ReadFile | None:
    handle = _open(folder, name)
    try:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode) or before.st_size > limit:
            return None
        if hot and _libc is not None:
            with contextlib.suppress(AttributeError):
                _libc.sync_file_range(handle, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE_OUT)
            before = os.fstat(handle)
        contents = _contents(handle, before.st_size, limit)
        after = os.fstat(handle)
    finally:
        os.close(handle)
    signature = signature_of(before)
    exact = contents is not None and signature == signature_of(after) and len(contents) == after.st_size
    return None if contents is None else ReadFile(signature, contents, exact)


def _open(folder: int, name: str) -> int:
    if _NO_ATIME:
        with contextlib.suppress(PermissionError):  # only the owner may
            return os.open(name, _OPEN | _NO_ATIME, dir_fd=folder)
    return os.open(name, _OPEN, dir_fd=folder)


def _contents(handle: int, size: int, limit: int) -> bytes | None:
    """All of it; None if it is longer than it may be."""
    first = os.read(handle, size + 1)
    return first if len(first) == size else _rest(handle, [first], limit)  # a short read is the end of a file


def _rest(handle: int, parts: list[bytes], limit: int) -> bytes | None:
    total = sum(map(len, parts))
    while total <= limit:
        part = os.read(handle, _CHUNK)
        if not part:
            return b"".join(parts)
        parts.append(part)
        total += len(part)
    return None
