"""Files whose last contents never reached the disk: a power cut takes back what the system had not written yet.

A checkpoint is synced when it is acknowledged; the files that a tool wrote are not, and the disk may hold an older
version of them, an empty one or none. No edit looks like that: an edit moves the time of the last change (`ctime`,
which no program can set) past the time that the captured file had. A file that differs and whose time does not say that
it was changed since was lost.
"""

from __future__ import annotations

import contextlib
import os
import time

from backstay.listing import FileEntry, parent_of
from backstay.workspace.open_root import BlockedError, OpenRoot


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
