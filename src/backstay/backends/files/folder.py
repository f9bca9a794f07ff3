"""The folder of a store: what lies where, the lock, the counter, and the blobs.

    backstay.json          which format it is, and who may read and write it
    lock                   held while something is written, by one process at a time (one lock for all sessions)
    counter                the number of the last commit, and one that none has reached yet
    sessions/<name>.jsonl  one journal per session; the name is the sha256 of the session's id
    blobs/<xx>/<digest>    large values, raw, by their sha256
    tmp/                   files being written; what lies there when a store is opened is of no use

Everything but appending to a journal is done by writing a file aside, syncing it and renaming it into place.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from backstay.backend import FORMAT_VERSION, MIN_READER, MIN_WRITER
from backstay.backends.files.disk import Disk, translated
from backstay.errors import CorruptionError, FormatError, InvalidInputError, UnavailableError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

META, LOCK, COUNTER, SESSIONS, BLOBS, TMP = "backstay.json", "lock", "counter", "sessions", "blobs", "tmp"
JOURNAL = ".jsonl"
_LOCK_PATIENCE_S = 15.0
_LOCK_WAITS_S = (0.0002, 0.005)
_COUNTER_STEP = 1024
_COUNTER_BYTES = 51
_REMEMBERED_BLOBS = 100_000
_SLOW = ".slow"
_SLOW_FOR_S = 86_400


class Meta(msgspec.Struct, frozen=True):
    """What backstay.json says."""

    backstay: str
    format_version: int
    min_reader: int
    min_writer: int


class Folder:
    """See the module's text. What changes anything is called with the lock held."""

    def __init__(self, path: Path, disk: Disk, *, durable: bool) -> None:
        self.path = path
        self.disk = disk
        self.durable = durable
        self._synced_blobs: set[bytes] = set()
        self._counted = False
        self.generation = 0  # rises when files may have been replaced, removed or cut off by anybody
        self._meta, self._counter_file = str(path / META), -1
        self._meta_seen: tuple[int, int, int] | None = None
        _inspect(path)
        with translated(f"opening {path}"):
            self._prepare()

    # making and opening

    def _prepare(self) -> None:
        made = self.disk.make_folder(self.path)
        lock = self.path / LOCK
        if made or not lock.exists():
            with contextlib.suppress(FileExistsError):
                self.disk.close(self.disk.create(lock))
        self._lock_file = self.disk.open(lock)
        try:
            with self.locked(check=False):
                if not (self.path / META).exists():
                    self._make()
                self._check_meta()
                self._discard_old()
        except BaseException:
            self.close()
            raise

    def _discard_old(self) -> None:
        # What was written aside under the lock belongs to nobody now. A session that is being brought in is written
        # without the lock, and may take its time.
        for name in self.disk.names(self.path / TMP):
            path = self.path / TMP / name
            with contextlib.suppress(FileNotFoundError):
                if not name.endswith(_SLOW) or time.time() - self.disk.stat(path).st_mtime > _SLOW_FOR_S:
                    self.disk.unlink(path)

    def _make(self) -> None:
        for name in (SESSIONS, BLOBS, TMP):
            self.disk.make_folder(self.path / name)
        if self.durable:
            self.disk.sync_folder(self.path)  # whoever finds the file made next finds the folders too
        meta = Meta("files", FORMAT_VERSION, MIN_READER, MIN_WRITER)
        self.put(self.path / META, msgspec.json.encode(meta) + b"\n")
        if self.durable:
            self.disk.sync_folder(self.path.parent)

    def _check_meta(self) -> None:
        found = self.disk.stat(self._meta)
        seen = found.st_ino, found.st_size, found.st_mtime_ns
        if seen == self._meta_seen:
            return
        self.generation += 1
        try:
            meta = msgspec.json.decode((self.path / META).read_bytes(), type=Meta)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            message = f"{self.path / META} does not say what store this is"
            raise FormatError(message, hint="put back the file as it was, from a copy or another store") from error
        if meta.backstay != "files":
            message = f"{self.path} is not a store of files"
            raise FormatError(message)
        for verb, needed in (("read", meta.min_reader), ("write to", meta.min_writer)):
            if needed > FORMAT_VERSION:
                message = f"this store needs a newer Backstay to {verb} it (format {needed}, here {FORMAT_VERSION})"
                raise FormatError(message, hint="upgrade: pip install -U backstay")
        self._meta_seen = seen

    def close(self) -> None:
        """Let the files go."""
        for file in (self._lock_file, self._counter_file):
            if file >= 0:
                self.disk.close(file)
        self._lock_file = self._counter_file = -1

    # the lock

    @contextlib.contextmanager
    def locked(self, *, check: bool = True) -> Iterator[None]:
        """Nobody else writes meanwhile, in no process."""
        try:
            self.lock(check=check)
            yield
        finally:
            self.unlock()  # taken or not: an interrupt may have struck in between

    def lock(self, *, check: bool = True) -> None:
        """Wait until nobody else writes; who waits too long is told so."""
        if not _try_lock(self._lock_file):
            self._wait()
        if check:
            try:
                self._check_meta()
            except BaseException:
                self.unlock()
                raise

    def _wait(self) -> None:
        deadline, wait_s = time.monotonic() + _LOCK_PATIENCE_S, _LOCK_WAITS_S[0]
        while not _try_lock(self._lock_file):
            if time.monotonic() > deadline:
                message = f"{self.path}: another process has been writing for {_LOCK_PATIENCE_S:.0f} seconds"
                raise UnavailableError(message, hint="try again")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LOCK_WAITS_S[1])

    def unlock(self) -> None:
        """Let others write."""
        _unlock(self._lock_file)

    def announce(self) -> None:
        """Before files are replaced, removed or cut off: every process is to look at them again before it writes.

        The time of backstay.json is the sign: whoever takes the lock looks at it anyway.
        """
        found = self.disk.stat(self._meta)
        self.disk.touch(self._meta, max(time.time_ns(), found.st_mtime_ns + 1))
        self._check_meta()

    # the counter

    def numbers(self, count: int, largest: Callable[[], int]) -> int:
        """The first of `count` numbers beyond all that were given before; `largest` finds them if the counter is lost.

        The counter itself is not synced at each commit. What is synced is a number beyond all that were given, and a
        process begins from there: after a power loss too, no number is given twice.
        """
        counted, self._counted = self._counted, False
        file = self._open_counter()
        found = _read_counter(self.disk.read(file, _COUNTER_BYTES, 0))
        last, beyond = found if found is not None else (largest(), 0)
        if not counted:
            last = max(last, beyond)
        far = last + count <= beyond and counted
        beyond = beyond if far else last + count + _COUNTER_STEP
        self.disk.write(file, _counter(last + count, beyond), 0)
        if self.durable and not far:
            self.disk.sync(file)
        self._counted = True
        return last + 1

    def _open_counter(self) -> int:
        if self._counter_file < 0:
            try:
                self._counter_file = self.disk.open(self.path / COUNTER)
            except FileNotFoundError:
                self._counter_file = self.disk.create(self.path / COUNTER)
            # Whoever made it may have been killed before its name was on the disk.
            if self.durable:
                self.disk.sync_folder(self.path)
        return self._counter_file

    # files as a whole

    def journal(self, session: str) -> Path:
        """Where a session's journal lies, or would."""
        return self.path / SESSIONS / (sha256(session.encode()).hexdigest() + JOURNAL)

    def journals(self) -> list[Path]:
        """All journals there are."""
        folder = self.path / SESSIONS
        return [folder / name for name in self.disk.names(folder) if name.endswith(JOURNAL)]

    def aside(self, *, slow: bool = False) -> Path:
        """A place for a file that is being written; `slow` if that happens without the lock."""
        return self.path / TMP / (secrets.token_hex(8) + (_SLOW if slow else ""))

    def put(self, path: Path, data: bytes) -> None:
        """Write a new file aside and put it in its place."""
        aside = self._write_aside(data)
        try:
            self.disk.rename(aside, path)
            if self.durable:
                self.disk.sync_folder(path.parent)
        except BaseException:
            # Whether its name is on the disk is unknown: it is taken back, so that nobody relies on it.
            self.discard([aside, path])
            raise

    def _write_aside(self, data: bytes, *, slow: bool = False) -> Path:
        aside = self.aside(slow=slow)
        file = self.disk.create(aside)
        try:
            self.disk.write(file, data, 0)
            if self.durable:
                self.disk.sync(file)
        except BaseException:
            with contextlib.suppress(OSError):
                self.disk.unlink(aside)
            raise
        finally:
            self.disk.close(file)
        return aside

    def discard(self, aside: Iterable[Path]) -> None:
        """Remove files that were written aside and are not needed."""
        for path in aside:
            with contextlib.suppress(OSError):
                self.disk.unlink(path)

    def remove_journal(self, path: Path) -> None:
        """Remove a journal."""
        self.announce()
        self.disk.unlink(path)
        self.sync_sessions()

    def sync_sessions(self) -> None:
        """The names of all journals are on the disk."""
        if self.durable:
            self.disk.sync_folder(self.path / SESSIONS)

    # blobs

    def blob(self, digest: bytes) -> Path:
        """Where a blob lies, or would."""
        name = digest.hex()
        return self.path / BLOBS / name[:2] / name

    def has_blob(self, digest: bytes) -> bool:
        """True if there is such a blob."""
        return self.blob(digest).exists()

    def refuse_missing(self, refs: frozenset[bytes], contents: Mapping[bytes, bytes]) -> None:
        """CorruptionError if one of them is neither here nor brought along."""
        for digest in refs:
            if digest not in contents and not self.has_blob(digest):
                message = f"blob {digest.hex()[:12]} is needed and not here"
                raise CorruptionError(message, hint="run verify")

    def put_blobs(self, refs: frozenset[bytes], contents: Mapping[bytes, bytes]) -> list[bytes]:
        """Have these blobs on the disk; those that were not here before are returned."""
        new: list[bytes] = []
        for digest in refs:
            path = self.blob(digest)
            if digest not in contents or self._is_whole(path, len(contents[digest])):
                self._settle_blob(digest, path)
                continue
            folder = path.parent
            if self.disk.make_folder(folder) and self.durable:
                self.disk.sync_folder(folder.parent)
            self.put(path, contents[digest])
            new.append(digest)
            self._remember(digest)
        return new

    def write_blob_aside(self, content: bytes) -> Path:
        """A blob that is not needed yet."""
        return self._write_aside(content, slow=True)

    def take_blobs(self, aside: Mapping[bytes, Path]) -> None:
        """Put blobs that were written aside in their places."""
        folders = set()
        for digest, path in aside.items():
            target = self.blob(digest)
            if self.disk.make_folder(target.parent) and self.durable:
                self.disk.sync_folder(target.parent.parent)
            self.disk.rename(path, target)  # over one with the same content, if there is one
            folders.add(target.parent)
        for folder in folders if self.durable else ():
            self.disk.sync_folder(folder)

    def _is_whole(self, path: Path, size: int) -> bool:
        try:
            return self.disk.stat(path).st_size == size
        except FileNotFoundError:
            return False

    def _settle_blob(self, digest: bytes, path: Path) -> None:
        """A blob that somebody else wrote may not be on the disk yet, nor its name, nor its folder's."""
        if not self.durable or digest in self._synced_blobs:
            return
        file = self.disk.open(path)
        try:
            self.disk.sync(file)
        finally:
            self.disk.close(file)
        self.disk.sync_folder(path.parent)
        self.disk.sync_folder(path.parent.parent)
        self._remember(digest)

    def _remember(self, digest: bytes) -> None:
        if len(self._synced_blobs) >= _REMEMBERED_BLOBS:
            self._synced_blobs.clear()
        self._synced_blobs.add(digest)

    def read_blob(self, digest: bytes) -> bytes:
        """A blob, verified."""
        name = digest.hex()[:12]
        try:
            content = self.blob(digest).read_bytes()
        except FileNotFoundError:
            message = f"blob {name} is missing"
            raise CorruptionError(message, hint="run verify to see which checkpoints need it") from None
        if sha256(content).digest() != digest:
            message = f"blob {name} is damaged"
            raise CorruptionError(message, hint="run verify to see which checkpoints need it")
        return content

    def blobs(self) -> Iterator[Path]:
        """All blobs there are."""
        root = self.path / BLOBS
        for name in self.disk.names(root):
            for blob in self.disk.names(root / name):
                yield root / name / blob

    def drop_blobs(self, digests: frozenset[bytes]) -> None:
        """Remove these blobs."""
        for digest in digests:
            self._synced_blobs.discard(digest)
            self.disk.unlink(self.blob(digest))


def _inspect(path: Path) -> None:
    """An error, before anything is touched, if a store can neither be nor be made there."""
    try:
        names = set(os.listdir(path))  # noqa: PTH208 - names are all that is asked for
    except FileNotFoundError:
        if not path.parent.is_dir():
            message = f"{path.parent} is not a folder"
            raise InvalidInputError(message, hint="make the folder first") from None
        return
    except NotADirectoryError:
        message = f"{path} is not a folder"
        raise FormatError(message, hint="file: names a folder; for a SQLite file use 'sqlite:///store.db'") from None
    except OSError as error:
        message = f"{path} cannot be looked at: {error.strerror}"
        raise UnavailableError(message, retryable=False) from error
    # A store whose making was cut short has only these; its first line of all is still to come.
    if META not in names and names - {LOCK, SESSIONS, BLOBS, TMP}:
        message = f"{path} is a folder, but not a Backstay store"
        raise FormatError(message, hint="give the path of a store or of a new folder")


def _read_counter(data: bytes) -> tuple[int, int] | None:
    numbers, _, check = data.rstrip(b"\n").rpartition(b" ")
    if len(data) != _COUNTER_BYTES or check != b"%08x" % zlib.crc32(numbers):
        return None
    last, _, beyond = numbers.partition(b" ")
    return int(last), int(beyond)


def _counter(last: int, beyond: int) -> bytes:
    numbers = b"%020d %020d" % (last, beyond)
    return b"%b %08x\n" % (numbers, zlib.crc32(numbers))


if sys.platform == "win32":

    def _try_lock(file: int) -> bool:
        os.lseek(file, 0, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        with contextlib.suppress(OSError):  # it was not locked
            msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
