"""Sessions with a workspace, as the tests of restores need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import backstay
from backstay.listing import EMPTY, from_value, to_value
from backstay.rules import file_restore as rules
from backstay.run.file_restore import FileRestore, RestoreRequest
from backstay.run.holding import HeldBranch
from backstay.run.workspace_capture import WorkspaceCapture
from backstay.store.fields import Given
from backstay.workspace.policy import Workspace


def session_in(store: backstay.Store, root: Path, name: str = "s") -> backstay.Session:
    session = store.session(name)
    session._workspace = WorkspaceCapture(store.backend, Workspace(root))
    return session


def capture_as(session: backstay.Session, state: dict[str, Any], author: str) -> backstay.Checkpoint:
    """A commit whose changed files have an author."""
    history, capture = session._history, session._workspace
    assert capture is not None
    head = session.head()
    files = None if head is None else history.load("main").files
    listing, _ = capture.capture(EMPTY if files is None else from_value(files), author)
    expect = backstay.NOTHING if head is None else head.id
    return history.write("main", state, Given("manual", captured=True), expect=expect, files=to_value(listing))


def leave_pending(session: backstay.Session, ref: str) -> None:
    """The journal as a kill leaves it right after the restore was written down."""
    history, capture = session._history, session._workspace
    assert capture is not None
    from backstay.workspace.open_root import OpenRoot

    request = RestoreRequest(session.checkpoint(ref).id)
    work = FileRestore(history, "main", capture)
    with HeldBranch(history, "main", rules.RESTORE) as held, OpenRoot(capture.path) as root:
        call = work._call(root, request, history.load("main").row.id)
        history.backend.write(rules.place_ask(held.lease), rules.begin(held.lease, call))
