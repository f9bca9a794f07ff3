"""One `Runner.run` that is on its way with hooks: what it holds, and how it is left when nobody says that it ended."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from agents import RunContextWrapper
from agents.exceptions import InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered

from backstay import errors
from backstay.adapters.openai_agents.items import PAIRED, PART, Items, is_known, items_of
from backstay.driving import Driven, Slot, Task
from backstay.face import Store
from backstay.run import Run

if TYPE_CHECKING:
    from backstay.adapters.openai_agents.session import BackstaySession

Context: TypeAlias = "RunContextWrapper[Any] | None"
Change = Callable[[Items], tuple[Items | None, Any]]  # from the items to the new ones (None: no change) and a result

lives: weakref.WeakKeyDictionary[Store, dict[tuple[str, str], Live]] = weakref.WeakKeyDictionary()
# Which `Runner.run` (the SDK's context of it) works on which session, and in which task it is awaited.
visits: weakref.WeakKeyDictionary[Any, tuple[BackstaySession, Task]] = weakref.WeakKeyDictionary()


class Live(Driven):
    """One `Runner.run` that is on its way with hooks: its Run, and the calls it is making. Methods run in threads."""

    def __init__(self, session: BackstaySession, run: Run, key: object) -> None:
        super().__init__(run, session.threads)
        self.key, self.session = key, session
        self.place = session.session_id, session.branch
        self._final, self._store = False, session.store
        self.inner: set[Slot] = set()  # those that are agents
        self._agent = ""
        self._asked = self._answered = self._pending = self._acted = False
        self._wanted: dict[str, str] = {}  # tools that the model asked for and that were not begun, by the ids of calls

    def is_around(self, slot: Slot | None) -> bool:
        """Whether a tool that is an agent is running, so that this may be a call within it."""
        return not self.inner.isdisjoint(self.open) and slot not in self.open

    def accompany(self, wrapper: Context, task: Task) -> None:
        """Leave when the task that awaits this `Runner.run` is done, or its context is no longer held."""
        if self.task is None and wrapper is not None and task is not None:
            self.watch(task)
            self.outlive(wrapper)

    def ask_model(self, agent: str) -> None:
        """The model is about to be asked."""
        self._asked, self._agent = True, agent
        self.ask("model", {"agent": agent})

    def answer(self, agent: str, answer: dict[str, Any]) -> None:
        """It has answered."""
        if not self.is_asking:
            self.ask_model(agent)
        self.answered(answer)
        wanted = [each for each in answer["output"] if isinstance(each, dict) and each.get("type") in PAIRED]
        self._wanted = {str(each.get("call_id")): str(each.get("name")) for each in wanted}
        self._answered = self._pending = True
        self.run.use(**answer["usage"])

    def start_tool(self, slot: Slot, args: dict[str, Any], is_agent: bool) -> None:  # noqa: FBT001 - passed on
        """A tool is about to run."""
        # Before the model was asked it can only be one that was approved, and a run before may have come further.
        if not self._asked and is_known(items_of(self.run.state), *slot, args["arguments"]):
            message = f"{slot[0]} ({slot[1]}) was begun by a run before, which did not come to its end"
            error = errors.InDoubtError(message, hint="what is known of it is in the items: Runner.run(agent, [], …)")
            if not self.open:
                self.leave(error)
            raise error
        self._pending = self._acted = True
        self._wanted.pop(str(slot[1]), None)
        self.inner.update([slot] if is_agent else [])
        self.start(slot, args)

    def finish(self) -> None:
        """What is handed over next is the last."""
        self._final = True

    def change(self, change: Change) -> Any:
        """The SDK hands over what a turn has made: a boundary. All tools of the turn have ended."""
        before = self.run.state
        items, result = change(items_of(before))
        if items is None:
            return result
        asking = self.hush()  # a stream's input is handed over when the model is being asked already
        self._end_open(items)
        self.run.state = {**before, PART: items}
        try:
            self.leave(None) if self._final else self.record()
        except BaseException:
            self.run.state = before
            raise
        if asking and not self._final:
            self.ask_model(self._agent)
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

    def closing(self, error: BaseException | None) -> BaseException | None:
        """What the run ends by. Calls that were journaled and not handed over stay for the next run."""
        if self._final or self._is_refused(error):
            # The process lives and the SDK did not hand the answer over: a guardrail did not let it pass.
            self._end_open([])
            return None
        if error is None and self._wanted and not self.open and not self._broke_off():
            names = ", ".join([repr(name) for name in dict.fromkeys(self._wanted.values())])
            return self.run.end_waiting(f"for approval of {names}")
        return asyncio.CancelledError() if error is None and (self._pending or self.open) else error

    def _broke_off(self) -> bool:
        """Whether the task that awaited the SDK was cancelled or failed: then no approval is asked for."""
        task = self.task
        return task is not None and task.done() and (task.cancelled() or getattr(task, "_exception", None) is not None)

    def closed(self) -> None:
        """The run is left."""
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


def key_of(context: Any) -> object:
    """What all contexts that the SDK makes for one `Runner.run` share, and those of an agent used as a tool do not."""
    return context._approvals
