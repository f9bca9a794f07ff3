"""Calls: what was done is not done again, and what came out is given again as it was."""

import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

import backstay
from backstay import CallFailedError, InDoubtError, InvalidInputError, MismatchError
from tests.run.crashes import Cut, World, cut_off, ends_by, leave_in_doubt


@pytest.fixture
def world() -> World:
    return World()


def test_a_finished_call_is_not_made_again_after_a_crash(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:
        assert run.call("model", world.do("asked"), kind="llm") == "asked"
        assert run.call("pay", world.do("paid"), args={"n": 1}) == "paid"
    with store.run("t") as run:
        assert run.resumed
        assert run.call("model", world.do("asked again"), kind="llm") == "asked"
        assert run.call("pay", world.do("paid again"), args={"n": 1}) == "paid"
        assert run.call("post", world.do("posted")) == "posted"
    assert world.done == ["asked", "paid", "posted"]


def test_a_tool_is_known_to_have_started_before_it_can_do_anything(
    store: backstay.Store, session: backstay.Session
) -> None:
    def look() -> list[tuple[str, str, Any, str]]:
        return [(call.name, call.kind, call.args, call.status) for call in session.calls(pending=True)]

    with store.run("t") as run:
        assert run.call("look", look, args={"a": 1}) == [("look", "tool", {"a": 1}, "started")]
        during = run.call("look", look, args={"a": 2})
        assert during[1] == ("look", "tool", {"a": 2}, "started")
        assert during[0][3] == "done"
        assert look()[1][3] == "done"
        assert run.call("ask", look, kind="llm")[2:] == []
        assert look()[2][:2] == ("ask", "llm")


@dataclass
class Point:
    x: int


@pytest.mark.parametrize("value", [None, (1, "a"), {1: {2}}, 2**90, Decimal("1.50"), b"\0", float("inf"), {"a": [()]}])
def test_what_came_out_is_given_again_exactly_as_it_was(store: backstay.Store, value: Any) -> None:
    with cut_off(store) as run:
        first = run.call("f", lambda: value)
    with store.run("t") as run:
        again = run.call("f", lambda: "made again")
    assert (type(first), first) == (type(value), value)
    assert (type(again), again) == (type(value), value)


def test_the_first_time_gives_what_a_replay_will_give(store: backstay.Store) -> None:
    with cut_off(store) as run:
        assert run.call("f", lambda: Point(3)) == {"x": 3}
    with store.run("t") as run:
        assert run.call("f", lambda: Point(3)) == {"x": 3}


def test_a_model_that_failed_or_was_cut_off_is_asked_again(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run, pytest.raises(OSError, match="busy"):
        run.call("model", world.break_("failed", OSError("busy")), kind="llm")
    with ends_by(Cut, store.run("t")) as run:
        run.call("model", world.cut("cut"), kind="llm")
    assert store.session("t").calls(pending=True) == []
    with store.run("t") as run:
        assert run.in_doubt == []
        assert run.call("model", world.do("answered"), kind="llm") == "answered"


def test_a_tool_that_failed_is_told_as_failed_now_and_later_and_not_made_again(
    store: backstay.Store, world: World
) -> None:
    with cut_off(store) as run:
        with pytest.raises(CallFailedError) as now:
            run.call("pay", world.break_("tried", OSError("no route")))
        assert isinstance(now.value.__cause__, OSError)
    with cut_off(store) as run:
        with pytest.raises(CallFailedError) as later:
            run.call("pay", world.do("again"))
        assert later.value.__cause__ is None
    for error in (now.value, later.value):
        assert (error.type, error.text) == ("OSError", "no route")
    assert world.done == ["tried"]
    with store.run("t", on_failed="retry") as run:
        assert run.call("pay", world.do("paid")) == "paid"
    assert world.done == ["tried", "paid"]


def test_the_call_itself_can_say_that_a_failure_is_tried_again(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run, pytest.raises(CallFailedError):
        run.call("pay", world.break_("tried", OSError()))
    with store.run("t") as run:
        assert run.call("pay", world.do("paid"), on_failed="retry") == "paid"


def test_calls_are_told_apart_by_name_key_and_how_often_they_were_asked_for(
    store: backstay.Store, world: World
) -> None:
    with cut_off(store) as run:
        for name, key in [("a", None), ("a", None), ("a", "k"), ("a", "k"), ("b", "k")]:
            run.call(name, world.do(len(world.done)), key=key, args=[])
    with store.run("t") as run:
        again = [run.call("a", world.do("!"), key="k", args=[]) for _ in range(2)]
        again += [run.call("b", world.do("!"), key="k", args=[])]
        again += [run.call("a", world.do("!"), args=[]) for _ in range(2)]
    assert again == [2, 3, 4, 0, 1]


def test_two_keyless_calls_of_one_name_at_once_are_refused_before_they_can_be_mixed_up(
    store: backstay.Store, world: World
) -> None:
    inside, release = threading.Event(), threading.Event()

    def wait() -> str:
        inside.set()
        assert release.wait(20)
        return "first"

    with store.run("t") as run:
        first = threading.Thread(target=run.call, args=("get", wait))
        first.start()
        assert inside.wait(20)
        with pytest.raises(InvalidInputError, match="key"):
            run.call("get", world.do("second"))
        assert run.call("get", world.do("keyed"), key="2") == "keyed"
        with pytest.raises(InvalidInputError, match="in flight"):
            run.step()
        with pytest.raises(InvalidInputError, match="in flight"):
            run.checkpoint()
        release.set()
        first.join()
        run.step()
    assert world.done == ["keyed"]
    assert [call.status for call in store.session("t").calls("main~1")] == ["done", "done"]


def test_a_call_made_inside_another_belongs_to_it(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:

        def agent() -> str:
            return str(run.call("search", world.do("searched"))) + str(run.call("read", world.do("read")))

        assert run.call("agent", agent) == "searchedread"
        calls = {call.name: call for call in store.session("t").calls(pending=True)}
        assert calls["search"].parent == calls["read"].parent == calls["agent"].id
    with store.run("t") as run:
        # The outer one was done: what it did inside is not asked for again, and holds nothing up.
        assert run.call("agent", world.do("!")) == "searchedread"
        assert run.step() is not None
    assert world.done == ["searched", "read"]


@pytest.mark.parametrize("kind", ["tool", "llm"])
def test_what_an_agent_inside_a_call_has_done_is_not_done_again_when_the_outer_call_is(
    store: backstay.Store, world: World, kind: Any
) -> None:
    def agent(run: backstay.Run, end: BaseException | None) -> str:
        paid = run.call("pay", world.do("paid"), args={})
        if end is not None:
            raise end
        return str(paid)

    with ends_by(Cut, store.run("t")) as run:
        run.call("agent", lambda: agent(run, Cut()), kind=kind)
    with store.run("t", on_doubt="retry") as run:
        assert run.call("agent", lambda: agent(run, None), kind=kind) == "paid"
    assert world.done == ["paid"]


def test_other_arguments_than_recorded_never_give_the_wrong_result(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run:
        run.call("pay", world.do("7"), args={"order": 7})
        run.state["n"] = 1
        run.call("get", world.do("state 1"))
    with pytest.raises(MismatchError) as error, store.run("t") as run:
        run.call("pay", world.do("8"), args={"order": 8})
    assert "7" in str(error.value)
    assert "pay" in str(error.value)
    with ends_by(MismatchError, store.run("t")) as run:
        run.call("pay", world.do("llm"), args={"order": 7}, kind="llm")
    with ends_by(MismatchError, store.run("t")) as run:
        run.call("pay", world.do("7"), args={"order": 7})
        run.state["n"] = 2
        run.call("get", world.do("state 2"))
    assert world.done == ["7", "state 1"]
    info = next(iter(store.sessions()))
    assert info.status is backstay.Status.FAILED
    # The journal is as it was: the right arguments still get the answer.
    with store.run("t") as run:
        assert run.call("pay", world.do("!"), args={"order": 7}) == "7"
        run.state["n"] = 1
        assert run.call("get", world.do("!")) == "state 1"


def test_a_mismatch_names_the_arguments_that_were_recorded_and_those_asked_for_now(store: backstay.Store) -> None:
    with cut_off(store) as run:
        run.call("pay", lambda: 1, args={"order": "seven"})
    with pytest.raises(MismatchError) as error, store.run("t") as run:
        run.call("pay", lambda: 1, args={"order": "eight"})
    assert "seven" in str(error.value)
    assert "eight" in str(error.value)


def test_a_result_that_cannot_be_kept_keeps_that_the_call_was_done(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run, pytest.raises(InvalidInputError, match="was done"):
        run.call("open", world.do("opened", result=object()))
    with cut_off(store) as run:
        assert run.in_doubt == []
        with pytest.raises(InvalidInputError, match="was done"):
            run.call("open", world.do("again"))
    (call,) = store.session("t").calls(pending=True)
    assert call.status == "done"
    store.session("t").resolve(call.id, result="file 7")
    with store.run("t") as run:
        assert run.call("open", world.do("again")) == "file 7"
    assert world.done == ["opened"]


def test_a_result_that_could_not_be_kept_does_not_haunt_the_next_run(store: backstay.Store, world: World) -> None:
    with store.run("t") as run:
        run.state["n"] = 1
    with store.run("t") as run, pytest.raises(InvalidInputError):
        run.call("open", world.do("opened", result=object()))
    assert store.session("t").calls(pending=True) == []
    with store.run("t") as run:
        assert not run.resumed
        run.state["n"] = 2
    assert store.session("t").load() == {"n": 2}


def test_a_model_answer_that_cannot_be_kept_is_asked_for_again(store: backstay.Store) -> None:
    with store.run("t") as run:
        with pytest.raises(InvalidInputError, match="cannot be stored"):
            run.call("model", object, kind="llm")
        assert run.call("model", lambda: "text", kind="llm") == "text"


def test_a_coroutine_function_is_refused_before_anything_is_recorded(store: backstay.Store) -> None:
    async def pay() -> str:
        return "paid"

    with store.run("t") as run:
        with pytest.raises(InvalidInputError, match="coroutine function"):
            run.call("pay", pay)
        assert run.session.calls(pending=True) == []
        assert run.call("pay", lambda: "paid") == "paid"


def test_a_new_call_that_may_be_the_one_in_doubt_is_not_made(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world, key="1")
    with ends_by(InDoubtError, store.run("t")) as run:
        run.call("pay", world.do("twice"), args={}, key="2")
    with ends_by(InDoubtError, store.run("t", on_doubt="retry")) as run:
        assert run.call("pay", world.do("another"), args={"other": 1}, key="2") == "another"
        run.call("pay", world.do("twice"), args={}, key="3")
    assert world.done == ["pay", "another"]


def test_a_loop_that_someone_else_drives_says_what_came_out(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run, run.calling("pay", key="1", args={}) as call:
        assert not call.done
        assert call.finish((1, 2)) == (1, 2)
        assert call.done
    with cut_off(store) as run:
        with run.calling("pay", key="1", args={}) as call:
            assert call.done
            assert call.result == (1, 2)
            with pytest.raises(InvalidInputError, match="already"):
                call.finish(3)
        with pytest.raises(CallFailedError), run.calling("fetch", args={}):
            raise OSError("gone")
        with pytest.raises(InvalidInputError, match="without an outcome"), run.calling("send", args={}):
            pass
    assert {call.name: call.status for call in store.session("t").calls(pending=True)} == {
        "pay": "done",
        "fetch": "failed",
        "send": "in_doubt",
    }


def test_listeners_hear_of_every_call_with_its_outcome(store: backstay.Store) -> None:
    heard: list[tuple[str, str, Any]] = []
    store.on("call", lambda call: heard.append((call.name, call.status, call.result)))
    store.on("call", lambda _: 1 / 0)  # a listener's fault is not the run's
    with store.run("t") as run:
        run.call("a", lambda: 1)
        run.call("m", lambda: 2, kind="llm")
        with pytest.raises(CallFailedError):
            run.call("b", lambda: 1 / 0)
    assert heard == [("a", "done", 1), ("m", "done", 2), ("b", "failed", None)]


def test_what_cannot_be_a_call_is_refused_before_anything_is_done(store: backstay.Store, world: World) -> None:
    run = store.run("t")
    with pytest.raises(InvalidInputError, match="not entered"):
        run.call("a", world.do("!"))
    with run:
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("", {}),
            ("a", {"kind": "other"}),
            ("a", {"key": 7}),
            ("a", {"args": object()}),
            ("a", {"on_doubt": "guess"}),
            ("a", {"on_failed": "skip"}),
            ("a", {"args": "x" * 17_000_000}),
        ]
        for name, options in wrong:
            with pytest.raises(InvalidInputError):
                run.call(name, world.do("!"), **options)
        run.state["messages"] = "text"
        with pytest.raises(InvalidInputError, match="not a list"):
            run.append("more")
    assert world.done == []


def test_a_result_too_large_for_the_journal_keeps_that_the_call_was_done(store: backstay.Store, world: World) -> None:
    with cut_off(store) as run, pytest.raises(InvalidInputError, match="bytes"):
        run.call("dump", world.do("dumped", result="x" * 17_000_000), args={})
    with cut_off(store) as run, pytest.raises(InvalidInputError, match="was done"):
        run.call("dump", world.do("!"), args={})
    assert world.done == ["dumped"]
