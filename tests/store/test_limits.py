"""Limits: what is kept, what is refused, and that a refusal costs nothing but itself."""

from typing import Any

import pytest

import backstay
from backstay import InvalidInputError, Session, Store


@pytest.mark.parametrize("state", [None, [], "text", 5, (), [("a", 1)], {"a": 1}.items(), object()])
def test_a_state_that_is_not_a_dict_is_refused(store: Store, state: Any) -> None:
    with pytest.raises(InvalidInputError, match="a state is a dict"):
        store.session("s").commit(state)
    assert list(store.sessions()) == []


@pytest.mark.parametrize("key", [1, None, b"a", ("a",), True, 1.5])
def test_a_top_level_key_that_is_not_text_is_refused(session: Session, key: Any) -> None:
    session.commit({"1": "text"})
    with pytest.raises(InvalidInputError, match="the keys of a state are text"):
        session.commit({"1": "text", key: "other"})
    assert session.load() == {"1": "text"}


def test_an_int_key_beside_the_same_text_key_is_kept_below_the_top(session: Session) -> None:
    first = {"d": {1: "int", "1": "text", (1,): "tuple", b"1": "bytes"}, "l": [{1: "int", "1": "text"}]}
    session.commit(first)
    assert session.load() == first
    second = {"d": {1: "changed", "1": "text", None: "none"}, "l": [{1: "int", "1": "changed"}]}
    session.commit(second)
    assert session.load() == second


def test_a_structure_that_contains_itself_is_refused_and_the_session_goes_on(session: Session) -> None:
    session.commit({"a": {"b": {}}})
    loop: dict[str, Any] = {}
    loop["self"] = {"again": loop}
    for state in ({"a": loop}, {"a": {"b": loop}}, {"new": [loop]}, {"a": {"b": {"l": [[loop]]}}}):
        with pytest.raises(InvalidInputError, match="contains itself"):
            session.commit(state)
    ring: dict[str, Any] = {"a": 1}
    ring["ring"] = ring
    with pytest.raises(InvalidInputError, match="contains itself"):
        session.commit(ring)
    assert session.commit({"a": {"b": {"c": 1}}}).sequence == 2
    assert session.load() == {"a": {"b": {"c": 1}}}


def test_a_refused_value_is_named_by_its_path_and_the_session_goes_on(session: Session, store: Store) -> None:
    state: dict[str, Any] = {"messages": [{"content": "a"}, {"content": "b"}, {"content": "c"}]}
    session.commit(state)
    state["messages"].append({"image": object()})
    with pytest.raises(InvalidInputError, match=r"state\['messages'\]\[3\]\['image'\]: a value of type object"):
        session.commit(state)
    with pytest.raises(InvalidInputError, match=r"state\['messages'\]\[3\]\['image'\]"):
        store.session("new").commit(state)
    state["messages"][3] = {"image": b"png"}
    session.commit(state)
    assert store.session("ticket-42").load() == state
    assert [info.id for info in store.sessions()] == ["ticket-42"]


def test_a_state_over_the_limit_is_refused_and_one_below_it_is_kept(
    session: Session, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.store.planning.MAX_STATE_BYTES", 100_000)
    with pytest.raises(InvalidInputError, match="limit of 100,000"):
        session.commit({"a": "x" * 100_001})
    session.commit({"a": "x" * 99_000})
    with pytest.raises(InvalidInputError, match="limit"):
        session.commit({"a": "x" * 99_000, "b": ["y"] * 2000})
    assert session.commit({"a": "x" * 99_000, "b": 1}).sequence == 2
    assert store.session("ticket-42").load() == {"a": "x" * 99_000, "b": 1}


@pytest.mark.parametrize("size", [4095, 4096, 4097, 32767, 32768, 32769, 1024 * 1024])
def test_large_texts_and_bytes_survive_at_every_border(store: Store, session: Session, size: int) -> None:
    text, data = "x" * (size - 1) + "y", b"\xff" * (size - 1) + b"\0"
    first = {"text": text, "data": data, "list": [text, {"d": data}, "é" * (size // 2), "\ud800" * (size // 3)]}
    point = session.commit(first)
    second = {"text": text + "!", "data": data[:-1], "list": [{"d": data}, text]}
    session.commit(second)
    fresh = store.session("ticket-42")
    assert fresh.load(point) == first
    assert fresh.load() == second
    assert store.verify().ok


def test_a_record_larger_than_a_row_is_cut_and_joined_again(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.sealing.MAX_ROW_BYTES", 1000)
    states: dict[str, Any] = {}
    for number in range(12):
        state = {"items": [f"{number}-{at}-{at * 7919 % 1000003}" for at in range(2000 + number)]}
        if number > 6:
            state["items"][: number * 100] = [f"{at * at * number}" for at in range(900)]
        states[session.commit(state).id] = state
    fresh = store.session("ticket-42")
    for id_, state in states.items():
        assert fresh.load(id_) == state
    for id_ in list(states)[2:9:3]:
        session.delete(id_)
        del states[id_]
    for id_, state in states.items():
        assert fresh.load(id_) == state
    assert store.verify().ok
    store.delete("ticket-42")
    assert store.verify().ok
    assert store.stats().checkpoints == 0


@pytest.mark.exhaustive
def test_a_row_beyond_sixteen_megabytes_is_kept(store: Store, session: Session) -> None:
    # Numbers do not compress well and are no blobs: the record itself is large.
    state = {"vector": [float(number * 2654435761 % 2**32) / 3 for number in range(2_200_000)]}
    session.commit(state)
    assert store.session("ticket-42").load() == state
    assert store.verify("ticket-42").ok


def test_ten_thousand_keys_and_long_keys_are_kept(session: Session, store: Store) -> None:
    state: dict[str, Any] = {f"key {number}": number for number in range(10_000)}
    state["k" * 100_000] = {"\0": 1, "": 2}
    state[""] = "the empty key"
    state["\ud800"] = [1]
    session.commit(state)
    state["key 5"] = None
    state["\ud800"].append(2)
    del state["key 6"]
    session.commit(state)
    assert store.session("ticket-42").load() == state


def test_an_empty_state_follows_and_is_followed_by_any_other(session: Session) -> None:
    steps: list[dict[str, Any]] = [{}, {"a": [1]}, {}, {"a": {}}, {"a": []}, {}]
    for state in steps:
        assert session.load(session.commit(state)) == state


def test_a_salvaged_mark_cannot_be_committed_unnoticed(session: Session) -> None:
    with pytest.raises(InvalidInputError, match=r"state\['a'\]\[0\]"):
        session.commit({"a": [backstay.Damaged("lost")]})
