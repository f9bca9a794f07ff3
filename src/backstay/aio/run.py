"""Runs, awaited: the same steps in the same order, each in a thread of the store; the calls themselves on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, overload

from backstay.aio.threads import Threads
from backstay.errors import InvalidInputError
from backstay.face.recovery import RunOptions, RunWatch, Tally, take_up
from backstay.loops import LoopGuard
from backstay.model import Call, Checkpoint, RecoverReport, StateDict, Usage
from backstay.run import Run
from backstay.run.calling import Calling
from backstay.run.options import OnDoubt, OnFailed, OnMismatch, approved
from backstay.run.streaming import Arrived, cut
from backstay.run.typed_results import typed
from backstay.run.wait_journal import ABSENT, OpenWait, WaitOutcome
from backstay.strategy import ALWAYS, Event, Strategy

if TYPE_CHECKING:
    import os

    from backstay.aio import AsyncStore
    from backstay.run.files import RunFiles
    from backstay.workspace.policy import Workspace

T = TypeVar("T")


_IDLE_LOOK_S = 0.01


class AsyncRun:
    """One live execution of a session, awaited. Made by `session.run()` or `store.run()`, entered by `async with`.

    Tasks may make calls at once (`asyncio.gather`), each with a key of its own.
    """

    def __init__(self, run: Run, threads: Threads) -> None:
        self._run = run
        self._threads = threads

    def __repr__(self) -> str:
        return f"<Async{repr(self._run)[1:]}"

    async def __aenter__(self) -> Self:
        await _entered(self._threads, self._run.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await self._threads.finish(self._run.leave, error)

    # what a run knows

    @property
    def state(self) -> StateDict:
        return self._run.state

    @state.setter
    def state(self, state: StateDict) -> None:
        self._run.state = state

    @property
    def input(self) -> Any:
        return self._run.input

    @property
    def resumed(self) -> bool:
        return self._run.resumed

    @property
    def head(self) -> Checkpoint | None:
        return self._run.head

    @property
    def in_doubt(self) -> list[Call]:
        return self._run.in_doubt

    @property
    def iteration(self) -> int:
        return self._run.iteration

    @property
    def usage(self) -> Usage:
        return self._run.usage

    @property
    def stopping(self) -> str | None:
        return self._run.stopping

    @property
    def warning(self) -> str | None:
        return self._run.warning

    @property
    def files(self) -> RunFiles | None:
        return self._run.files

    @property
    def resume_hint(self) -> str | None:
        return self._run.resume_hint

    @resume_hint.setter
    def resume_hint(self, hint: str | None) -> None:
        self._run.resume_hint = hint

    # calls

    @overload
    async def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        returns: type[T],
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
        approve: bool = False,
        effects: Literal["files"] | None = None,
    ) -> T: ...

    @overload
    async def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        returns: None = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
        approve: bool = False,
        effects: Literal["files"] | None = None,
    ) -> Any: ...

    async def call(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        returns: type[T] | None = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
        approve: bool = False,
        effects: Literal["files"] | None = None,
    ) -> Any:
        """The outcome of `fn()`, awaited if it can be. `fn` is called on the event loop: what blocks belongs in
        `asyncio.to_thread`.
        """  # noqa: D205
        edited, make = None, fn
        if approve:
            given = await self._waited(partial(self._run.begin_approval, name, key=key, args=args))
            edited = self._run.approved_args(given)
            make = approved(fn, args, edited)
        begin = partial(
            self._run.begin,
            name,
            key=key,
            kind=kind,
            args=args,
            returns=returns,
            on_doubt=on_doubt,
            on_failed=on_failed,
            on_mismatch=on_mismatch,
            edited=edited,
            effects=effects,
        )
        calling = await self._begin(begin)
        if calling.done:
            return typed(calling.row, calling.result, returns)
        with self._run.enclosed(calling):
            try:
                value = make()
                if inspect.isawaitable(value):
                    value = await value
            except BaseException as error:
                await self._threads.finish(calling.give_up, error)  # raises CallFailedError for a tool's exception
                raise
        return await self._threads.finish(calling.finish_as, value, returns)

    @contextlib.asynccontextmanager
    async def calling(
        self,
        name: str,
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "tool",
        args: Any = None,
        on_doubt: OnDoubt | None = None,
        on_failed: OnFailed | None = None,
        on_mismatch: OnMismatch = "raise",
    ) -> AsyncIterator[AsyncCalling]:
        """A call that someone else makes: `if not call.done: await call.finish(value)`; then `call.result`."""
        begin = partial(
            self._run.begin,
            name,
            key=key,
            kind=kind,
            args=args,
            on_doubt=on_doubt,
            on_failed=on_failed,
            on_mismatch=on_mismatch,
        )
        calling = await self._begin(begin)
        with self._run.enclosed(calling):
            try:
                yield AsyncCalling(calling, self._threads)
            except BaseException as error:
                if not calling.done:
                    await self._threads.finish(calling.give_up, error)
                raise
        if not calling.done:
            await self._threads.finish(calling.interrupt)
            message = f"call {name!r} was left without an outcome, and is in doubt now"
            raise InvalidInputError(message, hint="say what came out: await call.finish(value)")

    async def _begin(self, begin: Callable[[], Calling]) -> Calling:
        begun: list[Calling] = []

        def noted() -> Calling:
            begun.append(begin())
            return begun[0]

        try:
            return await self._threads.finish(noted)
        except BaseException:
            for calling in begun:  # cancelled while it was written down, and so never made
                if not calling.done:
                    await self._threads.finish(calling.withdraw)
            raise

    async def now(self, *, key: str | None = None) -> datetime:
        return await self._threads.finish(self._run.now, key=key)

    async def uuid(self, *, key: str | None = None) -> uuid.UUID:
        return await self._threads.finish(self._run.uuid, key=key)

    async def random(self, *, key: str | None = None) -> float:
        return await self._threads.finish(self._run.random, key=key)

    # streams

    @property
    def replaying(self) -> bool:
        return self._run.replaying

    async def stream(
        self,
        name: str,
        fn: Callable[[], Any],
        *,
        key: str | None = None,
        kind: Literal["tool", "llm"] = "llm",
        args: Any = None,
    ) -> AsyncIterator[Any]:
        """The chunks of an async iterator, or a plain one, as they come; after a crash, those that were recorded."""
        calling = await self._begin(partial(self._run.begin, name, key=key, kind=kind, args=args))
        if calling.done:
            for chunk in calling.result:
                yield chunk
            return
        arrived = Arrived(calling)
        try:
            with self._run.enclosed(calling):
                source = fn()
                source = await source if inspect.isawaitable(source) else source
            async for chunk in _chunks(source, partial(self._run.enclosed, calling)):
                chunk = arrived.add(chunk)  # noqa: PLW2901 - from here on it is what will be recorded
                if arrived.due:
                    await self._threads.finish(arrived.keep)
                yield chunk
        except BaseException as error:
            await self._threads.finish(cut, calling, arrived.chunks, error)
            raise
        await self._threads.finish(calling.finish, arrived.chunks)

    # children

    @contextlib.asynccontextmanager
    async def child(self, name: str, *, input: Any = None) -> AsyncIterator[AsyncRun]:
        """A run on session `<id>/<name>`, linked to this one: `async with run.child("research") as sub:`."""
        begun = await self._threads.finish(self._run.begin_child, name, input)
        try:
            yield AsyncRun(begun.run, self._threads)
        except BaseException as error:  # noqa: BLE001 - raised again, or as what it is to the parent
            raised = await self._threads.finish(self._run.end_child, begun, error)
            if raised is None:
                while not self._run.leave_waiting():  # noqa: ASYNC110 - as in `_waited`
                    await asyncio.sleep(_IDLE_LOOK_S)
                raise self._run.left() from None
            raise raised from (None if raised is error else error)
        raised = await self._threads.finish(self._run.end_child, begun, None)
        if raised is not None:
            raise raised

    # waits

    async def wait(
        self,
        name: str,
        ask: Any = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        default: Any = ABSENT,
        hold_s: float = 0.0,
    ) -> Any:
        """The value that someone gives with `session.answer(name, value)`; until then the run is left, waiting."""
        begin = partial(self._run.begin_wait, name, ask, key=key, timeout_s=timeout_s, default=default)
        return (await self._waited(begin, hold_s)).value

    async def sleep(self, seconds: float | None = None, *, until: datetime | None = None, hold_s: float = 0.0) -> None:
        """Go on after some seconds, or at a moment; the run is left meanwhile."""
        await self._waited(partial(self._run.begin_sleep, seconds, until=until), hold_s)

    async def receive(
        self,
        name: str,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
        default: Any = ABSENT,
        hold_s: float = 0.0,
    ) -> Any:
        """The next message of that name."""
        begin = partial(self._run.begin_receive, name, key=key, timeout_s=timeout_s, default=default)
        return (await self._waited(begin, hold_s)).value

    async def _waited(self, begin: Callable[[], WaitOutcome | OpenWait], hold_s: float = 0.0) -> WaitOutcome:
        wait = await self._threads.finish(begin)
        if isinstance(wait, OpenWait):
            given = await self._threads.finish(self._run.hold, wait, hold_s)
            if given is not None:
                return given
            while not self._run.leave_waiting():  # noqa: ASYNC110 - threads may be busy too; the tasks beside this one end their calls first
                await asyncio.sleep(_IDLE_LOOK_S)
            raise self._run.left()
        return wait

    def append(self, message: Any, part: str = "messages") -> None:
        """Add a message to a list in the state."""
        self._run.append(message, part)

    def use(
        self,
        *,
        tokens_in: int = 0,
        tokens_out: int = 0,
        cost: float = 0.0,
        tasks_completed: int = 0,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Count what was used since the last boundary."""
        self._run.use(
            tokens_in=tokens_in, tokens_out=tokens_out, cost=cost, tasks_completed=tasks_completed, extra=extra
        )

    # boundaries

    async def step(self) -> Checkpoint | None:
        return await self._threads.finish(self._run.step)

    async def event(self, event: Event) -> Checkpoint | None:
        return await self._threads.finish(self._run.event, event)

    async def checkpoint(self, label: str | None = None) -> Checkpoint | None:
        return await self._threads.finish(self._run.checkpoint, label)

    def halt(self, reason: str) -> NoReturn:
        """End the run: halted, for this reason."""
        self._run.halt(reason)

    def fail(self, reason: str) -> NoReturn:
        """End the run: failed, for this reason."""
        self._run.fail(reason)

    def cancel(self, reason: str) -> NoReturn:
        """End the run: cancelled. In the handler of a cancellation it raises that again."""
        self._run.cancel(reason)

    def pause(self, reason: str = "paused") -> NoReturn:
        """End the run here, still in progress."""
        self._run.pause(reason)


async def _chunks(source: Any, enclosed: Callable[[], contextlib.AbstractContextManager[None]]) -> AsyncIterator[Any]:
    """What a source gives, one at a time; what it asks for in between belongs to its call."""
    if not hasattr(source, "__aiter__"):
        for chunk in source:
            yield chunk
        return
    items = source.__aiter__()
    while True:
        with enclosed():
            try:
                chunk = await items.__anext__()
            except StopAsyncIteration:
                return
        yield chunk


class AsyncCalling:
    """A call that was asked for. `done`: it has an outcome, `result`. Otherwise it may be made now, and `finish`ed."""

    def __init__(self, calling: Calling, threads: Threads) -> None:
        self._calling = calling
        self._threads = threads

    @property
    def id(self) -> str:
        return self._calling.id

    @property
    def done(self) -> bool:
        return self._calling.done

    @property
    def result(self) -> Any:
        return self._calling.result

    async def finish(self, value: Any) -> Any:
        return await self._threads.finish(self._calling.finish, value)


async def _entered(threads: Threads, enter: Callable[[], Run | None]) -> Run | None:
    """A run that is entered; if this is cancelled meanwhile it is left again, because nobody else will."""
    found: list[Run | None] = []
    try:
        await threads.finish(lambda: found.append(enter()))
    except asyncio.CancelledError as error:
        for run in found:
            if run is not None:
                await threads.finish(run.leave, error)
        raise
    return found[0]


async def recover(
    store: AsyncStore,
    handler: Callable[[AsyncRun], Awaitable[Any]],
    *,
    agent: str | None = None,
    wait_s: float = 0.0,
    strategy: Strategy = ALWAYS,
    lease_s: float = 30.0,
    on_doubt: OnDoubt = "ask",
    on_failed: OnFailed = "raise",
    loops: LoopGuard | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
) -> RecoverReport:
    """Await `handler(run)` for every session that crashed or is ready; one that fails does not stop the rest."""
    options = RunOptions(strategy, lease_s, on_doubt, on_failed, loops, workspace)
    tally, threads = Tally(), store.threads
    watch = RunWatch(store.sync, agent, wait_s)
    tally.in_doubt |= await threads.run(watch.undecided)
    while (found := await threads.run(watch.look)) is not None:
        for session_id, row in found:
            run = await _entered(threads, partial(take_up, store.sync, session_id, row, tally, options))
            if run is None:
                continue
            watch.took(session_id, run)
            try:
                async with AsyncRun(run, threads) as entered:
                    await handler(entered)
            except Exception as error:  # noqa: BLE001 - it is in the report, and in the session's status
                tally.failed(session_id, error)
            else:
                tally.ended(session_id, run)
    return tally.report()
