"""Upkeep: what is wrong with the files themselves, how much they take, and which blobs nobody needs any more."""

from __future__ import annotations

import contextlib

from backstay.backends.files import anew, running
from backstay.backends.files.folder import Folder
from backstay.backends.files.journal import Journal
from backstay.backends.files.shelf import Shelf
from backstay.errors import CorruptionError
from backstay.model import CheckpointId, Problem, SessionId


def sweep(folder: Folder, shelf: Shelf, candidates: frozenset[bytes] | None) -> int:
    """Remove those of the candidates (None: of all blobs) that no session needs; with the store's lock held.

    Where a damaged line may have named one, none is removed: a blob too many costs space, one too few a state.
    """
    if candidates is not None and not candidates:
        return 0
    try:
        summaries = shelf.summaries()
    except CorruptionError:
        return 0
    if not all([summary.refs_known for summary in summaries]):
        return 0
    if candidates is None:
        candidates = frozenset([digest for path in folder.blobs() if (digest := _digest(path.name)) is not None])
    gone = candidates.difference(*[summary.refs for summary in summaries])
    folder.drop_blobs(gone)
    return len(gone)


def _digest(name: str) -> bytes | None:
    with contextlib.suppress(ValueError):
        return bytes.fromhex(name)
    return None


def repair(folder: Folder, shelf: Shelf) -> list[str]:
    """Cut off torn ends, settle names after lost lines, remove blobs nobody needs; with the store's lock held."""
    done: list[str] = []
    for path, journal in shelf.read_anew():
        try:
            found = _repair(folder, journal)
        finally:
            journal.close()
        if found:
            shelf.drop(path)
            done += [f"session {journal.index.id!r}: {what}" for what in found]
    if swept := sweep(folder, shelf, None):
        done.append(f"{swept} blobs that no checkpoint needs")
    return done


def _repair(folder: Folder, journal: Journal) -> list[str]:
    index = journal.index
    if index.id is None:
        return []  # nothing says whose it is: left for a person to look at
    names = anew.settled(index)
    if index.unknown_at or names.moved:
        aside = anew.write_aside(folder, anew.rest(journal, names.snapshot))
        anew.put_in_place(folder, aside, journal.path)
        return ["its journal was written anew without the lines that are lost", *names.moved, *names.lost]
    if index.torn:
        journal.cut(index.end)
        return ["the end of a write that was cut short was removed"]
    if journal.first_damaged:
        journal.restore_first(sync=folder.durable)
        return ["its first line was written anew"]
    return []


def blob_bytes(folder: Folder) -> int:
    """What all blobs take."""
    total = 0
    for path in folder.blobs():
        with contextlib.suppress(FileNotFoundError):
            total += folder.disk.stat(path).st_size
    return total


def check(folder: Folder, shelf: Shelf) -> list[Problem]:
    """Every line of every journal and every blob that is needed, read again."""
    problems: list[Problem] = []
    checked: dict[bytes, str | None] = {}
    for path, journal in shelf.read_anew():
        try:
            problems += _check_lines(journal)
            for entry in journal.index.entries.values():
                for ref in entry.refs:
                    if ref not in checked:
                        checked[ref] = _check_blob(folder, ref)
                    if checked[ref] is not None:
                        problems.append(_problem(journal, str(checked[ref]), entry.about.id))
        finally:
            journal.close()
        if journal.index.id is not None and folder.journal(journal.index.id) != path:
            problems.append(_problem(journal, f"{path.name} holds the lines of another session"))
    return problems


def _check_lines(journal: Journal) -> list[Problem]:
    index, name = journal.index, journal.path.name
    found = [_problem(journal, f"{name}: {what}") for what in index.damage]
    if journal.first_damaged:
        found.append(_problem(journal, f"{name}: the first line is damaged"))
    if index.id is None:
        found.append(_problem(journal, f"{name} does not say whose journal it is"))
    for entry in index.entries.values():
        link = entry.about.link
        if link is not None and link not in index.entries:
            found.append(_problem(journal, f"checkpoint {link[:12]} is lost", entry.about.id))
    targets = [*[(b.name, b.head_id) for b in index.branches.values()], *index.tags.items()]
    found += [
        _problem(journal, f"{target!r} points at {id_[:12]}, which is not there")
        for target, id_ in targets
        if id_ not in index.entries
    ]
    return found + _check_calls(journal)


def _check_calls(journal: Journal) -> list[Problem]:
    index, found = journal.index, []
    for entry in index.entries.values():
        if entry.about.took is not None:
            try:
                running.calls(journal, entry.about.id)
            except CorruptionError as error:
                found.append(_problem(journal, str(error.args[0]), entry.about.id))
    for branch in index.ledger.states:
        try:
            running.pending_calls(journal, branch)
            index.ledger.input_of(branch)
        except CorruptionError as error:
            found.append(
                Problem(
                    what=str(error.args[0]),
                    session_id=None if index.id is None else SessionId(index.id),
                    cost=f"branch {branch!r} cannot be run: what was called might be called again",
                    remedy=error.hint or "",
                )
            )
    return found


def _check_blob(folder: Folder, ref: bytes) -> str | None:
    try:
        folder.read_blob(ref)
    except CorruptionError as error:
        return str(error.args[0])
    return None


def _problem(journal: Journal, what: str, *checkpoints: str) -> Problem:
    session = journal.index.id
    return Problem(
        what=what,
        session_id=None if session is None else SessionId(session),
        checkpoints=tuple(map(CheckpointId, checkpoints)),
        cost="what the damaged lines held cannot be read",
        remedy="carry on from session.newest_intact()",
    )
