"""A thread of LangGraph on the page: what `log`, `show` and `diff` tell of it, and nothing that LangGraph keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

import backstay
from backstay.adapters.langgraph import BackstaySaver, once
from backstay.face.calls_beside import calls_session
from tests.faces.adapters.graphs import Chat, chat_graph, say, thread
from tests.faces.cli import shell
from tests.faces.web.serving import Visitor, served

ASKED = {
    "action_requests": [{"name": "publish", "args": {"page": "index"}, "description": "a long text"}],
    "review_configs": [{"action_name": "publish"}],
}


def answer(state: Chat) -> dict[str, Any]:
    text = state["messages"][-1].content
    if text == "ask":
        return {"messages": [AIMessage(f"they said {interrupt(ASKED)}")]}
    if text == "fail":
        raise ValueError("bad luck")
    return {"messages": [AIMessage(f"answer to {text}")]}


@tool  # type: ignore[untyped-decorator]
def search(words: str) -> str:
    """Look for words."""
    return f"found {words}"


@tool  # type: ignore[untyped-decorator]
def refund(order: int) -> str:
    """Give the money back."""
    raise KeyboardInterrupt


def make(store: backstay.Store) -> None:
    """Threads that finished, went another way, were interrupted, failed; one with a tool that is called once."""
    saver = BackstaySaver(store)
    graph = chat_graph(saver, answer)
    for name, last in (("done", "more"), ("asked", "ask"), ("failed", "fail")):
        graph.invoke(say("hello"), thread(name))
        try:
            graph.invoke(say(last), thread(name))
        except ValueError:
            assert name == "failed"
    old = list(graph.get_state_history(thread("done")))[3]
    graph.update_state(old.config, say("another way"))
    call = {"name": "search", "args": {"words": "clamp"}, "id": "call-1", "type": "tool_call"}
    tools = StateGraph(Chat).add_node("tools", ToolNode([search], **once(store))).add_edge(START, "tools")
    tools.compile(checkpointer=saver).invoke({"messages": [AIMessage("", tool_calls=[call])]}, thread("tools"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with backstay.open(tmp_path / "x.db") as store:
        make(store)
    return tmp_path


@pytest.fixture
def visitor(folder: Path) -> Iterator[Visitor]:
    with backstay.open(folder / "x.db") as store, served(store) as port:
        yield Visitor(port)


def told(folder: Path, *line: str) -> list[dict[str, Any]]:
    done = shell.run(*line, "--store", "x.db", "--json", folder=folder)
    assert (done.code, done.err) == (0, ""), done.err
    return [json.loads(row) for row in done.out.splitlines()]


def test_a_thread_has_the_checkpoints_that_log_tells_of_and_stands_as_it_says(visitor: Visitor, folder: Path) -> None:
    for name in ("done", "asked", "failed", "tools"):
        shown = {row["id"]: row for row in visitor.get(f"/s/{name}?format=json").json}
        assert set(shown) == {row["id"] for row in told(folder, "log", name, "--all")}
        for row in told(folder, "log", name):
            for field in ("status", "reason", "calls", "summary", "refs"):
                assert shown[row["id"]][field] == row[field], (name, field)
    (row,) = [row for row in told(folder, "log", "failed") if row["status"] == "failed"]
    assert "bad luck" in row["reason"]
    assert "bad luck" in visitor.get("/s/failed").text


def test_nothing_that_langgraph_keeps_for_itself_is_on_a_page(visitor: Visitor, folder: Path) -> None:
    (other,) = [row["name"] for row in told(folder, "branches", "done") if row["name"] != "main"]
    paths = [
        "",
        "/timeline",
        "/calls",
        "/compare",
        "/c/main",
        "/c/main?tab=state",
        "/c/main?tab=raw",
        "/c/main?tab=fields",
    ]
    other = other.replace("/", "%2F")
    for path in [*paths, f"/c/{other}", f"/d/main/{other}", "/c/main~2?act=restore&branch=main"]:
        text = visitor.get(f"/s/done{path}").text
        assert "lg:" not in text, path
        assert "channel_versions" not in text, path
        assert "+1" not in text.replace("+1 ", "").replace("+1<", ""), path  # the end of a row of writes' id
    head = visitor.get(f"/s/done/c/{other}?format=json").json
    wanted = told(folder, "show", "done", other.replace("%2F", "/"))[0]
    assert {**head, "state": None} == {**wanted, "state": None}
    assert list(head["state"]) == ["messages"]


def test_a_state_without_messages_is_summed_up_by_its_own_keys(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "y.db") as store:
        graph = StateGraph(dict[str, Any]).add_node("one", lambda _: {"__root__": 1}).add_edge(START, "one")
        graph.compile(checkpointer=BackstaySaver(store)).invoke({"a": 1}, thread("plain"))
        assert not [point for point in store.session("plain").log() if "lg" in point.summary]


def test_a_call_kept_beside_a_thread_stands_with_the_step_that_asked_for_it(visitor: Visitor, folder: Path) -> None:
    (asking,) = [row for row in told(folder, "log", "tools") if row["calls"]]
    assert [call["name"] for call in asking["calls"]] == ["search"]
    for path in ("", "/calls", "/timeline", f"/c/{asking['id']}?tab=calls"):
        text = visitor.get(f"/s/tools{path}").text
        assert "search" in text
        assert "clamp" in text
    assert [call["name"] for call in visitor.get("/s/tools/calls?format=json").json] == ["search"]


def test_a_doubt_beside_a_thread_is_decided_on_the_page_of_the_thread(folder: Path) -> None:
    with backstay.open(folder / "x.db") as store:
        call = {"name": "refund", "args": {"order": 7}, "id": "call-2", "type": "tool_call"}
        graph = StateGraph(Chat).add_node("tools", ToolNode([refund], **once(store))).add_edge(START, "tools")
        app = graph.compile(checkpointer=BackstaySaver(store))
        with pytest.raises(KeyboardInterrupt):
            app.invoke({"messages": [AIMessage("", tool_calls=[call])]}, thread("left"))
        with served(store) as port:
            visitor = Visitor(port)
            page = visitor.get("/s/left").text
            assert "In doubt after a crash" in page
            assert ">in doubt<" in page
            assert "Did <code>refund</code> happen?" in page
            assert 'href="/s/left"' in visitor.get("/").text.partition("Did <code>refund</code> happen?")[2][:200]
            beside = calls_session("left")
            (doubt,) = store.session(beside).calls(next(iter(store.session(beside).runs())).branch, pending=True)
            form = {"call": doubt.id, "branch": store.session(beside).runs()[0].branch, "decision": "skip"}
            done = visitor.post(f"/s/{beside.replace('/', '%2F')}/do/resolve", **form)
            assert "The call is skipped" in visitor.notice(done)
            assert "In doubt" not in visitor.get("/s/left").text


def test_an_approval_of_an_agent_is_told_in_words(visitor: Visitor) -> None:
    for path in ("/", "/s/asked"):
        text = visitor.get(path).text
        assert "Waits in its framework" in text
        assert "publish(page: index)" in text
        assert "action_requests" not in text


def test_a_message_of_a_thread_is_not_edited_where_the_framework_would_not_see_it(visitor: Visitor) -> None:
    page = visitor.get("/s/done/c/main").text
    assert "edit in a fork" not in page
    head = visitor.get("/s/done/c/main?format=json").json["id"]
    answer_ = visitor.post("/s/done/do/fork", branch="edited", at=head, message="other", index="0")
    assert "written by its framework" in visitor.notice(answer_)
    assert "edited" not in [row["name"] for row in visitor.get("/s/done/compare?format=json").json]
