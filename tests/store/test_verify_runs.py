"""Damage to a journal: told, with what it costs; never a reason to make a call twice; and a way to go on."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import backstay
from backstay import CorruptionError, LeaseHeldError, Store, packing
from tests.store.test_verify import behind_its_back
from tests.store.travel import KINDS, LONG_ANSWER, crashing, journal_of, leave_in_doubt, open_kind, run_for_long

SPOILED = "UPDATE calls SET body = CAST(body || x'00' AS BLOB) WHERE call = ?"


def never() -> None:
    raise AssertionError("this call was made before")


def begin(path: Path, name: str = "s") -> None:
    """A session with a checkpoint that took calls in, and two calls that are pending."""
    with backstay.open(path) as store:
        with store.session(name).run() as run:
            run.append(run.call("model", lambda: LONG_ANSWER, kind="llm"))
            run.call("pay", lambda: 1)
        with crashing(store.session(name).run(input="go on")) as run:
            run.call("pay", lambda: 2)
            run.call("ship", lambda: 3)


def calls_in(path: Path, *, stood: int) -> list[int]:
    """The calls that were made while the first session's branch stood somewhere."""
    return [call for (call,) in behind_its_back(path, ("SELECT call FROM calls WHERE stood = ?", (stood,)))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_with_everything_in_it_is_whole(kind: str, tmp_path: Path) -> None:
    with open_kind(kind, tmp_path) as store:
        run_for_long(store)
        assert store.verify().ok, str(store.verify())
        before = journal_of(store)
        assert not store.verify(repair=True).repaired
        assert journal_of(store) == before


def test_a_damaged_call_of_the_past_is_one_problem_and_the_work_goes_on(path: Path) -> None:
    begin(path, "s")
    begin(path, "other")
    first = calls_in(path, stood=0)[0]
    behind_its_back(path, (SPOILED, (first,)))
    with backstay.open(path) as store:
        session = store.session("s")
        head = session.head()
        assert head is not None
        (problem,) = store.verify().problems
        assert problem.session_id == "s"
        assert head.id[:12] in problem.what
        assert "session.calls()" in problem.cost
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
    begin(path, "s")
    begin(path, "other")
    pay = calls_in(path, stood=1)[0]
    behind_its_back(path, (SPOILED if how == "spoiled" else "DELETE FROM calls WHERE call = ?", (pay,)))
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


def test_a_place_that_leads_nowhere_is_told(path: Path) -> None:
    begin(path)
    with backstay.open(path) as store:
        head = store.session("s").head()
        assert head is not None
        (placed,) = [one for one in store.backend.calls("s", head.id) if one.call.place is not None]
        run = placed.run
    # A well sealed call whose place is another: what a bug would leave, not a fault of the disk.
    forged = _sealed(placed.call, run, place=b"\x92\xa8messages\x07")
    behind_its_back(path, ("UPDATE calls SET body = ? WHERE call = ?", (forged, placed.slot)))
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        assert head.id[:12] in problem.what


def _sealed(call: Any, run: int, **changed: Any) -> bytes:
    return packing.seal_call(msgspec.msgpack.encode(msgspec.structs.replace(call, **changed)), run=run)


def test_an_input_that_cannot_be_read_is_told_and_can_be_given_up(path: Path) -> None:
    begin(path)
    behind_its_back(path, ("UPDATE runs SET input = x'c1' WHERE input IS NOT NULL", ()))
    with backstay.open(path) as store:
        (problem,) = store.verify().problems
        assert "'main'" in problem.what
        with pytest.raises(CorruptionError), store.session("s").run():
            pass
        store.session("s").abandon(reason="nobody knows what was asked")
        assert store.verify().ok


# what nobody needs


def test_calls_and_runs_of_nobody_are_space_and_a_repair_takes_nothing_else(path: Path) -> None:
    begin(path, "s")
    begin(path, "gone")
    with backstay.open(path) as store:
        run_for_long(store)
        before = journal_of(store), journal_of(store, "s")
    behind_its_back(
        path,
        ("DELETE FROM checkpoints WHERE sid = (SELECT sid FROM sessions WHERE id = 'gone')", ()),
        ("DELETE FROM names WHERE sid = (SELECT sid FROM sessions WHERE id = 'gone')", ()),
        ("DELETE FROM sessions WHERE id = 'gone'", ()),
        ("INSERT INTO calls(run, stood, n, body) VALUES(999, 0, 0, x'00')", ()),
    )
    with backstay.open(path) as store:
        problems = store.verify().problems
        assert [problem.cost for problem in problems] == ["space only", "space only"]
        assert {problem.what for problem in problems} == {"1 runs of no session", "5 calls of no run"}
        assert not store.verify(repair=True).problems
        assert (journal_of(store), journal_of(store, "s")) == before
    assert not behind_its_back(path, ("SELECT 1 FROM calls WHERE run NOT IN (SELECT run FROM runs)", ()))


def test_a_call_that_a_checkpoint_took_in_is_kept_whatever_became_of_its_run(path: Path) -> None:
    begin(path)
    with backstay.open(path) as store:
        store.session("s").abandon(reason="enough")
        before = store.session("s").calls()
    behind_its_back(path, ("DELETE FROM runs", ()))
    with backstay.open(path) as store:
        assert not store.verify().ok
        assert store.verify(repair=True).ok
        assert store.session("s").calls() == before
        for name in ("s", "another"):
            with store.session(name).run() as run:
                run.call("pay", lambda: 9)
        assert store.session("s").calls("main~1") == before, "no later run got the number of the one that is lost"
        assert store.verify().ok


def test_what_is_in_doubt_is_not_damage(store: Store) -> None:
    with crashing(store.session("s").run()) as run:
        leave_in_doubt(run, "transfer")
    assert store.verify().ok
