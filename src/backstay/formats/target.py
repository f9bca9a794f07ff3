"""A folder that another system will read, written file by file: each whole or not at all, and nothing outside of it.

Ids become names only through `safe_parts`. Folders are entered without following links, a file has a name of its own
beside its target until it is on the disk, and only you can read what is written (0600, folders 0700).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from backstay.errors import AlreadyExistsError, InvalidInputError, UnavailableError
from backstay.formats.source import Parts, refuse_other_systems
from backstay.hints import Hint

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_TOP = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = _TOP | _NO_LINK
_OLD = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_MODE, _FOLDER_MODE = 0o600, 0o700
_MAX_NAME_BYTES = 255
_OVERWRITE = Hint("export to an empty folder, or pass overwrite=True", "export to an empty folder, or give --overwrite")


def safe_parts(text: str, what: str, *, tail: str = "") -> Parts:
    """The name (`text` and `tail`) as parts of a path, `/` between folders as the original would; never upwards."""
    parts = tuple((text + tail).split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part or "\\" in part or len(part.encode()) > _MAX_NAME_BYTES:
            message = f"{what} {text[:80]!r} cannot be the name of a file there"
            raise InvalidInputError(message, hint="import the session under another name, then export that")
    return parts


class Target:
    """A folder to write to, made if it is not there. A rehearsal looks at it, refuses what it must, writes nothing."""

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool, rehearsal: bool = False) -> None:
        refuse_other_systems()
        self.path = Path(path).expanduser()
        self.overwrite = overwrite
        self.rehearsal = rehearsal
        self.written: list[str] = []
        self._top = -1
        with _writing(self.path):
            if os.path.lexists(self.path) and not self.path.is_dir():
                message = f"{self.path} is not a folder"
                raise InvalidInputError(message, hint="give a folder to write to")
            if rehearsal and not self.path.exists():
                return
            self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._top = os.open(self.path.resolve(), _TOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._top >= 0:
            os.close(self._top)

    def names(self, *folder: str) -> list[str]:
        """What a folder holds; nothing if it is not there."""
        try:
            with self._folder(folder, make=False) as held, os.scandir(held) as found:
                return sorted([entry.name for entry in found])
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refused(folder, error) from error

    def refuse(self, names: list[str], *folder: str) -> None:
        """AlreadyExistsError if there are such files, unless they may be overwritten."""
        if names and not self.overwrite:
            where = "/".join([*folder, names[0]])
            message = f"{self.path} already has {where}; nothing was written"
            raise AlreadyExistsError(message, hint=_OVERWRITE)

    def read(self, parts: Parts) -> bytes | None:
        """The content of a file that is there."""
        try:
            with self._folder(parts[:-1], make=False) as held:
                file = os.open(parts[-1], _OLD, dir_fd=held)
                with os.fdopen(file, "rb") as reader:
                    return reader.read() if stat.S_ISREG(os.fstat(file).st_mode) else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused(parts, error) from error

    def write(self, parts: Parts, content: bytes) -> None:
        """A file, on the disk when this returns."""
        if self.rehearsal:
            return
        draft = f".backstay-{secrets.token_hex(8)}.part"
        try:
            with self._folder(parts[:-1], make=True) as held:
                file = os.open(draft, _NEW, _MODE, dir_fd=held)
                try:
                    with os.fdopen(file, "wb") as out:
                        out.write(content)
                        out.flush()
                        os.fsync(out.fileno())
                    os.rename(draft, parts[-1], src_dir_fd=held, dst_dir_fd=held)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(draft, dir_fd=held)
                    raise
        except OSError as error:
            raise self._refused(parts, error) from error
        self.written.append("/".join(parts))

    def link(self, parts: Parts, to: str) -> None:
        """A relative link to a name in the same folder."""
        if self.rehearsal:
            return
        draft = f".backstay-{secrets.token_hex(8)}.part"
        try:
            with self._folder(parts[:-1], make=True) as held:
                os.symlink(to, draft, dir_fd=held)
                try:
                    os.rename(draft, parts[-1], src_dir_fd=held, dst_dir_fd=held)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(draft, dir_fd=held)
                    raise
        except OSError as error:
            raise self._refused(parts, error) from error
        self.written.append("/".join(parts))

    def settle(self, *folder: str) -> None:
        """The names in a folder are on the disk when this returns."""
        with contextlib.suppress(OSError), self._folder(folder, make=False) as held:
            os.fsync(held)

    @contextlib.contextmanager
    def _folder(self, parts: Parts, *, make: bool) -> Iterator[int]:
        if self._top < 0:
            raise FileNotFoundError
        held = os.dup(self._top)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, _FOLDER_MODE, dir_fd=held)
                deeper = os.open(part, _FOLDER, dir_fd=held)
                os.close(held)
                held = deeper
            yield held
        finally:
            os.close(held)

    def _refused(self, parts: Parts, error: OSError) -> Exception:
        where = self.path.joinpath(*parts)
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            message = f"{where} leads through a link or a file; it was not written"
            return InvalidInputError(message, hint="export to a folder without links in it")
        return _unwritable(where, error)


def _unwritable(where: Path, error: OSError) -> UnavailableError:
    message = f"{where} cannot be written: {error.strerror or error}"
    return UnavailableError(message, hint="see what was written there", retryable=error.errno == errno.ENOSPC)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error) from error
