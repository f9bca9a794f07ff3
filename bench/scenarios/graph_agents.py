"""LangGraph agents turn by turn: deep agents (delta channels), a chat in a subgraph, a supervisor; beside SqliteSaver.

What is told is processor time, of savers that take turns: each is given the same turn before the next one comes.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import random
import statistics
import sys
from contextlib import ExitStack
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import backstay
from bench.report import Figure
from bench.scenarios.graph import MEGABYTE, theirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.measuring import Settings

DEEP_TURNS, SUBGRAPH_TURNS, SUPERVISOR_TURNS = 249, 300, 30
QUICK = 0.1
LAST = 20  # turns that are told
LOOKS, PAGE = 5, 10
CONFIG = {"configurable": {"thread_id": "chat"}}


def graph_agents(settings: Settings) -> list[Figure]:
    """The figures of all three; nothing where LangGraph or its SqliteSaver is missing."""
    if importlib.util.find_spec("langgraph") is None or not settings.with_peer:
        sys.stderr.write("graph: agents left out (the extra `langgraph`, and SqliteSaver)\n")
        return []
    figures: list[Figure] = []
    if importlib.util.find_spec("langgraph.channels.delta") is not None:
        turns = settings.scaled(DEEP_TURNS, int(DEEP_TURNS * QUICK))
        figures += _beside("deep agent", settings, deep_agent, turns, (1.0, 1.0, 1.0))
    turns = settings.scaled(SUBGRAPH_TURNS, int(SUBGRAPH_TURNS * QUICK))
    figures += _beside("chat in a subgraph", settings, chat_in_subgraph, turns, (0.63, None, None), most_mb=6.0)
    if importlib.util.find_spec("langgraph_supervisor") is None:
        sys.stderr.write("graph: supervisor left out (pip install langgraph-supervisor)\n")
        return figures
    turns = settings.scaled(SUPERVISOR_TURNS, int(SUPERVISOR_TURNS * QUICK))
    return figures + _beside("supervisor", settings, supervisor, turns, (0.95, None, None))


def _beside(
    name: str,
    settings: Settings,
    build: Callable[[Any, random.Random], Any],
    turns: int,
    musts: tuple[float | None, ...],
    most_mb: float | None = None,
) -> list[Figure]:
    """A thread of a graph in three savers: ours, ours that folds subgraphs, SqliteSaver."""
    human: Any = importlib.import_module("langchain_core.messages").HumanMessage
    adapter: Any = importlib.import_module("backstay.adapters.langgraph")
    with settings.folder() as folder, ExitStack() as stack:
        store, folded = (stack.enter_context(backstay.open(folder / f"{kind}.db")) for kind in ("ours", "fold"))
        graphs = {
            "ours": build(adapter.BackstaySaver(store), random.Random(1)),
            "fold": build(adapter.BackstaySaver(folded, subgraphs="fold"), random.Random(1)),
            "peer": build(stack.enter_context(theirs(folder / "peer.db")), random.Random(1)),
        }
        said = {kind: _words(random.Random(2)) for kind in graphs}
        spent: dict[str, list[float]] = {kind: [] for kind in graphs}
        for turn in range(turns):
            for kind, graph in graphs.items():
                asked = {"messages": [human(next(said[kind]))]}
                spent[kind].append(_timed(partial(graph.invoke, asked, CONFIG)))
            if turn % LAST == 0:
                gc.collect()
        looks = {kind: _least(partial(graph.get_state, CONFIG)) for kind, graph in graphs.items()}
        pages = {kind: _least(partial(_page, graph)) for kind, graph in graphs.items()}
        sizes = {kind: _size(folder, kind) for kind in graphs}
    last = {kind: statistics.median(times[-LAST:]) for kind, times in spent.items()}
    detail: dict[str, object] = {"turn": last, "get_state": looks, "history": pages, "bytes": sizes}
    whole = not settings.quick
    measured = {"turn": last, "get_state": looks, f"history({PAGE})": pages}
    figures = [
        Figure("graph", f"{name}: {what} / SqliteSaver's", of["ours"] / of["peer"], must=must if whole else None)
        for (what, of), must in zip(measured.items(), musts, strict=True)
        if must is not None
    ]
    figures[0] = Figure("graph", figures[0].name, figures[0].measured, must=figures[0].must, detail=detail)
    must_mb = most_mb if whole else None
    figures.append(Figure("graph", f"{name}: on disk", sizes["ours"] / MEGABYTE, "MB", must=must_mb))
    if most_mb is not None:
        figures += [
            Figure("graph", f"{name}: folded, turn / SqliteSaver's", last["fold"] / last["peer"]),
            Figure("graph", f"{name}: folded, on disk", sizes["fold"] / MEGABYTE, "MB"),
        ]
    figures.append(Figure("graph", f"{name}: SqliteSaver on disk", sizes["peer"] / MEGABYTE, "MB"))
    return figures


def _timed(step: Callable[[], object]) -> float:
    begun = process_time()
    step()
    return process_time() - begun


def _least(step: Callable[[], object]) -> float:
    return min([_timed(step) for _ in range(LOOKS)])


def _page(graph: Any) -> list[Any]:
    return list(graph.get_state_history(CONFIG, limit=PAGE))


def _size(folder: Path, kind: str) -> float:
    return float(sum([file.stat().st_size for file in folder.glob(f"{kind}.db*") if not file.name.endswith("-shm")]))


def _words(dice: random.Random, count: int = 30) -> Iterator[str]:
    """Texts that no compressor makes small."""
    known = [f"{dice.getrandbits(28):x}" for _ in range(3000)]
    while True:
        yield " ".join(dice.choices(known, k=count))


def deep_agent(saver: Any, dice: random.Random) -> Any:
    """As deepagents keeps it: messages and files in delta channels, a tool in each turn."""
    graphs: Any = importlib.import_module("langgraph.graph")
    messages: Any = importlib.import_module("langchain_core.messages")
    delta: Any = importlib.import_module("langgraph.channels.delta").DeltaChannel
    add: Any = importlib.import_module("langgraph.graph.message").add_messages
    short, long, page = _words(dice, 20), _words(dice, 60), _words(dice, 150)

    def joined(value: list[Any], writes: list[Any]) -> Any:
        return add(value, [one for write in writes for one in (write if isinstance(write, list) else [write])])

    def merged(value: dict[str, Any], writes: list[dict[str, Any]]) -> dict[str, Any]:
        for write in writes:
            value = {**value, **write}
        return value

    chat = Annotated[list[Any], delta(joined, snapshot_frequency=50)]
    files = Annotated[dict[str, Any], delta(merged, snapshot_frequency=50)]
    Deep = TypedDict("Deep", {"messages": chat, "files": files})  # noqa: UP013 - made of values

    def model(state: Any) -> dict[str, Any]:
        if isinstance(state["messages"][-1], messages.HumanMessage):
            call = {"name": "read", "args": {"path": next(short)}, "id": f"c{dice.getrandbits(60):x}"}
            return {"messages": [messages.AIMessage(next(short), tool_calls=[call])]}
        return {"messages": [messages.AIMessage(next(long))]}

    def tools(state: Any) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls
        found = messages.ToolMessage(next(page), tool_call_id=call["id"])
        return {"messages": [found], "files": {f"/f{dice.randrange(8)}": {"content": next(page)}}}

    def ways(state: Any) -> Any:
        return "tools" if state["messages"][-1].tool_calls else graphs.END

    built = graphs.StateGraph(Deep)
    built.add_node("model", model)
    built.add_node("tools", tools)
    built.add_edge(graphs.START, "model")
    built.add_conditional_edges("model", ways, ["tools", graphs.END])
    built.add_edge("tools", "model")
    return built.compile(checkpointer=saver)


def chat_in_subgraph(saver: Any, dice: random.Random) -> Any:
    """A graph whose only node is a chat."""
    graphs: Any = importlib.import_module("langgraph.graph")
    messages: Any = importlib.import_module("langchain_core.messages")
    said = _words(dice, 60)
    inner = graphs.StateGraph(graphs.MessagesState)
    inner.add_node("model", lambda _: {"messages": [messages.AIMessage(next(said))]})
    inner.add_edge(graphs.START, "model")
    outer = graphs.StateGraph(graphs.MessagesState)
    outer.add_node("agent", inner.compile())
    outer.add_edge(graphs.START, "agent")
    return outer.compile(checkpointer=saver)


def supervisor(saver: Any, dice: random.Random) -> Any:
    """langgraph-supervisor with two agents: it hands over to each in turn, and gets the word back."""
    messages: Any = importlib.import_module("langchain_core.messages")
    models: Any = importlib.import_module("langchain_core.language_models.chat_models")
    outputs: Any = importlib.import_module("langchain_core.outputs")
    made: Any = importlib.import_module("langgraph_supervisor").create_supervisor
    react: Any = importlib.import_module("langgraph.prebuilt").create_react_agent
    said = _words(dice, 60)

    class Scripted(models.BaseChatModel):  # type: ignore[misc]
        """Says something; the one that leads hands over first."""

        leads: bool = False

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        def _generate(self, given: Any, *_: Any, **__: Any) -> Any:
            calls = []
            if self.leads and isinstance(given[-1], messages.HumanMessage):
                name = f"transfer_to_agent{dice.randrange(2)}"
                calls = [{"name": name, "args": {}, "id": f"c{dice.getrandbits(60):x}"}]
            message = messages.AIMessage("" if calls else next(said), tool_calls=calls)
            return outputs.ChatResult(generations=[outputs.ChatGeneration(message=message)])

    agents = [react(Scripted(), [], name=f"agent{number}") for number in range(2)]
    return made(agents, model=Scripted(leads=True)).compile(checkpointer=saver)
