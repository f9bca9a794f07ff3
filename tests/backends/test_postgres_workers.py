"""Many workers on one PostgreSQL: each crashed run is taken up once, soon, and who was paused writes no more."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import backstay
from backstay.backends.postgres import PostgresBackend
from backstay.errors import LeaseHeldError
from backstay.face import Store
from backstay.testing.author import SESSION, Runner
from tests.backends.conftest import Fresh

RECOVERER = """
import json, sys, backstay
from backstay.backends.postgres import PostgresBackend
store = backstay.Store(PostgresBackend(sys.argv[1], schema=sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
def handler(run):
    run.call("handled", lambda: 1, key="once")
    run.state["done"] = run.state.get("done", 0) + 1
report = backstay.recover(store, handler)
print(json.dumps(list(report.completed)), flush=True)
"""
PAUSED = """
import sys, backstay
from backstay.backends.postgres import PostgresBackend
store = backstay.Store(PostgresBackend(sys.argv[1], schema=sys.argv[2]))
try:
    with store.run("paused", lease_s=0.5) as run:
        run.state["by"] = "the paused one"
        run.checkpoint()
        print("entered", flush=True)
        sys.stdin.readline()
        run.state["by"] = "a ghost"
        run.checkpoint()
except backstay.FencedError:
    print("fenced", flush=True)
"""
Where = tuple[str, str]


@pytest.fixture
def where(postgres_url: str, fresh_schema: Fresh) -> Where:
    return postgres_url, fresh_schema()


@pytest.fixture
def store(where: Where) -> Iterator[Store]:
    with Store(PostgresBackend(where[0], schema=where[1])) as store:
        yield store


def child(code: str, where: Where) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_of_eight_recoverers_each_crashed_session_is_handled_by_one(store: Store, where: Where) -> None:
    names = [f"session {number}" for number in range(12)]
    for name in names:
        Runner(store.backend, name).leave()
    workers = [child(RECOVERER, where) for _ in range(8)]
    try:
        assert [heard(worker) for worker in workers] == ["ready"] * 8
        for worker in workers:
            tell(worker)
        done: list[str] = [name for worker in workers for name in json.loads(heard(worker))]
    finally:
        for worker in workers:
            ended(worker)
    assert sorted(done) == sorted(names)
    assert [store.session(name).load() for name in names] == [{"done": 1}] * 12
    assert store.crashed() == []
    assert store.verify().ok


def test_a_worker_that_was_paused_is_fenced_when_it_wakes(store: Store, where: Where) -> None:
    worker = child(PAUSED, where)
    try:
        assert heard(worker) == "entered"
        with pytest.raises(LeaseHeldError), store.run("paused"):
            pass
        os.kill(worker.pid, signal.SIGSTOP)
        report = backstay.recover(store, lambda run: run.state.update(by="the next one"), wait_s=1.5)
        assert report.completed == ("paused",)
        os.kill(worker.pid, signal.SIGCONT)
        tell(worker)
        assert heard(worker) == "fenced"
    finally:
        ended(worker)
    assert store.session("paused").load() == {"by": "the next one"}


Taken = list[tuple[str, float]]


@contextlib.contextmanager
def waiting(store: Store, wait_s: float) -> Iterator[Taken]:
    """Somebody who waits for crashed runs all the while: which it got, and when."""
    taken: Taken = []

    def handler(run: Any) -> None:
        taken.append((run.session.id, time.monotonic()))

    thread = threading.Thread(target=lambda: backstay.recover(store, handler, wait_s=wait_s))
    thread.start()
    time.sleep(0.7)  # until it has looked once and listens
    yield taken
    thread.join()


@pytest.fixture
def elsewhere(where: Where) -> Iterator[PostgresBackend]:
    """The same store, as another worker has it open."""
    with contextlib.closing(PostgresBackend(where[0], schema=where[1])) as backend:
        yield backend


def test_who_waits_is_told_when_a_lease_is_given_back(store: Store, elsewhere: PostgresBackend) -> None:
    run = Runner(elsewhere)
    with waiting(store, 1.6) as taken:
        run.leave()
        left = time.monotonic()
    assert [name for name, _ in taken] == [SESSION]
    assert taken[0][1] - left < 0.45, "the server told nobody, and it was only found by looking"


def test_who_waits_takes_over_within_a_second_of_a_lease_that_runs_out(
    store: Store, elsewhere: PostgresBackend
) -> None:
    Runner(elsewhere, lease_s=1.0)
    expires = time.monotonic() + 1.0
    with waiting(store, 2.2) as taken:
        pass
    assert [name for name, _ in taken] == [SESSION]
    assert 0.0 < taken[0][1] - expires < 1.0


def test_who_waits_where_nobody_can_tell_still_looks(
    store: Store, elsewhere: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pooler in transaction mode takes the LISTEN and passes on nothing.
    assert isinstance(store.backend, PostgresBackend)
    monkeypatch.setattr(store.backend._listener, "_channel", "nobody speaks here")
    run = Runner(elsewhere)
    with waiting(store, 2.0) as taken:
        run.leave()
        left = time.monotonic()
    assert [name for name, _ in taken] == [SESSION]
    assert taken[0][1] - left < 1.0
