"""One call that a graph asks for: how it is told from others, what came out, and how errors go back to LangGraph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphBubbleUp

from backstay.adapters.langgraph.codec import Codec
from backstay.adapters.langgraph.saver import BackstaySaver
from backstay.errors import BackstayError, CallFailedError, InvalidInputError
from backstay.model import MAX_NAME_CHARS
from backstay.run.options import OnDoubt

_BUBBLED = {"interrupted": True}


class GraphCall:
    """A call that was asked for. `task` is that of LangGraph, whose id is the same when the node runs again."""

    def __init__(self, where: Mapping[str, Any], *, name: str, id_: str, codec: Codec, on_doubt: OnDoubt) -> None:
        self.name, self.id = name, id_
        self.task = str(where.get("checkpoint_ns", ""))
        self.thread = None if where.get("thread_id") is None else str(where["thread_id"])
        # Steps that are never written before the end cannot be waited for; other savers do not tell.
        self.saver: Any = where.get("__pregel_checkpointer")
        # The graph's saver knows the types that its schema names.
        own = self.saver.codec if isinstance(self.saver, BackstaySaver) else codec
        self.codec = codec if codec.seals or own.seals else own
        known: dict[str, str] = where.get("checkpoint_map") or {}
        self.steps = known if own is not codec and where.get("__pregel_durability") != "exit" else {}
        self._step = known.get("", "")
        self.options: dict[str, Any] = {"key": id_, "args": None, "on_doubt": on_doubt, "on_failed": "retry"}
        self.made: Any = None
        self.given: list[Any] = []  # by the function, in this process
        self._raised: GraphBubbleUp | Exception | None = None

    @property
    def branch(self) -> str:
        """The branch of the journal that is this call's own. It begins with the step of the whole graph."""
        name = f"{self.task}/{self.id}"
        step = f"{self._step}/" if self._step else ""
        return f"{step}{name}" if len(step + name) <= MAX_NAME_CHARS else f"{step}{sha256(name.encode()).hexdigest()}"

    @contextlib.contextmanager
    def bubbling(self) -> Iterator[None]:
        """A call that asks a person is not done: it is made again with the answer."""
        try:
            yield
        except GraphBubbleUp as raised:
            self._raised, self.made = raised, _BUBBLED

    def take(self, value: Any) -> None:
        """What came out, as it is kept."""
        self.given = [value]
        try:
            self.made = self.codec.memo().value(value)
        except Exception as error:  # noqa: BLE001 - of anybody's serializer
            # The work is done. That this cannot be kept is no reason to do it again.
            self._raised, self.made = error, None

    def is_answer(self, recorded: Any) -> bool:
        """False if it had only asked a person, so that it is to be made again."""
        if self._raised is not None:
            raise self._raised
        return bool(recorded != _BUBBLED)

    def answer(self, recorded: Any) -> Any:
        """What came out, as the graph wants it; the very object where it was made in this process."""
        return self.given[0] if self.given else self.codec.revive(recorded)


class ToolNodeCall(GraphCall):
    """A call of a ToolNode: told by the id that the model gave it."""

    def __init__(self, request: Any, *, codec: Codec, on_doubt: OnDoubt) -> None:
        call = request.tool_call
        where = request.runtime.config.get("configurable", {})
        id_ = f"{call['id']}{_again(request)}"
        super().__init__(where, name=call["name"], id_=id_, codec=codec, on_doubt=on_doubt)
        self._call_id = call["id"]
        if not codec.seals:
            self.options["args"] = call["args"]

    def answer(self, recorded: Any) -> Any:
        """As a ToolNode wants it: a person who decided a call may have said its result in plain words."""
        value = super().answer(recorded)
        if self.given or (value is not None and not isinstance(value, str | int | float | bool | dict)):
            return value
        unknown = "The outcome of this call is unknown."
        text = unknown if value is None else value if isinstance(value, str) else repr(value)
        return ToolMessage(text, name=self.name, tool_call_id=self._call_id)


class FunctionCall(GraphCall):
    """A call of a node or a `@task`: told by its task alone, since that calls it once.

    Its arguments are not recorded: a node is given the whole state, and a task perhaps the time of day.
    """

    def __init__(self, config: Mapping[str, Any], name: str, *, codec: Codec, on_doubt: OnDoubt) -> None:
        super().__init__(config.get("configurable", {}), name=name, id_=name, codec=codec, on_doubt=on_doubt)


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
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


def called_twice(name: str) -> InvalidInputError:
    """A node or a task calls a function again that is told by its task."""
    hint = "make it a @task: each call of a task is told from the others"
    return InvalidInputError(f"{name!r} was called twice in one step of the graph", hint=hint)
