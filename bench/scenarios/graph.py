"""LangGraph: a chat of one node, turn by turn, with the adapter and with the official savers."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sqlite3
import statistics
import sys
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import backstay
from bench.report import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.measuring import Settings

TURNS, QUICK_TURNS = 500, 60
PUTS_A_TURN = 3
LOOKS = 20
MEGABYTE = 1_000_000


def graph(settings: Settings) -> list[Figure]:
    if importlib.util.find_spec("langgraph") is None:
        sys.stderr.write("graph: left out (the extra `langgraph` brings it)\n")
        return []
    turns = settings.scaled(TURNS, QUICK_TURNS)
    texts = [str(one["content"]) for one in settings.messages(4 * turns) if one["role"] != "system" and one["content"]]
    with settings.folder() as folder:
        here = chat(ours, folder / "graph.db", turns, texts)
    detail: dict[str, object] = {"backstay": here}
    whole = turns == TURNS
    figures = [
        Figure("graph", "on disk after all turns", here["bytes"] / MEGABYTE, "MB", must=0.8 if whole else None),
        Figure("graph", "put, last turns / first", here["put_end_us"] / here["put_us"], must=2.0, detail=detail),
        Figure("graph", "put, last turns", here["put_end_us"] / 1000, "ms"),
        Figure("graph", "get_state at the end", here["look_us"] / 1000, "ms"),
    ]
    figures += _on_postgres(settings, turns, texts, detail)
    if not settings.with_peer or importlib.util.find_spec("langgraph.checkpoint.sqlite") is None:
        sys.stderr.write("graph: SqliteSaver left out\n")
        return figures
    with settings.folder() as folder:
        there = chat(theirs, folder / "peer.db", turns, texts)
    detail["SqliteSaver"] = there
    return [
        *figures,
        Figure("graph", "SqliteSaver on disk / ours", there["bytes"] / here["bytes"], must=20.0, sense="at least"),
        Figure("graph", "SqliteSaver put, last turns / ours", there["put_end_us"] / here["put_end_us"]),
        Figure("graph", "our get_state / SqliteSaver's", here["look_us"] / there["look_us"], must=1.0),
    ]


@contextlib.contextmanager
def ours(path: Path) -> Iterator[Any]:
    adapter: Any = importlib.import_module("backstay.adapters.langgraph")
    with backstay.open(path) as store:
        yield adapter.BackstaySaver(store)


def _on_postgres(settings: Settings, turns: int, texts: list[str], detail: dict[str, object]) -> list[Figure]:
    """The same on PostgreSQL, sizes as the server left them: nothing is vacuumed first."""
    postgres: Any = importlib.import_module("bench.postgres")
    has_peer = settings.with_peer and importlib.util.find_spec("langgraph.checkpoint.postgres") is not None
    found: dict[str, dict[str, float]] = {}
    with postgres.server() as url:
        if url is None:
            return []
        for name, opened in (("backstay", _ours_there), ("PostgresSaver", _theirs_there)):
            if name == "backstay" or has_peer:
                schema = f"bench_graph_{name.lower()}"
                postgres.drop(url, schema)
                found[name] = chat(partial(opened, url, schema), Path(), turns, texts)
                found[name]["bytes"] = postgres.relations_bytes(url, schema, vacuum=False)
                postgres.drop(url, schema)
    here, there = found["backstay"], found.get("PostgresSaver")
    detail["on PostgreSQL"] = found
    must = 1.1 if turns == TURNS else None
    figures = [
        Figure("graph", "on PostgreSQL, tables with their indexes", here["bytes"] / MEGABYTE, "MB", must=must),
        Figure("graph", "on PostgreSQL, put, last turns / first", here["put_end_us"] / here["put_us"], must=2.0),
    ]
    if there is None:
        sys.stderr.write("graph: PostgresSaver left out\n")
        return figures
    return [
        *figures,
        Figure("graph", "PostgresSaver's tables / ours", there["bytes"] / here["bytes"], must=20.0, sense="at least"),
        Figure("graph", "PostgresSaver put, last turns / ours", there["put_end_us"] / here["put_end_us"]),
        Figure("graph", "our get_state / PostgresSaver's", here["look_us"] / there["look_us"], must=1.0),
    ]


@contextlib.contextmanager
def _ours_there(url: str, schema: str, _: Path) -> Iterator[Any]:
    adapter: Any = importlib.import_module("backstay.adapters.langgraph")
    subject = importlib.import_module("bench.postgres").PostgresSubject(url, schema)
    yield adapter.BackstaySaver(subject.store)
    subject.close()


@contextlib.contextmanager
def _theirs_there(url: str, schema: str, _: Path) -> Iterator[Any]:
    peer: Any = importlib.import_module("langgraph.checkpoint.postgres")
    psycopg: Any = importlib.import_module("psycopg")
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": psycopg.rows.dict_row}
    with psycopg.connect(url, **options) as connection:
        connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(schema)))
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(psycopg.sql.Identifier(schema)))
        saver = peer.PostgresSaver(connection)
        saver.setup()
        yield saver


@contextlib.contextmanager
def theirs(path: Path) -> Iterator[Any]:
    peer: Any = importlib.import_module("langgraph.checkpoint.sqlite")
    with contextlib.closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        yield peer.SqliteSaver(connection)


def chat(
    opened: Callable[[Path], contextlib.AbstractContextManager[Any]],
    path: Path,
    turns: int,
    texts: list[str],
    look: Callable[[int], None] | None = None,
) -> dict[str, float]:
    graphs: Any = importlib.import_module("langgraph.graph")
    messages: Any = importlib.import_module("langchain_core.messages")
    said = iter(texts)
    config = {"configurable": {"thread_id": "chat"}}
    puts: list[float] = []
    with opened(path) as saver:
        put = saver.put

        def timed(*args: Any, **more: Any) -> Any:
            begun = perf_counter()
            done = put(*args, **more)
            puts.append(perf_counter() - begun)
            return done

        saver.put = timed
        built = graphs.StateGraph(graphs.MessagesState)
        built.add_node("chat", lambda _: {"messages": [messages.AIMessage(next(said))]})
        built.add_edge(graphs.START, "chat")
        app = built.compile(checkpointer=saver)
        for turn in range(1, turns + 1):
            # Written when they happen, so that what is timed is not waiting for what is not.
            app.invoke({"messages": [messages.HumanMessage(next(said))]}, config, durability="sync")
            if look is not None:
                look(turn)
        looks = []
        for _ in range(LOOKS):
            begun = perf_counter()
            app.get_state(config)
            looks.append(perf_counter() - begun)
    files = path.parent.glob(f"{path.name}*") if path.name else ()
    size = sum(file.stat().st_size for file in files if not file.name.endswith("-shm"))
    early, late = puts[5 * PUTS_A_TURN : 15 * PUTS_A_TURN], puts[-10 * PUTS_A_TURN :]
    micros = {"put_us": early, "put_end_us": late, "look_us": looks}
    return {"bytes": float(size), **{name: statistics.median(times) * 1e6 for name, times in micros.items()}}
