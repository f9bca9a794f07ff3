"""What people have in LangGraph's own savers, taken over: every checkpoint, its parent, its writes, its forks."""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from backstay.adapters.langgraph import BackstaySaver
from tests.faces.adapters.graphs import chat_graph, say, thread


class Tally(TypedDict):
    seen: Annotated[list[str], operator.add]


def asking_graph(saver: Any) -> Any:
    """Two nodes at once, of which one waits for an answer and the other is done; then a graph inside this one."""

    def ask(_: Tally) -> Tally:
        return {"seen": [str(interrupt("well?"))]}

    inner = StateGraph(Tally).add_node("deep", lambda _: {"seen": ["deep"]}).add_edge(START, "deep").compile()
    graph = StateGraph(Tally).add_node("ask", ask).add_node("count", lambda _: {"seen": ["counted"]})
    graph.add_node("inner", inner)
    graph.add_edge(START, "ask").add_edge(START, "count").add_edge("ask", "inner")
    return graph.compile(checkpointer=saver)


def fill(saver: Any) -> None:
    """A chat with a fork, another thread, and one that waits for a person."""
    chat = chat_graph(saver)
    for text in ("one", "two"):
        chat.invoke(say(text), thread())
    first = list(chat.get_state_history(thread()))[3].config
    chat.invoke(say("another two"), first)
    chat.invoke(say("elsewhere"), thread("other"))
    asking_graph(saver).invoke({"seen": []}, thread("waits"))
    asking_graph(saver).invoke({"seen": []}, thread("went"))
    asking_graph(saver).invoke(Command(resume="yes"), thread("went"))


def shown(tuples: Any) -> list[Any]:
    """Checkpoints as they are compared. Where two lines end in one thread, the ids say the order of both savers."""
    found = [(each.config, each.parent_config, each.checkpoint, each.metadata, each.pending_writes) for each in tuples]
    return sorted(found, key=lambda each: (each[0]["configurable"]["checkpoint_ns"], each[2]["id"]))


def assert_taken_over(saver: BackstaySaver, wanted: list[Any]) -> None:
    assert shown(saver.list(None)) == wanted
    assert chat_graph(saver).invoke(say("three"), thread())["messages"][-1].content == "answer to three"
    assert asking_graph(saver).get_state(thread("waits")).next == ("ask",)
    seen = asking_graph(saver).invoke(Command(resume="yes"), thread("waits"))["seen"]
    assert seen == asking_graph(saver).get_state(thread("went")).values["seen"]


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where LangGraph's own saver keeps its tables: a file, or a schema that is gone after the test."""
    if request.param == "sqlite":
        yield str(tmp_path / "old.db")
        return
    base: str = request.getfixturevalue("postgres_url")
    name = f"old{os.getpid()}"
    import psycopg
    from psycopg import sql

    with closing(psycopg.connect(base, autocommit=True)) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        yield f"{base}{'&' if '?' in base else '?'}options=-csearch_path%3D{name}"
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def opened(url: str) -> Any:
    return PostgresSaver.from_conn_string(url) if "://" in url else SqliteSaver.from_conn_string(url)


def opened_async(url: str) -> Any:
    return AsyncPostgresSaver.from_conn_string(url) if "://" in url else AsyncSqliteSaver.from_conn_string(url)


def test_all_that_is_in_another_saver_is_taken_over(saver: BackstaySaver, old_url: str) -> None:
    with opened(old_url) as old:
        old.setup()
        fill(old)
        count = saver.import_from(old)
        assert saver.import_from(old) == count > 20  # what is here already is left as it is
        wanted = shown(old.list(None))
    assert_taken_over(saver, wanted)


def test_a_saver_that_is_async_is_taken_over_too(old_url: str) -> None:
    with opened(old_url) as old:
        old.setup()
        fill(old)
        wanted = shown(old.list(None))

    async def take_over(saver: BackstaySaver) -> None:
        async with opened_async(old_url) as old:
            assert await saver.aimport_from(old) == len(wanted)

    with BackstaySaver.open("memory://") as saver:
        asyncio.run(take_over(saver))
        assert_taken_over(saver, wanted)
