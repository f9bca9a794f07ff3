"""The kit for loops that a framework drives: a Run that is begun, told and left from hooks rather than by `with`.

A framework calls hooks: the model is about to be asked, a tool is about to run, it has given this. `Driven` turns them
into the two halves of journaled calls, and leaves the run when the framework's own run ends without a word: when the
task that awaited it is done, or an object that the framework holds as long as it runs is gone. Its methods block, and
are meant for the threads of the store (`await driven.threads.finish(driven.leave, None)`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

from backstay.aio.run import AsyncRun
from backstay.aio.threads import Threads
from backstay.run import Run
from backstay.run.calling import Calling

Task: TypeAlias = "asyncio.Task[Any] | None"
Slot = tuple[str, str | None]  # a tool and the id of its call


class Driven:
    """One run that a framework drives: the calls it is making, and how it is left."""

    def __init__(self, run: Run, threads: Threads) -> None:
        self.run = run
        self.threads = threads
        self.task: Task = None
        self.open: dict[Slot, Calling] = {}
        self._asking: Calling | None = None
        self._left = self._gone = False
        self._lock = threading.Lock()
        self._watched: list[weakref.finalize[..., Any]] = []

    async def enter(self) -> None:
        """Take the lease; if this is cancelled meanwhile the run is left again."""
        await AsyncRun(self.run, self.threads).__aenter__()

    # calls

    def ask(self, name: str, args: Any) -> Calling:
        """The model is about to be asked; a question without an answer is forgotten."""
        self.hush()
        self._asking = self.run.begin(name, kind="llm", args=args)
        return self._asking

    def answered(self, answer: Any) -> None:
        """The model has answered."""
        if self._asking is not None:
            self._asking.finish(answer)
            self._asking = None

    @property
    def is_asking(self) -> bool:
        """True while the model is being asked."""
        return self._asking is not None

    def hush(self) -> bool:
        """Forget a model call that has no answer: of those nothing is on disk."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.withdraw()
        return asking is not None

    def start(self, slot: Slot, args: Any, *, kind: Literal["tool", "llm"] = "tool") -> None:
        """A tool is about to run: that is on disk when this returns."""
        self.open[slot] = self.run.begin(slot[0], key=slot[1], args=args, kind=kind)

    def end(self, slot: Slot, value: Any) -> None:
        """The tool has given something: that is on disk when this returns."""
        calling = self.open.pop(slot, None)
        if calling is not None:
            calling.finish(value)

    @property
    def is_busy(self) -> bool:
        """True if it is in a tool or waits for the model."""
        return bool(self.open) or self._asking is not None

    # the end of a run that is not told

    @property
    def is_over(self) -> bool:
        """True if the framework's run has ended for certain."""
        return self._gone or (self.task is not None and self.task.done())

    def has_ended(self) -> bool:
        """The same, looking twice: of an error that is no longer held a cycle may be left."""
        if not self.is_over:
            gc.collect()
        return self.is_over

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Leave when the task that awaits the framework's run is done."""
        self.task = task
        task.add_done_callback(lambda _: self.drop())

    def outlive(self, held: object) -> None:
        """Leave when an object is gone that the framework holds as long as it runs."""
        # Not `drop` itself: a collection may run inside the pool's own lock, and `drop` would wait for that.
        watched = weakref.finalize(held, self._lose, asyncio.get_running_loop())
        watched.atexit = False
        self._watched.append(watched)

    def _lose(self, loop: asyncio.AbstractEventLoop) -> None:
        self._gone = True  # a caller that comes before the loop does the job sees this
        _soon(loop, self.drop)

    def drop(self) -> None:
        """Leave from wherever the end is noticed, and wait for nothing."""
        if not self._left:
            with contextlib.suppress(Exception):
                self.threads.submit(partial(self.leave, None))

    def leave(self, error: BaseException | None) -> None:
        """End the run, once. Calls that were journaled and not recorded at a boundary stay for the next run."""
        with self._lock:  # the second caller waits until the lease is free
            if self._left:
                return
            self._left = True
            for watched in self._watched:
                watched.detach()
            self.hush()
            try:
                self.run.leave(self.closing(error))
            finally:
                self.closed()

    def closing(self, error: BaseException | None) -> BaseException | None:
        """What the run ends by: an adapter may know better than the caller. Nothing pending: as it was told."""
        return asyncio.CancelledError() if error is None and self.open else error

    def closed(self) -> None:
        """The run is left: an adapter forgets it here."""


def _soon(loop: asyncio.AbstractEventLoop, job: Callable[[], None]) -> None:
    """Have a job done by the loop, if it still runs; takes no lock. Otherwise the lease expires by itself."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(job)
