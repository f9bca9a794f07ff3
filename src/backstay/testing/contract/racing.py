"""Many at once: threads of one opening, and two openings of the same bytes. Nobody's turn is lost, nobody sees half."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from backstay.backend import Backend
from backstay.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError
from backstay.testing.author import Author, check_states, delete, next_turn, read_back
from backstay.testing.contract.hooks import Hooks

THREADS = 6
ROUNDS = 12
PATIENCE_S = 60


class RacingContract(Hooks):
    """What every verb owes while others are at it."""

    @pytest.fixture
    def openings(self, backend: Backend) -> Iterator[list[Backend]]:
        """The backend and, where there can be one, a second opening of the same bytes."""
        other = self.beside(backend)
        yield [backend, other]
        if other is not backend:
            other.close()

    def test_of_writers_on_the_same_head_exactly_one_wins_each_round(self, openings: list[Backend]) -> None:
        first = Author(openings[0])
        first.commit({"messages": [], "turn": -1})
        gate = threading.Barrier(THREADS)
        wins: list[list[int]] = [[] for _ in range(ROUNDS)]
        states = [dict(first.states) for _ in range(THREADS)]

        def write(me: int) -> None:
            for number in range(ROUNDS):
                author = Author(openings[me % 2]).stand_on_head()
                gate.wait(PATIENCE_S)
                with contextlib.suppress(ConflictError):
                    author.commit({**next_turn(author.state, number), "by": me})
                    wins[number].append(me)
                states[me].update(author.states)
                gate.wait(PATIENCE_S)

        together(write, THREADS)
        assert [len(won) for won in wins] == [1] * ROUNDS
        everything = {id_: state for mine in states for id_, state in mine.items()}
        check_states(openings[0], "a session", everything)
        check_line(openings[1], "main", ROUNDS + 1)

    def test_writers_that_try_again_lose_nothing(self, openings: list[Backend]) -> None:
        Author(openings[0]).commit({"done": []})

        def write(me: int) -> None:
            author = Author(openings[me % 2])
            for number in range(ROUNDS):
                for _ in range(10_000):
                    author.stand_on_head()
                    with contextlib.suppress(ConflictError):
                        author.commit({"done": [*author.state["done"], [me, number]]})
                        break

        together(write, THREADS)
        head = openings[0].find_branch("a session", "main")
        assert head is not None
        done = read_back(openings[0], "a session", head.head_id)["done"]
        assert sorted(done) == [[me, number] for me in range(THREADS) for number in range(ROUNDS)]
        check_line(openings[1], "main", THREADS * ROUNDS + 1)

    def test_branches_written_at_once_share_one_sequence_without_gaps(self, openings: list[Backend]) -> None:
        root = Author(openings[0])
        (first,) = root.grow(1)
        states = [dict(root.states) for _ in range(THREADS)]

        def write(me: int) -> None:
            openings[me % 2].fork("a session", id_=first.id, branch=f"branch {me}")
            author = Author(openings[me % 2], branch=f"branch {me}").stand_on(first.id)
            author.grow(ROUNDS)
            states[me].update(author.states)

        together(write, THREADS)
        backend = openings[1]
        rows = [backend.find_row("a session", id_) for id_ in backend.ids("a session")]
        assert [row.sequence for row in rows if row is not None] == list(range(1, THREADS * ROUNDS + 2))
        check_states(backend, "a session", {id_: state for mine in states for id_, state in mine.items()})
        line = backend.find_session("a session")
        assert line is not None
        assert (line.branches, line.checkpoints) == (THREADS + 1, THREADS * ROUNDS + 1)

    def test_of_two_that_begin_the_same_session_one_is_told(self, openings: list[Backend]) -> None:
        for number in range(ROUNDS):
            session = f"session {number}"

            def begin(me: int, session: str = session) -> None:
                Author(openings[me % 2], session).commit({"by": me})

            assert attempts(begin, ConflictError).count(None) == 1
            assert len(openings[0].ids(session)) == 1

    def test_of_those_that_give_the_same_name_one_is_told(self, openings: list[Backend]) -> None:
        (row,) = Author(openings[0]).grow(1)
        for number in range(ROUNDS):
            name = f"name {number}"

            def give(me: int, name: str = name) -> None:
                if me % 3:
                    openings[me % 2].fork("a session", id_=row.id, branch=name)
                else:
                    openings[me % 2].tag("a session", id_=row.id, name=name)

            assert attempts(give, AlreadyExistsError).count(None) == 1
        names = openings[1].names("a session")
        assert len(names.branches) - 1 + len(names.tags) == ROUNDS

    def test_sessions_written_at_once_with_the_same_picture_all_keep_it(self, openings: list[Backend]) -> None:
        def write(me: int) -> None:
            for number in range(ROUNDS):
                author = Author(openings[me % 2], f"session {me}")
                author.commit({"picture": bytes([number]) * 6_000})
                if number < ROUNDS - 1:
                    openings[me % 2].delete_session(f"session {me}")

        together(write, THREADS)
        for me in range(THREADS):
            (id_,) = openings[0].ids(f"session {me}")
            assert read_back(openings[1], f"session {me}", id_) == {"picture": bytes([ROUNDS - 1]) * 6_000}
        assert not list(openings[0].check())

    def test_commits_that_fail_midway_among_others_leave_nothing(self, openings: list[Backend]) -> None:
        refused: list[bytes] = []

        def write(me: int) -> None:
            author = Author(openings[0], f"session {me}")
            author.commit({"turn": -1})
            for number in range(ROUNDS):
                pictures = {str(at): bytes([me, number, at]) * 2_000 for at in range(4)}
                draft = author.draft({"turn": number, **pictures})
                with pytest.raises(CorruptionError):
                    openings[0].commit(msgspec.structs.replace(draft, blobs=dict(list(draft.blobs.items())[:3])))
                refused.extend(draft.blobs)
                author.commit({"turn": number})

        together(write, THREADS)
        assert not openings[1].blobs(refused, salvage=True)
        assert not list(openings[1].check())
        assert openings[1].sizes().checkpoints == THREADS * (ROUNDS + 1)

    def test_a_reader_never_sees_half_a_checkpoint(self, openings: list[Backend]) -> None:
        author = Author(openings[0], whole_every=7)
        author.grow(1)
        done = threading.Event()
        seen: list[int] = []

        def act(me: int) -> None:
            if me == 0:
                try:
                    author.grow(60)
                finally:
                    done.set()
                return
            while not done.is_set() or not seen:  # on a busy machine the writer may be done before anybody looked
                backend = openings[me % 2]
                found = backend.find_branch("a session", "main")
                assert found is not None
                state = read_back(backend, "a session", found.head_id)
                rows = backend.line("a session", found.head_id, limit=999)
                assert [row.sequence for row in rows] == list(range(state["turn"] + 1, 0, -1))
                seen.append(state["turn"])

        together(act, 4)
        assert seen
        check_states(openings[1], "a session", author.states)

    def test_deleting_checkpoints_while_others_commit_loses_no_state(self, openings: list[Backend]) -> None:
        author = Author(openings[0], whole_every=30)
        author.grow(20)
        removed: set[str] = set()

        def act(me: int) -> None:
            if me == 0:
                author.grow(30)
                return
            for row in author.rows[me:19:3]:
                # Somebody else may have removed a neighbour between looking and deleting; then it is tried again.
                for _ in range(1_000):
                    try:
                        delete(openings[me % 2], "a session", row.id)
                    except (ConflictError, CorruptionError, NotFoundError):
                        continue
                    removed.add(row.id)
                    break

        together(act, 4)
        assert len(removed) == 18
        left = {id_: state for id_, state in author.states.items() if id_ not in removed}
        check_states(openings[1], "a session", left)
        assert not list(openings[0].check())


def together(act: Callable[[int], None], threads: int) -> None:
    """Run in this many threads; the first error of any is raised here."""
    errors: list[BaseException] = []

    def run(me: int) -> None:
        try:
            act(me)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that pytest watches
            errors.append(error)

    running = [threading.Thread(target=run, args=(me,), daemon=True) for me in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def attempts(act: Callable[[int], object], refusal: type[Exception]) -> list[Exception | None]:
    """What several that start at the same moment are told: None, or the refusal."""
    gate = threading.Barrier(THREADS)
    answers: list[Exception | None] = [None] * THREADS

    def run(me: int) -> None:
        gate.wait(PATIENCE_S)
        try:
            act(me)
        except refusal as error:
            answers[me] = error

    together(run, THREADS)
    return answers


def check_line(backend: Backend, branch: str, length: int) -> None:
    """One unbroken line to the root, its sequence without a gap."""
    head = backend.find_branch("a session", branch)
    assert head is not None
    rows = backend.line("a session", head.head_id, limit=length + 1)
    assert [row.sequence for row in rows] == list(range(length, 0, -1))
