"""Group commit: all writes of one store on one connection, one transaction at a time, shared.

The thread that leads (see port.leader_queue) runs every job that is waiting in one transaction with one sync. A job
that fails fails alone: most have written nothing by then; where one has, the transaction is done again with savepoints.
A failed COMMIT fails all jobs in it. Lazy jobs by themselves are committed without a sync: the log is written in order,
so the next sync takes them along, and a power cut before it takes them back whole. The WAL is tended here too: kept at
one size and reused, because a growing file doubles a sync.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from backstay.backends.sqlite.connections import DATA_VERSION, Connection, is_damage, translate, translated
from backstay.backends.sqlite.file_system import open_plain
from backstay.backends.sqlite.wal import NOTE_MAGIC, beside, grow, read_at, write_at
from backstay.errors import BackstayError, ClosedError
from backstay.port.leader_queue import Job, LeaderQueue

_CHECKPOINT_PAGES = 230
_RESTART_PAGES = 4 * _CHECKPOINT_PAGES
_GATHER_S = 0.002
_SYNCED, _LAZY = "PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL"
_KEEP_READING = "SELECT key FROM meta"  # has two rows at least, so it stays unfinished after the first


class Write(Job):
    """A job for the writing connection: `act` is done inside a transaction that is on disk when its turn is over.

    `alone`: outside of any transaction. `lazy`: it need not be on disk before the next transaction is.
    """

    act: Callable[[Connection], Any]


class _HalfDoneError(Exception):
    """A job failed after it had written something, among others that did not."""


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
        self._left_at = -1  # the pager's number after the last COMMIT
        self._frames = 0  # in the log after the last COMMIT, 0 if that wrote nothing
        self._wal_grown = self._logless = durability not in ("full", "relaxed")
        self._queue = LeaderQueue(self._lead, gather_s=_GATHER_S)
        self.run = self._queue.run
        self.hold, self.release = self._queue.hold, self._queue.release  # while the process forks
        self._upkeep_error: BackstayError | None = None
        self._lazy = False  # this connection's commits may not be synced
        self._closed = False
        connection.set_wal_hook(self._note_wal)

    def close(self) -> None:
        """Refuse everything further, and wait for what is under way."""
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

    def _lead(self, jobs: list[Write]) -> None:
        if self._closed:
            for job in jobs:
                job.fail(ClosedError("the store is closed", hint="open it again"))
            return
        together = [job for job in jobs if not job.alone]
        if together and not self._transact(together):
            for job in together:
                self._transact([job])
        for job in jobs:
            if job.alone:
                self._run_alone(job)
        if self._wal_pages >= _CHECKPOINT_PAGES:
            self._tend_wal()

    def _transact(self, jobs: list[Write], *, savepoints: bool = False) -> bool:
        """All jobs in one transaction. Each job is resolved, or, if this thread was interrupted, none is.

        False, and none is, if SQLite found fault with the rows of one of them: it may have taken back more than its
        savepoint, so each is to be tried for itself.
        """
        connection, committing = self.connection, False
        reading: apsw.Cursor | None = None
        try:
            if self._upkeep_error is not None:
                error, self._upkeep_error = self._upkeep_error, None
                raise error
            lazy = self._tail is not None and all([job.lazy for job in jobs])
            if lazy is not self._lazy:
                # Noted first: an interrupt in between must not leave anything unsynced that is thought to be synced.
                self._lazy = True
                connection.execute(_LAZY if lazy else _SYNCED)
                self._lazy = lazy
            connection.execute("BEGIN IMMEDIATE")
            # Left open beyond the COMMIT: as long as somebody reads, nobody begins the log anew, and the note is true.
            reading = connection.execute(_KEEP_READING)
            next(reading, None)
            # The pager's own number counts our commits too: as long as it is as we left it, no other has written.
            moved = connection.data_version() != self._left_at
            if moved and connection.execute(DATA_VERSION).fetchall() != connection.version:
                self._moved(connection)
            if not self._wal_grown:
                self._wal_grown = True
                grow(self._path)
            done = self._run_all(jobs, savepoints=savepoints)
            # From here on until it is over nobody can tell what a failure leaves on the disk.
            committing, self._frames = True, 0
            connection.execute("COMMIT")
            self._left_at = connection.data_version()
            if self._tail is not None and self._frames and not lazy:
                self._tail.keep(self._frames)
            for job, value in done:
                job.value, job.done = value, True
        except Exception as error:  # noqa: BLE001 - handed to those whose jobs it ended, not to whoever leads
            self._rollback()
            if isinstance(error, _HalfDoneError):
                self._forget_outcomes(jobs)
                return self._transact(jobs, savepoints=True)
            if len(jobs) > 1 and not committing and _is_its_own(error):
                self._forget_outcomes(jobs)
                return False
            reason: Exception = error
            if isinstance(error, apsw.Error):
                reason = translate(error, "writing to the store", committing=committing)
            reason.__cause__ = error if reason is not error else error.__cause__
            for job in jobs:
                if not job.done:
                    job.fail(reason)
            return True
        except BaseException:
            # An interrupt. If the COMMIT had already gone through, what was done is done.
            if committing and not connection.in_transaction:
                self._resolve(done)
            else:
                self._rollback()
                self._forget_outcomes(jobs)
            raise
        finally:
            if reading is not None:
                reading.close()
        self.syncs += bool(self._frames) and not lazy
        self.jobs += len(done)
        return True

    def _forget_outcomes(self, jobs: list[Write]) -> None:
        for job in jobs:
            job.done, job.error = False, None

    def _resolve(self, done: list[tuple[Write, Any]]) -> None:
        for job, value in done:
            job.value, job.done = value, True

    def _run_all(self, jobs: list[Write], *, savepoints: bool) -> list[tuple[Write, Any]]:
        connection, done = self.connection, []
        for job in jobs:
            if job.gone:  # better not at all than behind the back of whoever was interrupted
                continue
            if savepoints:
                connection.execute("SAVEPOINT job")
            written = connection.total_changes()
            try:
                done.append((job, job.act(connection)))
            except Exception as error:
                if len(jobs) == 1 or isinstance(error, apsw.Error):
                    raise
                if savepoints:
                    connection.execute("ROLLBACK TO job")
                elif connection.total_changes() != written:
                    raise _HalfDoneError from error
                connection.forget()
                job.fail(error)
            if savepoints:
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

    def _run_alone(self, job: Write) -> None:
        self._wal_grown = self._logless  # it may cut the log
        try:
            job.finish(job.act(self.connection))
        except apsw.Error as error:
            job.fail(translate(error, "tending the store"), error)
        except Exception as error:  # noqa: BLE001 - for whoever asked, not for whoever leads
            job.fail(error)

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
