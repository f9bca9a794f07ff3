"""Deltas: every step of a state's history can be had back exactly, and costs what changed."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.codec import LARGE, Ext, encode_tagged
from backstay.delta import Known, Record, advance, know, rebuild, whole
from backstay.delta.record import SET
from backstay.digest import state_digest
from backstay.errors import CorruptionError, InvalidInputError
from backstay.model import MAX_DEPTH
from tests.unit.values import exactly, states

StateDict = dict[str, Any]


class History:
    """A state committed again and again, without a store: what is known of it, its records and their pieces."""

    def __init__(self, state: StateDict) -> None:
        record, pieces = whole(state)
        self.records = [record]
        self.pieces = dict(pieces)
        self.known: Known = know(state)

    def commit(self, state: StateDict) -> int:
        """Write a delta; gives what it weighs with its new pieces, before packing."""
        record, pieces, self.known = advance(self.known, state)
        new = sum(len(piece) for digest, piece in pieces.items() if digest not in self.pieces)
        self.records.append(record)
        self.pieces.update(pieces)
        return record.size_bytes + new

    def state(self) -> StateDict:
        return rebuild(self.records, self.pieces).state

    def check(self, state: StateDict) -> None:
        got = rebuild(self.records, self.pieces)
        assert exactly(got.state, state)
        assert state_digest(got.state) == self.known.digest == know(state).digest
        assert self.known.size_bytes == know(state).size_bytes
        copy_, pieces = whole(state, got.touched)
        assert exactly(rebuild([copy_], pieces).state, state)


@given(st.lists(states, min_size=1, max_size=4))
def test_any_state_can_follow_any_other(steps: list[StateDict]) -> None:
    history = History(steps[0])
    for state in steps[1:]:
        history.commit(state)
        history.check(state)


names = st.sampled_from(["messages", "notes", "agents", "n"])
edits = st.sampled_from(
    ["append", "trim", "edit", "insert", "summary", "swap", "clear", "nest", "grow", "drop", "retype"]
)


def mutate(state: StateDict, name: str, edit: str, at: float, number: int) -> None:
    """Change a state in place, as agents do."""
    target = state.setdefault(name, [])
    if type(target) is not list:
        state[name] = [target]
        return
    place = int(at * len(target))
    if edit == "append":
        target += [{"role": "user", "content": f"message {number} " * 20}, (number, None)]
    elif edit == "trim":
        del target[:place]
    elif edit == "edit" and target:
        target[min(place, len(target) - 1)] = {"role": "tool", "content": f"message {number} " * 20, "n": number}
    elif edit == "insert":
        target.insert(place, {"inserted": number, "at": {"x": [place]}})
    elif edit == "summary":
        target[:place] = [f"summary {number} " * 30]
    elif edit == "swap" and len(target) > 1:
        target[0], target[-1] = target[-1], target[0]
    elif edit == "clear":
        state[name] = []
    elif edit == "nest":
        target.append([target[-1] if target else number, {"deep": list(target[:2])}])
    elif edit == "grow":
        target.append("x" * 100 if not target or type(target[-1]) is not str else target[-1] + "y" * number)
    elif edit == "drop":
        del state[name]
    elif edit == "retype":
        target[:] = [tuple(item) if type(item) is list else item for item in target]


@given(st.lists(st.tuples(names, edits, st.floats(0, 1)), min_size=1, max_size=14))
def test_a_state_changed_in_place_step_by_step_is_kept_at_every_step(steps: list[tuple[str, str, float]]) -> None:
    state: StateDict = {"messages": [{"role": "system", "content": "s" * 200}]}
    history = History(state)
    for number, (name, edit, at) in enumerate(steps):
        mutate(state, name, edit, at, number)
        history.commit(state)
        history.check(copy.deepcopy(state))


def message(number: int) -> dict[str, Any]:
    return {"role": "assistant" if number % 2 else "user", "content": f"message {number}: " + "what was said " * 30}


def conversation(count: int) -> list[Any]:
    return [message(number) for number in range(count)]


def encoded(value: object) -> int:
    return know({"v": value}).size_bytes


def test_an_append_costs_less_than_twice_what_was_appended() -> None:
    state: StateDict = {"messages": conversation(1000), "phase": "plan"}
    history = History(state)
    for number in range(1000, 1020, 2):
        added = [message(number), message(number + 1)]
        state["messages"] += added
        assert history.commit(state) < 2 * encoded(added)
    history.check(state)


@pytest.mark.parametrize("at_once", [1, 2, 3, 64, 65])
def test_a_conversation_keeps_its_digest_as_it_grows_from_nothing(at_once: int) -> None:
    messages = conversation(200)
    state: StateDict = {"messages": []}
    history = History(state)
    for at in range(0, len(messages), at_once):
        state["messages"] += messages[at : at + at_once]
        history.commit(state)
        history.check(state)


def test_a_change_inside_an_appended_item_costs_the_change_whatever_kind_of_dict_it_came_as() -> None:
    item: OrderedDict[str, Any] = OrderedDict(role="tool", parts=[message(number) for number in range(100)])
    state: StateDict = {"messages": [message(0)]}
    history = History(state)
    state["messages"].append(item)
    history.commit(state)
    item["parts"].append(message(100))
    assert history.commit(state) < 2 * encoded(message(100))
    plain = {"messages": [message(0), dict(item)]}
    assert exactly(history.state(), plain)
    assert history.known.digest == know(plain).digest


def test_an_edit_in_the_middle_of_a_thousand_messages_costs_less_than_a_kilobyte() -> None:
    state = {"messages": conversation(1000)}
    history = History(state)
    for number in (500, 3, 999, 0, 640):
        state["messages"][number]["content"] = state["messages"][number]["content"].replace("was", "is", 1)
        assert history.commit(state) < 1024
    history.check(state)


def test_a_trim_at_the_front_costs_next_to_nothing() -> None:
    state = {"messages": conversation(1000)}
    history = History(state)
    del state["messages"][:500]
    assert history.commit(state) < 100
    history.check(state)


def test_a_window_that_moves_costs_what_came_in() -> None:
    messages = conversation(200)
    state = {"messages": messages[:50]}
    history = History(state)
    for start in range(2, 60, 2):
        state["messages"] = messages[start : start + 50]
        assert history.commit(state) < 2 * encoded(messages[start + 48 : start + 50])
    history.check(state)


def test_a_summary_in_place_of_half_the_messages_costs_the_summary() -> None:
    state = {"messages": conversation(1000)}
    history = History(state)
    summary = {"role": "system", "content": "what happened so far " * 40}
    state["messages"][:500] = [summary]
    assert history.commit(state) < encoded([summary]) + 100
    history.check(state)


def test_edits_at_several_places_at_once_cost_their_sum() -> None:
    state = {"messages": conversation(1000)}
    history = History(state)
    for number in (10, 400, 900):
        state["messages"][number] = message(number + 5000)
    del state["messages"][200]
    state["messages"].insert(700, message(9999))
    assert history.commit(state) < 2 * encoded(conversation(4)) + 200
    history.check(state)


def test_one_of_five_nested_lists_that_grows_costs_what_it_grew() -> None:
    state = {"agents": {f"agent-{n}": {"messages": conversation(100)} for n in range(5)}}
    history = History(state)
    for number in range(10):
        added = message(number)
        state["agents"]["agent-3"]["messages"].append(added)
        assert history.commit(state) < 2 * encoded(added)
    history.check(state)


def test_one_changed_key_of_ten_thousand_costs_a_few_bytes() -> None:
    state = {f"key-{number}": number for number in range(10_000)}
    history = History(state)
    state["key-77"] = -1
    assert history.commit(state) < 100
    history.check(state)


@pytest.mark.parametrize("kind", [str, bytes])
def test_a_text_that_grows_or_is_edited_costs_the_change(kind: type[str] | type[bytes]) -> None:
    pad: Any = "line of the scratchpad\n" * 4000 if kind is str else b"bytes of a file \0\n" * 4000
    more: Any = "new" * 100 if kind is str else b"new" * 100
    history = History({"pad": pad, "inside": [{"file": pad}]})
    state = {"pad": pad + more, "inside": [{"file": pad[:5000] + more + pad[5000:]}]}
    assert history.commit(state) < 3 * len(more)
    state = {"pad": more + pad + more, "inside": [{"file": pad[:5000] + more + pad[6000:]}]}
    assert history.commit(state) < 3 * len(more)
    history.check(state)


def test_a_state_that_did_not_change_costs_nothing() -> None:
    state = {"messages": conversation(100), "n": [1.5, None, {"a": (1,)}], "when": datetime(2026, 1, 1)}
    history = History(state)
    assert history.commit(copy.deepcopy(state)) <= 1
    history.check(state)


CHANGES: list[tuple[Any, Any]] = [
    ([1, 2], (1, 2)),
    ((1, 2), [1, 2]),
    (1, True),
    (True, 1),
    (0, False),
    (1, 1.0),
    (1.0, 1),
    (0.0, -0.0),
    (-0.0, 0.0),
    (float("nan"), -float("nan")),
    ("2026-01-01", date(2026, 1, 1)),
    (date(2026, 1, 1), datetime(2026, 1, 1)),
    (datetime(2026, 10, 25, 2, 30), datetime(2026, 10, 25, 2, 30, fold=1)),
    ({1, 2}, frozenset({1, 2})),
    ({1}, {True}),
    ({1: "a"}, {True: "a"}),
    ({1: "a"}, {1.0: "a"}),
    ({"1": "a"}, {1: "a"}),
    ([], {}),
    ((), []),
    (None, False),
    ("", None),
    ("x", b"x"),
    (Decimal("1.0"), Decimal("1.00")),
    (1, Decimal(1)),
    ([1, 2, 3], [1, 2.0, 3]),
    ([1, 2, 3], [True, 2, 3]),
    ([0.0] * 3, [0.0, -0.0, 0.0]),
    ([1, 2], [1, 2, True]),
    ([1, "a"], [True, "a"]),
    (2**64, float(2**64)),
]
PLACES: dict[str, Callable[[Any], StateDict]] = {
    "at the top": lambda value: {"a": value, "b": 1},
    "deep inside an old message": lambda value: {"messages": [message(1), {"x": {"y": [0, {"z": value}]}}, message(2)]},
    "in a list": lambda value: {"a": ["x", value, "y"]},
    "in a tuple": lambda value: {"a": [("x", value)]},
    "under an odd key": lambda value: {"a": {(1, 2): value}},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change[0]!r:.20} to {change[1]!r:.20}")
def test_a_change_that_python_does_not_see_is_kept(change: tuple[Any, Any], place: str) -> None:
    before, after = PLACES[place](change[0]), PLACES[place](change[1])
    history = History(before)
    history.commit(after)
    history.check(after)
    history.commit(before)
    history.check(before)


def test_a_message_mutated_in_place_is_noticed_although_it_is_the_same_object() -> None:
    inner: dict[str, Any] = {"parts": [{"text": "old"}], "n": [1, 2, 3]}
    state: StateDict = {"messages": [inner, message(1)], "alias": inner}
    history = History(state)
    inner["parts"][0]["text"] = "new"
    inner["n"][1] = True
    history.commit(state)
    history.check({"messages": [inner, message(1)], "alias": inner})
    assert history.state()["alias"]["n"][1] is True


def test_what_was_committed_does_not_change_when_the_state_does() -> None:
    state: StateDict = {"a": [[1, 2], {"b": [3]}], "v": [1.0, 2.0]}
    history = History(state)
    kept = copy.deepcopy(state)
    state["a"][1]["b"].append(4)
    state["v"].append(3.0)
    assert exactly(history.state(), kept)


def test_vectors_of_numbers_are_kept_in_every_shape() -> None:
    vector = [number / 7 for number in range(1000)]
    history = History({"v": vector})
    steps: list[list[Any]] = [
        [*vector, 0.5],
        [1, *vector],
        vector[:500],
        [],
        [1],
        [True],
        [1, "a"],
        ["a"],
        vector,
        [*vector[:10], -0.0, *vector[11:]],
        [2**70, -(2**70)],
        [None],
    ]
    for step in steps:
        history.commit({"v": step})
        history.check({"v": step})


def test_an_appended_number_costs_its_own_bytes() -> None:
    vector = [number / 7 for number in range(1000)]
    history = History({"v": vector})
    vector.append(0.5)
    assert history.commit({"v": vector}) < 40


@pytest.mark.parametrize(
    "bad",
    [
        {"messages": [message(1), {"image": object()}]},
        {"messages": [message(1)], "new": {1, 2, (3, object)}},
        {"messages": object()},
        {"messages": [message(1)], "a": {"b": {"c": lambda: None}}},
        {"messages": [message(1)], "a": {object(): 1}},
    ],
)
def test_a_refused_state_leaves_what_is_known_as_it_was(bad: StateDict) -> None:
    state: StateDict = {"messages": [message(1)], "a": {"b": {"c": 1}}}
    history = History(state)
    with pytest.raises(InvalidInputError, match=r"state\['"):
        history.commit(bad)
    state["messages"].append(message(2))
    history.commit(state)
    history.check(state)


def test_a_value_that_cannot_even_be_compared_is_refused_by_its_place() -> None:
    class Array:
        def __eq__(self, other: object) -> Any:
            raise ValueError

        __hash__ = None  # type: ignore[assignment]

    for place in ({"a": Array()}, {"a": [Array()]}, {"a": {"b": Array()}}):
        for before in ({"a": "x"}, {"a": ["x"]}, {"a": {"b": None}}, {"a": {"b": 5}}):
            with pytest.raises(InvalidInputError, match=r"^state\['a'\]"):
                advance(know(before), place)


def test_a_state_cannot_grow_deeper_step_by_step_than_it_may_be_at_once() -> None:
    state: StateDict = {"root": {}}
    history = History(state)
    inner = state["root"]
    for _ in range(MAX_DEPTH - 1):
        inner["next"] = {}
        inner = inner["next"]
        history.commit(state)
    inner["next"] = {}
    with pytest.raises(InvalidInputError, match="nested deeper"):
        history.commit(state)
    know(history.state())


def test_a_list_cannot_be_given_an_item_that_makes_it_too_deep() -> None:
    history = History({"messages": [1, "a"]})
    item: Any = "x"
    for _ in range(MAX_DEPTH):
        item = [item]
    with pytest.raises(InvalidInputError, match="nested deeper"):
        history.commit({"messages": [1, "a", item]})
    history.commit({"messages": [1, "a", item[0]]})
    history.check({"messages": [1, "a", item[0]]})


@pytest.mark.parametrize("size", [4095, 4096, 4097, 32767, 32768, 32769, 65536, 98304, 98305, 1024 * 1024])
def test_large_texts_and_bytes_survive_at_every_border(size: int) -> None:
    for value in ("x" * size, "é" * (size // 2), b"\xff" * size, "\ud800" + "x" * (size - 3), "x" * (size - 1) + "é"):
        state = {"a": value, "list": [value, {"b": (value,)}]}
        history = History(state)
        history.check(state)
        state = {"a": value[:-1], "list": [{"b": (value,)}, value, "tail"]}
        history.commit(state)
        history.check(state)


def test_a_large_value_is_one_set_of_pieces_wherever_it_stands() -> None:
    image = bytes(range(256)) * 4096
    first, pieces = whole({"a": {"image": image}})
    second, again = whole({"b": [{"x": {"image": image}}], "c": 1})
    assert set(pieces) == set(again)
    assert first.size_bytes + second.size_bytes < 3000
    assert isinstance(first, Record)


def test_two_lists_that_were_emptied_do_not_become_one() -> None:
    record, _ = whole({"a": [], "b": []}, {"a", "b"})
    state = rebuild([record], {}).state
    state["a"].append("mine")
    assert state["b"] == []


def test_a_few_bytes_that_name_a_large_value_again_and_again_are_not_made_into_gigabytes() -> None:
    piece = bytes(8 * 1024 * 1024)
    name = sha256(piece).digest()
    large = Ext(LARGE, b"\1" + name)
    record = Record(encode_tagged([[SET, [], "a"]]), encode_tagged([large] * 1_000), (name,))
    with pytest.raises(CorruptionError, match="larger than a state may be"):
        rebuild([record], {name: piece})
    pieces: dict[bytes, bytes] = {}
    content = encode_tagged([1, 2])
    for _ in range(100):  # each holds the one before twice
        pieces[sha256(content).digest()] = content
        content = encode_tagged([Ext(LARGE, b"\3" + sha256(content).digest())] * 2)
    with pytest.raises(CorruptionError):
        rebuild([Record(encode_tagged([[SET, [], "a"]]), content, tuple(pieces))], pieces)
