"""Deletion of checkpoints: only what was asked for goes, what stays can be read, and what was done stays done."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.errors import (
    ConflictError,
    CorruptionError,
    FencedError,
    InDoubtError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
)
from backstay.port import (
    EVERY,
    Batch,
    CheckpointRow,
    KeyframeRow,
    Kind,
    LaneRow,
    More,
    SessionRow,
    TagRow,
    Unreadable,
    View,
)
from backstay.port.rows import Took
from backstay.rules.deletion import Deletion, Rewrite, delete_checkpoints
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
    done,
    head,
    ids_of,
    lane,
    line,
    lost,
    put_of,
    view_of,
)

SESSION_LINE = line(sequence=4, checkpoints=4, lanes=1, logical_bytes=100)


def chain(*rows: Any, at: int = 4, children: dict[int, list[int]] | None = None, **fields: Any) -> View:
    """1 - 2 - 3 - 4, the branch at the last one; as a deletion sees it."""
    points = [checkpoint(1, keyframe=True), checkpoint(2, 1), checkpoint(3, 2), checkpoint(4, 3)]
    lanes = [] if any(isinstance(row, LaneRow) and row.name == "main" for row in rows) else [lane(at=at)]
    fields.setdefault("children", children or {1: [2], 2: [3], 3: [4], 4: []})
    return view_of(SESSION_LINE, *points, *lanes, *rows, **fields)


def deletion(*gone: int, **fields: Any) -> Deletion:
    return Deletion(SESSION, UID, gone, **fields)


def moved_to(at: int, **fields: Any) -> Rewrite:
    """What 3 becomes when 2 goes."""
    given: dict[str, Any] = {"base_digest": checkpoint(at).state_digest, "delta": b"new delta", "refs": (b"r" * 32,)}
    return Rewrite(3, at, **(given | fields))


MIDDLE = deletion(2, rewrites=(moved_to(1),))


def decided(plan: Deletion, view: View) -> Batch:
    return batch_of(delete_checkpoints(plan)(view))


# what goes and what stays


def test_a_deletion_looks_at_what_it_touches() -> None:
    ask = deletion(2, 4, rewrites=(moved_to(1),), anchors=(3,)).ask
    assert (ask.names, ask.children_of) == (EVERY, (2, 4))
    assert ask.sequences == (2, 4, 3, 1)
    assert deletion(1, rewrites=(Rewrite(2, None, keyframe=b"k"),)).ask.sequences == (1, 2)


def test_a_checkpoint_in_the_middle_goes_and_its_child_rests_on_the_one_before() -> None:
    batch = decided(MIDDLE, chain())
    child = put_of(batch, CheckpointRow)
    before = checkpoint(3, 2)
    assert child == msgspec.structs.replace(before, parent=1, delta=b"new delta", refs=(b"r" * 32,))
    assert (child.parent_id, child.parent_digest) == (before.parent_id, before.parent_digest), "it was committed on 2"
    assert put_of(batch, SessionRow) == msgspec.structs.replace(
        SESSION_LINE, touched=9, checkpoints=3, logical_bytes=100 - 20
    )
    assert batch.drops == ((Kind.CHECKPOINT, 2),)
    assert batch.answer == 1
    assert not [row for row in batch.puts if isinstance(row, LaneRow)]


def test_a_child_can_get_a_keyframe_instead() -> None:
    rewrite = Rewrite(3, 1, keyframe=b"keyframe", keyframe_refs=(b"k" * 32,))
    batch = decided(deletion(2, rewrites=(rewrite,), blobs={b"k" * 32: b"blob"}), chain())
    assert put_of(batch, KeyframeRow) == KeyframeRow(3, b"keyframe", (b"k" * 32,))
    child = put_of(batch, CheckpointRow)
    assert (child.keyframe, child.delta, child.refs, child.parent) == (True, b"", (), 1)
    assert batch.blobs == {b"k" * 32: b"blob"}


def test_a_child_that_has_a_keyframe_needs_no_delta() -> None:
    view = chain()
    view.checkpoints = {**view.checkpoints, 3: checkpoint(3, 2, keyframe=True)}
    child = put_of(decided(deletion(2, rewrites=(Rewrite(3, 1),)), view), CheckpointRow)
    assert (child.keyframe, child.delta, child.refs, child.parent) == (True, b"", (), 1)


def test_the_first_goes_and_the_next_rests_on_nothing_but_itself() -> None:
    batch = decided(deletion(1, rewrites=(Rewrite(2, None, keyframe=b"keyframe"),)), chain())
    assert put_of(batch, CheckpointRow).parent is None
    assert batch.drops == ((Kind.KEYFRAME, 1), (Kind.CHECKPOINT, 1))


def test_a_stretch_goes_together() -> None:
    rewrite = Rewrite(4, 1, checkpoint(1).state_digest, b"delta")
    batch = decided(deletion(3, 2, rewrites=(rewrite,)), chain())
    assert put_of(batch, CheckpointRow).parent == 1
    assert batch.drops == ((Kind.CHECKPOINT, 2), (Kind.CHECKPOINT, 3))
    after = put_of(batch, SessionRow)
    assert (after.checkpoints, after.logical_bytes, batch.answer) == (2, 50, 2)


def test_a_damaged_checkpoint_can_go_with_whatever_keyframe_it_had() -> None:
    view = chain()
    view.checkpoints = {**view.checkpoints, 2: Unreadable(2, "damaged", 1)}
    batch = decided(MIDDLE, view)
    assert batch.drops == ((Kind.KEYFRAME, 2), (Kind.CHECKPOINT, 2))
    assert put_of(batch, SessionRow).checkpoints == 3


def test_calls_go_with_the_checkpoint_that_took_them_in_or_left_them() -> None:
    for took in (Took(5, 1, 2), Took(5, 1, 2, left=1)):
        view = chain()
        view.checkpoints = {**view.checkpoints, 2: checkpoint(2, 1, took=took)}
        assert decided(MIDDLE, view).drops == ((Kind.CALL, (5, 1)), (Kind.CHECKPOINT, 2))


# names


def test_a_branch_moves_back_to_what_stays_and_whoever_comes_back_to_it_is_fenced() -> None:
    stalled: dict[str, Any] = {
        "run": 5,
        "token": 1,
        "entered": True,
        "claim": claim(NOW_US - LEASE_US),
        "status": "failed",
    }
    before = lane(at=4, **stalled)
    batch = decided(deletion(3, 4, anchors=(2,)), chain(before, pending={"main": [done("a", (5, 4, 0))]}))
    assert put_of(batch, LaneRow) == msgspec.structs.replace(before, head=head(2), journal=2, token=2)
    assert (Kind.CALL, (5, 4)) in batch.drops, "what was pending at a head that goes goes with it"


def test_before_a_branch_with_runs_moves_back_its_calls_are_looked_at() -> None:
    plan = deletion(4, anchors=(3,))
    more = delete_checkpoints(plan)(chain(lane(at=4, run=5)))
    assert more == More(msgspec.structs.replace(plan.ask, pending=EVERY))
    assert decided(plan, chain(lane(at=4))).puts, "of one that never ran there are none"
    second = chain(lane(at=4, run=5), lane("b", 4, run=6), pending={"main": [], "b": [call("x", (6, 4, 0))]})
    with pytest.raises(InDoubtError, match="branch 'b'"):
        decided(plan, second)


def test_an_undo_that_leads_to_one_that_goes_is_forgotten_with_what_was_parked() -> None:
    before = lane(at=4, run=5, undo=2, undo_journal=2, undo_calls=1, journal=4)
    batch = decided(MIDDLE, chain(before))
    assert put_of(batch, LaneRow) == msgspec.structs.replace(before, undo=None, undo_journal=None, undo_calls=0)
    assert batch.drops == ((Kind.CALL, (5, 2)), (Kind.CHECKPOINT, 2))


def test_other_branches_stay_as_they_are() -> None:
    batch = decided(deletion(4, anchors=(3,)), chain(lane("b", 3, run=6, undo=1, undo_journal=1)))
    assert put_of(batch, LaneRow).name == "main"


# what was done stays done


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def delete(shelf: Shelf, *gone: int, again: bool = False) -> Any:
    """Delete as the hall does: children that stay get keyframes."""
    tables = shelf.tables
    rewrites, anchors = [], set()
    for sequence in gone:
        at: int | None = sequence
        while at in gone:
            at = tables.checkpoints[at].parent if at in tables.checkpoints else None
        anchors |= set() if at is None else {at}
        staying = [child for child in tables.children.get(sequence, ()) if child not in gone]
        rewrites += [Rewrite(child, at, keyframe=b"keyframe") for child in staying]
    plan = deletion(*gone, rewrites=tuple(rewrites), anchors=tuple(anchors))
    return shelf.write(plan.ask, delete_checkpoints(plan), again=again)


def worked(shelf: Shelf, *ids: str) -> None:
    """A run makes calls and is interrupted."""
    found = shelf.enter()
    for id_ in ids:
        shelf.call(found.lease, id_)
    shelf.leave(found.lease)


def test_deleting_a_restore_gives_back_what_it_parked(shelf: Shelf) -> None:
    shelf.commit()
    shelf.commit()
    worked(shelf, "a")
    shelf.commit(undoable=True)
    worked(shelf, "b")
    delete(shelf, 3)
    after = shelf.lane()
    assert (after.head, after.journal, after.undo, after.undo_journal, after.undo_calls) == (
        *(shelf.tables.checkpoints[2].head, 2),  # type: ignore[union-attr]
        *(None, None, 0),
    )
    assert ids_of(shelf.enter().calls) == ["a"]
    assert list(shelf.tables.calls) == [(after.run, 2)]


def test_deleting_a_commit_gives_back_what_it_left_behind(shelf: Shelf) -> None:
    shelf.commit()
    worked(shelf, "a")
    shelf.commit()
    shelf.commit()
    assert ids_of(shelf.pending()) == []
    delete(shelf, 2, 3)
    assert ids_of(shelf.enter().calls) == ["a"]


def test_deleting_two_restores_gives_back_what_the_first_had_parked(shelf: Shelf) -> None:
    shelf.commit()
    worked(shelf, "a")
    shelf.commit(undoable=True)
    shelf.commit(undoable=True)
    delete(shelf, 2, 3)
    assert ids_of(shelf.enter().calls) == ["a"]


def test_calls_that_came_to_another_head_by_an_undo_wait_there(shelf: Shelf) -> None:
    shelf.commit()
    worked(shelf, "a")
    shelf.commit(undoable=True)
    shelf.commit(undoable=True, takes_up=True)
    shelf.commit()
    delete(shelf, 4)
    assert shelf.lane().head == shelf.tables.checkpoints[3].head  # type: ignore[union-attr]
    assert ids_of(shelf.pending()) == ["a"]


def test_deleting_a_restore_gives_back_what_an_undo_had_brought_to_its_head(shelf: Shelf) -> None:
    shelf.commit()
    worked(shelf, "a")
    shelf.commit(undoable=True)
    shelf.commit(undoable=True, takes_up=True)
    shelf.commit(undoable=True)
    delete(shelf, 4)
    assert (shelf.lane().journal, shelf.lane().undo) == (1, None)
    assert ids_of(shelf.enter().calls) == ["a"]


def test_calls_made_on_a_head_wait_there_though_it_was_gone_back_and_forth_since(shelf: Shelf) -> None:
    shelf.commit()
    worked(shelf, "a")
    shelf.commit(undoable=True)
    shelf.commit(undoable=True, takes_up=True)
    delete(shelf, 2, 3)
    assert ids_of(shelf.pending()) == ["a"]


def test_what_a_boundary_took_in_goes_with_it_and_is_not_offered_at_the_head_before(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter()
    shelf.call(found.lease, "a")
    shelf.commit(lease=found.lease)
    shelf.call(found.lease, "b")
    shelf.leave(found.lease)
    delete(shelf, 2)
    assert shelf.enter().calls == ()
    assert not shelf.tables.calls


def test_after_a_branch_went_back_what_was_taken_in_is_never_offered_again(shelf: Shelf) -> None:
    shelf.commit()
    worked(shelf, "a")
    shelf.commit(undoable=True)
    delete(shelf, 2)
    found = shelf.enter()
    assert ids_of(found.calls) == ["a"]
    shelf.commit(lease=found.lease)
    shelf.leave(found.lease)
    shelf.commit(takes_up=True)
    assert shelf.enter().calls == ()


def test_a_run_whose_head_was_deleted_writes_no_more(shelf: Shelf) -> None:
    shelf.commit()
    shelf.commit()
    found = shelf.enter()
    shelf.pass_time()
    delete(shelf, 2)
    with pytest.raises(FencedError):
        shelf.begin(found.lease, "a")


# refusals


def test_nothing_is_deleted_from_a_session_that_is_gone_or_another() -> None:
    with pytest.raises(NotFoundError, match="no session 's'"):
        delete_checkpoints(MIDDLE)(view_of())
    with pytest.raises(ConflictError, match="deleted and made again"):
        delete_checkpoints(MIDDLE)(view_of(line(uid=b"o" * 16)))


def test_what_is_gone_cannot_be_deleted() -> None:
    view = chain()
    view.checkpoints = {at: row for at, row in view.checkpoints.items() if at != 2}
    with pytest.raises(NotFoundError, match="no checkpoint #2"):
        decided(MIDDLE, view)


def test_the_head_of_a_live_run_stays() -> None:
    alive = lane(at=4, run=5, token=1, entered=True, claim=claim())
    with pytest.raises(LeaseHeldError):
        decided(deletion(4, anchors=(3,)), chain(alive, pending={"main": []}))
    assert decided(MIDDLE, chain(alive)).drops, "what the run does not stand on may go"


def test_the_head_at_which_a_call_is_in_doubt_or_damaged_stays() -> None:
    before = lane(at=4, run=5, token=1)
    for kept, error in ((call("a", (5, 4, 0)), InDoubtError), (lost((5, 4, 0)), CorruptionError)):
        with pytest.raises(error):
            decided(deletion(4, anchors=(3,)), chain(before, pending={"main": [kept]}))


def test_a_tagged_checkpoint_stays() -> None:
    with pytest.raises(InvalidInputError, match="tagged 'release'"):
        decided(MIDDLE, chain(TagRow("release", 2)))
    assert decided(MIDDLE, chain(TagRow("release", 3))).drops


def test_the_only_checkpoint_of_a_branch_stays() -> None:
    with pytest.raises(InvalidInputError, match="branch 'main' has no other checkpoint"):
        decided(deletion(1, 2, 3, 4), chain())


def test_a_branch_does_not_move_back_to_what_cannot_be_read_or_was_not_looked_at() -> None:
    plan, view = deletion(4, anchors=(3,)), chain()
    view.checkpoints = {**view.checkpoints, 3: Unreadable(3, "checkpoint #3 is damaged", 2)}
    with pytest.raises(CorruptionError, match="checkpoint #3 is damaged"):
        decided(plan, view)
    view.checkpoints = {4: checkpoint(4, 3)}
    with pytest.raises(ConflictError, match="a branch has moved"):
        decided(plan, view)


def test_the_children_must_be_those_that_were_rewritten() -> None:
    cases: list[tuple[Deletion, dict[int, list[int]]]] = [
        (MIDDLE, {2: [3, 5]}),
        (deletion(2), {2: [3]}),
        (MIDDLE, {2: []}),
    ]
    for plan, children in cases:
        with pytest.raises(ConflictError, match="other checkpoints rest on those to be deleted"):
            decided(plan, chain(children=children))


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        (moved_to(1, base_digest=b"another"), "on another state than a moment ago"),
        (moved_to(1, base_digest=None), "on another state than a moment ago"),
        (Rewrite(3, None, delta=b"delta"), "on another (state )?than a moment ago"),
        (Rewrite(3, 2, keyframe=b"k"), "on another (state )?than a moment ago"),
        (Rewrite(3, None, keyframe=b"k"), "on another (state )?than a moment ago"),
        (Rewrite(3, 1), "would rest on nothing"),
    ],
    ids=["other base", "no base", "no parent", "a parent that goes", "none though there is one", "no copy"],
)
def test_a_checkpoint_is_not_made_to_rest_on_what_does_not_carry_it(rewrite: Rewrite, said: str) -> None:
    with pytest.raises(ConflictError, match=said):
        decided(deletion(2, rewrites=(rewrite,)), chain())


def test_a_parent_that_went_meanwhile_is_noticed_where_a_keyframe_hides_it() -> None:
    # Somebody deleted 1 since this was planned: 2 has no parent any more, and 3 must not name one that is gone.
    view = chain()
    view.checkpoints = {2: checkpoint(2, None, keyframe=True), 3: checkpoint(3, 2, keyframe=True)}
    with pytest.raises(ConflictError, match=r"on another (state )?than a moment ago"):
        decided(deletion(2, rewrites=(Rewrite(3, 1),)), view)


def test_a_damaged_child_is_named_as_damaged_and_not_as_a_race() -> None:
    view = chain()
    view.checkpoints = {**view.checkpoints, 3: Unreadable(3, "checkpoint #3 is damaged", 2)}
    with pytest.raises(CorruptionError, match="checkpoint #3 is damaged"):
        decided(MIDDLE, view)


def test_a_prune_spares_what_a_branch_or_an_undo_needs() -> None:
    for view in (chain(lane(at=2)), chain(lane(at=4, undo=2, undo_journal=2))):
        plan = msgspec.structs.replace(MIDDLE, spare_names=True, anchors=(1,))
        with pytest.raises(ConflictError, match="a branch needs a checkpoint"):
            decided(plan, view)
    assert decided(msgspec.structs.replace(MIDDLE, spare_names=True), chain()).drops


# tries that are tried again


def test_a_deletion_that_went_through_is_recognised(shelf: Shelf) -> None:
    for _ in range(3):
        shelf.commit()
    assert delete(shelf, 2) == 1
    before = dict(shelf.tables.checkpoints), shelf.tables.session
    assert delete(shelf, 2, again=True) == 1
    assert (dict(shelf.tables.checkpoints), shelf.tables.session) == before
    for since in (view_of(again=True), view_of(line(uid=b"o" * 16), checkpoint(2), again=True)):
        assert decided(MIDDLE, since) == Batch(answer=1)


def test_a_second_try_of_a_deletion_that_did_not_go_through_deletes() -> None:
    assert decided(MIDDLE, chain(again=True)).drops == ((Kind.CHECKPOINT, 2),)
