"""Files of a fork that share their blocks with those of the workspace: a copy that takes neither time nor room.

btrfs, XFS and some others can (FICLONE). The new file is read and compared with its digest, whatever its source was at
that moment; a file system that cannot is asked once.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Self

from backstay.listing import FileEntry
from backstay.workspace.open_root import BlockedError, OpenRoot, digest_of
from backstay.workspace.system_calls import clone

_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_MIN_BYTES = 64 * 1024  # a shorter one is written as fast


class SharedFiles:
    """Gives files of a folder to another folder without copying them. Use it in a `with`."""

    def __init__(self, path: str) -> None:
        self._root = OpenRoot(path)
        self._can = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._root.close()

    def __call__(self, entry: FileEntry, handle: int) -> bool:
        """Let an empty open file share the contents of an entry, if the folder has them; False if it is empty still."""
        if not self._can or entry.size < _MIN_BYTES:
            return False
        try:
            with self._root.parent_of(entry.path) as (folder, name):
                source = os.open(name, _OPEN, dir_fd=folder)
        except (BlockedError, OSError):
            return False
        try:
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
                return False
            try:
                clone(source, handle)
            except OSError as error:
                self._can = error.errno not in _CANNOT
                return False
        finally:
            os.close(source)
        if digest_of(handle) == entry.digest:
            return True
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        return False


_CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOTTY, errno.EXDEV, errno.ENOSYS, errno.EPERM})
