"""The same store, awaited: `backstay.aio.open` gives an AsyncStore, which gives AsyncSessions.

    async with backstay.aio.open() as store:
        session = store.session("ticket-42", agent="support")
        await session.commit({"messages": [{"role": "user", "content": "refund order 7"}]})

Names and arguments are those of the sync face, and each method is one line over it, run in threads that the store
owns; nothing is decided here. What does no I/O stays plain (`store.session`, `store.on`); `sessions` and `log` are for
`async for`, and report wrong arguments when that begins. A call that is cancelled after it began is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from backstay import opening
from backstay.aio.run import AsyncCalling, AsyncRun, recover
from backstay.aio.threads import InOrder, Threads
from backstay.difference import Diff
from backstay.errors import InvalidInputError
from backstay.face import Session, Store
from backstay.face.session import Expect
from backstay.face.watching import POLL_S, ChangeWatch
from backstay.loops import LoopGuard
from backstay.model import (
    Branch,
    Call,
    Checkpoint,
    ImportReport,
    Outcome,
    PruneReport,
    RunInfo,
    SessionId,
    SessionInfo,
    State,
    StateDict,
    Status,
    StoreStats,
    Usage,
    VerifyReport,
    Wait,
)
from backstay.retention import Retention
from backstay.run.deciding import UNDECIDED
from backstay.run.options import OnDoubt, OnFailed
from backstay.store.refs import Ref
from backstay.strategy import ALWAYS, Strategy
from backstay.upkeep.progress import Progress


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
        threads = Threads()
        opened = threads.submit(partial(opening.open, self._url, durability=self._durability))
        try:
            return AsyncStore(await asyncio.wrap_future(opened), threads)
        except BaseException:
            # It may have been the waiting that ended, not the opening: a store that nobody gets is closed again.
            threads.dismiss(partial(_close_opened, opened))
            raise


def _close_opened(opened: Future[Store]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def open(url: str | os.PathLike[str] | None = None, *, durability: str = "full") -> Opening:
    """Open a store as `backstay.open` does; the result is for `await` or for `async with`."""
    return Opening(url, durability)


class AsyncStore:
    """Where sessions live, awaited. An async context manager; tasks may share it. Made by `backstay.aio.open`."""

    def __init__(self, store: Store, threads: Threads) -> None:
        self._store = store
        self._threads = threads
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
        return AsyncSession(self._store.session(id, agent=agent), self._threads)

    def sessions(
        self, *, status: Status | str | None = None, agent: str | None = None, limit: int | None = None
    ) -> AsyncIterator[SessionInfo]:
        return self._threads.pages(self._store.sessions, status=status, agent=agent, limit=limit)

    @property
    def sync(self) -> Store:
        """The store itself, for what is called in its threads."""
        return self._store

    @property
    def threads(self) -> Threads:
        """The threads that the store owns."""
        return self._threads

    def run(
        self,
        id: str,
        *,
        agent: str | None = None,
        strategy: Strategy = ALWAYS,
        branch: str = "main",
        input: Any = None,
        restart: bool = False,
        lease_s: float = 30.0,
        on_doubt: OnDoubt = "ask",
        on_failed: OnFailed = "raise",
        loops: LoopGuard | None = None,
    ) -> AsyncRun:
        """A loop that survives. Does no I/O before `async with`."""
        return self.session(id, agent=agent).run(
            strategy=strategy,
            branch=branch,
            input=input,
            restart=restart,
            lease_s=lease_s,
            on_doubt=on_doubt,
            on_failed=on_failed,
            loops=loops,
        )

    async def crashed(self) -> list[SessionInfo]:
        return await self._threads.run(self._store.crashed)

    async def waiting(self, agent: str | None = None) -> list[Wait]:
        return await self._threads.run(self._store.waiting, agent)

    async def find(self, checkpoint_id: str) -> Checkpoint:
        return await self._threads.run(self._store.find, checkpoint_id)

    async def changes(self) -> int:
        return await self._threads.run(self._store.changes)

    async def watch(self, session: str | None = None, *, timeout_s: float | None = None) -> AsyncIterator[SessionInfo]:
        """As in `Store`, from the first step of the loop on. No thread is kept waiting."""
        watch = await self._threads.run(ChangeWatch, self._store, session, timeout_s)
        while True:
            for info in await self._threads.run(watch.look):
                yield info
            left_s = watch.left_s()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, POLL_S))

    async def delete(self, session_id: str) -> int:
        return await self._threads.run(self._store.delete, session_id)

    async def verify(
        self, session: str | None = None, *, repair: bool = False, progress: Progress | None = None
    ) -> VerifyReport:
        """Read everything again. `progress` is called on the event loop that opened the store."""
        told = self._on_loop(progress)
        return await self._threads.run(self._store.verify, session, repair=repair, progress=told)

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
        await self._threads.run(self._store.export, path, session=session, overwrite=overwrite, progress=told)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        rename: str | Mapping[str, str] | None = None,
        on_exists: str = "refuse",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Import the sessions of a file. `progress` is called on the event loop that opened the store."""
        told = self._on_loop(progress)
        return await self._threads.run(
            self._store.import_, path, rename=rename, on_exists=on_exists, dry_run=dry_run, progress=told
        )

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
        return await self._threads.run(self._store.prune, retention, session=session, dry_run=dry_run, progress=told)

    async def stats(self) -> StoreStats:
        return await self._threads.run(self._store.stats)

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
        await asyncio.wrap_future(self._threads.dismiss(self._store.close))


class AsyncSession:
    """One agent's history, awaited, for one writer. Made by `store.session(id)`, which does no I/O.

    Calls that overlap run one after another, in the order they were made. One that is cancelled before its turn has
    come does nothing; one that has begun is finished, and the next waits for that.
    """

    def __init__(self, session: Session, threads: Threads) -> None:
        self._session = session
        self._threads = threads
        self._turns = InOrder(threads)

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
        state: StateDict,
        *,
        branch: str = "main",
        expect: Expect = None,
        step: int | None = None,
        label: str | None = None,
        trigger: str = "manual",
        status: Status | Outcome | str | None = None,
        usage: Usage | dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        resume_hint: str | None = None,
        summary: str | None = None,
        id: str | None = None,
        root: bool = False,
        frozen: bool = False,
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
            summary=summary,
            id=id,
            root=root,
            frozen=frozen,
        )

    @contextlib.asynccontextmanager
    async def edit(self, branch: str = "main", *, wait_s: float = 30.0) -> AsyncIterator[State]:
        """Load, change, commit: `async with session.edit() as state:`. Edits of a branch take turns."""
        edit = self._session.begin_edit(branch, wait_s)
        try:
            while not await self._turns.finish(edit.try_begin):  # noqa: ASYNC110 - another process may have it
                await asyncio.sleep(edit.pause_s())
            yield edit.state
        except BaseException:
            await self._turns.finish(edit.give_up)
            raise
        await self._turns.finish(edit.finish)

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

    async def delete(self, ref: Ref) -> int:
        return await self._turns.run(self._session.delete, ref)

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

    def history(self, *, before: Ref | None = None, limit: int | None = None) -> AsyncIterator[Checkpoint]:
        return self._turns.pages(self._session.history, before=before, limit=limit)

    async def branches(self) -> dict[str, Checkpoint]:
        return await self._turns.run(self._session.branches)

    async def tags(self) -> dict[str, Checkpoint]:
        return await self._turns.run(self._session.tags)

    async def diff(self, a: Ref, b: Ref) -> Diff:
        return await self._turns.run(self._session.diff, a, b)

    async def newest_intact(self, branch: str = "main") -> Checkpoint | None:
        return await self._turns.run(self._session.newest_intact, branch)

    # runs

    def run(
        self,
        *,
        strategy: Strategy = ALWAYS,
        branch: str = "main",
        input: Any = None,
        restart: bool = False,
        lease_s: float = 30.0,
        on_doubt: OnDoubt = "ask",
        on_failed: OnFailed = "raise",
        loops: LoopGuard | None = None,
    ) -> AsyncRun:
        """A loop that survives. Does no I/O before `async with`."""
        run = self._session.run(
            strategy=strategy,
            branch=branch,
            input=input,
            restart=restart,
            lease_s=lease_s,
            on_doubt=on_doubt,
            on_failed=on_failed,
            loops=loops,
        )
        return AsyncRun(run, self._threads)

    async def runs(self) -> list[RunInfo]:
        return await self._turns.run(self._session.runs)

    async def calls(self, ref: Ref = "main", *, pending: bool = False) -> list[Call]:
        return await self._turns.run(self._session.calls, ref, pending=pending)

    async def resolve(
        self,
        call_id: str,
        decision: Literal["retry", "skip"] | None = None,
        *,
        result: Any = UNDECIDED,
        failed: str | None = None,
    ) -> None:
        await self._turns.run(self._session.resolve, call_id, decision, result=result, failed=failed)

    async def waiting(self, branch: str = "main") -> list[Wait]:
        return await self._turns.run(self._session.waiting, branch)

    async def answer(
        self, name: str, value: Any, *, branch: str = "main", by: str | None = None, args: dict[str, Any] | None = None
    ) -> None:
        await self._turns.run(self._session.answer, name, value, branch=branch, by=by, args=args)

    async def reject(self, name: str, reason: str, *, branch: str = "main", by: str | None = None) -> None:
        await self._turns.run(self._session.reject, name, reason, branch=branch, by=by)

    async def send(self, name: str, value: Any, *, branch: str = "main") -> None:
        await self._turns.run(self._session.send, name, value, branch=branch)

    async def cancel(self, branch: str = "main", *, reason: str) -> bool:
        return await self._turns.run(self._session.cancel, branch, reason=reason)

    async def abandon(self, branch: str = "main", *, reason: str) -> None:
        await self._turns.run(self._session.abandon, branch, reason=reason)


__all__ = ["AsyncCalling", "AsyncRun", "AsyncSession", "AsyncStore", "Opening", "open", "recover"]
