"""Threads whose messages and files are delta channels: every operation leaves what LangGraph itself would replay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from tests.faces.adapters.graphs import say, thread

pytest.importorskip("langgraph.channels.delta", reason="delta channels came later")

from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Overwrite

import backstay
from backstay import Retention
from backstay.adapters.langgraph import BackstaySaver


def join_messages(value: list[Any], writes: Sequence[Any]) -> list[Any]:
    for write in writes:
        value = add_messages(value, write)
    return value


def join_files(value: dict[str, Any], writes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    for write in writes:
        value = {key: held for key, held in {**value, **write}.items() if held is not None}
    return value


def graph_over(saver: Any, frequency: int = 4) -> Any:
    """A node that answers and one that writes files, twice a turn."""
    chat = Annotated[list[Any], DeltaChannel(join_messages, snapshot_frequency=frequency)]
    files = Annotated[dict[str, Any], DeltaChannel(join_files, snapshot_frequency=frequency)]
    Deep = TypedDict("Deep", {"messages": chat, "files": files, "turns": int})  # noqa: UP013

    def model(state: Any) -> dict[str, Any]:
        last = state["messages"][-1]
        answer: list[Any] = [AIMessage(f"answer to {last.content}", id=f"a-{last.id}")]
        if last.content == "forget":
            answer.append(RemoveMessage(state["messages"][0].id))
        if last.content == "clear":
            return {"messages": Overwrite([AIMessage("cleared", id=f"c-{last.id}")])}
        return {"messages": answer}

    def write(state: Any) -> dict[str, Any]:
        turns = state.get("turns", 0) + 1
        return {"files": {f"f{turns % 3}.txt": None if turns % 5 == 0 else f"text of {turns}"}, "turns": turns}

    graph = StateGraph(Deep)
    graph.add_node("model", model)
    graph.add_node("write", write)
    graph.add_edge(START, "model")
    graph.add_edge(START, "write")
    graph.add_edge("model", END)
    return graph.compile(checkpointer=saver)


def ask(text: str, number: int) -> dict[str, Any]:
    asked = say(text)
    asked["messages"][0].id = f"u{number}"
    return asked


def values_of(graph: Any, config: Any) -> Any:
    return graph.get_state(config).values


@pytest.mark.parametrize("seed", range(6))
def test_a_delta_thread_has_at_every_step_what_langgraph_itself_replays(seed: int) -> None:
    dice = random.Random(seed)
    with backstay.open("memory:") as store:
        ours, theirs = graph_over(BackstaySaver(store)), graph_over(InMemorySaver())
        steps: list[tuple[Any, Any]] = []
        at: tuple[Any, Any] = (thread(), thread())
        for number in range(25):
            if steps and dice.random() < 0.25:
                at = dice.choice(steps)
            text = dice.choice(["hello", "more", "forget", "clear"])
            durability = dice.choice(["sync", "async", "exit"])
            for graph, config in zip((ours, theirs), at, strict=True):
                if text == "more" and number:
                    graph.update_state(config, ask(text, number), as_node="model")
                else:
                    graph.invoke(ask(text, number), config, durability=durability)
            at = (thread(), thread())
            assert values_of(ours, thread()) == values_of(theirs, thread())
            steps = list(
                zip(
                    [snapshot.config for snapshot in ours.get_state_history(thread())],
                    [snapshot.config for snapshot in theirs.get_state_history(thread())],
                    strict=True,
                )
            )
        for mine, other in steps:
            assert values_of(ours, mine) == values_of(theirs, other)


def checkpoint_id(config: Any) -> str:
    return str(config["configurable"]["checkpoint_id"])


def wander(dice: random.Random, ours: Any, theirs: Any, steps: int) -> dict[str, tuple[Any, Any]]:
    """The same random story in two graphs: by the ids of our checkpoints, their configs and the values they replay."""
    for number in range(steps):
        text = dice.choice(["hello", "more", "forget", "clear", "hello"])
        durability = dice.choice(["sync", "async", "exit"])
        for graph in (ours, theirs):
            graph.invoke(ask(text, number), thread(), durability=durability)
    pairs = zip(ours.get_state_history(thread()), theirs.get_state_history(thread()), strict=True)
    return {checkpoint_id(mine.config): (other.config, values_of(theirs, other.config)) for mine, other in pairs}


@pytest.mark.parametrize("seed", [*range(4), *[pytest.param(n, marks=pytest.mark.exhaustive) for n in range(4, 60)]])
def test_prune_restore_fork_copy_and_export_leave_what_langgraph_itself_replays(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    frequency = dice.choice([2, 4, 100])
    with backstay.open("memory:") as store, backstay.open("memory:") as other:
        saver = BackstaySaver(store)
        ours, theirs = graph_over(saver, frequency), graph_over(InMemorySaver(), frequency)
        known = wander(dice, ours, theirs, 10)
        if dice.random() < 0.7:
            store.prune(Retention(keep_last=dice.randint(2, 12)))
        if dice.random() < 0.3:
            saver.prune(["t"])
        if dice.random() < 0.5:
            saver.copy_thread("t", "copy")
            saver.delete_thread("t")
            saver.copy_thread("copy", "t")
        if dice.random() < 0.5:
            store.export(tmp_path / "out.backstay")
            other.import_(tmp_path / "out.backstay")
            store = other  # noqa: PLW2901 - the one that the story goes on in
        ours = graph_over(BackstaySaver(store), frequency)  # remembers nothing
        left = list(ours.get_state_history(thread()))
        assert left
        for snapshot in left:
            expected = known[checkpoint_id(snapshot.config)][1]
            assert snapshot.values == values_of(ours, snapshot.config) == expected
        session = store.session("t")
        at = checkpoint_id(dice.choice(left).config)
        forked = session.fork(at, "looked-at").head.state
        assert [message["id"] for message in forked.get("messages", [])] == [
            message["id"] for message in session.load(at).get("messages", [])
        ]
        session.restore(at)
        config, expected = known[at]
        assert values_of(ours, thread()) == expected
        ours.invoke(ask("after", 99), thread())
        after = theirs.invoke(ask("after", 99), config)
        assert values_of(ours, thread()) == after
        assert store.verify().ok


def talk(graph: Any, turns: int) -> list[tuple[Any, Any]]:
    """Turns of a conversation, and what each checkpoint of it holds."""
    for number in range(turns):
        graph.invoke(ask(f"question {number}", number), thread())
    return [(snapshot.config, snapshot.values) for snapshot in graph.get_state_history(thread())]


def test_a_prune_by_retention_leaves_every_kept_checkpoint_of_a_delta_thread_whole() -> None:
    with backstay.open("memory:") as store:
        graph = graph_over(BackstaySaver(store), frequency=100)
        before = talk(graph, 8)
        store.prune(Retention(keep_last=3))
        left = [(snapshot.config, snapshot.values) for snapshot in graph.get_state_history(thread())]
        assert 0 < len(left) < len(before)
        held = {config["configurable"]["checkpoint_id"]: values for config, values in before}
        for config, values in left:
            assert values == held[config["configurable"]["checkpoint_id"]]
        assert values_of(graph, thread()) == before[0][1]


def test_a_restored_delta_thread_goes_on_from_the_state_it_was_restored_to() -> None:
    with backstay.open("memory:") as store:
        graph = graph_over(BackstaySaver(store), frequency=100)
        before = talk(graph, 5)
        config, values = before[7]
        store.session("t").restore(config["configurable"]["checkpoint_id"])
        assert values_of(graph, thread()) == values
        graph.invoke(ask("after", 99), thread())
        after = values_of(graph, thread())
        assert after["messages"][: len(values["messages"])] == values["messages"]
        assert [message.id for message in after["messages"][len(values["messages"]) :]][-2:] == ["u99", "a-u99"]
        store.session("t").undo()


def test_an_exported_and_imported_delta_thread_is_the_same_thread(tmp_path: Path) -> None:
    with backstay.open("memory:") as store:
        before = talk(graph_over(BackstaySaver(store), frequency=100), 5)
        store.export(tmp_path / "out.backstay")
    with backstay.open("memory:") as other:
        other.import_(tmp_path / "out.backstay")
        graph = graph_over(BackstaySaver(other), frequency=100)
        assert [(snapshot.config, snapshot.values) for snapshot in graph.get_state_history(thread())] == before


def test_people_see_the_messages_and_files_of_a_delta_thread() -> None:
    with backstay.open("memory:") as store:
        graph = graph_over(BackstaySaver(store), frequency=100)
        talk(graph, 3)
        state = store.session("t").load()
        assert [message["content"] for message in state["messages"]][:2] == ["question 0", "answer to question 0"]
        assert state["files"] == {"f1.txt": "text of 1", "f2.txt": "text of 2", "f0.txt": "text of 3"}
        head = store.session("t").head()
        assert head is not None
        assert head.summary == "assistant: answer to question 2"


def test_a_delta_thread_is_read_without_a_walk_over_its_ancestors(monkeypatch: pytest.MonkeyPatch) -> None:
    with backstay.open("memory:") as store:
        saver = BackstaySaver(store)
        graph = graph_over(saver, frequency=100)
        talk(graph, 6)
        reads: list[Any] = []
        real = BackstaySaver.get_tuple

        def counted(self: BackstaySaver, config: Any) -> Any:
            reads.append(config)
            return real(self, config)

        monkeypatch.setattr(BackstaySaver, "get_tuple", counted)
        assert len(values_of(graph, thread())["messages"]) == 12
        assert len(reads) == 1
