"""What comes out of a store is data: only types that LangGraph holds safe, or that the user allows, are built again."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import ipaddress
import pathlib
import re
import sys
import uuid
from collections import deque
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra `langgraph` and its conformance suite")

import pydantic
from langchain_core.documents import Document
from langchain_core.messages import AIMessageChunk, ChatMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

import backstay
from backstay.adapters.langgraph import BackstaySaver
from backstay.errors import InvalidInputError
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
AS_DATA: dict[str, Any] = {"model": {"number": 7, "lines": ["x"]}, "place": {"street": "here"}, "colour": "red"}


def test_a_type_that_nobody_allowed_comes_back_as_data_with_a_warning(
    saver: BackstaySaver, caplog: pytest.LogCaptureFixture
) -> None:
    serde = "langgraph.checkpoint.serde.jsonplus"
    getattr(sys.modules[serde], "_warned_blocked_types", set()).clear()
    config = saver.put(thread(), checkpoint(**OWN), META, {})
    assert read(saver, config).checkpoint["channel_values"] == AS_DATA
    assert "Order" in caplog.text


def test_a_type_that_the_user_allows_is_built_again(tmp_path: Path) -> None:
    with backstay.open(f"sqlite:///{tmp_path}/x.db") as store:
        config = BackstaySaver(store).put(thread(), checkpoint(**OWN), META, {})
        allowing = BackstaySaver(store, allow=[Order, (Place.__module__, "Place"), Colour])
        assert read(allowing, config).checkpoint["channel_values"] == OWN
        later = BackstaySaver(store).with_allowlist([(Order.__module__, "Order")])
        assert read(later, config).checkpoint["channel_values"] == {**AS_DATA, "model": OWN["model"]}


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
        found = read(BackstaySaver(store), thread(checkpoint_id="two"))
        assert found is not None
        assert not callable(found.checkpoint["channel_values"].get("x"))
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
