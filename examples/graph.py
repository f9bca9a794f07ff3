"""LangGraph: the thread is a session; a tool that was in flight at a kill is not called twice.

    pip install 'backstay[langgraph]'
    python examples/graph.py
    backstay log ticket-42

`create_agent` of LangChain and `create_deep_agent` of deepagents take the same saver, and `once(store)` as middleware.
"""

from __future__ import annotations

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import backstay
from backstay.adapters.langgraph import BackstaySaver, once


def refund(order: int) -> str:
    """Give the money back."""
    return f"refund for order {order} issued"


def model(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Your model: it asks for the tool, then says that it is done."""
    if state["messages"][-1].type == "human":
        call = {"name": "refund", "args": {"order": 7}, "id": "t1", "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[call])]}
    return {"messages": [AIMessage("Done.")]}


def main() -> None:
    """One turn of an agent, kept step by step."""
    with backstay.open() as store:
        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("tools", ToolNode([refund], **once(store)))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        agent = graph.compile(checkpointer=BackstaySaver(store))
        said = agent.invoke({"messages": ["refund order 7"]}, {"configurable": {"thread_id": "ticket-42"}})
        print(said["messages"][-1].content)
        messages = store.session("ticket-42").load()["messages"]
        print(len(messages), "messages kept; the tool said:", messages[2]["content"])


if __name__ == "__main__":
    main()
