"""The versions of a file since a checkpoint, and a person's changes of it made again on the oldest one."""

from __future__ import annotations

import contextlib
from hashlib import sha256

from backstay.errors import BackstayError, CorruptionError
from backstay.listing import OUTSIDE, FileEntry, Listing, merge_lines
from backstay.listing.changes import FileChange
from backstay.port import CheckpointRow
from backstay.store.file_contents import CheckpointFiles
from backstay.store.history import History
from backstay.store.reading import Loaded
from backstay.store.refs import readable
from backstay.workspace.open_root import BlockedError, OpenRoot
from backstay.workspace.reading import read_file

_PAGE_ROWS = 100
_MOST_VERSIONS = 200  # checkpoints that are looked into for one merge


class Versions:
    """What happened to files since the last checkpoint that a target and a head have in common.

    `since` is the number of the capture there. `root` is given where the disk is still as `disk` says, and not all of
    it is in the store yet.
    """

    def __init__(
        self, history: History, head: CheckpointRow, target: Loaded, disk: Listing, root: OpenRoot | None
    ) -> None:
        self._history = history
        self._disk = disk
        self._root = root
        self._target = CheckpointFiles(history.backend, target)
        self._line = self._line_to(head, target.row)
        base = self._line[0] if self._line else None
        self._base = self._target if base is None or base.id == target.row.id else history.files_of(base)
        self._between: list[CheckpointFiles] | None = None
        self.since = 0 if self._base is None or not self._line else self._base.listing.about.capture
        self.is_ancestor = bool(self._line) and self._line[0].sequence == target.row.sequence

    def _line_to(self, head: CheckpointRow, target: CheckpointRow) -> list[CheckpointRow]:
        """From the last common checkpoint to the head, oldest first; empty if there is none."""
        line: list[CheckpointRow] = []
        theirs: set[int] | None = None
        for row in self._ancestors(head):
            line.append(row)
            if row.sequence == target.sequence:
                return line[::-1]
            if row.sequence < target.sequence and theirs is None:
                theirs = {above.sequence for above in self._ancestors(target)}
            if theirs is not None and row.sequence in theirs:
                return line[::-1]
        return []

    def _ancestors(self, row: CheckpointRow) -> list[CheckpointRow]:
        found: list[CheckpointRow] = []
        at: int | None = row.sequence
        while at is not None:
            page = self._history.backend.ancestors(self._history.id, at, limit=_PAGE_ROWS)
            if not page:
                break
            found += [readable(self._history.id, above) for above in page]
            at = found[-1].parent
        return found

    def merged(self, change: FileChange) -> bytes | None:
        """The target's version of a file with a person's changes since; None if they cannot be told or put together."""
        if change.after is None or not self._line:
            return None
        with contextlib.suppress(BackstayError):
            return self._replayed(change.path, self._target.contents(change.after))
        return None

    def _replayed(self, path: bytes, result: bytes) -> bytes | None:
        versions = self._versions()
        if versions is None or self._base is None:
            return None
        before = self._base.listing.find(path)
        old = _contents(self._base, before)
        since = self.since
        for files in versions:
            entry, now = files.listing.find(path), files.listing.about.capture
            if _digest(entry) != _digest(before):
                new = _contents(files, entry)
                authors = {who for at, who in files.listing.changes_of(path) if since < at <= now}
                step = self._step(authors, old, result, new)
                if step is None:
                    return None
                before, old, result = entry, new, step
            since = now
        entry = self._disk.find(path)
        if _digest(entry) == _digest(before):
            return result
        if entry is None or old is None:
            return None
        return merge_lines(old, result, self._on_disk(path, entry))

    @staticmethod
    def _step(authors: set[str], old: bytes | None, result: bytes, new: bytes | None) -> bytes | None:
        """One change of a file: a call's is passed over, a person's is made again."""
        if OUTSIDE not in authors:
            return result
        if len(authors) > 1 or old is None or new is None:
            return None
        return merge_lines(old, result, new)

    def _versions(self) -> list[CheckpointFiles] | None:
        if len(self._line) > _MOST_VERSIONS:
            return None
        if self._between is None:
            found = [self._history.files_of(row) for row in self._line[1:]]
            self._between = [files for files in found if files is not None]
        return self._between

    def _on_disk(self, path: bytes, entry: FileEntry) -> bytes:
        if self._root is None:
            raise CorruptionError("the disk is not as it was any more")
        try:
            with self._root.parent_of(path) as (folder, name):
                found = read_file(folder, name.decode("utf-8", "surrogateescape"), limit=entry.size + 1, hot=True)
        except BlockedError as error:
            raise CorruptionError(str(error)) from error
        if found is None or sha256(found.contents).digest() != entry.digest:
            raise CorruptionError("the file was changed since")
        return found.contents


def _digest(entry: FileEntry | None) -> bytes:
    return b"" if entry is None else entry.digest or entry.target


def _contents(files: CheckpointFiles, entry: FileEntry | None) -> bytes | None:
    return files.contents(entry) if entry is not None and entry.kind == "file" else None
