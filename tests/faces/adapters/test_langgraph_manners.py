"""A saver behaves as savers do: opened by a URL, set up, copied, pruned; and a deleted thread stays deleted."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import RemoveMessage

from backstay.adapters.langgraph import BackstaySaver
from backstay.errors import AlreadyExistsError
from tests.faces.adapters.graphs import META, chat_graph, checkpoint, read, say, thread


def test_a_saver_takes_a_url(tmp_path: Path) -> None:
    saver = BackstaySaver(f"sqlite:///{tmp_path}/x.db")
    chat_graph(saver).invoke(say("hello"), thread())
    saver.leave()
    again = BackstaySaver(tmp_path / "x.db")
    assert len(chat_graph(again).invoke(say("more"), thread())["messages"]) == 4
    again.leave()


def test_code_written_for_other_savers_opens_and_sets_up_this_one(tmp_path: Path) -> None:
    with BackstaySaver.from_conn_string(f"sqlite:///{tmp_path}/x.db") as saver:
        saver.setup()
        chat_graph(saver).invoke(say("hello"), thread())


def test_code_written_for_async_savers_may_await_the_set_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with BackstaySaver.from_conn_string(f"sqlite:///{tmp_path}/x.db") as saver:
            await saver.setup()
            await chat_graph(saver).ainvoke(say("hello"), thread())

    asyncio.run(main())


def test_a_copy_onto_a_thread_that_is_there_is_refused_in_the_words_of_threads(saver: BackstaySaver) -> None:
    graph = chat_graph(saver)
    graph.invoke(say("one"), thread("a"))
    graph.invoke(say("two"), thread("b"))
    with pytest.raises(AlreadyExistsError, match="there is a thread 'b' already"):
        saver.copy_thread("a", "b")
    assert graph.get_state(thread("b")).values["messages"][0].content == "two"


def test_writes_that_come_after_a_thread_was_deleted_do_not_make_it_anew(saver: BackstaySaver) -> None:
    config = saver.put(thread(), checkpoint("1", x=1), META, {})
    saver.delete_thread("t")
    saver.put_writes(config, [("x", 2)], "task")
    assert read(saver, thread()) is None
    assert list(saver.store.sessions()) == []


def test_writes_that_come_before_the_first_checkpoint_of_a_thread_are_found_on_it(saver: BackstaySaver) -> None:
    early = checkpoint("1", x=1)
    saver.put_writes(thread(checkpoint_id="1"), [("x", 2)], "task")
    config = saver.put(thread(), early, META, {})
    assert read(saver, config).pending_writes == [("task", "x", 2)]


def test_deleting_what_a_run_made_loses_no_write_of_another(saver: BackstaySaver) -> None:
    first = saver.put(thread(), checkpoint("1", x=1), {**META, "run_id": "kept"}, {})
    second = saver.put(first, checkpoint("2", x=2), {**META, "run_id": "gone"}, {})
    saver.put_writes(first, [("x", "late")], "task")  # lies on top of what is deleted
    saver.delete_for_runs(["gone"])
    assert read(saver, second) is None
    assert read(saver, first).pending_writes == [("task", "x", "late")]


def test_a_prune_gives_the_space_back(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with BackstaySaver.open(path) as saver:
        graph = chat_graph(saver, lambda _: {"messages": []})
        for _ in range(30):
            graph.invoke(say(secrets.token_hex(20_000)), thread())
        gone = [RemoveMessage(message.id) for message in graph.get_state(thread()).values["messages"][:-1]]
        graph.invoke({"messages": gone}, thread())
        before = path.stat().st_size + Path(f"{path}-wal").stat().st_size
        saver.prune(["t"])
    assert path.stat().st_size < before / 5


def test_an_invocation_that_was_overtaken_is_told_and_going_back_on_purpose_is_not(
    saver: BackstaySaver, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    saver.store.on("overtaken", lambda branch: told.append(branch.name))
    first = saver.put(thread(), checkpoint("1", x=1), META, {})
    saver.put(first, checkpoint("2", x=2), META, {})
    assert not told
    saver.put(first, checkpoint("3", x=3), META, {})  # read before the second was there
    assert told == ["main/1"]
    assert "main/1" in caplog.text
    read(saver, first)  # time travel: asked for by its id
    saver.put(first, checkpoint("4", x=4), META, {})
    assert told == ["main/1"]
