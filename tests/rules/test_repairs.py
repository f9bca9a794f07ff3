"""Repair: names that lead nowhere, names that cannot be read, counts that are wrong. No checkpoint and no call goes."""

from __future__ import annotations

import msgspec
import pytest

from backstay.errors import ConflictError, LeaseHeldError, NotFoundError
from backstay.port import Batch, Kind, LaneRow, SessionRow, TagRow, Unreadable
from backstay.rules import repair
from backstay.rules.refusals import holds
from tests.rules.shelf import (
    LEASE_US,
    NOW_US,
    SESSION,
    batch_of,
    checkpoint,
    claim,
    head,
    lane,
    lease,
    line,
    put_of,
    view_of,
)

BEGUN = line(sequence=4, checkpoints=3, lanes=1, tags=1)


def test_a_session_counts_what_is_there() -> None:
    rule = repair.recount(SESSION, repair.Counts(2, 3, 4, 50), touched=3)
    batch = batch_of(rule(view_of(BEGUN)))
    counts = {"checkpoints": 2, "lanes": 3, "tags": 4, "logical_bytes": 50}
    assert batch.puts == (msgspec.structs.replace(BEGUN, touched=9, **counts),)
    with pytest.raises(ConflictError, match="written to meanwhile"):
        rule(view_of(msgspec.structs.replace(BEGUN, touched=4)))
    with pytest.raises(NotFoundError):
        rule(view_of())


def test_a_branch_that_leads_nowhere_goes_back_and_what_is_pending_stays() -> None:
    assert repair.point_back_ask(SESSION, "main", nowhere=4, to=2).sequences == (4, 2)
    assert repair.point_back_ask(SESSION, "main", nowhere=4, to=None).sequences == (4,)
    before = lane(at=4, run=5, token=1, entered=True, claim=claim(NOW_US - LEASE_US))
    batch = batch_of(repair.point_back(SESSION, "main", nowhere=4, to=2)(view_of(BEGUN, before, checkpoint(2))))
    after = put_of(batch, LaneRow)
    assert after == msgspec.structs.replace(before, head=head(2), token=2)
    assert not holds(after, lease())
    assert put_of(batch, SessionRow).touched == 9
    assert batch.drops == ()
    assert batch.answer == f"branch 'main' led nowhere and is at {head(2).id[:12]} now"


def test_a_branch_of_which_nothing_is_left_begins_anew() -> None:
    for to, seen in (
        (None, view_of(BEGUN, lane(at=4))),
        (2, view_of(BEGUN, lane(at=4), checkpoints={2: Unreadable(2, "x")})),
    ):
        batch = batch_of(repair.point_back(SESSION, "main", nowhere=4, to=to)(seen))
        assert put_of(batch, LaneRow).head is None
        assert "has no checkpoint now" in batch.answer


def test_an_undo_that_leads_nowhere_is_over_and_a_tag_goes() -> None:
    before = lane(at=3, undo=4, undo_journal=4, undo_calls=2, token=1)
    batch = batch_of(repair.point_back(SESSION, "main", nowhere=4, to=None)(view_of(BEGUN, before)))
    assert put_of(batch, LaneRow) == lane(at=3, token=1)
    batch = batch_of(repair.point_back(SESSION, "old", nowhere=4, to=None)(view_of(BEGUN, TagRow("old", 4))))
    assert (put_of(batch, SessionRow).tags, batch.drops) == (0, ((Kind.NAME, "old"),))


def test_what_is_not_as_it_was_found_is_left_alone() -> None:
    rule = repair.point_back(SESSION, "main", nowhere=4, to=2)
    for seen in (
        view_of(BEGUN, lane(at=4), checkpoint(4), checkpoint(2)),
        view_of(BEGUN, lane(at=4), checkpoints={4: Unreadable(4, "damaged"), 2: checkpoint(2)}),
        view_of(BEGUN, lane(at=3), checkpoint(2)),
        view_of(BEGUN, TagRow("main", 3), checkpoint(2)),
        view_of(BEGUN, checkpoint(2)),
    ):
        assert batch_of(rule(seen)) == Batch()


def test_a_branch_that_is_being_run_is_not_moved() -> None:
    alive = lane(at=4, run=5, token=1, entered=True, claim=claim())
    with pytest.raises(LeaseHeldError):
        repair.point_back(SESSION, "main", nowhere=4, to=2)(view_of(BEGUN, alive, checkpoint(2)))
    with pytest.raises(NotFoundError):
        repair.point_back(SESSION, "main", nowhere=4, to=2)(view_of())


def test_a_name_that_cannot_be_read_is_a_branch_again_with_the_calls_that_were_made_there() -> None:
    assert (repair.remake_ask(SESSION, to=2).sequences, repair.remake_ask(SESSION, to=2).names) == ((2,), ())
    batch = batch_of(repair.remake(SESSION, "main", to=2, run=5)(view_of(BEGUN, checkpoint(2))))
    after = put_of(batch, LaneRow)
    assert (after.head, after.journal, after.run, after.unfinished) == (head(2), 2, 5, True)
    assert after.claim is None
    assert after.token >= 9
    never_ran = put_of(batch_of(repair.remake(SESSION, "main", to=2, run=0)(view_of(BEGUN, checkpoint(2)))), LaneRow)
    assert (never_ran.run, never_ran.unfinished) == (0, False)


def test_a_name_that_cannot_be_read_and_led_to_nothing_goes() -> None:
    for to, seen in (
        (None, view_of(BEGUN)),
        (2, view_of(BEGUN)),
        (2, view_of(BEGUN, checkpoints={2: Unreadable(2, "x")})),
    ):
        batch = batch_of(repair.remake(SESSION, "main", to=to, run=5)(seen))
        assert (batch.puts, batch.drops) == ((), ((Kind.NAME, "main"),))
    with pytest.raises(NotFoundError):
        repair.remake(SESSION, "main", to=None, run=5)(view_of())
