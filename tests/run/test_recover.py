"""Recovering: every crashed session is gone on with, once, and one that cannot be does not stop the others."""

import contextlib
import os
from typing import Any

import pytest

import backstay
from backstay import Status
from backstay.port.lease import here
from backstay.rules import runs
from tests.run.crashes import Cut, World, cut_off, leave_in_doubt


@pytest.fixture
def world() -> World:
    return World()


def crash(store: backstay.Store, id_: str, **options: Any) -> None:
    with cut_off(store, id_, **options) as run:
        run.state["n"] = 1
        run.step()


def test_every_crashed_session_is_gone_on_with_once(store: backstay.Store) -> None:
    for number in range(5):
        crash(store, f"s{number}")
    handled: list[str] = []

    def handler(run: backstay.Run) -> None:
        assert run.resumed
        handled.append(run.session.id)
        run.state["n"] = 2

    report = backstay.recover(store, handler)
    assert sorted(report.completed) == sorted(handled) == [f"s{number}" for number in range(5)]
    assert backstay.recover(store, handler).handled == 0
    assert all(store.session(id_).load() == {"n": 2} for id_ in handled)


def test_one_that_fails_does_not_stop_the_rest(store: backstay.Store, world: World) -> None:
    for id_ in ("a", "b", "c", "d"):
        crash(store, id_)
    leave_in_doubt(store, world, id_="e")

    def handler(run: backstay.Run) -> None:
        if run.session.id == "b":
            message = "no"
            raise OSError(message)
        if run.session.id == "c":
            run.halt("not today")
        if run.session.id == "e":
            run.call("pay", world.do("twice"), args={})

    report = backstay.recover(store, handler)
    assert sorted(report.completed) == ["a", "d"]
    assert report.failed == {"b": "OSError: no"}
    assert report.halted == {"c": "not today"}
    assert list(report.in_doubt) == ["e"]
    assert {info.id: info.status for info in store.sessions()} == {
        "a": Status.COMPLETED,
        "b": Status.FAILED,
        "c": Status.HALTED,
        "d": Status.COMPLETED,
        "e": Status.IN_PROGRESS,
    }
    assert [info.id for info in store.crashed()] == ["e"]
    assert world.done == ["pay"]


def test_an_interruption_of_the_recovery_ends_it_and_loses_nothing(store: backstay.Store) -> None:
    for id_ in ("a", "b"):
        crash(store, id_)

    def handler(_: backstay.Run) -> None:
        raise Cut

    with pytest.raises(Cut):
        backstay.recover(store, handler)
    assert len(store.crashed()) == 2


def test_only_the_sessions_of_an_agent_are_recovered_if_one_is_named(store: backstay.Store) -> None:
    crash(store, "a", agent="support")
    crash(store, "b", agent="sales")
    report = backstay.recover(store, lambda _: None, agent="sales")
    assert report.completed == ("b",)
    assert [info.id for info in store.crashed()] == ["a"]


def die(store: backstay.Store, id_: str) -> None:
    """What a kill leaves: a run that was entered, and a lease that expires."""
    import time

    intent = runs.Enter(id_, "main", os.urandom(16), os.urandom(8), here(), None, 1000, 0, None)
    store.backend.write(intent.ask, runs.enter(intent))
    time.sleep(0.003)


def test_a_session_that_crashes_again_and_again_at_one_spot_is_halted(store: backstay.Store) -> None:
    heard: list[str] = []
    store.on("crash_loop", lambda run: heard.append(run.session.id))
    store.session("t").commit({"n": 1})
    crash(store, "fine")
    for _ in range(5):
        die(store, "t")
    report = backstay.recover(store, lambda _: None)
    assert list(report.halted) == ["t"]
    assert report.completed == ("fine",)
    assert heard == ["t"]
    info = next(info for info in store.sessions() if info.id == "t")
    assert (info.status, info.reason, info.crashed) == (Status.HALTED, "crash loop", False)
    with store.run("t") as run:  # whoever has looked at it can start it again
        assert run.state == {"n": 1}


def test_four_crashes_at_one_spot_and_crashes_at_many_are_no_crash_loop(store: backstay.Store) -> None:
    store.session("t").commit({"n": 1})
    for _ in range(4):
        die(store, "t")
    for number in range(9):
        die(store, "moving")
        with cut_off(store, "moving") as run:
            run.state["n"] = number
            run.step()
    report = backstay.recover(store, lambda _: None)
    assert sorted(report.completed) == ["moving", "t"]


def test_a_session_that_was_only_committed_or_imported_has_not_crashed(store: backstay.Store, tmp_path: Any) -> None:
    store.session("committed").commit({"n": 1})
    crash(store, "crashed")
    store.export(tmp_path / "x.backstay", session="crashed")
    store.delete("crashed")
    store.import_(tmp_path / "x.backstay")
    assert store.crashed() == []
    assert [info.crashed for info in store.sessions()] == [False, False]


def test_a_session_being_run_has_not_crashed(store: backstay.Store) -> None:
    with store.run("t"):
        assert store.crashed() == []
        assert backstay.recover(store, lambda _: 1 / 0).handled == 0
    assert store.crashed() == []


def test_each_crashed_branch_is_gone_on_with(store: backstay.Store) -> None:
    crash(store, "t")
    store.session("t").fork("main", "what-if")
    crash(store, "t", branch="what-if")
    assert [info.id for info in store.crashed()] == ["t"]
    seen: list[str] = []
    backstay.recover(store, lambda run: seen.append(run.branch))
    assert sorted(seen) == ["main", "what-if"]


def test_the_options_of_a_run_can_be_given(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world)
    report = backstay.recover(
        store, lambda run: run.call("pay", world.do("again"), args={}), on_doubt="skip", lease_s=5.0
    )
    assert report.completed == ("t",)
    assert world.done == ["pay"]


def test_a_damaged_session_does_not_stop_the_rest(store: backstay.Store) -> None:
    if store.backend.name != "sqlite":
        pytest.skip("the damage is done to a file")
    for id_ in ("a", "b", "c"):
        crash(store, id_)
    import apsw

    connection = apsw.Connection(store.backend.path.as_posix())  # type: ignore[attr-defined]
    with contextlib.closing(connection):
        (sid,) = connection.execute("SELECT sid FROM rows WHERE kind = 0 AND name = 'b'").fetchall()[0]
        connection.execute("UPDATE keyframes SET body = x'00' WHERE key >> 32 = ?", (sid,))
    report = backstay.recover(store, lambda _: None)
    assert sorted(report.completed) == ["a", "c"]
    assert list(report.failed) == ["b"]


def test_who_waits_takes_up_what_crashes_meanwhile_and_nothing_twice(store: backstay.Store, world: World) -> None:
    crash(store, "before")
    leave_in_doubt(store, world, id_="doubtful")
    handled: list[str] = []

    def handler(run: backstay.Run) -> None:
        handled.append(run.session.id)
        if run.session.id == "before":
            crash(store, "meanwhile")
        if run.session.id == "doubtful":
            run.call("pay", world.do("twice"), args={})

    report = backstay.recover(store, handler, wait_s=1.2)
    assert sorted(handled) == ["before", "doubtful", "meanwhile"]
    assert sorted(report.completed) == ["before", "meanwhile"]
    assert list(report.in_doubt) == ["doubtful"]
