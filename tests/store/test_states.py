"""What a loaded state remembers, what a look has seen, how a block edits a branch: no turn is lost silently."""

import asyncio
import threading
from pathlib import Path

import pytest

import backstay
import backstay.aio
from backstay import ANY, NOTHING, ConflictError, NotFoundError, Session, State, Store


@pytest.fixture
def other(store: Store) -> Session:
    """Another writer of the same session."""
    return store.session("ticket-42")


def test_a_loaded_state_is_not_committed_over_what_came_since(session: Session, other: Session) -> None:
    session.commit({"n": 1})
    state = session.load()
    other.commit({"n": 2})
    session.head()  # a later look does not make the state a fresh one
    state["n"] = 3
    with pytest.raises(ConflictError):
        session.commit(state)
    assert session.load() == {"n": 2}


def test_a_commit_moves_the_memory_of_its_state_on(session: Session) -> None:
    session.commit({"n": 1})
    state = session.load()
    for n in (2, 3):
        state["n"] = n
        session.commit(state)
    assert [point.state["n"] for point in session.log()] == [3, 2, 1]


def test_a_state_of_another_session_branch_or_ref_says_nothing_about_this_branch(store: Store) -> None:
    session = store.session("ticket-42")
    session.commit({"n": 1})
    session.fork("main", "b")
    on_b, by_id = session.load("b"), session.load(session.checkpoint().id)
    session.commit({"n": 2})
    assert isinstance(by_id, State)
    for state in (on_b, by_id):
        state["n"] += 10
        session.commit(state)
    assert store.session("ticket-43").commit(on_b).sequence == 1


def test_of_two_first_turns_one_is_told(store: Store) -> None:
    first, second = store.session("new"), store.session("new")
    assert first.head() is None
    with pytest.raises(NotFoundError):
        second.load()
    first.commit({"who": "first"})
    with pytest.raises(ConflictError):
        second.commit({"who": "second"})
    assert store.session("new").load() == {"who": "first"}


def test_a_commit_may_expect_nothing_or_anything(session: Session, other: Session) -> None:
    session.commit({"n": 1}, expect=NOTHING)
    with pytest.raises(ConflictError):
        session.commit({"n": 2}, expect=NOTHING)
    session.load()
    other.commit({"n": 3})
    assert session.commit({"n": 4}, expect=ANY).sequence == 3


def test_a_thread_that_shares_a_session_never_commits_over_what_it_has_not_seen(session: Session) -> None:
    session.commit({"turns": []})
    seen = session.load()

    def work() -> None:
        state = session.load()
        state["turns"].append("thread")
        session.commit(state)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with pytest.raises(ConflictError):
        session.commit({"turns": [*seen["turns"], "main"]})
    assert session.load() == {"turns": ["thread"]}


def test_tasks_that_share_a_session_lose_no_turn(tmp_path: Path) -> None:
    async def work(session: backstay.aio.AsyncSession, name: str) -> None:
        while True:
            state = await session.load()
            await asyncio.sleep(0)
            try:
                await session.commit({"turns": [*state["turns"], name]})
                return
            except ConflictError:
                continue

    async def main() -> list[str]:
        async with backstay.aio.open(tmp_path / "tasks.db") as store:
            session = store.session("shared")
            await session.commit({"turns": []})
            await asyncio.gather(*[work(session, f"task {number}") for number in range(8)])
            turns: list[str] = (await session.load())["turns"]
            return turns

    assert sorted(asyncio.run(main())) == [f"task {number}" for number in range(8)]


def test_a_block_that_edits_commits_what_it_changed_and_begins_a_new_session(session: Session) -> None:
    for n in (1, 2):
        with session.edit() as state:
            state["n"] = n
    assert [point.state for point in session.log()] == [{"n": 2}, {"n": 1}]


def test_a_block_that_edits_never_writes_over_what_came_meanwhile(session: Session, other: Session) -> None:
    def edit() -> None:
        with session.edit() as state:
            other.commit({"n": 2})
            state["n"] = 3

    session.commit({"n": 1})
    with pytest.raises(ConflictError):
        edit()
    assert session.load() == {"n": 2}


def test_of_two_blocks_that_begin_a_session_one_is_told(session: Session, other: Session) -> None:
    def edit() -> None:
        with session.edit() as state:
            state["who"] = "first"
            with other.edit() as beside:
                beside["who"] = "second"

    with pytest.raises(ConflictError):
        edit()
    assert session.load() == {"who": "second"}


def test_a_block_that_raises_commits_nothing(session: Session) -> None:
    session.commit({"n": 1})
    with pytest.raises(ZeroDivisionError), session.edit() as state:
        state["n"] = 1 // 0
    assert session.head() is not None
    assert session.checkpoint().sequence == 1
