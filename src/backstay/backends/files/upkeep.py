"""Upkeep: what is wrong with the files themselves, what they take, which blobs nobody needs, and mending."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import msgspec

from backstay.backends.files.blobs import BlobFolder
from backstay.backends.files.folder import JOURNAL, NOTES, SESSIONS, Folder, is_name
from backstay.backends.files.journal import JournalFile, new_born
from backstay.backends.files.rewrite import is_wasteful, rewrite
from backstay.errors import CorruptionError
from backstay.hints import Hint
from backstay.model import Problem, SessionId
from backstay.port import Kind, LaneRow, TagRow

_CARRY_ON = Hint(
    "go on from session.newest_intact(); store.verify(repair=True) repairs the journal",
    "`backstay restore SESSION REF` goes back to an intact checkpoint; `backstay verify --repair` repairs the journal",
)


def stored_bytes(folder: Folder) -> int:
    """What journals and notes take."""
    total = 0
    for place in (SESSIONS, NOTES):
        for name in folder.disk.names(folder.path / place):
            if is_name(name.removesuffix(JOURNAL)):
                with contextlib.suppress(FileNotFoundError):
                    total += folder.disk.stat(folder.path / place / name).st_size
    return total


# looking


def check(folder: Folder) -> Iterator[Problem]:
    """Every line of every journal, read again; one journal at a time."""
    if folder.count() is None:
        remedy = "the next write makes it again; no number is given twice"
        yield Problem(what="the store's counter is damaged", remedy=remedy)
    for name in folder.journals():
        try:
            journal = JournalFile.open(folder, name, locked=False)
        except CorruptionError as error:
            yield Problem(
                what=f"{name}{JOURNAL}: {error.args[0]}", cost="the session cannot be read", remedy=error.hint
            )
            continue
        if journal is not None:
            try:
                yield from _check(journal)
            finally:
                journal.close()


def _check(journal: JournalFile) -> Iterator[Problem]:
    rows = journal.rows
    found = list(rows.damage)
    if journal.damaged_header and not journal.is_empty:
        found.append("the first line of its journal is damaged")
    session = SessionId(str(rows.session_put.key)) if rows.session_put is not None else None
    for what in found:
        where = "" if session is not None else f"{journal.name}{JOURNAL}: "
        yield Problem(
            what=where + what,
            session_id=session,
            cost="what was damaged cannot be read; the rest of this session and all others can",
            remedy=_CARRY_ON,
        )


# mending, with the store's lock held


def tend(folder: Folder, blobs: BlobFolder, name: str, announce: Callable[[], None], *, repair: bool) -> list[str]:
    """Give back what a journal does not need; with `repair`, settle what damage has left unknown."""
    try:
        journal = JournalFile.open(folder, name, locked=True)
    except CorruptionError:
        if not repair or folder.disk.is_there(folder.journal(name)):
            return []
        announce()
        folder.drop_note(name)
        return [f"{name}: the note of a session whose journal is gone was removed"]
    if journal is None:
        return []
    rows = journal.rows
    damaged = bool(rows.damage) or journal.damaged_header
    try:
        if not journal.is_empty and damaged and (not repair or rows.session_put is None):
            return []
        if journal.is_empty:
            announce()
            folder.remove(name)
        elif damaged or rows.forgotten or is_wasteful(journal):
            announce()
            return _rewrite(folder, blobs, journal, damaged=damaged)
        elif journal.has_room:
            announce()
            journal.trim()
    finally:
        journal.close()
    return []


def _rewrite(folder: Folder, blobs: BlobFolder, journal: JournalFile, *, damaged: bool) -> list[str]:
    done = _mend(journal) if damaged else []
    if not journal.born:  # it is no longer known by what its blobs know it
        journal.born = new_born()
        blobs.use([digest for digest in journal.rows.uses if blobs.has(digest)], journal.born)
    rewrite(folder, journal)
    anew = JournalFile.open(folder, journal.name, locked=True)
    if anew is not None:
        with contextlib.suppress(OSError, CorruptionError):
            anew.write_note()
        anew.close()
    return done


def _mend(journal: JournalFile) -> list[str]:
    """Settle names and counts on what can be read, so that the session can be used again."""
    rows = journal.rows
    lost = [at for at in rows.places[Kind.CHECKPOINT] if rows.put_at(Kind.CHECKPOINT, at) is None]
    for at in lost:
        rows.places[Kind.CHECKPOINT].discard(at)
    tags = [row for row in rows.names.values() if isinstance(row, TagRow)]
    gone = [tag.name for tag in tags if tag.sequence not in rows.checkpoints]
    for name in gone:
        del rows.names[name]
    stale = []
    for name in rows.unsure_names():
        lane = rows.names.get(name)
        if isinstance(lane, LaneRow):
            # It may have been entered and moved in the lost lines: whoever did so must not write any more.
            rows.names[name] = msgspec.structs.replace(lane, token=lane.token + journal.lines, claim=None)
            stale.append(name)
    lanes = [row for row in rows.names.values() if isinstance(row, LaneRow)]
    rows.session = msgspec.structs.replace(
        rows.session,
        sequence=max(rows.session.sequence, *lost, 0) if lost else rows.session.sequence,
        checkpoints=len(rows.places[Kind.CHECKPOINT]),
        lanes=len(lanes),
        tags=len(rows.names) - len(lanes),
    )
    session = f"session {rows.session.id!r}: "
    done = [f"{session}its journal was written anew without the lines that are lost"]
    done += [f"{session}checkpoint #{at} is lost" for at in lost]
    done += [f"{session}branch {name!r} is where it was before the lost lines" for name in stale]
    return done + [f"{session}tag {name!r} is gone with its checkpoint" for name in gone]


def orphans(folder: Folder, blobs: BlobFolder) -> list[bytes]:
    """Blobs that no journal needed when it was looked at; without the lock, so that others can write meanwhile."""
    there, used = list(blobs.every()), set[bytes]()
    for name in folder.journals():
        with contextlib.suppress(CorruptionError):
            journal = JournalFile.open(folder, name, locked=False)
            if journal is not None:
                journal.close()
                used.update(journal.rows.uses)
    return [digest for digest in there if digest not in used]
