"""How sync functions are called in threads while the event loop goes on. Nothing is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import ParamSpec, TypeVar

from backstay.errors import ClosedError
from backstay.store.looks import caller

_THREADS = 8  # started when first needed; sessions that commit at once share one sync, so a few more than cores pay off
_PAGE_ITEMS = 100

P = ParamSpec("P")
T = TypeVar("T")


class Worker(ABC):
    """A way to have a sync function called in a thread while the event loop goes on."""

    @abstractmethod
    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Have a job done; a future that is cancelled before its job has begun takes the job back."""

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What `fn` gives, or raises. Cancelling this cancels the waiting, and `fn` only if it has not begun."""
        here = _context()
        return await asyncio.wrap_future(self.submit(partial(here.run, partial(fn, *args, **kwargs))))

    async def finish(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What `fn` gives, or raises. Cancelling this waits until `fn` is done, and only then is it cancelled."""
        here = _context()
        job = asyncio.wrap_future(self.submit(partial(here.run, partial(fn, *args, **kwargs))))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            while not job.done():
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await asyncio.shield(job)
            raise

    async def pages(self, fn: Callable[P, Iterator[T]], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """What an iterator gives, fetched a page at a time."""
        items = await self.run(fn, *args, **kwargs)
        more = True
        while more:
            page, error = await self.run(_page, items)
            for item in page:
                yield item
            if error is not None:
                raise error
            more = len(page) == _PAGE_ITEMS


def _context() -> contextvars.Context:
    """The caller's context, in which the session knows which task it is: see store.history."""
    here = contextvars.copy_context()
    here.run(caller.set, asyncio.current_task())
    return here


def _page(items: Iterator[T]) -> tuple[list[T], Exception | None]:
    """The next items, and what ended them too early: those before a damaged one are given before it is reported."""
    page: list[T] = []
    try:
        for item in islice(items, _PAGE_ITEMS):
            page.append(item)  # noqa: PERF402 - a `list` would lose them all at the first error
    except Exception as error:  # noqa: BLE001 - it is raised again by `pages`
        return page, error
    return page, None


class Threads(Worker):
    """The threads of one store."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="backstay-aio")
        self._pid = os.getpid()
        self._dismissed: Future[None] | None = None

    def submit(self, job: Callable[[], T]) -> Future[T]:
        self.refuse_closed()
        try:
            return self._pool.submit(job)
        except RuntimeError:  # closed by another thread in between, or the interpreter is about to end
            raise ClosedError("the store is closed", hint="open it again") from None

    def refuse_closed(self) -> None:
        # A forked child has inherited the pool but none of its threads: a job put there would wait for ever.
        if self._pid != os.getpid():
            raise ClosedError("this store was opened by the parent process", hint="open it again in this process")
        if self._dismissed is not None:
            raise ClosedError("the store is closed", hint="open it again")

    def dismiss(self, last: Callable[[], object]) -> Future[None]:
        """Take no more jobs, finish those there are, then do the last one. A second call waits for the first."""
        if self._dismissed is None:
            self._dismissed = Future()
            if self._pid != os.getpid():
                self._dismissed.set_result(None)
            else:
                self._dismissed.set_running_or_notify_cancel()
                threading.Thread(target=self._leave, args=(self._dismissed, last), name="backstay-aio-close").start()
        return self._dismissed

    def _leave(self, dismissed: Future[None], last: Callable[[], object]) -> None:
        try:
            self._pool.shutdown()
            last()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the closing is awaited
            dismissed.set_exception(error)
        else:
            dismissed.set_result(None)


class InOrder(Worker):
    """One job at a time, in the order they came.

    Not an asyncio.Lock: that would be let go when the waiting side is cancelled, while the thread is still inside the
    session, and it would stay taken for ever if the loop ended first. Waiting jobs keep no thread.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._mutex = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        self._threads.refuse_closed()
        ticket: Future[T] = Future()
        with self._mutex:
            self._waiting.append(partial(_fulfil, ticket, job))
            idle, self._busy = not self._busy, True
        if idle:
            self._threads.submit(self._work)
        return ticket

    def _work(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._busy = False
                    return
                turn = self._waiting.popleft()
            turn()
            # Back to the end of the threads's queue, so that a session with much to do lets others in between. When the
            # store is being closed that is refused, and the calls made before the closing are finished here.
            with contextlib.suppress(ClosedError):
                self._threads.submit(self._work)
                return


def _fulfil(ticket: Future[T], job: Callable[[], T]) -> None:
    if ticket.set_running_or_notify_cancel():
        try:
            value = job()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the call is awaited
            ticket.set_exception(error)
        else:
            ticket.set_result(value)
