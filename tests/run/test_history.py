"""Runs and history: what others write meanwhile, and going back, never repeats a call nor replays another future."""

import time
from typing import Any

import pytest

import backstay
from backstay import FencedError, InDoubtError, LeaseHeldError
from tests.run.crashes import World, cut_off, leave_in_doubt


@pytest.fixture
def world() -> World:
    return World()


def two_steps(store: backstay.Store, world: World) -> None:
    """Two boundaries with a call each, then a finished call that no boundary took in."""
    with cut_off(store) as run:
        for n in (1, 2):
            run.call("pay", world.do(f"paid {n}"), args={"n": n})
            run.state["n"] = n
            run.step()
        run.call("pay", world.do("paid 3"), args={"n": 3})


def test_others_do_not_write_where_a_run_is_alive(store: backstay.Store) -> None:
    with store.run("t") as run:
        run.state["n"] = 1
        first = run.step()
        assert first is not None
        run.state["n"] = 2
        run.step()
        other = store.session("t")
        for act in (
            lambda: other.commit({}),
            lambda: other.restore(first),
            lambda: other.delete("main"),
            lambda: other.delete_branch("main"),
            lambda: store.delete("t"),
        ):
            with pytest.raises(LeaseHeldError):
                act()
        other.fork("main", "what-if")
        other.commit({"n": 3}, branch="what-if")
        with other.run(branch="what-if") as beside:  # what-ifs run side by side
            beside.state["n"] = 4
        run.step()
    assert store.session("t").load() == {"n": 2}
    assert store.session("t").load("what-if") == {"n": 4}


def test_others_do_not_write_over_a_call_in_doubt(store: backstay.Store, world: World) -> None:
    session = store.session("t")
    session.commit({"n": 0})
    session.commit({"n": 0})
    id_ = leave_in_doubt(store, world)
    other = store.session("t")
    for act in (lambda: other.commit({}), lambda: other.restore("main"), lambda: other.delete("main")):
        with pytest.raises(InDoubtError, match=id_):
            act()
    assert [call.status for call in other.calls(pending=True)] == ["in_doubt"]
    other.resolve(id_, "skip")
    other.commit({"n": 1})


def test_a_fork_really_calls_its_tools(store: backstay.Store, world: World) -> None:
    two_steps(store, world)
    session = store.session("t")
    session.fork("main~1", "what-if")
    with session.run(branch="what-if") as run:
        assert (run.resumed, run.state, run.input) == (False, {"n": 1}, None)
        assert run.call("pay", world.do("paid 2 if"), args={"n": 2}) == "paid 2 if"
    session.fork("main", "late")
    with session.run(branch="late") as run:
        assert run.call("pay", world.do("paid 3 if"), args={"n": 3}) == "paid 3 if"
    with session.run() as run:  # what is pending on main is untouched by its forks
        assert run.call("pay", world.do("!"), args={"n": 3}) == "paid 3"
    assert world.done == ["paid 1", "paid 2", "paid 3", "paid 2 if", "paid 3 if"]


def test_a_restore_never_replays_the_future_it_left(store: backstay.Store, world: World) -> None:
    two_steps(store, world)
    session = store.session("t")
    session.restore("main~1")
    with session.run() as run:
        assert run.state == {"n": 1}
        assert run.call("pay", world.do("paid 2 anew"), args={"n": 2}) == "paid 2 anew"
    assert world.done[-1] == "paid 2 anew"


def test_a_restore_that_is_undone_repeats_nothing_that_was_pending(store: backstay.Store, world: World) -> None:
    two_steps(store, world)
    session = store.session("t")
    for _ in range(2):
        session.restore("main~1")
        assert session.calls(pending=True) == []
        session.undo()
        assert [call.result for call in session.calls(pending=True)] == ["paid 3"]
    session.undo()
    session.undo()  # redo, undo: the same
    with session.run() as run:
        assert (run.resumed, run.state) == (True, {"n": 2})
        assert run.call("pay", world.do("!"), args={"n": 3}) == "paid 3"
    assert world.done == ["paid 1", "paid 2", "paid 3"]
    assert [call.result for call in session.calls()] == ["paid 3"]


def test_what_was_made_after_a_restore_waits_where_the_undo_left_it(store: backstay.Store, world: World) -> None:
    two_steps(store, world)
    session = store.session("t")
    session.restore("main~1")
    with cut_off(store) as run:
        run.call("pay", world.do("paid 2 anew"), args={"n": 2})
    session = store.session("t")
    session.undo()
    assert [call.result for call in session.calls(pending=True)] == ["paid 3"]
    session.undo()
    assert [call.result for call in session.calls(pending=True)] == ["paid 2 anew"]


def test_a_commit_by_somebody_else_parks_what_was_pending(store: backstay.Store, world: World) -> None:
    two_steps(store, world)
    store.session("t").commit({"n": 10})
    assert store.session("t").calls(pending=True) == []
    with store.run("t") as run:
        assert run.state == {"n": 10}
        assert run.call("pay", world.do("paid 11"), args={"n": 3}) == "paid 11"


def let_expire(store: backstay.Store, world: World, lease_s: float = 0.05) -> backstay.Run:
    """A run that is alive and silent for longer than its lease."""
    run = store.run("t", lease_s=lease_s)
    run.__enter__()
    run.call("pay", world.do("before"), args={"n": 0})
    run.step()
    time.sleep(lease_s * 2)
    return run


@pytest.mark.parametrize("how", ["commit", "restore", "undo", "delete", "abandon", "delete the session"])
def test_a_run_over_whose_head_somebody_wrote_does_nothing_more(store: backstay.Store, world: World, how: str) -> None:
    session = store.session("t")
    session.commit({"n": 0})
    if how == "undo":
        session.commit({"n": 1})
        session.restore("main~1")
    run = let_expire(store, world)
    other = store.session("t")
    acts: dict[str, Any] = {
        "commit": lambda: other.commit({"n": 7}),
        "restore": lambda: other.restore("main~1"),
        "undo": other.undo,
        "delete": lambda: other.delete("main"),
        "abandon": lambda: other.abandon(reason="it hangs"),
        "delete the session": lambda: store.delete("t"),
    }
    acts[how]()
    if how == "delete the session":  # and make it anew, with a run on it
        store.session("t").commit({})
        store.run("t").__enter__()
    # It must not do what no later run would know of: the next one would do it again.
    with pytest.raises(FencedError), run:
        run.call("pay", world.do("after"), args={"n": 1})
    assert world.done == ["before"]


def test_a_stalled_run_is_not_taken_for_a_later_one_in_another_session(store: backstay.Store, world: World) -> None:
    run = let_expire(store, world)
    store.delete("t")
    with store.run("u") as other:
        other.state["n"] = 1
        with pytest.raises(FencedError), run:
            run.call("pay", world.do("after"), args={"n": 1})
        assert store.session("u").calls(pending=True) == []
    assert world.done == ["before"]


def test_a_decision_about_a_stalled_run_stops_it(store: backstay.Store, world: World) -> None:
    run = store.run("t", lease_s=0.05)
    run.__enter__()
    call = run.begin("pay", args={})
    assert run._calls is not None
    run._calls._journal.stop((None, "pay", None))  # no heartbeat: the process hangs
    time.sleep(0.15)
    store.session("t").resolve(call.id, result="by hand")
    with pytest.raises(FencedError), run:
        call.finish("late")
    with store.run("t") as again:
        assert again.call("pay", world.do("!"), args={}) == "by hand"


def test_a_run_that_was_taken_over_is_fenced_at_whatever_it_writes_next(store: backstay.Store, world: World) -> None:
    heard: list[str] = []
    store.on("fenced", lambda run: heard.append(run.session.id))
    ways: dict[str, Any] = {
        "tool": lambda run: run.call("pay", world.do("after"), args={"n": 1}),
        "model": lambda run: run.call("ask", world.do("after"), kind="llm"),
        "step": lambda run: run.step(),
        "checkpoint": lambda run: run.checkpoint(),
        "end": lambda _: None,
        "halt": lambda run: run.halt("enough"),
    }
    for way, act in ways.items():
        store.session("t").commit({"way": way})
        old = let_expire(store, world)
        with store.run("t") as new:
            new.state["by"] = "new"
            old.state["by"] = "old"
            with pytest.raises(FencedError), old:
                act(old)
            new.step()
        assert store.session("t").load()["by"] == "new"
        assert [point.state.get("by") for point in store.session("t").log(limit=3)] == ["new", "new", None]
    assert world.done == ["before"] * len(ways)
    assert heard == ["t"] * len(ways)


def test_a_fence_of_an_inner_run_does_not_keep_the_lease_of_the_outer_one(store: backstay.Store, world: World) -> None:
    inner = let_expire(store, world)
    with store.run("t"), pytest.raises(FencedError), store.run("outer"), inner:
        inner.step()
    with store.run("outer") as outer:
        assert outer.resumed
    assert next(iter(store.sessions())).id == "outer"


def test_a_session_that_moved_brings_its_pending_calls_and_has_not_crashed(
    store: backstay.Store, world: World, tmp_path: Any
) -> None:
    two_steps(store, world)
    store.export(tmp_path / "t.backstay", session="t")
    with backstay.open("memory://") as elsewhere:
        elsewhere.import_(tmp_path / "t.backstay")
        assert elsewhere.crashed() == []
        with elsewhere.run("t") as run:
            assert run.call("pay", world.do("!"), args={"n": 3}) == "paid 3"
    assert world.done == ["paid 1", "paid 2", "paid 3"]
