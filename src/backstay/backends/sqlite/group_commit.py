"""Group commit: all writes of one store on one connection, one transaction at a time, shared.

The first thread to come leads: it runs every job that is waiting in one transaction with one sync, each job in a
savepoint of its own so that its failure is its own, then wakes the others and passes the lead on. A lone thread leads
at once and is handed nothing. A failed COMMIT fails all jobs in it; a leader that is interrupted leaves the unfinished
jobs to the next. The WAL is tended here too: kept at one size and reused, because a growing file doubles a sync.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw

from backstay.backends.sqlite.connections import DATA_VERSION, Connection, is_damage, translate, translated
from backstay.backends.sqlite.file_system import open_plain
from backstay.backends.sqlite.wal import NOTE_MAGIC, beside, grow, read_at, write_at
from backstay.errors import BackstayError, ClosedError

_CHECKPOINT_PAGES = 230
_RESTART_PAGES = 4 * _CHECKPOINT_PAGES
_GATHER_S = 0.002
_CROWD = 1.5  # threads that write, on average: below that there is nobody to wait for
_KEEP_READING = "SELECT key FROM meta"  # has two rows at least, so it stays unfinished after the first

T = TypeVar("T")


class _Ticket(Generic[T]):
    """One job in the queue and what became of it."""

    __slots__ = ("alone", "awake", "error", "gone", "job", "resolved", "value")

    def __init__(self, job: Callable[[Connection], T], *, alone: bool) -> None:
        self.job = job
        self.alone = alone
        self.awake: threading.Lock | None = None  # what a thread that does not lead waits for
        self.gone = False  # its thread was interrupted and waits no longer
        self.resolved = False
        self.value: Any = None
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error, self.resolved = error, True

    def wake(self) -> None:
        # May come twice, after an interrupt: whoever is woken looks whether it was meant, and otherwise waits on.
        if self.awake is not None and self.awake.locked():
            self.awake.release()

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


class GroupCommit:
    """Runs jobs on the writing connection; see the module's text.

    `moved` is called at the begin of a transaction, on the leader's thread, if another connection has written since
    the last one. `jobs` and `syncs` count what was written and how often the disk was waited for.
    """

    def __init__(
        self, connection: Connection, path: Path, *, moved: Callable[[Connection], None], durability: str
    ) -> None:
        self.connection = connection
        self._moved = moved
        self.jobs = 0
        self.syncs = 0
        self._path = path
        # Where a commit is not synced there is nothing that a note could promise.
        self._tail = Tail(path) if durability == "full" else None
        self._wal_pages = 0
        self._frames = 0  # in the log after the last COMMIT, 0 if that wrote nothing
        self._wal_grown = self._logless = durability not in ("full", "relaxed")
        self._mutex = threading.Lock()
        self._queue: list[_Ticket[Any]] = []
        self._batch: list[_Ticket[Any]] = []  # what the leader has taken from the queue
        self._leader: _Ticket[Any] | None = None
        self._holder: _Ticket[Any] = _Ticket(lambda _: None, alone=True)  # leads while the process forks
        self._crowd = 1.0
        self._upkeep_error: BackstayError | None = None
        self._closed = False
        connection.set_wal_hook(self._note_wal)

    def run(self, job: Callable[[Connection], T], *, alone: bool = False) -> T:
        """Run a job inside a transaction that is on disk when this returns; `alone`: outside of any transaction."""
        ticket: _Ticket[T] = _Ticket(job, alone=alone)
        try:
            self._take_part(ticket)
        finally:
            # An interrupt can strike at any instruction, in here too. Others are waiting, so leaving is tried again:
            # each of its steps can be repeated.
            try:
                self._leave(ticket)
            except BaseException:
                try:
                    self._leave(ticket)
                except BaseException:  # three strikes within microseconds are taken for impossible
                    self._leave(ticket)
                    raise
                raise
        return ticket.outcome()

    def _take_part(self, ticket: _Ticket[Any]) -> None:
        with self._mutex:
            if self._closed:
                message = "the store is closed"
                raise ClosedError(message, hint="open it again")
            if self._leader is not None:
                ticket.awake = threading.Lock()
                ticket.awake.acquire()
            self._queue.append(ticket)
            if self._leader is None:
                self._leader = ticket
        if ticket.awake is not None:
            self._wait(ticket, ticket.awake)
        if not ticket.resolved:
            self._lead()

    def _wait(self, ticket: _Ticket[Any], awake: threading.Lock) -> None:
        while True:
            awake.acquire()
            if ticket.resolved:
                return
            with self._mutex:
                if self._leader is ticket:
                    return

    def close(self) -> None:
        """Refuse everything further, and wait for what is under way."""
        with self._mutex:
            self._closed = True
        while not self.hold(1.0):
            pass
        self.release()

    def disconnect(self) -> None:
        """The last connection out moves the log into the store and removes it; its note goes with it."""
        with translated("closing the store"):
            self.connection.close()
        if self._tail is not None:
            self._tail.close()

    def hold(self, seconds: float) -> bool:
        """Take the lead without a job, so that nothing is half done while the process forks."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._mutex:
                if self._leader is None:
                    self._leader = self._holder
                    return True
            time.sleep(0.0005)
        return False

    def release(self) -> None:
        """Give back what `hold` took."""
        self._leave(self._holder)

    def _lead(self) -> None:
        self._gather()
        with self._mutex:
            self._batch, self._queue = self._queue, []
        batch = self._batch
        self._crowd = (self._crowd + len(batch)) / 2
        together = [ticket for ticket in batch if not ticket.alone]
        if together and not self._transact(together):
            for ticket in together:
                self._transact([ticket])
        for ticket in batch:
            if ticket.alone:
                self._run_alone(ticket)
            ticket.wake()
        if self._wal_pages >= _CHECKPOINT_PAGES:
            self._tend_wal()

    def _gather(self) -> None:
        # A crowd was here a moment ago and is about to come back: a short wait turns many syncs into one.
        if self._crowd < _CROWD:
            return
        deadline = time.perf_counter() + _GATHER_S
        while len(self._queue) < 0.8 * self._crowd and time.perf_counter() < deadline:
            time.sleep(0.00005)

    def _leave(self, ticket: _Ticket[Any]) -> None:
        """Step back, done or interrupted; the lead, if it is here, goes on to the next."""
        if ticket.resolved and self._leader is not ticket:
            return
        with self._mutex:
            ticket.gone = ticket is not self._holder
            if self._leader is not ticket:
                self._queue = [waiting for waiting in self._queue if waiting is not ticket]
                return
            # What an interrupted leader has not finished goes back to the front of the queue.
            for other in self._batch:
                if other.resolved and other is not ticket:
                    other.wake()
            taken = [other for other in self._batch if not other.resolved and other not in self._queue]
            self._queue = [other for other in (*taken, *self._queue) if not other.gone]
            self._batch = []
            heir = self._queue[0] if self._queue else None
            if heir is not None:
                heir.wake()  # it looks whether it leads only when it gets the mutex
            self._leader = heir

    def _transact(self, batch: list[_Ticket[Any]]) -> bool:
        """All jobs in one transaction. Each ticket is resolved, or, if this thread was interrupted, none is.

        False, and none is, if SQLite found fault with the rows of one of them: it may have taken back more than its
        savepoint, so each is to be tried for itself.
        """
        connection, committing = self.connection, False
        reading: apsw.Cursor | None = None
        try:
            if self._upkeep_error is not None:
                error, self._upkeep_error = self._upkeep_error, None
                raise error
            connection.execute("BEGIN IMMEDIATE")
            # Left open beyond the COMMIT: as long as somebody reads, nobody begins the log anew, and the note is true.
            reading = connection.execute(_KEEP_READING)
            next(reading, None)
            if connection.execute(DATA_VERSION).fetchall() != connection.version:
                self._moved(connection)
            if not self._wal_grown:
                self._wal_grown = True
                grow(self._path)
            done = self._run_all(batch)
            # From here on until it is over nobody can tell what a failure leaves on the disk.
            committing, self._frames = True, 0
            connection.execute("COMMIT")
            if self._tail is not None and self._frames:
                self._tail.keep(self._frames)
            self._resolve(done)
        except Exception as error:  # noqa: BLE001 - handed to those whose jobs it ended, not to whoever leads
            self._rollback()
            if len(batch) > 1 and not committing and _is_its_own(error):
                self._forget_outcomes(batch)
                return False
            reason: Exception = error
            if isinstance(error, apsw.Error):
                reason = translate(error, "writing to the store", committing=committing)
            reason.__cause__ = error if reason is not error else error.__cause__
            for ticket in batch:
                if not ticket.resolved:
                    ticket.fail(reason)
            return True
        except BaseException:
            # An interrupt. If the COMMIT had already gone through, what was done is done.
            if committing and not connection.in_transaction:
                self._resolve(done)
            else:
                self._rollback()
                self._forget_outcomes(batch)
            raise
        finally:
            if reading is not None:
                reading.close()
        self.syncs += bool(self._frames)
        self.jobs += len(done)
        return True

    def _forget_outcomes(self, batch: list[_Ticket[Any]]) -> None:
        for ticket in batch:
            ticket.resolved, ticket.error = False, None

    def _resolve(self, done: list[tuple[_Ticket[Any], Any]]) -> None:
        for ticket, value in done:
            ticket.value, ticket.resolved = value, True

    def _run_all(self, batch: list[_Ticket[Any]]) -> list[tuple[_Ticket[Any], Any]]:
        connection, done = self.connection, []
        shared = len(batch) > 1
        for ticket in batch:
            if ticket.gone:  # better not at all than behind the back of whoever was interrupted
                continue
            if shared:
                connection.execute("SAVEPOINT job")
            try:
                done.append((ticket, ticket.job(connection)))
            except Exception as error:
                if not shared or isinstance(error, apsw.Error):
                    raise
                connection.execute("ROLLBACK TO job")
                connection.forget()
                ticket.fail(error)
            if shared:
                connection.execute("RELEASE job")
        return done

    def _rollback(self) -> None:
        self.connection.forget()
        if self.connection.in_transaction:
            try:
                self.connection.execute("ROLLBACK")
            except apsw.Error:
                if self.connection.in_transaction:
                    raise

    def _run_alone(self, ticket: _Ticket[Any]) -> None:
        self._wal_grown = self._logless  # it may cut the log
        try:
            ticket.value = ticket.job(self.connection)
            ticket.resolved = True
        except apsw.Error as error:
            reason = translate(error, "tending the store")
            reason.__cause__ = error
            ticket.fail(reason)
        except Exception as error:  # noqa: BLE001 - for whoever asked, not for whoever leads
            ticket.fail(error)

    def _note_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = self._frames = pages
        return apsw.SQLITE_OK

    def _tend_wal(self) -> None:
        # PASSIVE waits for nobody. Once all of the WAL is in the store, the next writer starts it again from the front,
        # over blocks that are there. Readers that never leave can prevent that: at four times the size, RESTART waits.
        restart = self._wal_pages >= _RESTART_PAGES
        mode = apsw.SQLITE_CHECKPOINT_RESTART if restart else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            self.connection.wal_checkpoint(mode=mode)
            self._wal_pages = 0
        except apsw.BusyError:
            self._wal_pages = 0  # somebody else is at it
        except apsw.Error as error:
            # What was committed is safe in the WAL; the next write reports that the disk is failing.
            self._upkeep_error = translate(error, "moving the log into the store")
            self._upkeep_error.__cause__ = error


class Tail:
    """The note that a writer keeps about its log: see wal."""

    def __init__(self, path: Path) -> None:
        self._log_path, self._note_path = beside(path, "-wal"), beside(path, "-tail")
        self._log = self._note = -1

    def keep(self, frames: int) -> None:
        """Note what is committed. Call it while a read transaction keeps others from beginning the log anew."""
        try:
            if self._log < 0:
                self._log = open_plain(self._log_path, os.O_RDONLY)
            if self._note < 0:
                self._note = open_plain(self._note_path, os.O_CREAT | os.O_RDWR)
            body = NOTE_MAGIC + read_at(self._log, 8, 16) + frames.to_bytes(4, "big")
            write_at(self._note, body + zlib.crc32(body).to_bytes(4, "big"), 0)
        except OSError:
            pass  # what cannot be noted now is noted next time; the old note promises less, not more

    def close(self) -> None:
        """After the last transaction. The note goes with its log."""
        for descriptor in (self._log, self._note):
            if descriptor >= 0:
                os.close(descriptor)
        self._log = self._note = -1
        if not os.path.lexists(self._log_path):
            with contextlib.suppress(OSError):
                Path(self._note_path).unlink()


def _is_its_own(error: Exception) -> bool:
    """True if an error says something about the rows that one job looked at, nothing about the storage."""
    if isinstance(error, apsw.ConstraintError | apsw.MismatchError | apsw.SQLError):
        return True
    return isinstance(error, apsw.Error) and is_damage(error)
