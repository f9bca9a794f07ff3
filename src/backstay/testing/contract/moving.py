"""Sessions that move as a whole: a history read page by page, and one written in a single transaction."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping

import msgspec
import pytest

from backstay.backend import Backend, Kept, Moved, Names, SessionRow
from backstay.delta import LARGE_BYTES, Record, rebuild
from backstay.digest import state_digest
from backstay.errors import AlreadyExistsError, BackstayError, CorruptionError, NotFoundError
from backstay.model import StateDict
from backstay.testing.author import Author, check_states, delete, next_turn, read_row, totals_at
from backstay.testing.contract.hooks import Hooks
from backstay.testing.exact import exactly_equal

SESSION = "a session"
Arriving = list[tuple[Kept, Mapping[bytes, bytes]]]


def lived_in(backend: Backend) -> dict[str, StateDict]:
    """A session with all that a session can have; the states it must give back."""
    author = Author(backend, whole_every=19)
    author.grow(40)
    other = author.fork(author.rows[7].id, "other")
    other.grow(20)
    for _ in range(3):  # two lines written to in turn
        author.grow(1)
        other.grow(2)
    author.commit(author.states[author.rows[30].id], undo_to=author.rows[-1].id)
    last = author.commit({"picture": b"p" * LARGE_BYTES, "a whole": "copy"}, keep_whole=True, keep_delta=False)
    author.commit({"picture": b"p" * LARGE_BYTES, "n": 1}, keep_whole=True, totals=totals_at(99, agent="an agent"))
    backend.tag(SESSION, id_=author.rows[3].id, name="good")
    backend.fork(SESSION, id_=author.rows[12].id, branch="forgotten")
    backend.delete_branch(SESSION, branch="forgotten")
    states = author.states | other.states
    for gone in (author.rows[0].id, author.rows[7].id, author.rows[20].id, author.rows[21].id, last.id):
        delete(backend, SESSION, gone)
        del states[gone]
    return states


def history(backend: Backend, *, limit: int = 7, session: str = SESSION) -> list[Kept]:
    """All pages."""
    found: list[Kept] = []
    while page := backend.history(session, after=found[-1].row.sequence if found else 0, limit=limit):
        assert len(page) <= limit
        found += page
    return found


def packed_up(backend: Backend, *, session: str = SESSION, name: str | None = None) -> tuple[Moved, Arriving]:
    """A session as it would be handed to another backend: each blob with the first checkpoint that needs it."""
    line = backend.find_session(session)
    assert line is not None
    kept = history(backend, session=session)
    arriving: Arriving = []
    given: set[bytes] = set()
    for one in kept:
        refs = {ref for record in records(one) for ref in record.refs} - given
        arriving.append((one, dict(backend.blobs(refs)) if refs else {}))
        given |= refs
    line = msgspec.structs.replace(line, id=name or session)
    return Moved(line, backend.names(session), kept[-1].row.sequence if kept else 0), arriving


def records(kept: Kept) -> list[Record]:
    """Those it has."""
    return [record for record in (kept.delta, kept.whole) if record is not None]


class MovingContract(Hooks):
    """What `history` and `adopt` owe."""

    @pytest.mark.parametrize("limit", [1, 3, 16, 1000])
    def test_a_history_read_in_pages_misses_nothing(self, backend: Backend, limit: int) -> None:
        states = lived_in(backend)
        Author(backend, "a session beside").grow(3)
        found = history(backend, limit=limit)
        rows = [kept.row for kept in found]
        assert [row.id for row in rows] == list(backend.ids(SESSION))
        assert [backend.find_row(SESSION, row.id) for row in rows] == rows
        assert {row.id for row in rows} == set(states)
        assert sum(kept.size_bytes for kept in found) == backend.sizes().logical_bytes - _size(
            backend, "a session beside"
        )
        assert not backend.history(SESSION, after=rows[-1].sequence, limit=limit)

    def test_every_record_of_a_history_leads_to_the_state_it_belongs_to(self, backend: Backend) -> None:
        states = lived_in(backend)
        ways: dict[str, tuple[Record, ...]] = {}
        for kept in history(backend, limit=11):
            row = read_row(kept.row)
            assert records(kept)
            paths: list[tuple[Record, ...]] = []
            if kept.whole is not None:
                paths.append((kept.whole,))
            if kept.delta is not None:
                assert row.link_id is not None
                paths.append((*ways[row.link_id], kept.delta))
            for path in paths:
                needed = {ref for record in path for ref in record.refs}
                state = rebuild(path, dict(backend.blobs(needed)) if needed else {}).state
                assert exactly_equal(state, states[row.id])
                assert state_digest(state) == row.state_digest
            ways[row.id] = paths[0]

    def test_a_history_goes_on_where_it_stopped_although_somebody_commits(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(10)
        first = backend.history(SESSION, after=0, limit=6)
        author.grow(5)
        rest = backend.history(SESSION, after=first[-1].row.sequence, limit=100)
        assert [kept.row for kept in (*first, *rest)] == author.rows

    def test_the_history_of_no_session_is_not_found(self, backend: Backend) -> None:
        with pytest.raises(NotFoundError):
            backend.history("nobody", after=0, limit=9)

    def test_a_session_that_moved_is_all_there_and_goes_on(self, backend: Backend) -> None:
        states = lived_in(backend)
        moved, arriving = packed_up(backend)
        with contextlib.closing(self.make()) as there:
            Author(there, "who was there before").grow(20)
            there.adopt(moved, iter(arriving))
            self._check_same(backend, there, states)
            with contextlib.closing(self.reopen(there)) as again:
                self._check_same(backend, again, states)
                for branch in ("main", "other"):
                    author = Author(again, branch=branch, whole_every=19).stand_on_head()
                    assert author.commit(next_turn(author.state, 1)).sequence > moved.sequence
                    author.grow(25)
                    states |= author.states
                for gone in list(states)[5:60:9]:
                    delete(again, SESSION, gone)
                    del states[gone]
                check_states(again, SESSION, states)
                again.delete_session(SESSION)
                assert again.sizes().sessions == 1
                assert not list(again.check())

    def _check_same(self, here: Backend, there: Backend, states: dict[str, StateDict]) -> None:
        assert [there.find_row(SESSION, id_) for id_ in there.ids(SESSION)] == [
            here.find_row(SESSION, id_) for id_ in here.ids(SESSION)
        ]
        assert history(there) == history(here)
        assert there.names(SESSION) == here.names(SESSION)
        ours, theirs = here.find_session(SESSION), there.find_session(SESSION)
        assert ours is not None
        assert theirs is not None
        assert msgspec.structs.replace(theirs, touched=ours.touched) == ours
        check_states(there, SESSION, states)
        assert not list(there.check())

    def test_a_session_that_moved_is_the_newest_in_the_list(self, backend: Backend) -> None:
        lived_in(backend)
        Author(backend, "touched since").grow(1)
        moved, arriving = packed_up(backend, name="the same again")
        backend.adopt(moved, arriving)
        page = backend.sessions(before=None, limit=9, status=None, agent=None)
        assert [line.id for line in page] == ["the same again", "touched since", SESSION]
        Author(backend, "touched since").stand_on_head().grow(1)
        newest = backend.sessions(before=None, limit=1, status=None, agent=None)
        assert [line.id for line in newest] == ["touched since"]

    def test_the_next_number_is_the_one_that_came_along(self, backend: Backend) -> None:
        Author(backend).grow(3)
        moved, arriving = packed_up(backend, name="moved")
        backend.adopt(msgspec.structs.replace(moved, sequence=41), arriving)
        author = Author(backend, "moved").stand_on_head()
        assert author.commit({"n": 1}).sequence == 42

    def test_a_session_without_checkpoints_can_move(self, backend: Backend) -> None:
        line = SessionRow("empty", totals_at(5, status="failed", agent="an agent"), 0, 0, 3, 0)
        backend.adopt(Moved(line, Names((), ()), 7), [])
        found = backend.find_session("empty")
        assert found is not None
        assert msgspec.structs.replace(found, touched=0) == line
        assert not backend.ids("empty")
        assert Author(backend, "empty").commit({"n": 1}).sequence == 8
        assert not list(backend.check())

    def test_a_session_that_is_there_is_not_replaced(self, backend: Backend) -> None:
        states = lived_in(backend)
        moved, arriving = packed_up(backend)
        before = backend.find_session(SESSION), backend.names(SESSION), backend.sizes()
        with pytest.raises(AlreadyExistsError):
            backend.adopt(msgspec.structs.replace(moved, names=Names((), ())), arriving[:3])
        assert (backend.find_session(SESSION), backend.names(SESSION), backend.sizes()) == before
        check_states(backend, SESSION, states)

    @pytest.mark.parametrize("after", [0, 1, 30, 62])
    def test_a_move_that_breaks_off_leaves_nothing_behind(self, backend: Backend, after: int) -> None:
        with contextlib.closing(self.make()) as elsewhere:
            lived_in(elsewhere)
            moved, arriving = packed_up(elsewhere)

        def broken() -> Iterator[tuple[Kept, Mapping[bytes, bytes]]]:
            yield from arriving[:after]
            message = "the file ends here"
            raise CorruptionError(message)

        Author(backend, "beside").grow(3)
        before = backend.sizes()
        with pytest.raises(CorruptionError, match="the file ends here"):
            backend.adopt(moved, broken())
        self._check_nothing_came(backend, arriving)
        assert backend.sizes() == before
        backend.adopt(moved, arriving)
        assert history(backend) == [kept for kept, _ in arriving]

    def _check_nothing_came(self, backend: Backend, arriving: Arriving) -> None:
        assert backend.find_session(SESSION) is None
        assert not backend.ids(SESSION)
        blobs = [digest for _, contents in arriving for digest in contents]
        assert not backend.blobs(blobs, salvage=True)
        assert not list(backend.check())

    def test_a_history_with_something_missing_is_not_taken_in(self, backend: Backend) -> None:
        with contextlib.closing(self.make()) as elsewhere:
            lived_in(elsewhere)
            moved, arriving = packed_up(elsewhere)
        first_blob = next(at for at, (_, blobs) in enumerate(arriving) if blobs)
        bare = msgspec.structs.replace(arriving[2][0], delta=None, whole=None)
        for wrong in (
            [*arriving[:2], *arriving[3:]],  # a link that does not come
            arriving[:-1],  # nor does a head
            [*arriving[:first_blob], (arriving[first_blob][0], {}), *arriving[first_blob + 1 :]],  # nor does a blob
            [*arriving[:2], (bare, {}), *arriving[3:]],  # nor does a record
        ):
            with pytest.raises(BackstayError):
                backend.adopt(moved, wrong)
            self._check_nothing_came(backend, arriving)

    def test_a_picture_that_is_here_already_need_not_come_along(self, backend: Backend) -> None:
        here, picture = Author(backend, "here"), b"p" * LARGE_BYTES
        here.commit({"picture": picture})
        with contextlib.closing(self.make()) as elsewhere:
            away = Author(elsewhere)
            away.commit({"picture": picture})
            moved, arriving = packed_up(elsewhere)
        backend.adopt(moved, [(kept, {}) for kept, _ in arriving])
        check_states(backend, SESSION, away.states)
        backend.delete_session("here")
        check_states(backend, SESSION, away.states)
        assert not list(backend.check())

    def test_of_two_that_bring_the_same_session_one_does(self, backend: Backend) -> None:
        with contextlib.closing(self.make()) as elsewhere:
            states = lived_in(elsewhere)
            moved, arriving = packed_up(elsewhere)
        outcomes: list[str] = []
        begin = threading.Barrier(2)

        def bring(through: Backend) -> None:
            begin.wait()
            try:
                through.adopt(moved, arriving)
                outcomes.append("taken in")
            except AlreadyExistsError:
                outcomes.append("refused")

        second = self.beside(backend)
        threads = [threading.Thread(target=bring, args=(through,)) for through in (backend, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if second is not backend:
            second.close()
        assert sorted(outcomes) == ["refused", "taken in"]
        check_states(backend, SESSION, states)
        assert not list(backend.check())

    def test_nobody_sees_a_session_before_all_of_it_has_come(self, backend: Backend) -> None:
        with contextlib.closing(self.make()) as elsewhere:
            lived_in(elsewhere)
            moved, arriving = packed_up(elsewhere)
        seen: list[object] = []
        beside = self.beside(backend)

        def watched() -> Iterator[tuple[Kept, Mapping[bytes, bytes]]]:
            for at, one in enumerate(arriving):
                yield one
                if at in (0, 20, len(arriving) - 1):
                    seen.extend((beside.find_session(SESSION), *beside.ids(SESSION)))
                    seen.extend(beside.sessions(before=None, limit=9, status=None, agent=None))

        backend.adopt(moved, watched())
        assert seen == [None] * 3
        assert len(beside.ids(SESSION)) == len(arriving)
        if beside is not backend:
            beside.close()


def _size(backend: Backend, session: str) -> int:
    return sum(kept.size_bytes for kept in history(backend, session=session))
