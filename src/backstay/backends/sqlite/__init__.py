"""The SQLite backend: one file, many threads, many processes on one machine.

Writes go through the desk (one connection, shared transactions); each read borrows a connection of its own and sees
one moment. After a fork the child may not use what it inherited: its copies are let go without touching the parent's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

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
from backstay.backends.sqlite import deleting, listing, moving, reads, running, upkeep, writes
from backstay.backends.sqlite.desk import Desk
from backstay.backends.sqlite.schema import connect, prepare, translated
from backstay.errors import ClosedError
from backstay.model import Problem

_IDLE_READERS = 8
_FORK_PATIENCE_S = 5.0

T = TypeVar("T")


class _Seat:
    """A reader's place inside SQLite, and the connection it has there once there is one."""

    __slots__ = ("connection",)

    def __init__(self, connection: apsw.Connection | None) -> None:
        self.connection = connection


class SqliteBackend:
    """See the module's text. `commits` and `syncs` count what was written and how often the disk was waited for."""

    name = "sqlite"

    def __init__(self, path: Path, *, durability: str = "full") -> None:
        self.path = path
        self._durability = durability
        writer = prepare(path, durability=durability)
        try:
            # One reader from the start: the first load need not wait for it.
            self._idle = [self._warm_reader()]
            self._desk = Desk(writer, path, durability=durability)
        except BaseException:
            writer.close()
            raise
        self._mutex = threading.Lock()
        self._busy: set[_Seat] = set()
        self._marks = moving.Marks()
        self._closed = False
        self._pid = os.getpid()
        _open_backends.add(self)

    def _warm_reader(self) -> apsw.Connection:
        with translated(f"opening {self.path}"):
            reader = connect(self.path, durability=self._durability)
            try:
                reads.warm_up(reader)
            except BaseException:
                reader.close()
                raise
        return reader

    @property
    def commits(self) -> int:
        """Jobs written by this process."""
        return self._desk.jobs

    @property
    def syncs(self) -> int:
        """Transactions that they shared."""
        return self._desk.syncs

    # writes

    def commit(self, commit: Commit) -> Row:
        return self._write(lambda connection: writes.commit(connection, commit))

    def fork(self, session: str, *, id_: str, branch: str) -> None:
        self._write(lambda connection: writes.fork(connection, session, id_, branch))

    def delete_branch(self, session: str, *, branch: str) -> None:
        self._write(lambda connection: writes.delete_branch(connection, session, branch))

    def tag(self, session: str, *, id_: str, name: str) -> None:
        self._write(lambda connection: writes.tag(connection, session, id_, name))

    def untag(self, session: str, *, name: str) -> None:
        self._write(lambda connection: writes.untag(connection, session, name))

    def delete_checkpoints(self, deletion: Deletion) -> None:
        self._write(lambda connection: deleting.delete_checkpoints(connection, deletion))

    def delete_session(self, session: str, *, touched: int | None = None) -> None:
        self._write(lambda connection: deleting.delete_session(connection, session, touched))
        self.compact()
        if touched is None:  # somebody wants it gone, rather than the space it takes
            self._desk.run(upkeep.scrub, alone=True)
            self._desk.run(upkeep.empty_log, alone=True)

    def adopt(self, moved: Moved, history: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
        self._write(lambda connection: moving.adopt(connection, moved, history))

    # runs

    def enter(self, entry: Entry) -> Entered:
        return self._write(lambda connection: running.enter(connection, entry))

    def renew(self, lease: Lease) -> None:
        self._write(lambda connection: running.renew(connection, lease))

    def journal(self, lease: Lease, call: CallRow, *, after: int, slot: int | None = None) -> int:
        return self._write(lambda connection: running.journal(connection, lease, call, after, slot))

    def leave(self, lease: Lease, *, status: str | None, reason: str | None) -> None:
        self._write(lambda connection: running.leave(connection, lease, status, reason))

    def settle(self, session: str, branch: str, *, before: Journaled, after: CallRow) -> None:
        self._write(lambda connection: running.settle(connection, session, branch, before, after))

    def abandon(self, session: str, branch: str, *, reason: str) -> int:
        return self._write(lambda connection: running.abandon(connection, session, branch, reason))

    def pending(self, session: str, branch: str) -> Pending:
        return self._read(lambda connection: running.pending(connection, session, branch))

    def calls(self, session: str, id_: str) -> Sequence[Journaled]:
        return self._read(lambda connection: running.calls(connection, session, id_))

    def runs(self, session: str) -> Sequence[RunRow]:
        return self._read(lambda connection: running.runs(connection, session))

    def entries(self, session: str) -> Sequence[Journaled]:
        return self._read(lambda connection: running.entries(connection, session))

    def crashed(self) -> Sequence[tuple[SessionRow, RunRow]]:
        return self._read(running.crashed)

    def wait(self, seconds: float) -> None:
        self._refuse_child()
        time.sleep(max(0.0, min(seconds, LOOK_S)))

    # reads

    def find_session(self, session: str) -> SessionRow | None:
        return self._read(lambda connection: listing.find_session(connection, session))

    def sessions(
        self, *, before: int | None, limit: int, status: str | None, agent: str | None
    ) -> Sequence[SessionRow]:
        return self._read(lambda connection: listing.sessions(connection, before, limit, status, agent))

    def names(self, session: str) -> Names:
        return self._read(lambda connection: reads.names(connection, session))

    def find_branch(self, session: str, branch: str) -> BranchRow | None:
        return self._read(lambda connection: reads.find_branch(connection, session, branch))

    def find_row(self, session: str, id_: str) -> Row | None:
        return self._read(lambda connection: reads.find_row(connection, session, id_))

    def find_ids(self, session: str, prefix: str, *, limit: int) -> Sequence[str]:
        return self._read(lambda connection: reads.find_ids(connection, session, prefix, limit))

    def line(self, session: str, id_: str, *, limit: int) -> Sequence[Row]:
        return self._read(lambda connection: reads.line(connection, session, id_, limit))

    def chain(self, session: str, id_: str, *, salvage: bool = False) -> Chain:
        return self._read(lambda connection: reads.chain(connection, session, id_, salvage=salvage))

    def children(self, session: str, id_: str) -> Sequence[str]:
        return self._read(lambda connection: reads.children(connection, session, id_))

    def ids(self, session: str) -> Sequence[str]:
        return self._read(lambda connection: reads.ids(connection, session))

    def history(self, session: str, *, after: int, limit: int) -> Sequence[Kept]:
        return self._read(lambda connection: moving.history(connection, self._marks, session, after, limit))

    def blobs(self, digests: Collection[bytes], *, salvage: bool = False) -> Mapping[bytes, bytes]:
        return self._read(lambda connection: reads.blobs(connection, digests, salvage=salvage))

    # upkeep

    def sizes(self) -> Sizes:
        return self._read(listing.sizes)

    def check(self) -> Iterator[Problem]:
        yield from self._read(upkeep.check)

    def compact(self) -> None:
        self._refuse_child()
        while self._desk.run(upkeep.vacuum_some):
            pass
        self._desk.run(upkeep.empty_log, alone=True)

    def repair(self) -> Sequence[str]:
        return self._write(upkeep.repair)

    def close(self) -> None:
        if self._pid != os.getpid() or self._closed:
            return
        self._desk.close()
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._desk.disconnect()

    def _write(self, job: Callable[[apsw.Connection], T]) -> T:
        self._refuse_child()
        return self._desk.run(job)

    def _read(self, job: Callable[[apsw.Connection], T]) -> T:
        with translated("reading the store"), self._reader() as connection:
            connection.execute("BEGIN")
            try:
                return job(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _reader(self) -> Iterator[apsw.Connection]:
        self._refuse_child()
        with self._mutex:
            if self._closed:
                message = "the store is closed"
                raise ClosedError(message, hint="open it again")
            seat = _Seat(self._idle.pop() if self._idle else None)
            self._busy.add(seat)
        try:
            if seat.connection is None:
                seat.connection = connect(self.path, durability=self._durability)
            yield seat.connection
        except BaseException:
            # A statement that was cut off halfway keeps its view of the store for as long as anybody keeps the error,
            # and who came next would be shown that old view.
            if seat.connection is not None:
                seat.connection.close(force=True)
                seat.connection = None
            raise
        finally:
            if seat.connection is not None and not self._keep(seat.connection):
                seat.connection.close()
            self._busy.discard(seat)

    def _keep(self, connection: apsw.Connection) -> bool:
        if connection.in_transaction:  # interrupted between its first line and its last: nobody must inherit that
            return False
        with self._mutex:
            if self._closed or len(self._idle) >= _IDLE_READERS:
                return False
            self._idle.append(connection)
            return True

    def _refuse_child(self) -> None:
        if self._pid != os.getpid():
            message = "this store was opened by the parent process"
            raise ClosedError(message, hint="open it again in this process")

    # forking

    def _before_fork(self) -> bool:
        # Nobody may be inside SQLite while the process forks: a lock of its own that a thread holds there would stay
        # locked in the child for ever. So the lead and the readers' mutex are kept until the fork is done.
        deadline = time.monotonic() + _FORK_PATIENCE_S
        if not self._desk.hold(_FORK_PATIENCE_S):
            return False
        while time.monotonic() < deadline:
            self._mutex.acquire()
            if not self._busy:
                return True
            self._mutex.release()
            time.sleep(0.0005)
        self._desk.release()
        return False

    def _after_fork(self) -> None:
        self._mutex.release()
        self._desk.release()

    def _in_child(self, *, held: bool) -> None:
        # Idle connections are closed, so that a store opened anew in this process starts from true lock counts (POSIX
        # locks are not inherited, SQLite's memory of them is). The parent's lock keeps this close from tidying the WAL
        # away. What another thread had in hand at the fork is in an unknown state and is never touched again.
        inherited = [*self._idle, *([self._desk.connection] if held else [])]
        leaked = [*(seat.connection for seat in self._busy), *([] if held else [self._desk.connection])]
        for connection in leaked:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        for connection in inherited:
            with contextlib.suppress(apsw.Error):
                connection.close()


_open_backends: weakref.WeakSet[SqliteBackend] = weakref.WeakSet()
_held: list[tuple[SqliteBackend, bool]] = []


def _hold_all() -> None:
    _held[:] = [(backend, backend._before_fork()) for backend in list(_open_backends) if not backend._closed]  # noqa: SLF001


def _release_all() -> None:
    for backend, held in _held:
        if held:
            backend._after_fork()  # noqa: SLF001
    _held.clear()


def _abandon_all() -> None:
    for backend, held in _held:
        backend._in_child(held=held)  # noqa: SLF001
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_abandon_all)
