"""How PostgreSQL is written to: in few round trips, on what is kept from the last write, by many at once."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from backstay.backends.postgres import PostgresBackend, pool, protocol, writing
from backstay.backends.postgres.faults import fault_of
from backstay.errors import ConflictError, FencedError, FormatError, LeaseHeldError
from backstay.port import Ask, Batch, BlobsAbsentError, Kind, LaneRow, SessionQuery, View
from backstay.port.rows import DONE
from backstay.rules import runs
from backstay.rules.commit import commit as commit_rule
from backstay.testing.author import SESSION, Author, Runner, check_states, delete, entering, fork, tag
from backstay.testing.contract.handmade import blob, checkpoint, drop, put, together
from tests.backends.conftest import Fresh
from tests.backends.proxy import eventually

Pair = tuple[PostgresBackend, PostgresBackend]


@pytest.fixture
def pair(postgres_url: str, fresh_schema: Fresh) -> Iterator[Pair]:
    """Two openings of one store: for the server, two processes."""
    schema = fresh_schema()
    with (
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as one,
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as two,
    ):
        yield one, two


class Trips:
    """Counts what is sent to the server and answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[bytes] = []
        for name in ("ask", "ask_kept"):
            monkeypatch.setattr(pool, name, self._counting(getattr(pool, name)))
        execute = psycopg.Connection.execute

        def counting(connection: Any, statement: Any, *rest: Any) -> Any:
            self.sent.append(str(statement).encode())
            return execute(connection, statement, *rest)

        monkeypatch.setattr(psycopg.Connection, "execute", counting)

    def _counting(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counting(connection: Any, said: bytes, *rest: Any) -> Any:
            self.sent.append(said)
            return send(connection, said, *rest)

        return counting

    def of(self, act: Callable[[], Any]) -> int:
        before = len(self.sent)
        act()
        return len(self.sent) - before


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(monkeypatch)


def warm(backend: PostgresBackend) -> None:
    """Statements that are used often are kept by the server from now on."""
    author = Author(backend, "warm")
    author.grow(8)
    for _ in range(8):
        backend.state("warm", "main")
        backend.read(Ask("warm"))


# round trips


def test_a_commit_a_journal_write_and_a_load_are_one_round_trip(pair: Pair, trips: Trips) -> None:
    one, _ = pair
    warm(one)
    author = Author(one)
    author.grow(1)
    assert trips.of(lambda: author.grow(1)) == 1
    assert trips.of(lambda: author.commit({"picture": b"p" * 6_000}, keyframe=True)) == 1
    assert trips.of(lambda: one.state(SESSION, "main")) == 1
    assert trips.of(lambda: author.commit({"n": 1}, id_="a name of the caller's")) == 1
    run = Runner(one, "a run")
    begun: list[Any] = []
    assert trips.of(lambda: begun.append(run.start())) == 1
    assert trips.of(lambda: run.finish(begun[0])) == 1
    assert trips.of(lambda: run.boundary(places={begun[0].at: b"a place"})) == 1
    assert trips.of(run.start) == 1
    assert trips.of(run.renew) == 1
    assert trips.of(lambda: run.leave("completed")) == 1


def test_other_intentions_are_few_round_trips(pair: Pair, trips: Trips) -> None:
    one, _ = pair
    warm(one)
    author = Author(one)
    rows = author.grow(5)
    new = entering(author.uid)
    assert trips.of(lambda: one.write(new.ask, runs.enter(new))) <= 2
    cold = entering(bytes(16), "another session")
    assert trips.of(lambda: one.write(cold.ask, runs.enter(cold))) == 2
    assert trips.of(lambda: fork(one, SESSION, rows[1], "other")) == 2
    assert trips.of(lambda: tag(one, SESSION, rows[1], "good")) == 2
    assert trips.of(lambda: one.sessions(SessionQuery())) == 1


def test_a_refused_write_looks_once(pair: Pair, trips: Trips) -> None:
    one, _ = pair
    author = Author(one)
    author.grow(2)
    stale = Author(one).stand_on_head()
    author.grow(1)
    draft = stale.draft({"n": 1})

    def refused() -> None:
        with pytest.raises(ConflictError):
            one.write(draft.ask, commit_rule(draft))

    assert trips.of(refused) == 1


# what is kept from the last write


def test_what_is_kept_may_be_old_and_nothing_is_lost(pair: Pair, trips: Trips) -> None:
    one, two = pair
    mine = Author(one)
    mine.grow(3)
    theirs = Author(two).stand_on_head()
    theirs.grow(2)
    draft = mine.draft({"late": True})
    with pytest.raises(ConflictError):
        one.write(draft.ask, commit_rule(draft))
    mine.stand_on_head()
    mine.grow(1)
    check_states(two, SESSION, mine.states | theirs.states)
    assert mine.rows[-1].parent == theirs.rows[-1].sequence


def test_a_miss_brings_what_is_there_and_costs_one_more_round_trip(pair: Pair, trips: Trips) -> None:
    one, two = pair
    warm(one)
    author = Author(one)
    first = author.grow(2)[0]
    fork(two, SESSION, first, "other")
    other = Author(two, branch="other").stand_on_head()
    author.grow(1)
    other.grow(1)  # the session's line is another now, the branch is not
    assert trips.of(lambda: author.grow(1)) == 2
    assert trips.of(lambda: author.grow(1)) == 1
    check_states(two, SESSION, {**author.states, **other.states})


def test_a_refusal_on_what_is_kept_is_checked_before_it_is_said(pair: Pair) -> None:
    one, two = pair
    run = Runner(one, lease_s=0.2)
    run.leave()
    taken = Runner(two, lease_s=30)
    new = entering(run.author.uid, nonce=b"another")
    with pytest.raises(LeaseHeldError):
        one.write(new.ask, runs.enter(new))  # keeps what it saw: the branch is held
    taken.leave("completed")
    entered = one.write(new.ask, runs.enter(new)).answer
    assert entered.lease.token == taken.lease.token + 1


def test_the_calls_of_a_run_do_not_miss_when_another_branch_is_written(pair: Pair, trips: Trips) -> None:
    one, two = pair
    warm(one)
    first = Author(one).grow(2)[0]
    run = Runner(one)
    run.call()
    fork(two, SESSION, first, "other")
    other = Author(two, branch="other").stand_on_head()
    for _ in range(3):
        other.grow(1)
        assert trips.of(run.call) == 2


def test_a_run_that_was_fenced_elsewhere_learns_it_at_its_next_call(pair: Pair) -> None:
    one, two = pair
    old = Runner(one, lease_s=0.05)
    begun = old.start()
    time.sleep(0.1)
    new = Runner(two)
    for act in (old.start, lambda: old.finish(begun), old.renew, old.boundary):
        with pytest.raises(FencedError):
            act()
    assert new.call().status == DONE


def test_a_call_that_was_settled_outside_is_not_overwritten(pair: Pair) -> None:
    one, two = pair
    run = Runner(one)
    begun = run.start()
    decided = msgspec.structs.replace(begun, status="skipped", nonce=b"outside")
    two.write(runs.settle_ask(SESSION, "main", begun.at), runs.settle(SESSION, "main", before=begun, after=decided))
    seen: list[View] = []
    rule = runs.journal(run.lease, begun, at=begun.at)

    def decide(view: View) -> Any:
        seen.append(view)
        return rule(view)

    with pytest.raises(ConflictError):
        one.write(runs.journal_ask(run.lease, begun.at), decide)
    assert len(seen) == 2
    assert seen[-1].calls[begun.at] == decided


def test_what_a_rule_looked_at_is_compared_even_if_it_only_puts_a_branch(pair: Pair) -> None:
    one, two = pair
    put(one, LaneRow("main"), LaneRow("other"))

    def decide(view: View) -> Batch:
        assert view.session is not None
        return Batch((msgspec.structs.replace(view.lanes["main"], token=view.session.checkpoints),))

    ask = Ask(SESSION, names=("main",))
    one.write(ask, decide)
    put(two, checkpoint(1), LaneRow("other", token=9))
    one.write(ask, decide)
    assert two.read(ask).lanes["main"].token == 1


def test_the_clock_of_a_kept_view_goes_on_and_is_the_servers(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = pair
    put(one, LaneRow("main"))
    seen: list[int] = []

    def decide(view: View) -> Batch:
        seen.append(view.now_us)
        return Batch((LaneRow("main", token=len(seen)),))

    for _ in range(3):
        one.write(Ask(SESSION, names=("main",)), decide)
        time.sleep(0.05)
    now = one.read(Ask(SESSION)).now_us
    assert seen == sorted(seen)
    assert 50_000 <= seen[2] - seen[1] < 1_000_000
    assert 50_000 <= now - seen[2] < 1_000_000


# numbers


def test_runs_that_begin_at_once_in_many_processes_have_numbers_of_their_own(pair: Pair) -> None:
    for number in range(6):
        put(pair[number % 2], LaneRow("main"), session=f"session {number}")
    numbers: list[int] = []

    def act(me: int) -> None:
        for session in range(6):
            run = Runner(pair[me], f"session {session}", branch="main" if me else "other", expect_token=None)
            numbers.append(run.lease.run)

    for session in range(6):
        put(pair[0], LaneRow("other"), session=f"session {session}")
    together(act, 2)
    assert len(set(numbers)) == 12


def test_a_run_begins_however_many_numbers_are_given_meanwhile(pair: Pair) -> None:
    one, two = pair
    for session in ("quiet", "busy"):
        put(one, LaneRow("main"), session=session)
    new = entering(bytes(range(16)), "quiet")
    rule, tries = runs.enter(new), 0

    def decide(view: View) -> Any:
        nonlocal tries
        tries += 1
        put(two, LaneRow("main", token=tries), session="busy")
        return rule(view)

    entered = one.write(new.ask, decide).answer
    assert tries == 3
    assert entered.lease.run not in {line.touched for line in two.sessions(SessionQuery()) if line.id == "busy"}
    assert [line.id for line in two.sessions(SessionQuery())] == ["quiet", "busy"]


def test_sessions_are_listed_by_their_last_write_whoever_made_it(pair: Pair) -> None:
    one, two = pair
    authors = [Author(pair[number % 2], f"session {number}") for number in range(6)]
    for author in authors:
        author.grow(1)
    for number in (4, 1, 5, 0, 2, 3):
        authors[number].grow(1)
    found = [row.id for row in one.sessions(SessionQuery())]
    assert found == [f"session {number}" for number in (3, 2, 0, 5, 1, 4)]
    paged: list[str] = []
    before = None
    while page := two.sessions(SessionQuery(before=before, limit=1)):
        paged.append(page[0].id)
        before = page[0].touched
    assert paged == found


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_sessions_are_listed_newest_first_however_many_writes_lie_between(pair: Pair, limit: int) -> None:
    jumps = [1, 1, 254, 1, 1, 255, 256, 257, 511, 512, 1, 100_000, 1, 1, 2**40, 3]
    one, _ = pair
    for number, jump in enumerate(jumps):
        fresh = one.read(Ask(SESSION)).fresh
        put(one, LaneRow("main"), session=f"session {number}", touched=fresh + jump)
    seen: list[str] = []
    before = None
    while page := one.sessions(SessionQuery(before=before, limit=limit)):
        seen += [line.id for line in page]
        before = page[-1].touched
    assert seen == [f"session {number}" for number in reversed(range(len(jumps)))]


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


def test_a_write_that_misses_again_and_again_takes_the_lock(pair: Pair, trips: Trips) -> None:
    one, two = pair
    put(one, LaneRow("main"))
    tries = 0

    def decide(view: View) -> Batch:
        nonlocal tries
        tries += 1
        if tries <= 3:  # somebody is always faster, until the session is locked
            beaten = threading.Thread(target=put, args=(two, LaneRow("main", token=tries)))
            beaten.start()
            beaten.join(0.5)
        return Batch((msgspec.structs.replace(view.lanes["main"], crashes=view.lanes["main"].token),))

    one.write(Ask(SESSION, names=("main",)), decide)
    assert tries == 3
    assert any([b"hold_2" in said for said in trips.sent])
    assert eventually(lambda: two.read(Ask(SESSION, names=("main",))).lanes["main"].token == 3)


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
    send = protocol.ask_kept, protocol.ask

    def interrupting(which: int) -> Callable[..., Any]:
        def act(connection: Any, said: bytes, *rest: Any) -> Any:
            found = send[which](connection, said, *rest)
            if strike.is_set() and b"write_2" in said and threading.current_thread() is threading.main_thread():
                strike.clear()
                raise KeyboardInterrupt  # the server has written; nobody is told
            return found

        return act

    monkeypatch.setattr(pool, "ask_kept", interrupting(0))
    monkeypatch.setattr(pool, "ask", interrupting(1))
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


# features


def test_a_store_that_has_become_too_new_is_not_written_to(pair: Pair, postgres_url: str) -> None:
    one, _ = pair
    author = Author(one)
    author.grow(2)
    run = Runner(one, "a run")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'UPDATE "{one.schema}".meta SET write_features = 4')
        for act in (
            lambda: author.grow(1),
            lambda: Author(one, "new").grow(1),
            run.start,
            lambda: tag(one, SESSION, author.rows[0], "good"),
            lambda: delete(one, SESSION, author.rows[0].sequence),
        ):
            with pytest.raises(FormatError, match="does not know"):
                act()
        check_states(one, SESSION, author.states)
        PostgresBackend(postgres_url, schema=one.schema).close()
        connection.execute(f'UPDATE "{one.schema}".meta SET read_features = 1')
        with pytest.raises(FormatError, match="does not know"):
            PostgresBackend(postgres_url, schema=one.schema)
        with pytest.raises(FormatError, match="does not know"):
            one.read(Ask(SESSION))


# space


def test_what_every_commit_changes_is_changed_in_place(pair: Pair, postgres_url: str) -> None:
    one, two = pair
    Author(one).grow(300)
    one.close()
    counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = %s"
    with contextlib.closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        for table in ("sessions", "names"):

            def updates(table: str = table) -> tuple[int, int]:
                found = connection.execute(counted, (two.schema, table)).fetchone()
                return (0, 0) if found is None else (found[0], found[1])

            assert eventually(lambda: updates()[0] >= 299), table
            changed, in_place = updates()
            assert in_place > 0.95 * changed, table
