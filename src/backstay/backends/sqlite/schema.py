"""The tables, and how a connection to them is made.

Everything that cannot be added to a store later is here: page checksums, incremental auto-vacuum, secure delete,
integer keys inside. A SQLite that can lose committed rows (the WAL-reset race) and a network file system are refused
before anything is written; a file that is not a store, or is one from the future, is left as it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from backstay.backend import FORMAT_VERSION, MIN_READER, MIN_WRITER
from backstay.backends.sqlite import wal
from backstay.backends.sqlite.mounts import filesystem_of, is_network
from backstay.errors import (
    BackstayError,
    ConflictError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    UnavailableError,
    UnsupportedError,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

APPLICATION_ID = 0x4261636B  # "Back"
BUSY_TIMEOUT_MS = 15_000
_HEADER_BYTES = 100
_APPLICATION_ID_AT = slice(68, 72)  # of the header
_RESERVED_BYTES = 8  # what the checksum VFS keeps at the end of each page

SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE sessions(
  sid INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, sequence INTEGER NOT NULL, checkpoints INTEGER NOT NULL,
  branches INTEGER NOT NULL, logical INTEGER NOT NULL, epoch INTEGER NOT NULL, touched INTEGER NOT NULL,
  created_us INTEGER NOT NULL, updated_us INTEGER NOT NULL, agent TEXT, status TEXT NOT NULL, reason TEXT,
  last_step INTEGER, usage BLOB NOT NULL);
CREATE TABLE names(
  sid INTEGER NOT NULL, name TEXT NOT NULL, tag INTEGER NOT NULL, cid INTEGER NOT NULL, undo INTEGER,
  PRIMARY KEY(sid, name)) WITHOUT ROWID;
CREATE TABLE checkpoints(
  cid INTEGER PRIMARY KEY, sid INTEGER NOT NULL, sequence INTEGER NOT NULL, id NOT NULL, link INTEGER,
  place INTEGER NOT NULL, size INTEGER NOT NULL, state_digest BLOB NOT NULL, digest BLOB NOT NULL,
  lost_parent_id, lost_parent_digest BLOB, fields BLOB NOT NULL, delta BLOB, base INTEGER, roll BLOB, whole BLOB,
  took_run INTEGER, took_stood INTEGER, took_calls INTEGER);
CREATE UNIQUE INDEX checkpoints_id ON checkpoints(sid, id);
CREATE TABLE blobs(bid INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, data BLOB NOT NULL);
CREATE TABLE blob_refs(cid INTEGER NOT NULL, bid INTEGER NOT NULL, PRIMARY KEY(cid, bid)) WITHOUT ROWID;
CREATE INDEX blob_refs_bid ON blob_refs(bid);
CREATE TABLE runs(
  run INTEGER PRIMARY KEY, sid INTEGER NOT NULL, branch TEXT, token INTEGER NOT NULL, claim BLOB,
  entered INTEGER NOT NULL, unfinished INTEGER NOT NULL, input BLOB, crashes INTEGER NOT NULL, spot BLOB NOT NULL);
CREATE UNIQUE INDEX runs_branch ON runs(sid, branch);
CREATE INDEX runs_entered ON runs(sid) WHERE entered = 1;
CREATE TABLE calls(
  call INTEGER PRIMARY KEY, run INTEGER NOT NULL, stood INTEGER NOT NULL, n INTEGER NOT NULL, body BLOB NOT NULL);
CREATE UNIQUE INDEX calls_run ON calls(run, stood, n);
"""

META = "SELECT key, value FROM meta"
PUT_META = "INSERT INTO meta VALUES(?, ?)"


def has_wal_reset_race(version: tuple[int, ...]) -> bool:
    """True for the SQLite versions that can lose a committed row when a WAL is reset (fixed in 3.51.3)."""
    if version < (3, 7, 0) or version >= (3, 51, 3):
        return False
    # The fix was carried back to two older lines.
    return not (version[:2] == (3, 50) and version >= (3, 50, 7)) and not (
        version[:2] == (3, 44) and version >= (3, 44, 6)
    )


def refuse_unsafe_sqlite(version_text: str) -> None:
    """UnsupportedError for a SQLite that has the race."""
    version = tuple(int(part) for part in version_text.split(".")[:3])
    if has_wal_reset_race(version):
        message = f"SQLite {version_text} can lose committed rows in WAL mode (the WAL-reset race)"
        raise UnsupportedError(message, hint="install apsw 3.51.3 or newer: pip install -U apsw")


_CHECKSUM_VFS = "cksmvfs"
_checksums_ready = False
_registering = threading.Lock()


def _checksum_extension() -> str:
    """The file with the extension. LookupError if this build of apsw has none."""
    # Where apsw.sqlite_extra would find it too; that one loads half of the standard library to say so, which a command
    # line that is asked for one screen would wait for.
    folder = Path(apsw.__file__).parent / "sqlite_extra_binaries"
    for name in ("cksumvfs.so", "cksumvfs.dylib", "cksumvfs.dll", "cksumvfs"):
        if (folder / name).exists():
            return str(folder / name)
    raise LookupError(str(folder))


def _load_checksums() -> str:
    """Register SQLite's checksum VFS once per process, without making it everybody's default."""
    global _checksums_ready  # noqa: PLW0603 - a registration is a fact about the process
    with _registering:
        if _checksums_ready:
            return _CHECKSUM_VFS
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


@contextlib.contextmanager
def translated(doing: str) -> Iterator[None]:
    """The one place where SQLite's errors become Backstay's."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, doing) from error
    except UnicodeDecodeError as error:  # text in a row that is not text
        message = f"{doing}: a row of the store is damaged ({error.reason})"
        raise CorruptionError(message, hint="run verify to see what is intact") from error


def translate(error: apsw.Error, doing: str) -> BackstayError:
    """The Backstay error for one of SQLite's."""
    extended = getattr(error, "extendedresult", 0)
    text = f"{doing}: {error}"
    if isinstance(error, apsw.CorruptError) or extended in (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS):
        return CorruptionError(
            f"{doing}: a page of the store is damaged ({error})", hint="run verify to see what is intact"
        )
    if isinstance(error, apsw.NotADBError):
        return FormatError(f"{doing}: this is not a Backstay store", hint="give the path of a store or of a new file")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return UnavailableError(text, hint="another process is writing; try again")
    if isinstance(error, apsw.FullError):
        return UnavailableError(text, hint="the disk is full: free some space and try again")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError):
        return UnavailableError(text, hint="check that the file and its folder can be written", retryable=False)
    if isinstance(error, apsw.ConstraintError):
        return ConflictError(text, hint="load again and decide")
    return UnavailableError(text, hint="the storage failed; nothing was recorded")


def connect(path: Path, *, durability: str, create: bool = False) -> apsw.Connection:
    """A connection set up as every connection to a store is."""
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(str(path), flags=flags, vfs=_load_checksums())
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    if create:
        reserve = ctypes.c_int(_RESERVED_BYTES)
        connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserve))
        connection.pragma("auto_vacuum", "incremental")
    connection.pragma("secure_delete", 1)
    connection.pragma("foreign_keys", 0)
    connection.pragma("cache_size", -16_000)
    # FULL syncs the WAL at each commit; NORMAL only before a checkpoint, which survives kill -9 but not power loss.
    connection.pragma("synchronous", "full" if durability == "full" else "normal")
    connection.pragma("fullfsync", 1)
    connection.pragma("checkpoint_fullfsync", 1)
    connection.wal_autocheckpoint(0)
    # Without this a build with STAT4 prepares a joining statement anew whenever its parameters change: 30 us a time.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def prepare(path: Path, *, durability: str) -> apsw.Connection:
    """Open a store, making it first if there is none; refuse what is not one. Returns the writing connection."""
    refuse_unsafe_sqlite(apsw.sqlite_lib_version())
    fresh = _inspect(path)
    if is_network(kind := filesystem_of(path.parent)):
        message = f"{path}: SQLite is not safe on a network file system ({kind})"
        raise UnsupportedError(message, hint="keep the store on a local disk, or use PostgreSQL")
    if fresh:
        _make(Path(os.path.realpath(path)))  # where a link leads, so that the link stays one
    with translated(f"opening {path}"):
        connection = connect(path, durability=durability)
        try:
            # Closing would move what is left of a damaged log into the store, and delete it.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            wal.refuse_lost_commits(connection, path)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            check_format(connection)
        except BaseException:
            connection.close()
            raise
    return connection


def _inspect(path: Path) -> bool:
    """True if there is nothing at the path yet; an error, before anything is touched, if it is not a store."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            message = f"{path.parent} is not a folder"
            raise InvalidInputError(message, hint="make the folder first") from None
        return True
    except OSError as error:
        message = f"{path} cannot be looked at: {error.strerror}"
        raise UnavailableError(message, retryable=False) from error
    if not stat.S_ISREG(status.st_mode):
        message = f"{path} is not a file"
        raise FormatError(message, hint="give the path of a store or of a new file; for a folder use file:")
    if not status.st_mode & 0o222:
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
        file = apsw.VFSFile("", str(path.absolute()), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        try:
            header = file.xRead(_HEADER_BYTES, 0)
        finally:
            file.xClose()
    if not header.startswith(b"SQLite format 3\0"):
        message = f"{path} is not a Backstay store"
        raise FormatError(message, hint="give the path of a store or of a new file")
    if header[_APPLICATION_ID_AT] != APPLICATION_ID.to_bytes(4, "big"):
        message = f"{path} is a SQLite database, but not a Backstay store"
        raise FormatError(message, hint="give the path of a store or of a new file")


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
            wal.refuse_log_alone(path)
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
    for found in list(folder.iterdir()):
        if found.name.startswith(begins):
            found.unlink(missing_ok=True)


def _cannot_make(path: Path, error: OSError) -> UnavailableError:
    message = f"{path} cannot be made: {error.strerror}"
    return UnavailableError(message, hint="check that its folder can be written", retryable=False)


def _create(path: Path) -> None:
    connection = connect(path, durability="full", create=True)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(SCHEMA)
        for key, value in (
            ("format_version", FORMAT_VERSION),
            ("min_reader", MIN_READER),
            ("min_writer", MIN_WRITER),
        ):
            connection.execute(PUT_META, (key, value))
        connection.pragma("application_id", APPLICATION_ID)
        connection.execute("COMMIT")
        connection.pragma("journal_mode", "wal")
    finally:
        connection.close()


def check_format(connection: apsw.Connection) -> None:
    """FormatError if this version may not read the store."""
    meta: dict[str, Any] = dict(connection.execute(META))
    refuse_newer(meta.get("min_reader", 1), FORMAT_VERSION, "read")


def refuse_newer(needed: int, have: int, verb: str) -> None:
    """FormatError when the store asks for a newer Backstay."""
    if needed > have:
        message = f"this store needs a newer Backstay to {verb} it (format {needed}; this version knows {have})"
        raise FormatError(message, hint="upgrade: pip install -U backstay")
