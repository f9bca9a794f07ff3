"""A state replayed along its records: each digest is that of the state, however it came to be."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.codec import encode_stored, encode_tagged
from backstay.delta import Record, advance, know, whole
from backstay.delta.record import DEL, LIST, MANY, PATCH, SET, SPLICE
from backstay.delta.replay import stand_on
from backstay.digest import state_digest
from backstay.errors import CorruptionError
from backstay.model import MAX_DEPTH, StateDict
from backstay.testing.exact import exactly_equal
from backstay.testing.growth import CHANGES, Change, apply


def record_of(*ops: list[Any], values: list[Any]) -> Record:
    return Record(encode_tagged(list(ops)), b"".join([encode_stored(value) for value in values]))


@given(st.lists(st.lists(CHANGES, min_size=1, max_size=3), min_size=1, max_size=12))
def test_a_sound_history_is_never_called_damaged(steps: list[list[Change]]) -> None:
    state: StateDict = {"scratch": "s" * 100, "plan": {"k": [1], "deep": {"er": {}}}}
    first, pieces = whole(state)
    replay, known = stand_on(first, pieces), know(state)
    for changes in steps:
        for change in changes:
            apply(change, state)
        delta, blobs, known = advance(known, copy.deepcopy(state))
        replay.follow(delta, blobs)
        assert exactly_equal(replay.state, state)
        assert (replay.digest, replay.size_bytes) == (known.digest, known.size_bytes)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 3)), min_size=1, max_size=60))
def test_a_dict_that_grows_past_its_buckets_and_back_is_never_called_damaged(moves: list[tuple[int, int]]) -> None:
    state: StateDict = {"many": {f"k{number}": number for number in range(60)}}
    first, pieces = whole(state)
    replay, known = stand_on(first, pieces), know(state)
    for number, value in moves:
        if value:
            state["many"].update({f"k{number + step}": value for step in range(6)})
        else:
            for step in range(6):
                state["many"].pop(f"k{number + step}", None)
        delta, blobs, known = advance(known, state)
        replay.follow(delta, blobs)
        assert replay.digest == known.digest


PLAIN: StateDict = {
    "list": [1, {"in": [2]}, "three"],
    "dict": {"a": {"b": [4, 5]}, "text": "six" * 40},
    "odd": {1: "one", "t": [7]},
    "tuple": (8, [9]),
}
STEPS: st.SearchStrategy[Any] = st.sampled_from([*PLAIN, "a", "b", "in", "t", "k", 0, 1, 2, -1, True, None, 1.0])
COUNTS = st.integers(-2, 4)
VALUES: st.SearchStrategy[Any] = st.sampled_from([None, 1, "text" * 20, b"b", [1, [2]], {"k": {}}, {3: 4}, ()])
PATHS = st.lists(STEPS, max_size=3)
OPS = st.one_of(
    st.tuples(st.sampled_from([SET, DEL]), PATHS, STEPS),
    st.tuples(st.just(SPLICE), PATHS, COUNTS, COUNTS, COUNTS),
    st.tuples(st.just(PATCH), PATHS, STEPS, COUNTS, COUNTS),
    st.tuples(st.just(MANY), PATHS, COUNTS),
    st.tuples(st.just(LIST), PATHS, STEPS, COUNTS),
)


@given(st.lists(OPS, min_size=1, max_size=3), st.lists(VALUES, max_size=6))
def test_a_record_that_nobody_wrote_is_an_error_or_has_its_own_digest(
    ops: list[tuple[Any, ...]], values: list[Any]
) -> None:
    replay = stand_on(*whole(PLAIN))
    try:
        replay.follow(record_of(*[list(op) for op in ops], values=values), {})
    except CorruptionError:
        return
    assert replay.digest == state_digest(replay.state)


def test_a_state_deeper_than_may_be_committed_is_damage_and_not_a_crash() -> None:
    deep = b"\x81\xa1k" * (MAX_DEPTH + 1) + b"\xa1x"
    with pytest.raises(CorruptionError):
        stand_on(Record(encode_tagged([[SET, [], "a"]]), deep), {})
