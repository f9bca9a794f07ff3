"""Runs: who gets the lease of a branch, what a run begins with, what a crash counts for, and how a run ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.codec import encode_stored
from backstay.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    FencedError,
    InDoubtError,
    LeaseHeldError,
    NotFoundError,
)
from backstay.port import Batch, CallRow, LaneRow, More, SessionRow, TagRow, View
from backstay.port.lease import Claim
from backstay.port.row_codec import marks_of
from backstay.port.rows import ABANDONED, DONE, ENTERED, RETRY
from backstay.rules import runs
from backstay.rules.refusals import Lease, StopAsked, holds
from backstay.rules.runs import Entered
from backstay.sealing import pack_value
from tests.rules.shelf import (
    HOLDER,
    LEASE_US,
    NOW_US,
    SESSION,
    Shelf,
    batch_of,
    call,
    checkpoint,
    claim,
    done,
    entering,
    ids_of,
    lane,
    lease,
    line,
    lost,
    put_of,
    view_of,
)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


OLD, NEW = (pack_value(encode_stored(text)) for text in ("old", "new"))
BEGUN = line(sequence=1, checkpoints=1, lanes=1, status="completed", reason="x", agent="support")
DEAD: dict[str, Any] = {"run": 5, "token": 3, "entered": True, "unfinished": True, "claim": claim(NOW_US - LEASE_US)}


def entered(view: View, **fields: object) -> runs.Entered:
    answer = batch_of(runs.enter(entering(**fields))(view)).answer
    assert isinstance(answer, runs.Entered)
    return answer


# entering


def test_the_first_run_makes_session_and_branch() -> None:
    new = entering(agent="support", input=b"\0in")
    assert (new.ask.names, new.ask.pending) == (("main",), ("main",))
    batch = batch_of(runs.enter(new)(view_of()))
    after = put_of(batch, LaneRow)
    assert after == lane(
        run=9,
        token=1,
        entered=True,
        unfinished=True,
        claim=claim(),
        input=b"\0in",
        nonce=b"nonce",
        status="in_progress",
        since_us=new.at_us,
    )
    assert put_of(batch, SessionRow) == line(touched=9, lanes=1, agent="support")
    assert batch.answer == runs.Entered(Lease(SESSION, "main", 9, 1, LEASE_US), None, after, ())
    assert marks_of(after) == ENTERED


def test_a_run_on_a_branch_begins_at_its_head_with_what_is_pending() -> None:
    before = lane(at=1, status="failed", reason="no network", undo=1, undo_journal=0)
    gone = done("old", status="abandoned")
    view = view_of(BEGUN, before, pending={"main": [gone, done("a", (5, 1, 1)), call("b", (5, 1, 2))]})
    batch = batch_of(runs.enter(entering())(view))
    after, session = put_of(batch, LaneRow), put_of(batch, SessionRow)
    assert (after.head, after.journal, after.undo, after.undo_journal) == (before.head, 1, 1, 0)
    assert (after.status, after.reason, session.status, session.reason) == ("in_progress", None, "in_progress", None)
    assert (session.agent, session.lanes, session.touched, session.updated_us) == ("support", 1, 9, NOW_US)
    assert (batch.answer.before, batch.answer.lane) == (before, after)
    assert ids_of(batch.answer.calls) == ["a", "b"]


def test_a_branch_keeps_its_number_and_its_token_only_rises() -> None:
    found = entered(view_of(BEGUN, lane(at=1, run=5, token=3)))
    assert (found.lease.run, found.lease.token) == (5, 4)


def test_the_agent_of_a_run_becomes_that_of_the_session() -> None:
    batch = batch_of(runs.enter(entering(agent="other"))(view_of(BEGUN, lane(at=1))))
    assert put_of(batch, SessionRow).agent == "other"


def test_at_most_one_run_is_alive_on_a_branch() -> None:
    with pytest.raises(LeaseHeldError, match="is being run by process 4711"):
        entered(view_of(BEGUN, lane(at=1, **(DEAD | {"claim": claim()}))))
    with pytest.raises(LeaseHeldError, match=r"is held \(files\) by"):
        entered(view_of(BEGUN, lane(at=1, run=5, claim=claim(), purpose="files")))


def test_a_branch_that_is_not_there_cannot_be_run_once_there_are_checkpoints() -> None:
    with pytest.raises(NotFoundError, match="no branch 'main'"):
        entered(view_of(BEGUN))
    assert entered(view_of(line(lanes=1), lane("b", run=5)), branch="main").lease.run == 9


def test_a_branch_entered_before_its_first_checkpoint_can_be_entered_again() -> None:
    assert entered(view_of(BEGUN, lane(**DEAD))).lease.token == 4


def test_a_tag_cannot_be_run() -> None:
    with pytest.raises(AlreadyExistsError, match="'main'"):
        entered(view_of(BEGUN, TagRow("main", 1)))


def test_a_run_does_not_begin_where_a_call_cannot_be_read_and_does_where_one_is_in_doubt() -> None:
    with pytest.raises(CorruptionError, match="a pending call is damaged"):
        entered(view_of(BEGUN, lane(at=1, **DEAD), pending={"main": [done(), lost((5, 1, 1))]}))
    assert ids_of(entered(view_of(BEGUN, lane(at=1, **DEAD), pending={"main": [call("a")]})).calls) == ["a"]


@pytest.mark.parametrize(
    ("changed", "refused"),
    [({}, False), ({"token": 4}, True), ({"entered": False}, True), ({"claim": None}, False)],
    ids=str,
)
def test_a_recovery_goes_on_with_just_the_run_it_found(changed: dict[str, object], refused: bool) -> None:
    view = view_of(BEGUN, lane(at=1, **(DEAD | changed)))
    if refused:
        with pytest.raises(ConflictError, match="its run has ended or was resumed meanwhile"):
            entered(view, expect_token=3)
    else:
        assert entered(view, expect_token=3).lease.token == 4


def test_a_recovery_of_what_is_not_there_is_too_late() -> None:
    with pytest.raises(ConflictError, match="nothing left to do"):
        entered(view_of(), expect_token=3)


@pytest.mark.parametrize(
    ("unfinished", "kept", "given", "expected"),
    [
        (True, OLD, OLD, OLD),
        (True, OLD, None, OLD),
        (True, None, None, None),
        (False, OLD, NEW, NEW),
        (False, OLD, None, None),
    ],
)
def test_input_is_given_back_until_the_run_completes(
    unfinished: bool, kept: bytes | None, given: bytes | None, expected: bytes | None
) -> None:
    view = view_of(BEGUN, lane(at=1, run=5, token=3, unfinished=unfinished, input=kept))
    assert entered(view, input=given).lane.input == expected


@pytest.mark.parametrize("kept", [OLD, None])
def test_another_input_than_that_of_the_unfinished_run_is_refused_and_the_ways_on_are_named(kept: bytes | None) -> None:
    view = view_of(BEGUN, lane(at=1, run=5, token=3, unfinished=True, input=kept))
    with pytest.raises(ConflictError, match=r"'new' is another.*restart=True.*session\.cancel") as refused:
        entered(view, input=NEW)
    assert ("'old'" if kept else "without input") in str(refused.value)
    assert entered(view, input=NEW, restart=True).lane.input == NEW


def test_the_same_input_with_its_keys_in_another_order_resumes() -> None:
    kept, given = (pack_value(encode_stored(value)) for value in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    view = view_of(BEGUN, lane(at=1, run=5, token=3, unfinished=True, input=kept))
    assert entered(view, input=given).lane.input == kept


def test_a_restart_gives_up_what_is_pending_and_counts_no_crash() -> None:
    rows = (done("a", (5, 1, 0)), call("b", (5, 1, 1), status=RETRY))
    before = lane(at=1, **(DEAD | {"token": 3, "input": OLD, "crashes": 4, "spot": b"spot"}))
    batch = batch_of(runs.enter(entering(input=NEW, restart=True))(view_of(BEGUN, before, pending={"main": rows})))
    after = put_of(batch, LaneRow)
    assert (after.input, after.crashes, after.spot, after.unfinished) == (NEW, 0, b"", True)
    given_up = [row for row in batch.puts if isinstance(row, CallRow)]
    assert [(row.id, row.status, row.error) for row in given_up] == [
        ("a", ABANDONED, ("abandoned", "restarted")),
        ("b", ABANDONED, ("abandoned", "restarted")),
    ]
    answer: Entered = batch.answer
    assert answer.before is not None
    assert (answer.calls, answer.before.unfinished, answer.before.entered) == ((), False, False)


def test_a_restart_where_a_call_is_in_doubt_is_refused() -> None:
    view = view_of(BEGUN, lane(at=1, **(DEAD | {"token": 3})), pending={"main": (call("a", (5, 1, 0)),)})
    with pytest.raises(InDoubtError, match=r"pay \(a\)"):
        runs.enter(entering(restart=True))(view)


# stop


def cancelling(view: View) -> Batch:
    return batch_of(runs.cancel(SESSION, "main", reason="enough", at_us=NOW_US, nonce="beef")(view))


def test_a_live_run_is_asked_to_stop_and_keeps_its_lease() -> None:
    before = lane(at=1, run=5, token=3, entered=True, unfinished=True, claim=claim())
    batch = cancelling(view_of(BEGUN, before))
    assert (batch.puts, batch.wakes, batch.answer) == ((msgspec.structs.replace(before, stop="enough"),), True, True)
    asked = msgspec.structs.replace(before, stop="first")
    assert cancelling(view_of(BEGUN, asked)).puts == ()


def test_a_run_that_is_not_alive_ends_at_once_and_is_fenced() -> None:
    rows = (done("a", (5, 1, 0)), call("b", (5, 1, 1)))
    before = lane(at=1, **(DEAD | {"token": 3, "input": OLD}))
    batch = cancelling(view_of(BEGUN, before, pending={"main": rows}))
    after, session = put_of(batch, LaneRow), put_of(batch, SessionRow)
    assert (after.token, after.claim, after.entered, after.unfinished, after.input) == (4, None, False, False, None)
    assert (after.status, after.reason, session.status, session.reason) == ("cancelled", "enough") * 2
    assert [row.error for row in batch.puts if isinstance(row, CallRow)] == [
        ("abandoned", "enough"),
        ("abandoned", "outcome unknown: enough"),
    ]


def test_where_nothing_runs_there_is_nothing_to_stop() -> None:
    batch = cancelling(view_of(BEGUN, lane(at=1, run=5, token=3)))
    assert (batch.puts, batch.answer) == ((), False)
    with pytest.raises(NotFoundError, match="no session"):
        cancelling(view_of())


def test_a_run_that_was_asked_to_stop_begins_no_call_and_records_those_in_flight() -> None:
    before = lane(at=1, **(DEAD | {"token": 1, "claim": claim(), "stop": "enough"}))
    with pytest.raises(StopAsked, match="enough"):
        runs.journal(lease(), call("b", token=1), at=None)(view_of(BEGUN, before))
    flying = call("a", (5, 1, 0), token=1)
    outcome = msgspec.structs.replace(flying, status=DONE, result=b"\0ok")
    batch = batch_of(runs.journal(lease(), outcome, at=flying.at)(view_of(BEGUN, before, flying)))
    assert put_of(batch, CallRow) == outcome


@pytest.mark.parametrize("status", [None, "failed", "completed", "in_progress", "waiting"])
def test_a_run_that_was_asked_to_stop_is_cancelled_however_it_ends(status: str | None) -> None:
    before = lane(at=1, **(DEAD | {"token": 1, "claim": claim(), "stop": "enough"}))
    rule = runs.leave(lease(), status=status, reason="why", at_us=NOW_US, nonce="beef")
    more = rule(view_of(BEGUN, before))
    assert isinstance(more, More)
    assert more.ask.pending == ("main",)
    batch = batch_of(rule(view_of(BEGUN, before, pending={"main": (call("a", (5, 1, 0), token=1),)})))
    after = put_of(batch, LaneRow)
    assert (after.status, after.reason, after.stop, after.unfinished, after.entered) == (
        "cancelled",
        "enough",
        None,
        False,
        False,
    )
    assert put_of(batch, CallRow).status == ABANDONED
    assert batch.answer == "enough"


def test_a_run_that_died_before_it_heard_of_its_stop_is_not_resumed() -> None:
    before = lane(at=1, **(DEAD | {"token": 1, "input": OLD, "stop": "enough"}))
    view = view_of(BEGUN, before, pending={"main": (call("a", (5, 1, 0), token=1),)})
    batch = batch_of(runs.enter(entering(input=NEW))(view))
    assert (put_of(batch, LaneRow).input, put_of(batch, LaneRow).stop) == (NEW, None)
    assert put_of(batch, CallRow).error == ("abandoned", "outcome unknown: enough")
    assert batch.answer.calls == ()


# crashes


def crash(shelf: Shelf) -> runs.Entered:
    found = shelf.enter()
    shelf.pass_time()
    return found


def test_crashes_at_one_spot_are_counted_and_progress_begins_the_count_again(shelf: Shelf) -> None:
    shelf.commit()
    counts = [crash(shelf).lane.crashes for _ in range(4)]
    assert counts == [0, 1, 2, 3]
    found = shelf.enter()
    assert found.lane.crashes == 4
    begun = shelf.begin(found.lease, "a")
    shelf.pass_time()
    assert crash(shelf).lane.crashes == 1, "a call was begun since"
    found = shelf.enter()
    assert found.lane.crashes == 2
    shelf.finish(found.lease, begun)
    shelf.pass_time()
    assert crash(shelf).lane.crashes == 1, "a call was finished since"
    found = shelf.enter()
    shelf.commit(lease=found.lease)
    shelf.pass_time()
    assert crash(shelf).lane.crashes == 1, "a boundary was recorded since"
    assert crash(shelf).lane.crashes == 2
    shelf.commit()
    assert crash(shelf).lane.crashes == 1, "somebody else has written since"


def test_going_back_and_forth_is_progress_too(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter()
    shelf.call(found.lease, "a")
    shelf.pass_time()
    assert crash(shelf).lane.crashes == 1
    shelf.commit(undoable=True)
    shelf.commit(undoable=True, takes_up=True)
    assert ids_of(shelf.pending()) == ["a"]
    assert crash(shelf).lane.crashes == 1


def test_a_run_that_was_left_in_any_way_did_not_crash(shelf: Shelf) -> None:
    shelf.commit()
    for status in (None, "failed", "halted", "completed", "in_progress"):
        found = shelf.enter()
        assert found.lane.crashes == 0, status
        shelf.leave(found.lease, status, "because")


def test_an_interruption_neither_counts_nor_takes_back_what_was_counted(shelf: Shelf) -> None:
    shelf.commit()
    crash(shelf)
    found = shelf.enter()
    assert found.lane.crashes == 1
    shelf.leave(found.lease)
    assert crash(shelf).lane.crashes == 1
    assert shelf.enter().lane.crashes == 2


def test_a_run_that_ended_properly_takes_its_crashes_with_it(shelf: Shelf) -> None:
    shelf.commit()
    crash(shelf)
    found = shelf.enter()
    shelf.leave(found.lease, "failed", "because")
    assert crash(shelf).lane.crashes == 0


# tries that are tried again


def test_an_enter_that_went_through_is_recognised_and_knows_what_it_found(shelf: Shelf) -> None:
    shelf.commit()
    first = shelf.enter(input=b"\0in")
    shelf.call(first.lease, "a")
    shelf.pass_time()
    second = shelf.enter(nonce=b"mine", expect_token=first.lease.token)
    assert second.before is not None
    new = entering(nonce=b"mine", expect_token=first.lease.token, uid=b"another made meanwhile"[:16])
    batch = batch_of(runs.enter(new)(shelf.look(new.ask)))
    assert batch.puts == ()
    answer = batch.answer
    assert (answer.lease, answer.lane, answer.calls) == (second.lease, second.lane, second.calls)
    assert (answer.before.unfinished, answer.before.entered) == (second.before.unfinished, second.before.entered)
    assert (answer.before.unfinished, answer.before.entered) == (True, True)


def test_the_first_enter_of_all_found_nothing_however_often_it_is_tried(shelf: Shelf) -> None:
    shelf.enter(nonce=b"mine")
    new = entering(nonce=b"mine")
    answer = batch_of(runs.enter(new)(shelf.look(new.ask))).answer
    assert (answer.before.unfinished, answer.before.entered) == (False, False)


def test_an_enter_without_a_nonce_is_not_taken_for_another(shelf: Shelf) -> None:
    found = shelf.enter(nonce=b"")
    with pytest.raises(LeaseHeldError):
        shelf.enter(nonce=b"")
    shelf.leave(found.lease)
    assert shelf.enter(nonce=b"").lease.token == 2


@pytest.mark.parametrize("how", ["left", "completed", "abandoned", "held"])
def test_a_run_that_is_over_is_not_entered_again_by_a_late_try(shelf: Shelf, how: str) -> None:
    shelf.commit()
    found = shelf.enter(nonce=b"mine")
    if how == "left":
        shelf.leave(found.lease)
    elif how == "completed":
        shelf.commit(lease=found.lease, ends_run=True)
    elif how == "abandoned":
        shelf.pass_time()
        shelf.abandon()
    else:
        shelf.pass_time()
        shelf.leave(shelf.hold())
    assert shelf.enter(nonce=b"mine").lease.token > found.lease.token


# holding


def test_a_hold_takes_lease_and_fence_and_nothing_else(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter(input=b"\0in")
    shelf.leave(found.lease, "halted", "enough")
    before = shelf.lane()
    held = shelf.hold()
    assert held == Lease(SESSION, "main", before.run, before.token + 1, LEASE_US, "files")
    after = shelf.lane()
    changed = {"token": held.token, "claim": after.claim, "nonce": after.nonce, "purpose": "files"}
    assert after == msgspec.structs.replace(before, **changed)
    assert after.claim == claim(shelf.now_us)
    assert not holds(after, found.lease)
    with pytest.raises(LeaseHeldError, match=r"held \(files\)"):
        shelf.hold()
    shelf.leave(held, "completed", "ignored")
    assert shelf.lane() == msgspec.structs.replace(before, token=held.token)


def test_a_branch_that_never_ran_can_be_held() -> None:
    batch = batch_of(runs.hold(entering(), "files")(view_of(BEGUN, lane(at=1))))
    assert (put_of(batch, LaneRow).run, put_of(batch, LaneRow).token) == (9, 1)
    assert put_of(batch, SessionRow).touched == 9
    assert marks_of(put_of(batch, LaneRow)) == 0


def test_only_what_is_there_can_be_held() -> None:
    with pytest.raises(NotFoundError, match="no session"):
        runs.hold(entering(), "files")(view_of())
    with pytest.raises(NotFoundError, match="no branch"):
        runs.hold(entering(), "files")(view_of(BEGUN))


def test_a_hold_that_went_through_is_recognised(shelf: Shelf) -> None:
    shelf.commit()
    held = shelf.hold(nonce=b"mine")
    new = entering(nonce=b"mine")
    batch = batch_of(runs.hold(new, "files")(shelf.look(new.ask)))
    assert (batch.puts, batch.answer) == ((), held)


def test_a_crash_is_counted_though_somebody_held_the_branch_in_between(shelf: Shelf) -> None:
    shelf.commit()
    crash(shelf)
    shelf.leave(shelf.hold())
    assert crash(shelf).lane.crashes == 1
    shelf.hold()
    shelf.pass_time()
    shelf.hold()
    shelf.pass_time()
    assert shelf.enter().lane.crashes == 2, "whoever held it and died was no run"


# keeping and giving back


def test_a_renewal_writes_the_lease_and_wakes_nobody() -> None:
    before = lane(at=1, **(DEAD | {"token": 1}))
    batch = batch_of(runs.renew(lease())(view_of(BEGUN, before)))
    assert batch.puts == (msgspec.structs.replace(before, claim=claim()),)
    assert (batch.lazy, batch.wakes) == (True, False)


@pytest.mark.parametrize("other", [{"token": 2}, {"run": 6}, {"claim": None}], ids=str)
def test_a_run_that_lost_its_lease_is_told_at_its_next_write(other: dict[str, object]) -> None:
    view = view_of(BEGUN, lane(at=1, **(DEAD | {"token": 1} | other)), counts={"main": 0})
    for rule in (
        runs.renew(lease()),
        runs.leave(lease(), status=None, reason=None),
        runs.leave(lease(), status="completed", reason=None),
        runs.journal(lease(), call(), at=None),
        runs.journal(lease(), call(), at=(5, 1, 0)),
    ):
        for seen in (view, view_of(BEGUN), view_of()):
            with pytest.raises(FencedError, match="lost its lease"):
                rule(seen)


@pytest.mark.parametrize("status", ["failed", "halted", "in_progress"])
def test_a_run_that_ended_otherwise_is_gone_on_with(status: str) -> None:
    before = lane(at=1, **(DEAD | {"token": 1, "input": b"\0in", "crashes": 2, "spot": b"spot", "nonce": b"n"}))
    batch = batch_of(runs.leave(lease(), status=status, reason="why")(view_of(BEGUN, before)))
    after, session = put_of(batch, LaneRow), put_of(batch, SessionRow)
    assert (after.claim, after.entered, after.unfinished, after.input) == (None, False, True, b"\0in")
    assert (after.crashes, after.spot, after.nonce, after.token) == (0, b"", b"", 1)
    assert (after.status, after.reason, session.status, session.reason) == (status, "why", status, "why")
    assert (session.touched, batch.wakes, marks_of(after)) == (9, True, 0)


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_a_run_that_is_over_leaves_no_input_to_the_next(status: str) -> None:
    before = lane(at=1, **(DEAD | {"token": 1, "input": b"\0in"}))
    batch = batch_of(runs.leave(lease(), status=status, reason=None)(view_of(BEGUN, before, pending={"main": ()})))
    after = put_of(batch, LaneRow)
    assert (after.claim, after.entered, after.unfinished, after.input) == (None, False, False, None)
    assert put_of(batch, SessionRow).status == status


def test_an_interrupted_run_gives_its_lease_back_and_still_counts_as_entered() -> None:
    before = lane(at=1, **(DEAD | {"token": 1, "input": b"\0in", "crashes": 2, "spot": b"spot", "nonce": b"n"}))
    batch = batch_of(runs.leave(lease(), status=None, reason=None)(view_of(BEGUN, before)))
    after = put_of(batch, LaneRow)
    assert after == msgspec.structs.replace(before, claim=None, nonce=b"")
    assert put_of(batch, SessionRow) == msgspec.structs.replace(BEGUN, touched=9)
    assert (batch.wakes, marks_of(after)) == (True, ENTERED)


def test_a_leave_that_went_through_is_recognised_until_somebody_else_comes() -> None:
    left = lane(at=1, run=5, token=1)
    for status in (None, "completed"):
        rule = runs.leave(lease(), status=status, reason=None)
        assert batch_of(rule(view_of(BEGUN, left, again=True))).puts == ()
        for seen in (
            view_of(BEGUN, left),
            view_of(BEGUN, lane(at=1, run=6, token=1), again=True),
            view_of(BEGUN, lane(at=1, run=5, token=2), again=True),
        ):
            with pytest.raises(FencedError):
                rule(seen)


def test_where_a_run_stood_depends_on_all_that_was_recorded() -> None:
    spots = {
        runs.spot_of(*stood)
        for stood in (
            (0, []),
            (1, []),
            (1, [call("a")]),
            (1, [done("a")]),
            (1, [call("b")]),
            (1, [call("a"), call("b")]),
            (1, [lost()]),
        )
    }
    assert len(spots) == 7
    assert runs.spot_of(1, [call("a")]) == runs.spot_of(1, [call("a", token=7, started_us=5)])


def test_a_lease_names_its_holder_and_both_clocks() -> None:
    view = View(now_us=100, wall_us=7000)
    assert runs.claim_for(view, HOLDER, 50) == Claim(HOLDER, 50, 150, 7050)
    assert checkpoint(1).head.sequence == 1
