"""Waiting: when a run that was left is ready, whose answer counts, and where messages go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.codec import encode_stored
from backstay.errors import AlreadyExistsError, ConflictError, FencedError, InvalidInputError, NotFoundError
from backstay.port import Batch, CallRow, LaneQuery, LaneRow, More, SessionRow, TagRow, View
from backstay.port.row_codec import are_wanted, joined, marks_of
from backstay.port.rows import (
    ABANDONED,
    CANCELLED,
    DONE,
    DUE_BITS,
    ENTERED,
    FOR_ANSWER,
    FOR_MESSAGE,
    FOR_TIME,
    INBOX,
    MARK_READY,
    MARK_WAITING,
    REJECTED,
    SENT,
    TIMED_OUT,
    WAIT,
    WAITING,
    CallWait,
    LaneWait,
)
from backstay.rules import runs, waiting
from backstay.rules.calls import pending_of
from backstay.sealing import pack_value
from tests.rules.shelf import (
    LEASE_US,
    NOW_US,
    SESSION,
    UID,
    Shelf,
    batch_of,
    call,
    claim,
    done,
    entering,
    lane,
    lease,
    line,
    put_of,
    view_of,
)

BEGUN = line(sequence=1, checkpoints=1, lanes=1, agent="support")
RUNNING: dict[str, Any] = {
    "run": 5,
    "token": 1,
    "entered": True,
    "unfinished": True,
    "claim": claim(),
    "input": b"\0in",
}
YES = pack_value(encode_stored(True))
LEFT: dict[str, Any] = {"run": 5, "token": 1, "unfinished": True, "status": "waiting", "reason": "for ok"}


def wait(id_: str = "w", n: int = 0, what: str = FOR_ANSWER, due_us: int | None = None, **fields: Any) -> CallRow:
    given = {"name": "ok", "kind": WAIT, "status": WAITING, "token": 1, "wait": CallWait(what, due_us)}
    return call(id_, (5, 1, n), **(given | fields))


def leaving(view: View, *waits: CallRow, sent: int = 0) -> Batch:
    left = waiting.Left(lease(), waits, "for ok", sent, NOW_US, "beef")
    return batch_of(waiting.leave(left)(view))


def test_a_run_left_waiting_has_not_crashed_and_is_found_by_its_marks() -> None:
    open_ = wait()
    before = lane(at=1, **(RUNNING | {"crashes": 4, "spot": b"spot"}))
    batch = leaving(view_of(BEGUN, before, open_), open_)
    after, session = put_of(batch, LaneRow), put_of(batch, SessionRow)
    assert (after.claim, after.entered, after.unfinished, after.input) == (None, False, True, b"\0in")
    assert (after.crashes, after.spot, after.wait) == (0, b"", LaneWait("for ok"))
    assert (after.status, after.reason, session.status, session.reason) == ("waiting", "for ok") * 2
    assert (marks_of(after), session.touched, batch.wakes) == (MARK_WAITING, 9, True)


@pytest.mark.parametrize("now", [{"status": DONE}, {"status": REJECTED}, {"status": ABANDONED}])
def test_what_was_answered_while_the_run_was_leaving_makes_it_ready_at_once(now: dict[str, Any]) -> None:
    open_ = wait()
    batch = leaving(view_of(BEGUN, lane(at=1, **RUNNING), wait(**now)), open_)
    assert put_of(batch, LaneRow).wait == LaneWait("for ok", ready=True)
    assert marks_of(put_of(batch, LaneRow)) == MARK_WAITING | MARK_READY


@pytest.mark.parametrize(("sent", "ready"), [(3, False), (4, True)])
def test_a_message_that_came_while_the_run_was_leaving_makes_it_ready(sent: int, ready: bool) -> None:
    open_ = wait(what=FOR_MESSAGE, name="inbox")
    batch = leaving(view_of(BEGUN, lane(at=1, sent=sent, **RUNNING), open_), open_, sent=3)
    assert put_of(batch, LaneRow).wait == LaneWait("for ok", ready=ready, names=("inbox",))
    answer = wait()
    assert put_of(leaving(view_of(BEGUN, lane(at=1, sent=9, **RUNNING), answer), answer), LaneRow).wait == LaneWait(
        "for ok"
    )


def test_the_earliest_of_several_times_counts_and_no_time_is_early() -> None:
    rows = wait("a", 0, FOR_TIME, NOW_US + 5_000_001), wait("b", 1, FOR_ANSWER, NOW_US + 9_000_000), wait("c", 2)
    after = put_of(leaving(view_of(BEGUN, lane(at=1, **RUNNING), *rows), *rows), LaneRow)
    assert after.wait == LaneWait("for ok", NOW_US + 5_000_001)
    marks = marks_of(after)
    due = LaneQuery(0, due=True)
    assert not are_wanted(marks, due, NOW_US + 5_000_000)
    assert not are_wanted(marks, due, NOW_US + 5_000_999)
    assert are_wanted(marks, due, NOW_US + 5_001_000)
    assert not are_wanted(marks, LaneQuery(ENTERED | MARK_READY), NOW_US + 10**12)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], 0),
        ([ENTERED, MARK_READY], ENTERED | MARK_READY),
        ([7 << DUE_BITS | ENTERED, 3 << DUE_BITS, MARK_WAITING], 3 << DUE_BITS | ENTERED | MARK_WAITING),
        ([MARK_WAITING, 9 << DUE_BITS], 9 << DUE_BITS | MARK_WAITING),
    ],
)
def test_marks_of_several_branches_are_joined_so_that_none_is_missed(marks: list[int], expected: int) -> None:
    assert joined(marks) == expected


def test_a_run_that_was_stopped_while_it_was_leaving_is_cancelled_and_its_waits_too() -> None:
    open_ = wait()
    before = lane(at=1, **(RUNNING | {"stop": "enough"}))
    rule = waiting.leave(waiting.Left(lease(), (open_,), "for ok", 0, NOW_US, "beef"))
    assert isinstance(rule(view_of(BEGUN, before, open_)), More)
    batch = batch_of(rule(view_of(BEGUN, before, pending={"main": (open_,)})))
    assert (put_of(batch, CallRow).status, put_of(batch, LaneRow).status, batch.answer) == (
        CANCELLED,
        "cancelled",
        "enough",
    )
    assert pending_of([put_of(batch, CallRow)]) == []


def test_a_run_that_lost_its_lease_leaves_nothing_behind() -> None:
    with pytest.raises(FencedError):
        leaving(view_of(BEGUN, lane(at=1, **(RUNNING | {"token": 2})), wait()), wait())


def test_a_ready_run_is_taken_by_the_first_who_comes() -> None:
    before = lane(at=1, wait=LaneWait("for ok", ready=True), **LEFT)
    new = entering(expect_token=1)
    batch = batch_of(runs.enter(new)(view_of(BEGUN, before, pending={"main": (wait(status=DONE),)})))
    after = put_of(batch, LaneRow)
    assert (after.token, after.wait, after.status, marks_of(after)) == (2, None, "in_progress", ENTERED)
    assert [row.id for row in batch.answer.calls] == ["w"]
    for moved in (lane(at=1, **LEFT), msgspec.structs.replace(before, token=2)):
        with pytest.raises(ConflictError, match="resumed meanwhile"):
            runs.enter(new)(view_of(BEGUN, moved))


# answers


def answering(view: View, **change: Any) -> Batch:
    before = wait()
    given = {"status": DONE, "result": YES, "nonce": b"mine", "wait": CallWait(FOR_ANSWER, by="ana")} | change
    after = msgspec.structs.replace(before, **given)
    return batch_of(waiting.answer(SESSION, "main", before=before, after=after)(view))


def test_an_answer_makes_the_run_ready_and_fences_what_was_silent() -> None:
    before = lane(at=1, wait=LaneWait("for ok"), **LEFT)
    batch = answering(view_of(BEGUN, before, wait()))
    after = put_of(batch, LaneRow)
    assert after == msgspec.structs.replace(before, token=2, wait=LaneWait("for ok", ready=True))
    assert (put_of(batch, CallRow).status, put_of(batch, CallRow).result, batch.wakes) == (DONE, YES, True)
    assert put_of(batch, SessionRow).touched == 9


def test_an_answer_while_the_run_is_alive_leaves_its_lease_alone() -> None:
    batch = answering(view_of(BEGUN, lane(at=1, **RUNNING), wait()))
    assert [type(row) for row in batch.puts] == [CallRow]


def test_the_same_answer_again_is_recognised_and_another_is_told_the_first() -> None:
    before = lane(at=1, wait=LaneWait("for ok", ready=True), **LEFT)
    first = wait(status=DONE, result=YES, nonce=b"theirs", wait=CallWait(FOR_ANSWER, by="ana"))
    batch = answering(view_of(BEGUN, before, first))
    assert (batch.puts, batch.answer) == ((), first)
    for change in (
        {"wait": CallWait(FOR_ANSWER, by="bob")},
        {"result": pack_value(encode_stored(1))},
        {"status": REJECTED, "error": ("rejected", "no")},
        {"wait": CallWait(FOR_ANSWER, by="ana", args=YES)},
    ):
        with pytest.raises(ConflictError, match=r"'ok' \(w\) was answered True by 'ana'"):
            answering(view_of(BEGUN, before, first), **change)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"status": REJECTED, "error": ("rejected", "too much")}, "was rejected: too much"),
        ({"status": TIMED_OUT, "error": ("timed_out", "late")}, "was not answered in time"),
        ({"status": CANCELLED}, "no longer waited for"),
        ({"status": ABANDONED}, "no longer waited for"),
    ],
)
def test_an_answer_that_comes_too_late_says_what_became_of_the_wait(kept: dict[str, Any], said: str) -> None:
    with pytest.raises(ConflictError, match=said):
        answering(view_of(BEGUN, lane(at=1, **LEFT), wait(**kept)))


def test_an_answer_to_a_wait_that_went_with_its_head_is_refused() -> None:
    with pytest.raises(ConflictError, match="no longer waited for"):
        answering(view_of(BEGUN, lane(at=2, **LEFT), wait()))
    with pytest.raises(ConflictError, match="no longer as it was"):
        answering(view_of(BEGUN, lane(at=1, **LEFT)))
    with pytest.raises(NotFoundError, match="no session"):
        answering(view_of())


def test_a_timeout_and_an_answer_at_one_moment_one_counts() -> None:
    answered = wait(status=DONE, result=YES, nonce=b"theirs")
    late = wait(status=TIMED_OUT, error=("timed_out", "late"))
    with pytest.raises(ConflictError):
        runs.journal(lease(), late, at=late.at)(view_of(BEGUN, lane(at=1, **RUNNING), answered))


# messages


def message(**fields: Any) -> waiting.Message:
    given: dict[str, Any] = {"session": SESSION, "branch": "main", "name": "inbox", "id": "m", "value": YES}
    return waiting.Message(**(given | {"at_us": NOW_US, "uid": UID} | fields))


def test_a_message_makes_the_session_if_there_is_none() -> None:
    batch = batch_of(waiting.send(message(agent="support"))(view_of()))
    session, after, row = put_of(batch, SessionRow), put_of(batch, LaneRow), put_of(batch, CallRow)
    assert (session.id, session.uid, session.agent, session.lanes, session.touched) == (SESSION, UID, "support", 1, 9)
    assert (after.run, after.sent, after.inbox, after.entered, marks_of(after)) == (9, 1, 1, False, 0)
    assert (row.at, row.status, row.result, row.name) == ((9, INBOX, 0), SENT, YES, "inbox")


def test_messages_are_numbered_and_a_live_run_is_left_alone() -> None:
    before = lane(at=1, sent=7, inbox=2, **RUNNING)
    batch = batch_of(waiting.send(message())(view_of(BEGUN, before)))
    assert put_of(batch, LaneRow) == msgspec.structs.replace(before, sent=8, inbox=3)
    assert (put_of(batch, CallRow).at, batch.answer) == ((5, INBOX, 7), 7)
    assert not [row for row in batch.puts if isinstance(row, SessionRow)]
    again = view_of(BEGUN, before, put_of(batch, CallRow))
    assert batch_of(waiting.send(message())(again)).puts == ()


@pytest.mark.parametrize(("name", "ready"), [("inbox", True), ("other", False)])
def test_a_message_makes_the_run_ready_that_waits_for_its_name(name: str, ready: bool) -> None:
    before = lane(at=1, wait=LaneWait("for ok", names=("inbox",)), **LEFT)
    after = put_of(batch_of(waiting.send(message(name=name))(view_of(BEGUN, before))), LaneRow)
    assert after.wait is not None
    assert after.wait.ready is ready


def test_messages_go_to_branches_that_are_there_and_to_no_more_than_there_are_numbers() -> None:
    with pytest.raises(NotFoundError, match="no branch"):
        waiting.send(message(branch="other"))(view_of(BEGUN))
    with pytest.raises(AlreadyExistsError):
        waiting.send(message())(view_of(BEGUN, TagRow("main", 1)))
    with pytest.raises(InvalidInputError, match="no numbers left"):
        waiting.send(message())(view_of(BEGUN, lane(at=1, sent=waiting.MAX_MESSAGES, **RUNNING)))


def test_a_boundary_takes_the_messages_that_its_calls_received() -> None:
    shelf = Shelf()
    for number in range(3):
        new = message(id=f"m{number}")
        shelf.write(new.ask, waiting.send(new))
    held = shelf.enter().lease
    row = shelf.begin(held, "w", kind=WAIT, status=WAITING, wait=CallWait(FOR_MESSAGE))
    shelf.finish(held, row, wait=CallWait(FOR_MESSAGE, message=0))
    shelf.commit(lease=held, received=(0,))
    assert (shelf.lane().sent, shelf.lane().inbox) == (3, 2)
    assert [call.at[2] for call in shelf.tables.journal((held.run, INBOX)) if isinstance(call, CallRow)] == [1, 2]


def test_a_wait_that_is_given_up_is_cancelled() -> None:
    rows = (wait("a", 0), done("b", (5, 1, 1)))
    view = view_of(BEGUN, lane(at=1, wait=LaneWait("for ok"), **LEFT), pending={"main": rows})
    for rule in (
        runs.cancel(SESSION, "main", reason="enough", at_us=NOW_US, nonce="beef"),
        runs.abandon(SESSION, "main", reason="enough", at_us=NOW_US, nonce="beef"),
    ):
        batch = batch_of(rule(view))
        assert [row.status for row in batch.puts if isinstance(row, CallRow)] == [CANCELLED, ABANDONED]
        assert (put_of(batch, LaneRow).wait, put_of(batch, LaneRow).unfinished) == (None, False)


def test_a_restore_puts_a_wait_aside_and_its_undo_takes_it_up() -> None:
    shelf = Shelf()
    shelf.commit()
    shelf.commit()
    held = shelf.enter().lease
    row = shelf.begin(held, "w", kind=WAIT, status=WAITING, wait=CallWait(FOR_ANSWER))
    left = waiting.Left(held, (row,), "for ok", 0, NOW_US, "beef")
    shelf.write(left.ask, waiting.leave(left))
    shelf.commit(undoable=True)
    assert (shelf.lane().wait, shelf.lane().undo_wait, marks_of(shelf.lane())) == (None, LaneWait("for ok"), 0)
    shelf.commit(undoable=True, takes_up=True)
    assert (shelf.lane().wait, shelf.lane().status) == (LaneWait("for ok"), "waiting")
    assert shelf.tables.session.status == "waiting"
    assert [call.id for call in shelf.pending() if isinstance(call, CallRow)] == ["w"]
    shelf.pass_time(LEASE_US)
