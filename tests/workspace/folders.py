"""Sessions with a workspace, as the tests of restores need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import backstay
from backstay.listing import EMPTY, from_value, to_value
from backstay.rules import file_restore as rules
from backstay.run.file_restore import FileRestore, RestoreRequest
from backstay.run.holding import HeldBranch
from backstay.store.fields import Given
from backstay.store.files import CapturedFiles
from backstay.workspace.open_root import OpenRoot


def session_in(store: backstay.Store, root: Path, name: str = "s") -> backstay.Session:
    return store.session(name, workspace=root)


def capture_as(session: backstay.Session, state: dict[str, Any], author: str) -> backstay.Checkpoint:
    """A commit whose changed files have an author."""
    history, files = session._history, session._files
    assert files is not None
    head = session.head()
    value = None if head is None else history.load("main").files
    sink = files.sink()
    listing, _ = files.capture(EMPTY if value is None else from_value(value), sink, author=author)
    found = CapturedFiles(to_value(listing), sink.taken())
    expect = backstay.NOTHING if head is None else head.id
    return history.write("main", state, Given("manual", captured=True), expect=expect, files=found)


def capture_nothing(session: backstay.Session) -> backstay.Checkpoint:
    """The first commit of a run that could not look at its folder: a list that names none."""
    given = Given("manual", captured=True)
    return session._history.write("main", {}, given, expect=backstay.NOTHING, files=CapturedFiles(to_value(EMPTY), {}))


def leave_pending(session: backstay.Session, ref: str) -> None:
    """The journal as a kill leaves it right after the restore was written down."""
    history, files = session._history, session._files
    assert files is not None
    request = RestoreRequest(session.checkpoint(ref).id)
    work = FileRestore(history, "main", files)
    with HeldBranch(history, "main", rules.RESTORE) as held, OpenRoot(files.workspace.path) as root:
        call = work._call(root, request, history.load("main").row.id)
        history.backend.write(rules.place_ask(held.lease), rules.begin(held.lease, call))
