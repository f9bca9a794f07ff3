"""Kills, races, interrupts, forks and failing disks: what SQLite acknowledged stays, and nobody is left waiting."""

import ctypes
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay.backends.sqlite import SqliteBackend
from backstay.errors import BackstayError, ClosedError, ConflictError, UnavailableError
from backstay.port import Ask, Kind, SessionQuery
from backstay.testing.author import Author, Runner, check_states, read_back
from tests.faults.interrupts import interrupts

PLACE = str(Path(backstay.__file__).parents[1])
OPEN = """
import sys, threading
from pathlib import Path
from backstay.backends.sqlite import SqliteBackend
from backstay.testing.author import Author, Runner
from backstay.errors import ConflictError
backend = SqliteBackend(Path(sys.argv[1]))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": PLACE, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", OPEN + program, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(child: subprocess.Popen[str]) -> list[str]:
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    return out.splitlines()


COMMITS = """
author = Author(backend, sys.argv[2])
while True:
    print(author.grow(1)[0].id, flush=True)
"""
CALLS = """
run = Runner(backend, sys.argv[2])
run.boundary()
while True:
    print(run.call().id, flush=True)
"""


def test_what_was_acknowledged_before_a_kill_is_there_and_verifies(path: Path) -> None:
    chance = random.Random(5)
    for attempt in range(8):
        program = (COMMITS, CALLS)[attempt % 2]
        child = start(program, path, f"s{attempt}")
        assert child.stdout is not None
        said = [child.stdout.readline().strip()]
        until = time.monotonic() + chance.random() * 0.15
        while time.monotonic() < until:
            said.append(child.stdout.readline().strip())
        child.send_signal(signal.SIGKILL)
        said += [line.strip() for line in child.stdout if line.endswith("\n")]
        child.communicate()
        with closing(SqliteBackend(path)) as backend:
            if program is COMMITS:
                rows: Any = backend.scan(f"s{attempt}", Kind.CHECKPOINT, limit=10_000)
                for row in rows:
                    assert read_back(backend, f"s{attempt}", row.sequence)["turn"] == row.sequence - 1
            else:
                rows = backend.scan(f"s{attempt}", Kind.CALL, limit=10_000)
            lost = [f"step {step}: {id_}" for step, id_ in enumerate(said) if id_ not in {row.id for row in rows}]
            assert not lost, f"{path}, session s{attempt}: acknowledged and missing: {lost}"
            assert list(backend.check()) == []


def test_processes_on_one_branch_lose_no_turn(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        Author(backend, "s").commit({"turns": []})
        race = """
author = Author(backend, "s")
for turn in range(12):
    while True:
        author.stand_on_head()
        try:
            author.commit({"turns": [*author.state["turns"], f"{sys.argv[2]}.{turn}"]})
            break
        except ConflictError:
            pass
backend.close()
"""
        children = [start(race, path, number) for number in range(3)]
        for child in children:
            ended(child)
        turns = read_back(backend, "s", "main")["turns"]
        assert sorted(turns) == sorted(f"{number}.{turn}" for number in range(3) for turn in range(12))
        touched = [row.touched for row in backend.sessions(SessionQuery())]
        assert backend.read(Ask("s")).fresh > max(touched)


def test_numbers_never_go_back_whoever_deletes_and_whoever_writes_next(path: Path) -> None:
    from backstay.rules.deletion import drop_session, hide, hide_ask

    with closing(SqliteBackend(path)) as one, closing(SqliteBackend(path)) as other:
        given: list[int] = []
        for number in range(6):
            for backend in (one, other):
                Author(backend, f"s{number}{backend is one}").grow(2)
                (newest, *_) = backend.sessions(SessionQuery(limit=1))
                given.append(newest.touched)
                row = other.write(hide_ask(newest.id), hide(newest.id)).answer
                one.write(Ask(row.id, hidden=True), drop_session())
        assert given == sorted(set(given))
        with closing(SqliteBackend(path)) as third:
            assert third.read(Ask("none")).fresh > given[-1]
            assert third.sizes().sessions == 0
            sids = {entry[0] for entry in third._read(lambda connection: list(connection.execute(_SIDS)))}
            Author(third, "next").grow(1)
            assert not sids & {entry[0] for entry in third._read(lambda connection: list(connection.execute(_SIDS)))}
            assert third._read(lambda connection: list(connection.execute("SELECT max(sid) FROM rows"))) == [(13,)]


_SIDS = "SELECT DISTINCT sid FROM lookup"


def in_threads(count: int, work: Callable[[int], object]) -> list[BaseException]:
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
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


def test_threads_that_journal_in_one_run_share_their_syncs(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        run = Runner(backend)
        run.boundary()
        before = backend.syncs
        group: Any = backend._group
        assert group.hold(5)
        release = threading.Thread(target=_release_when_all_wait, args=(group, 16))
        release.start()
        assert in_threads(16, lambda _: [run.call() for _ in range(20)]) == []
        release.join(60)
        # The first of all threads share one; how many of the others do depends on how busy the machine is.
        assert backend.syncs - before <= 640 - 15, "each write waits for the disk"
        calls: Any = backend.scan(run.author.session, Kind.CALL, limit=1_000)
        assert [call.n for call in calls] == list(range(320))
        assert {call.status for call in calls} == {"done"}


def _release_when_all_wait(group: Any, count: int) -> None:
    while group._queue.waiting < count:
        time.sleep(0.001)
    group.release()


def test_a_write_that_says_nothing_waits_for_no_disk(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(2)
        before = backend.syncs
        new = author.draft({"n": 1})
        author.head = None
        with pytest.raises(ConflictError):
            author.commit({"n": 2})
        author.write(new, {"n": 1})
        assert backend.syncs == before + 1


class Stopped(BaseException):
    """Raised into a thread from outside, like a KeyboardInterrupt."""


def test_threads_interrupted_at_any_instruction_leave_the_others_going(path: Path) -> None:
    rng = random.Random(7)
    acknowledged: dict[int, list[str]] = {number: [] for number in range(8)}
    until = time.monotonic() + 3

    def commit(backend: SqliteBackend, number: int) -> None:
        author = Author(backend, f"s{number}")
        with suppress(BackstayError):
            author.stand_on_head()
        while time.monotonic() < until:
            acknowledged[number].append(author.grow(1)[0].id)
            if number % 2:
                backend.state(f"s{number}", "main")

    def work(backend: SqliteBackend, number: int) -> None:
        while time.monotonic() < until:  # another interrupt may strike while the first is being dealt with
            try:
                with suppress(Stopped, ConflictError):  # what was under way may be recorded a moment later
                    commit(backend, number)
            except Stopped:
                continue

    with closing(SqliteBackend(path)) as backend:
        threads = [threading.Thread(target=work, args=(backend, number), daemon=True) for number in range(8)]
        for thread in threads:
            thread.start()
        while time.monotonic() < until - 0.5:
            time.sleep(rng.random() * 0.01)
            victim = threads[rng.randrange(6)]  # two are never interrupted: they must never be left waiting either
            assert victim.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim.ident), ctypes.py_object(Stopped))
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        assert len(acknowledged[7]) > 20
        for number, ids in acknowledged.items():
            rows: Any = backend.scan(f"s{number}", Kind.CHECKPOINT, limit=100_000)
            assert set(ids) <= {row.id for row in rows}
        assert list(backend.check()) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see below: Python says that it did
def test_ctrl_c_while_leading_loses_nothing_and_wakes_the_others(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        stop = threading.Event()
        others: list[str] = []
        author = Author(backend, "other")

        def work() -> None:
            while not stop.is_set():
                others.append(author.grow(1)[0].id)

        other = threading.Thread(target=work, daemon=True)
        mine: list[str] = []
        try:
            other.start()
            with interrupts(60) as strike:
                for _ in range(60):
                    own = Author(backend, "mine")
                    if backend.read(Ask("mine")).session is not None:
                        own.stand_on_head()
                    with suppress(ConflictError):  # what was under way may be recorded a moment later
                        strike(lambda own=own: mine.append(own.grow(1)[0].id))  # type: ignore[misc]
        finally:
            stop.set()
        other.join(30)
        assert not other.is_alive(), "the other thread hangs"
        for session, ids in (("mine", mine), ("other", others)):
            rows: Any = backend.scan(session, Kind.CHECKPOINT, limit=100_000)
            assert set(ids) <= {row.id for row in rows}
        check_states(backend, "other", author.states)


# forks


def in_child(work: Callable[[], object], timeout_s: float = 30) -> int:
    """Run work in a forked child; its exit status: 0 if all went well, 1 if it raised, 9 if it hung."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing may get out of a forked child of pytest
            os._exit(1)
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 9


def test_a_forked_child_is_told_so_and_may_open_the_store_anew(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend)
        author.grow(3)
        backend.changes()

        def child() -> None:
            for use in (lambda: backend.read(Ask("s")), backend.changes, lambda: author.grow(1), backend.sizes):
                with pytest.raises(ClosedError, match="parent"):
                    use()
            backend.close()
            with closing(SqliteBackend(path)) as own:
                Author(own, author.session).stand_on_head().grow(1)

        assert in_child(child) == 0
        assert len(backend.scan(author.session, Kind.CHECKPOINT, limit=9)) == 4
        author.stand_on_head().grow(1)
        assert list(backend.check()) == []


def test_a_fork_while_threads_write_read_and_watch_harms_nobody(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        stop = threading.Event()
        authors = [Author(backend, f"s{number}") for number in range(3)]

        def work(number: int) -> None:
            while not stop.is_set():
                if number < 3:
                    authors[number].grow(1)
                    backend.state(f"s{number}", "main")
                else:
                    backend.changes()

        def child() -> None:
            with closing(SqliteBackend(path)) as own:
                Author(own, f"child {os.getpid()}").grow(2)

        def fork_often() -> list[int]:
            statuses = [in_child(child) for _ in range(12)]
            stop.set()
            return statuses

        statuses: list[int] = []
        raised = in_threads(5, lambda number: work(number) if number < 4 else statuses.extend(fork_often()))
        assert raised == []
        assert statuses == [0] * 12
        for author in authors:
            check_states(backend, author.session, author.states)
        assert len(backend.sessions(SessionQuery())) == 15


def write_in_pool(arguments: tuple[Path, int]) -> int:
    with closing(SqliteBackend(arguments[0])) as backend:
        return Author(backend, f"pool {arguments[1]}").grow(2)[-1].sequence


def test_a_pool_of_forked_workers_can_use_the_same_store(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        Author(backend).grow(1)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            assert pool.map(write_in_pool, [(path, number) for number in range(6)]) == [2] * 6
        assert len(backend.sessions(SessionQuery())) == 7


def test_a_store_closed_while_threads_use_it_ends_them_with_an_error_of_ours(path: Path) -> None:
    backend = SqliteBackend(path)
    started = threading.Barrier(5)

    def work(number: int) -> None:
        if number == 4:
            started.wait()
            time.sleep(0.05)
            backend.close()
            return
        author = Author(backend, f"s{number}")
        started.wait()
        while True:
            author.grow(1)
            backend.state(author.session, "main")
            backend.wait(0.001, since=backend.changes())

    assert [type(error) for error in in_threads(5, work)] == [ClosedError] * 4
    with closing(SqliteBackend(path)) as again:
        assert list(again.check()) == []


# a failing disk


def test_after_a_failed_sync_nobody_is_told_that_nothing_was_recorded(path: Path) -> None:
    program = """
import sys, errno
from pathlib import Path
from tests.faults.switch import Faults
from tests.faults.vfs import mount
faults = Faults()
with mount(faults):
    from backstay.backends.sqlite import SqliteBackend
    from backstay.testing.author import Author
    from backstay.errors import UnavailableError
    backend = SqliteBackend(Path(sys.argv[1]))
    author = Author(backend)
    author.grow(3)
    for error, only in ((errno.EIO, "sync"), (errno.ENOSPC, "write")):
        faults.reset(fail_from=1, error=error, only=only)
        try:
            author.grow(1)
        except UnavailableError as refused:
            print(refused)
        faults.lift()
        author.stand_on_head().grow(1)
    backend.close()
"""
    environment = {**os.environ, "PYTHONPATH": PLACE}
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2
    assert all("not known whether" in line and "othing was recorded" not in line for line in said)
    with closing(SqliteBackend(path)) as backend:
        assert list(backend.check()) == []
        assert len(backend.scan("a session", Kind.CHECKPOINT, limit=99)) >= 5


def test_a_store_that_another_process_keeps_locked_is_busy_and_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backstay.backends.sqlite.connections.BUSY_S", 0.2)
    with closing(SqliteBackend(path)) as backend, closing(SqliteBackend(path)) as other:
        author = Author(backend)
        author.grow(1)
        assert other._group is not None
        other._group.connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="busy") as caught:
            author.grow(1)
        assert caught.value.retryable
        other._group.connection.execute("ROLLBACK")
        author.grow(1)
