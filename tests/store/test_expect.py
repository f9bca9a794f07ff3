"""Who may write on which head: a branch moves by compare-and-set, and nobody's checkpoint is written over unseen."""

from collections.abc import Callable

import pytest

from backstay import Checkpoint, ConflictError, InvalidInputError, Session, Store


@pytest.fixture
def other(store: Store) -> Session:
    """Another writer of the same session."""
    return store.session("ticket-42")


def ids(session: Session, ref: str = "main") -> list[str]:
    return [point.id for point in session.log(ref)]


def test_a_writer_who_has_seen_nothing_writes_on_top_of_the_head(session: Session, other: Session) -> None:
    first = session.commit({"n": 1})
    second = other.commit({"n": 2})
    assert second.parent_id == first.id


def test_of_two_writers_on_one_head_one_wins_and_the_other_loses_nothing(session: Session, other: Session) -> None:
    session.commit({"n": 1})
    mine, theirs = session.load(), other.load()
    won = session.commit({**mine, "who": "me"})
    with pytest.raises(ConflictError, match=won.id[:12]):
        other.commit({**theirs, "who": "them"})
    assert session.load() == {"n": 1, "who": "me"}
    # The loser still has its state in hand, looks again, and decides.
    fresh = other.load()
    merged = other.commit({**fresh, "who": "both"})
    assert merged.parent_id == won.id
    assert len(ids(session)) == 3


@pytest.mark.parametrize(
    "look",
    [
        lambda session, _: session.branches(),
        lambda session, _: session.tags(),
        lambda session, _: session.newest_intact(),
        lambda session, _: session.diff("main", "main~1"),
        lambda session, new: session.load(new),
        lambda session, new: session.load(new.id),
        lambda session, _: session.load("main~0"),
        lambda session, _: session.tag("main", "t"),
    ],
    ids=["branches", "tags", "newest_intact", "diff", "load", "id", "~0", "tag"],
)
def test_looking_past_a_branch_does_not_count_as_having_seen_it(
    session: Session, other: Session, look: Callable[[Session, Checkpoint], object]
) -> None:
    session.commit({"n": 1})
    new = other.commit({"n": 2})
    look(session, new)
    with pytest.raises(ConflictError):
        session.commit({"n": 3})
    assert session.load() == {"n": 2}
    assert session.commit({"n": 3}).parent_id == new.id


def test_each_branch_is_seen_by_itself(session: Session, other: Session) -> None:
    first = session.commit({"n": 1})
    session.fork(first, "b")
    other.load("b")
    session.commit({"n": 2})
    on_b = other.commit({"n": 3}, branch="b")
    assert on_b.parent_id == first.id
    assert other.commit({"n": 4}).parent_id == session.checkpoint("main~1").id
    with pytest.raises(ConflictError):
        session.commit({"n": 5}, branch="b")


def test_ones_own_commit_fork_restore_and_undo_count_as_seen(session: Session) -> None:
    first = session.commit({"n": 1})
    session.commit({"n": 2})
    session.fork(first, "b")
    session.commit({"n": 3}, branch="b")
    session.restore(first)
    session.commit({"n": 4})
    session.undo()
    session.commit({"n": 5})
    assert len(ids(session)) == 6


@pytest.mark.parametrize("go_back", ["restore", "undo"])
def test_a_stale_writer_cannot_go_back_over_what_it_has_not_seen(
    session: Session, other: Session, go_back: str
) -> None:
    first = session.commit({"n": 1})
    session.restore(first)
    new = other.commit({"n": 2})
    with pytest.raises(ConflictError):
        _ = session.restore(first) if go_back == "restore" else session.undo()
    assert session.head() == new


def test_an_explicit_expectation_overrules_what_was_seen(session: Session, other: Session) -> None:
    first = session.commit({"n": 1})
    second = other.commit({"n": 2})
    third = session.commit({"n": 3}, expect=second)
    assert third.parent_id == second.id
    assert session.commit({"n": 4}, expect=third.id).parent_id == third.id
    with pytest.raises(ConflictError):
        session.commit({"n": 5}, expect=first)
    assert session.commit({"n": 5}).sequence == 5


@pytest.mark.parametrize("expect", ["f" * 24, "main", "main~1"])
def test_an_expectation_that_is_no_checkpoint_of_the_session_is_a_conflict(session: Session, expect: str) -> None:
    session.commit({"n": 1})
    with pytest.raises(ConflictError):
        session.commit({"n": 2}, expect=expect)
    with pytest.raises(ConflictError):
        session.commit({"n": 2}, expect=expect, branch="elsewhere")
    assert session.commit({"n": 2}).sequence == 2


@pytest.mark.parametrize("expect", ["", 5, b"x", "a\0"])
def test_an_expectation_of_the_wrong_kind_is_refused(session: Session, expect: object) -> None:
    session.commit({"n": 1})
    with pytest.raises(InvalidInputError):
        session.commit({"n": 2}, expect=expect)  # type: ignore[arg-type]


def test_an_expectation_on_a_session_that_is_not_there_is_a_conflict(store: Store) -> None:
    with pytest.raises(ConflictError):
        store.session("new").commit({}, expect="a" * 24)
    assert list(store.sessions()) == []


def test_a_head_that_somebody_deleted_is_a_conflict(session: Session, other: Session) -> None:
    first = session.commit({"n": 1})
    second = session.commit({"n": 2})
    other.load()
    session.delete(second)
    with pytest.raises(ConflictError):
        other.commit({"n": 3})
    assert session.commit({"n": 3}).parent_id == first.id
    other.load()
    assert other.commit({"n": 4}).sequence == 4


def test_a_session_that_somebody_deleted_is_a_conflict_for_who_had_seen_it(
    store: Store, session: Session, other: Session
) -> None:
    session.commit({"n": 1})
    other.load()
    store.delete("ticket-42")
    for writer in (session, other):
        with pytest.raises(ConflictError):
            writer.commit({"n": 2})
    assert store.session("ticket-42").commit({"n": 1}).sequence == 1


def test_a_conflict_leaves_the_session_usable_with_the_state_in_hand(session: Session, other: Session) -> None:
    state = {"messages": [{"content": "x" * 500} for _ in range(50)]}
    session.commit(state)
    theirs = other.commit({**other.load(), "by": "other"})
    for _ in range(3):
        state["messages"].append({"content": "more"})
        with pytest.raises(ConflictError):
            session.commit(state)
    kept = session.commit(state, expect=theirs)
    assert session.load(kept) == state
    assert other.load(theirs)["by"] == "other"
