"""Restore and undo: going back never loses what was there, and gives no money back."""

import pytest

from backstay import NotFoundError, Session, Status, Store, Usage


def state_of(session: Session) -> object:
    return session.load()["n"]


def test_a_restore_is_a_new_checkpoint_and_says_where_it_came_from(session: Session) -> None:
    first = session.commit({"n": 1}, label="asked", step=1, metadata={"a": 1}, resume_hint="go on here")
    second = session.commit({"n": 2}, step=2)
    back = session.restore(first)
    assert session.load() == {"n": 1}
    assert (back.parent_id, back.parent_digest) == (second.id, second.digest)
    assert (back.restored_from, back.trigger, back.sequence) == (first.id, "restore", 3)
    assert (back.step, back.resume_hint) == (1, "go on here")
    assert [point.id for point in session.log()] == [back.id, second.id, first.id]
    assert session.checkpoint(second).restored_from is None


def test_undo_takes_a_restore_back_and_undo_twice_is_redo(session: Session, store: Store) -> None:
    first = session.commit({"n": 1})
    second = session.commit({"n": 2})
    back = session.restore(first)
    undone = session.undo()
    assert state_of(session) == 2
    assert (undone.trigger, undone.restored_from) == ("undo", second.id)
    redone = session.undo()
    assert state_of(session) == 1
    assert redone.restored_from == back.id
    session.undo()
    assert state_of(session) == 2
    assert len(list(session.log())) == 6
    assert store.verify().ok


def test_undo_after_further_commits_brings_back_what_stood_before_the_restore(session: Session) -> None:
    first = session.commit({"n": 1})
    session.commit({"n": 2})
    session.restore(first)
    session.commit({"n": 3})
    session.commit({"n": 4})
    session.undo()
    assert state_of(session) == 2
    session.undo()
    assert state_of(session) == 4


def test_undo_reaches_past_another_process(session: Session, store: Store) -> None:
    session.commit({"n": 1})
    session.commit({"n": 2})
    session.restore("main~1")
    assert store.session("ticket-42").undo().state == {"n": 2}


def test_undo_with_nothing_to_undo_changes_nothing(session: Session, store: Store) -> None:
    with pytest.raises(NotFoundError):
        session.undo()
    head = session.commit({"n": 1})
    with pytest.raises(NotFoundError, match="no restore"):
        session.undo()
    session.commit({"n": 2})
    session.restore(head)
    session.fork("main", "b")
    with pytest.raises(NotFoundError, match="'b'"):
        session.undo(branch="b")
    assert len(list(session.log())) == 3


def test_each_branch_has_its_own_undo(session: Session) -> None:
    session.commit({"n": 1})
    session.commit({"n": 2})
    session.fork("main", "b")
    session.restore("main~1")
    session.restore("main~2", branch="b")
    session.commit({"n": 9}, branch="b")
    session.undo()
    assert session.load() == {"n": 2}
    assert session.load("b") == {"n": 9}
    session.undo(branch="b")
    assert session.load("b") == {"n": 2}


def test_a_restore_from_another_branch_and_to_the_head_itself(session: Session) -> None:
    first = session.commit({"n": 1})
    session.fork(first, "b")
    on_b = session.commit({"n": "b"}, branch="b")
    assert session.restore("b").restored_from == on_b.id
    assert state_of(session) == "b"
    again = session.restore("main")
    assert again.sequence == 4
    session.undo()
    assert state_of(session) == "b"


def test_a_restore_gives_no_money_back(session: Session, store: Store) -> None:
    first = session.commit({"n": 1}, usage=Usage(tokens_in=10, cost=0.5))
    session.commit({"n": 2}, usage=Usage(tokens_in=100, tokens_out=7, cost=1.0, extra={"calls": 2}))
    back = session.restore(first)
    assert back.usage == Usage()
    assert back.total_usage == Usage(tokens_in=110, tokens_out=7, cost=1.5, extra={"calls": 2})
    after = session.commit({"n": 3}, usage={"tokens_in": 1, "extra": {"calls": 1, "model": "m"}})
    assert after.usage == Usage(tokens_in=1, extra={"calls": 1, "model": "m"})
    assert after.total_usage == Usage(tokens_in=111, tokens_out=7, cost=1.5, extra={"calls": 3, "model": "m"})
    (info,) = store.sessions()
    assert info.usage == after.total_usage
    assert session.checkpoint(first).total_usage == Usage(tokens_in=10, cost=0.5)


def test_a_fork_starts_from_what_its_checkpoint_had_used(session: Session) -> None:
    first = session.commit({"n": 1}, usage=Usage(tokens_in=10))
    session.commit({"n": 2}, usage=Usage(tokens_in=100))
    session.fork(first, "b")
    assert session.commit({"n": 3}, branch="b", usage=Usage(tokens_in=1)).total_usage == Usage(tokens_in=11)


def test_a_status_holds_until_it_is_changed_and_goes_back_with_a_restore(session: Session, store: Store) -> None:
    first = session.commit({"n": 1})
    assert (first.status, first.reason) == (Status.IN_PROGRESS, None)
    failed = session.commit({"n": 2}, status=Status.FAILED("out of memory"))
    assert (failed.status, failed.reason) == (Status.FAILED, "out of memory")
    still = session.commit({"n": 3})
    assert (still.status, still.reason) == (Status.FAILED, "out of memory")
    (info,) = store.sessions(status="failed")
    assert (info.status, info.reason) == (Status.FAILED, "out of memory")
    done = session.commit({"n": 4}, status="completed")
    assert (done.status, done.reason) == (Status.COMPLETED, None)
    halted = session.commit({"n": 5}, status=Status.HALTED)
    assert (halted.status, halted.reason) == (Status.HALTED, None)
    back = session.restore(failed)
    assert (back.status, back.reason) == (Status.FAILED, "out of memory")
    again = session.undo()
    assert again.status is Status.HALTED
    session.fork(done, "b")
    assert session.commit({"n": 6}, branch="b").status is Status.COMPLETED
    assert session.head() == again


def test_going_back_and_forth_a_hundred_times_keeps_every_state(session: Session, store: Store) -> None:
    states = [{"messages": [{"n": number, "text": "x" * 200}] * (number + 1)} for number in range(10)]
    points = [session.commit(state) for state in states]
    for number in range(60):
        assert session.restore(points[number * 7 % 10]).state == states[number * 7 % 10]
        if number % 3 == 0:
            session.undo()
    for point, state in zip(points, states, strict=True):
        assert session.load(point) == state
    assert store.verify().ok
