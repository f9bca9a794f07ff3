"""Contents of files out of a session's history: some paths everywhere, or all files of older checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from backstay.errors import InvalidInputError
from backstay.grouping import chain_of
from backstay.hints import Hint
from backstay.listing import PRIVATE, FileEntry, Listing
from backstay.model import ForgetReport, SessionId
from backstay.port import EVERY, Ask, Backend, CheckpointRow
from backstay.rules import refusals
from backstay.sealing import Remnant
from backstay.store.file_contents import remnants_of
from backstay.upkeep.file_policies import ForgetBefore, ForgetPaths, KeepEverything, matcher
from backstay.upkeep.file_uses import FilePolicy
from backstay.upkeep.forgetting import Forgetting, Forgotten
from backstay.upkeep.redaction import redact_patches
from backstay.workspace.policy import is_secret_name

_WHAT = Hint("give paths, or before=", "give PATH, or --before")


def forget_files(
    backend: Backend, session: str, paths: Sequence[str], *, before: int | None = None, dry_run: bool = False
) -> ForgetReport:
    """Forget contents: of these paths, of all checkpoints or those before one; without paths, of all files before one.

    What goes by its path is nowhere in the store afterwards, unless another path or session has the same contents.
    """
    if not paths and before is None:
        raise InvalidInputError("it is not said which files are to be forgotten", hint=_WHAT)
    if not all([path.strip("/") for path in paths]):
        raise InvalidInputError("a path to be forgotten is not empty")
    _refuse_runs(backend, session)
    named = matcher(paths)
    matches = (lambda entry: named(entry.path)) if paths else None
    size = backend.sizes().stored_bytes
    told = forget_matching(backend, session, matches, named, before=before, dry_run=dry_run)
    if not dry_run:
        backend.tend()
    freed = told.stored_bytes if dry_run else max(0, size - backend.sizes().stored_bytes)
    return ForgetReport(
        session_id=SessionId(session), files=told.files, elsewhere=told.elsewhere, freed_bytes=freed, dry_run=dry_run
    )


def is_captured_secret(entry: FileEntry) -> bool:
    """True for a secret whose contents were captured."""
    return entry.mark == PRIVATE or (entry.place is not None and is_secret_path(entry.path))


def is_secret_path(path: bytes) -> bool:
    """True for a path whose name says that it holds a secret."""
    return is_secret_name(os.fsdecode(path))


def forget_matching(
    backend: Backend,
    session: str,
    matches: Callable[[FileEntry], bool] | None,
    named: Callable[[bytes], bool],
    *,
    before: int | None = None,
    dry_run: bool = False,
) -> Forgotten:
    """Forget the contents of files that a function names, all of them if there is none; and what calls kept of paths.

    The bytes are there until the store is tended.
    """

    def policy_of(id_: str) -> FilePolicy:
        if id_ != session:
            return KeepEverything()
        return ForgetBefore(before or 0) if matches is None else ForgetPaths(matches, before)

    work = Forgetting(backend, policy_of, writer=session, thorough=matches is not None)
    told = work.plan() if dry_run else work.run()
    if matches is not None and not dry_run:
        redact_patches(backend, session, _Going(backend, matches, before), named)
    return told


class _Going:
    """True for a file of a checkpoint whose patches go: its contents do, or are whole somewhere else by now."""

    def __init__(self, backend: Backend, matches: Callable[[FileEntry], bool], before: int | None) -> None:
        self._backend = backend
        self._matches = matches
        self._before = before
        self._remnants: dict[bytes, Remnant | None] = {}

    def __call__(self, row: CheckpointRow, listing: Listing, entry: FileEntry) -> bool:
        if not self._matches(entry):
            return False
        if self._before is None or row.sequence < self._before:
            return True
        if entry.place is None or not chain_of(listing, entry):
            return False
        first = listing.group(entry.place.group)
        if first not in self._remnants:
            self._remnants[first] = remnants_of(self._backend, [first]).get(first)
        left = self._remnants[first]
        return left is not None and entry.digest in left.wholes


def _refuse_runs(backend: Backend, session: str) -> None:
    view = backend.read(Ask(session, names=EVERY))
    if view.session is None:
        raise refusals.no_session(session)[1]
    refusals.settle([reason for lane in view.lanes for reason in refusals.held(view, lane)])
