"""What differs each time code runs (the clock, chance) and what a caller's own types hold: replayed as it was."""

import asyncio
import contextlib
import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

import backstay
import backstay.aio
from backstay import AfterLlmResponse, AfterToolCall, Event, InvalidInputError, MismatchError
from tests.run.conftest import BACKENDS, url_of
from tests.run.crashes import Cut, World, cut_off, ends_by


def drawn(run: backstay.Run) -> list[Any]:
    return [run.now(), run.uuid(), run.random(), run.uuid(), run.random()]


def test_the_clock_and_chance_are_the_same_when_a_run_is_replayed(store: backstay.Store) -> None:
    with cut_off(store) as run:
        first = drawn(run)
    now, id_, number, other, _ = first
    assert isinstance(now, datetime)
    assert now.tzinfo is UTC
    assert isinstance(id_, UUID)
    assert id_ != other
    assert 0 <= number < 1
    with store.run("t") as run:
        assert drawn(run) == first
        run.state["at"] = now
        run.step()
        assert drawn(run) != first  # behind a boundary they are drawn anew
    assert [call.kind for call in store.session("t").calls("main~")] == ["value"] * 5
    assert store.verify().ok


def test_a_time_in_the_state_no_longer_makes_a_session_unresumable(store: backstay.Store) -> None:
    world = World()
    with cut_off(store) as run:
        run.state["at"] = run.now()
        assert run.call("ask", world.do("asked"), kind="llm") == "asked"
    with store.run("t") as run:
        run.state["at"] = run.now()
        assert run.call("ask", world.do("asked again"), kind="llm") == "asked"
    assert world.done == ["asked"]


def test_a_recorded_value_counts_neither_as_a_tool_nor_as_an_answer(store: backstay.Store) -> None:
    for strategy in (AfterToolCall(), AfterLlmResponse()):
        with store.run("t", strategy=strategy) as run:
            drawn(run)
            assert run.step() is None


def test_values_drawn_at_once_need_keys_and_are_told_apart_by_them(store: backstay.Store) -> None:
    with cut_off(store) as run:
        first = run.uuid(key="a"), run.uuid(key="b")
    with store.run("t") as run:
        assert (run.uuid(key="b"), run.uuid(key="a")) == first[::-1]


# results of a caller's own types


@dataclasses.dataclass
class Refund:
    order: int
    euro: float
    note: str = "none"


class Ticket(msgspec.Struct):
    order: int
    tags: list[str]


class Reply(pydantic.BaseModel):
    text: str
    refunds: list[Refund] = []


RESULTS: list[tuple[Any, Any]] = [
    (Refund, Refund(7, 49.9)),
    (Ticket, Ticket(7, ["a"])),
    (Reply, Reply(text="ok", refunds=[Refund(1, 2.0)])),
    (list[Refund], [Refund(1, 2.0), Refund(3, 4.0, "x")]),
    (list[Reply], [Reply(text="a")]),
    (dict[str, Ticket], {"a": Ticket(1, [])}),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    (int, 5),
]


@pytest.mark.parametrize("kind", ["tool", "llm"])
@pytest.mark.parametrize(("returns", "value"), RESULTS, ids=[str(kind) for kind, _ in RESULTS])
def test_a_result_has_the_type_that_was_asked_for_live_and_replayed_alike(
    store: backstay.Store, kind: Any, returns: Any, value: Any
) -> None:
    with cut_off(store) as run:
        live = run.call("get", lambda: value, args={}, kind=kind, returns=returns)
    with store.run("t") as run:
        replayed = run.call("get", lambda: None, args={}, kind=kind, returns=returns)
        plain = run.state.setdefault("plain", []) is not None
    assert plain
    assert live == replayed == value
    assert type(live) is type(replayed) is type(value)


def test_plain_values_become_the_type_too(store: backstay.Store) -> None:
    with store.run("t") as run:
        assert run.call("get", lambda: {"order": 1, "euro": 2.0}, args={}, returns=Refund) == Refund(1, 2.0)


def test_a_field_with_a_default_may_be_added_and_one_without_is_a_mismatch(store: backstay.Store) -> None:
    @dataclasses.dataclass
    class Grown(Refund):
        by: str = "nobody"

    @dataclasses.dataclass(kw_only=True)
    class Other(Refund):
        by: str

    world = World()
    with cut_off(store) as run:
        run.call("refund", world.do("refund", Refund(7, 49.9)), args={}, returns=Refund)
    with ends_by(MismatchError, store.run("t"), "refund.*does not fit.*Other.*by") as run:
        run.call("refund", world.do("twice"), args={}, returns=Other)
    with store.run("t") as run:
        assert run.call("refund", world.do("twice"), args={}, returns=Grown).by == "nobody"
    assert world.done == ["refund"]


def test_a_tool_whose_result_does_not_fit_was_done_and_is_not_done_again(store: backstay.Store) -> None:
    world = World()
    for _ in range(2):
        with ends_by(MismatchError, store.run("t"), "does not fit") as run:
            run.call("refund", world.do("refund", {"order": "seven"}), args={}, returns=Ticket)
    assert world.done == ["refund"]
    (call,) = store.session("t").calls(pending=True)
    assert (call.status, call.result) == ("done", {"order": "seven"})


def test_an_answer_that_does_not_fit_is_not_recorded_and_is_asked_for_again(store: backstay.Store) -> None:
    with ends_by(MismatchError, store.run("t"), "does not fit") as run:
        run.call("ask", lambda: {"text": 5}, kind="llm", returns=Reply)
    assert store.session("t").calls(pending=True) == []
    with store.run("t") as run:
        assert run.call("ask", lambda: {"text": "5"}, kind="llm", returns=Reply) == Reply(text="5")


# a state that differs from the recorded one


def test_a_mismatch_without_args_names_the_keys_of_the_state_that_differ(store: backstay.Store) -> None:
    with cut_off(store) as run:
        run.state |= {"at": time.time(), "same": [1, 2], "messages": [{"at": 1}], "gone": 1}
        run.call("ask", lambda: "hello", kind="llm")
    with ends_by(MismatchError, store.run("t")) as run:
        run.state |= {"at": time.time(), "same": [1, 2], "messages": [{"at": 2}], "new": 1}
        with pytest.raises(MismatchError) as error:
            run.call("ask", lambda: "other", kind="llm")
        assert "differs in 'at', 'gone', 'messages', 'new'" in str(error.value)
        assert "'same'" not in str(error.value)
        assert "run.now()" in error.value.hint
        raise error.value


def test_a_state_of_very_many_keys_still_says_that_it_differs(store: backstay.Store) -> None:
    keys = {f"k{number}": number for number in range(1000)}
    with cut_off(store) as run:
        run.state |= keys
        run.call("ask", lambda: "hello", kind="llm")
    with ends_by(MismatchError, store.run("t"), "with the state") as run:
        run.state |= {**keys, "k1": 0}
        run.call("ask", lambda: "other", kind="llm")


def test_a_model_is_asked_again_where_the_question_has_changed_if_the_caller_says_so(store: backstay.Store) -> None:
    world = World()
    with cut_off(store) as run:
        run.state["at"] = 1
        run.call("ask", world.do("first"), kind="llm")
        run.call("pay", world.do("paid"), args={})
    with cut_off(store) as run:
        run.state["at"] = 2
        assert run.call("ask", world.do("second"), kind="llm", on_mismatch="again") == "second"
        assert run.call("pay", world.do("paid twice"), args={}) == "paid"
    with store.run("t") as run:  # the new answer is what is recorded now
        run.state["at"] = 2
        assert run.call("ask", world.do("third"), kind="llm", on_mismatch="again") == "second"
        assert run.call("pay", world.do("paid twice"), args={}) == "paid"
    assert world.done == ["first", "paid", "second"]
    assert [call.result for call in store.session("t").calls()] == ["second", "paid"]
    assert store.verify().ok


def test_a_recorded_answer_that_no_longer_fits_is_asked_for_again_if_the_caller_says_so(store: backstay.Store) -> None:
    with cut_off(store) as run:
        run.call("ask", lambda: {"text": 5}, kind="llm")
    with store.run("t") as run:
        again = run.call("ask", lambda: {"text": "5"}, kind="llm", returns=Reply, on_mismatch="again")
        assert again == Reply(text="5")


def test_a_tool_is_never_made_again_because_its_arguments_changed(store: backstay.Store) -> None:
    with ends_by(InvalidInputError, store.run("t"), "kind='llm'") as run:
        run.call("pay", lambda: 1, args={}, on_mismatch="again")
    with ends_by(InvalidInputError, store.run("t"), "'raise' or 'again'") as run:
        run.call("ask", lambda: 1, kind="llm", on_mismatch="maybe")  # type: ignore[call-overload]


# boundaries that a loop reports

DRIVEN = [(Event.TOOL_CALL_COMPLETE, AfterToolCall(), True), (Event.LLM_RESPONSE, AfterLlmResponse(), True)]
DRIVEN += [(Event.LLM_RESPONSE, AfterToolCall(), False), (Event.TOOL_CALL_COMPLETE, AfterLlmResponse(), False)]


@pytest.mark.parametrize(("event", "strategy", "due"), DRIVEN)
def test_a_reported_call_counts_for_a_strategy_that_waits_for_one(
    store: backstay.Store, event: Event, strategy: backstay.Strategy, due: bool
) -> None:
    with cut_off(store, strategy=strategy) as run:
        for number in range(3):
            run.state["n"] = number
            recorded = run.event(event)
            assert (recorded is not None) is due
            assert run.step() is None  # counted once
    assert len(list(store.session("t").history())) == (3 if due else 0)


def test_a_call_reported_while_replaying_is_recorded_at_the_first_boundary_behind_it(store: backstay.Store) -> None:
    with cut_off(store, strategy=AfterToolCall()) as run:
        run.call("ask", lambda: "hello", kind="llm")
    with store.run("t", strategy=AfterToolCall()) as run:
        assert run.event(Event.TOOL_CALL_COMPLETE) is None
        run.call("ask", lambda: "hello", kind="llm")
        assert run.step() is not None


# awaited


@pytest.mark.parametrize("kind", BACKENDS)
def test_all_of_it_can_be_awaited(kind: str, tmp_path: Path) -> None:
    async def drawn(run: backstay.aio.AsyncRun) -> list[Any]:
        return [await run.now(), await run.uuid(), await run.random()]

    async def refund() -> Refund:
        await asyncio.sleep(0)
        return Refund(7, 49.9)

    async def main() -> None:
        async with backstay.aio.open(url_of(kind, tmp_path)) as store:
            with contextlib.suppress(Cut):
                async with store.run("t") as run:
                    first = await drawn(run)
                    assert await run.call("refund", refund, args={}, returns=Refund) == Refund(7, 49.9)
                    run.state["at"] = 1
                    assert await run.call("ask", lambda: "one", kind="llm") == "one"
                    raise Cut
            async with store.run("t", strategy=AfterToolCall()) as run:
                assert await drawn(run) == first
                assert await run.call("refund", lambda: None, args={}, returns=Refund) == Refund(7, 49.9)
                run.state["at"] = 2
                with pytest.raises(MismatchError, match="differs in 'at'"):
                    await run.call("ask", lambda: "two", kind="llm")
                assert await run.call("ask", lambda: "two", kind="llm", on_mismatch="again") == "two"
                assert await run.event(Event.TOOL_CALL_COMPLETE) is not None

    asyncio.run(main())
