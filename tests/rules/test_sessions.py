"""Whole sessions: deleted and imported through a hidden name, in portions, each portion safe to try again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.errors import AlreadyExistsError, ConflictError, InvalidInputError, LeaseHeldError, NotFoundError
from backstay.ids import MAX_SEQUENCE
from backstay.port import EVERY, Ask, Batch, CheckpointRow, Kind, LaneRow, Row, SessionRow
from backstay.rules import deletion
from tests.rules.shelf import (
    HOLDER,
    LEASE_US,
    NOW_US,
    SESSION,
    UID,
    Shelf,
    batch_of,
    checkpoint,
    claim,
    lane,
    line,
    put_of,
    view_of,
)

BEGUN = line(sequence=1, checkpoints=1, lanes=1)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


# going


def test_a_session_is_hidden_at_once_under_a_name_of_its_own() -> None:
    assert deletion.hide_ask(SESSION).names is EVERY
    batch = batch_of(deletion.hide(SESSION)(view_of(BEGUN, lane(at=1, run=5, entered=True))))
    hidden = put_of(batch, SessionRow)
    assert hidden == msgspec.structs.replace(BEGUN, id=f"{UID.hex()}.9", hidden=True, touched=9)
    assert (batch.answer, batch.wakes, batch.drops) == (hidden, True, ())


def test_whoever_empties_a_session_is_not_taken_for_one_that_left_it_behind() -> None:
    assert put_of(batch_of(deletion.hide(SESSION)(view_of(BEGUN))), SessionRow).claim is None
    emptied = put_of(batch_of(deletion.hide(SESSION, holder=HOLDER)(view_of(BEGUN))), SessionRow)
    assert emptied.claim == claim(lease_us=60_000_000)


def test_two_sessions_of_one_uid_can_be_on_their_way_out_at_once(shelf: Shelf) -> None:
    for name in ("a", "b"):
        row = line(id=name)
        shelf.apply(Ask(name), Batch((msgspec.structs.replace(row, touched=shelf.last + 1),)))
    names = {shelf.write(deletion.hide_ask(name), deletion.hide(name)).id for name in ("a", "b")}
    assert {(hidden, id_) for hidden, id_ in shelf.sessions} == {(True, name) for name in names}
    assert len(names) == 2


def test_nobody_deletes_a_session_with_a_live_run() -> None:
    alive = lane("b", 1, run=5, claim=claim())
    with pytest.raises(LeaseHeldError, match="branch 'b'"):
        deletion.hide(SESSION)(view_of(BEGUN, lane(at=1), alive))
    silent = lane("b", 1, run=5, entered=True, claim=claim(NOW_US - LEASE_US))
    assert batch_of(deletion.hide(SESSION)(view_of(BEGUN, silent))).puts


def test_a_prune_deletes_only_the_session_it_looked_at() -> None:
    with pytest.raises(ConflictError, match="written to meanwhile"):
        deletion.hide(SESSION, touched=2)(view_of(BEGUN))
    assert batch_of(deletion.hide(SESSION, touched=3)(view_of(BEGUN))).puts


def test_a_session_that_is_not_there_cannot_go_unless_it_was_a_moment_ago() -> None:
    with pytest.raises(NotFoundError, match="no session 's'"):
        deletion.hide(SESSION)(view_of())
    assert batch_of(deletion.hide(SESSION)(view_of(again=True))) == Batch()


def test_a_hidden_session_goes_in_portions_and_its_line_last(shelf: Shelf) -> None:
    shelf.commit()
    found = shelf.enter()
    shelf.call(found.lease, "a")
    shelf.leave(found.lease)
    hidden = shelf.write(deletion.hide_ask(SESSION), deletion.hide(SESSION))
    ask = Ask(hidden.id, hidden=True)
    assert shelf.look(Ask(SESSION)).session is None
    shelf.write(ask, deletion.drop_rows([(Kind.CHECKPOINT, 1), (Kind.KEYFRAME, 1)]))
    shelf.write(ask, deletion.drop_rows([(Kind.CALL, (found.lease.run, 1)), (Kind.NAME, "main")]))
    tables = shelf.sessions[True, hidden.id]
    assert [len(kept) for kept in (tables.checkpoints, tables.keyframes, tables.calls, tables.names)] == [0] * 4
    shelf.write(ask, deletion.drop_session())
    assert not shelf.sessions
    for rule in (deletion.drop_rows([(Kind.CHECKPOINT, 1)]), deletion.drop_session()):
        assert batch_of(rule(view_of())).drops == (), "another has finished it"


# coming


ARRIVING = line(id=UID.hex(), hidden=True, claim=claim(), sequence=3, checkpoints=2, lanes=1)
SHOWN = line(id="imported", sequence=3, checkpoints=2, lanes=1, logical_bytes=70)


def test_an_import_begins_hidden_and_ends_visible_with_all_its_rows(shelf: Shelf) -> None:
    ask = deletion.show_ask(SHOWN)
    assert (ask.session, ask.hidden, ask.beside) == (UID.hex(), True, "imported")
    shelf.write(ask, deletion.arrive(ARRIVING))
    rows: list[Row] = [checkpoint(1, keyframe=True), checkpoint(3, 1), lane(at=3)]
    shelf.write(ask, deletion.add_rows("imported", rows, {}))
    assert shelf.look(Ask("imported")).session is None
    shelf.write(ask, deletion.show(SHOWN, last_run=0))
    view = shelf.look(Ask("imported", names=EVERY, sequences=(1, 3)))
    assert view.session == msgspec.structs.replace(SHOWN, touched=shelf.last)
    assert (list(view.lanes), list(view.checkpoints)) == (["main"], [1, 3])
    assert list(shelf.sessions) == [(False, "imported")]


def test_an_import_can_be_given_a_hidden_name_of_its_own() -> None:
    assert deletion.show_ask(SHOWN, hidden="mine").session == "mine"


def test_the_blobs_of_a_portion_come_with_it() -> None:
    batch = batch_of(deletion.add_rows("imported", [checkpoint(1)], {b"d": b"x"})(view_of(ARRIVING)))
    assert (batch.puts, batch.blobs) == ((checkpoint(1),), {b"d": b"x"})
    assert put_of(batch, CheckpointRow).sequence == 1


def test_leases_do_not_travel_and_what_was_entered_is_gone_on_with() -> None:
    running: dict[str, Any] = {
        "run": 5,
        "token": 4,
        "entered": True,
        "claim": claim(),
        "crashes": 3,
        "spot": b"spot",
        "nonce": b"n",
    }
    there = lane(at=1, input=b"\0in", status="waiting", purpose="files", **running)
    arrived = put_of(batch_of(deletion.add_rows("i", [there], {})(view_of(ARRIVING))), LaneRow)
    rest = {"entered": False, "claim": None, "crashes": 0, "spot": b"", "nonce": b"", "purpose": None}
    assert arrived == msgspec.structs.replace(there, unfinished=True, **rest)
    finished = lane(at=1, run=5, token=4)
    assert put_of(batch_of(deletion.add_rows("i", [finished], {})(view_of(ARRIVING))), LaneRow) == finished


def test_runs_of_this_store_get_numbers_beyond_those_that_came_along() -> None:
    for last_run, touched in ((3, 9), (8, 9), (9, 10), (500, 501)):
        batch = batch_of(deletion.show(SHOWN, last_run=last_run)(view_of(ARRIVING)))
        after = put_of(batch, SessionRow)
        assert (after.touched, after.hidden, after.claim, after.id) == (touched, False, None, "imported")
        assert batch.wakes


def test_numbers_that_leave_no_room_for_the_stores_own_are_refused() -> None:
    for row, last_run in (
        (SHOWN, deletion.MAX_RUN + 1),
        (msgspec.structs.replace(SHOWN, sequence=MAX_SEQUENCE + 1), 0),
    ):
        with pytest.raises(InvalidInputError, match="no numbers left"):
            deletion.show(row, last_run=last_run)
    assert batch_of(deletion.show(SHOWN, last_run=deletion.MAX_RUN)(view_of(ARRIVING))).puts


def test_a_name_that_is_taken_stops_an_import_at_its_beginning_and_at_its_end() -> None:
    for rule, hidden in ((deletion.arrive(ARRIVING), []), (deletion.show(SHOWN, last_run=0), [ARRIVING])):
        with pytest.raises(AlreadyExistsError, match="already a session 'imported'"):
            rule(view_of(*hidden, beside=line(id="imported")))


def test_an_import_that_was_swept_away_or_is_going_on_already_is_begun_again() -> None:
    for rule in (deletion.show(SHOWN, last_run=0), deletion.add_rows("imported", [], {})):
        with pytest.raises(ConflictError, match="swept away"):
            rule(view_of())
    with pytest.raises(ConflictError, match="being imported already"):
        deletion.arrive(ARRIVING)(view_of(msgspec.structs.replace(ARRIVING, claim=claim(NOW_US - 1))))


def test_the_steps_of_an_import_that_went_through_are_recognised() -> None:
    arrived = msgspec.structs.replace(ARRIVING, touched=8)
    assert batch_of(deletion.arrive(ARRIVING)(view_of(arrived, again=True))) == Batch()
    for since in (view_of(arrived), view_of(msgspec.structs.replace(arrived, claim=None), again=True)):
        with pytest.raises(ConflictError):
            deletion.arrive(ARRIVING)(since)
    rule = deletion.show(SHOWN, last_run=0)
    assert batch_of(rule(view_of(beside=SHOWN, again=True))) == Batch()
    for beside in (line(id="imported", uid=b"o" * 16), None):
        with pytest.raises((AlreadyExistsError, ConflictError)):
            rule(view_of(beside=beside, again=True))
    with pytest.raises(AlreadyExistsError):
        rule(view_of(beside=SHOWN))


def test_what_is_not_complete_is_not_shown() -> None:
    with pytest.raises(AssertionError):
        deletion.arrive(SHOWN)
