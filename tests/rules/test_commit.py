"""Commits: what they write, whom they fence, and what becomes of the calls that were pending."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    FencedError,
    InDoubtError,
    InvalidInputError,
    LeaseHeldError,
)
from backstay.ids import MAX_SEQUENCE, checkpoint_digest, make_id
from backstay.port import CallRow, CheckpointRow, KeyframeRow, LaneRow, SessionRow, Stale, TagRow, Unreadable
from backstay.port.rows import Took
from backstay.rules.commit import Totals, commit
from tests.rules.shelf import (
    LEASE_US,
    NOW_US,
    SESSION,
    UID,
    Shelf,
    batch_of,
    call,
    checkpoint,
    claim,
    digest_of,
    done,
    head,
    ids_of,
    lane,
    lease,
    line,
    lost,
    plan,
    put_of,
    tail_of,
    view_of,
)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


# what is written


def test_the_first_commit_makes_session_branch_and_checkpoint() -> None:
    totals = Totals("support", "waiting", "for ana", 4, b"usage", NOW_US)
    new = plan(keyframe=b"keyframe", keyframe_refs=(b"k" * 32,), refs=(b"d" * 32,), totals=totals, blobs={b"d": b"x"})
    batch = batch_of(commit(new)(view_of()))
    row = put_of(batch, CheckpointRow)
    assert (row.sequence, row.id, row.parent, row.parent_id, row.parent_digest) == (
        *(1, make_id(1, UID, new.tail)),
        *(None, None, None),
    )
    assert row.digest == checkpoint_digest(
        id_=row.id, parent=None, state=new.state_digest, sequence=1, fields=new.fields
    )
    assert (row.tail, row.state_digest, row.size_bytes) == (new.tail, new.state_digest, new.size_bytes)
    assert (row.fields, row.delta, row.refs, row.keyframe, row.took) == (new.fields, b"delta", (b"d" * 32,), True, None)
    assert put_of(batch, KeyframeRow) == KeyframeRow(1, b"keyframe", (b"k" * 32,))
    assert put_of(batch, LaneRow) == lane(at=None, head=row.head, journal=1, status="waiting", reason="for ana")
    assert put_of(batch, SessionRow) == line(
        touched=9,
        sequence=1,
        checkpoints=1,
        lanes=1,
        logical_bytes=new.size_bytes,
        agent="support",
        status="waiting",
        reason="for ana",
        last_step=4,
        usage=b"usage",
    )
    assert (batch.drops, batch.blobs, batch.answer, batch.wakes, batch.lazy) == ((), {b"d": b"x"}, row, False, False)


def test_a_further_commit_moves_the_head_and_counts_on() -> None:
    session = line(sequence=4, checkpoints=3, lanes=2, tags=1, logical_bytes=1000, created_us=NOW_US - 5)
    new = plan(expect=head(4).id, totals=Totals(None, "in_progress", None, None, b"", NOW_US + 7))
    batch = batch_of(commit(new)(view_of(session, lane(at=4, status="failed", reason="x"))))
    row, after = put_of(batch, CheckpointRow), put_of(batch, SessionRow)
    assert (row.sequence, row.parent, row.parent_id, row.parent_digest) == (5, 4, head(4).id, head(4).digest)
    assert row.digest == checkpoint_digest(
        id_=row.id, parent=head(4).digest, state=new.state_digest, sequence=5, fields=new.fields
    )
    assert (after.sequence, after.checkpoints, after.lanes, after.tags) == (5, 4, 2, 1)
    assert (after.logical_bytes, after.created_us, after.updated_us) == (1000 + new.size_bytes, NOW_US - 5, NOW_US + 7)
    assert put_of(batch, LaneRow) == lane(at=None, head=row.head, journal=5)
    assert not [put for put in batch.puts if isinstance(put, KeyframeRow)]


def test_the_next_sequence_is_that_of_the_session_and_not_of_the_branch() -> None:
    batch = batch_of(commit(plan(expect=head(2).id))(view_of(line(sequence=8, checkpoints=2), lane(at=2))))
    assert put_of(batch, CheckpointRow).sequence == 9
    assert put_of(batch, CheckpointRow).parent == 2


def test_a_second_root_makes_a_branch_of_its_own() -> None:
    batch = batch_of(commit(plan(branch="b"))(view_of(line(sequence=4, checkpoints=4, lanes=1))))
    assert put_of(batch, SessionRow).lanes == 2
    assert put_of(batch, CheckpointRow).parent is None


def test_an_id_of_the_callers_is_kept_as_it_is() -> None:
    new = plan(id="turn 7")
    assert new.ask.ids == ("turn 7",)
    assert put_of(batch_of(commit(new)(view_of())), CheckpointRow).id == "turn 7"


# by a run


def run_lane(**fields: Any) -> LaneRow:
    given: dict[str, Any] = {
        "run": 5,
        "token": 1,
        "entered": True,
        "unfinished": True,
        "claim": claim(),
        "input": b"\0in",
    }
    return lane(at=1, **(given | fields))


BEGUN = line(sequence=1, checkpoints=1, lanes=1)


def test_a_boundary_takes_in_what_is_pending() -> None:
    new = plan(expect=head(1).id, lease=lease())
    assert (new.ask.pending, new.ask.counted) == ((), ("main",))
    batch = batch_of(commit(new)(view_of(BEGUN, run_lane(), counts={"main": 3})))
    assert put_of(batch, CheckpointRow).took == Took(5, 1, 3)
    after = put_of(batch, LaneRow)
    assert (after.journal, after.token, after.entered, after.input, after.undo) == (2, 1, True, b"\0in", None)


def test_a_boundary_without_calls_took_none() -> None:
    batch = batch_of(commit(plan(expect=head(1).id, lease=lease()))(view_of(BEGUN, run_lane(), counts={"main": 0})))
    assert put_of(batch, CheckpointRow).took is None


def test_a_boundary_is_not_stopped_by_calls_that_it_made() -> None:
    view = view_of(BEGUN, run_lane(), counts={"main": 1}, pending={"main": [call()]})
    assert put_of(batch_of(commit(plan(expect=head(1).id, lease=lease()))(view)), CheckpointRow).took == Took(5, 1, 1)


def test_a_fresh_lease_is_not_written_again_and_an_aged_one_is() -> None:
    new = plan(expect=head(1).id, lease=lease())
    fresh, aged = claim(NOW_US - LEASE_US // 20), claim(NOW_US - LEASE_US // 20 - 1)
    for kept, expected in ((fresh, fresh), (aged, claim(NOW_US))):
        batch = batch_of(commit(new)(view_of(BEGUN, run_lane(claim=kept))))
        assert put_of(batch, LaneRow).claim == expected


def test_the_last_boundary_ends_the_run() -> None:
    new = plan(expect=head(1).id, lease=lease(), ends_run=True, totals=Totals(None, "completed", None, 1, b"", NOW_US))
    before = run_lane(crashes=3, spot=b"spot", nonce=b"nonce", reason="x")
    batch = batch_of(commit(new)(view_of(BEGUN, before)))
    after = put_of(batch, LaneRow)
    assert (after.claim, after.entered, after.unfinished, after.input) == (None, False, False, None)
    assert (after.crashes, after.spot, after.nonce, after.status, after.reason) == (0, b"", b"", "completed", None)
    assert (after.run, after.token) == (5, 1)
    assert put_of(batch, SessionRow).status == "completed"
    assert batch.wakes


def test_a_result_that_is_in_the_state_is_kept_there_only() -> None:
    kept, small = done("a", (5, 1, 0)), done("b", (5, 1, 1), result=None, place=b"old")
    places = {(5, 1, 0): b"place", (5, 1, 1): b"new", (5, 1, 2): b"gone"}
    new = plan(expect=head(1).id, lease=lease(), places=places)
    assert set(new.ask.calls) == set(places)
    batch = batch_of(commit(new)(view_of(BEGUN, run_lane(), kept, small, counts={"main": 2})))
    assert put_of(batch, CallRow) == msgspec.structs.replace(kept, result=None, place=b"place")


def test_a_run_does_not_go_back() -> None:
    for going_back in ("undoable", "takes_up"):
        with pytest.raises(AssertionError):
            commit(plan(lease=lease(), **{going_back: True}))


@pytest.mark.parametrize(
    "other",
    [
        {"token": 2},
        {"run": 6},
        {"claim": None},
    ],
    ids=str,
)
def test_a_run_that_lost_its_lease_writes_nothing(other: dict[str, object]) -> None:
    with pytest.raises(FencedError, match="branch 'main'"):
        commit(plan(expect=head(1).id, lease=lease()))(view_of(BEGUN, run_lane(**other)))


def test_a_run_whose_branch_or_session_is_gone_writes_nothing() -> None:
    new = plan(expect=head(1).id, lease=lease())
    for view in (view_of(BEGUN), view_of()):
        with pytest.raises(FencedError):
            commit(new)(view)


def test_a_run_that_was_silent_and_not_missed_goes_on() -> None:
    late = run_lane(claim=claim(NOW_US - 2 * LEASE_US))
    batch = batch_of(commit(plan(expect=head(1).id, lease=lease()))(view_of(BEGUN, late)))
    assert put_of(batch, LaneRow).claim == claim()
    assert put_of(batch, LaneRow).token == 1


# by others


def test_nobody_else_writes_where_a_run_is_alive() -> None:
    with pytest.raises(LeaseHeldError, match=r"process 4711 on far\.example, which holds the lease until 2023-11-14"):
        commit(plan(expect=head(1).id))(view_of(BEGUN, run_lane()))


def test_a_silent_run_is_fenced_by_the_first_write_of_another() -> None:
    silent = run_lane(claim=claim(NOW_US - LEASE_US), crashes=2, spot=b"spot")
    batch = batch_of(commit(plan(expect=head(1).id))(view_of(BEGUN, silent, pending={"main": []})))
    after = put_of(batch, LaneRow)
    assert after.token == 2
    # It still counts as entered, and the next run goes on with its input.
    assert (after.entered, after.unfinished, after.input, after.crashes, after.spot) == (
        *(True, True, b"\0in"),
        *(2, b"spot"),
    )
    assert after.claim == silent.claim


def test_a_run_that_was_interrupted_is_fenced_too_and_one_that_ended_is_not() -> None:
    for fields, token in (({"claim": None}, 2), ({"claim": None, "entered": False}, 1)):
        batch = batch_of(commit(plan(expect=head(1).id))(view_of(BEGUN, run_lane(**fields))))
        assert put_of(batch, LaneRow).token == token


def test_whoever_held_the_branch_for_something_else_and_was_silent_is_fenced() -> None:
    held = run_lane(entered=False, purpose="files", claim=claim(NOW_US - LEASE_US))
    assert put_of(batch_of(commit(plan(expect=head(1).id))(view_of(BEGUN, held))), LaneRow).token == 2


@pytest.mark.parametrize("status", ["started", "in_doubt"])
def test_nobody_else_writes_where_a_call_is_in_doubt(status: str) -> None:
    new = plan(expect=head(1).id)
    assert (new.ask.pending, new.ask.counted) == (("main",), ())
    pending = {"main": [done("a"), call("b", status=status), call("x", status=status)]}
    with pytest.raises(InDoubtError, match=r"happened: pay \(b\), pay \(x\)") as refused:
        commit(new)(view_of(BEGUN, run_lane(claim=None), pending=pending))
    assert "session.resolve" in refused.value.hint


@pytest.mark.parametrize("status", ["done", "failed", "skipped", "retry", "abandoned"])
def test_a_call_with_an_outcome_stops_nobody_and_goes_with_the_checkpoint_that_leaves_it(status: str) -> None:
    pending = {"main": [call("a", status=status), done("b", (5, 1, 1))]}
    batch = batch_of(commit(plan(expect=head(1).id))(view_of(BEGUN, run_lane(claim=None), pending=pending)))
    assert put_of(batch, CheckpointRow).took == Took(5, 1, 2, left=1)
    assert put_of(batch, LaneRow).journal == 2


def test_calls_from_before_the_first_checkpoint_are_left_there() -> None:
    before = run_lane(head=None, journal=0, claim=None)
    batch = batch_of(commit(plan())(view_of(line(lanes=1), before, pending={"main": [done("a", (5, 0, 0))]})))
    assert put_of(batch, CheckpointRow).took == Took(5, 0, 1, left=0)


def test_nobody_writes_where_a_pending_call_cannot_be_read() -> None:
    with pytest.raises(CorruptionError, match="a pending call is damaged") as refused:
        commit(plan(expect=head(1).id))(view_of(BEGUN, run_lane(claim=None), pending={"main": [lost()]}))
    assert "session.abandon" in refused.value.hint


@pytest.mark.parametrize(
    ("at", "expect", "said"),
    [
        (1, None, f"is at {head(1).id[:12]}, expected to have none"),
        (1, head(3).id, f"is at {head(1).id[:12]}, expected at {head(3).id[:12]}"),
        (None, head(3).id, f"has no checkpoint, expected at {head(3).id[:12]}"),
    ],
)
def test_of_two_writers_from_one_head_the_second_is_told(at: int | None, expect: str | None, said: str) -> None:
    with pytest.raises(ConflictError, match=said):
        commit(plan(expect=expect))(view_of(BEGUN, lane(at=at)))


def test_a_branch_that_is_gone_or_was_never_there_is_not_where_it_was_expected() -> None:
    for view in (view_of(BEGUN), view_of()):
        with pytest.raises(ConflictError, match="has no checkpoint"):
            commit(plan(expect=head(1).id))(view)


def test_nobody_commits_to_a_tag() -> None:
    with pytest.raises(AlreadyExistsError, match="'main'"):
        commit(plan())(view_of(BEGUN, TagRow("main", 1)))


def test_an_id_in_use_is_refused_whoever_made_it() -> None:
    ours = checkpoint(1)
    for view in (view_of(BEGUN, lane(at=1), foreign={"turn 7": 1}), view_of(BEGUN, lane(at=1), ours)):
        new = plan(expect=head(1).id, id="turn 7" if view.foreign else ours.id)
        with pytest.raises(ConflictError, match="there is already a checkpoint"):
            commit(new)(view)


def test_an_id_whose_row_cannot_be_read_is_not_given_out_again() -> None:
    view = view_of(BEGUN, lane(at=1), checkpoints={1: Unreadable(1, "damaged")})
    with pytest.raises(ConflictError, match="there is already a checkpoint"):
        commit(plan(expect=head(1).id, id=make_id(1, UID, tail_of(1))))(view)


def test_a_session_without_numbers_left_takes_no_more() -> None:
    session = line(sequence=MAX_SEQUENCE, checkpoints=1)
    with pytest.raises(InvalidInputError, match="no numbers left"):
        commit(plan(expect=head(1).id))(view_of(session, lane(at=1)))
    last = line(sequence=MAX_SEQUENCE - 1, checkpoints=1)
    assert batch_of(commit(plan(expect=head(1).id))(view_of(last, lane(at=1)))).puts


def test_what_was_sealed_for_another_session_is_not_written() -> None:
    with pytest.raises(Stale):
        commit(plan(expect=head(1).id))(view_of(line(uid=b"o" * 16), lane(at=1)))


# going back and forth


def test_a_restore_parks_what_is_pending_and_an_undo_takes_it_up(shelf: Shelf) -> None:
    shelf.commit()
    entered = shelf.enter()
    shelf.call(entered.lease, "a")
    shelf.leave(entered.lease)
    restored = shelf.commit(undoable=True)
    after = shelf.lane()
    assert (after.undo, after.undo_journal, after.undo_calls, after.journal) == (1, 1, 1, restored.sequence)
    assert ids_of(shelf.pending()) == []
    assert restored.took is None
    undone = shelf.commit(undoable=True, takes_up=True)
    assert ids_of(shelf.pending()) == ["a"]
    assert (shelf.lane().undo, shelf.lane().undo_journal, shelf.lane().undo_calls) == (2, 2, 0)
    assert undone.took is None
    again = shelf.enter()
    assert ids_of(again.calls) == ["a"]
    shelf.call(again.lease, "b")
    assert shelf.commit(lease=again.lease).took == Took(again.lease.run, 1, 2)


def test_undo_twice_is_redo_with_the_calls_of_both_sides(shelf: Shelf) -> None:
    shelf.commit()
    for name in ("before", "after"):
        entered = shelf.enter()
        shelf.call(entered.lease, name)
        shelf.leave(entered.lease)
        if name == "before":
            shelf.commit(undoable=True)
    seen = [ids_of(shelf.pending())]
    for _ in range(4):
        shelf.commit(takes_up=True)  # an undo can be undone, whether or not that was said
        seen.append(ids_of(shelf.pending()))
    assert seen == [["after"], ["before"], ["after"], ["before"], ["after"]]


def test_an_undo_after_further_commits_parks_what_is_pending_there(shelf: Shelf) -> None:
    shelf.commit()
    first = shelf.enter()
    shelf.call(first.lease, "a")
    shelf.leave(first.lease)
    shelf.commit(undoable=True)
    shelf.commit()
    second = shelf.enter()
    assert second.calls == ()
    shelf.call(second.lease, "b")
    shelf.leave(second.lease)
    shelf.commit(undoable=True, takes_up=True)
    assert ids_of(shelf.pending()) == ["a"]
    assert (shelf.lane().undo, shelf.lane().undo_calls) == (3, 1)


def test_what_a_second_restore_can_no_longer_undo_goes_with_its_checkpoint(shelf: Shelf) -> None:
    shelf.commit()
    entered = shelf.enter()
    shelf.call(entered.lease, "a")
    shelf.leave(entered.lease)
    shelf.commit(undoable=True)
    second = shelf.commit(undoable=True)
    assert second.took == Took(entered.lease.run, 1, 1, left=1)
    assert (shelf.lane().undo, shelf.lane().undo_calls) == (2, 0)


def test_an_undo_where_nothing_was_parked_begins_a_journal_of_its_own() -> None:
    before = run_lane(claim=None, entered=False)
    batch = batch_of(commit(plan(expect=head(1).id, takes_up=True))(view_of(BEGUN, before, pending={"main": [done()]})))
    after = put_of(batch, LaneRow)
    assert (after.journal, after.undo, after.undo_journal, after.undo_calls) == (2, 1, 1, 1)


def test_a_restore_onto_a_branch_without_a_head_loses_no_call() -> None:
    before = run_lane(head=None, journal=0, claim=None)
    view = view_of(line(lanes=1), before, pending={"main": [done("a", (5, 0, 0))]})
    batch = batch_of(commit(plan(undoable=True))(view))
    assert put_of(batch, CheckpointRow).took == Took(5, 0, 1, left=0)
    assert put_of(batch, LaneRow).undo is None


# under a lease that is no run's


def test_whoever_holds_a_branch_commits_as_others_do(shelf: Shelf) -> None:
    shelf.commit()
    entered = shelf.enter(input=b"\0in")
    shelf.call(entered.lease, "a")
    shelf.leave(entered.lease)
    held = shelf.hold()
    with pytest.raises(LeaseHeldError, match=r"is held \(files\)"):
        shelf.commit()
    token = shelf.lane().token
    made = shelf.commit(lease=held, undoable=True)
    after = shelf.lane()
    assert made.took is None
    assert (after.undo, after.undo_journal, after.undo_calls) == (1, 1, 1)
    assert (after.token, after.purpose, after.claim is None) == (token, "files", False)
    shelf.commit(lease=held, ends_run=True)
    after = shelf.lane()
    assert (after.claim, after.purpose, after.nonce) == (None, None, b"")
    assert (after.entered, after.unfinished, after.input) == (True, True, b"\0in")


def test_a_call_in_doubt_stops_whoever_holds_a_branch() -> None:
    new = plan(expect=head(1).id, lease=lease(purpose="files"), undoable=True)
    assert (new.ask.pending, new.ask.counted) == (("main",), ())
    held = run_lane(purpose="files")
    with pytest.raises(InDoubtError):
        commit(new)(view_of(BEGUN, held, pending={"main": [call()]}))
    with pytest.raises(FencedError):
        commit(new)(view_of(BEGUN, run_lane(token=2), pending={"main": [call()]}))


# tries that are tried again


@pytest.mark.parametrize("by", ["a run", "another"])
def test_a_commit_that_went_through_is_recognised_whatever_happened_since(by: str) -> None:
    new = plan(expect=head(1).id, lease=lease() if by == "a run" else None, id="turn 7")
    mine = checkpoint(
        2, 1, id="turn 7", tail=new.tail, state_digest=new.state_digest, fields=new.fields, delta=b"rewritten"
    )
    for since in (
        view_of(line(sequence=2, checkpoints=2), lane(at=2, run=5, token=1), mine, foreign={"turn 7": 2}),
        view_of(line(sequence=9, checkpoints=9), run_lane(token=7), mine, foreign={"turn 7": 2}),
        view_of(line(sequence=2, checkpoints=1), TagRow("main", 2), mine),
        view_of(line(uid=b"o" * 16), mine),
    ):
        assert batch_of(commit(new)(since)) == batch_of(commit(new)(view_of(mine)))
        assert batch_of(commit(new)(since)).answer == mine
        assert batch_of(commit(new)(since)).puts == ()


@pytest.mark.parametrize("other", [{"tail": b"another"}, {"state_digest": digest_of(1)}, {"fields": b"other"}], ids=str)
def test_another_commit_is_not_taken_for_a_try_of_this_one(other: dict[str, bytes]) -> None:
    new = plan(expect=head(1).id, id="turn 7")
    given = {"tail": new.tail, "state_digest": new.state_digest, "fields": new.fields}
    kept = checkpoint(2, 1, id="turn 7", **(given | other))
    with pytest.raises(ConflictError, match="there is already a checkpoint 'turn 7'"):
        commit(new)(view_of(line(sequence=2), lane(at=2), kept, foreign={"turn 7": 2}))


def test_a_rule_may_be_asked_twice(shelf: Shelf) -> None:
    shelf.commit()
    new = plan(expect=shelf.lane().head.id)  # type: ignore[union-attr]
    view, rule = shelf.look(new.ask), commit(new)
    assert rule(view) == rule(view)
    assert new.session == SESSION
