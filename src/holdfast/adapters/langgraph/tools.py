"""Tools that are called once: each call of a ToolNode journaled through a Run.

LangGraph runs a whole node again after a crash, with all its tools. Here a call that is recorded done gives its result
again, and one that was in flight is in doubt. A call is told by its task (whose id LangGraph makes from the checkpoint
and the node, so that it is the same when the node runs again) and the id that the model gave it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp

from holdfast.adapters.langgraph.lines import calls_of
from holdfast.adapters.langgraph.plain import Codec
from holdfast.errors import CallFailedError
from holdfast.model import MAX_NAME_CHARS
from holdfast.run import Run
from holdfast.run.wording import OnDoubt
from holdfast.store import Store

_MANY_CALLS = 64  # at once, of coroutines: each waits in a thread, so that the event loop never does
_BUBBLED = "interrupted"


class Once:
    """What `once` gives: a wrapper of tool calls, sync (`wrap_tool_call`) and async (`awrap_tool_call`).

    `ToolNode(tools, **once(store))` gives it both. Called with a ToolNode it wraps that one.
    """

    def __init__(self, kept: Run | Store, *, on_doubt: OnDoubt, serde: Any) -> None:
        self._kept = kept
        self._on_doubt = on_doubt
        self._codec = Codec(serde)
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, request: Any, execute: Callable[[Any], Any] | None = None) -> Any:
        """Wrap one tool call; or a whole ToolNode."""
        if execute is None:
            request._wrap_tool_call, request._awrap_tool_call = self.wrap_tool_call, self.awrap_tool_call  # noqa: SLF001
            return request
        return self.wrap_tool_call(request, execute)

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
        return self._outcome(request, lambda: execute(request))

    async def awrap_tool_call(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same for a coroutine, which runs on the event loop."""
        loop = asyncio.get_running_loop()
        made: list[Future[Any]] = []

        async def run() -> Any:
            return await execute(request)

        def make() -> Any:
            made.append(asyncio.run_coroutine_threadsafe(run(), loop))
            return made[-1].result()

        if self._pool is None:
            self._pool = ThreadPoolExecutor(_MANY_CALLS, thread_name_prefix="holdfast-tools")
        here = contextvars.copy_context()
        try:
            return await loop.run_in_executor(self._pool, partial(here.run, self._outcome, request, make))
        except asyncio.CancelledError:
            for future in made:
                future.cancel()
            raise

    def _outcome(self, request: Any, make: Callable[[], Any]) -> Any:
        asked = request.runtime.config.get("configurable", {})
        task = str(asked.get("checkpoint_ns", ""))
        if isinstance(self._kept, Run):
            return self._call(self._kept, f"{task}/{request.tool_call['id']}", request, make)
        if asked.get("thread_id") is None:  # a graph without a checkpointer: nobody will resume it
            return make()
        session = self._kept.session(calls_of(str(asked["thread_id"])))
        with session.run(branch=_branch(task, str(request.tool_call["id"])), on_doubt=self._on_doubt) as run:
            found = self._call(run, str(request.tool_call["id"]), request, make)
            # Not completed: the next run on this branch is to find what was recorded.
            run.pause("the tool was called")
        return found

    def _call(self, run: Run, key: str, request: Any, make: Callable[[], Any]) -> Any:
        call = request.tool_call
        bubble: GraphBubbleUp | None = None

        def fn() -> Any:
            nonlocal bubble
            try:
                return self._codec.memo().plain(make())
            except GraphBubbleUp as raised:  # the tool asks a person: it is not done, and runs again with the answer
                bubble = raised
                return {_BUBBLED: True}

        while True:
            try:
                found = run.call(
                    call["name"], fn, key=key, args=call["args"], on_doubt=self._on_doubt, on_failed="retry"
                )
            except CallFailedError as error:
                if error.__cause__ is not None:
                    raise error.__cause__ from None  # LangGraph knows what to do with a tool's own errors
                raise
            if bubble is not None:
                raise bubble
            if found != {_BUBBLED: True}:
                return _answer(self._codec.revive(found), call)


def _answer(found: Any, call: Any) -> Any:
    """What came out, as a ToolNode wants it; somebody who decided a call may have said it in plain words."""
    if found is not None and not isinstance(found, str | int | float | bool | dict):
        return found
    text = "The outcome of this call is unknown." if found is None else found if isinstance(found, str) else repr(found)
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"])


def _branch(task: str, call_id: str) -> str:
    name = f"{task}/{call_id}"
    return name if len(name) <= MAX_NAME_CHARS else sha256(name.encode()).hexdigest()


def once(run_or_store: Run | Store, *, on_doubt: OnDoubt = "ask", serde: Any = None) -> Once:
    """Have each tool call of a ToolNode made once, whatever LangGraph runs again: `ToolNode(tools, **once(store))`.

    With a Store each call is journaled in a session beside that of its thread, `<thread>/tools`; with a Run in that
    run, whose session must be another than the thread's. `on_doubt` says what becomes of a call that was in flight at a
    crash.
    """
    return Once(run_or_store, on_doubt=on_doubt, serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
