"""OpenAI Agents SDK: a Session kept by Holdfast, and hooks that keep what a run has paid for.

    session = HoldfastSession("ticket-42", store)
    await Runner.run(agent, "refund order 7", session=session, hooks=HoldfastHooks())

The items are `state["messages"]`; every change is a checkpoint. Without hooks each change is a commit on the head it
was made from, tried again when somebody else was faster. With hooks `Runner.run` is a Run: it holds the lease of the
branch, answers and tools go to the journal as they happen, and each `add_items` of the SDK is the boundary that takes
them in. What a run left in the journal is put into the items by the next one. Speaks to the SDK and to a Store.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from importlib.metadata import distributions
from typing import Any, Self, TypeAlias

from holdfast import errors
from holdfast.aio import AsyncSession, AsyncStore
from holdfast.aio.lanes import Crew, Turns
from holdfast.aio.run import AsyncRun
from holdfast.messages import repair_messages
from holdfast.model import Call, Checkpoint
from holdfast.run import Run
from holdfast.run.calling import Calling
from holdfast.store import Session, Store
from holdfast.store.refs import Ref

OLDEST, BEFORE = (0, 21), (0, 25)  # what the tests run with; the hooks' order and the session's `wrapper` matter


def check_version(found: str | None) -> None:
    """UnsupportedError for a version of the SDK that this adapter does not know."""
    numbers = re.match(r"(\d+)\.(\d+)", found or "")
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) < BEFORE:
        message = "this adapter knows openai-agents {}.{} to below {}.{}; here is {}".format(*OLDEST, *BEFORE, found)
        raise errors.UnsupportedError(message, hint="pip install 'holdfast[openai-agents]'")


# Before the import below: another package may be called `agents`, too.
check_version(next((found.version for found in distributions(name="openai-agents")), None))

from agents import ItemHelpers, RunContextWrapper, RunHooks, SessionSettings, TResponseInputItem  # noqa: E402
from agents.exceptions import InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered  # noqa: E402
from agents.tool_context import ToolContext  # noqa: E402

PART = "messages"
NOT_RUN = "Not run: the process was interrupted before this call was begun."
_TRIES, _PAUSE_S = 500, 0.005
_PAIRED = ("function_call", "custom_tool_call")  # tools whose calls the hooks are told by their ids

Items = list[Any]
Task: TypeAlias = "asyncio.Task[Any] | None"
Context: TypeAlias = "RunContextWrapper[Any] | None"
Change = Callable[[Items], tuple[Items | None, Any]]  # from the items to the new ones (None: no change) and a result

_crews: weakref.WeakKeyDictionary[Store, Crew] = weakref.WeakKeyDictionary()
_lives: weakref.WeakKeyDictionary[Store, dict[tuple[str, str], _Live]] = weakref.WeakKeyDictionary()
# Which `Runner.run` (the SDK's context of it) works on which session, and in which task it is awaited.
_visits: weakref.WeakKeyDictionary[Any, tuple[HoldfastSession, Task]] = weakref.WeakKeyDictionary()


class HoldfastSession:
    """A session of the Agents SDK, in a store that `holdfast.open` or `holdfast.aio.open` gave."""

    def __init__(
        self,
        session_id: str,
        store: Store | AsyncStore,
        *,
        branch: str = "main",
        agent: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id, self.session_settings, self.branch, self.agent = session_id, session_settings, branch, agent
        if isinstance(store, AsyncStore):
            self._store, self._crew = store._store, store._crew
        else:
            self._store, self._crew = store, _crews.setdefault(store, Crew())
        self._session = self._fresh()
        self._turns = Turns(self._crew)
        self._known: tuple[str | None, dict[str, Any]] | None = None  # the head as we saw it last, and its state

    def __repr__(self) -> str:
        return f"<HoldfastSession {self.session_id!r} {self.branch}>"

    # what the SDK calls. It passes its context to those who have a `wrapper`: it tells which run is calling

    async def get_items(self, limit: int | None = None, *, wrapper: Context = None) -> list[TResponseInputItem]:
        """The conversation, or its last `limit` items. After a crash: with what the journal has of the last run."""
        if wrapper is not None:
            await self._own_run(wrapper)
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items = await self._turns.run(self._read)
        return items if limit is None or limit < 0 else items[len(items) - min(limit, len(items)) :]

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: Context = None) -> None:
        """Add items, all or none; on disk when this returns."""
        new = copy.deepcopy(list(items))  # the caller keeps his, and we compare with ours at the next change
        if new:
            await self._change(lambda old: ([*old, *new], None), wrapper, "add_items")

    async def pop_item(self, *, wrapper: Context = None) -> TResponseInputItem | None:
        """Take the last item away. The checkpoint before still has it: `restore`."""
        return await self._change(lambda old: (old[:-1], old[-1]) if old else (None, None), wrapper, "pop_item")

    async def clear_session(self, *, wrapper: Context = None) -> None:
        """Take all items away. The checkpoint before still has them: `restore`."""
        await self._change(lambda old: ([] if old else None, None), wrapper, "clear_session")

    async def fork(self, ref: Ref, name: str) -> HoldfastSession:
        """A new branch at a checkpoint, as a session of its own to run on; nothing is copied."""
        await self._turns.finish(self._fresh().fork, ref, name)
        other = copy.copy(self)
        other.branch, other._known, other._session, other._turns = name, None, self._fresh(), Turns(self._crew)
        return other

    async def restore(self, ref: Ref) -> Checkpoint:
        """The items as they were at a checkpoint, as a new checkpoint."""
        await self._change(lambda _: (None, None), None, "restore")  # what a crash left is taken in before
        return await self._turns.finish(self._fresh().restore, ref, branch=self.branch)

    def log(self, ref: Ref | None = None, *, limit: int | None = None) -> AsyncIterator[Checkpoint]:
        """Checkpoints, newest first, for `async for`."""
        return AsyncSession(self._fresh(), self._crew).log(self.branch if ref is None else ref, limit=limit)

    # reading and writing without a run of ours; in a thread, one at a time

    def _fresh(self) -> Session:
        return self._store.session(self.session_id, agent=self.agent)

    def _left_behind(self) -> tuple[list[Call], bool]:
        """The calls in the journal that no checkpoint has taken in, or that a run is alive that will do that."""
        pending = self._store.backend.pending(self.session_id, self.branch)
        live = pending.run is not None and pending.run.live
        return [] if live or not pending.calls else self._session.calls(self.branch, pending=True), live

    def _read(self) -> Items:
        for _ in range(_TRIES):
            head = self._session.head(self.branch)
            left, _ = self._left_behind()
            items = [] if head is None else self._session.load(head).get(PART, [])
            if not left:
                return list(items)
            again = self._session.head(self.branch)
            if (head and head.id) == (again and again.id):  # otherwise it may have taken in what we add here
                return mended(items, left)
        raise errors.ConflictError(f"{self!r} moved {_TRIES} times while it was read", hint="try again")

    def _write(self, change: Change, trigger: str) -> Any:
        if trigger != "add_items":
            self._known = None  # what is taken away must be what is there now, also if that is nothing
        for attempt in range(_TRIES):
            left, live = self._left_behind()
            if live:  # a commit now might come just after its end, and pass by what it has left
                if self._live is not None or attempt > _TRIES // 2:
                    raise errors.LeaseHeldError(f"{self!r} is being run", hint="wait for that to end, or fork")
                time.sleep(_PAUSE_S)  # it may be another's `_write_leased`, which is soon over
                continue
            if self._known is None:
                head = self._session.head(self.branch)
                self._known = (None, {}) if head is None else (head.id, self._session.load(head))
            id_, state = self._known
            items, result = change(state.get(PART, []))
            if items is None and not left:
                return result
            state = {**state, PART: items}
            try:
                if left or id_ is None:
                    return self._write_leased(change)
                point = self._session.commit(state, branch=self.branch, expect=id_, trigger=trigger)
            except (errors.ConflictError, errors.InDoubtError, errors.LeaseHeldError):
                self._known = None  # somebody was faster: on what he has written, then
                time.sleep(_PAUSE_S)
            else:
                self._known = point.id, state
                return result
        raise errors.ConflictError(f"{self!r} moved {_TRIES} times while this was tried", hint="try again")

    def _write_leased(self, change: Change) -> Any:
        """A change that must see nobody else's in between: the first of a session, and the first after a crash."""
        # A commit that expects *nothing* cannot be said, and two first ones at once would be one on top of the other.
        self._known = None
        with self._fresh().run(branch=self.branch) as run:
            take_in(run)
            items, result = change(run.state.get(PART, []))
            if items is not None:
                run.state[PART] = items
        return result

    async def _change(self, change: Change, wrapper: Context, trigger: str) -> Any:
        live = await self._own_run(wrapper)
        if live is None:
            return await self._turns.finish(self._write, change, trigger)
        return await self._crew.finish(live.change, change)

    async def _own_run(self, wrapper: Context) -> _Live | None:
        """The run of this caller, if it has one. One that ended without a word is left now.

        The SDK does not say when `Runner.run` fails. It has, if the task that awaited it is done or is calling here.
        """
        task, live = asyncio.current_task(), self._live
        if wrapper is not None:
            _visits[wrapper] = self, task
            if live is not None and live.key is _key(wrapper):
                live.watch(wrapper, task)
                return live
        if live is not None and live.task is not None and (live.task.done() or live.task is task):
            await self._crew.finish(live.leave, None)
        return None

    @property
    def _live(self) -> _Live | None:
        return _lives.get(self._store, {}).get((self.session_id, self.branch))


class HoldfastHooks(RunHooks[Any]):  # type: ignore[misc]
    """Keeps what a run has paid for: answers when they arrive, and what became of every tool.

    `Runner.run(agent, "…", session=HoldfastSession(…), hooks=HoldfastHooks())`. One object may serve many runs. As
    `async with HoldfastHooks() as hooks:` a run that fails gives its lease back at once, with its error as reason.
    """

    def __init__(self, session: HoldfastSession | None = None, *, lease_s: float = 30.0) -> None:
        self._session, self._lease_s = session, lease_s
        self._begun: weakref.WeakSet[_Live] = weakref.WeakSet()
        self._entering: dict[int, asyncio.Future[_Live]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for live in list(self._begun):
            await live.crew.finish(live.leave, error)

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """The first word of a run: it takes the lease."""
        await self._find_live(context)

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: Items) -> None:
        """The lease is kept while the model thinks."""
        if isinstance(context, ToolContext):
            return  # an agent that is a tool
        if not await self._tell(context, _Live.ask, agent.name):
            message = "HoldfastHooks do not know which session this run is on"
            raise errors.InvalidInputError(message, hint="Runner.run(…, session=s, hooks=HoldfastHooks(s))")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """The answer goes to the journal."""
        if not isinstance(context, ToolContext):
            used = {"tokens_in": response.usage.input_tokens, "tokens_out": response.usage.output_tokens}
            answer = {"output": response.to_input_items(), "response_id": response.response_id, "usage": used}
            await self._tell(context, _Live.answer, agent.name, answer)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """That the tool is about to run is on disk before it does."""
        args = {"arguments": getattr(context, "tool_arguments", None)}
        await self._tell(context, _Live.start, (tool.name, getattr(context, "tool_call_id", None)), args)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        """What came out is on disk before the model hears of it."""
        outcome = _output_item(getattr(context, "tool_call", None), result)
        await self._tell(context, _Live.end, (tool.name, getattr(context, "tool_call_id", None)), outcome)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """The items that come now are the last."""
        await self._tell(context, _Live.finish)

    async def _tell(self, context: Any, verb: Callable[..., object], *args: Any) -> bool:
        live = await self._find_live(context)
        if live is None:
            return False
        await live.crew.finish(verb, live, *args)
        return True

    async def _find_live(self, context: Any) -> _Live | None:
        """The run that this context belongs to, entered if it is not yet."""
        key = _key(context)
        found = [(wrapper, *visit) for wrapper, visit in list(_visits.items()) if _key(wrapper) is key]
        wrapper, session, task = found[0] if found else (None, self._session, None)
        live = None if session is None else session._live
        if session is None or (live is not None and live.key is key):
            return live
        if live is not None and not found:
            if live.open:
                return None  # an agent that is a tool of ours: its conversation is another
            await live.crew.finish(live.leave, None)  # it waited for an approval, and is taken up with that
        entering = self._entering.get(id(key))  # tools that begin at once are one run
        if entering is None:
            entering = asyncio.ensure_future(self._enter(session, key, wrapper, task))
            self._entering[id(key)] = entering
            entering.add_done_callback(lambda _: self._entering.pop(id(key), None))
        return await asyncio.shield(entering)

    async def _enter(self, session: HoldfastSession, key: object, wrapper: Context, task: Task) -> _Live:
        run: Run = session._fresh().run(branch=session.branch, lease_s=self._lease_s)
        await AsyncRun(run, session._crew).__aenter__()
        live = _Live(session, run, key)
        live.watch(wrapper, task)
        _lives.setdefault(session._store, {})[live.place] = live
        self._begun.add(live)
        try:
            if await session._crew.finish(take_in, run):
                await session._crew.finish(live.record)
        except BaseException as error:
            await session._crew.finish(live.leave, error)
            raise
        return live


class _Live:
    """One `Runner.run` that is on its way with hooks: its Run, and the calls it is making. Methods run in threads."""

    def __init__(self, session: HoldfastSession, run: Run, key: object) -> None:
        self.key, self.run, self.crew = key, run, session._crew
        self.task: Task = None
        self.place = session.session_id, session.branch
        self._final, self._store = False, session._store
        self.open: dict[tuple[str, str | None], Calling] = {}
        self._asking: Calling | None = None
        self._agent = ""
        self._answered = self._pending = self._left = False
        self._lock = threading.Lock()

    def watch(self, wrapper: Any, task: Task) -> None:
        """Leave when the task that awaits this `Runner.run` is done, or nobody has its context any more."""
        if self.task is None and wrapper is not None and task is not None:
            self.task = task
            task.add_done_callback(lambda _: self.drop())
            # Not `drop` itself: a collection may run inside the pool's own lock, and `drop` would wait for that.
            weakref.finalize(wrapper, _soon, asyncio.get_running_loop(), self.drop).atexit = False

    def ask(self, agent: str) -> Calling:
        self._hush()
        self._agent, self._asking = agent, self.run._begin("model", kind="llm", args={"agent": agent})
        return self._asking

    def _hush(self) -> bool:
        """Forget a model call that has no answer: of those nothing is on disk."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.withdraw()
        return asking is not None

    def answer(self, agent: str, answer: dict[str, Any]) -> None:
        (self._asking or self.ask(agent)).finish(answer)
        self._asking, self._answered, self._pending = None, True, True
        self.run.use(**answer["usage"])

    def start(self, slot: tuple[str, str | None], args: dict[str, Any]) -> None:
        self._pending = True
        self.open[slot] = self.run._begin(slot[0], key=slot[1], args=args)

    def end(self, slot: tuple[str, str | None], value: Any) -> None:
        calling = self.open.pop(slot, None)
        if calling is not None:
            calling.finish(value)

    def finish(self) -> None:
        self._final = True

    def change(self, change: Change) -> Any:
        """The SDK hands over what a turn has made: a boundary. All tools of the turn have ended."""
        before = self.run.state
        items, result = change(before.get(PART, []))
        if items is None:
            return result
        asking = self._hush()  # a stream's input is handed over when the model is being asked already
        self._end_open(items)
        self.run.state = {**before, PART: items}
        try:
            self.leave(None) if self._final else self.record()
        except BaseException:
            self.run.state = before
            raise
        if asking and not self._final:
            self.ask(self._agent)
        return result

    def record(self) -> None:
        head = self.run.head
        point = self.run.step() if self._answered else self.run.checkpoint()
        if point is None or (head is not None and point.id == head.id):
            raise errors.ConflictError(f"{self.run!r}: nothing is recorded while calls from before are unasked")
        self._answered = self._pending = False

    def _end_open(self, items: Items) -> None:
        """Tools that raised have no end of their own: what the model is told of them is their outcome."""
        for slot, calling in list(self.open.items()):
            told = [each for each in items if each.get("call_id") == slot[1] and "output" in each] if slot[1] else []
            with contextlib.suppress(errors.CallFailedError):
                calling.finish(told[-1]) if told else calling.give_up(RuntimeError("ended without an outcome"))
            del self.open[slot]

    def leave(self, error: BaseException | None) -> None:
        """End the run, once. What it has journaled and not handed over stays for the next one."""
        with self._lock:  # who comes second waits until the lease is free
            if self._left:
                return
            self._left = True
            self._hush()
            refused = isinstance(error, InputGuardrailTripwireTriggered | OutputGuardrailTripwireTriggered)
            if refused or self._final:
                # The process lives and the SDK did not hand the answer over: a guardrail did not let it pass.
                self._end_open([])
                error = None
            elif error is None and (self._pending or self.open):
                error = asyncio.CancelledError()
            try:
                self.run._leave(error)
            finally:
                lives = _lives.get(self._store, {})
                if lives.get(self.place) is self:
                    del lives[self.place]

    def drop(self) -> None:
        """Leave from wherever this is noticed, and wait for nothing."""
        if not self._left:
            with contextlib.suppress(Exception):
                self.crew.submit(partial(self.leave, None))


def _soon(loop: asyncio.AbstractEventLoop, job: Callable[[], None]) -> None:
    """Have a job done by the loop, if it still runs; takes no lock. Otherwise the lease expires by itself."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(job)


def _key(context: Any) -> object:
    """What all contexts that the SDK makes for one `Runner.run` share, and those of an agent used as a tool do not."""
    return context._approvals


def _output_item(call: Any, result: object) -> Any:
    if call is None:
        return str(result)
    if call.type == "function_call":
        return ItemHelpers.tool_call_output_item(call, result)
    return {"type": f"{call.type}_output", "call_id": call.call_id, "output": str(result)}


def take_in(run: Run) -> bool:
    """Put what the run before left in the journal into the items; the next boundary makes it history."""
    calls = run.session.calls(run.branch, pending=True)
    run.state = {**run.state, PART: mended(run.state.get(PART, []), calls)} if calls else run.state
    for call in calls:
        if call.parent is not None:
            continue  # goes with the call it was made in
        with contextlib.suppress(errors.CallFailedError):
            calling = run._begin(call.name, key=call.key, kind=call.kind, args=call.args, on_doubt="skip")
            if not calling.done:  # somebody said: make it again. The model is told that it was not made
                calling.finish(NOT_RUN)
        if _is_answer(call):
            run.use(**call.result.get("usage", {}))
    return bool(calls)


def mended(items: Items, calls: Iterable[Call]) -> Items:
    """The items and behind them what these calls have brought; of what is not known it is said that it is not."""
    tail: Items = []
    begun: set[str | None] = set()
    for call in calls:
        if _is_answer(call):
            tail.extend(call.result["output"])
        elif call.kind == "tool" and call.status != "retry":
            begun.add(call.key)
            tail.extend(_outcome(call, [*items, *tail]))
    for item in list(tail):
        if item.get("type") in _PAIRED and item["call_id"] not in begun:
            tail.append({"type": f"{item['type']}_output", "call_id": item["call_id"], "output": NOT_RUN})
    return repair_messages([*items, *tail])


def _is_answer(call: Call) -> bool:
    output = call.result.get("output") if call.kind == "llm" and isinstance(call.result, dict) else None
    return isinstance(output, list) and all([isinstance(item, dict) for item in output])


def _outcome(call: Call, items: Items) -> Items:
    """What the model is told of a tool: what came out, or what somebody has decided since."""
    if isinstance(call.result, dict) and str(call.result.get("type", "")).endswith("_output"):
        return [call.result]
    asked = [item for item in items if item.get("type") in _PAIRED and item.get("call_id") == call.key]
    if not asked or call.status not in ("done", "failed"):
        return []
    text = str(call.result) if call.status == "done" else f"The call failed: {call.error}"
    return [{"type": f"{asked[-1]['type']}_output", "call_id": call.key, "output": text}]


__all__ = ["NOT_RUN", "HoldfastHooks", "HoldfastSession"]
