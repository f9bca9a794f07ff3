"""LangGraph over Holdfast: `graph.compile(checkpointer=HoldfastSaver(store))`, and tools that are called once."""

from holdfast.adapters.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
