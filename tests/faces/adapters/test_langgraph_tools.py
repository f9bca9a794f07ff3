"""Tools that are called once: after a kill none that was done is done again, and the one in flight is in doubt."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

import backstay
from backstay.adapters.langgraph import BackstaySaver, once
from backstay.errors import InDoubtError
from backstay.port import EVERY, Ask
from tests.faces.adapters.graphs import Chat, say, thread

NAMES = ("one", "two", "three")


def graph_of(saver: Any, effect: Callable[[str], str], node: Callable[[list[Any]], ToolNode]) -> Any:
    """A model that asks for three tools at once, and the tools."""
    made = []
    for name in NAMES:

        def call(x: int, name: str = name) -> str:
            return f"{effect(name)} {x}"

        made.append(tool(name, description=name)(_plain(call)))

    def model(state: Chat) -> dict[str, Any]:
        calls: list[Any] = [{"name": name, "args": {"x": at}, "id": f"c{at}"} for at, name in enumerate(NAMES)]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    graph = StateGraph(Chat)
    graph.add_node("model", model)
    graph.add_node("tools", node(made))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    graph.add_edge("tools", END)
    return graph.compile(checkpointer=saver)


def _plain(call: Callable[..., str]) -> Callable[[int], str]:
    def plain(x: int) -> str:
        return call(x)

    return plain


CHILD = """
import os, signal, sys, time
import backstay
from backstay.adapters.langgraph import BackstaySaver, once
from langgraph.prebuilt import ToolNode
from tests.faces.adapters.graphs import say, thread
from tests.faces.adapters.test_langgraph_tools import graph_of

log = open(sys.argv[2], "a", buffering=1)

def effect(name):
    if name == "two":
        while open(sys.argv[2]).read().split() != ["one", "three"]:
            time.sleep(0.01)
        time.sleep(0.2)                                        # long enough for the outcomes of the others
        print(name, file=log)
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "three":
        while open(sys.argv[2]).read().split() != ["one"]:
            time.sleep(0.01)
    print(name, file=log)
    return f"{name} done"

store = backstay.open(sys.argv[1])
graph = graph_of(BackstaySaver(store), effect, lambda tools: ToolNode(tools, **once(store)))
graph.invoke(say("go"), thread())
"""


def test_after_a_kill_no_tool_that_was_done_is_called_again(tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/tools.db", tmp_path / "log"
    log.touch()
    killed = subprocess.run([sys.executable, "-c", CHILD, url, str(log)], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert log.read_text().split() == ["one", "three", "two"]
    called: list[str] = []

    def effect(name: str) -> str:
        called.append(name)
        return f"{name} again"

    with backstay.open(url) as store:
        graph = graph_of(BackstaySaver(store), effect, lambda tools: ToolNode(tools, **once(store)))
        with pytest.raises(InDoubtError, match="two"):
            graph.invoke(None, thread())
        assert [info.id for info in store.crashed()] == ["t/tools"]
        session = store.session("t/tools")
        branches = list(store.backend.read(Ask("t/tools", names=EVERY)).lanes)
        (doubtful,) = [
            call for branch in branches for call in session.calls(branch, pending=True) if call.status == "in_doubt"
        ]
        session.resolve(doubtful.id, result="two was done, I looked")
        found = graph.invoke(None, thread())["messages"]
    assert called == []
    assert [message.content for message in found[-3:]] == ["one done 0", "two was done, I looked", "three done 2"]


def test_a_call_in_doubt_may_be_made_again_where_the_user_says_so(tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path}/tools.db", tmp_path / "log"
    log.touch()
    subprocess.run([sys.executable, "-c", CHILD, url, str(log)], check=False, timeout=120)
    called: list[str] = []

    def effect(name: str) -> str:
        called.append(name)
        return f"{name} again"

    with backstay.open(url) as store:
        wrapped = once(store, on_doubt="retry")
        graph = graph_of(BackstaySaver(store), effect, lambda tools: wrapped(ToolNode(tools)))
        found = asyncio.run(graph.ainvoke(None, thread()))["messages"]
    assert called == ["two"]
    assert [message.content for message in found[-3:]] == ["one done 0", "two again 1", "three done 2"]


def test_a_tool_that_failed_is_called_again_and_its_neighbours_are_not() -> None:
    called: list[str] = []

    def effect(name: str) -> str:
        called.append(name)
        if name == "two" and called.count("two") == 1:
            raise ConnectionError("the line was bad")
        return name

    with backstay.open("memory://") as store:
        graph = graph_of(BackstaySaver(store), effect, lambda tools: ToolNode(tools, **once(store)))
        with pytest.raises(ConnectionError, match="bad"):
            graph.invoke(say("go"), thread())
        found = graph.invoke(None, thread())["messages"]
        assert [message.content for message in found[-3:]] == ["one 0", "two 1", "three 2"]
    assert sorted(called) == ["one", "three", "two", "two"]


def test_a_tool_that_asks_a_person_runs_again_with_the_answer() -> None:
    called: list[str] = []

    def effect(name: str) -> str:
        called.append(name)
        return str(interrupt("may I?")) if name == "two" else name

    with backstay.open("memory://") as store:
        graph = graph_of(BackstaySaver(store), effect, lambda tools: ToolNode(tools, **once(store)))
        graph.invoke(say("go"), thread())
        found = graph.invoke(Command(resume="you may"), thread())["messages"]
        assert [message.content for message in found[-3:]] == ["one 0", "you may 1", "three 2"]
    assert sorted(called) == ["one", "three", "two", "two"]


def test_a_run_of_ones_own_can_keep_the_calls() -> None:
    called: list[str] = []

    def effect(name: str) -> str:
        called.append(name)
        return name

    with backstay.open("memory://") as store:
        with store.run("job") as run:
            graph = graph_of(BackstaySaver(store), effect, lambda tools: ToolNode(tools, **once(run)))
            graph.invoke(say("go"), thread())
        assert sorted(call.name for call in store.session("job").calls()) == ["one", "three", "two"]
    assert sorted(called) == ["one", "three", "two"]


def test_a_turn_later_the_same_id_is_another_call() -> None:
    called: list[str] = []

    def effect(name: str) -> str:
        called.append(name)
        return f"{name} {len(called)}"

    with backstay.open("memory://") as store:
        graph = graph_of(BackstaySaver(store), effect, lambda tools: ToolNode(tools, **once(store)))
        for _ in range(2):
            graph.invoke(say("go"), thread())
    assert len(called) == 6


def paying_graph(store: backstay.Store, work: Callable[[str], Awaitable[str]], **wrapped: Any) -> Any:
    """A model that asks for one payment, and an async tool that makes it."""

    async def pay(order: str) -> str:
        return await work(order)

    def model(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage("", tool_calls=[{"name": "pay", "args": {"order": "7"}, "id": "c"}])]}

    graph = StateGraph(Chat)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([tool("pay", description="Pay an order.")(pay)], **wrapped))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    return graph.compile(checkpointer=BackstaySaver(store))


def test_a_coroutine_that_is_cancelled_was_called_or_not_and_never_twice() -> None:
    asked: list[str] = []  # LangGraph has its own steps between these two
    began: list[str] = []

    async def work(order: str) -> str:
        began.append(order)
        for _ in range(5):
            await asyncio.sleep(0)
        return f"{order} is paid"

    async def cancel_after(turns: int, graph: Any) -> None:
        asked.clear()
        began.clear()
        here = thread(f"t{turns}")
        await graph.ainvoke(say("go"), here, interrupt_before=["tools"])
        going = asyncio.ensure_future(graph.ainvoke(None, here))
        for _ in range(turns):
            await asyncio.sleep(0.0002)
        going.cancel()
        await asyncio.wait([going])
        was_called = bool(asked)
        try:
            found = await graph.ainvoke(None, here)
        except InDoubtError:
            assert was_called
        else:
            assert found["messages"][-1].content == "7 is paid"
            assert began == ["7"]
        assert len(asked) == 1

    async def sweep() -> None:
        with backstay.open("memory://") as store:
            wrap = once(store)

            async def noted(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
                async def note(request: Any) -> Any:
                    asked.append(request.tool_call["id"])
                    return await execute(request)

                return await wrap.awrap_tool_call(request, note)

            graph = paying_graph(store, work, awrap_tool_call=noted)
            for turns in range(40):
                await cancel_after(turns, graph)

    asyncio.run(sweep())


def test_a_coroutine_cancelled_in_the_middle_is_in_doubt() -> None:
    began: list[str] = []

    async def cancel() -> None:
        in_the_middle = asyncio.Event()

        async def work(order: str) -> str:
            began.append(order)
            in_the_middle.set()
            await asyncio.Event().wait()
            return "never"

        with backstay.open("memory://") as store:
            graph = paying_graph(store, work, awrap_tool_call=once(store))
            going = asyncio.ensure_future(graph.ainvoke(say("go"), thread()))
            await in_the_middle.wait()
            going.cancel()
            await asyncio.wait([going])
            with pytest.raises(InDoubtError, match="pay"):
                await graph.ainvoke(None, thread())

    asyncio.run(cancel())
    assert began == ["7"]


def tools_graph(
    saver: Any, tools: list[Any], calls: list[tuple[str, int, str]], schema: Any = Chat, **more: Any
) -> Any:
    made: list[Any] = [{"name": name, "args": {"x": x}, "id": id_} for name, x, id_ in calls]
    graph = StateGraph(schema)
    graph.add_node("model", lambda _: {"messages": [AIMessage("", tool_calls=made)]})
    graph.add_node("tools", ToolNode(tools, **more))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    return graph.compile(checkpointer=saver)


def test_calls_with_one_id_in_one_message_are_each_made_once() -> None:
    called: list[int] = []

    @tool  # type: ignore[untyped-decorator]
    def work(x: int) -> str:
        """Work."""
        called.append(x)
        if called.count(3) == 1 and x == 3:
            raise ConnectionError("bad")
        return str(x)

    with backstay.open("memory://") as store:
        calls = [("work", 1, "c"), ("work", 2, "c"), ("work", 1, "c"), ("work", 3, "")]
        graph = tools_graph(BackstaySaver(store), [work], calls, **once(store))
        with pytest.raises(ConnectionError):
            graph.invoke(say("go"), thread())
        assert [message.content for message in graph.invoke(None, thread())["messages"][-4:]] == ["1", "2", "1", "3"]
    assert sorted(called) == [1, 1, 2, 3, 3]


@dataclasses.dataclass
class Order:
    number: int


class Ordering(TypedDict):
    messages: Annotated[list[Any], add_messages]
    order: Any


def test_what_a_tool_gives_is_what_the_graph_gets() -> None:
    @tool  # type: ignore[untyped-decorator]
    def order(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Order."""
        return Command(update={"order": Order(x), "messages": [ToolMessage("done", tool_call_id=tool_call_id)]})

    with backstay.open("memory://") as store:
        saver = BackstaySaver(store, allow=[Order])
        graph = tools_graph(saver, [order], [("order", 7, "c")], Ordering, **once(store))
        assert graph.invoke(say("go"), thread())["order"] == Order(7)


def test_a_tool_whose_result_cannot_be_kept_is_not_called_again() -> None:
    called: list[int] = []

    @tool(response_format="content_and_artifact")  # type: ignore[untyped-decorator]
    def work(x: int) -> tuple[str, object]:
        """Work."""
        called.append(x)
        return "done", object()

    with backstay.open("memory://") as store:
        graph = tools_graph(BackstaySaver(store), [work], [("work", 1, "c")], **once(store))
        with pytest.raises(TypeError, match="serializable"):
            graph.invoke(say("go"), thread())
        assert "unknown" in graph.invoke(None, thread())["messages"][-1].content
    assert called == [1]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_doubt_is_not_for_the_model_to_decide(is_async: bool) -> None:
    called: list[int] = []

    class Killed(BaseException):
        pass

    @tool  # type: ignore[untyped-decorator]
    def work(x: int) -> str:
        """Work."""
        called.append(x)
        raise Killed

    with backstay.open("memory://") as store:
        more = {"handle_tool_errors": True, **once(store)}
        graph = tools_graph(BackstaySaver(store), [work], [("work", 1, "c")], **more)
        with pytest.raises(Killed):
            graph.invoke(say("go"), thread())
        with pytest.raises(InDoubtError, match="work"):
            asyncio.run(graph.ainvoke(None, thread())) if is_async else graph.invoke(None, thread())
        assert graph.get_state(thread()).next == ("tools",)
    assert called == [1]


class Slow(BackstaySaver):
    """Its writes are late, and those of the background later than a tool."""

    def put(self, *args: Any) -> Any:
        time.sleep(0.05)
        return super().put(*args)


@pytest.mark.parametrize("is_async", [False, True])
def test_no_tool_is_called_before_the_step_that_asked_for_it_is_on_disk(is_async: bool) -> None:
    with backstay.open("memory://") as store:
        saver = Slow(store)

        def work(x: int) -> str:
            kept = BackstaySaver(store).get_tuple(thread())
            asked = [] if kept is None else kept.checkpoint["channel_values"]["messages"][-1:]
            return "on disk" if [True for message in asked if isinstance(message, AIMessage)] else "not yet"

        made = tool("work", description="Work.")(work)
        graph = tools_graph(saver, [made], [("work", 1, "c")], **once(store))
        ran = asyncio.run(graph.ainvoke(say("go"), thread())) if is_async else graph.invoke(say("go"), thread())
        assert ran["messages"][-1].content == "on disk"
        # Here nothing is, before the end: there is nothing to wait for.
        ran = graph.invoke(say("go"), thread(), durability="exit")
        assert ran["messages"][-1].content == "not yet"


def test_a_step_of_which_only_the_writes_are_left_is_on_disk() -> None:
    def effect(name: str) -> str:
        if name == "two" and not answers:
            answers.append(name)
            raise ConnectionError
        return name

    answers: list[str] = []
    with backstay.open("memory://") as store:
        graph = graph_of(BackstaySaver(store), effect, lambda tools: ToolNode(tools, **once(store)))
        with pytest.raises(ConnectionError):
            graph.invoke(say("go"), thread())
        store.prune(backstay.Retention(keep_last=1), session="t")
        assert graph.invoke(None, thread())["messages"][-1].content == "three 2"


def test_a_subgraph_without_checkpoints_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.adapters.langgraph.tools._SETTLE_S", 0.1)
    with backstay.open("memory://") as store:
        made = tool("work", description="Work.")(_plain(str))
        wrapped = once(store)
        inner = tools_graph(False, [made], [("work", 1, "c")], **wrapped)
        graph = StateGraph(Chat)
        graph.add_node("inner", inner)
        graph.add_edge(START, "inner")
        app = graph.compile(checkpointer=BackstaySaver(store))
        for _ in range(2):
            assert app.invoke(say("go"), thread())["messages"][-1].content == "1"
        assert wrapped._unkept == {"inner"}
