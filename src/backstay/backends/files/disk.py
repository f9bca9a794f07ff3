"""The disk: every file operation of the files backend, one small method each.

All that touches the file system goes through one Disk, given to the backend when it is made. A fault injector is a
subclass that counts, fails, tears or ends the process in `before`; nothing else needs to be overridden. A method does
one thing to one file: what must happen in which order is decided by its callers, and visible there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from backstay.errors import UnavailableError

_READ = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_F_FULLFSYNC = 51  # macOS: fsync alone leaves the bytes in the drive's cache
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class Disk:
    """The operations. Those that change something announce themselves with `before` first."""

    def __init__(self) -> None:
        self._seeking = threading.Lock()  # only where there is no pread

    def before(self, operation: str, size: int) -> int:  # noqa: ARG002 - what an injector looks at
        """Called before each change (create, write, sync, sync_folder, truncate, rename, unlink, make_folder).

        `size` is how many bytes a write has, otherwise 0. Raising an OSError makes the operation fail; a smaller size
        returned for a write tears it: that many bytes are written, then it fails.
        """
        return size

    # looking

    def open(self, path: str | Path) -> int:
        """A descriptor of a file that is there; never of what a link points at."""
        return os.open(path, _READ)

    def close(self, file: int) -> None:
        """Give a descriptor back."""
        os.close(file)

    def read(self, file: int, size: int, at: int) -> bytes:
        """Up to `size` bytes from a place; fewer at the end of the file."""
        if hasattr(os, "pread"):
            data = os.pread(file, size, at)
            while len(data) < size and (more := os.pread(file, size - len(data), at + len(data))):
                data += more
            return data
        with self._seeking:
            os.lseek(file, at, os.SEEK_SET)
            return os.read(file, size)

    def stat(self, place: int | str | Path) -> os.stat_result:
        """What the file system knows about a file."""
        return os.stat(place)  # noqa: PTH116 - descriptors too

    def names(self, folder: Path) -> list[str]:
        """What lies in a folder; nothing if there is no such folder."""
        try:
            return os.listdir(folder)  # noqa: PTH208 - names are all that is asked for
        except FileNotFoundError:
            return []

    # changing

    def create(self, path: Path) -> int:
        """A descriptor of a new, empty, private file."""
        self.before("create", 0)
        return os.open(path, _READ | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, file: int, data: bytes, at: int) -> None:
        """Write all of the bytes at a place."""
        allowed = self.before("write", len(data))
        done = 0
        while done < min(allowed, len(data)):
            piece = data if not done and allowed >= len(data) else data[done:allowed]
            if hasattr(os, "pwrite"):
                done += os.pwrite(file, piece, at + done)
            else:
                with self._seeking:
                    os.lseek(file, at + done, os.SEEK_SET)
                    done += os.write(file, piece)
        if allowed < len(data):
            raise OSError(errno.EIO, "the write was torn")

    def sync(self, file: int) -> None:
        """The file's bytes and its length are on the disk when this returns."""
        self.before("sync", 0)
        if sys.platform == "darwin":
            import fcntl  # noqa: PLC0415 - not there on Windows

            fcntl.fcntl(file, _F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(file)
        else:
            os.fsync(file)

    def sync_folder(self, folder: Path) -> None:
        """The names in a folder are on the disk when this returns."""
        self.before("sync_folder", 0)
        if sys.platform == "win32":
            return  # folders cannot be synced there; a rename is in the file system's own journal
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def truncate(self, file: int, size: int) -> None:
        """Cut a file off."""
        self.before("truncate", 0)
        os.ftruncate(file, size)

    def rename(self, source: Path, target: Path) -> None:
        """Put a finished file in its place, over whatever was there."""
        self.before("rename", 0)
        os.replace(source, target)  # noqa: PTH105 - so that the seam is one call

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is gone already is fine."""
        self.before("unlink", 0)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - so that the seam is one call

    def touch(self, path: str, time_ns: int) -> None:
        """Give a file a time. Nothing that must last depends on it."""
        os.utime(path, ns=(time_ns, time_ns))

    def make_folder(self, path: Path) -> bool:
        """Make a private folder; False if it is there already."""
        self.before("make_folder", 0)
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102 - so that the seam is one call
        except FileExistsError:
            return False
        return True


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """The one place where the system's errors become Backstay's."""
    try:
        yield
    except OSError as error:
        raise translate(error, doing) from error


def translate(error: OSError, doing: str) -> UnavailableError:
    """The Backstay error for one of the system's."""
    text = f"{doing}: {error.strerror or error}"
    if error.errno in _FULL:
        return UnavailableError(text, hint="the disk is full: free some space and try again")
    if error.errno in _FORBIDDEN:
        return UnavailableError(text, hint="check that the store's folder can be written", retryable=False)
    return UnavailableError(text, hint="the storage failed; nothing was recorded")
