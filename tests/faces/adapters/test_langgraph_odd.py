"""What graphs seldom do, or should not: lists changed in place, and threads that others write too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.types import RESUME

import backstay
from backstay.adapters.langgraph import BackstaySaver
from backstay.errors import AlreadyExistsError
from tests.faces.adapters.graphs import META, Chat, chat_graph, checkpoint, read, say, thread


def texts(found: Any) -> list[Any]:
    return [message.content for message in found]


# changed in place


@pytest.mark.parametrize("change", ["append", "pop"])
def test_a_node_may_change_the_list_that_it_was_given(saver: BackstaySaver, change: str) -> None:
    def answer(state: Chat) -> dict[str, Any]:
        if change == "pop":
            state["messages"].pop()
            return {"messages": [AIMessage("a")]}
        state["messages"].append(AIMessage("a", id=str(len(state["messages"]))))
        return {**state}

    graph = chat_graph(saver, answer)
    for turn in range(3):
        graph.invoke(say(str(turn)), thread())
    wanted = ["0", "a", "1", "a", "2", "a"] if change == "append" else ["a", "a", "a"]
    assert texts(graph.get_state(thread()).values["messages"]) == wanted


def test_a_set_changed_by_its_reader_does_not_damage_what_is_kept(saver: BackstaySaver) -> None:
    here = saver.put(thread(), checkpoint("1", seen={1}, deep=[{2}]), META, {})
    mine = read(saver, thread()).checkpoint["channel_values"]
    mine["seen"].add("mine")
    mine["deep"][0].add("mine")
    assert read(saver, thread()).checkpoint["channel_values"] == {"seen": {1}, "deep": [{2}]}
    saver.put(here, checkpoint("2", **mine), META, {})
    assert read(BackstaySaver(saver.store), thread()).checkpoint["channel_values"] == mine
    assert saver.store.verify().ok


class Array(list[Any]):
    """Compares like an array of numbers: with no answer."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    __hash__ = None


def test_an_artifact_need_not_be_comparable() -> None:
    with backstay.open("memory://") as store:
        saver = BackstaySaver(store)
        message = ToolMessage("x", tool_call_id="c", id="1", artifact=Array([1, 2]))
        here = saver.put(thread(), checkpoint("1", messages=[message]), META, {})
        saver.put(here, checkpoint("2", messages=[message, HumanMessage("y")]), META, {})
        assert texts(read(saver, thread()).checkpoint["channel_values"]["messages"]) == ["x", "y"]


def test_an_answer_of_true_replaces_an_answer_of_1(saver: BackstaySaver) -> None:
    here = saver.put(thread(), checkpoint("1"), META, {})
    for answer in (1, True):
        saver.put_writes(here, [(RESUME, [answer])], "task")
    assert repr(read(saver, here).pending_writes[0][2]) == "[True]"


# sessions that others write too


def test_a_commit_of_ones_own_on_a_thread_does_not_hide_the_conversation(saver: BackstaySaver) -> None:
    graph = chat_graph(saver)
    graph.invoke(say("one"), thread())
    session = saver.store.session("t")
    session.commit({**session.load(), "note": "by hand"})
    last = read(saver, thread())
    saver.put_writes(last.config, [("messages", "late")], "task")
    assert read(saver, thread()).pending_writes == [("task", "messages", "late")]
    found = graph.invoke(say("two"), thread())["messages"]
    assert texts(found) == ["one", "answer to one", "two", "answer to two"]
    assert session.load()["note"] == "by hand"
    assert texts(graph.get_state(thread()).values["messages"]) == texts(found)


def test_a_session_that_is_no_thread_is_not_listed(saver: BackstaySaver) -> None:
    session = saver.store.session("other")
    before = session.commit({"a": 1})
    session.commit({"a": 2})
    session.restore(before)
    assert list(saver.list(None)) == []
    assert read(saver, thread("other")) is None


def test_a_thread_named_like_the_calls_of_another_outlives_it(saver: BackstaySaver) -> None:
    for name in ("t", "t/tools"):
        saver.put(thread(name), checkpoint("1", x=name), META, {})
    saver.delete_thread("t")
    assert read(saver, thread("t")) is None
    assert read(saver, thread("t/tools")).checkpoint["channel_values"] == {"x": "t/tools"}


@pytest.mark.parametrize("by_retention", [False, True])
def test_one_may_prune_while_another_lists(saver: BackstaySaver, by_retention: bool) -> None:
    here = thread()
    for step in range(80):  # more than are read at once
        here = saver.put(here, checkpoint(f"{step:03}", x=step), {**META, "step": step}, {})
    saver.put_writes(here, [("x", "late")], "task")
    seen = []
    for found in BackstaySaver(saver.store).list(thread()):
        seen.append(found.metadata["step"])
        if len(seen) == 2:
            saver.store.prune(backstay.Retention(keep_last=4)) if by_retention else saver.prune(["t"])
    assert seen == ([79, 78, 77] if by_retention else [79, 78])
    saver.delete_thread("t")
    assert read(saver, thread()) is None


def test_an_id_that_is_taken_in_another_namespace_is_an_error_and_no_loss(saver: BackstaySaver) -> None:
    saver.put(thread(), checkpoint("1", x=1), META, {})
    with pytest.raises(AlreadyExistsError, match="namespace ''"):
        saver.put(thread(checkpoint_ns="in"), checkpoint("1", x=2), META, {})
    assert read(saver, thread()).checkpoint["channel_values"] == {"x": 1}


def test_metadata_may_have_any_key(saver: BackstaySaver) -> None:
    saver.put(thread(), checkpoint("1"), {**META, "lg": {"of": "x"}}, {})
    assert read(saver, thread()).metadata == {**META, "lg": {"of": "x"}}
    assert len(list(saver.list(None, filter={"lg": {"of": "x"}}))) == 1
