"""What comes out of a store is data: only types that LangGraph holds safe, or that the user allows, are built again."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import ipaddress
import pathlib
import pickle
import re
import sys
import uuid
from collections import deque
from enum import Enum
from pathlib import Path
from typing import Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

import pydantic
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, ChatMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Send

import backstay
from backstay.adapters.langgraph import BackstaySaver
from backstay.errors import InvalidInputError, UnsupportedError
from tests.faces.adapters.graphs import META, checkpoint, read, thread


class Colour(Enum):
    RED = "red"


class Order(pydantic.BaseModel):
    number: int
    lines: list[str] = []


@dataclasses.dataclass
class Place:
    street: str


KEPT: dict[str, Any] = {
    "plain": {"a": [1, 2.5, None, True, "x", b"\x00"], "": {}},
    "keys": {1: "one", (1, 2): "pair", None: "none"},
    "tuple": (1, [2, (3,)]),
    "sets": [{1, 2}, frozenset({"a"}), {(1, 2)}],
    "times": [
        dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        dt.date(2026, 1, 2),
        dt.time(3, 4),
        dt.timedelta(days=1, microseconds=1),
    ],
    "numbers": [2**80, decimal.Decimal("1.10"), uuid.UUID(int=7)],
    "others": [deque([1, 2]), ipaddress.IPv4Address("10.0.0.1"), pathlib.PurePath, re.compile("a+", re.IGNORECASE)][:2],
    "path": pathlib.Path("/tmp/x"),
    "pattern": re.compile("a+", re.IGNORECASE),
    "bytes": bytearray(b"ab"),
    "messages": [HumanMessage("x", id="1"), {"role": "user", "content": "not a message"}],
    "unusual": [AIMessageChunk("x", id="2"), ChatMessage("x", role="critic", id="3")],
    "send": [Send("node", {"messages": [HumanMessage("x", id="4")]})],
    "document": Document("text", metadata={"page": 1}),
    "looks like ours": [{"lc": "HumanMessage", "content": "mine"}, {"lc": 5, "as": ["os", "system", "x"]}, {"lc": {}}],
    "lg": "a channel with our own name",
}


@pytest.mark.parametrize("name", KEPT)
def test_a_value_comes_back_as_it_was(saver: BackstaySaver, name: str) -> None:
    config = saver.put(thread(), checkpoint(**{name: KEPT[name]}), META, {})
    saver.put_writes(config, [(name, KEPT[name])], "task")
    other = BackstaySaver(saver.store)  # remembers nothing
    found = read(other, config)
    value = found.checkpoint["channel_values"][name]
    assert value == KEPT[name]
    assert type(value) is type(KEPT[name])
    assert found.pending_writes == [("task", name, KEPT[name])]


OWN: dict[str, Any] = {"model": Order(number=7, lines=["x"]), "place": Place("here"), "colour": Colour.RED}


@pytest.mark.parametrize("name", OWN)
def test_a_type_that_is_not_known_is_named_and_never_comes_back_as_a_dict(saver: BackstaySaver, name: str) -> None:
    config = saver.put(thread(), checkpoint(**{name: OWN[name]}), META, {})
    with pytest.raises(UnsupportedError, match=f"channel '{name}'.*{type(OWN[name]).__name__}") as caught:
        read(saver, config)
    assert f"allow=[{type(OWN[name]).__name__}]" in str(caught.value)


def test_a_type_that_the_user_allows_is_built_again(tmp_path: Path) -> None:
    with backstay.open(f"sqlite:///{tmp_path}/x.db") as store:
        config = BackstaySaver(store).put(thread(), checkpoint(**OWN), META, {})
        allowing = BackstaySaver(store, allow=[Order, (Place.__module__, "Place"), Colour])
        assert read(allowing, config).checkpoint["channel_values"] == OWN
        later = BackstaySaver(store).with_allowlist(
            [(kind.__module__, kind.__name__) for kind in (Order, Place, Colour)]
        )
        assert read(later, config).checkpoint["channel_values"] == OWN


class Orders(TypedDict):
    model: Order
    place: list[Place]
    colour: Colour | None


def test_types_that_the_schema_of_a_graph_names_come_back_without_a_setting(tmp_path: Path) -> None:
    def look(state: Orders) -> dict[str, Any]:
        assert type(state["model"]) is Order
        assert [type(place) for place in state.get("place", [])] == [Place] * state["model"].number
        return {"place": [*state.get("place", []), Place("there")], "colour": Colour.RED}

    def graph(saver: BackstaySaver) -> Any:
        built = StateGraph(Orders)
        built.add_node("look", look)
        built.add_edge(START, "look")
        return built.compile(checkpointer=saver)

    for number in range(3):
        with backstay.open(f"sqlite:///{tmp_path}/x.db") as store:
            found = graph(BackstaySaver(store)).invoke({"model": Order(number=number)}, thread())
            assert found["place"][-1] == Place("there")
            assert found["colour"] is Colour.RED


@pytest.mark.parametrize(
    "hostile",
    [
        {"lc": 0, "as": ["os", "system", "touch {canary}"]},
        {"lc": 1, "as": ["subprocess", "run", [["touch", "{canary}"]]]},
        {"lc": 2, "as": ["pathlib", "Path.touch", {"self": "{canary}"}]},
        {"lc": 3, "as": ["pathlib", "Path", "{canary}", "touch"]},
        {"lc": 4, "as": ["tests.canary", "Sings", {}]},
        {"lc": 5, "as": ["antigravity", "fly", {}, "model_validate_json"]},
        {"lc": -1, "as": ["pickle", b"cos\nsystem\n(S'touch {canary}'\ntR."]},
        {"lc": -1, "as": ["json", b'{"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["x"]}']},
        {"lc": "os.system", "args": ["touch {canary}"]},
        {"lc": 99, "as": [1]},
    ],
    ids=str,
)
def test_a_name_in_a_row_is_neither_imported_nor_called(hostile: Any, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    filled = eval(repr(hostile).replace("{canary}", str(canary)))
    with backstay.open("memory://") as store:
        saver = BackstaySaver(store)
        config = saver.put(thread(), checkpoint("one", x=1), META, {})
        session = store.session("t")
        state = session.load()
        session.commit({**state, "x": filled}, metadata={"lg": {"parent": None}}, step=1, id="two")
        before = set(sys.modules)
        with contextlib.suppress(UnsupportedError):
            found = read(BackstaySaver(store), thread(checkpoint_id="two"))
            assert not callable(found.checkpoint["channel_values"]["x"])
        assert config
        assert not canary.exists()
        assert not {"antigravity", "tests.canary"} & (set(sys.modules) - before)


def test_nothing_is_pickled(saver: BackstaySaver) -> None:
    pickling = BackstaySaver(saver.store, serde=JsonPlusSerializer(pickle_fallback=True))
    with pytest.raises(InvalidInputError, match="pickled"):
        pickling.put(thread(), checkpoint(x=object()), META, {})
    with pytest.raises(TypeError):
        saver.put(thread(), checkpoint(x=object()), META, {})
    assert read(saver, thread()) is None


def test_a_serializer_that_pickles_everything_is_named_with_the_way_out(saver: BackstaySaver) -> None:
    class Pickling:
        def dumps_typed(self, value: object) -> tuple[str, bytes]:
            return "pickle", pickle.dumps(value)

        def loads_typed(self, data: tuple[str, bytes]) -> object:
            raise AssertionError(data)

    with pytest.raises(InvalidInputError, match=r"Pickling pickles.*leave serde= out"):
        BackstaySaver(saver.store, serde=Pickling()).put(thread(), checkpoint(x=1), META, {})
