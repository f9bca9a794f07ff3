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
import inspect
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from backstay import opening
from backstay.aio.run import AsyncCalling, AsyncRun, recover
from backstay.aio.session import AsyncSession
from backstay.aio.threads import Threads
from backstay.errors import InvalidInputError
from backstay.face import Store
from backstay.face.watching import POLL_S, ChangeWatch
from backstay.loops import LoopGuard
from backstay.model import (
    Checkpoint,
    Durability,
    Hit,
    ImportReport,
    OnExists,
    PruneReport,
    SessionInfo,
    Status,
    StatusName,
    StoreStats,
    VerifyReport,
    Wait,
)
from backstay.retention import Retention
from backstay.run.options import OnDoubt, OnFailed
from backstay.store.events import EventName
from backstay.strategy import ALWAYS, Strategy
from backstay.upkeep.progress import Progress

if TYPE_CHECKING:
    from backstay.workspace.policy import Workspace


class Opening:
    """What `open` gives: `await` it for the store, or use it with `async with`, which closes the store too."""

    def __init__(self, url: str | os.PathLike[str] | None, durability: Durability) -> None:
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


def open(url: str | os.PathLike[str] | None = None, *, durability: Durability = "full") -> Opening:
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

    def session(
        self,
        id: str,
        *,
        agent: str | None = None,
        owner: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        workspace: Workspace | str | os.PathLike[str] | None = None,
    ) -> AsyncSession:
        """A session by its id. Does no I/O, so there is nothing to await."""
        session = self._store.session(id, agent=agent, owner=owner, title=title, metadata=metadata, workspace=workspace)
        return AsyncSession(session, self._threads)

    def sessions(
        self,
        *,
        status: Status | StatusName | None = None,
        agent: str | None = None,
        owner: str | None = None,
        prefix: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        crashed: bool | None = None,
        waiting: bool | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[SessionInfo]:
        return self._threads.pages(
            self._store.sessions,
            status=status,
            agent=agent,
            owner=owner,
            prefix=prefix,
            metadata=metadata,
            since=since,
            crashed=crashed,
            waiting=waiting,
            before=before,
            limit=limit,
        )

    def search(
        self,
        text: str,
        *,
        session: str | None = None,
        agent: str | None = None,
        ignore_case: bool = True,
        limit: int | None = None,
    ) -> AsyncIterator[Hit]:
        return self._threads.pages(
            self._store.search, text, session=session, agent=agent, ignore_case=ignore_case, limit=limit
        )

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
        workspace: Workspace | str | os.PathLike[str] | None = None,
    ) -> AsyncRun:
        """A loop that survives. Does no I/O before `async with`."""
        return self.session(id, agent=agent, workspace=workspace).run(
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
        children: bool = True,
        overwrite: bool = False,
        with_secrets: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write sessions to a file. `progress` is called on the event loop that opened the store."""
        told = self._on_loop(progress)
        options: dict[str, Any] = {"session": session, "children": children, "overwrite": overwrite}
        await self._threads.run(self._store.export, path, **options, with_secrets=with_secrets, progress=told)

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        rename: str | Mapping[str, str] | None = None,
        on_exists: OnExists = "refuse",
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

    async def files_settled(self) -> None:
        await self._threads.run(self._store.files_settled)

    async def stats(self) -> StoreStats:
        return await self._threads.run(self._store.stats)

    def on(self, event: EventName, fn: Callable[[Any], object]) -> None:
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


__all__ = ["AsyncCalling", "AsyncRun", "AsyncSession", "AsyncStore", "Opening", "open", "recover"]
