"""Ends: how a run is left says how the next one begins, and nothing done is lost on the way."""

import contextlib
from typing import Any

import pytest

import backstay
from backstay import ClosedError, ConflictError, InvalidInputError, LeaseHeldError, LoopGuard, RunEnded, Status
from tests.run.crashes import Cut, World, cut_off, ends_by


@pytest.fixture
def world() -> World:
    return World()


def info(store: backstay.Store) -> backstay.SessionInfo:
    return next(iter(store.sessions()))


def test_a_run_that_comes_to_its_end_is_completed_and_its_state_kept(store: backstay.Store) -> None:
    with store.run("t", agent="support", input="hello") as run:
        assert (run.resumed, run.head, run.input, run.iteration) == (False, None, "hello", 0)
        run.append({"role": "user", "content": run.input})
    assert (info(store).status, info(store).agent, info(store).crashed) == (Status.COMPLETED, "support", False)
    assert store.session("t").load() == {"messages": [{"role": "user", "content": "hello"}]}
    assert store.crashed() == []


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (lambda run: run.halt("too dear"), Status.HALTED, "too dear"),
        (lambda run: run.fail("no answer"), Status.FAILED, "no answer"),
        (lambda run: run.state["missing"], Status.FAILED, "KeyError: 'missing'"),
    ],
    ids=["halt", "fail", "exception"],
)
def test_a_run_that_ends_otherwise_has_that_status_and_is_gone_on_with_from_its_last_boundary(
    store: backstay.Store, world: World, end: Any, status: Status, reason: str
) -> None:
    with contextlib.suppress(KeyError), store.run("t", input="go") as run:
        run.state["n"] = 1
        run.step()
        run.call("pay", world.do("paid"), args={})
        run.state["n"] = 2
        end(run)
    assert (info(store).status, info(store).reason, info(store).crashed) == (status, reason, False)
    assert store.crashed() == []
    assert store.session("t").load() == {"n": 1}  # no half iteration is taken for a state
    with store.run("t", input="go") as run:
        assert (run.resumed, run.input, run.state, run.iteration) == (True, "go", {"n": 1}, 1)
        assert run.call("pay", world.do("twice"), args={}) == "paid"
    assert info(store).status is Status.COMPLETED
    assert world.done == ["paid"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, Cut])
@pytest.mark.parametrize("where", ["inside a call", "between calls"])
def test_an_interruption_leaves_it_in_progress_with_the_lease_free(
    store: backstay.Store, world: World, error: type[BaseException], where: str
) -> None:
    def interrupt() -> None:
        raise error

    with contextlib.suppress(error), store.run("t", input="go") as run:
        run.state["n"] = 1
        run.step()
        run.call("get", world.do("got"), args={})
        run.call("pay", interrupt, args={}) if where == "inside a call" else interrupt()
    assert info(store).status is Status.IN_PROGRESS
    assert info(store).crashed
    assert [each.id for each in store.crashed()] == ["t"]
    with cut_off(store, on_doubt="skip") as run:  # at once: the lease is free
        assert (run.resumed, run.input, run.state) == (True, "go", {"n": 1})
        assert run.call("get", world.do("!"), args={}) == "got"
        assert len(run.in_doubt) == (where == "inside a call")
    assert world.done == ["got"]


def test_halting_passes_every_except_exception_on_its_way_out(store: backstay.Store) -> None:
    reached = False
    with store.run("t") as run:
        try:
            run.halt("stop here")
        except Exception:  # noqa: BLE001 - what loops do
            reached = True
    assert not reached
    assert not issubclass(RunEnded, Exception)
    assert info(store).reason == "stop here"


def test_a_loop_that_swallows_its_own_end_has_ended_all_the_same(store: backstay.Store) -> None:
    with store.run("t") as run:
        with contextlib.suppress(BaseException):
            run.halt("enough")
        for act in (run.step, run.checkpoint, lambda: run.call("a", lambda: 1), lambda: run.halt("again")):
            with pytest.raises(ClosedError):
                act()
    assert (info(store).status, info(store).reason) == (Status.HALTED, "enough")


def test_the_end_of_an_inner_run_does_not_end_the_outer_one(store: backstay.Store) -> None:
    with store.run("outer") as outer:
        with store.run("inner") as inner:
            inner.halt("inner only")
        outer.state["n"] = 1
    assert {each.id: each.status for each in store.sessions()} == {"outer": Status.COMPLETED, "inner": Status.HALTED}


def test_an_outer_end_raised_inside_an_inner_run_ends_the_outer_one(store: backstay.Store) -> None:
    with store.run("outer") as outer, store.run("inner") as inner:
        inner.state["n"] = 1
        outer.halt("all of it")
    ends = {each.id: (each.status, each.crashed) for each in store.sessions()}
    assert ends == {"outer": (Status.HALTED, False), "inner": (Status.IN_PROGRESS, True)}


def test_an_input_is_kept_until_a_run_completes_and_then_gone(store: backstay.Store) -> None:
    with cut_off(store, input={"order": 7}):
        pass
    with cut_off(store, input={"order": 7}) as run:
        assert run.input == {"order": 7}
    with cut_off(store) as run:
        assert run.input == {"order": 7}
    with store.run("t") as run:
        assert run.input == {"order": 7}
    with store.run("t") as run:
        assert run.input is None
    with store.run("t", input="a later message") as run:
        assert run.input == "a later message"


def test_a_new_message_after_a_crash_never_gets_the_answer_to_the_old_one(store: backstay.Store, world: World) -> None:
    def answer(run: backstay.Run) -> Any:
        run.state.setdefault("messages", [{"role": "user", "content": run.input}])
        asked = run.state["messages"][0]["content"]
        return asked, run.call("model", world.do(f"answer to {asked}"), kind="llm")

    with cut_off(store, input="old") as run:
        answer(run)
    with pytest.raises(ConflictError, match=r"'old'.*'new'"), store.run("t", input="new"):
        pass
    with store.run("t") as run:
        assert answer(run) == ("old", "answer to old")
    store.session("t").commit({})
    with store.run("t", input="new") as run:
        assert answer(run) == ("new", "answer to new")


def test_an_input_that_cannot_be_stored_is_refused_and_nobody_holds_a_lease(store: backstay.Store) -> None:
    with pytest.raises(InvalidInputError, match="input"), store.run("t", input=object()):
        pass
    assert list(store.sessions()) == []


def test_a_completed_session_entered_again_is_a_new_run_on_its_head(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        run.state["n"] = 1
        run.call("pay", world.do("first"), args={})
        run.step()
    with store.run("t") as run:
        assert (run.resumed, run.state, run.in_doubt) == (False, {"n": 1}, [])
        assert run.call("pay", world.do("second"), args={}) == "second"
    assert world.done == ["first", "second"]


def test_a_run_that_changes_nothing_records_nothing(store: backstay.Store) -> None:
    with store.run("t") as run:
        run.state["n"] = 1
    head = store.session("t").head()
    for _ in range(2):
        with store.run("t", input="anything?") as run:
            run.state["n"] = 1
    assert store.session("t").head() == head
    assert info(store).status is Status.COMPLETED
    with store.run("t") as run:
        run.call("look", lambda: 1)
    assert store.session("t").head() != head


def test_a_run_is_entered_once(store: backstay.Store) -> None:
    run = store.run("t")
    with run:
        run.state["n"] = 1
    with pytest.raises(InvalidInputError, match="entered before"), run:
        pass
    assert info(store).status is Status.COMPLETED


def test_after_its_end_a_run_does_nothing_more(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        pass
    for act in (run.step, run.checkpoint, lambda: run.call("a", world.do("!"))):
        with pytest.raises(ClosedError):
            act()
    assert world.done == []


def test_a_write_that_fails_ends_the_run_and_the_loop_hears_of_it(store: backstay.Store, world: World) -> None:
    with ends_by(ClosedError, store.run("t")) as run:
        run.state["n"] = 1
        run.step()
        store.close()
        with pytest.raises(ClosedError):
            run.call("pay", world.do("!"))
        with pytest.raises(ClosedError, match="a write failed"):
            run.step()
        with pytest.raises(ClosedError, match="a write failed"):
            run.call("m", world.do("!"), kind="llm")
    assert world.done == []


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "always"},
        {"lease_s": 0},
        {"lease_s": float("nan")},
        {"lease_s": "30"},
        {"lease_s": True},
        {"on_doubt": "maybe"},
        {"on_failed": "skip"},
        {"loops": 3},
        {"branch": ""},
    ],
    ids=repr,
)
def test_options_that_cannot_be_are_refused_before_anything_is_written(
    store: backstay.Store, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError):
        store.run("t", **options)
    assert list(store.sessions()) == []


def test_a_second_run_is_told_who_holds_the_lease_and_until_when(store: backstay.Store) -> None:
    import os
    import socket

    with store.run("t") as run:
        with pytest.raises(LeaseHeldError) as error, store.run("t"):
            pass
        for word in (str(os.getpid()), socket.gethostname(), "UTC"):
            assert word in str(error.value)
        run.state["n"] = 1
    assert store.session("t").load() == {"n": 1}


def test_a_guard_warns_then_halts_and_goes_on_counting_after_a_crash(store: backstay.Store) -> None:
    guard = LoopGuard(repeats=2, halt_after=4, window=4)

    def ask(run: backstay.Run) -> None:
        run.call("model", lambda: "the same answer, word for word", kind="llm")
        run.step()

    with cut_off(store, loops=guard) as run:
        ask(run)
        assert run.warning is None
        ask(run)
        assert run.warning is not None
        ask(run)
    with store.run("t", loops=guard) as run:
        ask(run)  # the fourth, counted across the crash
        raise AssertionError
    assert (info(store).status, run.iteration) == (Status.HALTED, 4)
    assert "same" in str(info(store).reason)
    with store.run("t", loops=guard) as run:  # somebody looked at it, and starts it again
        ask(run)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [({"max_iterations": 2}, "iterations"), ({"max_cost": 2}, "cost"), ({"max_failures": 2}, "fail")],
)
def test_limits_halt_a_run(store: backstay.Store, limit: dict[str, Any], reason: str) -> None:
    with store.run("t", loops=LoopGuard(**limit)) as run:
        for _ in range(10):
            run.use(cost=1.0)
            with contextlib.suppress(backstay.CallFailedError):
                run.call("tool", lambda: 1 / 0)
            run.step() if "max_failures" not in limit else None
    assert info(store).status is Status.HALTED
    assert reason in str(info(store).reason)
