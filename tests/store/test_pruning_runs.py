"""Forgetting, and runs: nobody loses work that somebody is at, or could go on with; calls go with their checkpoints."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import LeaseHeldError, NotFoundError, Retention, Session, Store
from backstay.port import Kind
from tests.store.rows import rows_of
from tests.store.travel import KINDS, LONG_ANSWER, crashing, leave_in_doubt, open_kind

OVER = Retention(finished_days=0)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_kind(request.param, tmp_path) as opened:
        yield opened


def never() -> None:
    raise AssertionError("this call was made before")


def complete(session: Session, turns: int = 3) -> None:
    with session.run() as run:
        for turn in range(turns):
            run.append({"role": "assistant", "content": run.call("model", f"{LONG_ANSWER}{turn}".upper, kind="llm")})
            run.call("pay", lambda: 7, key=str(turn))
            run.step()


def pruned(store: Store, rule: Retention) -> Any:
    """What a prune did, which must be what it said it would do."""
    plan, done = store.prune(rule, dry_run=True), store.prune(rule)
    assert (plan.sessions, plan.checkpoints) == (done.sessions, done.checkpoints)
    return done


def in_doubt(session: Session) -> None:
    with crashing(session.run()) as run:
        leave_in_doubt(run, "transfer")


def failed(session: Session) -> None:
    with session.run() as run:
        run.call("pay", lambda: 7)
        run.fail("no network")


def halted(session: Session) -> None:
    with session.run() as run:
        run.halt("enough")


UNFINISHED: dict[str, Callable[[Session], None]] = {"in doubt": in_doubt, "failed": failed, "halted": halted}


def test_a_session_whose_run_completed_goes_when_its_time_has_come(store: Store) -> None:
    complete(store.session("s"))
    assert pruned(store, OVER).sessions == ("s",)
    assert store.verify().ok
    with pytest.raises(NotFoundError):
        store.session("s").checkpoint()
    assert store.session("s").calls() == []


@pytest.mark.parametrize("how", UNFINISHED)
def test_a_run_that_could_go_on_keeps_its_session_until_somebody_gives_it_up(how: str, store: Store) -> None:
    session = store.session("s")
    complete(session)
    UNFINISHED[how](session)
    assert pruned(store, OVER).sessions == ()
    assert session.head() is not None
    session.abandon(reason="enough")
    assert pruned(store, OVER).sessions == ("s",)


def test_a_run_that_never_came_to_a_checkpoint_is_kept_until_it_is_given_up(store: Store) -> None:
    with crashing(store.session("s").run(input="asked")) as run:
        run.call("pay", lambda: 7)
    assert pruned(store, OVER).sessions == ()
    store.session("s").abandon(reason="enough")
    assert pruned(store, OVER).sessions == ("s",)
    assert store.verify().ok


def test_a_session_that_somebody_works_on_is_passed_over_and_the_others_go(store: Store) -> None:
    for name in ("a", "b", "c"):
        complete(store.session(name))
    with store.session("b").run() as run:
        done = pruned(store, OVER)
        assert set(done.sessions) == {"a", "c"}
        with pytest.raises(LeaseHeldError):
            store.delete("b")
        assert run.call("pay", lambda: 8) == 8
    assert [call.result for call in store.session("b").calls()] == [8]
    store.delete("b")
    assert store.verify().ok


def before_the_first_write(store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Somebody is faster."""
    backend, write = store.backend, store.backend.write

    def and_then(*args: Any) -> Any:
        monkeypatch.setattr(backend, "write", write)
        act()
        return write(*args)

    monkeypatch.setattr(backend, "write", and_then)


def test_a_session_that_was_written_to_while_a_prune_looked_is_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(store.session("s"))
    before_the_first_write(
        store, monkeypatch, lambda: store.session("s").commit({"somebody": "went on"}, status="in_progress")
    )
    assert store.prune(OVER).sessions == ()
    assert store.session("s").load() == {"somebody": "went on"}


def test_a_session_that_was_run_again_while_a_prune_looked_is_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(store.session("s"))
    runs: list[Any] = []

    def somebody_enters() -> None:
        runs.append(store.session("s").run())
        runs[0].__enter__()

    before_the_first_write(store, monkeypatch, somebody_enters)
    assert store.prune(OVER).sessions == ()
    assert runs[0].call("pay", lambda: 9) == 9
    runs[0].__exit__(None, None, None)
    assert [call.result for call in store.session("s").calls()] == [9]


def test_calls_go_with_their_checkpoints_and_those_that_stay_can_be_read(store: Store) -> None:
    session = store.session("s")
    complete(session, turns=40)
    points = list(session.log())
    before = {point.id: session.calls(point.id) for point in points}
    assert [call.result for call in before[points[1].id]] == [f"{LONG_ANSWER}39".upper(), 7]
    done = pruned(store, Retention(keep_last=5, keep_days=0))
    assert done.count == len(points) - 5
    for point in session.log():
        assert session.calls(point.id) == before[point.id]
    for gone in done.checkpoints["s"]:
        with pytest.raises(NotFoundError):
            session.calls(gone)
    assert len(rows_of(store, Kind.CALL)) == sum([len(session.calls(point.id)) for point in session.log()])
    assert store.verify().ok


def test_a_prune_while_a_run_is_alive_takes_nothing_that_it_needs(store: Store) -> None:
    with crashing(store.session("s").run()) as run:
        for turn in range(20):
            run.append(run.call("tool", f"{LONG_ANSWER}{turn}".upper, key=str(turn)))
            run.step()
            if turn % 5 == 4:
                run.call("between", lambda: 7)
                assert store.prune(Retention(keep_last=2, keep_days=0)).count
                assert run.call("again", lambda: 8) == 8
    session = store.session("s")
    assert len(list(session.log())) == 2
    with session.run() as run:
        assert (run.call("between", never), run.call("again", never)) == (7, 8)
    assert store.verify().ok


def test_calls_that_wait_for_an_undo_are_not_pruned(store: Store) -> None:
    session = store.session("s")
    complete(session, turns=6)
    with crashing(session.run()) as run:
        run.call("pay", lambda: "paid")
    session.restore("main~3")
    pruned(store, Retention(keep_last=1, keep_days=0))
    session.undo()
    with session.run() as run:
        assert run.call("pay", never) == "paid"
    assert store.verify().ok


def test_a_deleted_session_leaves_no_call_behind(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        complete(store.session("s"))
        in_doubt(store.session("s"))
        store.delete("s")
        assert store.verify().ok
        assert not list(store.backend.check())
    assert b"transfer" not in (tmp_path / "store.db").read_bytes()


@pytest.mark.parametrize("ahead", [1, 40])  # 40: the checkpoints concerned are packed
def test_what_was_done_is_not_forgotten_with_the_commit_that_passed_it_by(store: Store, ahead: int) -> None:
    session = store.session("s")
    session.commit({"turn": 0})
    with crashing(session.run()) as run:
        run.call("pay", lambda: "paid")
    made = [session.commit({"turn": turn}, expect=backstay.ANY) for turn in range(1, ahead + 2)]
    session.delete(made[0])
    assert store.verify().ok
    for checkpoint in reversed(made[1:]):
        session.delete(checkpoint)
    assert [(call.name, call.status) for call in session.calls(pending=True)] == [("pay", "done")]
    with session.run() as run:
        assert run.call("pay", never) == "paid"
    assert store.verify().ok


@pytest.mark.parametrize(("ahead", "forked"), [(1, False), (40, False), (2, True)])  # 40: they are packed
def test_what_was_done_is_not_forgotten_where_the_next_checkpoint_has_calls_of_its_own(
    store: Store, tmp_path: Path, ahead: int, forked: bool
) -> None:
    session = store.session("s")
    session.commit({"turn": 0})
    with crashing(session.run()) as run:
        run.call("pay", lambda: "paid")
    passed_by = session.commit({"turn": 1}, expect=backstay.ANY)
    beside = None
    if forked:  # a child too, and not the one to keep them
        session.fork(passed_by, "side")
        beside = session.commit({"side": 1}, branch="side", expect=backstay.ANY)
    made = []
    for turn in range(ahead):
        with crashing(session.run()) as run:
            run.call("mail", lambda: "sent", key=str(turn))
        if turn % 2:  # one is taken in, the next is left behind in its turn
            made.append(session.commit({"turn": turn + 2}, expect=backstay.ANY))
            continue
        with session.run() as run:
            assert run.call("mail", never, key=str(turn)) == "sent"
            run.state["turn"] = turn + 2
            recorded = run.checkpoint()
            assert recorded is not None
            made.append(recorded)
            run.pause("for now")
    session.delete(passed_by)
    if beside is not None:
        session.delete_branch("side")
        session.delete(beside)
    assert store.verify().ok
    store.export(tmp_path / "all.backstay")
    with open_kind("memory", tmp_path) as other:
        other.import_(tmp_path / "all.backstay")
        for checkpoint in reversed(made):
            other.session("s").delete(checkpoint.id)
        assert [call.name for call in other.session("s").calls(pending=True)] == ["pay"]
        assert other.verify().ok
    for checkpoint in reversed(made):
        session.delete(checkpoint)
    assert [(call.name, call.status) for call in session.calls(pending=True)] == [("pay", "done")]
    with session.run() as run:
        assert run.call("pay", never) == "paid"
    assert store.verify().ok
