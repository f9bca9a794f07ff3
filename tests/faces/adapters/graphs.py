"""Graphs and configs that the tests of the LangGraph adapter share; skips them where LangGraph is not installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


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
