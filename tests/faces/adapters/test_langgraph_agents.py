"""`once` as a middleware of LangChain's agents, killed in a tool and run again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")
pytest.importorskip("langchain.agents", reason="LangChain's own agents")

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

import backstay
from backstay.adapters.langgraph import BackstaySaver, once
from backstay.errors import InDoubtError
from tests.faces.adapters.graphs import say, thread


class Scripted(GenericFakeChatModel):  # type: ignore[misc]
    """A model that takes tools, and says what is written."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


class Killed(BaseException):
    """The process goes."""


def agent_over(store: backstay.Store, effects: list[str], answers: list[AIMessage], *, dies: bool = False) -> Any:
    @tool  # type: ignore[untyped-decorator]
    def pay(amount: int) -> str:
        """Pay."""
        effects.append(f"pay {amount}")
        return "paid"

    @tool  # type: ignore[untyped-decorator]
    def mail(to: str) -> str:
        """Mail."""
        effects.append(f"mail {to}")
        if dies:
            raise Killed
        return "sent"

    return create_agent(
        Scripted(messages=iter(answers)), [pay, mail], middleware=[once(store)], checkpointer=BackstaySaver(store)
    )


def asks(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args, "id": f"call-{name}"}


def test_an_agent_with_the_middleware_calls_no_tool_twice(tmp_path: Any) -> None:
    effects: list[str] = []
    both = AIMessage("", tool_calls=[asks("pay", amount=5), asks("mail", to="ann")])
    url = f"sqlite:///{tmp_path}/x.db"
    with backstay.open(url) as store, pytest.raises(Killed):
        agent_over(store, effects, [both], dies=True).invoke(say("go"), thread())
    assert sorted(effects) == ["mail ann", "pay 5"]
    with backstay.open(url) as store:
        graph = agent_over(store, effects, [AIMessage("all done")])
        with pytest.raises(InDoubtError, match="mail") as caught:
            graph.invoke(None, thread())
        assert caught.value.session_id == "t/tools"
        assert caught.value.call_id is not None
        store.session(caught.value.session_id).resolve(caught.value.call_id, result="sent")
        found = graph.invoke(None, thread())
    assert [message.content for message in found["messages"][-3:]] == ["paid", "sent", "all done"]
    assert sorted(effects) == ["mail ann", "pay 5"]
