"""The difference of two lists of files. Folders that are the same in both are not opened."""

from __future__ import annotations

import msgspec

from backstay.listing.entries import FileEntry
from backstay.listing.lists import Listing


class FileChange(msgspec.Struct, frozen=True, gc=False):
    """One path that differs: `before` is None where it was added, `after` where it was removed."""

    path: bytes
    before: FileEntry | None
    after: FileEntry | None

    @property
    def only_mode(self) -> bool:
        """True if only the permissions differ."""
        return self.before is not None and self.after is not None and self.before.same_contents(self.after)


class FileChanges(msgspec.Struct, frozen=True):
    """All paths that differ between two lists, in order."""

    changes: tuple[FileChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def added(self) -> list[FileChange]:
        """Paths that only the second list has."""
        return [change for change in self.changes if change.before is None]

    @property
    def removed(self) -> list[FileChange]:
        """Paths that only the first list has."""
        return [change for change in self.changes if change.after is None]

    @property
    def changed(self) -> list[FileChange]:
        """Paths whose contents differ, or that are of another kind now."""
        both = [change for change in self.changes if change.before is not None and change.after is not None]
        return [change for change in both if not change.only_mode]

    @property
    def mode(self) -> list[FileChange]:
        """Paths of which only the permissions differ."""
        return [change for change in self.changes if change.only_mode]


def difference(before: Listing, after: Listing) -> FileChanges:
    """The paths that differ: only folders whose packed bytes differ are looked into."""
    old: dict[bytes, FileEntry] = {}
    new: dict[bytes, FileEntry] = {}
    for folder in before.folders_that_differ(after):  # a path that became a folder is in two of them
        old |= before.folder(folder)
        new |= after.folder(folder)
    changes: list[FileChange] = []
    for path in sorted({**old, **new}):
        was, now = old.get(path), new.get(path)
        if was is None or now is None or not was.same(now):
            changes.append(FileChange(path, was, now))
    return FileChanges(tuple(changes))
