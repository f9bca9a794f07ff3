"""Hooks of the SDK that keep what a run has paid for. With them `Runner.run` is a Run.

It holds the lease of the branch; answers and tools go to the journal as they happen, and each `add_items` of the SDK is
the boundary that takes them in. What a run left in the journal is put into the items by the next one.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any, Self

from agents import RunHooks
from agents.tool_context import ToolContext

from backstay import errors
from backstay.adapters.openai_agents.items import Items, output_item, take_in
from backstay.adapters.openai_agents.live import Context, Live, key_of, lives, visits
from backstay.adapters.openai_agents.session import BackstaySession
from backstay.driving import Slot, Task


class BackstayHooks(RunHooks[Any]):  # type: ignore[misc]
    """Keeps what a run has paid for: answers when they arrive, and what became of every tool.

    `Runner.run(agent, "…", session=BackstaySession(…), hooks=BackstayHooks())`. One object may serve many runs. As
    `async with BackstayHooks() as hooks:` a run that fails gives its lease back at once, with its error as reason.
    """

    def __init__(self, session: BackstaySession | None = None, *, lease_s: float = 30.0) -> None:
        self._session, self._lease_s = session, lease_s
        self._begun: weakref.WeakSet[Live] = weakref.WeakSet()
        self._entering: dict[int, asyncio.Future[Live]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for live in list(self._begun):
            await live.threads.finish(live.leave, error)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """The first word of a run: it takes the lease."""
        await self._find_live(context)

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: Items) -> None:
        """The lease is kept while the model thinks."""
        if isinstance(context, ToolContext):
            return  # an agent that is a tool
        if not await self._tell(context, Live.ask_model, agent.name):
            message = "BackstayHooks do not know which session this run is on"
            raise errors.InvalidInputError(message, hint="Runner.run(…, session=s, hooks=BackstayHooks(s))")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """The answer goes to the journal."""
        if not isinstance(context, ToolContext):
            used = {"tokens_in": response.usage.input_tokens, "tokens_out": response.usage.output_tokens}
            answer = {"output": response.to_input_items(), "response_id": response.response_id, "usage": used}
            await self._tell(context, Live.answer, agent.name, answer)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """That the tool is about to run is on disk before it does."""
        slot, args = _slot(context, tool), {"arguments": getattr(context, "tool_arguments", None)}
        live = await self._find_live(context, slot)
        if live is not None:
            await live.threads.finish(live.start_tool, slot, args, getattr(tool, "_is_agent_tool", False))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        """What came out is on disk before the model hears of it."""
        outcome = output_item(getattr(context, "tool_call", None), result)
        await self._tell(context, Live.end, _slot(context, tool), outcome)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """The items that come now are the last."""
        live = await self._find_live(context)
        if live is not None:
            live.finish()  # only noted

    async def _tell(self, context: Any, verb: Callable[..., object], *args: Any) -> bool:
        live = await self._find_live(context)
        if live is None:
            return False
        await live.threads.finish(verb, live, *args)
        return True

    async def _find_live(self, context: Any, slot: Slot | None = None) -> Live | None:
        """The run that this context belongs to, entered if it is not yet; `slot`: for this tool."""
        key = key_of(context)
        found = [(wrapper, *visit) for wrapper, visit in list(visits.items()) if key_of(wrapper) is key]
        wrapper, session, task = found[0] if found else (None, self._session, None)
        live = None if session is None else session.live
        if session is None or (live is not None and live.key is key):
            return live
        if live is not None and not found and not live.is_over:
            if live.is_around(slot):
                return None  # an agent that is a tool of ours: its conversation is another
            if live.is_busy and not live.has_ended():
                raise errors.LeaseHeldError(f"{session!r} is being run", hint="wait for that to end, or fork")
        if live is not None and (live.is_over or not found):
            await live.threads.finish(live.leave, None)  # it has failed; or waited for an approval, which is here
        entering = self._entering.get(id(key))  # tools that begin at once are one run
        if entering is None:
            entering = asyncio.ensure_future(self._enter(session, key, wrapper, task))
            self._entering[id(key)] = entering
            entering.add_done_callback(lambda _: self._entering.pop(id(key), None))
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            # A guardrail was faster. Who is told of that and runs again must find a run that can be left.
            await asyncio.wait([entering])
            entering.cancelled() or entering.exception()  # nobody else may ask for it
            raise

    async def _enter(self, session: BackstaySession, key: object, wrapper: Context, task: Task) -> Live:
        run = session.new_run(self._lease_s)
        live = Live(session, run, key)
        await live.enter()
        live.accompany(wrapper, task)
        live.outlive(self)
        lives.setdefault(session.store, {})[live.place] = live
        self._begun.add(live)
        try:
            if await session.threads.finish(take_in, run):
                await session.threads.finish(live.record)
        except BaseException as error:
            await session.threads.finish(live.leave, error)
            raise
        return live


def _slot(context: Any, tool: Any) -> Slot:
    return tool.name, getattr(context, "tool_call_id", None)
