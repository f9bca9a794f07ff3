"""Journaled calls: written before and after they are made, decided from outside, and given up. Never silently twice."""

from __future__ import annotations

import msgspec
import pytest

from backstay.errors import ConflictError, FencedError, LeaseHeldError, NotFoundError
from backstay.port import CallRow, LaneRow, SessionRow, Unreadable
from backstay.port.rows import ABANDONED, DONE, FAILED, IN_DOUBT, RETRY, SKIPPED, STARTED
from backstay.rules import refusals, runs
from backstay.rules.calls import LOST_CALL, pending_of
from tests.rules.shelf import (
    LEASE_US,
    NOW_US,
    SESSION,
    Shelf,
    batch_of,
    call,
    claim,
    done,
    ids_of,
    lane,
    lease,
    line,
    lost,
    put_of,
    view_of,
)

BEGUN = line(sequence=1, checkpoints=1, lanes=1)
LIVE = lane(at=1, run=5, token=1, entered=True, unfinished=True, claim=claim(), input=b"\0in")
SILENT = msgspec.structs.replace(LIVE, claim=claim(NOW_US - LEASE_US))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


# by the run


def test_a_call_gets_the_next_place_in_the_journal_of_its_branch() -> None:
    assert (runs.journal_ask(lease(), None).counted, runs.journal_ask(lease(), None).calls) == (("main",), ())
    batch = batch_of(runs.journal(lease(), call("a", (0, 0, 0)), at=None)(view_of(BEGUN, LIVE, counts={"main": 4})))
    assert batch.puts == (call("a", (5, 1, 4)),)
    assert batch.answer == call("a", (5, 1, 4))
    assert (batch.wakes, batch.lazy) == (False, False)


def test_what_became_of_a_call_takes_the_place_of_what_was_written_before() -> None:
    ask = runs.journal_ask(lease(), (5, 1, 4))
    assert (ask.counted, ask.calls) == ((), ((5, 1, 4),))
    now = done("a", (0, 0, 0))
    batch = batch_of(runs.journal(lease(), now, at=(5, 1, 4))(view_of(BEGUN, LIVE, call("a", (5, 1, 4)))))
    assert batch.puts == (done("a", (5, 1, 4)),)
    assert batch.answer == done("a", (5, 1, 4))


def test_a_run_that_was_asked_to_stop_begins_no_call_and_records_those_in_flight() -> None:
    stopped = msgspec.structs.replace(LIVE, stop="enough")
    begun = msgspec.structs.replace(call("a"), status=STARTED, token=1)
    with pytest.raises(refusals.StopAsked, match="enough"):
        runs.journal(lease(), begun, at=None)(view_of(BEGUN, stopped, counts={"main": 0}))
    view = view_of(BEGUN, stopped, call("a", (5, 1, 0)))
    batch = batch_of(runs.journal(lease(), done("a"), at=(5, 1, 0))(view))
    assert batch.puts == (done("a", (5, 1, 0)),)


def test_a_journal_write_renews_a_lease_that_has_aged_and_touches_nothing_else_before() -> None:
    aged = msgspec.structs.replace(LIVE, claim=claim(NOW_US - LEASE_US // 20 - 1))
    batch = batch_of(runs.journal(lease(), call("a"), at=None)(view_of(BEGUN, aged, counts={"main": 0})))
    assert put_of(batch, LaneRow) == LIVE
    assert not [row for row in batch.puts if isinstance(row, SessionRow)]
    before = call("a", (5, 1, 0))
    batch = batch_of(runs.journal(lease(), done("a"), at=(5, 1, 0))(view_of(BEGUN, aged, before)))
    assert put_of(batch, LaneRow) == LIVE


@pytest.mark.parametrize(
    "kept",
    [
        None,
        lost(),
        call("another"),
        call("a", nonce=b"decided"),
    ],
    ids=["gone", "damaged", "another", "decided from outside"],
)
def test_an_outcome_is_not_written_over_what_the_run_has_not_seen(kept: CallRow | Unreadable | None) -> None:
    view = view_of(BEGUN, LIVE)
    view.calls = {} if kept is None else {(5, 1, 0): kept}
    with pytest.raises(ConflictError, match="call a is no longer as it was"):
        runs.journal(lease(), done("a"), at=(5, 1, 0))(view)


def test_history_is_not_written_over() -> None:
    for at in ((5, 0, 0), (4, 1, 0)):
        with pytest.raises(ConflictError, match="no longer as it was"):
            runs.journal(lease(), done("a"), at=at)(view_of(BEGUN, LIVE, call("a", at)))


def test_a_decision_that_the_run_has_seen_can_be_followed(shelf: Shelf) -> None:
    shelf.commit()
    first = shelf.enter()
    shelf.begin(first.lease, "a")
    shelf.pass_time()
    second = shelf.enter()
    (doubt,) = second.calls
    decide(shelf, doubt, status=RETRY, nonce=b"ana")
    (seen,) = shelf.pending()
    assert isinstance(seen, CallRow)
    with pytest.raises(ConflictError):
        shelf.finish(second.lease, doubt)
    assert shelf.finish(second.lease, seen).nonce == b"ana"


def test_a_journal_write_that_went_through_is_recognised_though_the_run_was_fenced_since() -> None:
    begun, ended = call("a"), done("a")
    fenced = msgspec.structs.replace(LIVE, token=2)
    for seen in (view_of(BEGUN, fenced, begun), view_of(BEGUN, begun), view_of(begun)):
        batch = batch_of(runs.journal(lease(), call("a", (0, 0, 0)), at=None)(seen))
        assert (batch.puts, batch.answer) == ((), begun)
    batch = batch_of(runs.journal(lease(), ended, at=(5, 1, 0))(view_of(BEGUN, fenced, ended, again=True)))
    assert (batch.puts, batch.answer) == ((), ended)


def test_another_calls_place_is_not_taken_for_an_earlier_try() -> None:
    view = view_of(BEGUN, LIVE, call("parallel"), counts={"main": 1}, again=True)
    assert batch_of(runs.journal(lease(), call("a"), at=None)(view)).answer == call("a", (5, 1, 1))


# from outside


def decide(shelf: Shelf, before: CallRow, branch: str = "main", **change: object) -> None:
    after = msgspec.structs.replace(before, **change)
    shelf.write(runs.settle_ask(SESSION, branch, before.at), runs.settle(SESSION, branch, before=before, after=after))


def test_a_decision_changes_the_call_and_fences_a_run_that_is_silent() -> None:
    before, after = call("a"), done("a", nonce=b"ana")
    ask = runs.settle_ask(SESSION, "main", before.at)
    assert (ask.names, ask.calls) == (("main",), (before.at,))
    rule = runs.settle(SESSION, "main", before=before, after=after)
    batch = batch_of(rule(view_of(BEGUN, SILENT, before)))
    assert batch.puts == (after, msgspec.structs.replace(SILENT, token=2))
    assert batch.wakes
    live = batch_of(rule(view_of(BEGUN, LIVE, before)))
    assert live.puts == (after,), "the run that is alive goes on with what was decided"


@pytest.mark.parametrize(
    ("seen", "kept"),
    [
        (SILENT, None),
        (SILENT, lost()),
        (SILENT, call("a", status=IN_DOUBT)),
        (SILENT, done("a", nonce=b"bob")),
        (None, call("a")),
        (msgspec.structs.replace(SILENT, journal=2), call("a")),
        (msgspec.structs.replace(SILENT, run=6), call("a")),
    ],
    ids=["gone", "damaged", "ended", "decided", "branch deleted", "taken in", "branch made again"],
)
def test_a_decision_about_what_has_changed_is_refused(seen: LaneRow | None, kept: CallRow | Unreadable | None) -> None:
    view = view_of(BEGUN, *([] if seen is None else [seen]))
    view.calls = {} if kept is None else {(5, 1, 0): kept}
    with pytest.raises(ConflictError, match="call a is no longer as it was"):
        runs.settle(SESSION, "main", before=call("a"), after=done("a", nonce=b"ana"))(view)


def test_a_call_that_was_given_up_stays_given_up() -> None:
    before = call("a", status=ABANDONED)
    with pytest.raises(ConflictError):
        runs.settle(SESSION, "main", before=before, after=done("a"))(view_of(BEGUN, SILENT, before))


def test_a_decision_in_a_session_that_is_gone_says_so() -> None:
    with pytest.raises(NotFoundError, match="no session 's'"):
        runs.settle(SESSION, "main", before=call("a"), after=done("a"))(view_of())


def test_a_decision_that_went_through_is_recognised_whatever_became_of_the_call() -> None:
    rule = runs.settle(SESSION, "main", before=call("a"), after=done("a", nonce=b"ana"))
    for kept in (done("a", nonce=b"ana"), call("a", token=9, nonce=b"ana")):
        for seen in (view_of(BEGUN, LIVE, kept), view_of(BEGUN, kept), view_of(kept)):
            assert batch_of(rule(seen)).puts == ()


def test_a_second_decision_about_a_call_is_not_taken_for_the_first(shelf: Shelf) -> None:
    # It was decided once ("make it again"), and is in doubt again: the nonce of then stands in its row.
    before = call("a", nonce=b"ana", status=STARTED)
    after = msgspec.structs.replace(before, token=2)
    batch = batch_of(runs.settle(SESSION, "main", before=before, after=after)(view_of(BEGUN, LIVE, before)))
    assert batch.puts == (after,)


def test_of_two_who_decide_one_wins(shelf: Shelf) -> None:
    shelf.commit()
    shelf.begin(shelf.enter().lease, "a")
    shelf.pass_time()
    (before,) = shelf.pending()
    assert isinstance(before, CallRow)
    decide(shelf, before, status=SKIPPED, nonce=b"ana")
    with pytest.raises(ConflictError):
        decide(shelf, before, status=RETRY, nonce=b"bob")
    decide(shelf, before, status=SKIPPED, nonce=b"ana")
    assert [row.status for row in shelf.enter().calls] == [SKIPPED]


# giving up


def test_what_is_given_up_stays_in_history_and_the_run_is_over(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter(input=b"\0in")
    shelf.call(found.lease, "a")
    shelf.begin(found.lease, "b")
    token = shelf.lane().token
    shelf.pass_time()
    assert shelf.abandon() == 2
    after = shelf.lane()
    assert (after.claim, after.entered, after.unfinished, after.input) == (None, False, False, None)
    assert (after.status, after.reason, after.crashes, after.token) == ("halted", "enough", 0, token + 1)
    assert (shelf.tables.session.status, shelf.tables.session.reason) == ("halted", "enough")
    kept = [row for row in shelf.pending() if isinstance(row, CallRow)]
    assert [(row.status, row.error) for row in kept] == [(ABANDONED, ("abandoned", "enough"))] * 2
    assert [row.ended_us for row in kept] == [NOW_US, shelf.now_us], "when a call ended is not forgotten"
    assert kept[0].result == b"\0ok"
    again = shelf.enter()
    assert again.calls == ()
    made = shelf.commit(lease=again.lease)
    assert made.took is not None
    assert made.took.count == 2, "they are taken in by the next boundary, given up as they are"


def test_where_nothing_is_pending_there_is_nothing_to_give_up(shelf: Shelf) -> None:
    shelf.commit()
    before = shelf.tables.session, shelf.lane()
    assert shelf.abandon() == 0
    assert (shelf.tables.session, shelf.lane()) == before


def test_a_run_without_calls_is_given_up_too() -> None:
    rule = runs.abandon(SESSION, "main", reason="enough", at_us=NOW_US, nonce="n")
    unfinished = lane(at=1, run=5, token=1, unfinished=True, status="failed")
    batch = batch_of(rule(view_of(BEGUN, unfinished, pending={"main": []})))
    assert (batch.answer, batch.wakes) == (0, True)
    assert (put_of(batch, LaneRow).unfinished, put_of(batch, LaneRow).status) == (False, "halted")
    assert put_of(batch, SessionRow).touched == 9


def test_calls_that_are_left_over_are_given_up_where_no_run_is_unfinished() -> None:
    rule = runs.abandon(SESSION, "main", reason="enough", at_us=NOW_US, nonce="n")
    batch = batch_of(rule(view_of(BEGUN, lane(at=1, run=5, token=1), pending={"main": [done("a")]})))
    assert batch.answer == 1
    assert put_of(batch, CallRow).status == ABANDONED


def test_damaged_calls_can_be_given_up(shelf: Shelf) -> None:
    pending = [call("a", (5, 1, 0), status=ABANDONED, error=("x", "y")), lost((5, 1, 1)), done("b", (5, 1, 2))]
    rule = runs.abandon(SESSION, "main", reason="enough", at_us=NOW_US + 5, nonce="beef")
    batch = batch_of(rule(view_of(BEGUN, SILENT, pending={"main": pending})))
    assert batch.answer == 2
    damaged, intact = [row for row in batch.puts if isinstance(row, CallRow)]
    assert (damaged.at, damaged.id, damaged.name, damaged.status) == ((5, 1, 1), "beef1", LOST_CALL, ABANDONED)
    assert damaged.error is not None
    assert damaged.error[1].startswith("enough (what was recorded is damaged: a call row is damaged")
    assert (intact.at, intact.id, intact.status) == ((5, 1, 2), "b", ABANDONED)


def test_nobody_gives_up_what_is_being_run_or_is_not_there() -> None:
    rule = runs.abandon(SESSION, "main", reason="enough", at_us=NOW_US, nonce="n")
    assert (runs.abandon_ask(SESSION, "main").names, runs.abandon_ask(SESSION, "main").pending) == (("main",),) * 2
    with pytest.raises(LeaseHeldError):
        rule(view_of(BEGUN, LIVE, pending={"main": [call()]}))
    with pytest.raises(NotFoundError, match="no session"):
        rule(view_of())
    with pytest.raises(NotFoundError, match="no branch 'main'"):
        rule(view_of(BEGUN))


def test_a_stalled_run_writes_nothing_once_it_was_given_up(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter()
    begun = shelf.begin(found.lease, "a")
    shelf.pass_time()
    shelf.abandon()
    with pytest.raises(FencedError):
        shelf.finish(found.lease, begun)


def test_giving_up_that_went_through_is_recognised_though_the_next_run_is_alive(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter()
    shelf.begin(found.lease, "a")
    shelf.pass_time()
    assert shelf.abandon(nonce="mine") == 1
    shelf.enter()
    before = shelf.tables.session, shelf.lane(), shelf.pending()
    assert shelf.abandon(nonce="mine") == 1
    assert (shelf.tables.session, shelf.lane(), shelf.pending()) == before
    with pytest.raises(LeaseHeldError):
        shelf.abandon(nonce="another")


# which calls are in doubt


@pytest.mark.parametrize("status", [STARTED, IN_DOUBT, DONE, FAILED, SKIPPED, RETRY, ABANDONED])
def test_only_what_began_and_has_no_outcome_is_in_doubt(status: str) -> None:
    row = call(status=status, token=3)
    assert refusals.in_doubt(row, None) is (status in (STARTED, IN_DOUBT))
    assert refusals.in_doubt(row, 4) is (status in (STARTED, IN_DOUBT))
    assert refusals.in_doubt(row, 3) is (status == IN_DOUBT), "the run that began it is alive, and at it"


def test_only_eight_calls_in_doubt_are_named() -> None:
    (found,) = refusals.doubtful(SESSION, "main", [call(f"c{n}") for n in range(20)])
    assert found[1].args[0].count("pay (") == 8


def test_pending_are_all_but_those_given_up() -> None:
    rows: list[CallRow | Unreadable] = [call("a"), lost(), call("b", status=ABANDONED), done("d")]
    assert ids_of(pending_of(rows)) == ["a", "(damaged)", "d"]
