"""A workspace's folder, held open: every path beneath it is reached from its descriptor, and no link is followed.

A name may be swapped for a link at any moment. So nothing here checks a path and then uses it: a folder is opened with
O_NOFOLLOW from its parent's descriptor, and all work on a name goes through the descriptor of its folder. A folder on
another file system is not entered.

Backstay's own folder beneath the root, `.backstay/`, is opened the same way; it must be ours and no link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Self

from backstay.errors import InvalidInputError, LeaseHeldError, UnavailableError, UnsupportedError
from backstay.hints import Hint
from backstay.listing import OWN, FileEntry
from backstay.workspace.git_ignore import keep_from_git
from backstay.workspace.system_calls import open_beneath

if sys.platform != "win32":
    import fcntl

    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    _FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
else:  # pragma: no cover - refused when it is opened
    _FOLDER = _FILE = 0

_INTO = Hint(
    "put them into a folder of their own: session.fork(ref, name, into=folder)",
    "put them into a folder of their own: `backstay fork SESSION REF NAME --into DIR`",
)
_LOCK = b"place.lock"
_CHUNK = 1 << 20
_NOT_A_FOLDER = frozenset({errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EXDEV})
_LOOKS = 3


class BlockedError(Exception):
    """A path cannot be reached or read; its text says why. Whatever is there stays.

    `absent`: a folder on the way is none, so there is nothing at the path. `refused`: the system does not let us there.
    """

    def __init__(self, why: str, *, absent: bool = False, refused: bool = False) -> None:
        super().__init__(why)
        self.absent = absent
        self.refused = refused


class OpenRoot:
    """See the module's text. Close it, or use it in a `with`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if sys.platform == "win32":
            message = "files cannot be put back in place on Windows"
            raise UnsupportedError(message, hint=_INTO)
        self.path = os.path.realpath(path)
        try:
            self.descriptor = os.open(self.path, _FOLDER)
        except OSError as error:
            message = f"the workspace {self.path} cannot be opened: {error.strerror}"
            raise InvalidInputError(message, hint="give the folder that the files belong to") from error
        found = os.fstat(self.descriptor)
        self.device, self.inode = found.st_dev, found.st_ino

    def close(self) -> None:
        """Let go of the folder."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # reaching

    @contextlib.contextmanager
    def parent_of(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """The descriptor of the folder that a path is in, and its name there."""
        above, _, name = path.rpartition(b"/")
        if not above:
            yield self.descriptor, name
            return
        descriptor = self.open_folder(above)
        try:
            yield descriptor, name
        finally:
            os.close(descriptor)

    def open_folder(self, path: bytes) -> int:
        """A folder beneath the root; BlockedError where the way is no chain of folders of this file system."""
        try:
            descriptor = open_beneath(self.descriptor, path, _FOLDER)
            if descriptor is None:
                descriptor = self._walk(path)
        except OSError as error:
            if error.errno in _NOT_A_FOLDER:
                elsewhere = error.errno == errno.EXDEV
                raise BlockedError(_why(error), absent=not elsewhere, refused=elsewhere) from error
            if isinstance(error, PermissionError):
                raise BlockedError("its folder cannot be entered", refused=True) from error
            raise
        return descriptor

    def _walk(self, path: bytes) -> int:
        at = os.dup(self.descriptor)
        try:
            for name in path.split(b"/"):
                below = os.open(name, _FOLDER, dir_fd=at)
                os.close(at)
                at = below
                if os.fstat(at).st_dev != self.device:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        except BaseException:
            os.close(at)
            raise
        return at

    # Backstay's own folder

    def own_folder(self, *names: bytes) -> int:
        """A folder in `.backstay/`, made where it is not there."""
        at = os.dup(self.descriptor)
        try:
            for name in (OWN, *names):
                made = self._make(at, name)
                below = self._own(at, name)
                os.close(at)
                at = below
                if made and name == OWN:
                    keep_from_git(descriptor=at)
        except BaseException:
            os.close(at)
            raise
        return at

    def _make(self, above: int, name: bytes) -> bool:
        """Make a folder of ours; False if there is something of that name."""
        try:
            os.mkdir(name, 0o700, dir_fd=above)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            message = f"{name.decode()} cannot be made in {self.path}: {error.strerror}"
            raise UnavailableError(message, hint="Backstay needs a folder of its own there", retryable=False) from error
        return True

    def _own(self, above: int, name: bytes) -> int:
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=above)
        except OSError as error:
            message = f"{name.decode()} in {self.path} is no folder of its own: {error.strerror}"
            raise InvalidInputError(message, hint="move it away: Backstay keeps its own things there") from error
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_dev != self.device:
            os.close(descriptor)
            message = f"{name.decode()} in {self.path} belongs to another user or lies on another disk"
            raise InvalidInputError(message, hint="move it away: Backstay keeps its own things there")
        return descriptor

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time puts files back beneath a root; LeaseHeldError while another one does."""
        own = self.own_folder()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=own)
        finally:
            os.close(own)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                message = f"another process is putting files back in {self.path}"
                raise LeaseHeldError(message, hint="wait for it to end") from error
            yield
        finally:
            os.close(lock)

    # looking

    def look(self, path: bytes) -> FileEntry | None:
        """What is at a path now, read and not remembered; None for nothing."""
        try:
            with self.parent_of(path) as (folder, name):
                return look_in(folder, name, self.device)
        except BlockedError as error:
            if error.absent:
                return None
            raise


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "its folder is gone"
    return "its folder is on another disk" if error.errno == errno.EXDEV else "its folder is no folder any more"


def look_in(folder: int, name: bytes, device: int) -> FileEntry | None:
    """What has a name in an open folder. A link is read, not followed; a file is read whole."""
    for _ in range(_LOOKS):
        try:
            return _look_once(folder, name, device)
        except FileNotFoundError:
            if not _is_there(folder, name):
                return None
        except PermissionError as error:
            raise BlockedError("it cannot be read") from error
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EINVAL, errno.ENXIO):  # it became another kind meanwhile
                raise
    raise BlockedError("it keeps changing")


def _is_there(folder: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _look_once(folder: int, name: bytes, device: int) -> FileEntry:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        return FileEntry(name, found.st_mode, target=os.readlink(name, dir_fd=folder))
    if stat.S_ISDIR(found.st_mode) and found.st_dev != device:
        return FileEntry(name, stat.S_IFBLK)  # another file system: nothing that was captured
    if not stat.S_ISREG(found.st_mode):
        return FileEntry(name, found.st_mode)
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return FileEntry(name, found.st_mode)
        return FileEntry(name, found.st_mode, found.st_size, digest_of(descriptor))
    finally:
        os.close(descriptor)


def digest_of(descriptor: int) -> bytes:
    """The sha256 of an open file."""
    digest = sha256()
    while chunk := os.read(descriptor, _CHUNK):
        digest.update(chunk)
    return digest.digest()


def same(a: FileEntry | None, b: FileEntry | None) -> bool:
    """True if a person would see no difference; both may be None, for nothing. A link has no permissions of its own."""
    if a is None or b is None:
        return a is b
    return a.same_contents(b) and (a.permissions == b.permissions or stat.S_ISLNK(a.mode))


def is_folder(entry: FileEntry | None) -> bool:
    """True for a folder; what was looked at may be something that no list has."""
    return entry is not None and stat.S_ISDIR(entry.mode)
