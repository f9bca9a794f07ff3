"""Stop: a live run ends at its next call or boundary, any other at once; nothing that was done is forgotten."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import BackstayError, LeaseHeldError, NotFoundError, Run, RunCancelled, Status, aio
from tests.run.conftest import url_of
from tests.run.crashes import World, leave_in_doubt


@pytest.fixture
def world() -> World:
    return World()


def info(store: backstay.Store, id_: str = "t") -> backstay.SessionInfo:
    return next(line for line in store.sessions() if line.id == id_)


def stop(store: backstay.Store, reason: str = "the user's Stop") -> Any:
    """A tool in whose time the run is stopped from elsewhere."""

    def doing() -> str:
        assert store.session("t").cancel(reason=reason)
        return "done all the same"

    return doing


@pytest.mark.parametrize("kind", ["tool", "llm"])
@pytest.mark.parametrize("then", ["call", "step", "checkpoint", "end"])
def test_a_live_run_stops_at_its_next_call_or_boundary_and_its_outcome_is_kept(
    store: backstay.Store, world: World, kind: Any, then: str
) -> None:
    assert not issubclass(RunCancelled, Exception)
    with store.run("t", input="go") as run:
        run.state["n"] = 1
        run.step()
        run.state["n"] = run.call("slow", stop(store), kind=kind, args={})
        if then == "call":
            run.call("pay", world.do("paid"), args={})
        elif then == "step":
            run.step()
        elif then == "checkpoint":
            run.checkpoint()
        else:
            world.do("came to the end")()
    assert world.done == (["came to the end"] if then == "end" else [])
    assert (info(store).status, info(store).reason) == (Status.CANCELLED, "the user's Stop")
    assert run.end is not None
    assert run.end.status == "cancelled"
    assert store.crashed() == []
    recorded = then != "call"
    assert store.session("t").load() == {"n": "done all the same" if recorded else 1}
    with store.run("t", input="next") as run:
        assert (run.resumed, run.input) == (False, "next")
    assert store.verify().ok


def test_a_boundary_that_the_strategy_would_pass_over_is_recorded_when_the_run_is_stopped_there(
    store: backstay.Store,
) -> None:
    with store.run("t", strategy=backstay.Never()) as run:
        run.state["n"] = run.call("slow", stop(store), args={})
        run.step()
    assert store.session("t").load() == {"n": "done all the same"}
    assert info(store).status is Status.CANCELLED


def test_a_run_stopped_between_two_calls_is_not_completed_by_its_end(store: backstay.Store) -> None:
    with store.run("t") as run:
        run.state["n"] = 1
        store.session("t").cancel(reason="enough")
    assert info(store).status is Status.CANCELLED
    assert store.session("t").load() == {"n": 1}
    with store.run("t") as run:  # one that changes nothing
        store.session("t").cancel(reason="again")
    assert (info(store).status, info(store).reason) == (Status.CANCELLED, "again")


def test_an_error_in_a_stopped_run_is_raised_and_the_run_is_cancelled(store: backstay.Store) -> None:
    def fails(_: Run) -> None:
        store.session("t").cancel(reason="enough")
        message = "no network"
        raise OSError(message)

    with pytest.raises(OSError, match="no network"), store.run("t", input="go") as run:
        fails(run)
    assert info(store).status is Status.CANCELLED


@pytest.mark.parametrize("how", ["crashed", "halted", "paused"])
def test_what_is_not_alive_ends_at_once(store: backstay.Store, world: World, how: str) -> None:
    if how == "crashed":
        leave_in_doubt(store, world)
    else:
        with store.run("t", input="go") as run:
            run.call("pay", world.do("pay"), args={})
            run.halt("enough") if how == "halted" else run.pause()
    assert store.session("t").cancel(reason="the user's Stop")
    assert (info(store).status, info(store).reason, store.crashed()) == (Status.CANCELLED, "the user's Stop", [])
    assert store.session("t").calls(pending=True) == []
    with store.run("t", input="next") as run:
        assert (run.resumed, run.in_doubt, run.input) == (False, [], "next")
        run.state["n"] = 1
    (call,) = store.session("t").calls()
    unknown = "abandoned: outcome unknown: the user's Stop"
    assert (call.status, call.error) == ("abandoned", unknown if how == "crashed" else "abandoned: the user's Stop")


def test_recover_leaves_what_is_cancelled_alone(store: backstay.Store, world: World) -> None:
    leave_in_doubt(store, world)
    store.session("t").cancel(reason="enough")
    assert backstay.recover(store, lambda run: run.halt("never")).handled == 0


def test_where_nothing_runs_nothing_is_stopped(store: backstay.Store) -> None:
    with pytest.raises(NotFoundError, match="no session"):
        store.session("t").cancel(reason="enough")
    with store.run("t") as run:
        run.state["n"] = 1
    assert store.session("t").cancel(reason="enough") is False
    assert info(store).status is Status.COMPLETED


def test_a_run_may_cancel_itself(store: backstay.Store, world: World) -> None:
    with store.run("t", input="go") as run:
        run.call("pay", world.do("paid"), args={})
        run.cancel("no longer wanted")
    assert (info(store).status, info(store).reason) == (Status.CANCELLED, "no longer wanted")
    with store.run("t", input="next") as run:
        assert not run.resumed


def test_the_heartbeat_of_a_long_call_hears_of_a_stop(store: backstay.Store) -> None:
    heard: list[str | None] = []
    with store.run("t", lease_s=0.3) as run:

        def slow() -> None:
            store.session("t").cancel(reason="enough")
            for _ in range(200):
                if run.stopping:
                    break
                threading.Event().wait(0.05)
            heard.append(run.stopping)

        run.call("model", slow, kind="llm", args={})
        run.call("never", lambda: heard.append("made"), args={})
    assert heard == ["enough"]


def test_a_run_that_dies_before_it_hears_of_its_stop_is_not_listed_and_not_resumed(store: backstay.Store) -> None:
    hung = store.run("t", input="go", lease_s=0.05)
    hung.enter()  # and it is never heard of again
    store.session("t").cancel(reason="enough")
    run = store.run("t", input="next")
    for _ in range(100):
        try:
            run.enter()
            break
        except LeaseHeldError:
            threading.Event().wait(0.05)
            run = store.run("t", input="next")
            assert store.crashed() == []
    with run:
        assert (run.resumed, run.input) == (False, "next")


def test_a_run_that_died_before_it_heard_of_its_stop_is_cancelled_by_the_next_recovery(store: backstay.Store) -> None:
    store.run("t", input="go", lease_s=0.05).enter()  # and it is never heard of again
    store.session("t").cancel(reason="enough")
    while info(store).status is not Status.CANCELLED:
        assert backstay.recover(store, lambda _: pytest.fail("it was stopped"), wait_s=0.05).handled == 0
    assert info(store).reason == "enough"


def halts_in_a_group(run: Run, *others: Exception) -> None:
    try:
        run.halt("enough")
    except backstay.RunEnded as end:
        message = "tasks"
        raise BaseExceptionGroup(message, [BaseExceptionGroup(message, [end]), *others]) from None


def test_an_end_that_comes_in_a_group_is_recognised(store: backstay.Store) -> None:
    with store.run("t") as run:
        halts_in_a_group(run)
    assert (info(store).status, info(store).reason) == (Status.HALTED, "enough")
    with pytest.raises(BaseExceptionGroup), store.run("t") as run:
        halts_in_a_group(run, OSError("no network"))
    assert info(store).status is Status.FAILED


# asyncio


async def stopped_task(folder: Path) -> tuple[bool, backstay.SessionInfo, list[Any]]:
    async with aio.open(url_of("sqlite", folder)) as store:
        begun = asyncio.Event()

        async def slow() -> None:
            begun.set()
            await asyncio.sleep(60)

        async def work() -> None:
            async with store.run("t", input="go") as run:
                try:
                    await run.call("slow", slow, args={})
                except asyncio.CancelledError:
                    run.cancel("stopped by the user")

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (line,) = [line async for line in store.sessions()]
        return task.cancelled(), line, await store.session("t").calls(pending=True)


def test_a_users_stop_in_asyncio_does_not_swallow_the_cancellation(tmp_path: Path) -> None:
    cancelled, line, pending = asyncio.run(stopped_task(tmp_path))
    assert (cancelled, line.status, line.reason, pending) == (True, Status.CANCELLED, "stopped by the user", [])


async def stopped_group(folder: Path) -> backstay.SessionInfo:
    async with aio.open(url_of("sqlite", folder)) as store:

        async def stop_it() -> None:
            await store.session("t").cancel(reason="enough")

        async def two(run: aio.AsyncRun) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.call("a", stop_it, key="a", args={}))
            async with asyncio.TaskGroup() as group:
                group.create_task(run.call("b", stop_it, key="b", args={}))

        async with store.run("t") as run:
            await two(run)
        (line,) = [line async for line in store.sessions()]
        return line


def test_a_stop_inside_a_task_group_ends_the_run_and_nothing_else(tmp_path: Path) -> None:
    assert asyncio.run(stopped_group(tmp_path)).status is Status.CANCELLED


def test_the_calls_of_a_cancelled_run_raise(store: backstay.Store) -> None:
    with store.run("t") as run:
        store.session("t").cancel(reason="enough")
        for _ in range(2):
            with pytest.raises((RunCancelled, BackstayError)):
                run.step()
    assert info(store).status is Status.CANCELLED
