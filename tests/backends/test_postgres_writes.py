"""How PostgreSQL is written to: in few round trips, on what is kept from the last write, by many at once."""

import contextlib
import time
from typing import Any

import msgspec
import psycopg
import pytest

from backstay.backends.postgres import PostgresBackend
from backstay.errors import ConflictError, FencedError, FormatError, LeaseHeldError
from backstay.port import Ask, Batch, Kind, LaneRow, SessionQuery, View
from backstay.port.rows import DONE
from backstay.rules import runs
from backstay.rules.commit import commit as commit_rule
from backstay.testing.author import SESSION, Author, Runner, check_states, delete, entering, fork, tag
from backstay.testing.contract.handmade import checkpoint, drop, put, together
from tests.backends.proxy import eventually
from tests.backends.round_trips import Pair, Trips, pair, trips, warm

__all__ = ["pair", "trips"]


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


def test_a_session_that_was_looked_for_is_begun_in_one_round_trip(pair: Pair, trips: Trips) -> None:
    one, two = pair
    warm(one)
    assert one.state(SESSION, "main").session is None
    author = Author(one)
    assert trips.of(lambda: author.grow(1)) == 1
    assert one.state("a race", "main").session is None
    Author(two, "a race").commit({"first": True})
    late = entering(bytes(16), "a race", nonce=b"late")
    entered = one.write(late.ask, runs.enter(late)).answer
    assert entered.lane.head.sequence == 1
    check_states(two, SESSION, author.states)


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


def test_a_write_that_misses_locks_the_session_and_costs_two_more_round_trips(pair: Pair, trips: Trips) -> None:
    one, two = pair
    warm(one)
    author = Author(one)
    first = author.grow(2)[0]
    fork(two, SESSION, first, "other")
    other = Author(two, branch="other").stand_on_head()
    assert trips.of(lambda: author.grow(1)) == 3, "the session's line is another, the branch is not"
    other.grow(1)
    assert trips.of(lambda: author.grow(1)) == 2, "another process writes here: the lock comes first"
    assert trips.of(lambda: author.grow(1)) == 2, "and finds that none has since"
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


def test_a_call_rests_on_its_branch_though_it_does_not_change_it(pair: Pair, trips: Trips) -> None:
    one, two = pair
    run = Runner(one)
    run.call()
    lane = two.read(Ask(SESSION, names=("main",))).lanes["main"]
    put(two, msgspec.structs.replace(lane, token=lane.token + 1))
    for act in (run.start, run.renew):
        with pytest.raises(FencedError):
            act()


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


def test_a_call_that_another_process_drops_is_not_counted(pair: Pair) -> None:
    one, two = pair
    run = Runner(one)
    run.boundary({"turn": 0})
    kept, gone = run.call(), run.call()
    drop(two, (Kind.CALL, gone.at))  # a write that names no branch
    took = run.boundary({"turn": 1}).took
    assert took is not None
    assert took.count == kept.n + 1


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
    assert tries == 2
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


# features


def test_a_store_that_has_become_too_new_is_not_written_to(pair: Pair, postgres_url: str) -> None:
    one, _ = pair
    author = Author(one)
    author.grow(2)
    run = Runner(one, "a run")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'UPDATE "{one.schema}".meta SET write_features = 1::bigint << 40')
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
        connection.execute(f'UPDATE "{one.schema}".meta SET read_features = 1::bigint << 40')
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
