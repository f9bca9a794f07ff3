"""Group commit's queue: the first thread to come leads, and does what all that wait have to do.

A thread that finds no leader leads at once: it takes all jobs that wait, has them done, wakes their threads and passes
the lead on to the first that came meanwhile. So many threads share one sync or one round trip, and a lone thread waits
for nothing. A leader that is interrupted leaves the jobs it has not finished to the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_CROWD = 1.5  # jobs that come together, on average: below that there is no other thread to wait for
_GLANCE_S = 0.00005


class Job:
    """One piece of work in the queue, and what became of it. What `act` is, `alone` and `lazy`, its leader knows."""

    act: Any = None
    alone = False
    lazy = False
    awake: threading.Lock | None = None  # what a thread that does not lead waits for
    done = False
    gone = False  # its thread was interrupted and waits no longer
    value: Any = None
    error: BaseException | None = None

    def __init__(self, act: Any = None, *, alone: bool = False, lazy: bool = False) -> None:
        self.act, self.alone, self.lazy = act, alone, lazy

    def finish(self, value: Any) -> None:
        """It was done, and gave this."""
        self.value, self.done = value, True

    def fail(self, error: BaseException, cause: BaseException | None = None) -> None:
        """It was not done, and this is why."""
        if cause is not None:
            error.__cause__ = cause
        self.error, self.done = error, True

    def wake(self) -> None:
        """May come twice, after an interrupt: a thread that is woken looks whether it was meant, or waits on."""
        if self.awake is not None and self.awake.locked():
            self.awake.release()


AnyJob = TypeVar("AnyJob", bound=Job)


class LeaderQueue(Generic[AnyJob]):
    """See the module's text.

    `lead` is given jobs in the order they came, and finishes or fails the first at least; those it leaves come again.
    Where several jobs came together the last time, a leader waits up to `gather_s` for as many.
    """

    def __init__(self, lead: Callable[[list[AnyJob]], None], *, gather_s: float = 0.0) -> None:
        self._lead = lead
        self._gather_s = gather_s
        self._mutex = threading.Lock()
        self._queue: list[AnyJob] = []
        self._taken: list[AnyJob] = []  # by the leader, from the queue
        self._leader: Job | None = None
        self._holders: list[Job] = []  # are to lead before all others, and do nothing with it
        self._holder: Job | None = None
        self._crowd = 1.0

    @property
    def waiting(self) -> int:
        """How many jobs no leader has taken yet."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """True if no thread is in it."""
        return self._leader is None

    def run(self, job: AnyJob) -> Any:
        """Have a job done, by this thread or by the one that leads."""
        try:
            self._take_part(job)
        finally:
            # An interrupt can strike at any call, in here too. Other threads are waiting, so leaving is tried again:
            # each of its steps can be repeated. Three strikes within microseconds are taken for impossible.
            try:
                if self._leader is job or not job.done:
                    self._leave(job)
            except BaseException:
                try:
                    self._leave(job)
                except BaseException:
                    self._leave(job)
                    raise
                raise
        if job.error is not None:
            raise job.error
        return job.value

    def hold(self, seconds: float) -> bool:
        """Take the lead without a job, so that nothing is half done while the process forks; False if that is late."""
        job = Job()
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader = self._holder = job
                    return True
                job.awake = threading.Lock()
                job.awake.acquire()
                self._holders.append(job)
            job.awake.acquire(timeout=seconds)
            with self._mutex:
                if self._leader is job:
                    self._holder = job
                    return True
        except BaseException:
            self._leave(job)
            raise
        self._leave(job)
        return False

    def release(self) -> None:
        """Give back what `hold` took."""
        if self._holder is not None:
            self._leave(self._holder)

    def _take_part(self, job: AnyJob) -> None:
        with self._mutex:
            if self._leader is not None:
                job.awake = threading.Lock()
                job.awake.acquire()
            self._queue.append(job)
            if self._leader is None:
                self._leader = job
        while job.awake is not None:
            job.awake.acquire()
            with self._mutex:  # passing the lead on happens under it
                if job.done or self._leader is job:
                    break
        if not job.done and self._gather_s and self._crowd >= _CROWD:
            self._gather()
        while not job.done:
            with self._mutex:
                self._taken += self._queue
                self._queue = []
            self._crowd = (self._crowd + len(self._taken)) / 2
            self._lead(self._taken)
            left: list[AnyJob] = []
            for other in self._taken:
                if not other.done:
                    left.append(other)
                elif other.awake is not None:
                    other.wake()
            with self._mutex:
                self._taken = left
                if not (left or self._queue or self._holders):
                    self._leader = None  # the usual end of a lone thread's turn

    def _gather(self) -> None:
        # A crowd was here a moment ago and is about to come back: a short wait turns many syncs into one.
        deadline = time.perf_counter() + self._gather_s
        while len(self._queue) < 0.8 * self._crowd and time.perf_counter() < deadline:
            time.sleep(_GLANCE_S)

    def _leave(self, job: Job) -> None:
        """Step back, done or interrupted; the lead, if it is here, goes on to the next."""
        if job.done and self._leader is not job:
            return
        with self._mutex:
            job.gone = True
            if self._leader is not job:
                self._queue = [other for other in self._queue if other is not job]
                self._holders = [other for other in self._holders if other is not job]
                return
            if self._taken or not job.done:  # what this one has not finished goes back to the front of the queue
                for other in self._taken:
                    if other.done and other is not job:
                        other.wake()
                left = [other for other in self._taken if not other.done and other not in self._queue]
                self._queue = [other for other in (*left, *self._queue) if not other.gone]
                self._taken = []
            self._holder = None
            heir = (self._holders or self._queue or (None,))[0]
            if heir is not None:
                heir.wake()  # it looks whether it leads only when it gets the mutex
            self._leader = heir
            self._holders = self._holders[1:]
