"""Files whose last contents never reached the disk: a power cut takes back what the system had not written yet.

A checkpoint is synced when it is acknowledged; the files that a tool wrote are not, and the disk may hold an older
version of them, an empty one or none. No edit looks like that: an edit moves the time of the last change (`ctime`,
which no program can set) past the time that the captured file had. A file that differs and whose time does not say that
it was changed since was lost.

A list may also come from another folder: an import, a fork, a folder that was emptied. A path that is not there then
was removed by no one: it is missing. A file that was over the limit for files, and is not by the limit of now, was
not known before: its author cannot be told.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from backstay.listing import MISSING, OLDER, OVER, OWN, FileEntry, Listing, parent_of, shown
from backstay.workspace.open_root import BlockedError, OpenRoot
from backstay.workspace.scanning import TOO_LARGE


class Unattributed:
    """Paths that are not as a list has them, and not because of a change: the list is of another folder or limit."""

    def __init__(self, folder: str, base: Listing) -> None:
        self._folder = os.path.realpath(folder)
        self._base = base
        self._is_other: bool | None = None

    def __call__(self, path: bytes) -> str | None:
        """MISSING or OVER; None for a path that was changed."""
        about, before = self._base.about, self._base.find(path)
        if os.path.lexists(os.path.join(os.fsencode(self._folder), path)):  # noqa: PTH118 - bytes
            if before is None:
                was_over = TOO_LARGE in about.why and shown(path) in about.why[TOO_LARGE].first
            else:
                was_over = before.mark == OLDER
            return OVER if was_over else None
        if self._is_other is None:
            self._is_other = bool(about.root) and (about.root != self._folder or self._is_empty())
        return MISSING if self._is_other else None

    def _is_empty(self) -> bool:
        with contextlib.suppress(OSError):
            return {os.fsencode(path.name) for path in Path(self._folder).iterdir()} <= {OWN}
        return False


def is_lost(root: OpenRoot, captured: FileEntry) -> bool:
    """True if a file that is not as it was captured was not changed by anyone since then."""
    if captured.kind != "file" or not captured.has_contents or not 0 < captured.mtime_ns < time.time_ns():
        return False
    with contextlib.suppress(BlockedError, OSError), root.parent_of(captured.path) as (folder, name):
        try:
            now = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return os.fstat(folder).st_ctime_ns <= captured.mtime_ns
        # Cut to nothing and written within one tick of the clock: the first of the two may be all that was kept.
        cut = now.st_ctime_ns == captured.mtime_ns and now.st_size < captured.size
        return now.st_ctime_ns < captured.mtime_ns or cut
    return _is_folder_lost(root, parent_of(captured.path), captured.mtime_ns)


def _is_folder_lost(root: OpenRoot, folder: bytes, mtime_ns: int) -> bool:
    """True if a folder is not there, and what is above it was not changed since: nothing was removed from that."""
    while folder:
        folder = parent_of(folder)
        with contextlib.suppress(BlockedError, OSError):
            handle = root.open_folder(folder) if folder else os.dup(root.descriptor)
            try:
                return os.fstat(handle).st_ctime_ns <= mtime_ns
            finally:
                os.close(handle)
    return False
