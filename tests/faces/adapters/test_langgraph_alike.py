"""A graph does with this saver what it does with LangGraph's own: the same states, histories, tasks and answers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from backstay.adapters.langgraph import BackstaySaver
from tests.faces.adapters.graphs import thread

Story = Callable[[Any], Any]
CONFIG = {"configurable": {"thread_id": "t"}}


class Words(TypedDict):
    words: Annotated[list[Any], operator.add]
    number: int


def shown(history: Any) -> list[Any]:
    return [
        (
            *(state.values, state.next, state.metadata.get("step"), state.metadata.get("source")),
            [
                (each.name, repr(each.error), [one.value for one in each.interrupts], each.result)
                for each in state.tasks
            ],
        )
        for state in history
    ]


def said(word: str) -> Callable[[Any], Any]:
    return lambda _: {"words": [word]}


def side_by_side(saver: Any, schema: Any) -> Any:
    graph = StateGraph(schema)
    for name in "abc":
        graph.add_node(name, said(name))
    graph.add_edge(START, "a")
    for name in "bc":
        graph.add_edge("a", name)
        graph.add_edge(name, END)
    return graph.compile(checkpointer=saver)


def going_on_and_back(durability: str) -> Story:
    def story(saver: Any) -> Any:
        app = side_by_side(saver, Words)
        for word in ("in", "again"):
            app.invoke({"words": [word]}, CONFIG, durability=durability)
        app.update_state(CONFIG, {"words": ["told"]}, as_node="a")
        app.invoke(None, CONFIG, durability=durability)
        history = list(app.get_state_history(CONFIG))
        app.update_state(history[2].config, {"words": ["other"]}, as_node="a")
        app.invoke(None, CONFIG, durability=durability)
        app.invoke(None, history[1].config, durability=durability)
        return shown(app.get_state_history(CONFIG))

    return story


def a_fan(saver: Any) -> Any:
    graph = StateGraph(Words)
    graph.add_node("go", lambda _: {"number": 3})
    graph.add_node("work", lambda state: {"words": [state["at"]]})
    graph.add_edge(START, "go")
    graph.add_conditional_edges(
        "go", lambda state: [Send("work", {"at": at}) for at in range(state["number"])], ["work"]
    )
    app = graph.compile(checkpointer=saver)
    app.invoke({"words": []}, CONFIG, durability="sync")
    return shown(app.get_state_history(CONFIG))


def questions(saver: Any) -> Any:
    inner = StateGraph(Words)
    inner.add_node("ask", lambda _: {"words": [interrupt("one"), interrupt("two")]})
    inner.add_edge(START, "ask")
    graph = StateGraph(Words)
    graph.add_node("inner", inner.compile())
    graph.add_node("beside", lambda _: {"words": [interrupt("three")]})
    graph.add_edge(START, "inner")
    graph.add_edge(START, "beside")
    app = graph.compile(checkpointer=saver)
    app.invoke({"words": []}, CONFIG)
    asked = []
    for _ in range(4):
        waiting = [one for each in app.get_state(CONFIG, subgraphs=True).tasks for one in each.interrupts]
        asked.append(sorted(one.value for one in waiting))
        if waiting:
            app.invoke(Command(resume={one.id: one.value + "!" for one in waiting}), CONFIG)
    return asked, app.get_state(CONFIG).values


def functions(saver: Any) -> Any:
    @task  # type: ignore[untyped-decorator]
    def square(number: int) -> int:
        return number * number

    @entrypoint(checkpointer=saver)  # type: ignore[untyped-decorator]
    def work(numbers: list[int], *, previous: Any = None) -> Any:
        squares = [each.result() for each in [square(number) for number in numbers]]
        return {"squares": squares, "answer": interrupt("well?"), "before": previous}

    found = []
    for numbers in ([1, 2, 3], [4]):
        work.invoke(numbers, CONFIG)
        found.append(work.invoke(Command(resume="yes"), CONFIG))
    return found


def deltas(durability: str, frequency: int | None) -> Story:
    def story(saver: Any) -> Any:
        delta = pytest.importorskip("langgraph.channels.delta", reason="delta channels came later").DeltaChannel

        def joined(before: list[Any] | None, writes: list[list[Any]]) -> list[Any]:
            return (before or []) + [word for write in writes for word in write]

        channel = delta(joined) if frequency is None else delta(joined, snapshot_frequency=frequency)
        schema: Any = TypedDict("schema", {"words": Annotated[list, channel]})  # type: ignore[type-arg]
        app = side_by_side(saver, schema)
        for turn in range(4):
            app.invoke({"words": [turn]}, CONFIG, durability=durability)
        history = [state.values for state in app.get_state_history(CONFIG)]
        if isinstance(saver, BackstaySaver):
            saver.prune(["t"])
        app.invoke({"words": ["last"]}, CONFIG, durability=durability)
        return history, app.get_state(CONFIG).values

    return story


STORIES: dict[str, Story] = {
    "sync": going_on_and_back("sync"),
    "async": going_on_and_back("async"),
    "exit": going_on_and_back("exit"),
    "fan": a_fan,
    "questions": questions,
    "functions": functions,
    "deltas": deltas("sync", None),
    "deltas in the background": deltas("async", None),
    "deltas with snapshots": deltas("async", 3),
    "deltas at the end": deltas("exit", 2),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_graph_goes_the_same_way(saver: BackstaySaver, name: str) -> None:
    assert STORIES[name](saver) == STORIES[name](InMemorySaver())
    assert saver.store.verify().ok
    assert thread()["configurable"]["thread_id"] == "t"
