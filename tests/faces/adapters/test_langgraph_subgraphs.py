"""Agents as nodes: a subgraph is given its caller's messages and gives them all back, and costs what was added."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

import backstay
from backstay.adapters.langgraph import BackstaySaver
from backstay.port import EVERY, Ask, View
from tests.faces.adapters.graphs import thread

TEXT = "a sentence of some length that a model may well have said, number "


def agents(saver: Any, *, asks: bool = False) -> Any:
    def model(state: MessagesState) -> dict[str, Any]:
        said = interrupt("go on?") if asks and len(state["messages"]) % 4 == 1 else ""
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"{said}{TEXT}{last.content}", id=f"a{last.id}")]}

    inner: Any = StateGraph(MessagesState).add_node("model", model).add_edge(START, "model").compile()
    middle: Any = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()
    outer: Any = StateGraph(MessagesState).add_node("agent", middle).add_edge(START, "agent")
    return outer.compile(checkpointer=saver)


def ask(number: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"{TEXT}{number}", id=f"u{number}")]}


def told(graph: Any) -> list[Any]:
    return [
        (snapshot.values, snapshot.next, snapshot.metadata["source"], [task.name for task in snapshot.tasks])
        for snapshot in graph.get_state_history(thread())
    ]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("asks", [False, True])
def test_agents_in_agents_are_kept_as_langgraph_keeps_them(durability: Any, asks: bool) -> None:
    with BackstaySaver.open("memory:") as saver:
        ours, theirs = agents(saver, asks=asks), agents(InMemorySaver(), asks=asks)
        for number in range(6):
            for graph in (ours, theirs):
                found = graph.invoke(ask(number), thread(), durability=durability)
                if "__interrupt__" in found:
                    graph.invoke(Command(resume="yes: "), thread(), durability=durability)
            mine = ours.get_state(thread(), subgraphs=True)
            assert mine.values == theirs.get_state(thread(), subgraphs=True).values
        assert told(ours) == told(theirs)
        again = agents(BackstaySaver(saver.store), asks=asks)  # remembers nothing
        assert told(again) == told(theirs)
        inner = [
            tup.checkpoint["channel_values"] for tup in BackstaySaver(saver.store).list(thread(checkpoint_ns=None))
        ]
        assert all("lc" not in str(value.get("__start__", "")) for value in inner)


def sending(saver: Any, delta: bool) -> Any:
    """A model that sends each tool all of its state, as LangChain's agents do."""

    def join(value: list[Any], writes: Sequence[Any]) -> Any:
        for write in writes:
            value = add_messages(value, write)
        return value

    reducer: Any = DeltaChannel(join, snapshot_frequency=7) if delta else add_messages
    State = TypedDict("State", {"messages": Annotated[list[Any], reducer], "count": int})  # noqa: UP013

    def model(state: Any) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"{TEXT}{last.content}", id=f"a{last.id}")], "count": True}

    def tool(given: Any) -> dict[str, Any]:
        if given["ask"]:
            interrupt("may I?")
        heard = given["state"]["messages"]
        return {"messages": [AIMessage(f"{given['number']} of {len(heard)}", id=f"t{given['number']}{heard[-1].id}")]}

    def fan(state: Any) -> Any:
        ask = len(state["messages"]) > 9
        return [Send("tool", {"state": state, "number": number, "ask": ask and number == 1}) for number in range(2)]

    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", fan, ["tool"])
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("delta", [False, True])
def test_what_an_agent_sends_its_tools_is_kept_once_and_comes_back_as_it_was(delta: bool) -> None:
    with backstay.open("memory:") as store:
        ours, theirs = sending(BackstaySaver(store), delta), sending(InMemorySaver(), delta)
        for number in range(6):
            for graph in (ours, theirs):
                found = graph.invoke(ask(number), thread())
                if "__interrupt__" in found:
                    assert len(graph.get_state(thread()).next) == 1
                    again = sending(BackstaySaver(store), delta) if graph is ours else graph  # remembers nothing
                    again.invoke(Command(resume="yes"), thread())
            ours = sending(BackstaySaver(store), delta)
        assert told(ours) == told(theirs)
        pairs = zip(ours.checkpointer.list(thread()), theirs.checkpointer.list(thread()), strict=True)
        for mine, other in pairs:
            writes = [
                [(channel, value) for _, channel, value in tup.pending_writes if channel != "__interrupt__"]
                for tup in (mine, other)
            ]
            assert writes[0] == writes[1]
            assert mine.checkpoint["channel_values"].get("__pregel_tasks") == other.checkpoint["channel_values"].get(
                "__pregel_tasks"
            )
        for point in store.session("t").log(limit=8):
            assert len(str(point.state["lg:inner"])) + len(str(point.state["lg:writes"])) < 3500


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_folded_subgraphs_leave_one_branch_and_the_graph_as_langgraph_has_it(durability: Any) -> None:
    with BackstaySaver.open("memory:", subgraphs="fold") as saver:
        ours, theirs = agents(saver, asks=True), agents(InMemorySaver(), asks=True)
        for number in range(4):
            for graph in (ours, theirs):
                found = graph.invoke(ask(number), thread(), durability=durability)
                if "__interrupt__" not in found:
                    continue
                if graph is ours:  # what an interrupted one needs is there, for another process too
                    again = agents(BackstaySaver(saver.store, subgraphs="fold"), asks=True)
                    inner = again.get_state(thread(), subgraphs=True).tasks[0].state
                    assert inner.tasks[0].state.next == ("model",)
                    assert inner.tasks[0].state.values["messages"][-1].content == f"{TEXT}{number}"
                graph.invoke(Command(resume="yes: "), thread(), durability=durability)
        assert told(ours) == told(theirs)
        assert list(saver.store.session("t").branches()) == ["main"]
        assert saver.store.verify().ok
        rows = [tup.config["configurable"]["checkpoint_ns"] for tup in saver.list(thread(checkpoint_ns=None))]
        assert set(rows) == {""}


def test_what_the_subgraphs_of_a_process_that_died_have_left_is_folded_by_the_next_one() -> None:
    with BackstaySaver.open("memory:") as saver:
        agents(saver).invoke(ask(0), thread())  # folds nothing, as one that was killed behind a subgraph
        asking = agents(saver, asks=True)
        asking.invoke(ask(1), thread())  # is left waiting in one
        assert "__interrupt__" in asking.invoke(ask(2), thread())
        assert len(saver.store.session("t").branches()) > 5
        again = agents(BackstaySaver(saver.store, subgraphs="fold"), asks=True)
        assert again.get_state(thread(), subgraphs=True).tasks[0].state.next == ("inner",)
        found = again.invoke(Command(resume="yes: "), thread())
        assert found["messages"][-1].content == f"yes: {TEXT}{TEXT}2"
        assert list(saver.store.session("t").branches()) == ["main"]
        assert saver.store.verify().ok


def test_a_list_of_a_thread_with_many_subgraphs_reads_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with BackstaySaver.open("memory:") as saver:
        graph = agents(saver)
        for number in range(10):
            graph.invoke(ask(number), thread())
        asked: list[Any] = []
        read = saver.store.backend.read

        def noting(ask: Ask) -> View:
            asked.append(ask.names)
            return read(ask)

        monkeypatch.setattr(saver.store.backend, "read", noting)
        wide = {"configurable": {"thread_id": "t"}}
        found = [tup.config["configurable"]["checkpoint_ns"] for tup in saver.list(wide, limit=5)]
        assert len(found) == 5
        assert len(list(graph.get_state_history(thread(), limit=5))) == 5
        assert EVERY not in asked
        monkeypatch.undo()
        every = [tup.config["configurable"]["checkpoint_id"] for tup in saver.list(wide)]
        assert len(every) == len(set(every)) == 10 * 9


def test_time_travel_to_a_step_whose_subgraph_was_folded_runs_it_again_as_langgraph_does() -> None:
    with BackstaySaver.open("memory:", subgraphs="fold") as saver:
        ours, theirs = agents(saver), agents(InMemorySaver())
        ends = []
        for graph in (ours, theirs):
            for number in range(3):
                graph.invoke(ask(number), thread())
            before = [each for each in graph.get_state_history(thread()) if each.next == ("agent",)][1]
            found = graph.invoke(None, before.config)
            ends.append([message.content for message in found["messages"]])
            ends.append([message.content for message in graph.get_state(thread()).values["messages"]])
        assert ends[:2] == ends[2:]


def test_a_subgraph_that_remembers_is_not_folded() -> None:
    def count(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(str(len(state["messages"])))]}

    ends = []
    modes: tuple[Literal["keep", "fold"], ...] = ("keep", "fold")
    for mode in modes:
        with backstay.open("memory:") as store:
            inner: Any = StateGraph(MessagesState).add_node("count", count).add_edge(START, "count")
            outer: Any = StateGraph(MessagesState).add_node("inner", inner.compile(checkpointer=True))
            graph = outer.add_edge(START, "inner").compile(checkpointer=BackstaySaver(store, subgraphs=mode))
            for number in range(3):
                graph.invoke(ask(number), thread())
            ends.append([message.content for message in graph.get_state(thread()).values["messages"]])
            assert "/inner" in store.session("t").branches()
    assert ends[0] == ends[1]


def test_a_chat_in_a_subgraph_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with BackstaySaver.open(path, durability="relaxed") as saver:
        graph = agents(saver)
        for number in range(60):
            graph.invoke(ask(number), thread())
    with backstay.open(path) as store:
        assert len(store.session("t").load()["messages"]) == 120
        assert store.verify().ok
    assert path.stat().st_size < 2_500_000  # 60 MB of lists, one after the other
