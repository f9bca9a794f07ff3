"""The journals a process has open, and one line about each of the others.

A journal is kept open with its index as long as it is among the last used. Of the rest only what a listing shows is
kept, and is good as long as the file's size, time and inode are what they were (and its time is not so young that a
write in the same tick could hide behind it). Whoever calls holds the backend's lock.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from backstay.backend import SessionRow
from backstay.backends.files.folder import Folder
from backstay.backends.files.index import Index
from backstay.backends.files.journal import Journal
from backstay.backends.files.leases import Leases
from backstay.backends.files.lines import RunState
from backstay.errors import CorruptionError

_OPEN_JOURNALS = 64
_KNOWN_PLACES = 10_000
_TICK_NS = 100_000_000
# What looks damaged may be a line that another process is writing this moment, page by page.
_SECOND_LOOKS_S = (0.001, 0.01, 0.05)


class Summary(msgspec.Struct, frozen=True, gc=False):
    """What a listing, the sizes and the sweeping of blobs need to know of a journal."""

    row: SessionRow | None
    logical_bytes: int
    stored_bytes: int
    largest: int
    refs: frozenset[bytes]
    refs_known: bool
    runs: dict[str, RunState]  # those that were entered and have not ended
    runs_known: bool
    seen: tuple[int, int, int, int]
    young: bool


class Shelf:
    """See the module's text."""

    def __init__(self, folder: Folder, leases: Leases) -> None:
        self._folder = folder
        self._leases = leases
        self._open: dict[str, Journal] = {}  # the one used last comes last
        self._summaries: dict[str, Summary] = {}
        self._cuts: dict[str, int] = {}
        self._roomy: set[str] = set()
        self._places: dict[str, Path] = {}

    def find(self, session: str, *, locked: bool = False) -> Journal | None:
        """A session's journal as it is now, or None. `locked`: the store's lock is held."""
        journal = self._at(self._place(session), generation=self._folder.generation if locked else -1)
        if journal is not None and journal.index.id != session:
            message = f"the journal of session {session!r} does not say whose it is: its first lines are damaged"
            raise CorruptionError(message, hint="its file can be read by eye; store.delete(id) removes it")
        return journal

    def find_damaged(self, session: str) -> Journal | None:
        """The same, whatever its first lines say."""
        return self._at(self._place(session))

    def _place(self, session: str) -> Path:
        path = self._places.get(session)
        if path is None:
            if len(self._places) >= _KNOWN_PLACES:
                self._places.clear()
            path = self._places[session] = self._folder.journal(session)
        return path

    def _at(self, path: Path, generation: int = -1) -> Journal | None:
        name = path.name
        journal = self._open.pop(name, None)
        if journal is not None:
            try:
                current = journal.refresh(generation)
            except BaseException:
                journal.close()
                raise
            if current:
                self._open[name] = journal
                return journal
            journal.close()
        journal = self._read(path)
        if journal is not None:
            self._open[name] = journal
            if len(self._open) > _OPEN_JOURNALS:
                self._let_go()
        return journal

    def _read(self, path: Path) -> Journal | None:
        journal = self._open_at(path)
        for wait_s in _SECOND_LOOKS_S:
            if journal is None or not journal.index.damage:
                break
            time.sleep(wait_s)
            journal.close()
            journal = self._open_at(path)
        return journal

    def _open_at(self, path: Path) -> Journal | None:
        witnesses = self._leases.witnesses(path)
        return Journal.open(self._folder.disk, path, limit=self._cuts.get(path.name), witnesses=witnesses)

    def _let_go(self) -> None:
        for name, journal in list(self._open.items()):
            if not journal.held:
                self.drop(journal.path)
                self._open.pop(name, None)
                return

    def drop(self, path: Path) -> None:
        """Forget a journal; it is read again when it is next asked for."""
        self._summaries.pop(path.name, None)
        journal = self._open.pop(path.name, None)
        if journal is not None:
            if journal.cut_at is not None:
                self._cuts[path.name] = journal.cut_at
            if journal.room_made:
                self._roomy.add(path.name)
            journal.close()

    def take_back(self, journal: Journal) -> None:
        """Before a write: what an earlier failed one left must go first. OSError if that still cannot be done."""
        cut = self._cuts.get(journal.path.name)
        if cut is not None:
            journal.cut(cut)
            del self._cuts[journal.path.name]

    def summaries(self) -> list[Summary]:
        """One for each journal, as it is now; a CorruptionError for one that does not say whose it is."""
        found = [self._summary(path) for path in self._folder.journals()]
        return [summary for summary in found if summary is not None]

    def _summary(self, path: Path) -> Summary | None:
        name = path.name
        kept = self._summaries.get(name)
        try:
            stat = self._folder.disk.stat(path)
        except FileNotFoundError:
            self._summaries.pop(name, None)
            return None
        seen = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
        if kept is not None and kept.seen == seen and not kept.young:
            return kept
        young = time.time_ns() - stat.st_mtime_ns < _TICK_NS
        was_open = name in self._open
        journal = self._at(path) if was_open else self._read(path)
        if journal is None:
            return None
        if journal.index.id is None and journal.index.lines == 0 and journal.index.torn:
            message = f"{path.name} is not a journal any more: nothing of it can be read"
            raise CorruptionError(message, hint="put it back from a copy, or remove the file")
        summary = _summarise(journal.index, seen, young=young)
        self._summaries[name] = summary
        if not was_open:
            journal.close()
        return summary

    def read_anew(self) -> list[tuple[Path, Journal]]:
        """Every journal, read from the disk again; the caller closes them."""
        found = [(path, self._read(path)) for path in self._folder.journals()]
        return [(path, journal) for path, journal in found if journal is not None]

    def tidy(self) -> None:
        """Give back the room behind the journals that this process has written to; with the store's lock held."""
        self._folder.announce()
        roomy = self._roomy | {name for name, journal in self._open.items() if journal.room_made}
        for path in self._folder.journals():
            if path.name in roomy and path.name not in self._cuts:
                journal = self._at(path)
                if journal is not None:
                    journal.tidy(sync=self._folder.durable)

    def close(self) -> None:
        """Let all files go."""
        for journal in self._open.values():
            journal.close()
        self._open, self._summaries = {}, {}


def _summarise(index: Index, seen: tuple[int, int, int, int], *, young: bool) -> Summary:
    try:
        row = index.session_row()
    except CorruptionError:
        row = None
    return Summary(
        row=row,
        logical_bytes=index.logical_bytes,
        stored_bytes=index.end,
        largest=max([entry.about.number for entry in index.entries.values()], default=index.born),
        refs=frozenset([ref for entry in index.entries.values() for ref in entry.refs]),
        refs_known=index.refs_known,
        runs={branch: state for branch, state in index.ledger.states.items() if state.entered},
        runs_known=not index.ledger.last_run or index.unknown_at <= index.settled_at,
        seen=seen,
        young=young,
    )
