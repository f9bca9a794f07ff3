"""With a serializer of the user's own, such as a cipher, nothing of a graph is kept but what it gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

import backstay
from backstay.adapters.langgraph import BackstaySaver, once
from backstay.errors import InvalidInputError, UnsupportedError
from backstay.port import EVERY, Ask
from tests.faces.adapters.graphs import META, Chat, chat_graph, checkpoint, read, say, thread


def texts(found: Any) -> list[Any]:
    return [message.content for message in found]


class Mirror:
    """A cipher, for those who do not look closely; each time another."""

    made = 0

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        self.made += 1
        return "mirror", self.made.to_bytes(4, "big") + plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[4:][::-1]


def test_nothing_is_kept_in_clear_where_the_serializer_encrypts(saver: BackstaySaver) -> None:
    cipher = Mirror()
    sealed = BackstaySaver(saver.store, serde=EncryptedSerializer(cipher))
    graph = chat_graph(sealed)
    for _ in range(4):
        graph.invoke(say("secret"), thread())
    made = cipher.made
    graph.invoke(say("secret"), thread())
    assert cipher.made - made < 12  # what is new, and not the conversation
    assert texts(graph.get_state(thread()).values["messages"])[-2:] == ["secret", "answer to secret"]
    for point in saver.store.session("t").log():
        assert "secret" not in repr((point.state, point.summary, point.metadata))


def test_a_message_changed_in_place_is_sealed_again(saver: BackstaySaver) -> None:
    sealed = BackstaySaver(saver.store, serde=EncryptedSerializer(Mirror()))
    message = AIMessage("x", id="1")
    here = sealed.put(thread(), checkpoint("1", messages=[message]), META, {})
    message.additional_kwargs["edited"] = True
    sealed.put(here, checkpoint("2", messages=[message]), META, {})
    (found,) = read(sealed, thread()).checkpoint["channel_values"]["messages"]
    assert found == message


def test_what_is_not_sealed_builds_nothing_behind_a_cipher() -> None:
    with backstay.open("memory://") as store:
        sealed = BackstaySaver(store, serde=EncryptedSerializer(Mirror()))
        sealed.put(thread(), checkpoint("1", x=1), META, {})
        state = store.session("t").load()
        state["x"] = {"lc": 0, "as": ["tests.canary", "Sings", "x"]}
        store.session("t").commit(state, metadata={"lg": {"parent": None}}, id="2")
        with pytest.raises(UnsupportedError, match=r"tests\.canary\.Sings"):
            read(sealed, thread())


class Json:
    """A serializer whose form has a name that LangGraph's would understand in its own way."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "json", json.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return json.loads(data[1])


def test_what_could_not_be_read_again_is_refused_when_it_is_written() -> None:
    with backstay.open("memory://") as store, pytest.raises(InvalidInputError, match="json"):
        BackstaySaver(store, serde=Json()).put(thread(), checkpoint("1", x=1), META, {})


def test_calls_are_sealed_where_the_serializer_encrypts() -> None:
    def work(x: int) -> str:
        return f"secret {x}"

    calls: list[Any] = [{"name": "work", "args": {"x": 987654321}, "id": "c"}]
    graph = StateGraph(Chat)
    graph.add_node("model", lambda _: {"messages": [AIMessage("", tool_calls=calls)]})
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    serde = EncryptedSerializer(Mirror())

    with backstay.open("memory://") as store:
        graph.add_node("tools", ToolNode([tool("work", description="Work.")(work)], **once(store, serde=serde)))
        app = graph.compile(checkpointer=BackstaySaver(store, serde=serde))
        assert app.invoke(say("go"), thread())["messages"][-1].content == "secret 987654321"
        session = store.session("t/tools")
        (branch,) = store.backend.read(Ask("t/tools", names=EVERY)).lanes
        kept = repr(session.calls(branch, pending=True))
        assert "work" in kept
        assert "secret" not in kept
        assert "987654321" not in kept
