"""The disk: every file operation of the files backend, one small method each.

All that touches the file system goes through one Disk, given to the backend when it is made. A fault injector is a
subclass that counts, fails, tears or ends the process in `before`. A link is never followed, and only a regular file is
read: a FIFO that lies in a store's folder must not hang a reader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backstay.errors import BackstayError, CorruptionError, UnavailableError
from backstay.hints import RUN_VERIFY

_FLAGS = sum([getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")])
_F_FULLFSYNC = 51  # macOS: fsync alone leaves the bytes in the drive's cache
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_STRANGE = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)


# No seal keeps another program from writing a text where a number should be.
NONSENSE = (TypeError, ValueError, LookupError, ArithmeticError, msgspec.MsgspecError)


class Disk:
    """The operations. Those that change something announce themselves with `before` first."""

    def before(self, operation: str, size: int) -> int:  # noqa: ARG002 - what an injector looks at
        """Called before each change (create, write, sync, sync_folder, truncate, rename, unlink, make_folder).

        `size` is how many bytes a write has, otherwise 0. Raising an OSError makes the operation fail; a smaller size
        returned for a write tears it: that many bytes are written, then it fails.
        """
        return size

    # looking

    def open(self, path: str | Path, *, write: bool = False) -> int:
        """A descriptor of a regular file that is there."""
        try:
            file = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | _FLAGS)
        except OSError as error:
            if error.errno in _STRANGE:
                raise _strange(path) from error
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise _strange(path)
        return file

    def close(self, file: int) -> None:
        """Give a descriptor back."""
        os.close(file)

    def read(self, file: int, size: int, at: int) -> bytes:
        """Up to `size` bytes from a place; fewer at the end of the file."""
        data = os.pread(file, size, at)
        while len(data) < size and (more := os.pread(file, size - len(data), at + len(data))):
            data += more
        return data

    def read_file(self, path: str | Path, size: int = 1 << 30) -> bytes:
        """The beginning of a file, by its name."""
        file = self.open(path)
        try:
            return self.read(file, min(size, os.fstat(file).st_size), 0)
        finally:
            os.close(file)

    def stat(self, place: int | str | Path) -> os.stat_result:
        """What the file system knows about a file, or about a link itself."""
        return os.fstat(place) if isinstance(place, int) else os.lstat(place)

    def is_file(self, path: str | Path) -> bool:
        """True if a regular file is there."""
        try:
            return stat.S_ISREG(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_same(self, file: int, path: str | Path) -> bool:
        """True if an open file is still the one of this name."""
        try:
            return os.path.samestat(os.fstat(file), os.lstat(path))
        except FileNotFoundError:
            return False

    def is_there(self, path: str | Path) -> bool:
        """True if anything has this name, whatever it is."""
        return os.path.lexists(path)

    def names(self, folder: Path) -> list[str]:
        """What lies in a folder; nothing if there is no such folder, or only a link to one."""
        try:
            return [] if folder.is_symlink() else os.listdir(folder)  # noqa: PTH208 - names are all that is asked for
        except FileNotFoundError:
            return []

    # changing

    def create(self, path: str | Path) -> int:
        """A descriptor of a new, empty, private file."""
        self.before("create", 0)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)

    def write(self, file: int, data: bytes, at: int) -> None:
        """Write all of the bytes at a place."""
        size = len(data)
        allowed = self.before("write", size)
        done = os.pwrite(file, data if allowed >= size else data[:allowed], at)
        while done < min(allowed, size):
            done += os.pwrite(file, data[done:allowed], at + done)
        if allowed < size:
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
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def truncate(self, file: int, size: int) -> None:
        """Cut a file off."""
        self.before("truncate", 0)
        os.ftruncate(file, size)

    def rename(self, source: str | Path, target: str | Path) -> None:
        """Put a finished file in its place, over the file that was there; anything else there stays."""
        self.before("rename", 0)
        if self.is_there(target) and not self.is_file(target):
            raise _strange(target)
        os.replace(source, target)  # noqa: PTH105 - so that the seam is one call

    def unlink(self, path: str | Path) -> None:
        """Remove a file; one that is gone already is fine, and what is no regular file was not made here and stays."""
        self.before("unlink", 0)
        with contextlib.suppress(FileNotFoundError):
            if self.is_file(path):
                os.unlink(path)  # noqa: PTH108 - so that the seam is one call

    def make_folder(self, path: Path) -> bool:
        """Make a private folder; False if it is there already."""
        self.before("make_folder", 0)
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102 - so that the seam is one call
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise OSError(errno.ENOTDIR, "not a folder") from None
            return False
        return True


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """The one place where the errors of the system, and of lines that mean nothing, become errors of Backstay."""
    try:
        yield
    except OSError as error:
        raise translate(error, doing) from error
    except BackstayError:
        raise
    except NONSENSE as error:
        raise CorruptionError(f"{doing}: a line of the store means nothing", hint=RUN_VERIFY) from error


def translate(error: OSError, doing: str, *, unclear: bool = False) -> BackstayError:
    """The Backstay error for one of the system's; `unclear`: something may have been recorded all the same."""
    reason = os.strerror(error.errno) if error.errno else "the system gave no reason"
    text = f"{doing}: {reason}"
    if unclear:
        return UnavailableError(f"{text}; it is not known whether it was recorded", hint="look, then try again")
    if error.errno in _STRANGE:
        return _strange(doing)
    if error.errno in _FULL:
        return UnavailableError(text, hint="the disk is full: free some space and try again")
    if error.errno in _FORBIDDEN:
        return UnavailableError(text, hint="check that the store's folder can be written", retryable=False)
    return UnavailableError(text, hint="the storage failed; nothing was recorded")


def _strange(what: str | Path) -> CorruptionError:
    name = Path(what).name
    hint = "a store holds regular files and folders, no links: remove it, or put back what was there"
    return CorruptionError(f"{name}: something else is where a file of the store should be", hint=hint)
