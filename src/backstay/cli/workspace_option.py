"""Which folder a command puts files into: `--workspace`, else the one that was captured, if you are in it.

A branch that was forked into another folder still names the first one until its first commit. So a folder is never
guessed from the store alone: where you stand decides, or you name it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import backstay

if TYPE_CHECKING:
    from backstay.face import Session, Store
    from backstay.workspace.policy import Workspace

workspace_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--workspace",
    metavar="DIR",
    help="The folder of the files; by default the one that was captured, if you are in it.",
)


def session_in(store: Store, id_: str, branch: str, workspace: str | None) -> Session:
    """The session with the folder that its files go to."""
    return store.session(id_, workspace=workspace or folder_of(store.session(id_), branch))


def refuse_folder(workspace: Workspace) -> None:
    """InvalidInputError for a folder that is too large to be captured; nothing is written for that."""
    from backstay.workspace.capturing import Capturer

    Capturer(workspace).measure()


def folder_of(session: Session, branch: str) -> str:
    """The folder that was captured last on a branch, if this is it or one below it."""
    files = session.checkpoint(branch).files
    if files is None or not files.root:  # a list that no capture ever filled names no folder
        message = f"session {session.id!r}: branch {branch!r} has no files"
        raise backstay.NotFoundError(message, hint="`backstay restore` goes back without files")
    here = os.path.realpath(Path.cwd())
    if os.path.commonpath([here, files.root]) != files.root:
        message = f"the files of branch {branch!r} were captured in {files.root}, and you are in {here}"
        raise backstay.InvalidInputError(message, hint="go there, or name the folder by --workspace DIR")
    return files.root


def beneath(session_root: str, paths: tuple[str, ...]) -> list[str] | None:
    """Paths as typed here, as they are called beneath the workspace; None if none were."""
    if not paths:
        return None
    return [
        os.path.relpath(os.path.realpath(Path(path).parent) + os.sep + Path(path).name, session_root) for path in paths
    ]
