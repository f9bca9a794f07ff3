"""Tools that are called once: each call of a ToolNode journaled through a Run.

LangGraph runs a whole node again after a crash, with all its tools. Here a call that is recorded done gives its result
again, and one that was in flight is in doubt. A call is told by its task (whose id LangGraph makes from the checkpoint
and the node, so that it is the same when the node runs again) and the id that the model gave it. So a tool waits until
that checkpoint is on disk: after a crash without it LangGraph would ask the model again, and nobody knew the calls.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp

from backstay.adapters.langgraph.codec import Codec
from backstay.adapters.langgraph.opening import sync_store
from backstay.adapters.langgraph.rows import calls_of
from backstay.adapters.langgraph.saver import BackstaySaver
from backstay.aio import AsyncStore
from backstay.aio.run import AsyncRun
from backstay.aio.threads import Threads
from backstay.errors import BackstayError, CallFailedError, UnavailableError
from backstay.face import Store
from backstay.model import MAX_NAME_CHARS
from backstay.run import Run
from backstay.run.options import OnDoubt

_BUBBLED = {"interrupted": True}
_SETTLE_S = 5.0  # many times what a write takes
_TASK = re.compile(r":[^|]*")
_log = logging.getLogger("backstay.adapters.langgraph")


class Once:
    """What `once` gives: a wrapper of tool calls, sync (`wrap_tool_call`) and async (`awrap_tool_call`).

    `ToolNode(tools, **once(store))` gives it both. Called with a ToolNode it wraps that one.
    """

    def __init__(self, kept: Run | Store | AsyncStore, *, on_doubt: OnDoubt, serde: Any) -> None:
        self._kept = kept if isinstance(kept, Run) else sync_store(kept)
        self._on_doubt: OnDoubt = on_doubt
        self._codec = Codec(serde)
        self._threads = Threads()
        self._unkept: set[str] = set()  # subgraphs that have no checkpoints

    def __call__(self, request: Any, execute: Callable[[Any], Any] | None = None) -> Any:
        """Wrap one tool call, sync or async; or a whole ToolNode."""
        if execute is None:
            request._wrap_tool_call, request._awrap_tool_call = self.wrap_tool_call, self.awrap_tool_call  # noqa: SLF001
            return request
        wrap = self.awrap_tool_call if inspect.iscoroutinefunction(execute) else self.wrap_tool_call
        return wrap(request, execute)

    def keys(self) -> Iterator[str]:
        """The arguments of a ToolNode that this fills: for `**once(store)`."""
        return iter(("wrap_tool_call", "awrap_tool_call"))

    def __getitem__(self, name: str) -> Any:
        """One of them."""
        if name not in self.keys():
            raise KeyError(name)
        return getattr(self, name)

    def wrap_tool_call(self, request: Any, execute: Callable[[Any], Any]) -> Any:
        """The outcome of a tool call: recorded, or made now."""
        asked = _Asked(request, self._codec, self._on_doubt)
        with _own_errors():
            run = self._run_of(asked)
        if run is None:
            return execute(request)
        with _own_errors():
            self._settle(asked)
            if run is self._kept:
                return self._made(run, asked, execute)
            with run:
                found = self._made(run, asked, execute)
                # Not completed: the next run on this branch is to find what was recorded.
                run.pause("the tool was called")
            return found

    def _made(self, run: Run, asked: _Asked, execute: Callable[[Any], Any]) -> Any:
        def fn() -> Any:
            with asked.bubbling():
                asked.take(execute(asked.request))
            return asked.made

        while True:
            found = run.call(asked.name, fn, **asked.options)
            if asked.is_answer(found):
                return asked.answer(found)

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same for a coroutine. Cancelled before the tool was called it never was; in the middle it is in doubt."""
        asked = _Asked(request, self._codec, self._on_doubt)
        with _own_errors():
            run = self._run_of(asked)
        if run is None:
            return await execute(request)
        with _own_errors():
            await self._threads.run(self._settle, asked)
            awaited = AsyncRun(run, self._threads)
            if run is self._kept:
                return await self._amade(awaited, asked, execute)
            async with awaited:
                found = await self._amade(awaited, asked, execute)
                awaited.pause("the tool was called")
            return found

    async def _amade(self, run: AsyncRun, asked: _Asked, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        async def fn() -> Any:
            with asked.bubbling():
                asked.take(await execute(asked.request))
            return asked.made

        while True:
            found = await run.call(asked.name, fn, **asked.options)
            if asked.is_answer(found):
                return asked.answer(found)

    def _settle(self, asked: _Asked) -> None:
        """Wait until the steps that a call was asked for in are on disk."""
        for ns, step in asked.steps.items():
            path = _TASK.sub("", ns)
            until, pause_s = time.monotonic() + _SETTLE_S, 0.0005
            while path not in self._unkept and not asked.saver.holds(asked.thread, step):
                if time.monotonic() > until:
                    if not path:
                        message = f"thread {asked.thread!r}: step {step} is not on disk yet, so no tool is called"
                        raise UnavailableError(message, hint="run the graph again")
                    self._unkept.add(path)
                    _log.warning("subgraph %r has no checkpoints: after a crash its tools may be called again", path)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)

    def _run_of(self, asked: _Asked) -> Run | None:
        """The run that keeps a call; None for a graph without a checkpointer, which nobody will resume."""
        if isinstance(self._kept, Run):
            asked.options["key"] = f"{asked.task}/{asked.id}"
            return self._kept
        if asked.thread is None:
            return None
        session = self._kept.session(calls_of(asked.thread))
        return session.run(branch=_branch(asked.task, asked.id), on_doubt=self._on_doubt)


class _Asked:
    """A tool call that was asked for: how it is told from others, and what came out."""

    def __init__(self, request: Any, codec: Codec, on_doubt: OnDoubt) -> None:
        self.request = request
        self._call = request.tool_call
        where = request.runtime.config.get("configurable", {})
        self.task = str(where.get("checkpoint_ns", ""))
        self.thread = None if where.get("thread_id") is None else str(where["thread_id"])
        # Steps that are never written before the end cannot be waited for; other savers do not tell.
        self.saver: Any = where.get("__pregel_checkpointer")
        is_ours = isinstance(self.saver, BackstaySaver)
        # The graph's saver knows the types that its schema names.
        self._codec = self.saver.codec if is_ours and not codec.seals and not self.saver.codec.seals else codec
        is_told = is_ours and where.get("__pregel_durability") != "exit"
        self.steps: dict[str, str] = where.get("checkpoint_map", {}) if is_told else {}
        self.id = f"{self._call['id']}{_again(request)}"
        self.name: str = self._call["name"]
        self.options: dict[str, Any] = {
            "key": self.id,
            "args": None if codec.seals else self._call["args"],
            "on_doubt": on_doubt,
            "on_failed": "retry",
        }
        self.made: Any = None
        self._given: list[Any] = []  # by the tool, in this process
        self._raised: GraphBubbleUp | Exception | None = None

    @contextlib.contextmanager
    def bubbling(self) -> Iterator[None]:
        """A tool that asks a person is not done: it runs again with the answer."""
        try:
            yield
        except GraphBubbleUp as raised:
            self._raised, self.made = raised, _BUBBLED

    def take(self, value: Any) -> None:
        """What the tool gave, as it is kept."""
        self._given = [value]
        try:
            self.made = self._codec.memo().value(value)
        except Exception as error:  # noqa: BLE001 - of anybody's serializer
            # The tool has done its work. That this cannot be kept is no reason to do it again.
            self._raised, self.made = error, None

    def is_answer(self, found: Any) -> bool:
        """False if the tool had only asked a person, so that it is to be called again."""
        if self._raised is not None:
            raise self._raised
        return bool(found != _BUBBLED)

    def answer(self, found: Any) -> Any:
        """What came out, as a ToolNode wants it; somebody who decided a call may have said it in plain words."""
        if self._given:  # as it is without `once`; not every type is built again
            return self._given[0]
        found = self._codec.revive(found)
        if found is not None and not isinstance(found, str | int | float | bool | dict):
            return found
        unknown = "The outcome of this call is unknown."
        text = unknown if found is None else found if isinstance(found, str) else repr(found)
        return ToolMessage(text, name=self.name, tool_call_id=self._call["id"])


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    """LangGraph knows what to do with a tool's own errors; ours are for those who run the graph.

    A ToolNode that handles errors would tell them to the model, and that would ask for the tool again.
    """
    try:
        yield
    except CallFailedError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise
    except BackstayError as error:
        error.__class__ = _bubbling(type(error))
        raise


def _bubbling(kind: type[BackstayError]) -> type[BackstayError]:
    """The same error as one that LangGraph lets through."""
    return type(kind.__name__, (kind, GraphBubbleUp), {"__module__": kind.__module__})


def _again(request: Any) -> str:
    """What tells a call from those before it in the same message: some models give an id twice."""
    state, call = request.state, request.tool_call
    fields = state if isinstance(state, dict) else getattr(state, "__dict__", {})
    for channel in [state, *fields.values()]:
        last = [each for each in channel if isinstance(each, AIMessage)][-1:] if isinstance(channel, list) else []
        for calls in [message.tool_calls for message in last]:
            for at, each in enumerate(calls):
                if each is call:
                    before = [one["id"] for one in calls[:at]].count(call["id"])
                    return f"#{before}" if before else ""
    return ""


def _branch(task: str, call_id: str) -> str:
    name = f"{task}/{call_id}"
    return name if len(name) <= MAX_NAME_CHARS else sha256(name.encode()).hexdigest()


def once(run_or_store: Run | Store | AsyncStore, *, on_doubt: OnDoubt = "ask", serde: Any = None) -> Any:
    """Have each tool call made once, whatever LangGraph runs again.

    `ToolNode(tools, **once(store))`, or `create_agent(model, tools, middleware=[once(store)])` of LangChain, which
    deepagents takes too.

    With a Store each call is journaled in a session beside that of its thread, `<thread>/tools`; with a Run in that
    run, whose session must be another than the thread's. `on_doubt` says what becomes of a call that was in flight at a
    crash.
    """
    made = Once if (base := _middleware_class()) is None else type("once", (Once, base), {})
    return made(run_or_store, on_doubt=on_doubt, serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))


def _middleware_class() -> type | None:
    """LangChain's AgentMiddleware, where agents of its own are in use; importing it for all others takes a second."""
    middleware = sys.modules.get("langchain.agents.middleware")
    return None if middleware is None else middleware.AgentMiddleware
