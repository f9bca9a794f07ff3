"""When a run is recorded: often enough to lose little, and no copy twice."""

import itertools
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.errors import InvalidInputError
from backstay.strategy import (
    AfterLlmResponse,
    AfterToolCall,
    Always,
    Event,
    EveryN,
    EverySeconds,
    Moment,
    Never,
    Strategy,
)

simple = st.one_of(
    st.just(Always()),
    st.just(Never()),
    st.just(AfterToolCall()),
    st.just(AfterLlmResponse()),
    st.integers(1, 9).map(EveryN),
    st.floats(0.1, 100).map(EverySeconds),
)
moments = st.builds(
    Moment,
    event=st.sampled_from(Event),
    iteration=st.integers(0, 40),
    recorded_iteration=st.integers(0, 40),
    tool_calls=st.integers(0, 3),
    llm_responses=st.integers(0, 3),
    elapsed_s=st.floats(0, 200),
)


def moment(**known: Any) -> Moment:
    nothing = {"iteration": 1, "recorded_iteration": 1, "tool_calls": 0, "llm_responses": 0, "elapsed_s": 0.0}
    return Moment(**{"event": Event.ITERATION, **nothing, **known})


def recorded(strategy: Strategy, boundaries: list[tuple[Event, int]]) -> list[int]:
    """The iterations at which a run that goes through these boundaries is recorded."""
    last, found = 0, []
    for event, iteration in boundaries:
        if strategy.due(moment(event=event, iteration=iteration, recorded_iteration=last)):
            last = iteration
            found.append(iteration)
    return found


@given(moments)
def test_by_default_no_boundary_is_lost(each: Moment) -> None:
    assert Always().due(each)


@given(moments)
def test_who_asks_for_no_checkpoints_gets_none(each: Moment) -> None:
    assert not Never().due(each)


@pytest.mark.parametrize("event", Event)
def test_a_tool_call_is_recorded_at_the_first_boundary_after_it_whatever_its_event(event: Event) -> None:
    assert AfterToolCall().due(moment(event=event, tool_calls=1))
    assert AfterToolCall().due(moment(event=event, tool_calls=3))
    assert not AfterToolCall().due(moment(event=event, llm_responses=2, iteration=9, elapsed_s=99.0))


@pytest.mark.parametrize("event", Event)
def test_an_answer_is_recorded_at_the_first_boundary_after_it_whatever_its_event(event: Event) -> None:
    assert AfterLlmResponse().due(moment(event=event, llm_responses=1))
    assert not AfterLlmResponse().due(moment(event=event, tool_calls=2, iteration=9, elapsed_s=99.0))


def test_every_nth_iteration_is_recorded_once_and_not_at_each_of_its_events() -> None:
    events = [Event.LLM_RESPONSE, Event.TOOL_CALL_COMPLETE, Event.TOOL_CALL_COMPLETE, Event.ITERATION]
    boundaries = [(event, iteration) for iteration in range(1, 13) for event in events]
    assert recorded(EveryN(5), boundaries) == [5, 10]
    assert recorded(EveryN(1), boundaries) == list(range(1, 13))


def test_an_nth_iteration_without_a_boundary_of_its_own_is_made_up_for_at_the_next() -> None:
    assert recorded(EveryN(5), [(Event.ITERATION, each) for each in (3, 7, 8, 21, 24, 25)]) == [7, 21, 25]


@given(st.integers(1, 7), st.lists(st.integers(0, 3), max_size=40))
def test_never_more_than_n_iterations_are_at_risk(n: int, steps: list[int]) -> None:
    iterations = list(itertools.accumulate(steps))
    found = recorded(EveryN(n), [(Event.ITERATION, iteration) for iteration in iterations])
    assert len(set(found)) == len(found)
    assert {each // n for each in found} == {each // n for each in iterations if each >= n}


@pytest.mark.parametrize(("elapsed_s", "due"), [(0.0, False), (29.9, False), (30.0, True), (1e9, True)])
def test_a_slow_run_is_recorded_when_the_time_is_up(elapsed_s: float, due: bool) -> None:
    assert EverySeconds(30).due(moment(elapsed_s=elapsed_s)) is due


@given(simple, simple, simple, moments)
def test_strategies_together_lose_nothing_that_one_of_them_keeps(
    a: Strategy, b: Strategy, c: Strategy, each: Moment
) -> None:
    assert (a | b).due(each) == (a.due(each) or b.due(each))
    assert (a | b | c) == (a | (b | c))
    assert (a | b | c).due(each) == any(one.due(each) for one in (a, b, c))


def test_a_log_line_shows_the_strategy_as_it_was_written() -> None:
    assert repr(Always()) == "Always()"
    assert repr(EverySeconds(0.5)) == "EverySeconds(0.5)"
    assert repr(EveryN(5) | AfterToolCall()) == "EveryN(5) | AfterToolCall()"
    assert repr(Never() | AfterLlmResponse() | EveryN(2)) == "Never() | AfterLlmResponse() | EveryN(2)"


def test_the_same_strategy_is_the_same_and_stays_so() -> None:
    assert EveryN(5) == EveryN(5) != EveryN(6)
    assert Always() == Always()
    assert len({Always(), Never(), Always()}) == 2
    assert len({EveryN(5) | Always(), EveryN(5) | Always(), EveryN(5)}) == 2
    with pytest.raises(AttributeError):
        EveryN(5).n = 6  # type: ignore[misc]


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "5", None])
def test_a_period_that_would_never_come_is_refused_instead_of_recording_nothing(n: Any) -> None:
    with pytest.raises(InvalidInputError, match="at least 1"):
        EveryN(n)


@pytest.mark.parametrize("s", [0, -1.0, float("nan"), float("inf"), True, "5", None])
def test_a_time_that_would_never_be_up_is_refused_instead_of_recording_nothing(s: Any) -> None:
    with pytest.raises(InvalidInputError, match="above 0"):
        EverySeconds(s)


@pytest.mark.parametrize("other", [None, 5, "Always()", Always])
def test_what_is_no_strategy_is_not_taken_for_one(other: Any) -> None:
    with pytest.raises(TypeError):
        operator.or_(Always(), other)
    with pytest.raises(TypeError):
        operator.or_(other, Always())


def test_a_strategy_of_ones_own_joins_the_others() -> None:
    class OddIterations(Strategy, frozen=True):
        def due(self, moment: Moment) -> bool:
            return moment.iteration % 2 == 1

    both = OddIterations() | EveryN(4)
    assert recorded(both, [(Event.ITERATION, each) for each in range(1, 9)]) == [1, 3, 4, 5, 7, 8]
