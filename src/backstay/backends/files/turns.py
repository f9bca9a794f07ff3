"""Whose turn it is: the first thread to come leads, and does what all who wait have to do.

A lone thread leads at once and is handed nothing. A leader wakes those whose work is done and passes the lead on to the
first of the others; one that is interrupted leaves what it has not finished to the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

_GATHER_S = 0.002
_CROWD = 1.5  # threads that come together, on average: below that there is nobody to wait for


class Ticket:
    """One piece of work in the queue and what became of it."""

    __slots__ = ("awake", "done", "error", "gone", "value", "work")

    def __init__(self, work: Any, *, value: Any = None) -> None:
        self.work, self.value = work, value
        self.awake: threading.Lock | None = None  # what a thread that does not lead waits for
        self.error: BaseException | None = None
        self.done = False
        self.gone = False  # its thread was interrupted and waits no longer

    def fail(self, error: BaseException, cause: BaseException | None = None) -> None:
        """Tell whoever waits why it was not done."""
        if not self.done:
            if cause is not None:
                error.__cause__ = cause
            self.error, self.done = error, True

    def wake(self) -> None:
        """May come twice, after an interrupt: whoever is woken looks whether it was meant, and otherwise waits on."""
        if self.awake is not None and self.awake.locked():
            self.awake.release()


class Turns:
    """See the module's text. `lead` does the work of some tickets; those it does not finish are for the next."""

    def __init__(self, lead: Callable[[Sequence[Ticket]], None]) -> None:
        self._do = lead
        self._mutex = threading.Lock()
        self._queue: list[Ticket] = []
        self._taken: list[Ticket] = []
        self._leader: Ticket | None = None
        self._crowd = 1.0

    def run(self, ticket: Ticket) -> Any:
        """Wait until this is done, or do it, and what the others want too."""
        try:
            self._take_part(ticket)
        finally:
            # An interrupt can strike at any instruction, in here too. Others are waiting, so leaving is tried again:
            # each of its steps can be repeated. Three strikes within microseconds are taken for impossible.
            try:
                self._leave(ticket)
            except BaseException:
                try:
                    self._leave(ticket)
                except BaseException:
                    self._leave(ticket)
                    raise
                raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.value

    def _take_part(self, ticket: Ticket) -> None:
        with self._mutex:
            if self._leader is not None:
                ticket.awake = threading.Lock()
                ticket.awake.acquire()
            self._queue.append(ticket)
            if self._leader is None:
                self._leader = ticket
        while ticket.awake is not None:
            ticket.awake.acquire()
            with self._mutex:
                if ticket.done or self._leader is ticket:
                    break
        if not ticket.done:
            self._lead()

    def _lead(self) -> None:
        # A crowd was here a moment ago and is about to come back: a short wait turns many syncs into one.
        deadline = time.perf_counter() + _GATHER_S
        while self._crowd >= _CROWD and len(self._queue) < 0.8 * self._crowd and time.perf_counter() < deadline:
            time.sleep(0.00005)
        with self._mutex:
            self._taken, self._queue = self._queue, []
        self._crowd = (self._crowd + len(self._taken)) / 2
        self._do(self._taken)
        for ticket in self._taken:
            ticket.wake()

    def _leave(self, ticket: Ticket) -> None:
        """Step back, done or interrupted; the lead, if it is here, goes on to the next."""
        if ticket.done and self._leader is not ticket:
            return
        with self._mutex:
            ticket.gone = True
            if self._leader is not ticket:
                self._queue = [waiting for waiting in self._queue if waiting is not ticket]
                return
            for other in self._taken:
                if other.done and other is not ticket:
                    other.wake()
            left = [other for other in self._taken if not other.done and other not in self._queue]
            self._queue = [other for other in (*left, *self._queue) if not other.gone]
            self._taken = []
            heir = self._queue[0] if self._queue else None
            if heir is not None:
                heir.wake()  # it looks whether it leads only when it gets the mutex
            self._leader = heir
