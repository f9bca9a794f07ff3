"""Threads share the store: nobody's commit is lost, and an interrupted one does not leave the others waiting."""

import ctypes
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import backstay
from backstay import ConflictError, Session, Store
from tests.faults.interrupts import interrupts


class Stopped(BaseException):
    """Raised into a thread from outside, like a KeyboardInterrupt."""


def in_threads(count: int, work: Callable[[int], object], timeout_s: float = 30) -> list[BaseException]:
    """Run work(number) in threads; gives what they raised. A thread that hangs fails the test."""
    raised: list[BaseException] = []

    def each(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    threads = [threading.Thread(target=each, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


def test_sixteen_threads_with_a_session_each_lose_nothing(store: Store) -> None:
    def work(number: int) -> None:
        session = store.session(f"s{number}")
        for step in range(25):
            session.commit({"messages": [f"{number}-{at}" for at in range(step + 1)]})

    assert in_threads(16, work) == []
    for number in range(16):
        session = store.session(f"s{number}")
        assert session.load() == {"messages": [f"{number}-{at}" for at in range(25)]}
        assert [point.sequence for point in session.log()] == list(range(25, 0, -1))
    assert store.verify().ok
    assert len(list(store.sessions())) == 16


def test_sixteen_threads_on_one_session_lose_nobody_and_tell_the_losers(store: Store) -> None:
    store.session("s").commit({"turns": []})
    kept: list[str] = []
    conflicts: list[int] = []

    def work(number: int) -> None:
        session = store.session("s")
        for turn in range(8):
            while True:
                state = session.load()
                state["turns"].append(f"{number}.{turn}")
                try:
                    kept.append(session.commit(state).id)
                    break
                except ConflictError:
                    conflicts.append(number)

    assert in_threads(16, work) == []
    session = store.session("s")
    turns = session.load()["turns"]
    assert sorted(turns) == sorted(f"{number}.{turn}" for number in range(16) for turn in range(8))
    assert {point.id for point in session.log(limit=128)} == set(kept)
    assert store.verify().ok


def test_threads_that_expect_nothing_all_get_their_turn(store: Store) -> None:
    for number in range(8):
        name = f"s{number}"

        def work(number: int, name: str = name) -> None:
            for turn in range(2):
                store.session(name).commit({"by": [number, turn]})

        assert in_threads(12, work) == []
        found = [point.state["by"] for point in store.session(name).log()]
        assert sorted(found) == [[number, turn] for number in range(12) for turn in range(2)]


def test_a_conflict_in_a_shared_transaction_is_its_own(store: Store) -> None:
    good = [store.session(f"good{number}") for number in range(8)]
    stale = store.session("stale")
    stale.commit({"n": 0})
    store.session("stale").commit({"n": 1})

    def work(number: int) -> None:
        for step in range(20):
            if number < 8:
                good[number].commit({"n": step})
            else:
                with pytest.raises(ConflictError):
                    stale_writer(number).commit({"n": step}, expect="f" * 24)

    def stale_writer(_: int) -> Session:
        return store.session("stale")

    assert in_threads(12, work) == []
    assert all(session.load() == {"n": 19} for session in good)
    assert store.session("stale").load() == {"n": 1}
    assert store.verify().ok


def test_threads_read_while_others_write_and_never_see_half_of_anything(store: Store) -> None:
    store.session("s").commit({"n": 0, "copy": [0] * 50})
    stop = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            session = store.session("s")
            for step in range(1, 150):
                session.commit({"n": step, "copy": [step] * 50})
            stop.set()
        else:
            while not stop.is_set():
                state = store.session("s").load()
                assert state["copy"] == [state["n"]] * 50
                points = list(store.session("s").log(limit=20))
                assert [point.sequence for point in points] == list(
                    range(points[0].sequence, points[0].sequence - len(points), -1)
                )

    assert in_threads(5, work) == []


def interrupt(thread: threading.Thread) -> None:
    """Raise Stopped in a thread at its next instruction."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))


def test_threads_interrupted_at_any_instruction_leave_the_others_going(store: Store) -> None:
    rng = random.Random(7)
    acknowledged: dict[int, list[str]] = {number: [] for number in range(8)}
    until = time.monotonic() + 4

    def work(number: int) -> None:
        while time.monotonic() < until:
            session = store.session(f"s{number}")
            try:
                while time.monotonic() < until:
                    acknowledged[number].append(session.commit({"n": len(acknowledged[number])}).id)
            except Stopped:
                pass

    def outer(number: int) -> None:
        # Another interrupt may strike while the first is being dealt with.
        while time.monotonic() < until:
            try:
                work(number)
            except Stopped:
                continue

    threads = [threading.Thread(target=outer, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    strikes = 0
    while time.monotonic() < until - 0.5:
        time.sleep(rng.random() * 0.01)
        interrupt(threads[rng.randrange(6)])  # two are never interrupted: they must never be left waiting either
        strikes += 1
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert strikes > 100
    for number, ids in acknowledged.items():
        assert ids, f"thread {number} committed nothing"
        assert set(ids) <= {point.id for point in store.session(f"s{number}").log()}
    assert len(acknowledged[7]) > 20
    assert store.verify().ok


def test_ctrl_c_while_leading_wakes_the_others_and_loses_nothing(path: Path) -> None:
    """The main thread commits and is interrupted by signals, again and again; other threads go on."""
    with backstay.open(path) as store:
        stop = threading.Event()
        done: list[str] = []

        def work() -> None:
            session = store.session("other")
            while not stop.is_set():
                done.append(session.commit({"n": len(done)}).id)

        other = threading.Thread(target=work, daemon=True)
        mine: list[str] = []
        try:
            other.start()
            with interrupts(60) as strike:
                for _ in range(60):
                    commit = store.session("mine").commit
                    strike(lambda commit=commit: mine.append(commit({"n": len(mine)}).id))  # type: ignore[misc]
        finally:
            stop.set()
        before = len(done)
        other.join(30)
        assert not other.is_alive(), "the other thread hangs"
        assert before > 0
        assert set(mine) <= {point.id for point in store.session("mine").log()}
        assert {point.id for point in store.session("other").log()} == set(done)
        assert store.verify().ok


def test_a_store_closed_while_threads_write_ends_them_with_an_error_of_ours(path: Path) -> None:
    store = backstay.open(path)
    started = threading.Barrier(5)

    def work(number: int) -> None:
        session = store.session(f"s{number}")
        session.commit({"n": 0})
        started.wait()
        step = 0
        while True:
            step += 1
            session.commit({"n": step})
            session.load()

    def close(number: int) -> None:
        if number < 4:
            work(number)
        started.wait()
        time.sleep(0.05)
        store.close()

    raised = in_threads(5, close)
    assert [type(error) for error in raised] == [backstay.ClosedError] * 4
    with backstay.open(path) as again:
        assert again.verify().ok
        assert len(list(again.sessions())) == 4
