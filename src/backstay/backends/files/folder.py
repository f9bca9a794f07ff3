"""The folder of a store: what lies where, the lock, the counter, and files put in their place as a whole.

    backstay.json          which format it is, and which features it uses
    lock                   held while something is written, by one process at a time
    counter                the largest number given, one that none has reached yet; how often something was written
    sessions/<name>.jsonl  one journal per session; the name is made from the session's id (see `place`)
    notes/<name>           beside each journal: how far it was acknowledged, a summary, renewed leases (see lines)
    blobs/<xx>/<digest>    large values (see blobs)
    tmp/                   files that are being written

A journal is appended to. Everything else that must last is written aside, synced and renamed into its place.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import secrets
import sys
import time
import weakref
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from backstay.backends.files.disk import Disk, translated
from backstay.backends.files.lines import FORMAT, Note, open_note, seal
from backstay.errors import CorruptionError, FormatError, InvalidInputError, UnavailableError, UnsupportedError
from backstay.port import Features, refuse_unknown

if sys.platform != "win32":
    import fcntl

META, LOCK, COUNTER, SESSIONS, NOTES, BLOBS, TMP = (
    "backstay.json",
    "lock",
    "counter",
    "sessions",
    "notes",
    "blobs",
    "tmp",
)
FOLDERS = (SESSIONS, NOTES, BLOBS, TMP)
JOURNAL = ".jsonl"
NAME_DIGITS = 32
_ASIDE_DIGITS = 16
_LOCK_PATIENCE_S = 15.0
_LOCK_WAITS_S = (0.0003, 0.0012)
_COUNTER_STEP = 1024
_COUNTER_BYTES = 93
_RING_AT, _RING_SLOTS = 128, 512
_LOOKS = 4
_LOOK_S = 0.0005
_OLD_S = 3600

_folders: weakref.WeakSet[Folder] = weakref.WeakSet()


class Meta(msgspec.Struct, frozen=True):
    """What backstay.json says."""

    backstay: str
    format: int
    features: Features


class Count(NamedTuple):
    """The counter. `changes` is odd while something is being written, and stays so if its writer dies.

    `renewals` counts renewed leases: they wake nobody.
    """

    last: int = 0
    beyond: int = 0
    changes: int = 0
    renewals: int = 0


@functools.lru_cache(maxsize=256)
def place(session: str, *, hidden: bool = False) -> str:
    """The name of a session's files."""
    return sha256(b"%d %b" % (hidden, session.encode())).hexdigest()[:NAME_DIGITS]


class Folder:
    """See the module's text. What changes anything is called with the lock held."""

    def __init__(self, path: Path, disk: Disk, *, durable: bool) -> None:
        # Through whatever folders lead there; but the store's own folder is no link, as no file in it is.
        self.path = Path(os.path.realpath(path.parent), path.name) if path.name else Path(os.path.realpath(path))
        self.disk = disk
        self.durable = durable
        self._names = {name: str(self.path / name) for name in (META, LOCK, COUNTER, SESSIONS, NOTES)}
        self._lock_file = self._counter_file = -1
        self._counter_writable = self._counted = False
        self._meta_seen: tuple[int, int, int] | None = None
        _inspect(self.path, disk)
        with translated(f"opening {path}"):
            if not disk.is_file(self.path / META):
                self._make()
            self.check_meta(writing=False)
        _folders.add(self)

    # making and opening; the few files that make a store are synced whatever the durability

    def _make(self) -> None:
        disk = self.disk
        disk.make_folder(self.path)
        with self.locked():
            if disk.is_file(self.path / META):
                return
            for name in FOLDERS:
                disk.make_folder(self.path / name)
            if not disk.is_file(self.path / COUNTER):
                self.put(self.path / COUNTER, _counter(Count()), sync=True)
            disk.sync_folder(self.path)
            meta = Meta("files", FORMAT, Features())
            self.put(self.path / META, msgspec.json.encode(meta) + b"\n", sync=True)
            disk.sync_folder(self.path.parent)

    def check_meta(self, *, writing: bool) -> None:
        """FormatError if this version cannot read (or write) what is here, or does not know a feature of it."""
        path = self._names[META]
        found = self.disk.stat(path)
        seen = found.st_ino, found.st_size, found.st_mtime_ns
        if seen != self._meta_seen:
            try:
                self._meta = msgspec.json.decode(self.disk.read_file(path, 1 << 16), type=Meta)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                message = f"{path} does not say what store this is"
                raise FormatError(message, hint="put back the file as it was, from a copy") from error
            if (self._meta.backstay, self._meta.format) != ("files", FORMAT):
                message = f"{self.path} is a store of another kind or format ({self._meta.format}; here {FORMAT})"
                raise FormatError(message, hint="upgrade: pip install -U backstay")
        refuse_unknown(self._meta.features, writing=writing)
        self._meta_seen = seen

    def need(self, feature: int) -> None:
        """From now on this store is for versions that know a feature."""
        features = self._meta.features
        if not features.read & feature:
            needed = Features(features.read | feature, features.write | feature)
            meta = msgspec.structs.replace(self._meta, features=needed)
            self.put(self.path / META, msgspec.json.encode(meta) + b"\n", sync=True)

    def close(self) -> None:
        """Let the files go."""
        files, self._lock_file, self._counter_file = (self._lock_file, self._counter_file), -1, -1
        for file in files:
            if file >= 0:
                self.disk.close(file)

    def forked(self) -> None:
        """In a forked child: a lock is shared with whoever inherits its file, and must end with the parent."""
        file, self._lock_file = self._lock_file, -1
        if file >= 0:
            os.close(file)

    # the lock

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else writes meanwhile, in no process."""
        try:
            self.lock()
            yield
        finally:
            self.unlock()  # taken or not: an interrupt may have struck in between

    def lock(self) -> None:
        """Wait until nobody else writes; who waits too long is told so."""
        path, deadline = self._names[LOCK], time.monotonic() + _LOCK_PATIENCE_S
        while True:
            if self._lock_file < 0:
                with contextlib.suppress(FileExistsError):
                    if not self.disk.is_there(path):
                        self.disk.close(self.disk.create(path))
                self._lock_file = self.disk.open(path, write=True)
            if _try_lock(self._lock_file):
                if self.disk.is_same(self._lock_file, path):
                    return
                file, self._lock_file = self._lock_file, -1  # somebody removed it: ours is nobody's
                self.disk.close(file)
                continue
            if time.monotonic() > deadline:
                message = f"{self.path}: another process has been writing for {_LOCK_PATIENCE_S:.0f} seconds"
                raise UnavailableError(message, hint="try again")
            time.sleep(random.uniform(*_LOCK_WAITS_S))  # noqa: S311 - so that many who wait do not march in step

    def unlock(self) -> None:
        """Let others write."""
        if self._lock_file >= 0:
            _unlock(self._lock_file)

    # the counter

    def count(self) -> Count | None:
        """The counter as it is now; None if it is damaged."""
        if self._counter_file < 0:
            try:
                self._counter_file = self.disk.open(self.path / COUNTER)
            except FileNotFoundError:
                return None
        for _ in range(_LOOKS):  # without the lock, it may be met while it is being written
            found = _read_counter(self.disk.read(self._counter_file, _COUNTER_BYTES, 0))
            if found is not None:
                return found
            time.sleep(_LOOK_S)
        return None

    def first(self, count: Count) -> Count:
        """The counter for a process that has not written yet: after a power cut only `beyond` is beyond all."""
        return count if self._counted else count._replace(last=max(count.last, count.beyond))

    def put_count(self, count: Count) -> Count:
        """Write the counter; synced only where it goes beyond what was synced."""
        if not self._counter_writable:
            if self._counter_file >= 0:
                self.disk.close(self._counter_file)
                self._counter_file = -1
            if not self.disk.is_file(self.path / COUNTER):
                self.put(self.path / COUNTER, b"", sync=True)
            self._counter_file = self.disk.open(self.path / COUNTER, write=True)
            self._counter_writable = True
        far = count.last <= count.beyond
        count = count if far else count._replace(beyond=count.last + _COUNTER_STEP)
        self.disk.write(self._counter_file, _counter(count), 0)
        if not far:
            self.disk.sync(self._counter_file)
        self._counted = True
        return count

    def announce(self, count: Count, name: str) -> Count:
        """A session is about to be written to: those who keep lists look at it again."""
        count = self.put_count(count._replace(changes=count.changes + (1 if count.changes % 2 == 0 else 2)))
        slot = count.changes // 2 % _RING_SLOTS
        self.disk.write(self._counter_file, name.encode(), _RING_AT + slot * NAME_DIGITS)
        return count

    def changed(self, since: int, now: int) -> set[str] | None:
        """The sessions written to since then; None if that is too long ago to know."""
        if since == now and not now % 2:
            return set()
        if not 0 <= now // 2 - since // 2 < _RING_SLOTS:
            return None
        ring = self.disk.read(self._counter_file, _RING_SLOTS * NAME_DIGITS, _RING_AT).decode("ascii", "replace")
        slots = [number % _RING_SLOTS * NAME_DIGITS for number in range(since // 2, now // 2 + 1)]
        return {name for at in slots if (name := ring[at : at + NAME_DIGITS]).strip("\0")}

    # journals and notes

    def journal(self, name: str) -> str:
        """Where a journal lies, or would."""
        return f"{self._names[SESSIONS]}{os.sep}{name}{JOURNAL}"

    def note(self, name: str) -> str:
        """Where the note beside it lies."""
        return f"{self._names[NOTES]}{os.sep}{name}"

    def journals(self) -> list[str]:
        """The names of all journals there are, and of those that ought to be there because a note says so."""
        found = {name.removesuffix(JOURNAL) for name in self.disk.names(self.path / SESSIONS) if name.endswith(JOURNAL)}
        return sorted([name for name in found.union(self.disk.names(self.path / NOTES)) if is_name(name)])

    def read_note(self, name: str) -> Note | None:
        """A note, if there is a whole one."""
        for _ in range(_LOOKS):
            try:
                data = self.disk.read_file(self.note(name))
            except (FileNotFoundError, CorruptionError):
                return None
            found = open_note(data)
            if found is not None or not data.strip(b"\0"):
                return found
            time.sleep(_LOOK_S)
        return None

    def write_note(self, name: str, note: Note) -> None:
        """Write a note where it stands; it is never synced."""
        path, data = self.note(name), seal(note)
        try:
            file = self.disk.open(path, write=True)
        except FileNotFoundError:
            file = self.disk.create(path)
        try:
            self.disk.write(file, data, 0)
        finally:
            self.disk.close(file)

    def drop_note(self, name: str) -> None:
        """Before a journal's name goes, its note goes, and surely: a note without a journal is damage."""
        self.disk.unlink(self.note(name))
        if self.durable:
            self.disk.sync_folder(self.path / NOTES)

    def remove(self, name: str) -> None:
        """Remove a journal."""
        self.drop_note(name)
        self.disk.unlink(self.journal(name))
        self.sync_folder(SESSIONS)

    # files as a whole

    def aside(self) -> Path:
        """A place for a file that is being written."""
        return self.path / TMP / secrets.token_hex(_ASIDE_DIGITS // 2)

    def put(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Write a new file aside and put it in its place; `sync`: its name too is on the disk then."""
        aside = self.write_aside(data, sync=sync)
        try:
            self.disk.rename(aside, path)
            if sync:
                self.disk.sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                self.disk.unlink(aside)
            raise

    def write_aside(self, data: bytes, *, sync: bool) -> Path:
        """A file that is not yet in its place."""
        aside = self.aside()
        file = self.disk.create(aside)
        try:
            self.disk.write(file, data, 0)
            if sync:
                self.disk.sync(file)
        except BaseException:
            with contextlib.suppress(OSError):
                self.disk.unlink(aside)
            raise
        finally:
            self.disk.close(file)
        return aside

    def sync_folder(self, name: str) -> None:
        """The names in one of the store's folders are on the disk."""
        if self.durable:
            self.disk.sync_folder(self.path / name)

    def discard_old(self) -> None:
        """Remove files that somebody wrote aside and left: only those with names of our making, and old ones."""
        for name in self.disk.names(self.path / TMP):
            path = self.path / TMP / name
            if len(name) == _ASIDE_DIGITS and is_hex(name) and self.disk.is_file(path):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - self.disk.stat(path).st_mtime > _OLD_S:
                        self.disk.unlink(path)


def is_hex(name: str) -> bool:
    """True if there is nothing but small hex digits in a name."""
    return not name.strip("0123456789abcdef")


def is_name(name: str) -> bool:
    """True for the name of a session's files."""
    return len(name) == NAME_DIGITS and is_hex(name)


def _inspect(path: Path, disk: Disk) -> None:
    """An error, before anything is touched, if a store can neither be nor be made there."""
    if path.is_symlink():
        raise FormatError(f"{path} is a link", hint="name the folder that it leads to")
    with translated(f"opening {path}"):
        try:
            names = set(os.listdir(path))  # noqa: PTH208 - names are all that is asked for
        except FileNotFoundError:
            if not path.parent.is_dir():
                message = f"{path.parent} is not a folder"
                raise InvalidInputError(message, hint="make the folder first") from None
            return
        except NotADirectoryError:
            message = f"{path} is not a folder"
            hint = "file: names a folder; for a SQLite file use 'sqlite:///store.db'"
            raise FormatError(message, hint=hint) from None
    # A store whose making was cut short has only these; its first line of all is still to come.
    if META not in names:
        names |= {f"{name}/{one}" for name in FOLDERS for one in disk.names(path / name) if len(one) != _ASIDE_DIGITS}
    strange = [name for name in FOLDERS if name in names and ((path / name).is_symlink() or not (path / name).is_dir())]
    strange += [name for name in (META, LOCK, COUNTER) if name in names and not disk.is_file(path / name)]
    if strange or (META not in names and names - {LOCK, COUNTER, *FOLDERS}):
        message = f"{path} is a folder, but not a Backstay store"
        hint = f"{strange[0]} is a link, or not what it should be" if strange else "give the path of a new folder"
        raise FormatError(message, hint=hint)


def _read_counter(data: bytes) -> Count | None:
    numbers, _, check = data.rstrip(b"\n").rpartition(b" ")
    if len(data) != _COUNTER_BYTES or check != b"%08x" % zlib.crc32(numbers):
        return None
    return Count(*map(int, numbers.split()))


def _counter(count: Count) -> bytes:
    numbers = b"%020d %020d %020d %020d" % count
    return b"%b %08x\n" % (numbers, zlib.crc32(numbers))


def _after_fork() -> None:
    for folder in list(_folders):
        folder.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _try_lock(file: int) -> bool:
    if sys.platform == "win32":
        raise UnsupportedError("a store of files needs a POSIX system", hint="use 'sqlite:///store.db'")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(file: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_UN)
