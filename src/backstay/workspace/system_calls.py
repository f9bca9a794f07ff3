"""What Python's `os` leaves out: two names exchanged in one step, a path opened without leaving its folder, one sync.

Each says by its answer whether this system has it; a caller has another way where there is none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

if sys.platform != "win32":
    import fcntl

_LINUX, _DARWIN = sys.platform == "linux", sys.platform == "darwin"
_EXCHANGE = 2  # RENAME_EXCHANGE on Linux and RENAME_SWAP on macOS are the same number
_NO_REPLACE = 1 if _LINUX else 4  # RENAME_NOREPLACE, RENAME_EXCL
_OPENAT2 = 437  # the same on every architecture that came to have it
_BENEATH = 0x01 | 0x02 | 0x04 | 0x08  # RESOLVE_NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH
_FICLONE = 0x40049409
_ABSENT = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EPERM})
_AGAIN = 8  # openat2 gives EAGAIN where a rename was going on somewhere above it


class _How(ctypes.Structure):
    """`struct open_how` of openat2."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _library() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return None


_libc = _library()


def _rename_call() -> Callable[..., int] | None:
    found = getattr(_libc, "renameat2" if _LINUX else "renameatx_np", None) if _LINUX or _DARWIN else None
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return found


_rename = _rename_call()
_syncfs = getattr(_libc, "syncfs", None) if _LINUX else None
# On other machines the structure's numbers were never looked at; the walk by single folders serves there.
_has_openat2 = _LINUX and platform.machine() in {"x86_64", "aarch64", "arm64", "riscv64"}


def _renamed(from_folder: int, from_name: bytes, to_folder: int, to_name: bytes, flags: int) -> bool:
    """True if it was done, False if this file system cannot; any other failure is the OSError it is."""
    if _rename is None:
        return False
    if _rename(from_folder, from_name, to_folder, to_name, flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _ABSENT:
        return False
    raise OSError(number, os.strerror(number), os.fsdecode(to_name))


def exchange(from_folder: int, from_name: bytes, to_folder: int, to_name: bytes) -> bool:
    """Let two names change places in one step. False: this system cannot, and nothing was done."""
    return _renamed(from_folder, from_name, to_folder, to_name, _EXCHANGE)


def move(from_folder: int, from_name: bytes, to_folder: int, to_name: bytes) -> None:
    """Rename to a name that is free: FileExistsError where it is not.

    Where the system has no such rename, a second name is made and the first one taken away: links to files tell of a
    taken name. A folder has no second name; it is looked for first.
    """
    if _renamed(from_folder, from_name, to_folder, to_name, _NO_REPLACE):
        return
    try:
        os.link(from_name, to_name, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        try:
            os.stat(to_name, dir_fd=to_folder, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(from_name, to_name, src_dir_fd=from_folder, dst_dir_fd=to_folder)
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(to_name)) from None
    os.unlink(from_name, dir_fd=from_folder)


def open_beneath(folder: int, path: bytes, flags: int) -> int | None:
    """Open a path without following a link, leaving the folder or its file system. None: this system cannot."""
    global _has_openat2  # noqa: PLW0603 - an old kernel, or a sandbox, says so once
    if not _has_openat2:
        return None
    how = _How(flags | os.O_CLOEXEC, 0, _BENEATH)
    for _ in range(_AGAIN):
        descriptor = _libc.syscall(_OPENAT2, folder, path, ctypes.byref(how), ctypes.sizeof(how))
        if descriptor >= 0:
            return int(descriptor)
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EPERM):
            _has_openat2 = False
            return None
        if number != errno.EAGAIN:
            raise OSError(number, os.strerror(number), os.fsdecode(path))
    return None


def sync_file_system(descriptor: int) -> bool:
    """Write everything of a file system to its disk. False: this system has no call for it."""
    return _syncfs is not None and _syncfs(descriptor) == 0


def clone(source: int, target: int) -> None:
    """Let an empty file share the blocks of another one; an OSError where this file system cannot."""
    if not _LINUX:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    fcntl.ioctl(target, _FICLONE, source)
