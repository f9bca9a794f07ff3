"""Processes share a store: nobody's checkpoint is lost, and a fork leaves the parent unharmed."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import backstay
from backstay import ClosedError, Store
from tests.store.children import finish, finish_all, start

COMMIT = """
import sys, backstay
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
conflicts = 0
with backstay.open(path) as store:
    session = store.session("s")
    for number in range(count):
        while True:
            state = session.load()
            state["turns"].append([name, number])
            try:
                print(session.commit(state).id)
                break
            except backstay.ConflictError:
                conflicts += 1
print("conflicts", conflicts)
"""


def test_two_processes_on_one_session_lose_nobodys_checkpoint(path: Path) -> None:
    count = 60
    with backstay.open(path) as store:
        store.session("s").commit({"turns": []})
        children = [start(COMMIT, path, name, count) for name in ("a", "b")]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = finish_all(children)
        session = store.session("s")
        turns = session.load()["turns"]
        for name, lines in zip(("a", "b"), said, strict=True):
            assert [turn for turn in turns if turn[0] == name] == [[name, number] for number in range(count)]
            assert set(lines[:-1]) <= {point.id for point in session.log()}
        assert len(turns) == 2 * count
        assert [point.sequence for point in session.log()] == list(range(2 * count + 1, 0, -1))
        assert store.verify().ok


SESSIONS = """
import sys, backstay
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with backstay.open(path) as store:
    session = store.session(name)
    for number in range(count):
        session.commit({"messages": [f"{name} {at}" for at in range(number)], "image": b"shared" * 2000})
"""


def test_processes_with_a_session_each_share_one_store(path: Path) -> None:
    names = [f"p{number}" for number in range(4)]
    finish_all([start(SESSIONS, path, name, 40) for name in names])
    with backstay.open(path) as store:
        for name in names:
            session = store.session(name)
            assert session.load()["messages"] == [f"{name} {at}" for at in range(39)]
            assert len(list(session.log())) == 40
        assert store.verify().ok


def in_child(work: Callable[[], None]) -> int:
    """Run work in a forked child; gives its exit status: 0 if all went well, 1 if it raised, 9 if it hung."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(30)
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - nothing may get out of a forked child of pytest
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_may_not_use_the_store_but_may_open_it_anew(store: Store, path: Path) -> None:
    session = store.session("s")
    point = session.commit({"n": 1})
    session.load()

    def work() -> None:
        for use in (
            lambda: session.commit({"n": 2}),
            session.load,
            session.head,
            lambda: point.state,
            lambda: store.session("s"),
            lambda: list(store.sessions()),
            store.stats,
            store.verify,
            lambda: store.delete("s"),
        ):
            with pytest.raises(ClosedError):
                use()
        store.close()
        with backstay.open(path) as own:
            assert own.session("s").load() == {"n": 1}
            own.session("s").commit({"n": "child"})

    for _ in range(3):
        assert in_child(work) == 0
        assert session.load() == {"n": "child"}
        session.commit({"n": 1})
    assert len(list(session.log())) == 7
    assert store.verify().ok


def test_a_child_that_is_killed_or_just_ends_harms_nobody(store: Store, path: Path) -> None:
    session = store.session("s")
    for number in range(20):
        session.commit({"n": number})
        pid = os.fork()
        if pid == 0:
            if number % 2:
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        assert session.load() == {"n": number}
    with backstay.open(path) as other:
        assert other.session("s").load() == {"n": 19}
    assert store.verify().ok
    assert len(list(session.log())) == 20


def test_a_fork_while_threads_commit_harms_nobody(store: Store, path: Path) -> None:
    stop = threading.Event()
    counts = [0] * 4
    problems: list[BaseException] = []

    def work(number: int) -> None:
        session = store.session(f"s{number}")
        try:
            while not stop.is_set():
                session.commit({"n": counts[number]})
                session.load()
                counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            problems.append(error)

    def child() -> None:
        with pytest.raises(ClosedError):
            store.session("s0")
        with backstay.open(path) as own:
            own.session("child").commit({"by": os.getpid()})

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            time.sleep(0.01)
            assert in_child(child) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert problems == []
    for number in range(4):
        session = store.session(f"s{number}")
        assert counts[number] > 0
        assert session.load() == {"n": counts[number] - 1}
        assert len(list(session.log())) == counts[number]
    assert len(list(store.session("child").log())) == 12
    assert store.verify().ok


def _worker(path: str, number: int) -> int:
    with backstay.open(path) as own:
        return own.session("pool").commit({"n": number}).sequence


def test_a_pool_of_forked_workers_can_use_the_same_store(store: Store, path: Path) -> None:
    store.session("s").commit({"n": 1})
    with multiprocessing.get_context("fork").Pool(3) as pool:
        sequences = pool.starmap(_worker, [(str(path), number) for number in range(12)])
    assert sorted(sequences) == list(range(1, 13))
    store.session("s").commit({"n": 2})
    assert {point.state["n"] for point in store.session("pool").log()} == set(range(12))
    assert store.verify().ok


READ = """
import sys, backstay
with backstay.open(sys.argv[1]) as store:
    seen = 0
    while seen < int(sys.argv[2]):
        state = store.session("s").load()
        assert state["copy"] == [state["n"]] * 40, state
        assert state["n"] >= seen
        seen = state["n"]
print("done")
"""


def test_another_process_never_sees_half_of_a_checkpoint(path: Path) -> None:
    with backstay.open(path) as store:
        session = store.session("s")
        session.commit({"n": 0, "copy": [0] * 40})
        child = start(READ, path, 200)
        for number in range(1, 201):
            session.commit({"n": number, "copy": [number] * 40})
        assert finish(child) == ["done"]
