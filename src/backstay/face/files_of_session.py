"""What a session with a workspace captures by; what is needed for it is loaded where there is a workspace."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from backstay.store.history import History

if TYPE_CHECKING:
    from backstay.run.files import SessionFiles
    from backstay.upkeep.files_limit import FilesLimit
    from backstay.workspace.policy import Workspace


def files_of(
    history: History,
    workspace: Workspace | str | os.PathLike[str] | None,
    limit: Callable[[], FilesLimit] | None,
) -> SessionFiles | None:
    """The files of a session; what they bring is told to the keeper of the limit."""
    if workspace is None:
        return None
    from backstay.run.files import SessionFiles
    from backstay.workspace.policy import workspace_of

    found = workspace_of(workspace)
    if found is not None and found.files_bytes is not None and limit is not None:
        most, kept = found.files_bytes, limit()
        history.after_files = lambda put_bytes: kept.captured(history.id, put_bytes, most)
    return None if found is None else SessionFiles(history, found)
