"""`backstay.aio` as a program with an event loop meets it: nothing is lost, nothing interleaves, the loop goes on."""

import asyncio
import contextvars
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import backstay
from backstay import aio

HAS_MEMORY = importlib.util.find_spec("backstay.backends.memory") is not None
BACKENDS = ["sqlite", *(["memory"] if HAS_MEMORY else [])]


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@contextmanager
def writers_shut_out(file: Path, seconds: float | None = None) -> Iterator[threading.Event]:
    """Nobody can commit until the event is set, or the seconds have passed: a commit as long as one likes."""
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        connection = apsw.Connection(str(file))
        connection.execute("BEGIN IMMEDIATE")
        held.set()
        free.wait(seconds if seconds is not None else 30)
        connection.execute("ROLLBACK")
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(10)
    try:
        yield free
    finally:
        free.set()
        holder.join()


def state(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"question {n}"} for n in range(number)]}


def test_an_agent_can_do_everything_awaited(url: str) -> None:
    async def story() -> None:
        async with aio.open(url) as store:
            session = store.session("ticket-42", agent="support")
            first = await session.commit(state(1), label="asked", step=1)
            loaded = await session.load()
            assert loaded == state(1)
            second = await session.commit(state(2), label="answered", step=2)
            branch = await session.fork(first, "what-if")
            assert branch.head == first
            await session.commit({**state(1), "phase": "other"}, branch="what-if")
            assert (await session.diff("main", "what-if")).added == ("phase",)
            restored = await session.restore(first)
            assert restored.restored_from == first.id
            undone = await session.undo()
            assert await session.load(undone) == state(2)
            await session.tag(second, "good")
            assert await session.tags() == {"good": second}
            assert set(await session.branches()) == {"main", "what-if"}
            await session.untag("good")
            await session.delete_branch("what-if")
            assert await session.head("what-if") is None
            assert await session.checkpoint("main~1") == restored
            assert await session.newest_intact() == undone
            await session.delete(restored)
            assert [c.id async for c in session.log()] == [undone.id, second.id, first.id]
            assert (await store.verify()).ok
            assert (await store.stats()).sessions == 1
            assert [info.id async for info in store.sessions(agent="support")] == ["ticket-42"]
            await store.delete("ticket-42")
            assert [info.id async for info in store.sessions()] == []

    asyncio.run(story())


def test_a_store_can_be_awaited_and_then_closes_at_the_end_of_its_block(file: Path) -> None:
    async def story() -> aio.AsyncSession:
        store = await aio.open(file)
        async with store:
            session = store.session("s")
            await session.commit(state(1))
        with pytest.raises(backstay.ClosedError):
            await session.load()
        with pytest.raises(backstay.ClosedError):
            store.session("s")
        with pytest.raises(backstay.ClosedError):
            await store.stats()
        await store.close()
        return session

    session = asyncio.run(story())
    assert repr(session) == "<AsyncSession 's'>"
    with backstay.open(file) as store:
        assert store.session("s").load() == state(1)


def threads_since(before: set[threading.Thread]) -> list[str]:
    """Ours; another test may have left a store open, whose threads go when it is collected."""
    return [each.name for each in set(threading.enumerate()) - before if "backstay-aio" in each.name]


def test_no_thread_stays_behind_when_a_store_is_closed(file: Path) -> None:
    before = set(threading.enumerate())

    async def story() -> None:
        async with aio.open(file) as store:
            await asyncio.gather(*(store.session(f"s{n}").commit(state(1)) for n in range(20)))
            assert threads_since(before)

    asyncio.run(story())
    deadline = time.monotonic() + 10
    while left := threads_since(before):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_errors_come_through_as_they_are(file: Path, tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(backstay.InvalidInputError, match="names no store"):
            await aio.open("nonsense")
        with pytest.raises(backstay.InvalidInputError, match="durability"):
            async with aio.open(file, durability="some"):  # type: ignore[arg-type]
                pass
        (tmp_path / "letter.db").write_text("Dear store, " * 100)
        with pytest.raises(backstay.FormatError):
            await aio.open(tmp_path / "letter.db")
        async with aio.open(file) as store:
            with pytest.raises(backstay.InvalidInputError):
                store.session("")
            with pytest.raises(backstay.NotFoundError):
                await store.session("s").load()
            with pytest.raises(backstay.InvalidInputError, match=r"state\['x'\]"):
                await store.session("s").commit({"x": object()})
            with pytest.raises(backstay.NotFoundError):
                await anext(store.session("s").log())
            with pytest.raises(backstay.InvalidInputError, match="limit"):
                await anext(store.sessions(limit=-1))
            one, other = store.session("t"), store.session("t")
            first = await one.commit(state(1))
            await other.load()
            await other.commit(state(2))
            with pytest.raises(backstay.ConflictError):
                await one.commit(state(3), expect=first)

    asyncio.run(story())


def test_commits_that_overlap_on_one_session_are_all_kept_in_the_order_they_were_made(url: str) -> None:
    async def story() -> list[str | None]:
        async with aio.open(url) as store:
            session = store.session("s")
            await asyncio.gather(*(session.commit(state(n), label=str(n)) for n in range(50)))
            return [checkpoint.label async for checkpoint in session.log()]

    assert asyncio.run(story()) == [str(n) for n in reversed(range(50))]


def test_one_busy_session_does_not_keep_the_others_waiting(file: Path) -> None:
    async def story() -> None:
        async with aio.open(file) as store:
            done: list[str] = []

            async def work(name: str, commits: int) -> None:
                session = store.session(name)
                await asyncio.gather(*(session.commit(state(1)) for _ in range(commits)))
                done.append(name)

            # More busy sessions than there are threads.
            await asyncio.gather(*(work(f"busy{n}", 40) for n in range(12)), work("quiet", 1))
            assert done[0] == "quiet"

    asyncio.run(story())


def test_the_event_loop_goes_on_while_a_commit_waits_for_the_disk(file: Path) -> None:
    async def story() -> int:
        ticks = 0

        async def ticker() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        async with aio.open(file) as store:
            session = store.session("s")
            await session.commit(state(1))
            ticking = asyncio.create_task(ticker())
            with writers_shut_out(file, seconds=0.5):
                await session.commit(state(2))
                during = ticks
            ticking.cancel()
            assert await session.load() == state(2)
            return during

    assert asyncio.run(story()) >= 10


def test_a_cancelled_commit_is_there_afterwards(file: Path) -> None:
    async def story() -> list[str | None]:
        async with aio.open(file) as store:
            session = store.session("s")
            await session.commit(state(1), label="before")
            with writers_shut_out(file) as free:
                commit = asyncio.create_task(session.commit(state(2), label="cancelled"))
                await asyncio.sleep(0.2)
                commit.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await commit
                # The next call of this session waits for the one that nobody waits for any more.
                after = asyncio.create_task(session.commit(state(3), label="after"))
                await asyncio.sleep(0.05)
                assert not after.done()
                free.set()
                await after
            return [checkpoint.label async for checkpoint in session.log()]

    assert asyncio.run(story()) == ["after", "cancelled", "before"]


def test_a_commit_cancelled_before_its_turn_does_nothing_and_lets_the_next_one_in(file: Path) -> None:
    async def story() -> list[str | None]:
        async with aio.open(file) as store:
            session = store.session("s")
            await session.commit(state(1), label="before")
            with writers_shut_out(file) as free:
                tasks = [asyncio.create_task(session.commit(state(1), label=name)) for name in ("a", "b", "c")]
                await asyncio.sleep(0.1)
                tasks[1].cancel()
                await asyncio.sleep(0.05)
                free.set()
                results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results[1], asyncio.CancelledError)
            return [checkpoint.label async for checkpoint in session.log()]

    assert asyncio.run(story()) == ["c", "a", "before"]


def test_what_a_timeout_cut_off_survives_the_end_of_the_program(file: Path) -> None:
    async def story() -> None:
        async with aio.open(file) as store:
            session = store.session("s")
            await session.commit(state(1), label="before")
            with writers_shut_out(file, seconds=0.3):
                async with asyncio.timeout(0.1):
                    await session.commit(state(2), label="cut off")

    with pytest.raises(TimeoutError):
        asyncio.run(story())
    with backstay.open(file) as store:
        assert [checkpoint.label for checkpoint in store.session("s").log()] == ["cut off", "before"]


def test_closing_finishes_the_calls_made_before_it(file: Path) -> None:
    async def story() -> None:
        store = await aio.open(file)
        session = store.session("s")
        await session.commit(state(0))
        with writers_shut_out(file, seconds=0.2):
            commits = [asyncio.create_task(session.commit(state(n))) for n in range(5)]
            await asyncio.sleep(0.05)
            await asyncio.gather(store.close(), store.close())
        assert len(await asyncio.gather(*commits)) == 5

    asyncio.run(story())
    with backstay.open(file) as store:
        assert len(list(store.session("s").log())) == 6


def test_a_store_whose_opening_was_cancelled_is_not_left_open(file: Path) -> None:
    before = set(threading.enumerate())

    async def story() -> None:
        task = asyncio.create_task(aio.open(file)._open())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    deadline = time.monotonic() + 10
    while threads_since(before):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # The last connection out takes the log with it; one left open would have kept it.
    assert not Path(f"{file}-wal").exists()


def test_long_histories_come_in_pages_while_the_loop_goes_on(url: str) -> None:
    async def story() -> None:
        async with aio.open(url, durability="relaxed") as store:
            session = store.session("s")
            await asyncio.gather(*(session.commit({"n": n}, step=n) for n in range(200)))
            assert [c.step async for c in session.log()] == list(reversed(range(200)))
            assert [c.step async for c in session.log(limit=150)] == list(reversed(range(50, 200)))
            assert [c.step async for c in session.log("main~190")] == list(reversed(range(10)))
            async for checkpoint in session.log():
                # Writing while reading: no transaction is held between pages.
                await session.commit({"n": -1}, step=checkpoint.step)
                break

    asyncio.run(story())


def test_what_is_intact_is_given_before_the_damage_behind_it_is_reported(file: Path) -> None:
    def history() -> Iterator[int]:
        yield from range(7)
        raise backstay.CorruptionError("damaged")

    async def story() -> None:
        async with aio.open(file) as store:
            numbers = store.threads.pages(history)
            seen = [await anext(numbers) for _ in range(7)]
            with pytest.raises(backstay.CorruptionError):
                await anext(numbers)
        assert seen == list(range(7))

    asyncio.run(story())


def test_a_listener_is_called_on_the_loop_before_the_commit_returns(url: str) -> None:
    async def story() -> None:
        async with aio.open(url) as store:
            heard: list[tuple[str | None, str]] = []
            store.on("checkpoint", lambda c: heard.append((c.label, threading.current_thread().name)))
            here = threading.current_thread().name
            await store.session("s").commit(state(1), label="one")
            assert heard == [("one", here)]
            with pytest.raises(backstay.InvalidInputError, match="no event"):
                store.on("nonsense", print)  # type: ignore[arg-type]

            async def listener(_: object) -> None: ...

            with pytest.raises(backstay.InvalidInputError, match="coroutine function"):
                store.on("checkpoint", listener)

    asyncio.run(story())


def test_a_listener_that_fails_loses_no_commit(file: Path) -> None:
    async def story() -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

        def fail(_: object) -> None:
            raise RuntimeError("listener")

        async with aio.open(file) as store:
            store.on("checkpoint", fail)
            await store.session("s").commit(state(1))
            assert await store.session("s").load() == state(1)
        assert str(failures[0]["exception"]) == "listener"

    asyncio.run(story())


def test_what_tracing_put_into_the_context_is_there_in_the_thread(file: Path) -> None:
    request = contextvars.ContextVar("request", default="none")

    async def story() -> str:
        async with aio.open(file) as store:
            request.set("r-1")
            found: str = await store.threads.run(request.get)
            return found

    assert asyncio.run(story()) == "r-1"


def test_a_store_used_in_a_forked_child_is_refused_there_and_goes_on_here(file: Path) -> None:
    async def begin() -> tuple[aio.AsyncStore, aio.AsyncSession]:
        store = await aio.open(file)
        session = store.session("s")
        await session.commit(state(1))
        return store, session

    store, session = asyncio.run(begin())

    async def in_child() -> bool:
        for call in (session.load(), session.commit(state(9)), store.stats()):
            with pytest.raises(backstay.ClosedError, match="parent"):
                await asyncio.wait_for(call, 10)
        await asyncio.wait_for(store.close(), 10)
        return True

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if asyncio.run(in_child()) else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    async def go_on() -> None:
        await session.commit(state(2))
        assert await session.load() == state(2)
        await store.close()

    asyncio.run(go_on())


def test_a_program_without_a_loop_does_not_pay_for_one() -> None:
    code = "import sys, backstay; print('asyncio' in sys.modules, 'concurrent.futures' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
