"""Many who write to one PostgreSQL at once: threads of one process, processes, and those who are interrupted."""

import json
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

from backstay.backends.postgres import pool, protocol, writing
from backstay.backends.postgres.faults import fault_of
from backstay.errors import FencedError
from backstay.port import Ask, Batch, BlobsAbsentError, Kind, LaneRow, View
from backstay.testing.author import SESSION, Author, Runner, fork
from backstay.testing.contract.handmade import blob, checkpoint, drop, put, together
from tests.backends.proxy import eventually
from tests.backends.round_trips import Pair, Trips, pair, trips, warm

__all__ = ["pair", "trips"]


# many at once


def test_sixteen_threads_of_one_run_share_round_trips_and_refuse_nobody(pair: Pair, trips: Trips) -> None:
    one, two = pair
    warm(one)
    run = Runner(one)
    before = len(trips.sent)

    def act(_me: int) -> None:
        for _ in range(5):
            run.call()

    together(act, 16)
    assert len(trips.sent) - before < 80, "160 journal writes"
    calls = two.read(Ask(SESSION, names=("main",), pending=("main",))).pending["main"]
    assert len(calls) == 80
    assert {call.status for call in calls if not isinstance(call, str)} == {"done"}  # type: ignore[union-attr]


def test_a_write_that_misses_takes_the_lock(pair: Pair, trips: Trips) -> None:
    one, two = pair
    put(one, LaneRow("main"))
    tries = 0

    def decide(view: View) -> Batch:
        nonlocal tries
        tries += 1
        if tries <= 2:  # another process is always faster, until the session is locked
            beaten = threading.Thread(target=put, args=(two, LaneRow("main", token=tries)))
            beaten.start()
            beaten.join(0.5)
        return Batch((msgspec.structs.replace(view.lanes["main"], crashes=view.lanes["main"].token),))

    one.write(Ask(SESSION, names=("main",)), decide)
    assert tries == 2
    assert any([b"hold_2" in said for said in trips.sent])
    assert eventually(lambda: two.read(Ask(SESSION, names=("main",))).lanes["main"].token == 2)


def test_a_process_that_stands_still_with_the_lock_loses_it_and_writes_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.2)
    one, two = pair
    put(one, LaneRow("main"))
    slept: list[float] = []
    tries = 0

    def decide(view: View) -> Batch:
        nonlocal tries
        tries += 1
        if tries == 1:
            put(two, LaneRow("main", token=tries))
        elif not slept:  # it has the lock by now
            started = time.monotonic()
            put(two, LaneRow("main", token=9))
            slept.append(time.monotonic() - started)
        return Batch((msgspec.structs.replace(view.lanes["main"], crashes=view.lanes["main"].token),))

    one.write(Ask(SESSION, names=("main",)), decide)
    assert 0.1 < slept[0] < 5
    lane = two.read(Ask(SESSION, names=("main",))).lanes["main"]
    assert (lane.token, lane.crashes) == (9, 9)


COMMITTER = """
import json, sys, random
from backstay.backends.postgres import PostgresBackend
from backstay.errors import ConflictError
from backstay.testing.author import Author
backend = PostgresBackend(sys.argv[1], schema=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
won = []
for number in range(25):
    author = Author(backend).stand_on_head()
    while True:
        try:
            won.append(author.commit({"by": sys.argv[3], "number": number}).sequence)
            break
        except ConflictError:
            author.stand_on_head()
    own = Author(backend, branch=sys.argv[3]).stand_on_head()
    own.commit({"own": number})
print(json.dumps(won), flush=True)
"""


def test_processes_that_race_for_one_head_lose_no_turn(pair: Pair, postgres_url: str) -> None:
    one, two = pair
    first = Author(one).grow(1)[0]
    for name in "abc":
        fork(one, SESSION, first, name)
    command = [sys.executable, "-c", COMMITTER, postgres_url, one.schema]
    workers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name in "abc"
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        won = []
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        for worker in workers:
            assert worker.stdout is not None
            won += json.loads(worker.stdout.readline())
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    rows = two.scan(SESSION, Kind.CHECKPOINT, limit=999)
    assert len(rows) == 1 + 75 + 75
    head = two.read(Ask(SESSION, names=("main",))).lanes["main"].head
    assert head is not None
    line = [row.sequence for row in two.ancestors(SESSION, head.sequence, limit=999) if not hasattr(row, "why")]
    assert sorted(won) == sorted(line)[1:]
    assert not list(two.check())


def test_a_call_is_not_written_to_a_session_that_is_just_being_hidden(pair: Pair, postgres_url: str) -> None:
    one, two = pair
    run = Runner(one)
    run.call()
    with psycopg.connect(postgres_url) as other:  # a process that hides the session, having looked at its branches
        other.execute(f'SELECT 1 FROM "{one.schema}".names FOR NO KEY UPDATE')
        calling, raised = in_thread(run.start)
        assert calling.is_alive(), "it waits for the branch"
        other.execute(f"UPDATE \"{one.schema}\".sessions SET hidden = true, id = 'elsewhere'")
        other.commit()
    calling.join(10)
    assert [type(error) for error in raised] == [FencedError]
    with psycopg.connect(postgres_url) as other:
        assert other.execute(f'SELECT count(*) FROM "{one.schema}".calls').fetchone() == (1,)
    assert two.read(Ask(SESSION)).session is None


# blobs


def test_blobs_that_come_and_go_at_once_are_there_exactly_as_long_as_they_are_needed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = dict([blob(number) for number in range(4)])
    faults: list[str | None] = []

    def judged(error: psycopg.Error, *, broken: bool) -> Any:
        faults.append(error.sqlstate)
        return fault_of(error, broken=broken)

    monkeypatch.setattr(writing, "fault_of", judged)

    def act(me: int) -> None:
        chance = random.Random(me)
        backend, session = pair[me % 2], f"session {me}"
        for _ in range(30):
            refs = tuple(chance.sample(sorted(shared), 3))
            put(backend, checkpoint(1, refs=refs), session=session, blobs={ref: shared[ref] for ref in refs})
            if chance.random() < 0.5:
                drop(backend, (Kind.CHECKPOINT, 1), session=session)

    together(act, 6)
    two = pair[1]
    assert not list(two.check())
    for me in range(6):
        if two.scan(f"session {me}", Kind.CHECKPOINT, limit=1):
            drop(two, (Kind.CHECKPOINT, 1), session=f"session {me}")
    assert not two.blobs(list(shared))
    assert "40P01" not in faults, "nobody waits for somebody who waits for him"


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    """Somebody who is at it for a while; and what came of it, if it was an error."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - asserted by the test
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(0.3)
    return thread, raised


def test_a_blob_that_is_just_being_referred_to_is_not_removed(pair: Pair, postgres_url: str) -> None:
    one, _ = pair
    digest, data = blob(1)
    put(one, checkpoint(1, refs=(digest,)), blobs={digest: data})
    with psycopg.connect(postgres_url) as other:  # somebody in the middle of a write
        other.execute(f'SELECT 1 FROM "{one.schema}".blobs FOR KEY SHARE')
        dropping, raised = in_thread(lambda: drop(one, (Kind.CHECKPOINT, 1)))
        assert dropping.is_alive()
        other.execute(f'INSERT INTO "{one.schema}".refs VALUES (999, 2, 1, %s)', (digest,))
        other.commit()
    dropping.join(10)
    assert not raised
    assert one.blobs([digest]) == {digest: data}


def test_a_blob_that_is_just_being_removed_is_not_referred_to(pair: Pair, postgres_url: str) -> None:
    one, _ = pair
    digest, data = blob(1)
    one.put_blobs({digest: data})
    with psycopg.connect(postgres_url) as other:  # somebody who sweeps
        other.execute(f'DELETE FROM "{one.schema}".blobs')
        putting, raised = in_thread(lambda: put(one, checkpoint(1, refs=(digest,))))
        assert putting.is_alive()
        other.commit()
    putting.join(10)
    assert [type(error) for error in raised] == [BlobsAbsentError]
    assert one.read(Ask(SESSION)).session is None
    put(one, checkpoint(1, refs=(digest,)), blobs={digest: data})
    assert not list(one.check())


def test_of_writes_that_share_a_round_trip_only_the_one_without_its_blob_fails(pair: Pair) -> None:
    one, _ = pair
    digest, _ = blob(1)
    put(one, LaneRow("main"))
    gate = threading.Event()
    failed: list[Any] = []

    def act(me: int) -> None:
        nonlocal failed
        if me == 0:

            def slow(view: View) -> Batch:
                gate.wait(1)
                return Batch((LaneRow("main", token=1),))

            one.write(Ask(SESSION, names=("main",)), slow)
            return
        time.sleep(0.1)
        if me == 7:
            time.sleep(0.2)
            gate.set()
        try:
            put(one, checkpoint(me, refs=(digest,) if me == 3 else ()))
        except BlobsAbsentError as error:
            failed += [(me, error.digests)]

    together(act, 8)
    assert failed == [(3, {digest})]
    assert [row.sequence for row in one.scan(SESSION, Kind.CHECKPOINT, limit=9)] == [1, 2, 4, 5, 6, 7]  # type: ignore[union-attr]


# interrupts


def test_an_interrupted_leader_leaves_the_others_to_go_on(pair: Pair) -> None:
    one, two = pair
    run = Runner(one)
    waiting = threading.Event()
    done: list[int] = []

    def follow(me: int) -> None:
        waiting.wait(5)
        run.call(f"call {me}")
        done.append(me)

    followers = [threading.Thread(target=follow, args=(me,)) for me in range(6)]
    for thread in followers:
        thread.start()

    def interrupted(_view: View) -> Batch:
        waiting.set()
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)
        return Batch()

    with pytest.raises(KeyboardInterrupt):
        one.write(Ask(SESSION, names=("main",)), interrupted)
    for thread in followers:
        thread.join(10)
    assert sorted(done) == list(range(6))
    assert len(two.read(Ask(SESSION, names=("main",), pending=("main",))).pending["main"]) == 6


def test_writes_that_were_sent_when_their_leader_was_interrupted_are_recognised(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    run = Runner(one)
    run.start("first")
    strike = threading.Event()

    def interrupting(send: Callable[..., Any]) -> Callable[..., Any]:
        def act(connection: Any, said: Any, *rest: Any) -> Any:
            found = send(connection, said, *rest)
            if strike.is_set() and b"write_2" in repr(said).encode() and in_main_thread():
                strike.clear()
                raise KeyboardInterrupt  # the server has written; no thread is told
            return found

        return act

    for name in ("ask", "ask_all", "ask_kept"):
        monkeypatch.setattr(pool, name, interrupting(getattr(protocol, name)))
    queued = threading.Event()

    def follow(me: int) -> None:
        queued.wait(5)
        run.start(f"call {me}")

    followers = [threading.Thread(target=follow, args=(me,)) for me in range(5)]
    for thread in followers:
        thread.start()

    def slow(view: View) -> Batch:
        queued.set()
        time.sleep(0.2)
        strike.set()
        return Batch((view.lanes["main"],))

    with pytest.raises(KeyboardInterrupt):
        one.write(Ask(SESSION, names=("main",)), slow)
    for thread in followers:
        thread.join(10)
    calls = two.read(Ask(SESSION, names=("main",), pending=("main",))).pending["main"]
    assert len(calls) == 6


def test_an_interrupt_while_several_statements_are_on_their_way_costs_a_connection_and_nothing_else(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    author = Author(one)
    author.grow(2)
    struck: list[int] = []

    class Interrupted:
        """Waits for the answer, and is interrupted when it is there."""

        def __init__(self) -> None:
            self._real = select.poll()

        def register(self, socket: int, events: int) -> None:
            self._real.register(socket, events)

        def poll(self) -> None:
            self._real.poll()
            struck.append(1)
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(protocol, "poll", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            author.commit({"picture": b"p" * 6_000}, keyframe=True)
    assert struck == [1]
    author.stand_on_head()
    assert author.state["picture"] == b"p" * 6_000, "the server had all of it"
    last = author.grow(1)[0]
    assert [row.sequence for row in two.ancestors(SESSION, last.sequence, limit=9) if not hasattr(row, "why")] == [
        4,
        3,
        2,
        1,
    ]
    assert not list(two.check())
