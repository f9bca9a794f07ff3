"""The file of a store: looked at before it is touched, made whole or not at all, and opened.

A SQLite that can lose committed rows (the WAL-reset race) and a network file system are refused before anything is
written; a file that is not a store, or is one from the future, is left as it was. Links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw

from backstay.backends.sqlite import schema, wal
from backstay.backends.sqlite.connections import Connection, connect, connect_export, translated
from backstay.backends.sqlite.file_system import refuse_network, refuse_odd_neighbours
from backstay.errors import CorruptionError, FormatError, InvalidInputError, UnavailableError, UnsupportedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HEADER_BYTES = 100
_APPLICATION_ID_AT = slice(68, 72)  # of the header
_LOGGED_AT, _UNLOGGED = slice(18, 20), b"\1\1"  # of the header, too: how it is written to
_BESIDE = ("-wal", "-shm", "-journal", "-tail")
_A_STORE = "give the path of a store or of a new file"


def refuse_unsafe_sqlite(version_text: str) -> None:
    """UnsupportedError for a SQLite that can lose a committed row when a WAL is reset (fixed in 3.51.3)."""
    version = tuple(int(part) for part in version_text.split(".")[:3])
    # The fix was carried back to two older lines.
    mended = version[:2] in {(3, 50), (3, 44)} and version >= ((3, 50, 7) if version[1] == 50 else (3, 44, 6))  # noqa: PLR2004
    if (3, 7, 0) <= version < (3, 51, 3) and not mended:
        message = f"SQLite {version_text} can lose committed rows in WAL mode (the WAL-reset race)"
        raise UnsupportedError(message, hint="install apsw 3.51.3 or newer: pip install -U apsw")


def whereabouts(path: Path) -> Path:
    """A path through whose folders no link leads, so that SQLite may refuse every link."""
    try:
        return path.parent.resolve() / path.name
    except (OSError, RuntimeError) as error:
        raise InvalidInputError(f"{path} leads nowhere", hint="a link in it leads in a circle") from error


def prepare(path: Path, *, durability: str) -> Connection:
    """Open a store, making it first if there is none; refuse what is not one. Returns the writing connection."""
    refuse_unsafe_sqlite(apsw.sqlite_lib_version())
    fresh = _inspect(path)
    refuse_network(path)
    if fresh:
        _make(path)
    with translated(f"opening {path}"):
        connection = connect(path, durability=durability)
        try:
            # Closing would move what is left of a damaged log into the store, and delete it.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            wal.refuse_lost_commits(connection, path)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            schema.verify(connection)
            if schema.EXPORT in schema.meta(connection):
                raise FormatError(f"{path} is an export, not a store", hint=f"backstay import {path.name}")
        except BaseException:
            connection.close()
            raise
    return connection


def is_export(path: Path) -> bool:
    """True if a file is of ours and has no log: a store always has one, an export never. Its header alone is read."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        header = _header(path)
    except (OSError, ValueError, apsw.Error):
        return False
    return header[_APPLICATION_ID_AT] == schema.APPLICATION_ID.to_bytes(4, "big") and header[_LOGGED_AT] == _UNLOGGED


def open_export(path: Path) -> Connection:
    """An export that is whole, to be read; nothing is locked, written or made beside it."""
    if _inspect(path, writing=False):
        raise FormatError(f"{path} is not an export", hint="give the path of an export")
    with translated(f"opening {path}"):
        connection = connect_export(path)
        try:
            schema.verify(connection)
            mark = schema.meta(connection).get(schema.EXPORT, 0)
            if mark < 1:
                raise FormatError(f"{path} is not an export, or not a whole one", hint="give the path of an export")
            if any([count != mark - 1 for count in schema.count_sessions(connection)]):
                raise CorruptionError(f"{path} is damaged: it has other sessions than it counts")
        except BaseException:
            connection.close()
            raise
    return connection


def make_export(path: Path) -> Connection:
    """A new export to be written to: one file without a log, and not whole before `finish_export`."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))
    except OSError as error:
        raise _cannot_make(path, error) from error
    with translated(f"making {path}"):
        connection = connect(path, durability="none", create=True)
        schema.create(connection, export=True)
    return connection


def finish_export(connection: Connection, path: Path) -> None:
    """Say that an export is whole, once all of it is on disk."""
    with translated(f"finishing {path}"):
        connection.pragma("synchronous", "extra")  # the one sync of the file takes all that was written before along
        connection.execute(schema.PUT_META, (schema.EXPORT, 1 + schema.count_sessions(connection)[0]))


def _inspect(path: Path, *, writing: bool = True) -> bool:
    """True if there is nothing at the path yet; an error, before anything is touched, if it is not a store."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise InvalidInputError(f"{path.parent} is not a folder", hint="make the folder first") from None
        return True
    except OSError as error:
        raise UnavailableError(f"{path} cannot be looked at: {error.strerror}", retryable=False) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a link; name the file it leads to" if stat.S_ISLNK(status.st_mode) else "not a file"
        raise FormatError(f"{path} is {kind}", hint=f"{_A_STORE}; for a folder use file:")
    if writing:
        refuse_odd_neighbours(path, _BESIDE)
    if writing and not status.st_mode & 0o222:
        message = f"{path} is read-only"
        raise UnavailableError(message, hint="make it writable: opening a store writes beside it", retryable=False)
    if status.st_size:
        _peek(path)
    return not status.st_size


def _peek(path: Path) -> None:
    # The header alone: whatever else is in the file may be half of a log that was being moved into it when its process
    # was killed, and the log has the rest. Through SQLite's own file, because closing a descriptor of ours would drop
    # the locks of every other connection of this process, and because an ordinary connection would leave -wal and -shm
    # beside a stranger's database.
    with translated(f"opening {path}"):
        header = _header(path)
    if not header.startswith(b"SQLite format 3\0"):
        raise FormatError(f"{path} is not a Backstay store", hint=_A_STORE)
    if header[_APPLICATION_ID_AT] != schema.APPLICATION_ID.to_bytes(4, "big"):
        raise FormatError(f"{path} is a SQLite database, but not a Backstay store", hint=_A_STORE)


def _header(path: Path) -> bytes:
    file = apsw.VFSFile("", str(path.absolute()), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
    try:
        return file.xRead(_HEADER_BYTES, 0)
    finally:
        file.xClose()


def _make(path: Path) -> None:
    """A store where there is none: made under another name, complete, then given its own in one step.

    So a store is there whole or not at all, whoever is killed on the way. The lock on the folder keeps two makers
    from replacing one another's; it goes with its process.
    """
    begins = f".{path.name[:200]}.new-"
    try:
        with _locked(path.parent):
            if not _inspect(path):
                return  # somebody else was first
            _refuse_strangers(path)
            _sweep(path.parent, begins)  # their makers were killed: whoever lives holds the lock
            new = path.with_name(f"{begins}{secrets.token_hex(4)}")
            # Made private before SQLite writes to it; -wal and -shm take over the mode.
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                with translated(f"making {path}"):
                    _create(new)
                new.replace(path)
            except BaseException:
                _sweep(path.parent, begins)
                raise
    except OSError as error:
        raise _cannot_make(path, error) from error


def _refuse_strangers(path: Path) -> None:
    """What lies beside a name that is about to be used would become part of the store, or be lost."""
    refuse_odd_neighbours(path, _BESIDE)
    wal.refuse_log_alone(path)
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():
        raise FormatError(f"{journal} belongs to another database", hint="move it away, or name another file")


def _create(path: Path) -> None:
    connection = connect(path, durability="full", create=True)
    try:
        schema.create(connection)
        connection.pragma("journal_mode", "wal")
    finally:
        connection.close()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone in a folder; what was renamed in it is on disk afterwards."""
    if fcntl is None:  # Windows can neither open nor lock a folder: then the last maker wins
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the same
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(folder: Path, begins: str) -> None:
    ours = re.compile(re.escape(begins) + r"[0-9a-f]{8}(-wal|-shm|-journal)?")
    for found in list(folder.iterdir()):
        if ours.fullmatch(found.name):
            found.unlink(missing_ok=True)


def _cannot_make(path: Path, error: OSError) -> UnavailableError:
    message = f"{path} cannot be made: {error.strerror}"
    return UnavailableError(message, hint="check that its folder can be written", retryable=False)
