"""A connection to a store: how it is set up, what it remembers, and what SQLite's errors mean."""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from backstay.errors import (
    BackstayError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    UnavailableError,
    UnsupportedError,
)
from backstay.hints import RUN_VERIFY
from backstay.port import JournalKey

BUSY_S = 15.0

_RESERVED_BYTES = 8  # what the checksum VFS keeps at the end of each page
_CHECKSUM_VFS = "cksmvfs"
_MAX_LENGTH_BYTES = 48 * 1024 * 1024  # of a row: a delta and fields, or a blob, of 16 MiB each, and room
DATA_VERSION = "PRAGMA data_version"
_HAS = "SELECT 1 FROM sqlite_schema WHERE name = ?"
_DAMAGED_CODES = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)

_checksums_ready = False
_registering = threading.Lock()


class Connection(apsw.Connection):
    """A connection that remembers which of the tables made on demand it has seen, and what holds until others write."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.version: Any = None  # what DATA_VERSION said at `settle`: if it says the same, nobody else has written
        self.last_touched: int | None = None  # as of then, once somebody has looked for it
        self.floor = 0  # what it is at least
        self.tables: dict[str, bool] = {}  # of those made on demand: which are known to be there, or not to be
        self.journal: tuple[int, JournalKey, int] | None = None  # session, key and number of one that is in use
        self.names: tuple[int, int] | None = None  # a session whose branches and tags were counted, and how many

    def has(self, table: str) -> bool:
        """True if a table has been made."""
        known = self.tables.get(table)
        if known is None:
            known = self.tables[table] = self.execute(_HAS, (table,)).fetchone() is not None
        return known

    def forget(self) -> None:
        """Another connection has written, or this one made something, or took back what it had made."""
        self.tables.clear()
        self.journal = self.names = None


def connect(path: Path, *, durability: str, create: bool = False) -> Connection:
    """A connection set up as every connection to a store is."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = Connection(str(path), flags=flags, vfs=_load_checksums())
    try:
        if create:
            reserve = ctypes.c_int(_RESERVED_BYTES)
            connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserve))
            connection.pragma("auto_vacuum", "incremental")
        _distrust(connection)
        connection.pragma("secure_delete", 1)
        # FULL syncs the WAL at each commit; NORMAL only before a checkpoint, which survives kill -9, not power loss.
        connection.pragma("synchronous", {"full": "full", "relaxed": "normal"}.get(durability, "off"))
        connection.pragma("fullfsync", 1)
        connection.pragma("checkpoint_fullfsync", 1)
        connection.wal_autocheckpoint(0)
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def connect_export(path: Path) -> Connection:
    """A connection to a file that nobody changes: nothing is locked, written or made beside it."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOFOLLOW
    connection = Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=_load_checksums())
    _distrust(connection)
    return connection


def _distrust(connection: apsw.Connection) -> None:
    """Nothing that is written in the file can make SQLite do anything but find rows."""
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, _MAX_LENGTH_BYTES)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    # Without this a build with STAT4 prepares a joining statement anew whenever its parameters change: 30 us a time.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.set_busy_handler(_patience())
    connection.pragma("foreign_keys", 0)
    connection.pragma("cell_size_check", 1)
    connection.pragma("cache_size", -16_000)


def _patience() -> Callable[[int], bool]:
    """How a connection waits for others: evenly. SQLite's own waits grow, and whoever came last is served first."""
    deadline = 0.0

    def wait(tries: int) -> bool:
        nonlocal deadline
        now = time.monotonic()
        deadline = now + BUSY_S if tries == 0 else deadline
        time.sleep(random.uniform(0.0003, 0.0012))  # noqa: S311 - to spread, not to hide
        return now < deadline

    return wait


def _load_checksums() -> str:
    """Register SQLite's checksum VFS once per process, without making it everybody's default."""
    global _checksums_ready  # noqa: PLW0603 - a registration is a fact about the process
    with _registering:
        if not _checksums_ready:
            default = str(apsw.vfs_details()[0]["zName"])
            loader = apsw.Connection(":memory:")
            try:
                loader.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1)
                loader.load_extension(_checksum_extension())
            except (LookupError, apsw.Error) as error:
                message = "this build of apsw lacks the page-checksum extension (cksumvfs)"
                raise UnsupportedError(message, hint="install apsw from a wheel: pip install -U apsw") from error
            finally:
                loader.close()
            apsw.set_default_vfs(default)
            _checksums_ready = True
    return _CHECKSUM_VFS


def _checksum_extension() -> str:
    # Where apsw.sqlite_extra would find it too; that one loads half of the standard library to say so, which a command
    # line that is asked for one screen would wait for.
    folder = Path(apsw.__file__).parent / "sqlite_extra_binaries"
    for name in ("cksumvfs.so", "cksumvfs.dylib", "cksumvfs.dll", "cksumvfs"):
        if (folder / name).exists():
            return str(folder / name)
    raise LookupError(str(folder))


# errors

# What a column can make Python say: no seal keeps another program from writing text for a number.
NONSENSE = (TypeError, ValueError, LookupError, ArithmeticError)


def translate_nonsense(error: Exception, doing: str) -> BackstayError:
    """The Backstay error for what a row of the store, or a value on its way there, made Python say."""
    if isinstance(error, UnicodeEncodeError | OverflowError):
        return InvalidInputError(f"{doing}: no store can hold such a text or number")
    return CorruptionError(f"{doing}: a row of the store is damaged", hint=RUN_VERIFY)


def is_damage(error: apsw.Error) -> bool:
    """True if SQLite could not read a page, or found it to be another than was written."""
    return isinstance(error, apsw.CorruptError) or getattr(error, "extendedresult", 0) in _DAMAGED_CODES


def translate(error: apsw.Error, doing: str, *, committing: bool = False) -> BackstayError:
    """The Backstay error for one of SQLite's. `committing`: the sync may have failed after the log was written."""
    if is_damage(error):
        return CorruptionError(f"{doing}: a page of the store is damaged", hint=RUN_VERIFY)
    if isinstance(error, apsw.NotADBError):
        return FormatError(f"{doing}: this is not a Backstay store", hint="give the path of a store or of a new file")
    if isinstance(error, apsw.ConstraintError | apsw.MismatchError):
        return CorruptionError(f"{doing}: rows contradict one another", hint=RUN_VERIFY)
    if committing:
        message = f"{doing}: the storage failed at the last step, and it is not known whether it was recorded"
        return UnavailableError(message, hint="look before you try again")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return UnavailableError(f"{doing}: the store is busy", hint="another process is writing; try again")
    if isinstance(error, apsw.FullError):
        return UnavailableError(f"{doing}: the disk is full", hint="free some space and try again")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError):
        hint = "check that the file and its folder can be written"
        return UnavailableError(f"{doing}: the file cannot be used", hint=hint, retryable=False)
    return UnavailableError(f"{doing}: the storage failed", hint="nothing was recorded; try again")


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """The one place where SQLite's errors become Backstay's."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, doing) from error
    except BackstayError:
        raise
    except NONSENSE as error:
        raise translate_nonsense(error, doing) from error
