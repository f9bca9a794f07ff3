"""Graphs and configs that the tests of the LangGraph adapter share; skips them where LangGraph is not installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from holdfast.adapters.langgraph import HoldfastSaver

URLS = ["memory://", "sqlite:///{folder}/store{number}.db"]
if os.environ.get("HOLDFAST_TEST_POSTGRES_URL"):
    URLS.append(os.environ["HOLDFAST_TEST_POSTGRES_URL"])


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def chat_graph(saver: Any, answer: Callable[[Chat], Any] | None = None) -> Any:
    """One node that answers."""

    def chat(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].content}")]}

    graph = StateGraph(Chat)
    graph.add_node("chat", answer or chat)
    graph.add_edge(START, "chat")
    graph.add_edge("chat", END)
    return graph.compile(checkpointer=saver)


def thread(id_: str = "t", **more: Any) -> Any:
    return {"configurable": {"thread_id": id_, "checkpoint_ns": "", **more}}


def read(saver: Any, config: Any) -> Any:
    return saver.get_tuple(config)


def say(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def checkpoint(id_: str | None = None, **values: Any) -> Any:
    made = empty_checkpoint()
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, 1)
    return {**made, "id": id_ or made["id"]}


META: Any = {"source": "loop", "step": 1, "parents": {}}


@pytest.fixture(params=URLS, ids=lambda url: str(url).split(":")[0])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(folder=tmp_path, number=0)


@pytest.fixture
def saver(url: str) -> Iterator[HoldfastSaver]:
    with HoldfastSaver.open(url) as opened:
        yield opened
