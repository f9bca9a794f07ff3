"""One `Runner.run` that is on its way with hooks: what it holds, and how it is left when nobody says that it ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from agents import RunContextWrapper
from agents.exceptions import InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered

from backstay import errors
from backstay.adapters.openai_agents.items import PART, Items, is_known, items_of
from backstay.run import Run
from backstay.run.calling import Calling
from backstay.face import Store

if TYPE_CHECKING:
    from backstay.adapters.openai_agents.session import BackstaySession

Task: TypeAlias = "asyncio.Task[Any] | None"
Context: TypeAlias = "RunContextWrapper[Any] | None"
Slot = tuple[str, str | None]  # a tool and the id of its call
Change = Callable[[Items], tuple[Items | None, Any]]  # from the items to the new ones (None: no change) and a result

lives: weakref.WeakKeyDictionary[Store, dict[tuple[str, str], Live]] = weakref.WeakKeyDictionary()
# Which `Runner.run` (the SDK's context of it) works on which session, and in which task it is awaited.
visits: weakref.WeakKeyDictionary[Any, tuple[BackstaySession, Task]] = weakref.WeakKeyDictionary()


class Live:
    """One `Runner.run` that is on its way with hooks: its Run, and the calls it is making. Methods run in threads."""

    def __init__(self, session: BackstaySession, run: Run, key: object) -> None:
        self.key, self.run, self.session, self.threads = key, run, session, session._threads
        self.task: Task = None
        self.place = session.session_id, session.branch
        self._final, self._store = False, session._store
        self.open: dict[Slot, Calling] = {}
        self.inner: set[Slot] = set()  # those that are agents
        self._asking: Calling | None = None
        self._agent = ""
        self._asked = self._answered = self._pending = self._acted = self._left = self._gone = False
        self._lock = threading.Lock()
        self._watched: list[weakref.finalize[..., Any]] = []

    @property
    def is_over(self) -> bool:
        """Whether its `Runner.run` has ended for certain."""
        return self._gone or (self.task is not None and self.task.done())

    def has_ended(self) -> bool:
        """The same, for one who would be told to wait. Of an error that nobody holds a cycle may be left."""
        if not self.is_over:
            gc.collect()
        return self.is_over

    @property
    def is_busy(self) -> bool:
        """Whether it is in a tool or waits for the model. Otherwise it may have ended, to wait for an approval."""
        return bool(self.open) or self._asking is not None

    def is_around(self, slot: Slot | None) -> bool:
        """Whether a tool that is an agent is running, so that this may be a call within it."""
        return not self.inner.isdisjoint(self.open) and slot not in self.open

    def watch(self, wrapper: Any, task: Task) -> None:
        """Leave when the task that awaits this `Runner.run` is done, or nobody has its context any more."""
        if self.task is None and wrapper is not None and task is not None:
            self.task = task
            task.add_done_callback(lambda _: self.drop())
            self.outlive(wrapper)

    def outlive(self, held: object) -> None:
        """Leave when something is gone that the SDK holds as long as it runs."""
        # Not `drop` itself: a collection may run inside the pool's own lock, and `drop` would wait for that.
        watched = weakref.finalize(held, self._lose, asyncio.get_running_loop())
        watched.atexit = False
        self._watched.append(watched)

    def _lose(self, loop: asyncio.AbstractEventLoop) -> None:
        self._gone = True  # who comes before the loop does the job sees this
        _soon(loop, self.drop)

    def ask(self, agent: str) -> Calling:
        """The model is about to be asked."""
        self._hush()
        self._asked = True
        self._agent, self._asking = agent, self.run.begin("model", kind="llm", args={"agent": agent})
        return self._asking

    def _hush(self) -> bool:
        """Forget a model call that has no answer: of those nothing is on disk."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.withdraw()
        return asking is not None

    def answer(self, agent: str, answer: dict[str, Any]) -> None:
        """It has answered."""
        (self._asking or self.ask(agent)).finish(answer)
        self._asking, self._answered, self._pending = None, True, True
        self.run.use(**answer["usage"])

    def start(self, slot: Slot, args: dict[str, Any], is_agent: bool) -> None:  # noqa: FBT001 - called by `_tell`
        """A tool is about to run."""
        # Before the model was asked it can only be one that was approved, and a run before may have come further.
        if not self._asked and is_known(items_of(self.run.state), *slot, args["arguments"]):
            message = f"{slot[0]} ({slot[1]}) was begun by a run before, which did not come to its end"
            error = errors.InDoubtError(message, hint="what is known of it is in the items: Runner.run(agent, [], …)")
            if not self.open:
                self.leave(error)
            raise error
        self._pending = self._acted = True
        self.inner.update([slot] if is_agent else [])
        self.open[slot] = self.run.begin(slot[0], key=slot[1], args=args)

    def end(self, slot: Slot, value: Any) -> None:
        """It has given something."""
        calling = self.open.pop(slot, None)
        if calling is not None:
            calling.finish(value)

    def finish(self) -> None:
        """What is handed over next is the last."""
        self._final = True

    def change(self, change: Change) -> Any:
        """The SDK hands over what a turn has made: a boundary. All tools of the turn have ended."""
        before = self.run.state
        items, result = change(items_of(before))
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
        """A boundary."""
        head = self.run.head
        point = self.run.step() if self._answered else self.run.checkpoint()
        if point is None or (head is not None and point.id == head.id):
            raise errors.ConflictError(f"{self.run!r}: nothing is recorded while calls from before are unasked")
        self._answered = self._pending = self._acted = False

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
            for watched in self._watched:
                watched.detach()
            self._hush()
            if self._final or self._is_refused(error):
                # The process lives and the SDK did not hand the answer over: a guardrail did not let it pass.
                self._end_open([])
                error = None
            elif error is None and (self._pending or self.open):
                error = asyncio.CancelledError()
            try:
                self.run.leave(error)
            finally:
                here = lives.get(self._store, {})
                if here.get(self.place) is self:
                    del here[self.place]

    def _is_refused(self, error: BaseException | None) -> bool:
        """Whether a guardrail has stopped the answer; a stream's error comes to us only as that of its task."""
        if error is None and self.task is not None and self.task.done():
            error = getattr(self.task, "_exception", None)  # `exception()` would keep asyncio from telling of it
        if isinstance(error, InputGuardrailTripwireTriggered):
            return not self._acted  # what tools have done has been done, and is told as after a kill
        return isinstance(error, OutputGuardrailTripwireTriggered)

    def drop(self) -> None:
        """Leave from wherever this is noticed, and wait for nothing."""
        if not self._left:
            with contextlib.suppress(Exception):
                self.threads.submit(partial(self.leave, None))


def _soon(loop: asyncio.AbstractEventLoop, job: Callable[[], None]) -> None:
    """Have a job done by the loop, if it still runs; takes no lock. Otherwise the lease expires by itself."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(job)


def key_of(context: Any) -> object:
    """What all contexts that the SDK makes for one `Runner.run` share, and those of an agent used as a tool do not."""
    return context._approvals
