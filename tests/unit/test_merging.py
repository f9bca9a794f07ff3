"""A roll: many deltas as one must give the very state that they give one after the other."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backstay.delta import advance, know, merge, rebuild, whole
from backstay.model import StateDict

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.binary(max_size=40)
TEXTS = st.text(max_size=12) | st.sampled_from(["a", "b", "x" * 40, "y" * 300, "z" * 70_000])
VALUES: Any = st.recursive(
    SCALARS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers(0, 2), inner, max_size=2)
    ),
    max_leaves=8,
)
STATES = st.dictionaries(st.sampled_from(["a", "b", "messages"]), VALUES, max_size=3)


def shown(value: object) -> str:
    """Exact types and the order of keys included."""
    return repr(value)


def rolled(states: list[StateDict]) -> tuple[str, str, int, int]:
    known = know(states[0])
    first, pieces = whole(states[0])
    deltas = []
    for state in states[1:]:
        delta, more, known = advance(known, state)
        deltas.append(delta)
        pieces |= more
    roll = merge(deltas)
    one_by_one = rebuild([first, *deltas], pieces).state
    at_once = rebuild([first, roll], pieces).state
    return shown(one_by_one), shown(at_once), sum(delta.size_bytes for delta in deltas), roll.size_bytes


@given(st.lists(STATES, min_size=2, max_size=8))
def test_many_deltas_as_one_give_the_same_state(states: list[StateDict]) -> None:
    one_by_one, at_once, apart, together = rolled(states)
    assert one_by_one == at_once
    assert together <= apart


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 4), st.lists(st.integers(0, 9), max_size=4), st.integers()),
        max_size=12,
    )
)
def test_lists_that_are_cut_and_filled_come_out_the_same(edits: list[tuple[int, int, list[int], int]]) -> None:
    state: StateDict = {"n": 0, "deep": {"writes": []}, "messages": [{"id": at} for at in range(5)]}
    states = [state]
    for start, drop, items, number in edits:
        messages = list(state["messages"])
        messages[start : start + drop] = [{"id": item} for item in items]
        writes = [] if drop % 2 else [*state["deep"]["writes"], *map(str, items)]
        state = {**state, "n": number, "deep": {"writes": writes}, "messages": messages}
        states.append(state)
    if len(states) > 1:
        one_by_one, at_once, _, _ = rolled(states)
        assert one_by_one == at_once


def test_what_is_set_at_every_step_is_kept_once() -> None:
    states: list[StateDict] = [{"messages": [{"text": "hello"}], "version": ("x" * 200, 0), "writes": []}]
    for step in range(1, 33):
        before = states[-1]
        states.append({**before, "version": ("x" * 200, step), "writes": ["w" * 100] if step % 2 else []})
    _, _, apart, together = rolled(states)
    assert together < apart / 20
