"""Who brings names of his own: ids, branches without a parent, summaries; and the promise never to change a state."""

from typing import Any

import pytest

from backstay import ConflictError, InvalidInputError, Session, Store


def test_a_checkpoint_can_have_an_id_of_ones_own(session: Session) -> None:
    first = session.commit({"n": 1}, id="1f1e0ec5-e0dd-6cd3-8002-7b3f6e18d568")
    assert session.load("1f1e0ec5-e0dd-6cd3-8002-7b3f6e18d568") == {"n": 1}
    assert session.commit({"n": 2}, id="two").parent_id == first.id


def test_an_id_that_is_taken_is_an_error_and_loses_nothing(session: Session, store: Store) -> None:
    session.commit({"n": 1}, id="one")
    other = store.session(session.id)
    with pytest.raises(ConflictError):
        other.commit({"n": 2}, id="one")
    session.commit({"n": 3})
    with pytest.raises(ConflictError):
        other.commit({"n": 4}, id="one", expect="one")
    assert [point.state for point in session.log()] == [{"n": 3}, {"n": 1}]


def test_an_id_must_be_a_name(session: Session) -> None:
    with pytest.raises(InvalidInputError):
        session.commit({}, id="")


def test_a_session_can_have_lines_that_do_not_meet(session: Session, store: Store) -> None:
    session.commit({"n": 1})
    other = session.commit({"m": 1}, branch="beside", root=True)
    session.commit({"m": 2}, branch="beside")
    assert other.parent_id is None
    assert [point.state for point in session.log("beside")] == [{"m": 2}, {"m": 1}]
    assert session.load() == {"n": 1}
    with pytest.raises(ConflictError):
        session.commit({}, branch="beside", root=True)
    assert store.verify().ok


def test_a_summary_can_be_ones_own(session: Session) -> None:
    assert session.commit({"n": 1}, summary="the first").summary == "the first"
    assert session.commit({"n": 1}).summary == "n"


def test_a_state_that_is_never_changed_is_recorded_just_as_others(session: Session, store: Store) -> None:
    messages = [{"text": str(at)} for at in range(5)]
    shared = {"deep": [1, 2]}
    states: list[dict[str, Any]] = [
        {"messages": messages, "shared": shared},
        {"messages": [*messages, {"text": "more"}], "shared": shared, "new": 1},
        {"messages": [*messages, {"text": "other"}], "shared": {"deep": [1]}},
        {"messages": messages[1:], "new": 2},
        {"messages": messages[1:]},
    ]
    points = [session.commit(state, frozen=True) for state in states]
    assert [session.load(point) for point in points] == states
    assert store.verify().ok
