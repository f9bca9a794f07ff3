"""The files backend: a folder to read with your eyes, one journal of JSON lines per session (see folder, lines).

One thread of one process writes at a time, whichever session it is: a lock in the process, then the store's lock file.
Each commit syncs its own journal. Reads take no lock file: they look whether the journal was replaced or has grown,
and verify each line they use. What other threads are still writing is not read; what another process has written and
not yet synced may be. After a fork the child may not use what it inherited.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from backstay.backend import (
    LOOK_S,
    BranchRow,
    CallRow,
    Chain,
    Commit,
    Deletion,
    Entered,
    Entry,
    Journaled,
    Kept,
    Lease,
    Moved,
    Names,
    Pending,
    Row,
    RunRow,
    SessionRow,
    Sizes,
)
from backstay.backends.files import anew, reads, running, upkeep, writes
from backstay.backends.files.disk import Disk, translated
from backstay.backends.files.folder import Folder
from backstay.backends.files.journal import Journal
from backstay.backends.files.leases import Leases
from backstay.backends.files.shelf import Shelf, Summary
from backstay.errors import AlreadyExistsError, ClosedError, ConflictError, CorruptionError, NotFoundError
from backstay.model import Problem

_NUMBERS_AT_ONCE = 1000


class FilesBackend:
    """See the module's text. `disk` is the seam for fault injection."""

    name = "files"

    def __init__(self, path: Path, *, durability: str = "full", disk: Disk | None = None) -> None:
        self.path = path
        self._folder = Folder(path, disk or Disk(), durable=durability == "full")
        self._leases = Leases(self._folder)
        self._shelf = Shelf(self._folder, self._leases)
        self._runs = running.Runs(self._folder, self._leases, self._applied)
        self._lock = threading.RLock()  # what is known of the journals
        self._writer = threading.RLock()  # taken before the other, never after it; see `_owning`
        self._owner: object = None
        self._held: Journal | None = None  # what is being written to, by whoever has `_writer`
        self._closed = False
        self._pid = os.getpid()

    # writes

    def commit(self, commit: Commit) -> Row:
        with self._writing(commit.session) as journal:
            return writes.commit(self._folder, self._runs, journal, commit, self._number, self._applied)

    def fork(self, session: str, *, id_: str, branch: str) -> None:
        self._name(session, lambda journal: self._give(journal, "fork", branch, id_))

    def delete_branch(self, session: str, *, branch: str) -> None:
        with self._changing(session) as journal:
            running.refuse_live(self._leases, session, branch, journal.index.ledger.states.get(branch))
            self._give_up(journal, "forget", branch)

    def tag(self, session: str, *, id_: str, name: str) -> None:
        self._name(session, lambda journal: self._give(journal, "tag", name, id_))

    def untag(self, session: str, *, name: str) -> None:
        self._name(session, lambda journal: self._give_up(journal, "untag", name))

    def _name(self, session: str, act: Callable[[Journal], None]) -> None:
        with self._changing(session) as journal:
            act(journal)

    def _give(self, journal: Journal, what: str, name: str, id_: str) -> None:
        writes.give_name(self._folder, journal, what, name, id_, self._applied)

    def _give_up(self, journal: Journal, what: str, name: str) -> None:
        writes.give_up_name(self._folder, journal, what, name, self._applied)

    def delete_checkpoints(self, deletion: Deletion) -> None:
        with self._changing(deletion.session) as journal:
            known = journal.index.refs_known
            touched = writes.delete_checkpoints(self._folder, self._runs, journal, deletion)
            with self._lock:
                self._shelf.drop(journal.path)
                upkeep.sweep(self._folder, self._shelf, touched if known else None)

    def delete_session(self, session: str, *, touched: int | None = None) -> None:
        with self._changing(session, damaged=True) as journal:
            index = journal.index
            if touched not in (None, index.touched()):
                message = f"session {session!r} was written to meanwhile"
                raise ConflictError(message, hint="look again")
            for branch, state in index.ledger.states.items():
                running.refuse_live(self._leases, session, branch, state)
            refs = frozenset([ref for entry in index.entries.values() for ref in entry.refs])
            with self._lock:
                self._leases.remove(session)
                self._folder.remove_journal(journal.path)
                self._shelf.drop(journal.path)
                upkeep.sweep(self._folder, self._shelf, refs if index.refs_known else None)

    def adopt(self, moved: Moved, history: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
        session = moved.line.id
        self._refuse_existing(session)
        with translated(f"bringing in session {session!r}"):
            # Without a lock, because the history may come from this very store. Nobody sees it until it is renamed.
            journal, blobs, needed = writes.adopt(self._folder, moved, history, self._many_numbers())
            try:
                with self._writing(session) as found:
                    if found is not None:
                        raise _exists(session)
                    self._folder.refuse_missing(needed, dict.fromkeys(blobs, b""))
                    self._folder.take_blobs(blobs)
                    anew.put_in_place(self._folder, journal, self._folder.journal(session))
            finally:
                self._folder.discard([journal, *blobs.values()])

    def _refuse_existing(self, session: str) -> None:
        with self._reading(session) as journal:
            if journal is not None:
                raise _exists(session)

    # runs

    def enter(self, entry: Entry) -> Entered:
        with self._writing(entry.session) as journal:
            return self._runs.enter(journal, entry, self._number)

    def renew(self, lease: Lease) -> None:
        with self._writing(lease.session) as journal:
            self._runs.renew(journal, lease)

    def journal(self, lease: Lease, call: CallRow, *, after: int, slot: int | None = None) -> int:
        with self._writing(lease.session) as journal:
            return self._runs.journal(journal, lease, call, after=after, slot=slot)

    def leave(self, lease: Lease, *, status: str | None, reason: str | None) -> None:
        with self._writing(lease.session) as journal:
            self._runs.leave(journal, lease, status=status, reason=reason)

    def settle(self, session: str, branch: str, *, before: Journaled, after: CallRow) -> None:
        with self._changing(session) as journal:
            self._runs.settle(journal, branch, before=before, after=after)

    def abandon(self, session: str, branch: str, *, reason: str) -> int:
        with self._changing(session) as journal:
            return self._runs.abandon(journal, branch, reason=reason)

    def pending(self, session: str, branch: str) -> Pending:
        with self._reading(session) as journal:
            return Pending(None, ()) if journal is None else running.pending(self._leases, journal, branch)

    def calls(self, session: str, id_: str) -> Sequence[Journaled]:
        with self._looking(session) as journal:
            return running.calls(journal, id_)

    def runs(self, session: str) -> Sequence[RunRow]:
        with self._reading(session) as journal:
            return [] if journal is None else running.runs(self._leases, journal)

    def entries(self, session: str) -> Sequence[Journaled]:
        with self._looking(session) as journal:
            return running.entries(journal)

    def crashed(self) -> Sequence[tuple[SessionRow, RunRow]]:
        found: list[tuple[SessionRow, RunRow]] = []
        for summary in self._summaries():
            if not summary.runs_known:
                raise _lost()
            row = self._row_of(summary) if summary.runs else None
            if row is not None and row.crashed:
                found += [(row, run) for run in self.runs(row.id) if run.entered and not run.live]
        return sorted(found, key=lambda each: each[0].touched, reverse=True)

    def wait(self, seconds: float) -> None:
        self._refuse_use()
        time.sleep(max(0.0, min(seconds, LOOK_S)))

    # reads

    def find_session(self, session: str) -> SessionRow | None:
        with self._reading(session) as journal:
            if journal is None:
                return None
            crashed = running.has_crashed(self._leases, session, journal.index.ledger.states.values())
            return msgspec.structs.replace(journal.index.session_row(), crashed=crashed)

    def sessions(
        self, *, before: int | None, limit: int, status: str | None, agent: str | None
    ) -> Sequence[SessionRow]:
        rows = [
            row
            for row in map(self._row_of, self._summaries())
            if (before is None or row.touched < before)
            and status in (None, row.totals.status)
            and agent in (None, row.totals.agent)
        ]
        rows.sort(key=lambda row: row.touched, reverse=True)
        return rows[:limit]

    def names(self, session: str) -> Names:
        with self._reading(session) as journal:
            return Names((), ()) if journal is None else journal.index.names()

    def find_branch(self, session: str, branch: str) -> BranchRow | None:
        with self._reading(session) as journal:
            found = None if journal is None else journal.index.find_branch(branch)
            if journal is not None and found is not None:
                journal.index.entry(found.head_id)
            return found

    def find_row(self, session: str, id_: str) -> Row | None:
        with self._reading(session) as journal:
            return None if journal is None else reads.find_row(journal, id_)

    def find_ids(self, session: str, prefix: str, *, limit: int) -> Sequence[str]:
        with self._reading(session) as journal:
            return [] if journal is None else reads.find_ids(journal, prefix, limit)

    def line(self, session: str, id_: str, *, limit: int) -> Sequence[Row]:
        with self._looking(session) as journal:
            return reads.line(journal, id_, limit)

    def chain(self, session: str, id_: str, *, salvage: bool = False) -> Chain:
        with self._looking(session) as journal:
            return reads.chain(journal, id_, salvage=salvage)

    def children(self, session: str, id_: str) -> Sequence[str]:
        with self._looking(session) as journal:
            journal.index.entry(id_)
            return list(journal.index.children(id_))

    def ids(self, session: str) -> Sequence[str]:
        with self._reading(session) as journal:
            return [] if journal is None else journal.index.ids()

    def history(self, session: str, *, after: int, limit: int) -> Sequence[Kept]:
        with self._looking(session) as journal:
            return reads.history(journal, after, limit)

    def blobs(self, digests: Collection[bytes], *, salvage: bool = False) -> Mapping[bytes, bytes]:
        self._refuse_use()
        found: dict[bytes, bytes] = {}
        with translated("reading blobs"):
            for digest in digests:
                try:
                    found[digest] = self._folder.read_blob(digest)
                except CorruptionError:
                    if not salvage:
                        raise
        return found

    # upkeep

    def sizes(self) -> Sizes:
        summaries = self._summaries()
        rows = [self._row_of(summary) for summary in summaries]
        return Sizes(
            sessions=len(rows),
            checkpoints=sum([row.checkpoints for row in rows]),
            logical_bytes=sum([summary.logical_bytes for summary in summaries]),
            stored_bytes=sum([summary.stored_bytes for summary in summaries]) + upkeep.blob_bytes(self._folder),
        )

    def check(self) -> Iterator[Problem]:
        self._refuse_use()
        with translated("checking the store"), self._lock:
            problems = upkeep.check(self._folder, self._shelf)
        yield from problems

    def compact(self) -> None:
        # A journal is written anew whenever something in it is deleted; what is left are blobs of writes cut short.
        with self._exclusive(), self._lock:
            upkeep.sweep(self._folder, self._shelf, None)

    def repair(self) -> Sequence[str]:
        with self._exclusive(), self._lock:
            return upkeep.repair(self._folder, self._shelf)

    def close(self) -> None:
        if self._pid != os.getpid() or self._closed:
            return
        with self._writer, self._lock:
            # A tidy end is a courtesy: what is not tidied is only longer than it need be.
            with contextlib.suppress(OSError, CorruptionError), self._folder.locked():
                self._shelf.tidy()
            self._closed = True
            self._shelf.close()
            self._folder.close()

    # how verbs get at a journal

    @contextlib.contextmanager
    def _reading(self, session: str) -> Iterator[Journal | None]:
        self._refuse_use()
        with self._lock, translated(f"reading session {session!r}"):
            self._refuse_use()
            yield self._shelf.find(session)

    @contextlib.contextmanager
    def _looking(self, session: str) -> Iterator[Journal]:
        with self._reading(session) as journal:
            if journal is None:
                raise _no_session(session)
            yield journal

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        self._refuse_use()
        with translated("writing to the store"), self._owning():
            self._refuse_use()
            yield

    @contextlib.contextmanager
    def _writing(self, session: str, *, damaged: bool = False) -> Iterator[Journal | None]:
        """The right to write, and the journal to write to."""
        self._refuse_use()
        with translated(f"writing to session {session!r}"), self._owning():
            self._refuse_use()
            yield self._hold(session, damaged=damaged)

    @contextlib.contextmanager
    def _owning(self) -> Iterator[None]:
        """Nobody else writes meanwhile, in no thread and no process.

        An interrupt may strike where this was entered and its caller does not know it yet. Then what is here is held by
        the traceback of that interrupt until somebody has dealt with it, and whoever does may write (a run gives its
        lease back). So the same thread may come in again and is the owner from then on; what the forgotten one
        gives back when it goes is its count alone.
        """
        with self._writer:
            mine = self._owner = object()
            try:
                self._folder.lock()
                yield
            finally:
                if self._owner is mine:
                    self._let_go()
                    self._folder.unlock()

    def _hold(self, session: str, *, damaged: bool) -> Journal | None:
        with self._lock:
            journal = self._shelf.find_damaged(session) if damaged else self._shelf.find(session, locked=True)
            if journal is None:
                return None
            self._shelf.take_back(journal)
            if not journal.settled:
                # Whoever made the file may have been killed before its name was on the disk.
                self._folder.sync_sessions()
                journal.settled = True
            self._held = journal
            journal.held = True
        return journal

    def _let_go(self) -> None:
        with self._lock:
            journal, self._held = self._held, None
            if journal is not None:
                if journal.writing:  # begun and not brought to its end: to be read again
                    self._shelf.drop(journal.path)
                journal.held = False

    @contextlib.contextmanager
    def _changing(self, session: str, *, damaged: bool = False) -> Iterator[Journal]:
        with self._writing(session, damaged=damaged) as journal:
            if journal is None:
                raise _no_session(session)
            yield journal

    def _applied(self, tell: Callable[[], None], /) -> None:
        with self._lock:
            tell()

    def _number(self) -> int:
        return self._folder.numbers(1, self._largest)

    def _many_numbers(self) -> Iterator[int]:
        while True:
            with self._exclusive():
                first = self._folder.numbers(_NUMBERS_AT_ONCE, self._largest)
            yield from range(first, first + _NUMBERS_AT_ONCE)

    def _largest(self) -> int:
        with self._lock:
            return max([summary.largest for summary in self._shelf.summaries()], default=0)

    def _summaries(self) -> list[Summary]:
        self._refuse_use()
        with self._lock, translated("listing the sessions"):
            self._refuse_use()
            return self._shelf.summaries()

    def _row_of(self, summary: Summary) -> SessionRow:
        if summary.row is None:
            raise _lost()
        crashed = running.has_crashed(self._leases, summary.row.id, summary.runs.values())
        return msgspec.structs.replace(summary.row, crashed=crashed) if crashed else summary.row

    def _refuse_use(self) -> None:
        if self._pid != os.getpid():  # before any lock: in a forked child nobody may be left to release it
            message = "this store was opened by the parent process"
            raise ClosedError(message, hint="open it again in this process")
        if self._closed:
            message = "the store is closed"
            raise ClosedError(message, hint="open it again")


def _lost() -> CorruptionError:
    message = "a session cannot be listed: lines of its journal are lost"
    return CorruptionError(message, hint="run verify to see which one, and what is intact")


def _no_session(session: str) -> NotFoundError:
    message = f"there is no session {session!r}"
    return NotFoundError(message, hint="store.sessions() lists those there are")


def _exists(session: str) -> AlreadyExistsError:
    message = f"there is already a session {session!r}"
    return AlreadyExistsError(message, hint="bring it in under another name, or delete the one that is here")
