"""A folder walked once: which files belong, and which of them may have changed since the last walk.

The root is opened once and each folder from its parent's descriptor, without following links: a folder that is swapped
for a link meanwhile is not entered. Links are recorded, special files and other file systems are left out. Decisions
of ignore rules are kept by folder; a decision is made again where a rule above it changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

import msgspec

from backstay.ignoring import BUILT_IN, IgnoreRules, rules_of
from backstay.listing import OWN, LeftOut, shown
from backstay.workspace.index import KnownFile, KnownFolder, Signature
from backstay.workspace.open_root import BlockedError, OpenRoot
from backstay.workspace.policy import FolderSize, Workspace
from backstay.workspace.reading import signature_of

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEPTH = 48  # folders held open at a time; below that each is opened from the root
_IGNORE_BYTES = 1 << 20
_FIRST = 20

IGNORED, TOO_LARGE, SPECIAL, UNREADABLE, ELSEWHERE = (
    "ignored",
    "over max_file",
    "neither file, link nor folder",
    "cannot be read",
    "on another file system",
)


class ScannedFile(msgspec.Struct, gc=False):
    """A file or link that belongs: its signature, and what was known of it if that still holds."""

    signature: Signature
    known: KnownFile | None
    too_large: bool = False


class ScannedFolder(msgspec.Struct):
    """A folder that may differ from what is known, with all files that belong."""

    path: bytes
    mode: int
    rules: bytes
    files: dict[str, ScannedFile]
    ignored: set[str]
    folders: set[str]


class Scan:
    """One walk. `folders` are those that may differ; `seen` all that were walked, `skipped` those that could not be."""

    def __init__(self, root: OpenRoot, workspace: Workspace, known: dict[bytes, KnownFolder]) -> None:
        self._root = root
        self._workspace = workspace
        self._known = known
        self._override = rules_of([*workspace.exclude, *[f"!{pattern}" for pattern in workspace.include]])
        self._ignore = frozenset(workspace.ignore)
        self._fixed = frozenset({OWN.decode()} if workspace.git == "capture" else {OWN.decode(), ".git"})
        self._left_out: dict[str, tuple[int, int, list[str]]] = {}
        self.folders: list[ScannedFolder] = []
        self.seen: set[bytes] = set()
        self.skipped: list[bytes] = []
        self.sizes: list[FolderSize] = []
        self.files = 0
        self.size_bytes = 0
        self.rules = b""

    def run(self) -> None:
        """Walk all of it."""
        salt = self._override.digest + self._workspace.git.encode()
        base = rules_of(() if self._has_ignore_file() else BUILT_IN, salt)
        root = os.dup(self._root.descriptor)
        below, rules = self._folder(root, os.fstat(root).st_mode, "", base, close=False)
        self.rules = rules.digest
        stack: list[tuple[int, str, IgnoreRules, Iterator[str]]] = [below]
        while stack:
            descriptor, path, rules, names = stack[-1]
            name = next(names, None)
            if name is None:
                stack.pop()
                if descriptor >= 0:
                    os.close(descriptor)
                continue
            child = f"{path}/{name}" if path else name
            opened = self._open(descriptor, name, child)
            if opened is None:
                continue
            frame, _ = self._folder(*opened, child, rules, close=len(stack) >= _DEPTH)
            stack.append(frame)

    def left_out(self) -> dict[str, LeftOut]:
        """The paths that do not belong, by reason."""
        return {why: LeftOut(n, size, tuple(sorted(first))) for why, (n, size, first) in sorted(self._left_out.items())}

    def leave_out(self, why: str, path: str, size: int = 0) -> None:
        """Note a path that is not captured."""
        count, total, first = self._left_out.get(why, (0, 0, []))
        if len(first) < _FIRST:
            first = [*first, shown(os.fsencode(path))]
        self._left_out[why] = count + 1, total + size, first

    def _has_ignore_file(self) -> bool:
        for name in self._ignore:
            try:
                os.stat(name, dir_fd=self._root.descriptor, follow_symlinks=False)
            except OSError:
                continue
            return True
        return False

    def _open(self, parent: int, name: str, path: str) -> tuple[int, int] | None:
        """A folder's descriptor and its mode."""
        try:
            if parent < 0:
                descriptor = self._root.open_folder(os.fsencode(path))
            else:
                descriptor = os.open(name, _OPEN, dir_fd=parent)
            status = os.fstat(descriptor)
            if status.st_dev == self._root.device:
                return descriptor, status.st_mode
            os.close(descriptor)
            self.leave_out(ELSEWHERE, path)
        except BlockedError:
            self.leave_out(UNREADABLE, path)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None  # gone meanwhile
            self.leave_out(UNREADABLE, path)
        self.skipped.append(os.fsencode(path))
        return None

    def _folder(
        self, descriptor: int, mode: int, path: str, rules: IgnoreRules, *, close: bool
    ) -> tuple[tuple[int, str, IgnoreRules, Iterator[str]], IgnoreRules]:
        """Look at one folder; those in it that belong are walked next."""
        raw = os.fsencode(path)
        try:
            with os.scandir(descriptor) as entries:
                found = {entry.name: entry for entry in entries}
        except OSError:
            self.leave_out(UNREADABLE, path)
            self.skipped.append(raw)
            return (descriptor, path, rules, iter(())), rules
        inner = rules
        for name in self._workspace.ignore:  # the one that is named last decides
            if name in found:
                inner = inner.inside(path, _text_of(descriptor, name))
        self.seen.add(raw)
        known = self._known.get(raw)
        folders = None if known is None else self._unchanged(found, path, inner, known, mode)
        if folders is None:
            folders = self._entries(found, path, inner, known, mode)
        if close:
            os.close(descriptor)
            descriptor = -1
        return (descriptor, path, inner, iter(folders)), inner

    def _unchanged(
        self, found: dict[str, os.DirEntry[str]], path: str, rules: IgnoreRules, known: KnownFolder, mode: int
    ) -> list[str] | None:
        """The folders of a folder in which nothing changed, as most are; None if something may have.

        This is what a look costs: everything in it is done once for every file of the workspace.
        """
        files, ignored, folders = known.files, known.ignored, known.folders
        if known.rules != rules.digest or known.mode != mode or len(found) != len(files) + len(ignored) + len(folders):
            return None
        size_bytes = 0
        try:
            for name, file in files.items():
                status = found[name].stat(follow_symlinks=False)
                ctime_ns, mtime_ns, size, inode, file_mode = file.signature  # type: ignore[misc] # None is a TypeError
                if (
                    status.st_ctime_ns != ctime_ns
                    or status.st_mtime_ns != mtime_ns
                    or status.st_size != size
                    or status.st_ino != inode
                    or status.st_mode != file_mode
                ):
                    return None
                size_bytes += size
            for name in ignored:
                if found[name.rstrip("/")].is_dir(follow_symlinks=False) != name.endswith("/"):
                    return None
            for name in folders:
                if not found[name].is_dir(follow_symlinks=False):
                    return None
        except (KeyError, TypeError, OSError):  # a name that is not there any more, a file that is to be read again
            return None
        self._count(path, len(files), size_bytes, ignored)
        return sorted(folders)

    def _count(self, path: str, count: int, size_bytes: int, ignored: set[str]) -> None:
        self.files += count
        self.size_bytes += size_bytes
        self.sizes.append(FolderSize(path, count, size_bytes))
        if ignored:
            for name in sorted([name.rstrip("/") for name in ignored]):
                if name not in self._fixed:
                    self.leave_out(IGNORED, f"{path}/{name}" if path else name)

    def _entries(
        self, found: dict[str, os.DirEntry[str]], path: str, rules: IgnoreRules, known: KnownFolder | None, mode: int
    ) -> list[str]:
        """The entries of a folder: its folders are given back, its files compared with what is known."""
        files: dict[str, ScannedFile] = {}
        folders: list[str] = []
        before = {} if known is None else known.files
        decided = known is not None and known.rules == rules.digest
        skip: set[str] = known.ignored if known is not None and decided else set()
        belong: set[str] = known.folders if known is not None and decided else set()
        ignored: set[str] = set()
        size_bytes, large_files, device = 0, 0, self._root.device
        for name, entry in found.items():
            is_folder = entry.is_dir(follow_symlinks=False)
            decision = f"{name}/" if is_folder else name
            if decision in skip:
                ignored.add(decision)
                continue
            if is_folder and name in belong:
                folders.append(name)
                continue
            old = before.get(name)
            if (old is None or not decided) and (
                name in self._fixed or self._ignores(rules, path, name, folder=is_folder)
            ):
                ignored.add(decision)
                continue
            if is_folder:
                folders.append(name)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # gone meanwhile
                continue
            signature = signature_of(status)
            if old is not None and old.signature == signature:
                files[name] = ScannedFile(signature, old)
                size_bytes += signature[2]
                continue
            kind = stat.S_IFMT(status.st_mode)
            if (kind not in (stat.S_IFREG, stat.S_IFLNK)) or status.st_dev != device:
                self.leave_out(SPECIAL if status.st_dev == device else ELSEWHERE, f"{path}/{name}" if path else name)
                continue
            large = kind == stat.S_IFREG and status.st_size > self._workspace.max_file
            if large:
                self.leave_out(TOO_LARGE, f"{path}/{name}" if path else name, status.st_size)
                large_files += 1
            else:
                size_bytes += status.st_size
            files[name] = ScannedFile(signature, None, large)
        self._count(path, len(files) - large_files, size_bytes, ignored)
        self.folders.append(ScannedFolder(os.fsencode(path), mode, rules.digest, files, ignored, set(folders)))
        return sorted(folders)

    def _ignores(self, rules: IgnoreRules, path: str, name: str, *, folder: bool) -> bool:
        full = f"{path}/{name}" if path else name
        if not self._override.is_empty:
            said = self._override.says(full, folder=folder)
            if said is not None:
                return said
        return not rules.is_empty and rules.ignores(full, folder=folder)


def _text_of(folder: int, name: str) -> str | None:
    """The text of an ignore file; None if it is none."""
    try:
        handle = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return file.read(_IGNORE_BYTES).decode("utf-8", "surrogateescape")
