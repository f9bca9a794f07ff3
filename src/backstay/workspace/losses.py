"""Files whose last contents never reached the disk: a power cut takes back what the system had not written yet.

A checkpoint is synced when it is acknowledged; the files that a tool wrote are not, and the disk may hold an older
version of them, an empty one or none. No edit looks like that: an edit moves the time of the last change (`ctime`,
which no program can set) past the time that the captured file had. A file that differs and whose time does not say that
it was changed since was lost.

A list may also come from another folder: an import, a fork, a folder that was emptied. A path that is not there then
was removed by no one: it is missing.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from backstay.listing import OWN, FileEntry, parent_of
from backstay.workspace.open_root import BlockedError, OpenRoot


class Missing:
    """Whether a path that a list has is missing in a folder, because the list is of another one."""

    def __init__(self, folder: str, captured: str) -> None:
        self._folder = os.path.realpath(folder)
        self._captured = captured
        self._is_other: bool | None = None

    def __call__(self, path: bytes) -> bool:
        """True if nothing is at a path, and no one is known to have removed it."""
        if self._is_other is None:
            self._is_other = bool(self._captured) and (self._captured != self._folder or self._is_empty())
        return self._is_other and not os.path.lexists(os.path.join(os.fsencode(self._folder), path))  # noqa: PTH118 - bytes

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
