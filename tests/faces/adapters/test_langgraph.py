"""LangGraph's checkpoints in Backstay: the whole interface, nothing lost, each step at the price of what changed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import backstay
from backstay.adapters import langgraph as adapter
from backstay.adapters.langgraph import BackstaySaver
from backstay.adapters.langgraph.rows import branch_of, line_of
from backstay.errors import ClosedError, UnsupportedError
from tests.faces.adapters.graphs import META, Chat, chat_graph, checkpoint, read, say, thread


def test_it_does_all_that_langgraph_asks_of_a_checkpointer(new_url: Callable[[], str]) -> None:
    @checkpointer_test(name="BackstaySaver")  # type: ignore[untyped-decorator]
    async def factory() -> AsyncIterator[BackstaySaver]:
        with BackstaySaver.open(new_url()) as made:
            yield made

    report = asyncio.run(validate(factory))
    failures = [failure for result in report.results.values() for failure in result.failures]
    assert not failures
    assert sum(result.tests_passed for result in report.results.values()) == 81


# a conversation


def test_a_chat_is_there_in_the_next_process_and_reads_like_a_conversation(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    with BackstaySaver.open(url) as first:
        chat_graph(first).invoke(say("hello"), thread())
    with backstay.open(url) as store:
        messages = chat_graph(BackstaySaver(store)).invoke(say("again"), thread())["messages"]
        assert [message.content for message in messages] == ["hello", "answer to hello", "again", "answer to again"]
        state = store.session("t").load()
        assert [(item["role"], item["content"]) for item in state["messages"]][:2] == [
            ("user", "hello"),
            ("assistant", "answer to hello"),
        ]
        lines = [(point.trigger, point.step, point.summary) for point in store.session("t").log()]
        assert ("loop", 4, "assistant: answer to again") in lines[:2]
        assert any(trigger == "writes" and summary == "messages" for trigger, _, summary in lines)
        assert store.verify().ok


def turns(saver: Any, count: int) -> None:
    """What a graph of one node asks of its saver, turn by turn."""
    config: Any = thread()
    messages: list[Any] = []
    version = 0

    def put(source: str, **more: Any) -> None:
        nonlocal config, version
        version += 1
        made = checkpoint(messages=messages, **more)
        made["channel_versions"] = {"messages": version, "__start__": version - 1, "branch:to:chat": version}
        made["versions_seen"] = {"__input__": {}, "chat": {"branch:to:chat": version - 2}}
        config = saver.put(config, made, {"source": source, "step": version - 2, "parents": {}}, {"messages": version})

    for turn in range(count):
        human = HumanMessage(f"question {turn}, about as long as people ask " * 7, id=str(uuid.uuid4()))
        ai = AIMessage(f"answer {turn}, which is somewhat longer than that " * 8, id=str(uuid.uuid4()))
        put("input", __start__={"messages": [human]})
        saver.put_writes(config, [("messages", [human]), ("branch:to:chat", None)], str(uuid.uuid4()), "~, __start__")
        messages = [*messages, human]
        put("loop", **{"branch:to:chat": None})
        saver.put_writes(config, [("messages", [ai])], str(uuid.uuid4()), "~, chat")
        messages = [*messages, ai]
        put("loop")


def test_500_turns_stay_small(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    with BackstaySaver.open(f"sqlite:///{path}", durability="relaxed") as saver:
        turns(saver, 500)
        assert len(read(BackstaySaver(saver.store), thread()).checkpoint["channel_values"]["messages"]) == 1000
    assert path.stat().st_size < 800_000  # 516 MB of states, one after the other


def test_a_message_changed_in_place_is_recorded(saver: BackstaySaver) -> None:
    def answer(state: Chat) -> dict[str, Any]:
        state["messages"][0].content = "edited"
        state["messages"][0].additional_kwargs["seen"] = [1]
        return {"messages": [AIMessage("done")]}

    graph = chat_graph(saver, answer)
    graph.invoke(say("first"), thread())
    graph.invoke(say("second"), thread())
    found = graph.get_state(thread()).values["messages"]
    assert [message.content for message in found] == ["edited", "done", "second", "done"]
    assert found[0].additional_kwargs == {"seen": [1]}


def test_a_message_changed_by_its_reader_changes_nothing_that_is_kept(saver: BackstaySaver) -> None:
    graph = chat_graph(saver)
    graph.invoke(say("first"), thread())
    mine = graph.get_state(thread()).values["messages"]
    mine[0].content = "mine alone"
    mine[1].response_metadata["also"] = "mine"
    assert [message.content for message in graph.get_state(thread()).values["messages"]] == ["first", "answer to first"]
    graph.invoke(say("second"), thread())
    found = graph.get_state(thread()).values["messages"]
    assert found[0].content == "first"
    assert found[1].response_metadata == {}


def test_messages_come_back_as_they_were(saver: BackstaySaver) -> None:
    call = {"name": "f", "args": {"x": 1.5}, "id": "c", "type": "tool_call"}
    usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    kept: list[Any] = [
        HumanMessage([{"type": "text", "text": "x"}], id="1", name="me"),
        AIMessage("", id="2", tool_calls=[call], usage_metadata=usage, response_metadata={"logprobs": None}),
        ToolMessage("r", tool_call_id="c", id="3", status="error", artifact={"raw": b"\x00"}),
        HumanMessage("x", id="4", own="an extra field"),
    ]
    config = saver.put(thread(), checkpoint(messages=kept), META, {})
    found = read(saver, config).checkpoint["channel_values"]["messages"]
    assert found == kept
    assert [type(message) for message in found] == [type(message) for message in kept]
    assert found[3].own == "an extra field"


def test_a_conversation_may_be_cut_and_edited(saver: BackstaySaver) -> None:
    def answer(state: Chat) -> dict[str, Any]:
        gone = [RemoveMessage(id=message.id) for message in state["messages"][:-2]]
        return {"messages": [*gone, AIMessage("short")]}

    graph = chat_graph(saver, answer)
    for text in ("one", "two", "three"):
        graph.invoke(say(text), thread())
    found = graph.get_state(thread()).values["messages"]
    assert [message.content for message in found] == ["short", "three", "short"]


# nothing is lost


def test_two_invocations_at_once_are_both_kept_as_branches(url: str) -> None:
    both = threading.Barrier(2, timeout=30)

    class AtOnce(BackstaySaver):
        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            both.wait()
            return found

    with backstay.open(url) as store:
        chat_graph(BackstaySaver(store)).invoke(say("first"), thread())
        graphs = [chat_graph(AtOnce(store)) for _ in range(2)]
        runs = [threading.Thread(target=graphs[at].invoke, args=(say(f"turn {at}"), thread())) for at in range(2)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        texts = [
            [message["content"] for message in head.state["messages"]]
            for head in store.session("t").branches().values()
        ]
        assert sorted(texts) == [
            ["first", "answer to first", "turn 0", "answer to turn 0"],
            ["first", "answer to first", "turn 1", "answer to turn 1"],
        ]
        assert len(list(BackstaySaver(store).list(thread()))) == 9
        assert store.verify().ok


def test_a_writer_whose_clock_is_behind_loses_nothing(saver: BackstaySaver) -> None:
    config = saver.put(thread(), checkpoint("1f000000-0000-6000-8000-000000000009", x=1), META, {})
    saver.put(config, checkpoint("1e000000-0000-6000-8000-000000000001", x=2), META, {})
    assert read(saver, thread()).checkpoint["channel_values"] == {"x": 2}
    assert [found.checkpoint["channel_values"]["x"] for found in saver.list(thread())] == [2, 1]


def test_a_checkpoint_that_is_put_twice_is_there_once(saver: BackstaySaver) -> None:
    first = checkpoint(x=1)
    config = saver.put(thread(), first, META, {})
    saver.put_writes(config, [("x", 5)], "task")
    assert saver.put(thread(), first, META, {}) == config
    (found,) = saver.list(thread())
    assert found.pending_writes == [("task", "x", 5)]


def test_writes_that_come_before_their_checkpoint_wait_for_it(saver: BackstaySaver) -> None:
    early = checkpoint("early", x=1)
    saver.put_writes(thread(checkpoint_id="early"), [("x", "first")], "b")
    saver.put_writes(thread(checkpoint_id="early"), [("x", "other")], "a")
    assert read(saver, thread()) is None
    assert list(saver.list(thread())) == []
    saver.put(thread(), early, META, {})
    assert read(saver, thread()).pending_writes == [("a", "x", "other"), ("b", "x", "first")]
    assert read(saver, thread(checkpoint_id="early")).pending_writes[0] == ("a", "x", "other")


def test_early_writes_are_not_forgotten_for_those_that_come_in_between(saver: BackstaySaver) -> None:
    first = saver.put(thread(), checkpoint("one", x=1), META, {})
    saver.put_writes(thread(checkpoint_id="two"), [("x", "early")], "b")
    assert [row.id for row in saver.store.session("t").log()] == ["one"]  # no row that a list would show, or a crash
    saver.put_writes(first, [("x", "in time")], "a")
    second = saver.put(first, checkpoint("two", x=2), META, {})
    saver.put_writes(second, [("x", "too")], "c")
    for config in (second, thread()):
        assert read(saver, config).pending_writes == [("b", "x", "early"), ("c", "x", "too")]
    assert read(saver, first).pending_writes == [("a", "x", "in time")]


def test_writes_that_come_late_are_still_those_of_their_checkpoint(saver: BackstaySaver) -> None:
    first = saver.put(thread(), checkpoint("one", x=1), META, {})
    saver.put_writes(first, [("x", "in time")], "a")
    saver.put(first, checkpoint("two", x=2), META, {})
    saver.put_writes(first, [("x", "late")], "b")
    saver.put_writes(first, [("x", "not again")], "b")
    saver.put_writes(first, [(ERROR, "one")], "c")
    saver.put_writes(first, [(ERROR, "two")], "c")
    wanted = [("a", "x", "in time"), ("b", "x", "late"), ("c", ERROR, "two")]
    assert read(saver, first).pending_writes == wanted
    newest, oldest = saver.list(thread())
    assert (newest.checkpoint["id"], newest.pending_writes) == ("two", [])
    assert (oldest.checkpoint["id"], oldest.pending_writes) == ("one", wanted)


def test_a_late_write_of_a_whole_conversation_costs_what_is_new_in_it(saver: BackstaySaver) -> None:
    chat = [HumanMessage(f"message {number}", id=str(number)) for number in range(200)]
    first = saver.put(thread(), checkpoint("one", messages=chat), META, {})
    saver.put(first, checkpoint("two", messages=chat), META, {})
    saver.put_writes(first, [("messages", [*chat, AIMessage("new", id="new")])], "late")
    (row,) = [row for row in saver.store.session("t").log() if row.trigger == "writes"]
    assert len(str(row.state["lg"]["stray"])) < 500
    for reader in (saver, BackstaySaver(saver.store)):
        ((_, _, written),) = read(reader, first).pending_writes
        assert written == [*chat, AIMessage("new", id="new")]


def test_writes_wait_for_their_checkpoint_while_many_other_threads_are_served() -> None:
    with BackstaySaver.open("memory://") as saver:
        first = saver.put(thread(), checkpoint("one", x=1), META, {})
        saver.put_writes(thread(checkpoint_id="two"), [("x", "early")], "b")
        for number in range(300):
            saver.put(thread(str(number)), checkpoint(x=number), META, {})
        second = saver.put(first, checkpoint("two", x=2), META, {})
        assert read(saver, second).pending_writes == [("b", "x", "early")]


def test_special_writes_replace_and_others_stay_also_in_one_call(saver: BackstaySaver) -> None:
    config = saver.put(thread(), checkpoint(x=1), META, {})
    saver.put_writes(config, [("x", "kept"), (INTERRUPT, "old")], "task", "path")
    saver.put_writes(config, [("x", "dropped"), (INTERRUPT, "new"), ("y", "added")], "task", "path")
    found = read(saver, config).pending_writes
    assert found == [("task", INTERRUPT, "new"), ("task", "x", "kept"), ("task", "y", "added")]


def test_writes_are_in_the_order_of_their_paths(saver: BackstaySaver) -> None:
    config = saver.put(thread(), checkpoint(x=1), META, {})
    for task, path in (("a", "~2"), ("b", "~1"), ("c", "")):
        saver.put_writes(config, [("x", 1), ("x", 2)], task, path)
    assert [(task, value) for task, _, value in read(saver, config).pending_writes] == [
        *[("c", 1), ("c", 2), ("b", 1), ("b", 2), ("a", 1), ("a", 2)]
    ]


def test_one_may_write_while_one_lists_and_only_what_is_asked_for_is_read(saver: BackstaySaver) -> None:
    config = thread()
    for step in range(30):
        config = saver.put(config, checkpoint(x=step), {**META, "step": step}, {})
    read = 0
    state = saver.store.backend.state

    def counting(*args: Any, **more: Any) -> Any:
        nonlocal read
        read += 1
        return state(*args, **more)

    saver.store.backend.state = counting  # type: ignore[method-assign]
    seen = []
    for found in saver.list(thread(), limit=10):
        seen.append(found.metadata["step"])
        config = saver.put(config, checkpoint(x=100), META, {})
    assert seen == [*range(29, 19, -1)]
    assert read <= 10
    assert [found.metadata["step"] for found in saver.list(thread(), filter={"step": 3})] == [3]


def test_a_second_process_sees_everything_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/both.db"
    child = f"""
from backstay.adapters.langgraph import BackstaySaver
from tests.faces.adapters.graphs import chat_graph, say, thread
with BackstaySaver.open({url!r}) as saver:
    print(len(chat_graph(saver).invoke(say("there"), thread())["messages"]))
"""
    with BackstaySaver.open(url) as here:
        graph = chat_graph(here)
        graph.invoke(say("here"), thread())
        done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True, timeout=120)
        assert done.stdout.strip() == "4"
        assert len(graph.invoke(say("and here"), thread())["messages"]) == 6


# going back


def test_going_back_in_a_graph_makes_a_branch_and_the_old_line_stays(saver: BackstaySaver) -> None:
    graph = chat_graph(saver)
    graph.invoke(say("one"), thread())
    before = graph.get_state(thread()).config
    graph.invoke(say("two"), thread())
    graph.invoke(say("other"), before)
    found = [message.content for message in graph.get_state(thread()).values["messages"]]
    assert found == ["one", "answer to one", "other", "answer to other"]
    heads = saver.store.session("t").branches()
    assert sorted(heads) == ["main", "main/1"]
    assert heads["main"].state["messages"][-1]["content"] == "answer to two"


def test_a_restore_with_backstays_own_means_is_where_the_graph_goes_on(saver: BackstaySaver) -> None:
    graph = chat_graph(saver)
    graph.invoke(say("one"), thread())
    session = saver.store.session("t")
    before = session.checkpoint()
    graph.invoke(say("two"), thread())
    assert session.head() != before  # a restore goes by what was last seen, as a commit does
    session.restore(before)
    found = graph.invoke(say("three"), thread())["messages"]
    assert [message.content for message in found] == ["one", "answer to one", "three", "answer to three"]


def test_an_interrupt_waits_in_the_store_for_its_answer(tmp_path: Path) -> None:
    def ask(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(f"you said {interrupt('yes or no?')}")]}

    url = f"sqlite:///{tmp_path}/ask.db"
    with BackstaySaver.open(url) as first:
        chat_graph(first, ask).invoke(say("go"), thread())
    with BackstaySaver.open(url) as second:
        graph = chat_graph(second, ask)
        assert graph.get_state(thread()).tasks[0].interrupts[0].value == "yes or no?"
        (wait,) = second.store.waiting()
        assert (wait.session_id, wait.branch, wait.what, wait.id) == ("t", "main", "framework", None)
        assert "interrupt" in wait.reason
        assert backstay.recover(second.store, lambda _: pytest.fail("LangGraph resumes it")).handled == 0
        assert graph.invoke(Command(resume="yes"), thread())["messages"][-1].content == "you said yes"
        assert second.store.waiting() == []


def test_subgraphs_have_branches_of_their_own(saver: BackstaySaver) -> None:
    inner = StateGraph(Chat)
    inner.add_node("ask", lambda _: {"messages": [AIMessage(interrupt("?"))]})
    inner.add_edge(START, "ask")
    outer = StateGraph(Chat)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    outer.add_edge("inner", END)
    graph = outer.compile(checkpointer=saver)
    graph.invoke(say("go"), thread())
    state = graph.get_state(thread(), subgraphs=True)
    assert state.tasks[0].state.values["messages"][0].content == "go"
    assert graph.invoke(Command(resume="in"), thread())["messages"][-1].content == "in"
    branches = saver.store.session("t").branches()
    assert {"main"} < set(branches)
    assert all(name == "main" or name.startswith("/inner:") for name in branches)


@pytest.mark.parametrize("ns", ["", "main", "child:1", "a|b", "1/x", "+1", "main/1", "…"])
def test_the_name_of_a_branch_says_its_namespace(ns: str) -> None:
    names = {branch_of(ns, line) for line in (0, 1, 12)}
    assert len(names) == 3
    assert {line_of(name) for name in names} == {(ns, 0), (ns, 1), (ns, 12)}


def test_a_namespace_may_be_longer_than_a_name(saver: BackstaySaver) -> None:
    deep = "|".join([f"node{at}:1f0e0ec5-e0dd-6cd3-8002-7b3f6e18d568" for at in range(20)])
    for ns in (deep, deep + "x"):
        saver.put(thread(checkpoint_ns=ns), checkpoint(x=ns), META, {})
    for ns in (deep, deep + "x"):
        assert read(saver, thread(checkpoint_ns=ns)).checkpoint["channel_values"] == {"x": ns}
        (found,) = saver.list(thread(checkpoint_ns=ns))
        assert found.config["configurable"]["checkpoint_ns"] == ns


def test_a_prune_of_backstay_leaves_the_graph_where_it_was(saver: BackstaySaver) -> None:
    def ask(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("?"))]}

    graph = chat_graph(saver, ask)
    graph.invoke(say("go"), thread())
    saver.store.prune(backstay.Retention(keep_last=1))
    graph = chat_graph(BackstaySaver(saver.store), ask)
    assert graph.get_state(thread()).next == ("chat",)
    assert graph.invoke(Command(resume="on"), thread())["messages"][-1].content == "on"


# the store


def test_a_saver_may_be_opened_by_async_with_or_be_given_an_async_store(new_url: Callable[[], str]) -> None:
    async def opened() -> Any:
        async with BackstaySaver.open(new_url(), agent="support") as saver:
            await chat_graph(saver).ainvoke(say("one"), thread())
            assert [info.agent for info in saver.store.sessions()] == ["support"]
        with pytest.raises(ClosedError):
            saver.get_tuple(thread())

    async def given() -> Any:
        async with backstay.aio.open(new_url()) as store:
            found = await chat_graph(BackstaySaver(store)).ainvoke(say("one"), thread())
            return found, await store.session("t").load()

    asyncio.run(opened())
    found, kept = asyncio.run(given())
    assert found["messages"][-1].content == kept["messages"][-1]["content"] == "answer to one"


# versions and what other savers give


def test_metadata_comes_back_with_lists_as_from_other_savers(saver: BackstaySaver) -> None:
    saver.put(thread(), checkpoint("1"), {**META, "seen": {"a": (1, (2, 3))}}, {})
    assert read(saver, thread()).metadata["seen"] == {"a": [1, [2, 3]]}
    assert len(list(saver.list(thread(), filter={"seen": {"a": (1, [2, 3])}}))) == 1


def test_a_channel_left_out_is_as_its_version_says(saver: BackstaySaver) -> None:
    here = saver.put(thread(), checkpoint("1", log=["a"], turn=1), META, {"log": 1, "turn": 1})
    second = checkpoint("2", turn=2) | {"channel_versions": {"log": 1, "turn": 2}}
    here = saver.put(here, second, META, {"turn": 2})
    assert read(saver, thread()).checkpoint["channel_values"] == {"log": ["a"], "turn": 2}
    third = checkpoint("3", turn=3) | {"channel_versions": {"log": 2, "turn": 3}}
    saver.put(here, third, META, {"log": 2, "turn": 3})
    assert read(saver, thread()).checkpoint["channel_values"] == {"turn": 3}
    # A step that is not its child says nothing about it, whatever the numbers are.
    saver.put(thread(), checkpoint("4") | {"channel_versions": {"log": 2, "turn": 3}}, META, {})
    assert read(saver, thread(checkpoint_id="4")).checkpoint["channel_values"] == {}


def test_what_is_earlier_is_said_by_steps_where_graphs_write_in_the_background(saver: BackstaySaver) -> None:
    inner = {**META, "parents": {"": "2"}}
    first = saver.put(thread(), checkpoint("1"), META, {})
    # The step inside is on disk before the one it was made in.
    saver.put(thread(checkpoint_ns="in"), checkpoint("2a"), inner, {})
    second = saver.put(first, checkpoint("2"), META, {})
    saver.put(second, checkpoint("3"), META, {})
    inside = thread(checkpoint_ns="in")

    def listed(where: Any, before: str) -> list[str]:
        found = saver.list(where, before={"configurable": {"thread_id": "t", "checkpoint_id": before}})
        return [each.checkpoint["id"] for each in found]

    assert listed(inside, "2") == listed(inside, "1") == []
    assert listed(inside, "3") == ["2a"]
    assert listed(thread(), "2a") == ["2", "1"]


@pytest.mark.parametrize("found", [None, "3.0.1", "4.4.0", "5.0.0", "4.9.0rc1"])
def test_a_version_that_was_not_tried_is_refused_with_a_way_out(found: str | None) -> None:
    with pytest.raises(UnsupportedError, match=r"backstay\[langgraph\]"):
        adapter._refuse_unknown(found)
