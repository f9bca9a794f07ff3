"""Damage to a journal: told, with what it costs; never a reason to make a call twice; and a way to go on."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import backstay
from backstay import CorruptionError, LeaseHeldError, Store
from backstay.port import CallRow, Kind
from backstay.port.rows import Took
from tests.store.rows import change_call, harm, journal_of, lane_of, put, row_of, rows_of, take_away
from tests.store.travel import KINDS, LONG_ANSWER, crashing, leave_in_doubt, open_kind, run_for_long

NONSENSE = b"\x00\xc1"  # a packed value of no type


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_kind(request.param, tmp_path) as opened:
        yield opened


def never() -> None:
    raise AssertionError("this call was made before")


def begin(store: Store, name: str = "s") -> None:
    """A session with a checkpoint that took calls in, and two calls that are pending."""
    with store.session(name).run() as run:
        run.append(run.call("model", lambda: LONG_ANSWER, kind="llm"))
        run.call("pay", lambda: 1)
    with crashing(store.session(name).run(input="go on")) as run:
        run.call("pay", lambda: 2)
        run.call("ship", lambda: 3)


def calls_at(store: Store, journal: int, session: str = "s") -> list[CallRow]:
    """The calls that were made while the branch stood somewhere."""
    return [call for call in rows_of(store, Kind.CALL, session) if call.journal == journal]


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_with_everything_in_it_is_whole(kind: str, tmp_path: Path) -> None:
    with open_kind(kind, tmp_path) as store:
        run_for_long(store)
        assert store.verify().ok, str(store.verify())
        before = journal_of(store)
        assert not store.verify(repair=True).repaired
        assert journal_of(store) == before


@pytest.mark.parametrize("how", ["nonsense", "taken away", "the last taken away"])
def test_a_damaged_call_of_the_past_is_one_problem_and_the_work_goes_on(how: str, store: Store) -> None:
    begin(store, "s")
    begin(store, "other")
    calls = calls_at(store, 0)
    if how == "nonsense":
        change_call(store, "s", calls[1], result=NONSENSE)
    else:
        take_away(store, "s", Kind.CALL, calls[-1 if "last" in how else 0].at)
    session = store.session("s")
    head = session.head()
    assert head is not None
    (problem,) = store.verify().problems
    assert problem.session_id == "s"
    assert head.id[:12] in problem.what
    assert "its calls cannot be listed" in problem.cost
    assert store.verify("other").ok
    with pytest.raises(CorruptionError):
        session.calls()
    assert session.load() == {"messages": [LONG_ANSWER]}
    with session.run() as run:
        assert [run.call("pay", never), run.call("ship", never)] == [2, 3]
    assert [call.result for call in session.calls()] == [2, 3]
    session.delete(head)
    assert store.verify().ok


@pytest.mark.parametrize("how", ["spoiled", "taken away"])
def test_a_damaged_pending_call_keeps_every_writer_away_until_somebody_gives_it_up(how: str, path: Path) -> None:
    with backstay.open(path) as store:
        begin(store, "s")
        begin(store, "other")
        pay = calls_at(store, 1)[0]
    if how == "spoiled":
        harm(path, "s", Kind.CALL, pay.at)
    else:
        harm(path, "s", Kind.CALL, pay.at, lambda _: None)
    with backstay.open(path) as store:
        session = store.session("s")
        (problem,) = store.verify().problems
        assert problem.session_id == "s"
        assert "'main'" in problem.what
        assert "session.abandon('main', reason=" in problem.remedy
        for _ in range(2):
            with pytest.raises(CorruptionError), session.run() as run:
                run.call("pay", never)
            for write in (
                lambda: session.commit({"not": "recorded"}),
                lambda: session.restore("main"),
                lambda: session.calls(pending=True),
            ):
                with pytest.raises(CorruptionError):
                    write()
        assert not store.verify(repair=True).ok, "a pending call is never repaired away"
        assert {info.id for info in store.crashed()} == {"s", "other"}

        session.abandon(reason="the bank says it was paid once")
        assert store.verify().ok, str(store.verify())
        assert [info.id for info in store.crashed()] == ["other"]
        assert session.calls(pending=True) == []
        with session.run() as run:
            assert run.input is None
            run.call("ship", lambda: 4)
        found = session.calls()
        assert sorted([(call.name, call.status) for call in found]) == [
            ("(damaged)", "abandoned"),
            ("ship", "abandoned"),
            ("ship", "done"),
        ]
        (lost,) = [call for call in found if call.name == "(damaged)"]
        assert "the bank says" in str(lost.error)
        assert "damaged" in str(lost.error)
        assert store.verify().ok
        assert len(store.session("other").calls(pending=True)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_giving_up_does_not_take_the_work_of_somebody_who_is_at_it(kind: str, tmp_path: Path) -> None:
    with open_kind(kind, tmp_path) as store, store.session("s").run() as run:
        run.call("pay", lambda: 1)
        with pytest.raises(LeaseHeldError):
            store.session("s").abandon(reason="impatience")
        assert run.call("ship", lambda: 2) == 2


def test_a_place_that_leads_nowhere_is_told(store: Store) -> None:
    begin(store)
    head = store.session("s").head()
    assert head is not None
    (placed,) = [call for call in calls_at(store, 0) if call.place is not None]
    # A well sealed call whose place is another: what a bug would leave, not a fault of the disk.
    change_call(store, "s", placed, place=b"\x92\xa8messages\x07")
    (problem,) = store.verify().problems
    assert head.id[:12] in problem.what


def test_an_input_that_cannot_be_read_is_told_and_can_be_given_up(store: Store) -> None:
    begin(store)
    put(store, "s", msgspec.structs.replace(lane_of(store), input=NONSENSE))
    (problem,) = store.verify().problems
    assert "'main'" in problem.what
    with pytest.raises(CorruptionError), store.session("s").run():
        pass
    store.session("s").abandon(reason="nobody knows what was asked")
    assert store.verify().ok


def test_a_call_that_waits_for_an_undo_is_checked_too(store: Store) -> None:
    begin(store)
    session = store.session("s")
    session.restore("main")
    assert store.verify().ok
    take_away(store, "s", Kind.CALL, calls_at(store, 1)[1].at)
    (problem,) = store.verify().problems
    assert "'main'" in problem.what
    assert "undo" in problem.cost


def test_calls_that_a_checkpoint_left_behind_are_checked_with_it(store: Store) -> None:
    begin(store)
    made = store.session("s").commit({"somebody": "went on"})
    took = row_of(store, made).took
    assert took is not None
    assert (took.journal, took.count) == (1, 2)
    assert store.verify().ok
    change_call(store, "s", calls_at(store, 1)[0], status="unheard of")
    (problem,) = store.verify().problems
    assert made.id[:12] in problem.what


def test_a_checkpoint_that_names_calls_which_never_were_is_told(store: Store) -> None:
    made = store.session("s").commit({"n": 1})
    put(store, "s", msgspec.structs.replace(row_of(store, made), took=Took(7, 0, 1), refs=None))
    (problem,) = store.verify().problems
    assert made.id[:12] in problem.what


def test_what_is_left_of_a_session_that_was_lost_is_told_and_touches_no_other(path: Path) -> None:
    with backstay.open(path) as store:
        begin(store, "s")
        begin(store, "gone")
        run_for_long(store)
        before = journal_of(store), journal_of(store, "s")
    harm(path, "gone", Kind.SESSION, "gone", lambda _: None)
    with backstay.open(path) as store:
        problems = store.verify().problems
        assert {"names of no session: 1", "calls of no session: 4"} <= {problem.what for problem in problems}
        store.verify(repair=True)
        assert (journal_of(store), journal_of(store, "s")) == before


def test_what_is_in_doubt_is_not_damage(store: Store) -> None:
    with crashing(store.session("s").run()) as run:
        leave_in_doubt(run, "transfer")
    assert store.verify().ok


@pytest.mark.parametrize("left", ["paused", "waiting", "interrupted", "resumed and killed"])
def test_a_last_pending_call_that_is_gone_is_told_and_no_run_makes_it_again(left: str, store: Store) -> None:
    session = store.session("s")
    session.commit({"n": 1})
    with contextlib.suppress(KeyboardInterrupt), session.run() as run:
        run.call("look", lambda: 1, args={})
        run.call("pay", lambda: 2, args={})
        if left == "paused":
            run.pause("for now")
        elif left == "waiting":
            run.wait("ok")
        else:
            raise KeyboardInterrupt
    if left == "resumed and killed":
        with crashing(session.run()):
            pass
    assert store.verify().ok
    last = calls_at(store, 1)[-1]
    take_away(store, "s", Kind.CALL, last.at)
    (problem,) = store.verify().problems
    assert "must be there" in problem.what
    with pytest.raises(CorruptionError, match="must be pending"), session.run() as run:
        raise AssertionError
    session.abandon(reason="a call is lost")
    assert store.verify().ok
    with session.run() as run:
        run.state["n"] = 2
    assert store.verify().ok
