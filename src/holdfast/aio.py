"""The same store, awaited: `holdfast.aio.open` gives an AsyncStore, which gives AsyncSessions.

    async with holdfast.aio.open() as store:
        session = store.session("ticket-42", agent="support")
        await session.commit({"messages": [{"role": "user", "content": "refund order 7"}]})

Names and arguments are those of the sync face, and each method is one line over it, run in threads that the store
owns; nothing is decided here. What does no I/O stays plain (`store.session`, `store.on`); `sessions` and `log` are for
`async for`, and report wrong arguments when that begins. A call that is cancelled after it began is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from holdfast import opening
from holdfast.difference import Diff
from holdfast.errors import ClosedError, InvalidInputError
from holdfast.model import (
    Branch,
    Checkpoint,
    ImportReport,
    Outcome,
    PruneReport,
    SessionId,
    SessionInfo,
    State,
    Status,
    StoreStats,
    Usage,
    VerifyReport,
)
from holdfast.retention import Retention
from holdfast.store import Session, Store
from holdfast.store.refs import Ref
from holdfast.upkeep.progress import Progress

_THREADS = 8  # started when first needed; sessions that commit at once share one sync, so a few more than cores pay off
_PAGE_ITEMS = 100

P = ParamSpec("P")
T = TypeVar("T")


class _Lane(ABC):
    """A way to have a sync function called in a thread while the event loop goes on."""

    @abstractmethod
    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Have a job done; a future that is cancelled before its job has begun takes the job back."""

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What `fn` gives, or raises. Cancelling this cancels the waiting, and `fn` only if it has not begun."""
        here = contextvars.copy_context()
        return await asyncio.wrap_future(self.submit(partial(here.run, partial(fn, *args, **kwargs))))

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


def _page(items: Iterator[T]) -> tuple[list[T], Exception | None]:
    """The next items, and what ended them too early: those before a damaged one are given before it is reported."""
    page: list[T] = []
    try:
        for item in islice(items, _PAGE_ITEMS):
            page.append(item)  # noqa: PERF402 - a `list` would lose them all at the first error
    except Exception as error:  # noqa: BLE001 - it is raised again by `pages`
        return page, error
    return page, None


class _Crew(_Lane):
    """The threads of one store."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-aio")
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
                threading.Thread(target=self._leave, args=(self._dismissed, last), name="holdfast-aio-close").start()
        return self._dismissed

    def _leave(self, dismissed: Future[None], last: Callable[[], object]) -> None:
        try:
            self._pool.shutdown()
            last()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the closing is awaited
            dismissed.set_exception(error)
        else:
            dismissed.set_result(None)


class _Turns(_Lane):
    """One job at a time, in the order they came.

    Not an asyncio.Lock: that would be let go when the waiting side is cancelled, while the thread is still inside the
    session, and it would stay taken for ever if the loop ended first. Waiting jobs keep no thread.
    """

    def __init__(self, crew: _Crew) -> None:
        self._crew = crew
        self._mutex = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False

    def submit(self, job: Callable[[], T]) -> Future[T]:
        self._crew.refuse_closed()
        ticket: Future[T] = Future()
        with self._mutex:
            self._waiting.append(partial(_fulfil, ticket, job))
            idle, self._busy = not self._busy, True
        if idle:
            self._crew.submit(self._work)
        return ticket

    def _work(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._busy = False
                    return
                turn = self._waiting.popleft()
            turn()
            # Back to the end of the crew's queue, so that a session with much to do lets others in between. When the
            # store is being closed that is refused, and the calls made before the closing are finished here.
            with contextlib.suppress(ClosedError):
                self._crew.submit(self._work)
                return


def _fulfil(ticket: Future[T], job: Callable[[], T]) -> None:
    if ticket.set_running_or_notify_cancel():
        try:
            value = job()
        except BaseException as error:  # noqa: BLE001 - it is raised again where the call is awaited
            ticket.set_exception(error)
        else:
            ticket.set_result(value)


class Opening:
    """What `open` gives: `await` it for the store, or use it with `async with`, which closes the store too."""

    def __init__(self, url: str | os.PathLike[str] | None, durability: str) -> None:
        self._url = url
        self._durability = durability
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()

    async def _open(self) -> AsyncStore:
        crew = _Crew()
        opened = crew.submit(partial(opening.open, self._url, durability=self._durability))
        try:
            return AsyncStore(await asyncio.wrap_future(opened), crew)
        except BaseException:
            # It may have been the waiting that ended, not the opening: a store that nobody gets is closed again.
            crew.dismiss(partial(_close_opened, opened))
            raise


def _close_opened(opened: Future[Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def open(url: str | os.PathLike[str] | None = None, *, durability: str = "full") -> Opening:
    """Open a store as `holdfast.open` does; the result is for `await` or for `async with`."""
    return Opening(url, durability)


class AsyncStore:
    """Where sessions live, awaited. An async context manager; tasks may share it. Made by `holdfast.aio.open`."""

    def __init__(self, store: Store, crew: _Crew) -> None:
        self._store = store
        self._crew = crew
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._store)[1:]}"

    def session(self, id: str, *, agent: str | None = None) -> AsyncSession:
        """A session by its id. Does no I/O, so there is nothing to await."""
        return AsyncSession(self._store.session(id, agent=agent), self._crew)

    def sessions(
        self, *, status: Status | str | None = None, agent: str | None = None, limit: int | None = None
    ) -> AsyncIterator[SessionInfo]:
        return self._crew.pages(self._store.sessions, status=status, agent=agent, limit=limit)

    async def delete(self, session_id: str) -> None:
        await self._crew.run(self._store.delete, session_id)

    async def verify(
        self, session: str | None = None, *, repair: bool = False, progress: Progress | None = None
    ) -> VerifyReport:
        """Read everything again. `progress` is called on the event loop that opened the store."""
        told = self._on_loop(progress)
        return await self._crew.run(self._store.verify, session, repair=repair, progress=told)

    async def export(
        self,
        path: str | os.PathLike[str],
        *,
        session: str | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write sessions to a file. `progress` is called on the event loop that opened the store."""
        told = self._on_loop(progress)
        await self._crew.run(self._store.export, path, session=session, overwrite=overwrite, progress=told)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        rename: str | Mapping[str, str] | None = None,
        on_exists: str = "refuse",
        progress: Progress | None = None,
    ) -> ImportReport:
        """Take in the sessions of a file. `progress` is called on the event loop that opened the store."""
        told = self._on_loop(progress)
        return await self._crew.run(self._store.import_, path, rename=rename, on_exists=on_exists, progress=told)

    def _on_loop(self, progress: Progress | None) -> Progress | None:
        def tell(done: int, total: int | None) -> None:
            if progress is not None:
                self._loop.call_soon_threadsafe(progress, done, total)

        return None if progress is None else tell

    async def prune(
        self,
        retention: Retention,
        *,
        session: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PruneReport:
        """Forget what a retention allows. `progress` is called on the event loop that opened the store."""
        told = self._on_loop(progress)
        return await self._crew.run(self._store.prune, retention, session=session, dry_run=dry_run, progress=told)

    async def stats(self) -> StoreStats:
        return await self._crew.run(self._store.stats)

    def on(self, event: str, fn: Callable[[Any], object]) -> None:
        """Call `fn`, a plain function, after each event of that name: on the event loop that opened the store, and
        before the call that caused the event returns. What it raises goes to the loop's exception handler.
        """  # noqa: D205
        if inspect.iscoroutinefunction(fn):
            raise InvalidInputError(
                f"a listener is a plain function, and {fn.__qualname__} is a coroutine function",
                hint="start a task in it, and keep the task",
            )
        self._store.on(event, lambda value: self._loop.call_soon_threadsafe(fn, value))

    async def close(self) -> None:
        """Finish the calls made before, then release everything."""
        await asyncio.wrap_future(self._crew.dismiss(self._store.close))


class AsyncSession:
    """One agent's history, awaited, for one writer. Made by `store.session(id)`, which does no I/O.

    Calls that overlap run one after another, in the order they were made. One that is cancelled before its turn has
    come does nothing; one that has begun is finished, and the next waits for that.
    """

    def __init__(self, session: Session, crew: _Crew) -> None:
        self._session = session
        self._turns = _Turns(crew)

    def __repr__(self) -> str:
        return f"<Async{repr(self._session)[1:]}"

    @property
    def id(self) -> SessionId:
        return self._session.id

    @property
    def agent(self) -> str | None:
        return self._session.agent

    # writing

    async def commit(
        self,
        state: State,
        *,
        branch: str = "main",
        expect: Ref | None = None,
        step: int | None = None,
        label: str | None = None,
        trigger: str = "manual",
        status: Status | Outcome | str | None = None,
        usage: Usage | dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        resume_hint: str | None = None,
    ) -> Checkpoint:
        """Record a state. It is read in a thread: leave it alone until this returns, or is known to have finished."""
        return await self._turns.run(
            self._session.commit,
            state,
            branch=branch,
            expect=expect,
            step=step,
            label=label,
            trigger=trigger,
            status=status,
            usage=usage,
            metadata=metadata,
            resume_hint=resume_hint,
        )

    async def restore(self, ref: Ref, *, branch: str = "main") -> Checkpoint:
        return await self._turns.run(self._session.restore, ref, branch=branch)

    async def undo(self, *, branch: str = "main") -> Checkpoint:
        return await self._turns.run(self._session.undo, branch=branch)

    async def fork(self, ref: Ref, branch: str) -> Branch:
        return await self._turns.run(self._session.fork, ref, branch)

    async def delete_branch(self, name: str) -> None:
        await self._turns.run(self._session.delete_branch, name)

    async def tag(self, ref: Ref, name: str) -> None:
        await self._turns.run(self._session.tag, ref, name)

    async def untag(self, name: str) -> None:
        await self._turns.run(self._session.untag, name)

    async def prune(self, retention: Retention, *, dry_run: bool = False) -> PruneReport:
        return await self._turns.run(self._session.prune, retention, dry_run=dry_run)

    async def delete(self, ref: Ref) -> None:
        await self._turns.run(self._session.delete, ref)

    # reading

    async def load(self, ref: Ref = "main", *, salvage: bool = False) -> State:
        """The state at a ref. Use this and not `checkpoint.state`, which would read on the event loop."""
        return await self._turns.run(self._session.load, ref, salvage=salvage)

    async def checkpoint(self, ref: Ref = "main") -> Checkpoint:
        return await self._turns.run(self._session.checkpoint, ref)

    async def head(self, branch: str = "main") -> Checkpoint | None:
        return await self._turns.run(self._session.head, branch)

    def log(self, ref: Ref = "main", *, limit: int | None = None) -> AsyncIterator[Checkpoint]:
        return self._turns.pages(self._session.log, ref, limit=limit)

    async def branches(self) -> dict[str, Checkpoint]:
        return await self._turns.run(self._session.branches)

    async def tags(self) -> dict[str, Checkpoint]:
        return await self._turns.run(self._session.tags)

    async def diff(self, a: Ref, b: Ref) -> Diff:
        return await self._turns.run(self._session.diff, a, b)

    async def newest_intact(self, branch: str = "main") -> Checkpoint | None:
        return await self._turns.run(self._session.newest_intact, branch)


__all__ = ["AsyncSession", "AsyncStore", "Opening", "open"]
