"""Connections that read, lent one at a time: each read has one of its own and sees one moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from backstay.backends.sqlite.connections import DATA_VERSION, Connection
from backstay.backends.sqlite.forking import let_go
from backstay.errors import ClosedError

_IDLE_READERS = 8

T = TypeVar("T")


class _Seat:
    """A reader's place inside SQLite, and the connection it has there once there is one."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection


class Readers:
    """Connections that read, lent one at a time. One of them, the watcher, never changes: see `watch`.

    `moved` is called at the begin of a read if another connection has written since the last one on this connection.
    """

    def __init__(self, make: Callable[[], Connection], *, moved: Callable[[Connection], object]) -> None:
        self._make = make
        self._moved = moved
        self._mutex = threading.Lock()
        self._gate = threading.Event()  # shut while a fork waits: readers in a loop would never let it through
        self._gate.set()
        self._watching = threading.Lock()
        self._watcher = _Seat(None)
        self._watchers = 0
        self._idle = [make()]  # one from the start: the first load need not wait for it
        self._busy: set[_Seat] = set()
        self.closed = False

    def read(self, job: Callable[[Connection], T], *, settled: bool = True) -> T:
        """Run a job on a connection inside a read transaction: one moment.

        `settled`: what the connection remembers must hold. Whoever looks for damage goes without it.
        """
        self._gate.wait()
        with self._mutex:
            if self.closed:
                raise ClosedError("the store is closed", hint="open it again")
            seat = _Seat(self._idle.pop() if self._idle else None)
            self._busy.add(seat)
        try:
            if seat.connection is None:
                seat.connection = self._make()
            connection = seat.connection
            connection.execute("BEGIN")
            try:
                if not settled:
                    connection.forget()
                elif connection.execute(DATA_VERSION).fetchall() != connection.version:
                    self._moved(connection)
                return job(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except BaseException:
            # A statement that was cut off halfway keeps its view of the store for as long as anybody keeps the error,
            # and who came next would be shown that old view.
            _end(seat)
            raise
        finally:
            kept = False
            # Interrupted between its first line and its last, it may be in a transaction: nobody must inherit that.
            if seat.connection is not None and not seat.connection.in_transaction:
                with self._mutex:
                    kept = not self.closed and len(self._idle) < _IDLE_READERS  # type: ignore[redundant-expr]
                    if kept:
                        self._idle.append(seat.connection)
            if seat.connection is not None and not kept:
                seat.connection.close()
            self._busy.discard(seat)

    def watch(self) -> int:
        """A number that is another once any other connection, of this process or not, has committed."""
        with self._watching:
            seat = self._watcher
            self._gate.wait()
            with self._mutex:
                if self.closed:
                    raise ClosedError("the store is closed", hint="open it again")
                self._busy.add(seat)
            try:
                if seat.connection is None:
                    seat.connection = self._make()
                    self._watchers += 1
                version: Any = seat.connection.execute(DATA_VERSION).fetchall()[0][0]
                # Each connection counts for itself: a new one must not seem to go on where another was.
                return self._watchers << 40 | int(version)
            except BaseException:
                _end(seat)
                raise
            finally:
                self._busy.discard(seat)

    def close(self) -> None:
        """Close what nobody uses; the rest is closed when it comes back."""
        with self._watching, self._mutex:
            self.closed = True
            idle, self._idle = self._idle, []
            _end(self._watcher)
        for connection in idle:
            connection.close()

    # forking

    def hold(self, deadline: float) -> bool:
        """Wait until nobody reads, and let nobody begin to."""
        self._gate.clear()
        while time.monotonic() < deadline:
            self._mutex.acquire()
            if not self._busy:
                return True
            self._mutex.release()
            time.sleep(0.0005)
        self._gate.set()
        return False

    def release(self) -> None:
        """Give back what `hold` took."""
        self._gate.set()
        self._mutex.release()

    def abandon(self) -> None:
        """In a child: close what was idle, and never touch again what was in use."""
        watcher = [] if self._watcher in self._busy else [self._watcher.connection]
        let_go([seat.connection for seat in self._busy], held=False)
        let_go([*self._idle, *watcher], held=True)


def _end(seat: _Seat) -> None:
    if seat.connection is not None:
        seat.connection.close(force=True)
        seat.connection = None
