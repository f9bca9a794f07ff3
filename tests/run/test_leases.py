"""Leases: one run at a time, kept while a call takes long, lost by who hangs."""

import os
import threading
import time
from collections.abc import Callable
from typing import Literal

import pytest

import backstay
from backstay import FencedError, LeaseHeldError
from tests.run.crashes import World

LEASE_S = 0.5


@pytest.fixture
def world() -> World:
    return World()


def held_for(store: backstay.Store, seconds: float) -> bool:
    """True if the lease is held the whole time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with store.run("t"):
                return False
        except LeaseHeldError:
            time.sleep(0.01)
    return True


@pytest.mark.parametrize(
    ("store", "kind"),
    [("memory", "llm"), *[(kind, "tool") for kind in ("memory", "sqlite", "files")]],
    indirect=["store"],
)
def test_a_call_longer_than_the_lease_keeps_it(store: backstay.Store, kind: Literal["tool", "llm"]) -> None:
    with store.run("t", lease_s=LEASE_S) as run:
        assert run.call("slow", lambda: held_for(store, LEASE_S * 2), kind=kind)
        run.state["n"] = 1
        assert run.step() is not None


@pytest.mark.parametrize("store", ["memory"], indirect=True)
def test_a_loop_driven_by_someone_else_keeps_it_too(store: backstay.Store) -> None:
    with store.run("t", lease_s=LEASE_S) as run, run.calling("slow") as call:
        call.finish(held_for(store, LEASE_S * 2))
    assert call.result is True


def test_a_loop_that_hangs_between_two_calls_loses_it_and_does_nothing_more(
    store: backstay.Store, world: World
) -> None:
    run = store.run("t", lease_s=LEASE_S)
    run.__enter__()
    run.call("first", world.do("first"))
    run.step()
    time.sleep(LEASE_S * 1.5)
    with store.run("t") as other:
        assert other.call("second", world.do("second")) == "second"
        with pytest.raises(FencedError), run:
            run.call("third", world.do("third"))
    assert world.done == ["first", "second"]


def test_a_loop_that_hangs_and_was_not_missed_goes_on(store: backstay.Store, world: World) -> None:
    with store.run("t", lease_s=0.05) as run:
        time.sleep(0.15)
        assert run.call("first", world.do("first")) == "first"
        run.step()
    assert store.session("t").checkpoint().status is backstay.Status.COMPLETED


def test_many_threads_that_make_calls_do_not_stop_the_heartbeat(store: backstay.Store) -> None:
    stop = threading.Event()

    def busy(run: backstay.Run, me: int) -> None:
        while not stop.is_set():
            run.call("quick", lambda: None, key=str(me), args={})

    with store.run("slow", lease_s=LEASE_S) as slow, store.run("busy", lease_s=LEASE_S) as run:
        threads = [threading.Thread(target=busy, args=(run, me)) for me in range(6)]
        for thread in threads:
            thread.start()

        def wait() -> bool:
            with pytest.raises(LeaseHeldError), store.run("slow"):
                pass
            time.sleep(LEASE_S * 2)
            with pytest.raises(LeaseHeldError), store.run("slow"):
                pass
            return True

        assert slow.call("wait", wait)
        stop.set()
        for thread in threads:
            thread.join()


def test_what_a_listener_does_at_a_boundary_is_not_part_of_it(store: backstay.Store, world: World) -> None:
    acts: list[Callable[[], object]] = []
    refused: list[BaseException] = []

    def listen(_: object) -> None:
        for act in acts:
            try:
                act()
            except backstay.InvalidInputError as error:
                refused.append(error)

    store.on("checkpoint", listen)
    with store.run("t") as run:
        acts.append(lambda: run.call("pay", world.do("paid"), args={}))
        acts.append(run.step)
        run.step()
        acts.clear()
        run.call("pay", world.do("paid"), args={})
    assert len(refused) == 2
    assert world.done == ["paid"]
    assert [call.name for call in store.session("t").calls()] == ["pay"]


def test_a_forked_child_neither_makes_calls_nor_gives_its_parents_lease_away(
    store: backstay.Store, world: World
) -> None:
    if store.backend.name == "memory":
        pytest.skip("a child has a copy of memory, and nothing it does can be seen")
    with store.run("t") as run:
        run.state["n"] = 1
        run.step()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with run:
                    run.call("pay", lambda: os._exit(2), args={})
            except backstay.ClosedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert run.call("pay", world.do("paid"), args={}) == "paid"
    assert store.session("t").checkpoint().status is backstay.Status.COMPLETED
