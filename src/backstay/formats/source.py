"""A folder or file of another system, read and never changed.

Every name is opened from the folder it stands in, links are not followed, and only ordinary files are read: nothing
outside the given place can be reached, whatever the names inside it say. A name is a tuple of parts below the top.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import unicodedata
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

from backstay.errors import InvalidInputError, NotFoundError, UnavailableError, UnsupportedError
from backstay.formats.dialect import DamagedError
from backstay.model import MAX_STATE_BYTES

Parts = tuple[str, ...]

MAX_FILE_BYTES = 4 * MAX_STATE_BYTES
_MAX_FOLDERS_DEEP = 8
# Where a flag is not known, neither is the rest that is needed, and `Source` says so.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_TOP = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = _TOP | _NO_LINK
_FILE = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer must not stop us

_COPY = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Entry(NamedTuple):
    """A name in a folder. `kind` is "file", "folder", "link" or "other"."""

    parts: Parts
    kind: str

    @property
    def name(self) -> str:
        """The last part."""
        return self.parts[-1]

    @property
    def shown(self) -> str:
        """The whole of it, as people write it."""
        return "/".join(self.parts)


class Source:
    """A place to read from: a folder, or one file (which is then the only name in it)."""

    def __init__(self, path: str | os.PathLike[str], *, tell: Callable[[int], None] | None = None) -> None:
        refuse_other_systems()
        self.path = _usable(path)
        self._tell = tell
        self._reads = 0
        self.alone: str | None = None
        self.closing = contextlib.ExitStack()
        self.unlisted: dict[str, str] = {}  # folders that could not be looked into, and why
        self.kept: dict[Parts, Any] = {}  # what a reader holds open until the end
        try:
            kind = self.path.stat().st_mode
            if stat.S_ISREG(kind):
                self.alone = self.path.name
            elif not stat.S_ISDIR(kind):
                message = f"{self.path} is neither a folder nor a file"
                raise InvalidInputError(message, hint="give the folder that the other system writes to")
            # The way to the top is the caller's own; links on it are followed.
            top = self.path.resolve() if self.alone is None else self.path.resolve().parent
            if self.alone is not None:
                self.alone = self.path.resolve().name
            self._top = os.open(top, _TOP)
            self.folder = top
        except FileNotFoundError:
            message = f"there is no {self.path}"
            raise NotFoundError(message, hint="give the folder that the other system writes to") from None
        except OSError as error:
            message = f"{self.path} cannot be read: {error.strerror or error}"
            raise UnavailableError(message, retryable=False) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.close()
        os.close(self._top)

    def hush(self) -> None:
        """The first look is over: what is read from now on is not counted."""
        self._tell = None

    def entries(self, *folder: str) -> list[Entry]:
        """What a folder holds, by name; nothing if it is not there or is no folder."""
        if self.alone is not None:
            return [Entry((self.alone,), "file")] if not folder else []
        try:
            with self._folder(folder) as held, os.scandir(held) as found:
                return sorted([Entry((*folder, one.name), _kind(one)) for one in found])
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.unlisted["/".join(folder) or str(self.path)] = f"it cannot be listed: {error.strerror or error}"
            return []

    def walk(self, *folder: str) -> Iterator[Entry]:
        """Everything below a folder but the folders themselves, to a sensible depth."""
        for entry in self.entries(*folder):
            if entry.kind == "folder" and len(entry.parts) <= _MAX_FOLDERS_DEEP:
                yield from self.walk(*entry.parts)
            else:
                yield entry

    def is_folder(self, *parts: str) -> bool:
        """True for a folder that is not a link to one."""
        return any(entry.parts == parts and entry.kind == "folder" for entry in self.entries(*parts[:-1]))

    def read(self, parts: Parts, *, limit: int = MAX_FILE_BYTES) -> bytes:
        """The content of a file, or DamagedError if there is none that can be had."""
        self._reads += 1
        if self._tell is not None:
            self._tell(self._reads)
        try:
            with self._file(parts) as file:
                size = os.fstat(file).st_size
                if size > limit:
                    raise DamagedError(f"it has {size:,} bytes, more than the {limit:,} that are read")
                with os.fdopen(os.dup(file), "rb") as reader:
                    data = reader.read(size + 1)  # so many are set aside at once, read or not
                    if len(data) > size:  # it grows
                        data += reader.read(limit - size)
                    return data
        except FileNotFoundError as error:
            raise DamagedError("it is not there") from error
        except OSError as error:
            raise DamagedError(f"it cannot be read: {error.strerror or error}") from error

    @contextlib.contextmanager
    def opened(self, parts: Parts) -> Iterator[BinaryIO]:
        """A file to read piece by piece, or DamagedError if there is none that can be had."""
        self._reads += 1
        if self._tell is not None:
            self._tell(self._reads)
        try:
            with self._file(parts) as file, os.fdopen(os.dup(file), "rb") as reader:
                yield reader
        except FileNotFoundError as error:
            raise DamagedError("it is not there") from error
        except OSError as error:
            raise DamagedError(f"it cannot be read: {error.strerror or error}") from error

    def changed_us(self, parts: Parts) -> int:
        """When a file was last written to; 0 if that is not known."""
        try:
            with self._file(parts) as file:
                return os.fstat(file).st_mtime_ns // 1000
        except (OSError, DamagedError):
            return 0

    def again(self, parts: Parts, digest: bytes) -> bytes:
        """The content of a file that was read before; DamagedError if it is another now."""
        data = self.read(parts)
        if sha256(data).digest() != digest:
            raise DamagedError("it has changed while it was read")
        return data

    def peek(self, parts: Parts, size: int) -> bytes:
        """The first bytes of a file, or none."""
        with contextlib.suppress(OSError, DamagedError), self._file(parts) as file:
            return os.read(file, size)
        return b""

    def stamp(self, parts: Parts) -> tuple[int, int, int] | None:
        """What changes when a file is written to; None if it is not there."""
        try:
            with self._file(parts) as file:
                found = os.fstat(file)
                return found.st_ino, found.st_size, found.st_mtime_ns
        except (OSError, DamagedError):
            return None

    def copy(self, parts: Parts, to: Path) -> None:
        """A copy of a file, for our eyes only."""
        try:
            made = os.fdopen(os.open(to, _COPY, 0o600), "wb")
            with made as out, self._file(parts) as file, os.fdopen(os.dup(file), "rb") as reader:
                shutil.copyfileobj(reader, out)
        except OSError as error:
            raise DamagedError(f"it cannot be copied: {error.strerror or error}") from error

    def link(self, parts: Parts) -> str | None:
        """What a link says; None where there is none."""
        try:
            with self._folder(parts[:-1]) as held:
                return os.readlink(parts[-1], dir_fd=held)
        except OSError:
            return None

    @contextlib.contextmanager
    def _file(self, parts: Parts) -> Iterator[int]:
        with self._folder(parts[:-1]) as held:
            file = os.open(parts[-1], _FILE, dir_fd=held)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise DamagedError("it is not an ordinary file")
            yield file
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _folder(self, parts: Parts) -> Iterator[int]:
        held = os.dup(self._top)
        try:
            for part in parts:
                deeper = os.open(part, _FOLDER, dir_fd=held)
                os.close(held)
                held = deeper
            yield held
        finally:
            os.close(held)


def refuse_other_systems() -> None:
    """UnsupportedError where files cannot be opened from the folder they stand in."""
    if os.open not in os.supports_dir_fd:
        message = "files of other systems are read and written on POSIX systems only"
        raise UnsupportedError(message, hint="import them on Linux or macOS, then move them with export and import")


def same_name(a: str, b: str) -> bool:
    """True if two names are the same; some file systems spell letters their own way."""
    return a == b or unicodedata.normalize("NFC", a) == unicodedata.normalize("NFC", b)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _usable(path: str | os.PathLike[str]) -> Path:
    try:
        usable = Path(path).expanduser()
        if "\0" not in os.fsdecode(usable):
            return usable
    except (TypeError, ValueError, RuntimeError):
        pass
    message = f"{path!r} cannot be the name of a folder"
    raise InvalidInputError(message)
