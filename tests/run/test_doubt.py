"""Calls in doubt: nobody knows whether they happened, so nobody makes them again unless somebody says so."""

import threading
from typing import Any

import pytest

import backstay
from backstay import CallFailedError, InDoubtError, InvalidInputError, NotFoundError
from tests.run.crashes import Cut, World, cut_off, ends_by, leave_in_doubt


@pytest.fixture
def world() -> World:
    return World()


def test_a_call_in_doubt_is_told_and_not_made_again(store: backstay.Store, world: World) -> None:
    heard: list[str] = []
    store.on("in_doubt", lambda call: heard.append(call.id))
    id_ = leave_in_doubt(store, world)
    with ends_by(InDoubtError, store.run("t"), id_) as run:
        assert [(call.id, call.name, call.status) for call in run.in_doubt] == [(id_, "pay", "in_doubt")]
        run.call("pay", world.do("twice"), args={})
    assert heard == [id_]
    assert world.done == ["pay"]
    (info,) = store.crashed()
    assert (info.id, info.status) == ("t", backstay.Status.IN_PROGRESS)


@pytest.mark.parametrize("where", ["run", "call"])
@pytest.mark.parametrize(
    ("choice", "result", "done"),
    [
        ("retry", "again", ["pay", "again"]),
        ("skip", None, ["pay"]),
        (lambda call: {"id": call.name}, {"id": "pay"}, ["pay"]),
    ],
)
def test_the_loop_can_decide_beforehand(
    store: backstay.Store, world: World, where: str, choice: Any, result: Any, done: list[str]
) -> None:
    leave_in_doubt(store, world)
    of_run, of_call = ({"on_doubt": choice}, {}) if where == "run" else ({}, {"on_doubt": choice})
    with cut_off(store, **of_run) as run:
        assert run.call("pay", world.do("again"), args={}, **of_call) == result
    assert world.done == done
    # What was decided stays decided.
    with store.run("t") as run:
        assert run.in_doubt == []
        assert run.call("pay", world.do("third"), args={}) == result
    assert world.done == done


def test_a_call_can_be_stricter_than_its_run(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world)
    with ends_by(InDoubtError, store.run("t", on_doubt="retry")) as run:
        run.call("pay", world.do("twice"), args={}, on_doubt="ask")


def test_a_function_that_cannot_tell_leaves_it_in_doubt(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world)

    def cannot_tell(_: backstay.Call) -> None:
        message = "the bank does not answer"
        raise OSError(message)

    with ends_by(OSError, store.run("t", on_doubt=cannot_tell), "bank") as run:
        run.call("pay", world.do("twice"), args={})
    with store.run("t", on_doubt="skip") as run:
        assert [call.name for call in run.in_doubt] == ["pay"]
        assert run.call("pay", world.do("twice"), args={}) is None
    assert world.done == ["pay"]


@pytest.mark.parametrize(
    ("decision", "told", "result", "done"),
    [
        (("retry",), {}, "again", ["pay", "again"]),
        (("skip",), {}, None, ["pay"]),
        ((), {"result": {"paid": (7,)}}, {"paid": (7,)}, ["pay"]),
        ((), {"result": None}, None, ["pay"]),
    ],
)
def test_somebody_else_can_decide(
    store: backstay.Store, world: World, decision: Any, told: Any, result: Any, done: list[str]
) -> None:
    id_ = leave_in_doubt(store, world)
    store.session("t").resolve(id_, *decision, **told)
    with store.run("t") as run:
        assert run.call("pay", world.do("again"), args={}) == result
    assert world.done == done


def test_somebody_else_can_say_that_it_failed(store: backstay.Store, world: World) -> None:
    id_ = leave_in_doubt(store, world)
    store.session("t").resolve(id_, failed="card refused")
    with store.run("t") as run, pytest.raises(CallFailedError, match="card refused"):
        run.call("pay", world.do("twice"), args={})
    assert world.done == ["pay"]


def test_a_decision_that_is_none_changes_nothing(store: backstay.Store, world: World) -> None:
    id_ = leave_in_doubt(store, world)
    session = store.session("t")
    wrong: list[tuple[Any, dict[str, Any]]] = [((), {}), (("retry",), {"result": 1}), (("maybe",), {})]
    for decision, told in [*wrong, ((), {"result": 1, "failed": "x"})]:
        with pytest.raises(InvalidInputError):
            session.resolve(id_, *decision, **told)
    with pytest.raises(InvalidInputError):
        session.resolve(id_, result=object())
    with pytest.raises(NotFoundError) as error:
        session.resolve("0" * 16, "skip")
    assert id_ in error.value.hint
    assert [call.status for call in session.calls(pending=True)] == ["in_doubt"]


def test_what_is_known_cannot_be_decided(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:
        run.call("pay", world.do("paid"), args={})
    (call,) = store.session("t").calls(pending=True)
    with pytest.raises(InvalidInputError, match="not in doubt"):
        store.session("t").resolve(call.id, "retry")


def test_a_call_of_a_run_that_is_alive_is_not_for_others_to_decide(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:

        def meddle() -> None:
            (call,) = store.session("t").calls(pending=True)
            with pytest.raises(InvalidInputError, match="not in doubt"):
                store.session("t").resolve(call.id, "retry")

        run.call("pay", meddle, args={})


def test_a_run_sees_what_was_decided_after_it_began(store: backstay.Store, world: World) -> None:
    id_ = leave_in_doubt(store, world)
    with store.run("t") as run:
        store.session("t").resolve(id_, result="by hand")
        assert run.call("pay", world.do("twice"), args={}) == "by hand"
    assert world.done == ["pay"]


@pytest.mark.parametrize("how", ["result", "retry", "skip"])
def test_a_decision_made_while_the_loop_makes_up_its_mind_is_not_written_over(
    store: backstay.Store, world: World, how: str
) -> None:
    id_ = leave_in_doubt(store, world)

    def slow(_: backstay.Call) -> str:
        told: dict[str, Any] = {"result": "by hand"} if how == "result" else {"decision": how}
        store.session("t").resolve(id_, **told)
        return "guessed"

    with store.run("t", on_doubt=slow) as run:
        result = run.call("pay", world.do("again"), args={})
    assert result == {"result": "by hand", "retry": "again", "skip": None}[how]
    assert world.done == ["pay"] + ["again"] * (how == "retry")


def test_calls_in_doubt_do_not_hold_up_other_calls(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world, key="1")
    with ends_by(InDoubtError, store.run("t")) as run:
        assert run.call("post", world.do("posted")) == "posted"
        assert run.step() is None  # not a boundary while one is unasked
        run.call("pay", world.do("twice"), args={}, key="1")
    assert store.session("t").head() is None


def test_an_interruption_inside_a_call_that_the_loop_swallows_leaves_it_in_doubt(
    store: backstay.Store, world: World
) -> None:
    with ends_by(InDoubtError, store.run("t")) as run:
        with pytest.raises(Cut):
            run.call("pay", world.cut("pay"), args={})
        assert [call.name for call in run.in_doubt] == ["pay"]
        with pytest.raises(InDoubtError):
            run.call("pay", world.do("twice"), args={})
        assert run.step() is None
        assert run.checkpoint("not yet") is None
    assert world.done == ["pay"]
    assert store.session("t").head() is None
    assert [info.id for info in store.crashed()] == ["t"]


def test_a_call_in_doubt_inside_another_leaves_both_in_doubt(store: backstay.Store, world: World) -> None:
    with ends_by(Cut, store.run("t")) as run:
        run.call("agent", lambda: run.call("pay", world.cut("pay"), args={}), args={})
    with ends_by(InDoubtError, store.run("t")) as run:
        assert {call.name for call in run.in_doubt} == {"agent", "pay"}
        run.call("agent", world.do("!"), args={}, on_doubt="ask")
    outer = next(call.id for call in store.session("t").calls(pending=True) if call.name == "agent")
    store.session("t").resolve(outer, "retry")
    with ends_by(InDoubtError, store.run("t"), "pay") as run:
        run.call("agent", lambda: run.call("pay", world.do("twice"), args={}), args={})
    assert world.done == ["pay"]


def test_giving_up_frees_the_session_and_keeps_what_was_in_doubt_in_history(
    store: backstay.Store, world: World
) -> None:
    with store.run("t", input="first") as run:
        run.state["n"] = 1
    leave_in_doubt(store, world)
    session = store.session("t")
    session.abandon(reason="nobody knows any more")
    info = next(iter(store.sessions()))
    assert (info.status, info.reason, info.crashed) == (backstay.Status.HALTED, "nobody knows any more", False)
    assert session.calls(pending=True) == []
    assert store.crashed() == []
    with store.run("t", input="second") as run:
        assert (run.resumed, run.input, run.in_doubt) == (False, "second", [])
        assert run.call("pay", world.do("anew"), args={}) == "anew"
    assert [(call.status, call.error) for call in session.calls()] == [
        ("abandoned", "abandoned: nobody knows any more"),
        ("done", None),
    ]


def test_a_live_run_is_not_given_up_by_others(store: backstay.Store) -> None:
    with store.run("t"), pytest.raises(backstay.LeaseHeldError):
        store.session("t").abandon(reason="impatience")


def test_deciding_takes_as_long_as_it_takes_and_the_lease_is_kept(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world)
    done = threading.Event()

    def ask_somebody(_: backstay.Call) -> str:
        done.wait(1.2)
        return "paid"

    with store.run("t", lease_s=0.5, on_doubt=ask_somebody) as run:
        started = threading.Thread(target=lambda: run.call("pay", world.do("twice"), args={}))
        started.start()
        started.join(0.9)
        with pytest.raises(backstay.LeaseHeldError), store.run("t"):
            pass
        started.join()
        run.step()


def test_a_call_in_doubt_that_was_to_be_retried_and_then_was_not_made_is_still_in_doubt(
    store: backstay.Store, world: World
) -> None:
    leave_in_doubt(store, world)
    with cut_off(store, on_doubt="retry") as run:
        run.begin("pay", args={}).withdraw()  # what a cancelled task does whose function never ran
    with ends_by(InDoubtError, store.run("t")) as run:
        run.call("pay", world.do("twice"), args={})
    assert world.done == ["pay"]


def test_a_call_that_was_begun_and_not_made_is_made_without_asking(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:
        run.begin("pay", args={}).withdraw()
    with store.run("t") as run:
        assert run.call("pay", world.do("paid"), args={}) == "paid"


def test_what_a_function_asks_to_find_out_belongs_to_the_call_it_decides(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world)
    with cut_off(store) as run:

        def find_out(_: backstay.Call) -> Any:
            return run.call("bank", world.do("asked the bank"), args={})

        assert run.call("pay", world.do("twice"), args={}, on_doubt=find_out) == "asked the bank"
    with store.run("t") as run:  # what is decided is not asked about, and that holds nothing up
        assert run.call("pay", world.do("twice"), args={}) == "asked the bank"
    assert world.done == ["pay", "asked the bank"]
