"""The difference of the files of two checkpoints as people read it: paths by what became of them, texts by lines."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from backstay.errors import NotFoundError
from backstay.listing.changes import FileChange, FileChanges
from backstay.listing.entries import FileEntry, shown

_CONTEXT_LINES = 3
_LOOK_BYTES = 8000
Contents = Callable[[FileEntry], bytes]


class FileDiff:
    """What differs in the files of two checkpoints, or of one and a folder; false where nothing does.

    `added`, `removed`, `changed` and `mode` are paths; `mode` those of which only the permissions differ.
    """

    __slots__ = ("_after", "_before", "changes")

    def __init__(self, changes: FileChanges, before: Contents, after: Contents) -> None:
        self.changes = changes
        self._before = before
        self._after = after

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def added(self) -> list[str]:
        """Paths that came."""
        return _paths(self.changes.added)

    @property
    def removed(self) -> list[str]:
        """Paths that went."""
        return _paths(self.changes.removed)

    @property
    def changed(self) -> list[str]:
        """Paths whose contents differ."""
        return _paths(self.changes.changed)

    @property
    def mode(self) -> list[str]:
        """Paths of which only the permissions differ."""
        return _paths(self.changes.mode)

    def text(self, path: str) -> str:
        """The lines that differ in a file, as a unified diff; one line where it is no text."""
        raw = path.encode("utf-8", "surrogateescape")
        change = next((change for change in self.changes.changes if change.path == raw), None)
        if change is None:
            raise KeyError(path)
        old, new = self.contents(change)
        if old is None or new is None:
            return f"{_one_line(raw)}: its contents are not kept"
        if _is_binary(old) or _is_binary(new):
            return f"{_one_line(raw)}: {len(old):,} bytes became {len(new):,}; no text"
        a, b = ("/dev/null" if entry is None else _one_line(raw) for entry in (change.before, change.after))
        lines = difflib.unified_diff(_lines(old), _lines(new), a, b, n=_CONTEXT_LINES, lineterm="")
        return "\n".join(lines)

    def contents(self, change: FileChange) -> tuple[bytes | None, bytes | None]:
        """What a path held before and after: nothing where it was not there, None where it is not kept."""
        old = b"" if change.before is None else self._contents(change.before, self._before)
        return old, b"" if change.after is None else self._contents(change.after, self._after)

    def __str__(self) -> str:
        marks = [
            ("A", self.changes.added),
            ("D", self.changes.removed),
            ("M", self.changes.changed),
            ("m", self.changes.mode),
        ]
        rows = sorted([(change.path, mark) for mark, changes in marks for change in changes])
        return "\n".join([f"{mark} {shown(path)}" for path, mark in rows])

    def __repr__(self) -> str:
        return f"<FileDiff of {len(self.changes.changes):,} paths>"

    @staticmethod
    def _contents(entry: FileEntry, read: Contents) -> bytes | None:
        if entry.kind == "link":
            return entry.target
        if entry.kind == "folder":
            return b""
        try:
            return read(entry) if entry.has_contents else None
        except NotFoundError:  # they were forgotten
            return None


def _paths(changes: list[FileChange]) -> list[str]:
    return [change.path.decode("utf-8", "surrogateescape") for change in changes]


def _one_line(path: bytes) -> str:
    """A path that is one line whatever is in it: it heads a difference, and must not pass for lines of it."""
    return "".join([char if char.isprintable() else repr(char)[1:-1] for char in shown(path)])


def _is_binary(contents: bytes) -> bool:
    return b"\0" in contents[:_LOOK_BYTES]


def _lines(contents: bytes) -> list[str]:
    return contents.decode("utf-8", "backslashreplace").splitlines()
