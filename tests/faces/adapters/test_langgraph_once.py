"""Nodes and `@task` functions that are called once, and their calls as people see them in the thread."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

import backstay
from backstay.adapters.langgraph import BackstaySaver, once
from backstay.errors import InDoubtError, InvalidInputError
from tests.faces.adapters.graphs import Chat, say, thread
from tests.faces.cli import shell

Effect = Callable[[str], str]


def tasks_of(store: backstay.Store, effect: Effect, wrap: Any = None) -> Any:
    """A workflow of two tasks that look and one that pays."""
    wrap = wrap or once(store)

    @task  # type: ignore[untyped-decorator]
    @wrap  # type: ignore[untyped-decorator]
    def look(order: int) -> str:
        return effect(f"look{order}")

    @wrap  # type: ignore[untyped-decorator]
    @task  # type: ignore[untyped-decorator]
    def pay(order: int) -> str:
        return effect(f"pay{order}")

    @entrypoint(checkpointer=BackstaySaver(store))  # type: ignore[untyped-decorator]
    def work(orders: list[int]) -> list[str]:
        return [*[look(order).result() for order in orders], pay(7).result()]

    return work


def nodes_of(store: backstay.Store, effect: Effect) -> Any:
    """A node that looks and one that pays."""

    def look(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(effect("look"))]}

    def pay(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(effect("pay"))]}

    graph = StateGraph(Chat)
    graph.add_node("look", once(store)(look))
    graph.add_node("pay", once(store)(pay))
    graph.add_edge(START, "look")
    graph.add_edge("look", "pay")
    return graph.compile(checkpointer=BackstaySaver(store))


CHILD = """
import os, signal, sys
import backstay
from tests.faces.adapters.graphs import say, thread
from tests.faces.adapters.test_langgraph_once import nodes_of, tasks_of

def effect(what):
    with open(sys.argv[2], "a") as world:
        world.write(what + " ")
    if what.startswith("pay"):
        os.kill(os.getpid(), signal.SIGKILL)
    return what + " done"

for name, make, given in [("tasks", tasks_of, [1, 2]), ("nodes", nodes_of, say("go"))]:
    pid = os.fork()
    if pid == 0:
        make(backstay.open(sys.argv[1]), effect).invoke(given, thread(name))
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two threads that were killed while they paid."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", CHILD, f"sqlite:///{folder}/x.db", str(folder / "world")]
    ended = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    assert ended.stdout.split() == [str(-signal.SIGKILL)] * 2
    assert (folder / "world").read_text().split() == ["look1", "look2", "pay7", "look", "pay"]
    return folder / "x.db"


def answers(found: Any) -> list[str]:
    return found if isinstance(found, list) else [message.content for message in found["messages"][1:]]


@pytest.mark.parametrize(
    ("name", "make", "expected"),
    [
        ("tasks", tasks_of, ["look1 done", "look2 done", "paid, I looked"]),
        ("nodes", nodes_of, ["look done", "pay again"]),
    ],
)
def test_after_a_kill_tasks_and_nodes_are_not_called_twice_nor_in_a_copy_of_the_thread(
    killed: Path, tmp_path: Path, name: str, make: Any, expected: list[str]
) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(killed.read_bytes())
    if (wal := killed.with_name("x.db-wal")).exists():
        path.with_name("x.db-wal").write_bytes(wal.read_bytes())
    called: list[str] = []

    def effect(what: str) -> str:
        called.append(what)
        return f"{what} again"

    with backstay.open(f"sqlite:///{path}") as store:
        BackstaySaver(store).copy_thread(name, "copy")
        graph = make(store, effect)
        for thread_id in (name, "copy"):
            with pytest.raises(InDoubtError, match="pay") as doubt:
                graph.invoke(None, thread(thread_id))
            assert called == []
            session = store.session(str(doubt.value.session_id))
            if name == "tasks":
                session.resolve(str(doubt.value.call_id), result="paid, I looked")
                assert answers(graph.invoke(None, thread(thread_id))) == expected
                assert called == []
            else:
                session.resolve(str(doubt.value.call_id), "retry")
                assert answers(graph.invoke(None, thread(thread_id))) == expected
                assert called == ["pay"]
                called.clear()


def shown(path: Path, *line: str) -> str:
    done = shell.run(*line, "--store", f"sqlite:///{path}", folder=path.parent)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_calls_are_in_the_log_of_their_thread_and_the_one_in_doubt_above_its_step(killed: Path) -> None:
    text = shown(killed, "log", "nodes", "--calls")
    assert "crashed here: pay in doubt (backstay recover)" in text
    lines = [line.strip() for line in text.splitlines()]
    assert "tool pay in doubt" in lines
    assert any(line.startswith("tool look done") for line in lines)
    assert "tool pay in doubt" in shown(killed, "show", "nodes", "--calls")
    assert '"status": "in_doubt"' in shown(killed, "show", "nodes", "--json")
    assert shown(killed, "log", "tasks", "--calls").count("tool look done") == 2


def test_a_node_that_failed_or_asked_a_person_runs_again_and_one_that_is_done_does_not() -> None:
    called: list[str] = []

    def effect(what: str) -> str:
        called.append(what)
        if what == "pay" and called.count("pay") == 1:
            raise ConnectionError("the line was bad")
        return str(interrupt("may I?")) if what == "pay" else what

    with backstay.open("memory:") as store:
        graph = nodes_of(store, effect)
        with pytest.raises(ConnectionError):
            graph.invoke(say("go"), thread())
        assert "__interrupt__" in graph.invoke(None, thread())
        assert answers(graph.invoke(Command(resume="yes"), thread())) == ["look", "yes"]
        assert called == ["look", "pay", "pay", "pay"]
        graph.invoke(say("another turn"), thread())
        assert called.count("look") == 2


def test_coroutines_are_called_once_and_what_they_gave_comes_back_after_a_crash_behind_them() -> None:
    called: list[int] = []

    class Killed(BaseException):
        pass

    async def attempt(store: backstay.Store, die: bool) -> Any:
        @task  # type: ignore[untyped-decorator]
        @once(store)  # type: ignore[untyped-decorator]
        async def pay(order: int) -> dict[str, int]:
            called.append(order)
            return {"order": order}

        @entrypoint(checkpointer=BackstaySaver(store))  # type: ignore[untyped-decorator]
        async def work(order: int) -> Any:
            paid = await pay(order)
            if die:
                raise Killed
            return paid

        return await work.ainvoke(7 if die else None, thread())

    with backstay.open("memory:") as store:
        with pytest.raises(Killed):
            asyncio.run(attempt(store, die=True))
        assert asyncio.run(attempt(store, die=False)) == {"order": 7}
    assert called == [7]


def test_a_function_that_a_node_calls_twice_is_refused_and_a_retry_of_the_node_is_not() -> None:
    called: list[int] = []
    with backstay.open("memory:") as store:
        pay = once(store)(called.append)

        def node(state: Chat) -> dict[str, Any]:
            pay(1)
            if twice:
                pay(2)
            tries.append(1)
            if len(tries) == 1:
                raise ConnectionError
            return {"messages": [AIMessage("done")]}

        graph = StateGraph(Chat)
        graph.add_node("node", node, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.0, jitter=False))
        graph.add_edge(START, "node")
        app = graph.compile(checkpointer=BackstaySaver(store))
        twice, tries = False, list[int]()
        assert answers(app.invoke(say("go"), thread())) == ["done"]
        assert (called, len(tries)) == ([1], 2)
        twice = True
        with pytest.raises(InvalidInputError, match="called twice"):
            app.invoke(say("go"), thread())
        assert called == [1, 1]


def test_what_cannot_be_made_once_is_refused_before_anything_is_called() -> None:
    with backstay.open("memory:") as store:

        def words(state: Chat) -> Any:
            yield {"messages": []}

        for odd in (words, 7, RunnableLambda(len)):
            with pytest.raises(InvalidInputError, match="once takes"):
                once(store)(odd)
        with pytest.raises(InvalidInputError, match="none does"):
            once(store)(len)("abc")


def test_without_a_checkpointer_a_wrapped_node_is_just_called() -> None:
    with backstay.open("memory:") as store:
        graph = StateGraph(Chat).add_node("say", once(store)(lambda _: {"messages": [AIMessage("hi")]}))
        assert answers(graph.add_edge(START, "say").compile().invoke(say("go"))) == ["hi"]
        assert not list(store.sessions())
