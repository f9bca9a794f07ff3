"""A new input is never ignored: it begins anew, resumes its own run, or is an error that says how to go on."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import backstay
from backstay import ConflictError, InDoubtError, Run
from tests.run.crashes import Cut, World, cut_off, leave_in_doubt


@pytest.fixture
def world() -> World:
    return World()


def interrupt(_: Run) -> None:
    raise Cut


def break_(_: Run) -> None:
    message = "no network"
    raise OSError(message)


UNFINISHED: dict[str, Callable[[Run], Any]] = {
    "interrupted": interrupt,
    "halted": lambda run: run.halt("enough"),
    "failed": lambda run: run.fail("no network"),
    "raised": break_,
    "paused": lambda run: run.pause("for the night"),
}


def leave(store: backstay.Store, how: str, world: World) -> None:
    """A run with a boundary and a call behind it, left unfinished."""
    with contextlib.suppress(Cut, OSError), store.run("t", input="old") as run:
        run.state["n"] = 1
        run.step()
        run.call("pay", world.do("paid"), args={})
        UNFINISHED[how](run)


@pytest.mark.parametrize("how", UNFINISHED)
def test_an_unfinished_run_refuses_another_input_and_names_the_ways_on(
    store: backstay.Store, world: World, how: str
) -> None:
    leave(store, how, world)
    with pytest.raises(ConflictError, match=r"'old'.*'new'.*restart=True") as refused, store.run("t", input="new"):
        pass
    assert "session.cancel" in str(refused.value)
    with store.run("t", input="old") as run:
        assert (run.resumed, run.input) == (True, "old")
        run.call("pay", world.do("twice"), args={})
    assert world.done == ["paid"]


@pytest.mark.parametrize("how", UNFINISHED)
def test_a_restart_begins_anew_on_the_last_boundary_and_keeps_the_old_calls_as_history(
    store: backstay.Store, world: World, how: str
) -> None:
    leave(store, how, world)
    with store.run("t", input="new", restart=True) as run:
        assert (run.resumed, run.input, run.state) == (False, "new", {"n": 1})
        assert run.call("pay", world.do("again"), args={}) == "again"
    assert world.done == ["paid", "again"]
    calls = store.session("t").calls()
    assert [(call.status, call.result) for call in calls] == [("abandoned", "paid"), ("done", "again")]
    with store.run("t") as run:
        assert run.input is None
    assert store.verify().ok


def test_a_restart_with_a_call_in_doubt_asks_first(store: backstay.Store, world: World) -> None:
    call = leave_in_doubt(store, world)
    with pytest.raises(InDoubtError, match=call), store.run("t", input="new", restart=True):
        pass
    store.session("t").resolve(call, "skip")
    with store.run("t", input="new", restart=True) as run:
        assert (run.input, run.resumed) == ("new", False)


def test_a_run_begun_without_input_does_not_take_one_on_the_way(store: backstay.Store) -> None:
    with cut_off(store):
        pass
    with pytest.raises(ConflictError, match="without input"), store.run("t", input="new"):
        pass


@pytest.mark.parametrize("end", ["completed", "cancelled", "abandoned"])
def test_what_is_over_begins_anew_with_the_next_input(store: backstay.Store, end: str) -> None:
    if end == "completed":
        with store.run("t", input="old") as run:
            run.state["n"] = 1
    else:
        with cut_off(store, input="old") as run:
            run.state["n"] = 1
            run.step()
        session = store.session("t")
        session.cancel(reason="enough") if end == "cancelled" else session.abandon(reason="enough")
    with store.run("t", input="new") as run:
        assert (run.resumed, run.input, run.state) == (False, "new", {"n": 1})


def test_a_restart_where_nothing_is_unfinished_is_a_plain_start(store: backstay.Store) -> None:
    with store.run("t", input="one", restart=True) as run:
        run.state["n"] = 1
    with store.run("t", input="two", restart=True) as run:
        assert (run.resumed, run.input) == (False, "two")
