"""Files put in place: steps beneath a root, each done only where what is there is what was expected.

    stage    write every new file aside, in `.backstay/tmp/<place>/`, verified and synced; the plan lies beside them
    apply    removals deepest first, then folders, then files and links, then the permissions of folders
    clear    look once more at what was taken away, then remove it

The order is what makes it safe to be killed anywhere and done again:
- Nothing of the folder is changed before everything that is to come is on the disk. A full disk or a damaged content
  costs the placement, never the folder.
- A file changes places with its new version in one step (`exchange`). What came out is read: if it is not what was
  expected, a save was made at that very moment, and the two change back. A file that goes is moved out and looked at
  in the same way. Where a system cannot exchange, the old file is moved out first: its name is then free for a moment.
- What came out stays aside until the end and is read again: a program that still had it open may have written to it.
  Then it goes back.
- A leftover folder of a killed placement is settled before the next one (see leftovers).
- A path that the system refuses to write is told as failed; the caller takes the others back (`backwards`).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

import msgspec

from backstay.errors import CorruptionError, UnavailableError
from backstay.hints import Hint
from backstay.listing import PERMISSIONS, FileEntry, PlaceStep, in_order, unsafe
from backstay.model import counted
from backstay.workspace.leftovers import PLAN, TMP, clear_leftovers, names_in, settle
from backstay.workspace.open_root import BlockedError, OpenRoot, is_folder, look_in, same
from backstay.workspace.system_calls import exchange, move, sync_file_system

Contents = Callable[[PlaceStep], Iterable[bytes]]

CHANGED, CREATED, GONE = "it was changed since", "it was created since", "it was removed since"
NOT_EMPTY = "there is something in it that was not captured"
DAMAGED = "its kept contents are damaged"
_PARTIAL = Hint("partial=True puts back the others", "--partial puts back the others")
_HOLE = bytes(1 << 16)
_MARGIN_BYTES = 1 << 20
_NAMED = 20
_WRITABLE = 0o300


class Placed(msgspec.Struct, frozen=True):
    """What became of a placement: by path, what is there now as wanted, what was kept and why.

    `failed` are paths that the system refused to write, and its words. `rescued` are contents that a program wrote to a
    file after it was replaced, by the path where they lie now.
    """

    done: tuple[bytes, ...] = ()
    kept: dict[bytes, str] = {}
    failed: dict[bytes, str] = {}
    rescued: dict[bytes, str] = {}


class Placement:
    """See the module's text. `name` is that of its folder aside; the same placement again has the same name.

    The root must be locked (`OpenRoot.locked`) from `stage` to `clear`.
    """

    def __init__(self, root: OpenRoot, name: str, steps: Iterable[PlaceStep]) -> None:
        self._root = root
        self._name = name.encode()
        self._kept: dict[bytes, str] = {}
        self._failed: dict[bytes, str] = {}
        self._rescued: dict[bytes, str] = {}
        self._steps: list[PlaceStep] = []
        for step in in_order(list(steps)):
            why = unsafe(step.path)
            if why is None:
                self._steps.append(step)
            else:
                self._kept[step.path] = why
        self._numbers = {step.path: number for number, step in enumerate(self._steps)}
        self._done: dict[bytes, None] = {}
        self._out: list[tuple[PlaceStep, bytes]] = []
        self._tmp = -1
        self._touched: set[bytes] = set()

    # aside

    def stage(self, contents: Contents, *, partial: bool = False) -> None:
        """Write everything that is to come aside and sync it. Nothing of the folder is changed by this.

        With `partial`, paths whose contents are damaged are kept as they are and named.
        """
        with _translated("files cannot be written aside"):
            clear_leftovers(self._root, self._rescued)
            self._tmp = self._root.own_folder(TMP, self._name)
            wanted = [step for step in self._steps if _is_staged(step)]
            _check_space(self._tmp, wanted)
            damaged = [step.path for step in wanted if not self._write(step, contents)]
            if partial:
                self._kept |= dict.fromkeys(damaged, DAMAGED)
            elif damaged:
                self.clear()
                shown = ", ".join(map(os.fsdecode, damaged[:_NAMED]))
                files = counted(len(damaged), "file")
                message = f"the kept contents of {files} are damaged; nothing was changed: {shown}"
                raise CorruptionError(message, hint=_PARTIAL)
            self._write_plan()
            self._sync()

    def _write(self, step: PlaceStep, contents: Contents) -> bool:
        after = step.after
        assert after is not None  # noqa: S101 - only what comes is written
        name = b"s%d" % self._numbers[step.path]
        if after.kind == "link":
            os.symlink(after.target, name, dir_fd=self._tmp)
            return True
        if after.kind == "folder":
            os.mkdir(name, 0o700, dir_fd=self._tmp)
            return True
        part = b"p" + name[1:]
        try:
            chunks = contents(step)
            fits = self._write_file(part, after, chunks)
        except CorruptionError:
            fits = False
        if fits:
            os.rename(part, name, src_dir_fd=self._tmp, dst_dir_fd=self._tmp)
        return fits

    def _write_file(self, name: bytes, after: FileEntry, chunks: Iterable[bytes]) -> bool:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._tmp)
        digest = sha256()
        try:
            for chunk in chunks:
                digest.update(chunk)
                write_sparse(descriptor, chunk)
            os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR))
            os.fchmod(descriptor, after.mode & PERMISSIONS)
        finally:
            os.close(descriptor)
        return digest.digest() == after.digest

    def _write_plan(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(b"plan.part", flags, 0o600, dir_fd=self._tmp)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.msgpack.encode([msgspec.structs.replace(step, contents=None) for step in self._steps]))
        os.rename(b"plan.part", PLAN, src_dir_fd=self._tmp, dst_dir_fd=self._tmp)

    def _sync(self) -> None:
        if sync_file_system(self._tmp):
            return
        for name in names_in(self._tmp):
            with contextlib.suppress(OSError):  # links have nothing to sync
                _sync_name(self._tmp, name)
        os.fsync(self._tmp)
        for path in self._touched:
            with contextlib.suppress(BlockedError), self._root.parent_of(path) as (folder, below):
                with contextlib.suppress(OSError):
                    _sync_name(folder, below)
                os.fsync(folder)

    # in place

    def apply(self) -> Placed:
        """Do the steps, sync them, and look once more at what came out."""
        with _translated("files cannot be put back"):
            steps = [step for step in self._steps if step.path not in self._kept]
            removals = [step for step in steps if step.after is None]
            folders = [step for step in steps if is_folder(step.after)]
            others = [step for step in steps if step.after is not None and not is_folder(step.after)]
            for step in (*folders, *reversed(removals)):
                if is_folder(step.before):
                    self._at(step, self._open_up)
            for step in removals:
                self._at(step, self._remove)
            for step in folders:
                self._at(step, self._make_folder)
            for step in others:
                self._at(step, self._put)
            for step in reversed(folders):
                if step.path not in self._kept and step.path not in self._failed:
                    self._at(step, self._set_folder_mode)
            for step, name in self._out:
                self._settle(step, name)
            self._sync()
        done = tuple([path for path in self._done if path not in self._kept and path not in self._failed])
        return Placed(done, dict(self._kept), dict(self._failed), dict(self._rescued))

    def backwards(self, done: Iterable[bytes]) -> Placement:
        """The way back for paths that were done, as a placement of its own."""
        names = set(done)
        steps = [PlaceStep(step.path, step.after, step.before) for step in self._steps if step.path in names]
        return Placement(self._root, self._name.decode(), steps)

    def _at(self, step: PlaceStep, do: Callable[[PlaceStep, int, bytes], None]) -> None:
        """Do something in the folder of a path; one that is not as expected is kept, one that is refused has failed."""
        try:
            with self._root.parent_of(step.path) as (folder, name):
                do(step, folder, name)
        except BlockedError as error:
            if step.after is None and error.absent:
                self._done[step.path] = None  # there is nothing at this path
            else:
                (self._failed if error.refused else self._kept)[step.path] = str(error)
        except FileExistsError:
            self._kept[step.path] = CREATED
        except OSError as error:
            self._failed[step.path] = f"it cannot be written: {error.strerror or error}"

    def _look(self, folder: int, name: bytes) -> FileEntry | None:
        return look_in(folder, name, self._root.device)

    def _as_expected(self, step: PlaceStep, now: FileEntry | None) -> bool:
        """True if there is something to do: a path that is as wanted is done, one that is neither is kept."""
        if same(now, step.after):
            self._done[step.path] = None
            return False
        if not _is_expected(now, step):
            self._kept[step.path] = GONE if now is None else CREATED if step.before is None else CHANGED
            return False
        return True

    def _remove(self, step: PlaceStep, folder: int, name: bytes) -> None:
        if not self._as_expected(step, self._look(folder, name)):
            return
        if is_folder(step.before):
            self._remove_folder(step, folder, name)
        elif self._take_out(step, folder, name):
            self._did(step)

    def _remove_folder(self, step: PlaceStep, folder: int, name: bytes) -> None:
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._kept[step.path] = NOT_EMPTY
            self._close_again(step)
        else:
            self._did(step)

    def _take_out(self, step: PlaceStep, folder: int, name: bytes) -> bool:
        """Move a path aside and look at what that was. False: it was something else, and is back."""
        aside = b"o%d" % self._numbers[step.path]
        move(folder, name, self._tmp, aside)
        if not same(self._look(self._tmp, aside), step.before):
            self._settle(step, aside)
            return False
        self._out.append((step, aside))
        return True

    def _make_folder(self, step: PlaceStep, folder: int, name: bytes) -> None:
        now = self._look(folder, name)
        if is_folder(now):
            return  # its permissions come last
        if not self._as_expected(step, now):
            return
        if now is None:
            os.mkdir(name, 0o700, dir_fd=folder)
            self._touched.add(step.path)
        else:
            self._exchange(step, folder, name)

    def _put(self, step: PlaceStep, folder: int, name: bytes) -> None:
        now = self._look(folder, name)
        if not self._as_expected(step, now):
            return
        if _is_mode_only(step):
            self._set_mode(step, folder, name)
        elif now is None:
            move(self._tmp, b"s%d" % self._numbers[step.path], folder, name)
            self._did(step)
        elif is_folder(now) and _has_entries(folder, name):
            self._kept[step.path] = NOT_EMPTY
        else:
            self._exchange(step, folder, name)

    def _exchange(self, step: PlaceStep, folder: int, name: bytes) -> None:
        aside = b"s%d" % self._numbers[step.path]
        self._tell_apart(aside, folder, name)
        if not exchange(self._tmp, aside, folder, name):
            if is_folder(step.before):
                os.rmdir(name, dir_fd=folder)
            elif not self._take_out(step, folder, name):
                return
            move(self._tmp, aside, folder, name)
            self._did(step)
            return
        if _is_expected(self._look(self._tmp, aside), step) and not self._is_full(step, aside):
            self._out.append((step, aside))
            self._did(step)
        else:
            self._settle(step, aside)

    def _tell_apart(self, aside: bytes, folder: int, name: bytes) -> None:
        """Python and make know a file by its size and the second of its time: both must not stay as they were."""
        new = os.stat(aside, dir_fd=self._tmp, follow_symlinks=False)
        try:
            old = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return  # it is gone since it was looked at: the exchange finds out
        if new.st_size == old.st_size and int(new.st_mtime) == int(old.st_mtime):
            later = (int(old.st_mtime) + 1) * 1_000_000_000
            os.utime(aside, ns=(later, later), dir_fd=self._tmp, follow_symlinks=False)

    def _is_full(self, step: PlaceStep, aside: bytes) -> bool:
        return is_folder(step.before) and _has_entries(self._tmp, aside)

    def _did(self, step: PlaceStep) -> None:
        self._done[step.path] = None
        self._touched.add(step.path)

    # permissions

    def _open_up(self, step: PlaceStep, folder: int, name: bytes) -> None:
        """A folder that cannot be written and that changes or goes: make it writable for what comes before that."""
        before = step.before
        assert before is not None  # noqa: S101 - it is a folder
        if before.mode & _WRITABLE == _WRITABLE or not same(self._look(folder, name), before):
            return
        self._change_mode(step.path, _widened(before, step.after))

    def _close_again(self, step: PlaceStep) -> None:
        """A folder that was opened up to be removed, and stays."""
        before = step.before
        assert before is not None  # noqa: S101 - it is a folder
        if before.mode & _WRITABLE != _WRITABLE:
            self._change_mode(step.path, before.mode)

    def _set_folder_mode(self, step: PlaceStep, folder: int, name: bytes) -> None:
        now, before, after = self._look(folder, name), step.before, step.after
        assert after is not None  # noqa: S101 - it is a folder that comes
        if now is None or not is_folder(now):
            self._kept[step.path] = GONE if now is None else CHANGED
            return
        mode = now.mode & PERMISSIONS
        known = not is_folder(before)
        if not known and before is not None:
            known = mode in (before.mode & PERMISSIONS, after.mode & PERMISSIONS, _widened(before, after))
        if not known:
            self._kept[step.path] = CHANGED
            return
        if mode != after.mode & PERMISSIONS:
            self._change_mode(step.path, after.mode & PERMISSIONS)
        self._did(step)

    def _change_mode(self, path: bytes, mode: int) -> None:
        descriptor = self._root.open_folder(path)
        try:
            rest = os.fstat(descriptor).st_mode & 0o7000
            os.fchmod(descriptor, rest | (mode & PERMISSIONS))
        finally:
            os.close(descriptor)

    def _set_mode(self, step: PlaceStep, folder: int, name: bytes) -> None:
        assert step.after is not None  # noqa: S101 - only its permissions step
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
        try:
            os.fchmod(descriptor, step.after.mode & PERMISSIONS)
        finally:
            os.close(descriptor)
        if same(self._look(folder, name), step.after):
            self._did(step)
        else:
            self._kept[step.path] = CHANGED

    # what came out

    def _settle(self, step: PlaceStep, aside: bytes) -> None:
        """Remove what came out, or give it back where it is not what was expected."""
        if settle(self._root, self._tmp, aside, step, self._rescued):
            self._done.pop(step.path, None)
            self._kept[step.path] = CHANGED

    def clear(self) -> None:
        """Remove what lies aside."""
        self.close()
        with _translated("files that lay aside cannot be removed"):
            clear_leftovers(self._root, self._rescued)

    def close(self) -> None:
        """Let go of what lies aside; the next placement settles it."""
        if self._tmp >= 0:
            os.close(self._tmp)
            self._tmp = -1


# small things


def _is_expected(now: FileEntry | None, step: PlaceStep) -> bool:
    """True if a path holds what was there before. A folder that goes must be empty; its permissions do not matter."""
    return same(now, step.before) or (is_folder(now) and is_folder(step.before) and not is_folder(step.after))


def _is_mode_only(step: PlaceStep) -> bool:
    before, after = step.before, step.after
    if before is None or after is None:
        return False
    return after.kind == "file" and before.same_contents(after)


def _is_staged(step: PlaceStep) -> bool:
    """True if something is written aside for a step: files, links, and folders that take a file's place."""
    before, after = step.before, step.after
    if after is None or _is_mode_only(step):
        return False
    return after.kind != "folder" or (before is not None and not is_folder(before))


def _widened(before: FileEntry, after: FileEntry | None) -> int:
    return (before.mode | (0 if after is None else after.mode) | _WRITABLE) & PERMISSIONS


def _has_entries(folder: int, name: bytes) -> bool:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        return bool(names_in(descriptor))
    finally:
        os.close(descriptor)


def _sync_name(folder: int, name: bytes) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_sparse(descriptor: int, chunk: bytes) -> None:
    """Write at the end of a file; a stretch of 64 KiB zeros becomes a hole."""
    if len(chunk) < len(_HOLE) or chunk.find(_HOLE) < 0:
        _write_all(descriptor, chunk)
        return
    view = memoryview(chunk)
    for at in range(0, len(chunk), len(_HOLE)):
        piece = view[at : at + len(_HOLE)]
        if piece == _HOLE:
            os.lseek(descriptor, len(piece), os.SEEK_CUR)
        else:
            _write_all(descriptor, piece)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _check_space(tmp: int, wanted: list[PlaceStep]) -> None:
    """Refuse what cannot fit before a byte of it is written."""
    found = os.fstatvfs(tmp)
    needed = sum(_blocks(step.after.size, found.f_frsize) for step in wanted if step.after is not None)
    free = found.f_bavail * found.f_frsize
    if needed + _MARGIN_BYTES > free:
        message = f"{needed:,} bytes are needed beside the folder and {free:,} are free; nothing was changed"
        raise UnavailableError(message, hint="make room on the disk, then try again", retryable=False)


def _blocks(size: int, block: int) -> int:
    return -(-size // block) * block if block else size


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{what}: {error.strerror or error}"
        hint = "make room on the disk, then try again" if error.errno == errno.ENOSPC else "look at the folder"
        raise UnavailableError(message, hint=hint) from error
