"""The file of an export: a store of its own, in SQLite, with a mark that says so. Made under another name, then whole.

It is written inside a folder of ours beside its target (`.backstay-….part`, which only you can enter), synced, and
linked or renamed into place. The folder is locked by its maker. The next export to the same place removes those
that no process has locked: their makers were killed. An export that is read is resolved to a regular file first; SQLite
then opens it as a file that never changes, and neither locks it nor writes beside it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from backstay.backends.sqlite import SqliteBackend
from backstay.errors import (
    AlreadyExistsError,
    BackstayError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from backstay.hints import Hint
from backstay.port import Backend

_ANOTHER_NAME = Hint("choose another name, or pass overwrite=True", "choose another name, or give --overwrite")
_EXPORT = Hint("store.export(path) writes one", "`backstay export FILE` writes one")

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FILE = "sessions"
_OURS = re.compile(r"\.backstay-[0-9a-f]{16}\.part")
_IN_IT = (_FILE, f"{_FILE}-journal")
_FOLDER_MODE = 0o700
_NEWBORN_S = 60.0  # between the making of a folder and its lock
_FORGOTTEN_S = 86_400.0  # where folders cannot be locked
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Errors of Python that a row written with intent can cause, beside Backstay's own.
_NONSENSE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, AssertionError)


# writing


def check_target(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """The path of a file to be written; an error if it cannot be one, or is there and must stay."""
    try:
        target = Path(path)
        os.fsencode(target)
        usable = "\0" not in str(target) and target.name != ""
    except (TypeError, ValueError):
        usable = False
    if not usable or target.is_dir():
        message = f"{str(path)!r} cannot be the name of a file"
        raise InvalidInputError(message, hint="give the path of a file to write, 'sessions.backstay' say")
    if not overwrite and os.path.lexists(target):
        raise _exists(target)
    return target


class Draft:
    """An export that is being written: `backend` is where to. It is gone at the end of the `with`, or published."""

    backend: SqliteBackend

    def __init__(self, target: Path) -> None:
        self._target = target
        self._folder = target.with_name(f".backstay-{secrets.token_hex(8)}.part")
        self._lock = -1

    def __enter__(self) -> Self:
        with _writing(self._target):
            _sweep(self._target.parent)
            self._folder.mkdir(mode=_FOLDER_MODE)
            try:
                self._lock = _locked(self._folder)
                self.backend = SqliteBackend.make_export(self._folder / _FILE)
            except BaseException:
                self._remove()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BackstayError):
            self.backend.close()
        self._remove()

    def _remove(self) -> None:
        for name in _IN_IT:
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def publish(self, *, overwrite: bool) -> None:
        """Give the file its name, once every byte of it is on the disk."""
        self.backend.finish_export()
        self.backend.close()
        made = self._folder / _FILE
        with _writing(self._target):
            _sync(made)
            if overwrite:
                refuse_odd(self._target)
                made.replace(self._target)
            else:
                self._link(made)
            _sync(self._target.parent)

    def _link(self, made: Path) -> None:
        # A rename would silently take the place of a file that came since the first look; a link is refused.
        try:
            os.link(made, self._target)
        except FileExistsError:
            raise _exists(self._target) from None
        except OSError:  # a file system without links
            if os.path.lexists(self._target):
                raise _exists(self._target) from None
            made.rename(self._target)


def refuse_odd(target: Path) -> None:
    """Only a file gives way to another, and a link as such: a device, a pipe or a folder was made by other hands."""
    if os.path.lexists(target) and not (target.is_symlink() or target.is_file()):
        message = f"{target} is no file, and does not give way; nothing was written"
        raise InvalidInputError(message, hint="give a new name")


def _locked(folder: Path) -> int:
    """A descriptor of our folder that holds its lock; -1 where folders cannot be opened."""
    if fcntl is None:
        return -1
    descriptor = os.open(folder, _FOLDER)
    with contextlib.suppress(OSError):  # a file system without locks: then age decides
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _sweep(place: Path) -> None:
    """Remove what exports that were killed have left here, as far as that can be seen and done."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(place)):
            if _OURS.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _sweep_one(place / entry.name)


def _sweep_one(folder: Path) -> None:
    age_s = time.time() - folder.lstat().st_mtime
    if fcntl is None:
        if age_s < _FORGOTTEN_S:
            return
        _clear(folder)
        return
    descriptor = os.open(folder, _FOLDER)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or age_s < _NEWBORN_S:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # its maker lives
        except OSError:
            if age_s < _FORGOTTEN_S:
                return
        _clear(folder)
    finally:
        os.close(descriptor)


def _clear(folder: Path) -> None:
    for name in _IN_IT:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _sync(path: Path) -> None:
    if fcntl is None and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exists(target: Path) -> AlreadyExistsError:
    return AlreadyExistsError(f"there is already a file {target}", hint=_ANOTHER_NAME)


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror or error}"
        raise UnavailableError(message, hint="nothing was exported", retryable=error.errno == errno.ENOSPC) from error


# reading


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Backend]:
    """An export to read. Whatever is wrong with it, or with the rows in it, is one of Backstay's errors."""
    backend = SqliteBackend.open_export(_regular(path))
    try:
        yield backend
    except BackstayError:
        raise
    except _NONSENSE as error:
        raise CorruptionError(f"the export {path} is damaged: a row of it means nothing") from error
    finally:
        backend.close()


def _regular(path: str | os.PathLike[str]) -> Path:
    """The file that a path leads to; an error if there is none, or another thing, before anything is opened."""
    try:
        name = Path(path).resolve(strict=True)
        mode = name.lstat().st_mode
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}", hint=_EXPORT) from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{path!r} cannot be the name of a file") from error
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise UnavailableError(message, hint="nothing was imported", retryable=False) from error
    if not stat.S_ISREG(mode):
        message = f"{path} is not a file"
        raise InvalidInputError(message, hint="give the path of an export; it must be a file, a pipe will not do")
    return name
