"""Calls that are made once: tools of a ToolNode or an agent, `@task` functions and nodes, journaled through a Run.

LangGraph runs a whole node again after a crash, with all its tools. Here a call that is recorded done gives its result
again, and one that was in flight is in doubt. A call is told by its task (whose id LangGraph makes from the checkpoint
and the node, so that it is the same when the node runs again) and, of a tool, the id that the model gave it. So a call
waits until that checkpoint is on disk: after a crash without it LangGraph would ask the model again, for other calls.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from backstay.adapters.langgraph.codec import Codec
from backstay.adapters.langgraph.graph_calls import FunctionCall, GraphCall, ToolNodeCall, called_twice, own_errors
from backstay.adapters.langgraph.opening import sync_store
from backstay.aio import AsyncStore
from backstay.aio.run import AsyncRun
from backstay.aio.threads import Threads
from backstay.errors import InvalidInputError, UnavailableError
from backstay.face import Store
from backstay.face.calls_beside import calls_session
from backstay.run import Run
from backstay.run.options import OnDoubt

_SETTLE_S = 5.0  # many times what a write takes
_MANY_CALLS = 256
_TASK = re.compile(r":[^|]*")
_log = logging.getLogger("backstay.adapters.langgraph")


class Once:
    """What `once` gives: a wrapper of tool calls, sync (`wrap_tool_call`) and async (`awrap_tool_call`).

    `ToolNode(tools, **once(store))` gives it both. Called with a ToolNode it wraps that one; with a function, or a
    `@task`, it gives one that is called once.
    """

    def __init__(self, kept: Run | Store | AsyncStore, *, on_doubt: OnDoubt, serde: Any) -> None:
        self._kept = kept if isinstance(kept, Run) else sync_store(kept)
        self._on_doubt: OnDoubt = on_doubt
        self._codec = Codec(serde)
        self._threads = Threads()
        self._unkept: set[str] = set()  # subgraphs that have no checkpoints
        self._attempts: OrderedDict[str, Any] = OrderedDict()  # by call: the attempt of the task that made it last

    def __call__(self, request: Any, execute: Callable[[Any], Any] | None = None) -> Any:
        """Wrap one tool call, sync or async; or a whole ToolNode, a function, a `@task`."""
        if execute is not None:
            wrap = self.awrap_tool_call if inspect.iscoroutinefunction(execute) else self.wrap_tool_call
            return wrap(request, execute)
        if hasattr(request, "_awrap_tool_call"):
            request._wrap_tool_call, request._awrap_tool_call = self.wrap_tool_call, self.awrap_tool_call  # noqa: SLF001
            return request
        if hasattr(request, "retry_policy") and callable(getattr(request, "func", None)):
            task = copy.copy(request)
            task.func = self._function(request.func)
            return task
        return self._function(request)

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
        asked = ToolNodeCall(request, codec=self._codec, on_doubt=self._on_doubt)
        return self._outcome(asked, functools.partial(execute, request))

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same for a coroutine. Cancelled before the tool was called it never was; in the middle it is in doubt."""
        asked = ToolNodeCall(request, codec=self._codec, on_doubt=self._on_doubt)
        return await self._awaited(asked, functools.partial(execute, request))

    def _function(self, fn: Any) -> Any:
        """A node, or the function of a task, that is called once in its step."""
        if (
            not callable(fn)
            or hasattr(fn, "invoke")
            or inspect.isgeneratorfunction(fn)
            or inspect.isasyncgenfunction(fn)
        ):
            message = f"once takes a ToolNode, a @task or a function that returns, not {fn!r}"
            raise InvalidInputError(message, hint="wrap the function that does the work")
        name: str = getattr(fn, "__name__", type(fn).__name__)
        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return await self._awaited(self._asked(name), functools.partial(fn, *args, **kwargs))

            return awaited

        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            return self._outcome(self._asked(name), functools.partial(fn, *args, **kwargs))

        return called

    def _asked(self, name: str) -> GraphCall:
        config = var_child_runnable_config.get()
        if config is None:
            message = f"{name!r} is made once by the graph that calls it, and none does"
            hint = (
                "in a thread of your own run it by contextvars.copy_context().run; without a graph call its __wrapped__"
            )
            raise InvalidInputError(message, hint=hint)
        asked = FunctionCall(config, name, codec=self._codec, on_doubt=self._on_doubt)
        place = f"{asked.thread}/{asked.branch}"
        if self._attempts.get(place) is config:
            raise called_twice(name)
        self._attempts[place] = config
        if len(self._attempts) > _MANY_CALLS:
            self._attempts.popitem(last=False)
        return asked

    def _outcome(self, asked: GraphCall, execute: Callable[[], Any]) -> Any:
        with own_errors():
            run = self._run_of(asked)
        if run is None:
            return execute()
        with own_errors():
            self._settle(asked)
            if run is self._kept:
                return _made(run, asked, execute)
            with run:
                outcome = _made(run, asked, execute)
                # Not completed: the next run on this branch is to find what was recorded.
                run.pause(f"{asked.name} was called")
            return outcome

    async def _awaited(self, asked: GraphCall, execute: Callable[[], Awaitable[Any]]) -> Any:
        with own_errors():
            run = self._run_of(asked)
        if run is None:
            return await execute()
        with own_errors():
            await self._threads.run(self._settle, asked)
            awaited = AsyncRun(run, self._threads)
            if run is self._kept:
                return await _amade(awaited, asked, execute)
            async with awaited:
                outcome = await _amade(awaited, asked, execute)
                awaited.pause(f"{asked.name} was called")
            return outcome

    def _settle(self, asked: GraphCall) -> None:
        """Wait until the steps that a call was asked for in are on disk."""
        for ns, step in asked.steps.items():
            path = _TASK.sub("", ns)
            until, pause_s = time.monotonic() + _SETTLE_S, 0.0005
            while path not in self._unkept and not asked.saver.holds(asked.thread, step):
                if time.monotonic() > until:
                    if not path:
                        message = f"thread {asked.thread!r}: step {step} is not on disk yet, so nothing is called"
                        raise UnavailableError(message, hint="run the graph again")
                    self._unkept.add(path)
                    _log.warning("subgraph %r has no checkpoints: after a crash its tools may be called again", path)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)

    def _run_of(self, asked: GraphCall) -> Run | None:
        """The run that keeps a call; None for a graph without a checkpointer, which nobody will resume."""
        if isinstance(self._kept, Run):
            asked.options["key"] = f"{asked.task}/{asked.id}"
            return self._kept
        if asked.thread is None:
            return None
        session = self._kept.session(calls_session(asked.thread))
        return session.run(branch=asked.branch, on_doubt=self._on_doubt)


def _made(run: Run, asked: GraphCall, execute: Callable[[], Any]) -> Any:
    def fn() -> Any:
        with asked.bubbling():
            asked.take(execute())
        return asked.made

    while True:
        recorded = run.call(asked.name, fn, **asked.options)
        if asked.is_answer(recorded):
            return asked.answer(recorded)


async def _amade(run: AsyncRun, asked: GraphCall, execute: Callable[[], Awaitable[Any]]) -> Any:
    async def fn() -> Any:
        with asked.bubbling():
            asked.take(await execute())
        return asked.made

    while True:
        recorded = await run.call(asked.name, fn, **asked.options)
        if asked.is_answer(recorded):
            return asked.answer(recorded)


def once(run_or_store: Run | Store | AsyncStore, *, on_doubt: OnDoubt = "ask", serde: Any = None) -> Any:
    """Have each call made once, whatever LangGraph runs again.

    `ToolNode(tools, **once(store))`, or `create_agent(model, tools, middleware=[once(store)])` of LangChain, which
    deepagents takes too; `@task` above `@once(store)` on a function, and `graph.add_node("pay", once(store)(pay))`.

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
