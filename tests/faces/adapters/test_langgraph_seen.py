"""What a person sees of a thread at the command line: checkpoints, how they stand, and nothing that LangGraph keeps."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import backstay
from backstay.adapters.langgraph import BackstaySaver
from tests.faces.adapters.graphs import Chat, chat_graph, say, thread
from tests.faces.cli import shell


def answer(state: Chat) -> dict[str, Any]:
    text = state["messages"][-1].content
    if text == "ask":
        return {"messages": [AIMessage(f"they said {interrupt({'question': 'may I?'})}")]}
    if text == "fail":
        raise ValueError("bad luck")
    return {"messages": [AIMessage(f"answer to {text}")]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Threads that finished, were interrupted, and failed."""
    with backstay.open(tmp_path / "x.db") as store:
        graph = chat_graph(BackstaySaver(store), answer)
        for name, last in (("done", "more"), ("asked", "ask"), ("failed", "fail")):
            graph.invoke(say("hello"), thread(name))
            try:
                graph.invoke(say(last), thread(name))
            except ValueError:
                assert name == "failed"
    return tmp_path


def shown(folder: Path, *line: str) -> str:
    done = shell.run(*line, "--store", "x.db", folder=folder)
    assert (done.code, done.err) == (0, ""), done.err
    return done.out


def rows(folder: Path, *line: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in shown(folder, *line, "--json").splitlines()]


def test_the_log_has_checkpoints_and_writes_only_if_asked_for(folder: Path) -> None:
    assert [row["trigger"] for row in rows(folder, "log", "done")] == ["loop", "loop", "input"] * 2
    assert "writes" in [row["trigger"] for row in rows(folder, "log", "done", "--writes")]
    for options in ([], ["--graph", "--all"], ["--oneline"], ["-p"]):
        text = shown(folder, "log", "done", *options)
        assert "writes" not in text
        assert "lg" not in text.split()


def test_every_id_that_is_printed_names_its_own_checkpoint(folder: Path) -> None:
    for name in ("done", "asked", "failed"):
        for options in ([], ["--writes"]):
            text = shown(folder, "log", name, "--oneline", *options)
            printed = [line.split()[0] for line in text.splitlines()]
            meant = [row["id"] for row in rows(folder, "log", name, *options)]
            assert [rows(folder, "log", name, id_, "-n", "1", *options)[0]["id"] for id_ in printed] == meant


def test_the_head_is_the_last_checkpoint_and_says_how_the_thread_stands(folder: Path) -> None:
    expected = {
        "done": ("completed", None),
        "asked": ("waiting", "for the answer to an interrupt: question: may I?"),
        "failed": ("failed", "ValueError('bad luck')"),
    }
    for name, (status, reason) in expected.items():
        (head,) = rows(folder, "show", name)
        assert (head["trigger"], head["status"], head["reason"], head["refs"]) == ("loop", status, reason, ["main"])
        assert rows(folder, "log", name, "-n", "1")[0]["id"] == head["id"]
        (branch,) = rows(folder, "branches", name)
        assert (branch["head"]["id"], branch["status"]) == (head["id"], status)
    assert {row["id"]: row["status"] for row in rows(folder, "sessions")} == {
        name: status for name, (status, _) in expected.items()
    }
    assert "may I?" in shown(folder, "status")
    assert "waiting" in shown(folder, "log", "asked", "-n", "1")


def test_steps_back_are_those_that_the_log_shows(folder: Path) -> None:
    for name in ("done", "asked"):
        ids = [row["id"] for row in rows(folder, "log", name)]
        assert [rows(folder, "show", name, f"main~{at}")[0]["id"] for at in range(len(ids))] == ids
    missing = shell.run("show", "done", "main~6", "--store", "x.db", folder=folder)
    assert missing.code != 0


def test_diff_show_and_search_tell_nothing_that_langgraph_keeps_for_itself(folder: Path) -> None:
    assert [part["part"] for part in rows(folder, "diff", "done", "main", "main~3")[0]["parts"]] == ["messages"]
    text = shown(folder, "show", "done") + shown(folder, "show", "done", "--state")
    assert "channel_versions" not in text
    assert "lg" not in text.split()
    found = rows(folder, "search", "answer to more")
    assert [row["path"][0] for row in found] == ["messages"]


def test_a_thread_goes_from_waiting_to_completed_when_it_is_resumed(folder: Path) -> None:
    with backstay.open(folder / "x.db") as store:
        chat_graph(BackstaySaver(store), answer).invoke(Command(resume="yes"), thread("asked"))
        assert store.waiting() == []
    assert [row["status"] for row in rows(folder, "log", "asked")][:2] == ["completed", "in_progress"]


def test_graphs_that_join_send_or_are_functions_are_completed_at_their_end_only() -> None:
    def note(state: Chat) -> dict[str, Any]:
        seen.append(store.session("t").branches()["main"].status.value)
        return {"messages": [AIMessage("x")]}

    seen: list[str] = []
    with backstay.open("memory:") as store:
        graph = StateGraph(Chat)
        for name in "abcd":
            graph.add_node(name, note)
        graph.add_edge(START, "a")
        graph.add_conditional_edges("a", lambda state: [Send("b", state), "c"], ["b", "c"])
        graph.add_edge(["b", "c"], "d")
        app = graph.compile(checkpointer=BackstaySaver(store))
        for _ in range(2):
            app.invoke(say("go"), thread(), durability="sync")
            head = store.session("t").head()
            assert head is not None
            assert head.status == "completed"
        assert set(seen) == {"in_progress"}

        @task  # type: ignore[untyped-decorator]
        def double(x: int) -> int:
            return 2 * x

        @entrypoint(checkpointer=BackstaySaver(store))  # type: ignore[untyped-decorator]
        def work(x: int) -> int:
            return int(double(x).result())

        assert work.invoke(3, thread("f")) == 6
        assert [info.status.value for info in store.sessions(prefix="f")] == ["completed"]


def test_a_line_that_another_one_has_just_begun_is_beside_too(tmp_path: Path) -> None:
    class Slow(BackstaySaver):
        """While it reads, one invocation goes on, and a second one begins a line and has put nothing yet."""

        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            assert found is not None
            chat_graph(BackstaySaver(store)).invoke(say("first"), thread())
            store.session("t").fork(found.config["configurable"]["checkpoint_id"], "main/1")
            return found

    with backstay.open(tmp_path / "x.db") as store:
        chat_graph(BackstaySaver(store)).invoke(say("hello"), thread())
        chat_graph(Slow(store)).invoke(say("third"), thread())
        assert [(row["name"], row["status"]) for row in rows(tmp_path, "branches", "t")] == [
            ("main", "overtaken"),
            ("main/1", "completed"),
        ]


def test_branches_of_invocations_that_were_overtaken_say_so(tmp_path: Path) -> None:
    meeting = threading.Barrier(3)

    class Meeting(BackstaySaver):
        """Reads the thread's head, and goes on once all have: so none stands behind another."""

        def get_tuple(self, config: Any) -> Any:
            found = super().get_tuple(config)
            meeting.wait(30)
            return found

    with backstay.open(tmp_path / "x.db") as store:
        chat_graph(BackstaySaver(store)).invoke(say("hello"), thread())
        # A saver each: as if they were processes.
        asking = [
            threading.Thread(target=chat_graph(Meeting(store)).invoke, args=(say(f"q{n}"), thread())) for n in range(3)
        ]
        for one in asking:
            one.start()
        for one in asking:
            one.join()
        graph = chat_graph(BackstaySaver(store))
        config = list(graph.get_state_history(thread()))[-1].config
        latest = graph.get_state(thread()).config["configurable"]["checkpoint_id"]
        overtaken = {row["name"]: row for row in rows(tmp_path, "branches", "t") if row["status"] == "overtaken"}
        assert len(overtaken) == 2
        (current,) = [row for row in rows(tmp_path, "branches", "t") if row["name"] not in overtaken]
        assert current["head"]["id"] == latest
        assert shown(tmp_path, "branches", "t").count("overtaken") == 2
        # Going back on purpose is no race.
        graph.invoke(None, config)
        assert len([row for row in rows(tmp_path, "branches", "t") if row["status"] == "overtaken"]) == 2
