"""Names: fork, tag, untag, delete_branch. They share one name space, and nobody loses a name that is being run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from backstay.errors import AlreadyExistsError, CorruptionError, LeaseHeldError, NotFoundError
from backstay.port import Decide, Kind, LaneRow, SessionRow, TagRow, Unreadable
from backstay.rules import branches
from tests.rules.shelf import (
    LEASE_US,
    NOW_US,
    SESSION,
    Shelf,
    batch_of,
    checkpoint,
    claim,
    head,
    ids_of,
    lane,
    line,
    put_of,
    view_of,
)

BEGUN = line(sequence=2, checkpoints=2, lanes=1, tags=1)
POINT = checkpoint(2, 1)

Naming = Callable[..., Decide]


def fork(name: str = "new") -> Decide:
    return branches.fork(SESSION, name, sequence=2, id_=POINT.id)


def tag(name: str = "new") -> Decide:
    return branches.tag(SESSION, name, sequence=2, id_=POINT.id)


def test_a_fork_is_a_branch_at_a_checkpoint_and_copies_nothing() -> None:
    ask = branches.naming_ask(SESSION, "new", 2)
    assert (ask.names, ask.sequences) == (("new",), (2,))
    batch = batch_of(fork()(view_of(BEGUN, POINT)))
    assert batch.puts == (msgspec.structs.replace(BEGUN, lanes=2, touched=9), lane("new", 2))
    assert batch.drops == ()


def test_a_tag_holds_its_checkpoint() -> None:
    batch = batch_of(tag()(view_of(BEGUN, POINT)))
    assert batch.puts == (msgspec.structs.replace(BEGUN, tags=2, touched=9), TagRow("new", 2))


@pytest.mark.parametrize("naming", [fork, tag])
def test_branches_and_tags_share_their_names(naming: Naming) -> None:
    for taken in (lane("new", 1), TagRow("new", 1)):
        with pytest.raises(AlreadyExistsError, match="already a branch or tag named 'new'"):
            naming()(view_of(BEGUN, POINT, taken))


@pytest.mark.parametrize("naming", [fork, tag])
def test_only_what_is_there_gets_a_name(naming: Naming) -> None:
    with pytest.raises(NotFoundError, match="no session"):
        naming()(view_of())
    with pytest.raises(NotFoundError, match=f"no checkpoint {POINT.id[:12]}"):
        naming()(view_of(BEGUN))
    with pytest.raises(NotFoundError, match="no checkpoint"):
        naming()(view_of(BEGUN, checkpoint(2, id="made again under another")))


@pytest.mark.parametrize("naming", [fork, tag])
def test_a_damaged_checkpoint_is_not_a_missing_one(naming: Naming) -> None:
    with pytest.raises(CorruptionError, match="checkpoint #2 is damaged"):
        naming()(view_of(BEGUN, checkpoints={2: Unreadable(2, "checkpoint #2 is damaged")}))


def test_a_live_run_stops_neither_fork_nor_tag() -> None:
    alive = lane(at=2, run=5, token=1, entered=True, claim=claim())
    for naming in (fork, tag):
        assert batch_of(naming()(view_of(BEGUN, POINT, alive))).puts


@pytest.mark.parametrize(
    ("naming", "mine", "other"),
    [
        (fork, lane("new", 2), lane("new", 1)),
        (tag, TagRow("new", 2), TagRow("new", 1)),
    ],
)
def test_a_name_that_was_given_is_recognised(naming: Naming, mine: Any, other: Any) -> None:
    assert batch_of(naming()(view_of(BEGUN, POINT, mine, again=True))).puts == ()
    assert batch_of(naming()(view_of(BEGUN, mine, again=True))).puts == (), "its checkpoint may be gone since"
    with pytest.raises(AlreadyExistsError):
        naming()(view_of(BEGUN, POINT, mine))
    with pytest.raises(AlreadyExistsError):
        naming()(view_of(BEGUN, POINT, other, again=True))
    crossed = TagRow("new", 2) if isinstance(mine, LaneRow) else lane("new", 2)
    with pytest.raises(AlreadyExistsError):
        naming()(view_of(BEGUN, POINT, crossed, again=True))


def test_a_tag_is_forgotten_and_its_checkpoint_stays() -> None:
    assert branches.name_ask(SESSION, "old").names == ("old",)
    batch = batch_of(branches.untag(SESSION, "old")(view_of(BEGUN, TagRow("old", 2))))
    assert batch.puts == (msgspec.structs.replace(BEGUN, tags=0, touched=9),)
    assert batch.drops == ((Kind.NAME, "old"),)


def test_a_tag_that_is_not_there_cannot_be_forgotten_unless_it_was_a_moment_ago() -> None:
    rule = branches.untag(SESSION, "old")
    for seen, said in (
        (view_of(BEGUN), "no tag 'old'"),
        (view_of(BEGUN, lane("old", 1)), "no tag"),
        (view_of(), "no s"),
    ):
        with pytest.raises(NotFoundError, match=said):
            rule(seen)
    for seen in (view_of(BEGUN, again=True), view_of(again=True)):
        assert batch_of(rule(seen)) == batch_of(rule(view_of(again=True)))
        assert batch_of(rule(seen)).drops == ()


def test_a_branch_goes_with_what_is_pending_and_parked_on_it() -> None:
    gone = lane("b", 2, run=5, journal=2, undo=1, undo_journal=1, undo_calls=1)
    batch = batch_of(branches.delete_branch(SESSION, "b")(view_of(BEGUN, gone)))
    assert put_of(batch, SessionRow) == msgspec.structs.replace(BEGUN, lanes=0, touched=9)
    assert set(batch.drops) == {(Kind.NAME, "b"), (Kind.CALL, (5, 2)), (Kind.CALL, (5, 1))}
    assert batch.wakes


def test_a_branch_that_never_ran_has_nothing_else_to_drop() -> None:
    batch = batch_of(branches.delete_branch(SESSION, "b")(view_of(BEGUN, lane("b", 2))))
    assert batch.drops == ((Kind.NAME, "b"),)


def test_calls_that_checkpoints_took_in_stay_when_their_branch_goes(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter()
    shelf.call(found.lease, "taken")
    shelf.commit(lease=found.lease)
    shelf.call(found.lease, "left behind")
    shelf.leave(found.lease)
    shelf.commit()
    found = shelf.enter()
    shelf.call(found.lease, "pending")
    shelf.leave(found.lease)
    shelf.write(branches.name_ask(SESSION, "main"), branches.delete_branch(SESSION, "main"))
    kept = [row for calls in shelf.tables.calls.values() for row in calls.values()]
    assert ids_of(kept) == ["taken", "left behind"]


def test_a_branch_made_again_under_the_same_name_has_a_journal_of_its_own(shelf: Shelf) -> None:
    row = shelf.commit()
    first = shelf.enter()
    shelf.call(first.lease, "a")
    shelf.leave(first.lease)
    shelf.write(branches.name_ask(SESSION, "main"), branches.delete_branch(SESSION, "main"))
    again = branches.fork(SESSION, "main", sequence=row.sequence, id_=row.id)
    shelf.write(branches.naming_ask(SESSION, "main", row.sequence), again)
    second = shelf.enter()
    assert second.calls == ()
    assert second.lease.run > first.lease.run
    with pytest.raises(Exception, match="lost its lease"):
        shelf.renew(first.lease)


def test_nobody_deletes_a_branch_that_is_being_run_or_is_not_there() -> None:
    rule = branches.delete_branch(SESSION, "main")
    with pytest.raises(LeaseHeldError):
        rule(view_of(BEGUN, lane(at=2, run=5, claim=claim())))
    assert batch_of(rule(view_of(BEGUN, lane(at=2, run=5, claim=claim(NOW_US - LEASE_US))))).drops
    for seen, said in (
        (view_of(BEGUN), "no branch 'main'"),
        (view_of(BEGUN, TagRow("main", 1)), "no br"),
        (view_of(), "no s"),
    ):
        with pytest.raises(NotFoundError, match=said):
            rule(seen)
    for seen in (view_of(BEGUN, again=True), view_of(again=True)):
        assert batch_of(rule(seen)).puts == ()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_a_fork_begins_without_runs_undo_or_calls(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter()
    shelf.call(found.lease, "a")
    row = shelf.commit(lease=found.lease)
    shelf.call(found.lease, "b")
    rule = branches.fork(SESSION, "what if", sequence=row.sequence, id_=row.id)
    shelf.write(branches.naming_ask(SESSION, "what if", row.sequence), rule)
    assert shelf.lane("what if") == LaneRow("what if", head=row.head, journal=row.sequence)
    assert shelf.enter("what if").calls == ()
    assert ids_of(shelf.pending()) == ["b"]
    assert head(1).sequence == 1
