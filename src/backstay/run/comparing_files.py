"""Two checkpoints compared, their conversations and their files; or a checkpoint and the folder as it is now."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from backstay.difference import Diff, difference
from backstay.errors import CorruptionError
from backstay.listing import FileDiff, FileEntry
from backstay.store.file_contents import CheckpointFiles, files_between
from backstay.store.history import History
from backstay.store.reading import Loaded
from backstay.store.refs import Ref
from backstay.workspace.policy import Workspace

if TYPE_CHECKING:
    from backstay.run.files import SessionFiles


def compared(history: History, a: Ref, b: Ref | Workspace, *, files: SessionFiles | None = None) -> Diff:
    """The difference from one checkpoint to another, or to a folder."""
    before = history.load(a)
    name = a if isinstance(a, str) else a.id[:8]
    if isinstance(b, Workspace):
        return Diff(name, Path(b.path).name, (), folder_diff(history, before, b, files))
    after = history.load(b)
    found = difference(before.state, after.state, a=name, b=b if isinstance(b, str) else b.id[:8])
    if before.files is None or after.files is None:
        return found
    old, new = CheckpointFiles(history.backend, before), CheckpointFiles(history.backend, after)
    return replace(found, files=files_between(old, new))


def folder_diff(
    history: History, before: Loaded, workspace: Workspace, files: SessionFiles | None = None
) -> FileDiff | None:
    """The difference from the files of a checkpoint to a folder now; None if the checkpoint has none."""
    from backstay.run.files import SessionFiles  # noqa: PLC0415 - two checkpoints are compared without a folder
    from backstay.workspace.open_root import OpenRoot  # noqa: PLC0415
    from backstay.workspace.reading import read_file  # noqa: PLC0415

    if before.files is None:
        return None
    old = CheckpointFiles(history.backend, before)
    here = files if files is not None and files.workspace is workspace else SessionFiles(history, workspace)

    def contents(entry: FileEntry) -> bytes:
        with OpenRoot(workspace.path) as root, root.parent_of(entry.path) as (folder, name):
            found = read_file(folder, os.fsdecode(name), limit=2 * entry.size + (1 << 20))
        if found is None:
            raise CorruptionError(f"{os.fsdecode(entry.path)} was changed meanwhile")
        return found.contents

    return FileDiff(here.compare(old.listing), old.contents, contents)
