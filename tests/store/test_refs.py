"""Refs: a Checkpoint, or a text that is a branch, then a tag, then an id, then a prefix, and only then `~N` or `^N`."""

import pytest

import backstay
from backstay import Checkpoint, InvalidInputError, NotFoundError, Session, Store


def commits(session: Session, count: int) -> list[Checkpoint]:
    return [session.commit({"n": number}) for number in range(count)]


def test_a_checkpoint_its_id_and_a_prefix_of_it_lead_to_the_same_place(session: Session) -> None:
    points = commits(session, 5)
    for number, point in enumerate(points):
        for ref in (point, point.id, point.id[:8], point.id[:-1]):
            assert session.load(ref) == {"n": number}
            assert session.checkpoint(ref) == point


def test_a_tilde_goes_back_along_the_parents(session: Session) -> None:
    points = commits(session, 5)
    assert session.checkpoint("main~0") == points[4]
    assert session.checkpoint("main~") == points[3]
    assert session.checkpoint("main~4") == points[0]
    assert session.checkpoint(f"{points[3].id}~2") == points[1]
    assert session.checkpoint(f"{points[3].id[:10]}~3") == points[0]
    session.tag(points[2], "good")
    assert session.checkpoint("good~1") == points[1]
    with pytest.raises(NotFoundError, match="4 checkpoints before"):
        session.load("main~5")


def test_a_branch_that_is_literally_called_main_tilde_1_is_that_branch(session: Session) -> None:
    points = commits(session, 3)
    session.fork(points[0], "main~1")
    assert session.load("main~1") == {"n": 0}
    session.commit({"n": "elsewhere"}, branch="main~1")
    assert session.load("main~1") == {"n": "elsewhere"}
    assert session.checkpoint("main~1~1") == points[0]
    session.delete_branch("main~1")
    assert session.load("main~1") == {"n": 1}


def test_a_branch_goes_before_a_tag_before_an_id_before_a_prefix(session: Session) -> None:
    points = commits(session, 4)
    session.tag(points[1], points[0].id)
    assert session.checkpoint(points[0].id) == points[1]
    session.untag(points[0].id)
    session.fork(points[2], points[0].id)
    assert session.checkpoint(points[0].id) == points[2]
    session.delete_branch(points[0].id)
    assert session.checkpoint(points[0].id) == points[0]
    session.tag(points[3], points[0].id[:6])
    assert session.checkpoint(points[0].id[:6]) == points[3]
    assert session.checkpoint(points[0].id[:7]) == points[0]


def test_a_prefix_of_less_than_four_characters_finds_nothing(session: Session) -> None:
    (point,) = commits(session, 1)
    assert session.checkpoint(point.id[:4]) == point
    for length in (1, 2, 3):
        with pytest.raises(NotFoundError):
            session.checkpoint(point.id[:length])


def test_an_ambiguous_prefix_lists_its_candidates(store: Store) -> None:
    session = store.session("s")
    ids = ["abcdef000000000000000001", "abcdef000000000000000002", "abcd00000000000000000003"]
    points = [session.commit({"n": number}, id=id_) for number, id_ in enumerate(ids)]
    with pytest.raises(InvalidInputError) as caught:
        session.load("abcdef")
    assert points[0].id in str(caught.value)
    assert points[1].id in str(caught.value)
    assert points[2].id not in str(caught.value)
    with pytest.raises(InvalidInputError):
        session.load("abcd~1")
    assert session.checkpoint("abcd0") == points[2]


def test_an_unknown_ref_says_what_there_is(session: Session) -> None:
    commits(session, 1)
    session.fork("main", "what-if")
    session.tag("main", "golden")
    wrong = ["nope", "nope~1", "0" * 24, "dead", "MAIN", "main^x", "main~-1", "main~x", "a\0b", "*", "%", "mai_"]
    for ref in [*wrong, "^", "nope" + "^" * 200]:
        with pytest.raises(NotFoundError) as caught:
            session.load(ref)
        for name in ("main", "what-if", "golden"):
            assert name in str(caught.value)


@pytest.mark.parametrize("ref", ["", None, 5, b"main", ["main"], "\ud800"])
def test_what_cannot_be_a_ref_is_refused(session: Session, ref: object) -> None:
    commits(session, 1)
    with pytest.raises(InvalidInputError):
        session.load(ref)  # type: ignore[arg-type]


def test_a_session_without_checkpoints_says_so(store: Store) -> None:
    session = store.session("empty")
    for look in (session.load, session.checkpoint, session.log):
        with pytest.raises(NotFoundError, match="no checkpoints yet"):
            look()
    assert session.head() is None
    assert session.branches() == {}
    assert session.tags() == {}
    assert session.newest_intact() is None
    assert list(store.sessions()) == []


def test_a_checkpoint_of_another_session_is_not_taken_for_ones_own(store: Store) -> None:
    one, other = store.session("one"), store.session("other")
    (point,) = commits(one, 1)
    commits(other, 1)
    for use in (other.load, other.checkpoint, other.restore, other.delete):
        with pytest.raises(InvalidInputError, match="'one'"):
            use(point)
    with pytest.raises(NotFoundError):
        other.load(point.id)


def test_branches_and_tags_share_their_names(session: Session) -> None:
    (first, second) = commits(session, 2)
    session.tag(first, "x")
    session.fork(second, "y")
    for name in ("x", "y", "main"):
        with pytest.raises(backstay.AlreadyExistsError):
            session.fork(first, name)
        with pytest.raises(backstay.AlreadyExistsError):
            session.tag(first, name)
    with pytest.raises(backstay.AlreadyExistsError):
        session.commit({}, branch="x")
    with pytest.raises(NotFoundError):
        session.untag("y")
    with pytest.raises(NotFoundError):
        session.delete_branch("x")
    session.untag("x")
    session.fork(first, "x")
    assert set(session.branches()) == {"main", "x", "y"}
    assert session.tags() == {}


def test_a_tag_does_not_move(session: Session) -> None:
    (first,) = commits(session, 1)
    session.tag("main", "start")
    commits(session, 3)
    assert session.tags() == {"start": first}
    session.restore("start")
    assert session.load() == {"n": 0}
    assert session.tags() == {"start": first}


def test_a_commit_on_a_branch_that_is_not_there_is_refused(session: Session) -> None:
    commits(session, 1)
    with pytest.raises(NotFoundError, match="what-if"):
        session.commit({}, branch="what-if")
    with pytest.raises(NotFoundError, match="what-if"):
        session.restore("main", branch="what-if")
    with pytest.raises(NotFoundError, match="what-if"):
        session.undo(branch="what-if")
    assert session.head("what-if") is None
    assert session.newest_intact("what-if") is None


def test_a_first_commit_may_make_a_branch_of_any_name(store: Store) -> None:
    session = store.session("s")
    session.commit({"n": 1}, branch="trunk")
    assert set(session.branches()) == {"trunk"}
    with pytest.raises(NotFoundError):
        session.load()


def test_a_deleted_branch_leaves_its_checkpoints(session: Session, store: Store) -> None:
    (first,) = commits(session, 1)
    session.fork(first, "what-if")
    there = session.commit({"n": "there"}, branch="what-if")
    session.delete_branch("what-if")
    assert session.load(there) == {"n": "there"}
    assert set(session.branches()) == {"main"}
    session.fork(there, "again")
    assert session.commit({"n": "on"}, branch="again").parent_id == there.id
    assert store.verify().ok


def test_a_fork_shares_its_history_and_changes_nothing_on_main(session: Session) -> None:
    points = commits(session, 3)
    branch = session.fork("main~1", "what-if")
    assert (branch.name, branch.head) == ("what-if", points[1])
    there = session.commit({"n": "there"}, branch="what-if")
    assert there.branch == "what-if"
    assert [point.id for point in session.log("what-if")] == [there.id, points[1].id, points[0].id]
    assert session.head() == points[2]
    assert session.commit({"n": 3}).parent_id == points[2].id


# the story: `^N`


def test_going_back_one_step_again_and_again_goes_back_further(session: Session) -> None:
    points = commits(session, 5)
    for expected in (3, 2, 1, 0):
        back = session.restore("main^")
        assert session.load() == {"n": expected}
        assert back.restored_from == points[expected].id
    with pytest.raises(NotFoundError, match="begins with"):
        session.restore("main^")
    assert session.load() == {"n": 0}


def test_the_story_goes_on_behind_what_was_restored_and_passes_over_what_was_taken_back(session: Session) -> None:
    points = commits(session, 4)
    session.restore(points[1])
    new = session.commit({"n": "new"})
    assert session.checkpoint("main^0") == new
    assert session.checkpoint("main^").restored_from == points[1].id
    assert session.checkpoint("main^2") == session.checkpoint("main^^") == points[0]
    session.undo()  # as before the restore
    assert session.load() == {"n": 3}
    assert [session.checkpoint(f"main^{steps}") for steps in (1, 2, 3)] == [points[2], points[1], points[0]]
    assert session.checkpoint("main~^").restored_from == points[1].id
    assert session.checkpoint(f"{points[3].id[:10]}^^~") == points[0]


def test_a_step_of_the_story_that_was_deleted_is_told_and_not_passed_over(session: Session) -> None:
    points = commits(session, 3)
    session.delete(points[1])
    assert session.checkpoint("main~") == points[0]
    with pytest.raises(NotFoundError, match=f"{points[1].id[:12]}, which was deleted") as caught:
        session.load("main^")
    assert "~N" in caught.value.hint
    session.restore(points[0])
    session.delete(points[0])
    with pytest.raises(NotFoundError, match=f"{points[0].id[:12]}, which was deleted"):
        session.load("main^")


def test_a_long_story_is_followed_to_its_beginning(session: Session) -> None:
    points = commits(session, 250)
    assert session.checkpoint("main^249") == points[0]
    assert session.checkpoint("main^120") == points[129]
    with pytest.raises(NotFoundError):
        session.checkpoint("main^250")


def test_a_branch_that_is_literally_called_main_caret_is_that_branch(session: Session) -> None:
    points = commits(session, 3)
    session.fork(points[0], "main^")
    assert session.checkpoint("main^") == points[0]
    assert session.checkpoint("main^1") == points[1]
