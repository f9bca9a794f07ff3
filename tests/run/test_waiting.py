"""Waiting for people: the run is left, its process may end, an answer comes from anywhere, and it goes on with it."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import CallFailedError, ConflictError, InvalidInputError, MismatchError, NotFoundError, Status, aio
from tests.run.conftest import url_of
from tests.run.crashes import Cut, World, cut_off


@pytest.fixture
def world() -> World:
    return World()


def info(store: backstay.Store, id_: str = "t") -> backstay.SessionInfo:
    return next(line for line in store.sessions() if line.id == id_)


def support(store: backstay.Store, world: World, **args: Any) -> backstay.Run:
    """An agent that asks a model, has its refund approved, and is done."""
    with store.run("t", agent="support", input="refund order 7") as run:
        run.call("model", world.do("asked"), kind="llm", args={})
        run.state["out"] = run.call("refund", lambda given: world.do(given)(), args=args or {"order": 7}, approve=True)
    return run


def note(events: list[tuple[str, Any]], event: str, value: Any) -> None:
    events.append((event, value.name))


def test_a_run_that_waits_is_left_and_goes_on_with_the_answer_once(store: backstay.Store, world: World) -> None:
    events: list[tuple[str, Any]] = []
    for event in ("waiting", "answered"):
        store.on(event, functools.partial(note, events, event))
    run = support(store, world)
    assert run.end is not None
    assert (run.end.status, run.end.reason) == ("waiting", "for approval of 'refund'")
    assert (info(store).status, info(store).reason, info(store).crashed) == (Status.WAITING, run.end.reason, False)
    assert store.crashed() == []
    (wait,) = store.waiting()
    assert (wait.session_id, wait.name, wait.what, wait.args) == ("t", "refund", "approval", {"order": 7})
    assert store.waiting(agent="support") == store.session("t").waiting() == [wait]
    assert store.waiting(agent="other") == []
    support(store, world)  # started again before the answer it simply waits again
    assert store.waiting() == [wait]
    store.session("t").answer("refund", True, by="ana")
    assert store.waiting() == []
    assert support(store, world).end is None
    assert world.done == ["asked", {"order": 7}]
    assert info(store).status is Status.COMPLETED
    assert events == [("waiting", "refund"), ("waiting", "refund"), ("answered", "refund")]
    wait_call, call = store.session("t").calls()[1:]
    assert (wait_call.kind, wait_call.status, wait_call.by, call.kind, call.status) == (
        "wait",
        "done",
        "ana",
        "tool",
        "done",
    )
    assert store.verify().ok


@pytest.mark.parametrize("value", [False, None, {"a": [1, 2.5, "x"]}, "a text"])
def test_any_value_can_be_the_answer(store: backstay.Store, value: Any) -> None:
    got: list[Any] = []

    def ask() -> None:
        with store.run("t") as run:
            got.append(run.wait("feedback", ask={"question": "how was it?"}))
            run.state["n"] = 1

    ask()
    store.session("t").answer("feedback", value)
    ask()
    assert got == [value]
    assert store.session("t").calls()[0].args == {"question": "how was it?"}


def test_an_approval_with_other_args_makes_the_call_with_those(store: backstay.Store, world: World) -> None:
    support(store, world)
    store.session("t").answer("refund", True, by="ana", args={"order": 8})
    support(store, world)
    assert world.done == ["asked", {"order": 8}]
    wait, call = store.session("t").calls()[1:]
    assert (wait.args, wait.edited, call.args) == ({"order": 7}, {"order": 8}, {"order": 8})


def test_an_edited_approval_of_a_function_that_takes_no_args_is_refused_and_nothing_is_made(
    store: backstay.Store, world: World
) -> None:
    def ask() -> None:
        with store.run("t") as run:
            run.call("refund", world.do("refund"), args={"order": 7}, approve=True)

    ask()
    store.session("t").answer("refund", True, args={"order": 8})
    with pytest.raises(InvalidInputError, match="takes none"):
        ask()
    assert world.done == []


def test_a_rejection_reaches_the_loop_as_a_recorded_failure(store: backstay.Store, world: World) -> None:
    def ask(**options: Any) -> CallFailedError:
        with pytest.raises(CallFailedError) as failed, store.run("t", **options) as run:
            run.call("refund", world.do("refund"), args={"order": 7}, approve=True)
        return failed.value

    with store.run("t") as run:
        run.call("refund", world.do("refund"), args={"order": 7}, approve=True)
    store.session("t").reject("refund", "not without a receipt", by="ana")
    for options in ({}, {"on_failed": "retry"}):  # it is not asked for again
        error = ask(**options)
        assert (error.type, error.text) == ("rejected", "not without a receipt")
    assert (world.done, store.waiting()) == ([], [])


def test_an_approval_answered_by_false_is_a_rejection(store: backstay.Store, world: World) -> None:
    support(store, world)
    with pytest.raises(InvalidInputError, match="True or False"):
        store.session("t").answer("refund", "yes")
    store.session("t").answer("refund", False)
    with pytest.raises(CallFailedError, match="not approved"):
        support(store, world)
    assert world.done == ["asked"]


def test_an_approval_of_other_args_than_the_code_now_asks_for_is_refused(store: backstay.Store, world: World) -> None:
    support(store, world, order=7)
    with pytest.raises(MismatchError, match=r"'order': 7.*'order': 8"):
        support(store, world, order=8)
    store.session("t").answer("refund", True)
    with pytest.raises(MismatchError, match=r"'order': 7.*'order': 8"):
        support(store, world, order=8)
    assert world.done == ["asked"]


def test_the_first_answer_counts_and_the_others_are_told(store: backstay.Store, world: World) -> None:
    support(store, world)
    session = store.session("t")
    (wait,) = session.waiting()
    assert wait.id is not None
    session.answer(wait.id, True, by="ana")
    session.answer("refund", True, by="ana")  # the same again: its sender may not know what became of the first
    with pytest.raises(ConflictError, match="answered True by 'ana'"):
        session.answer("refund", True, by="bob")
    with pytest.raises(ConflictError, match="answered True by 'ana'"):
        session.reject("refund", "no", by="bob")
    support(store, world)
    for name in ("refund", wait.id):
        with pytest.raises(ConflictError, match="answered True by 'ana'"):
            session.answer(name, True, by="bob")
    with pytest.raises(NotFoundError, match="no wait 'other'"):
        session.answer("other", True)
    assert world.done == ["asked", {"order": 7}]


def test_two_waits_of_one_name_are_answered_by_their_ids(tmp_path: Path) -> None:
    async def ask(store: aio.AsyncStore) -> list[Any]:
        async with store.run("t") as run, asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.wait("ok", key=key)) for key in "ab"]
        return [] if run.state else [task.result() for task in tasks if not task.cancelled() and not task.exception()]

    async def job(store: aio.AsyncStore) -> Any:
        session = store.session("t")
        while len(await session.waiting()) < 2:  # the first may leave before the second has begun
            await ask(store)
        waits = await session.waiting()
        with pytest.raises(InvalidInputError, match=r"2 waits named 'ok'.*by the id"):
            await session.answer("ok", True)
        for wait in waits:
            assert wait.id is not None
            await session.answer(wait.id, wait.key)
        return await ask(store)

    assert in_loop(job, tmp_path) == ["a", "b"]


def test_a_wait_ends_by_itself(store: backstay.Store) -> None:
    got: list[Any] = []

    def ask(**options: Any) -> None:
        with store.run("t") as run:
            got.append(run.wait("ok", timeout_s=0.0, **options))

    ask(default="nothing said")
    with pytest.raises(CallFailedError) as failed:
        ask()
    assert (got, failed.value.type) == (["nothing said"], "timed_out")
    with pytest.raises(CallFailedError, match="timed_out"):  # a recorded outcome
        ask(default="too late")


def test_an_answer_within_the_time_held_keeps_the_run_alive(store: backstay.Store) -> None:
    def answer() -> None:
        while not store.session("t").waiting():
            threading.Event().wait(0.01)
        store.session("t").answer("ok", "yes")

    other = threading.Thread(target=answer)
    other.start()
    with store.run("t") as run:
        assert run.wait("ok", hold_s=30.0) == "yes"
    other.join()
    assert run.end is None


def test_a_wait_inside_a_tool_is_refused(store: backstay.Store) -> None:
    with store.run("t") as run:
        with pytest.raises(CallFailedError, match="ask before the call"):
            run.call("tool", lambda: run.wait("ok"), args={})
        run.state["n"] = 1
    assert store.waiting() == []


def test_a_waiting_session_is_never_halted_as_a_crash_loop(store: backstay.Store, world: World) -> None:
    for _ in range(8):
        support(store, world)
        assert backstay.recover(store, lambda _: pytest.fail("nothing is ready")).handled == 0
    with cut_off(store):  # and one that is killed while it would wait has crashed once
        pass
    (line,) = store.crashed()
    report = backstay.recover(store, lambda run: again(run, world))
    assert report.waiting == {line.id: "for approval of 'refund'"}
    assert world.done == ["asked"]


def again(run: backstay.Run, world: World) -> None:
    run.call("model", world.do("asked"), kind="llm", args={})
    run.call("refund", lambda given: world.do(given)(), args={"order": 7}, approve=True)


# recover


def test_recover_takes_what_is_answered_and_leaves_the_rest(store: backstay.Store) -> None:
    for number in range(5):
        with store.run(f"s{number}") as run:
            run.wait("ok")
    store.session("s1").answer("ok", "one")
    store.session("s3").reject("ok", "no")
    got: dict[str, Any] = {}

    def handler(run: backstay.Run) -> None:
        try:
            got[run.session.id] = run.wait("ok")
        except CallFailedError as error:
            got[run.session.id] = error.text

    report = backstay.recover(store, handler)
    assert got == {"s1": "one", "s3": "no"}
    assert sorted(report.completed) == ["s1", "s3"]
    assert backstay.recover(store, handler).handled == 0


def test_a_worker_wakes_a_session_that_waits_again_and_again(store: backstay.Store) -> None:
    got: list[Any] = []

    def work(run: backstay.Run) -> None:
        if run.session.id == "stop":
            run.wait("now")
            raise Cut
        for number in range(len(run.state.setdefault("got", [])), 3):
            run.state["got"].append(run.wait("ok", ask={"number": number}))
            got.append(run.state["got"][-1])
            run.step()

    def recover() -> None:
        with contextlib.suppress(Cut):
            backstay.recover(store, work, wait_s=60.0)

    for id_ in ("t", "stop"):
        with store.run(id_) as run:
            work(run)
    worker = threading.Thread(target=recover)
    worker.start()
    for number in range(3):
        while not [wait for wait in store.session("t").waiting() if wait.args == {"number": number}]:
            threading.Event().wait(0.01)
        store.session("t").answer("ok", number)
    while info(store).status is not Status.COMPLETED:
        threading.Event().wait(0.01)
    assert got == [0, 1, 2]
    store.session("stop").answer("now", True)
    worker.join()


# time


def test_a_worker_that_waits_wakes_a_sleeper_when_it_is_due_and_not_before(store: backstay.Store) -> None:
    began = datetime.now(UTC)

    def work(run: backstay.Run) -> None:
        run.sleep(0.5)
        assert datetime.now(UTC) - began >= timedelta(seconds=0.5)
        raise Cut

    with store.run("t") as run:
        work(run)
    assert (info(store).status, store.waiting()[0].what) == (Status.WAITING, "time")
    with pytest.raises(Cut):
        backstay.recover(store, work, wait_s=60.0)


def test_a_moment_that_has_passed_is_not_waited_for(store: backstay.Store) -> None:
    with store.run("t") as run:
        run.sleep(until=datetime.now(UTC) - timedelta(days=1))
        run.sleep(0)
        run.state["n"] = 1
    assert info(store).status is Status.COMPLETED
    for wrong in ({}, {"seconds": 1, "until": datetime.now(UTC)}, {"until": datetime(2026, 1, 1)}, {"seconds": -1}):
        with pytest.raises(InvalidInputError), store.run("u") as run:
            run.sleep(**wrong)


@pytest.mark.parametrize("jump_h", [1, -1])
def test_a_clock_that_jumps_wakes_a_sleeper_early_by_no_more_than_the_jump(
    store: backstay.Store, monkeypatch: pytest.MonkeyPatch, jump_h: int
) -> None:
    import time

    true_ns = time.time_ns
    with store.run("t") as run:
        run.sleep(1800)
    monkeypatch.setattr("time.time_ns", lambda: true_ns() + jump_h * 3600 * 10**9)
    woken = backstay.recover(store, lambda run: run.sleep(1800)).handled
    assert woken == (1 if jump_h > 0 else 0)
    monkeypatch.setattr("time.time_ns", lambda: true_ns() + 1801 * 10**9)
    backstay.recover(store, lambda run: run.sleep(1800))
    assert info(store).status is Status.COMPLETED


# what else happens to a branch that waits


def test_a_cancelled_wait_is_over(store: backstay.Store, world: World) -> None:
    support(store, world)
    (wait,) = store.waiting()
    store.session("t").cancel(reason="enough")
    assert (info(store).status, store.waiting()) == (Status.CANCELLED, [])
    assert wait.id is not None
    with pytest.raises(ConflictError, match="was cancelled"):
        store.session("t").answer(wait.id, True)
    with store.run("t", input="next") as run:
        assert not run.resumed
        run.state["n"] = 1
    assert [call.status for call in store.session("t").calls()] == ["abandoned", "cancelled"]


def test_a_new_input_while_it_waits_is_never_ignored(store: backstay.Store, world: World) -> None:
    support(store, world)
    with pytest.raises(ConflictError, match="restart=True"), store.run("t", input="refund order 8"):
        pass
    with store.run("t", input="refund order 8", restart=True) as run:
        assert (run.resumed, run.input) == (False, "refund order 8")


def test_an_undo_of_a_restore_waits_again(store: backstay.Store) -> None:
    session = store.session("t")
    session.commit({"n": 1})
    session.commit({"n": 2})

    def work() -> None:
        with session.run() as run:
            run.state["got"] = run.wait("ok")

    work()
    session.restore("main~1")
    assert (store.waiting(), session.waiting()) == ([], [])
    session.undo()
    assert info(store).status is Status.WAITING
    session.answer("ok", "yes")
    assert backstay.recover(store, lambda run: run.state.update(got=run.wait("ok"))).completed == ("t",)
    assert session.load() == {"n": 2, "got": "yes"}


def test_a_fork_of_a_branch_that_waits_asks_for_itself(store: backstay.Store) -> None:
    session = store.session("t")
    session.commit({"n": 1})
    with session.run() as run:
        run.wait("ok")
    session.fork("main", "other")
    session.answer("ok", "yes")
    with session.run(branch="other") as run:
        run.wait("ok")
    assert [wait.branch for wait in store.waiting()] == ["other"]
    session.answer("ok", "for the other", branch="other")
    with session.run(branch="other") as run:
        assert run.wait("ok") == "for the other"
        run.state["n"] = 2


def test_a_session_that_waits_travels(store: backstay.Store, world: World, tmp_path: Path) -> None:
    support(store, world)
    store.session("t").send("inbox", "hello")
    store.export(tmp_path / "out.backstay")
    with backstay.open("memory://") as other:
        other.import_(tmp_path / "out.backstay")
        assert [wait.name for wait in other.waiting()] == ["refund"]
        other.session("t").answer("refund", True)
        support(other, world)
        with other.run("t") as run:
            assert run.receive("inbox") == "hello"
            run.state["n"] = 1
        assert other.verify().ok
    assert world.done == ["asked", {"order": 7}]


def test_a_call_in_flight_beside_a_wait_comes_to_its_end_first(store: backstay.Store) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> str:
        begun.set()
        go_on.wait(20)
        return "slow is done"

    with store.run("t") as run:
        other = threading.Thread(target=lambda: done.append(run.call("slow", slow, args={})))
        other.start()
        begun.wait(20)
        threading.Timer(0.2, go_on.set).start()
        try:
            run.wait("ok")
        finally:
            other.join()
    assert done == ["slow is done"]
    assert [call.status for call in store.session("t").calls(pending=True)] == ["done", "waiting"]


# asyncio


def in_loop(job: Callable[[aio.AsyncStore], Any], folder: Path, kind: str = "sqlite") -> Any:
    async def main() -> Any:
        async with aio.open(url_of(kind, folder)) as store:
            return await job(store)

    return asyncio.run(main())


def test_the_same_awaited(tmp_path: Path) -> None:
    done: list[Any] = []

    async def work(store: aio.AsyncStore) -> None:
        async with store.run("t") as run:

            async def refund(args: Any) -> str:
                done.append(args)
                return "ok"

            run.state["out"] = await run.call("refund", refund, args={"order": 7}, approve=True)
            run.state["said"] = await run.wait("feedback", ask="how was it?")
            await run.sleep(0.0)
            run.state["got"] = await run.receive("inbox")

    async def all_of_it(store: aio.AsyncStore) -> Any:
        session = store.session("t")
        await work(store)
        assert [wait.name for wait in await store.waiting()] == ["refund"]
        await session.answer("refund", True, by="ana", args={"order": 8})
        await work(store)
        assert [wait.name for wait in await session.waiting()] == ["feedback"]
        await session.answer("feedback", "fine")
        await work(store)
        await session.send("inbox", 1)
        await work(store)
        return await session.load()

    assert in_loop(all_of_it, tmp_path) == {"out": "ok", "said": "fine", "got": 1}
    assert done == [{"order": 8}]


def test_a_wait_in_a_task_group_puts_no_sibling_in_doubt(tmp_path: Path) -> None:
    done: list[str] = []

    async def slow(name: str) -> str:
        await asyncio.sleep(0.2)
        done.append(name)
        return name

    async def work(store: aio.AsyncStore) -> None:
        async with store.run("t") as run:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.call("slow", lambda: slow("a"), key="a", args={}))
                group.create_task(run.call("slow", lambda: slow("b"), key="b", args={}))
                group.create_task(run.wait("ok"))
            run.state["n"] = 1

    async def all_of_it(store: aio.AsyncStore) -> list[str]:
        await work(store)
        assert [call.status for call in await store.session("t").calls(pending=True)] != []
        assert "in_doubt" not in [call.status for call in await store.session("t").calls(pending=True)]
        assert [line.status async for line in store.sessions()] == [Status.WAITING]
        await store.session("t").answer("ok", True)
        await work(store)
        return [str(line.status) async for line in store.sessions()]

    assert in_loop(all_of_it, tmp_path) == ["completed"]
    assert sorted(done) == ["a", "b"]
