"""Removing chosen checkpoints in one go, as adapters do that keep other rules than a Retention."""

from backstay import Session, Store
from backstay.upkeep.pruning import drop


def test_what_was_not_chosen_stays_readable(session: Session, store: Store) -> None:
    points = [session.commit({"messages": [{"n": n} for n in range(count)]}) for count in range(12)]
    gone = {point.id for point in points[1:9]}
    assert set(drop(store.backend, session.id, lambda rows: [id_ for id_ in rows if id_ in gone])) == gone
    assert [len(point.state["messages"]) for point in session.log()] == [11, 10, 9, 0]
    assert store.verify().ok


def test_a_branch_moves_back_over_several_portions_to_what_is_left_of_its_line(session: Session, store: Store) -> None:
    points = [session.commit({"n": n}) for n in range(450)]
    session.fork(points[300], "beside")
    gone = {point.id for point in points[10:]}
    assert len(drop(store.backend, session.id, lambda rows: [id_ for id_ in rows if id_ in gone])) == 440
    assert session.head() == session.head("beside") == points[9]
    assert [point.state["n"] for point in session.log()] == list(range(9, -1, -1))
    assert store.verify().ok


def test_a_branch_whose_line_goes_goes_with_it(session: Session, store: Store) -> None:
    session.commit({"n": 1})
    session.commit({"m": 1}, branch="beside", root=True)
    drop(store.backend, session.id, lambda rows: [id_ for id_ in rows if id_ != session.checkpoint().id])
    assert list(session.branches()) == ["main"]
    assert store.verify().ok


def test_if_all_go_so_does_the_session(session: Session, store: Store) -> None:
    session.commit({"n": 1})
    drop(store.backend, session.id, list)
    assert list(store.sessions()) == []
    assert drop(store.backend, session.id, list) == []
