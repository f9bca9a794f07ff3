"""A state followed along its records: the digest at each step is that of the state, whatever the records do."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec import encode_stored, encode_tagged
from holdfast.delta import Record, advance, know, rebuild, stand_on, whole
from holdfast.delta.record import DEL, LIST, MANY, PATCH, SET, SPLICE
from holdfast.digest import state_digest
from holdfast.errors import CorruptionError
from holdfast.model import MAX_DEPTH, State
from holdfast.testing.exact import exactly_equal
from holdfast.testing.growth import CHANGES, Change, apply


def record_of(*ops: list[Any], values: list[Any]) -> Record:
    return Record(encode_tagged(list(ops)), b"".join([encode_stored(value) for value in values]))


@given(st.lists(st.lists(CHANGES, min_size=1, max_size=3), min_size=1, max_size=12))
def test_whoever_follows_a_history_has_each_state_and_its_digest(steps: list[list[Change]]) -> None:
    state: State = {"scratch": "s" * 100, "plan": {"k": [1], "deep": {"er": {}}}}
    first, pieces = whole(state)
    followed, known = stand_on(first, pieces), know(state)
    for changes in steps:
        for change in changes:
            apply(change, state)
        delta, blobs, known = advance(known, copy.deepcopy(state))
        followed.follow(delta, blobs)
        assert exactly_equal(followed.state, state)
        assert (followed.digest, followed.size_bytes) == (known.digest, known.size_bytes)
        assert followed.digest == state_digest(state)


PLAIN: State = {
    "list": [1, {"in": [2]}, "three"],
    "dict": {"a": {"b": [4, 5]}, "text": "six" * 40},
    "odd": {1: "one", "t": [7]},
    "tuple": (8, [9]),
    "text": "ten",
}
STEPS: st.SearchStrategy[Any] = st.sampled_from(
    [*PLAIN, "a", "b", "in", "t", "k", 0, 1, 2, 3, -1, -2, True, None, 1.0, b"x"]
)
COUNTS = st.integers(-2, 4)
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, 1, True, "x", "text" * 20, b"b", [1, [2]], {"k": {}}, {3: 4}, (), {"a": 1, 2: 3}]
)
PATHS = st.lists(STEPS, max_size=3)
OPS = st.one_of(
    st.tuples(st.just(SET), PATHS, STEPS),
    st.tuples(st.just(DEL), PATHS, STEPS),
    st.tuples(st.just(SPLICE), PATHS, COUNTS, COUNTS, COUNTS),
    st.tuples(st.just(PATCH), PATHS, STEPS, COUNTS, COUNTS),
    st.tuples(st.just(MANY), PATHS, COUNTS),
    st.tuples(st.just(LIST), PATHS, STEPS, COUNTS),
)


@given(st.lists(OPS, min_size=1, max_size=3), st.lists(VALUES, max_size=6))
def test_ops_that_nobody_wrote_give_the_right_digest_or_an_error(ops: list[tuple[Any, ...]], values: list[Any]) -> None:
    followed = stand_on(*whole(PLAIN))
    try:
        followed.follow(record_of(*[list(op) for op in ops], values=values), {})
    except CorruptionError:
        return
    assert followed.digest == state_digest(followed.state)
    assert all(type(key) is str for key in followed.state)


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = {"k": value}
    return value


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 400])
def test_a_state_deeper_than_may_be_committed_is_not_followed(levels: int) -> None:
    # Such bytes cannot be had from a commit; a file from outside may hold them.
    deep = b"\x81\xa1k" * levels + b"\xa1x"
    with pytest.raises(CorruptionError):
        stand_on(Record(encode_tagged([[SET, [], "a"]]), deep), {})
    followed = stand_on(*whole({"a": nested(MAX_DEPTH)}))
    with pytest.raises(CorruptionError):
        followed.follow(record_of([SET, ["a", *["k"] * (MAX_DEPTH - 1)], "k"], values=[{"k": {"k": 1}}]), {})
    followed = stand_on(*whole({"a": nested(MAX_DEPTH - 1)}))
    followed.follow(record_of([SET, ["a", *["k"] * (MAX_DEPTH - 2)], "k"], values=[{"k": 1}]), {})
    assert followed.digest == state_digest(followed.state) == know(followed.state).digest


def test_two_lists_that_were_emptied_do_not_become_one() -> None:
    record, _ = whole({"a": [], "b": []}, {"a", "b"})
    state = rebuild([record], {}).state
    state["a"].append("mine")
    assert state["b"] == []
