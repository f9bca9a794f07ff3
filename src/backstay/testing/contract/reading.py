"""Reads: lines, chains, pages of sessions; and what is left to read after a close or in a forked child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest

from backstay.backend import Backend, Deletion, SessionRow
from backstay.delta import LARGE_BYTES, rebuild
from backstay.errors import ClosedError, CorruptionError
from backstay.testing.author import Author, check_states, delete, next_turn, read_back, totals_at
from backstay.testing.contract.hooks import Hooks

MISSING = b"\x07" * 32


class ReadingContract(Hooks):
    """What the reads owe, and what `close` does."""

    @pytest.mark.parametrize("whole_every", [0, 1, 5, 15, 16, 17, 33, 99])
    def test_every_checkpoint_of_a_long_history_gives_back_its_state(self, backend: Backend, whole_every: int) -> None:
        author = Author(backend, whole_every=whole_every)
        author.grow(70)
        check_states(backend, "a session", author.states)
        for row in author.rows:
            chain = backend.chain("a session", row.id)
            assert chain.row == row
            assert len(chain.records) <= whole_every + 1

    def test_whole_copies_without_a_delta_are_read_alike(self, backend: Backend) -> None:
        author = Author(backend, whole_every=5)
        author.grow(30, keep_delta=False)
        check_states(backend, "a session", author.states)

    def test_another_process_can_take_over_at_any_point_of_a_chain(self, backend: Backend) -> None:
        first = Author(backend, whole_every=35)
        states = {}
        for number in range(40):
            author = Author(backend, whole_every=35)
            if number:
                author.stand_on_head()
                assert (author.head_id, author.place) == (first.head_id, first.place)
            author.commit(next_turn(author.state, number))
            states.update(author.states)
            first = author
        check_states(backend, "a session", states)

    def test_a_chain_says_how_large_its_whole_copy_was(self, backend: Backend) -> None:
        author = Author(backend, whole_every=3)
        sizes: list[int] = []
        for number in range(9):
            state = next_turn(author.state, number)
            draft = author.draft(state)
            sizes.append(draft.size_bytes if draft.whole is not None else sizes[-1])
            row = author.write(draft, state)
            assert backend.chain("a session", row.id).whole_bytes == sizes[-1]
        assert len(set(sizes)) == 3

    def test_many_branches_from_within_one_group_of_deltas_are_read_alike(self, backend: Backend) -> None:
        author = Author(backend, whole_every=40)
        author.grow(20)
        states = dict(author.states)
        for at in range(20):
            branch = author.fork(author.rows[at].id, f"from {at}")
            branch.grow(20 - at)
            states.update(branch.states)
        check_states(backend, "a session", states)

    def test_a_state_may_be_empty_or_stay_the_same(self, backend: Backend) -> None:
        author = Author(backend)
        for state in ({}, {}, {"a": 1}, {"a": 1}, {"a": True}, {"a": 1.0}, {}):
            author.commit(state)
        check_states(backend, "a session", author.states)

    def test_a_line_goes_up_as_far_as_asked(self, backend: Backend) -> None:
        author = Author(backend)
        rows = author.grow(30)
        for limit in (1, 2, 29, 30, 31, 1_000):
            assert list(backend.line("a session", rows[-1].id, limit=limit)) == rows[::-1][:limit]
        assert list(backend.line("a session", rows[10].id, limit=4)) == rows[10:6:-1]

    def test_a_line_passes_over_a_deleted_checkpoint(self, backend: Backend) -> None:
        author = Author(backend)
        rows = author.grow(10)
        for at in (4, 5, 0):
            delete(backend, "a session", rows[at].id)
        left = [row for at, row in enumerate(rows) if at not in (4, 5, 0)]
        line = backend.line("a session", rows[-1].id, limit=99)
        assert [row.id for row in line] == [row.id for row in left][::-1]
        assert [row.link_id for row in line] == [None, *[row.id for row in left[:-1]]][::-1]
        # What it was committed on stays known, and so does its digest.
        assert [(row.parent_id, row.parent_digest) for row in line] == [
            (row.parent_id, row.parent_digest) for row in left
        ][::-1]
        assert [row.id for row in backend.line("a session", rows[6].id, limit=2)] == [rows[6].id, rows[3].id]

    def test_a_blob_that_is_not_there_is_damage_and_not_an_empty_value(self, backend: Backend) -> None:
        author = Author(backend)
        draft = author.draft({"picture": b"p" * LARGE_BYTES})
        author.write(draft, {"picture": b"p" * LARGE_BYTES})
        (digest,) = draft.blobs
        assert dict(backend.blobs([])) == {}
        assert dict(backend.blobs([digest])) == dict(draft.blobs)
        with pytest.raises(CorruptionError):
            backend.blobs([digest, MISSING])
        assert dict(backend.blobs([digest, MISSING], salvage=True)) == dict(draft.blobs)

    def test_salvage_of_what_is_intact_loses_nothing(self, backend: Backend) -> None:
        author = Author(backend, whole_every=20)
        author.grow(50)
        for row in author.rows:
            chain = backend.chain("a session", row.id, salvage=True)
            assert chain == backend.chain("a session", row.id)
        pieces = backend.blobs({ref for record in chain.records for ref in record.refs}, salvage=True)
        assert rebuild(chain.records, pieces, salvage=True).state == author.state

    def test_a_listing_is_paged_without_losing_or_repeating_a_session(self, backend: Backend) -> None:
        for number in range(25):
            Author(backend, f"session {number}").commit({"number": number})
        for size in (1, 7, 25, 100):
            assert [row.id for row in pages(backend, size)] == [f"session {number}" for number in range(24, -1, -1)]

    def test_a_listing_shows_every_session_that_nobody_touched_meanwhile(self, backend: Backend) -> None:
        authors = [Author(backend, f"session {number}") for number in range(20)]
        for author in authors:
            author.commit({"turn": 1})
        touched = iter([3, 17, 9, 0, 12])

        def meanwhile() -> None:
            at = next(touched, None)
            if at is not None:
                authors[at].commit({"turn": 2})
                Author(backend, f"new {at}").commit({"turn": 1})

        seen = [row.id for row in pages(backend, 3, meanwhile=meanwhile)]
        assert len(seen) == len(set(seen))
        untouched = {f"session {number}" for number in range(20)} - {f"session {at}" for at in (3, 17, 9, 0, 12)}
        assert untouched <= set(seen)
        assert [row.id for row in pages(backend, 3)][:3] == ["new 12", "session 12", "new 0"]

    def test_a_listing_can_ask_for_a_status_and_an_agent(self, backend: Backend) -> None:
        for number in range(24):
            status, agent = ("failed", "completed")[number % 2], (None, "planner", "writer")[number % 3]
            totals = totals_at(number, status=status, agent=agent)
            Author(backend, f"session {number}").commit({"number": number}, totals=totals)
        everything = list(pages(backend, 99))
        assert [row.totals.at_us for row in everything] == list(range(23, -1, -1))
        for wanted in (None, "failed", "completed", "halted"):
            for whose in (None, "planner", "writer", "nobody"):
                expected = [
                    row.id
                    for row in everything
                    if wanted in (None, row.totals.status) and whose in (None, row.totals.agent)
                ]
                assert [row.id for row in pages(backend, 3, status=wanted, agent=whose)] == expected

    def test_a_listing_follows_the_newest_checkpoint_that_is_left(self, backend: Backend) -> None:
        authors = [Author(backend, f"session {number}") for number in range(4)]
        for author in [*authors, *authors]:
            author.grow(1)
        delete(backend, "session 2", authors[2].rows[1].id)
        delete(backend, "session 3", authors[3].rows[0].id)
        assert [row.id for row in pages(backend, 1)] == ["session 3", "session 1", "session 0", "session 2"]
        Author(backend, "session 4").grow(1)
        assert [row.id for row in pages(backend, 2)][:2] == ["session 4", "session 3"]
        authors[2].stand_on_head().grow(1)
        assert [row.id for row in pages(backend, 2)][:2] == ["session 2", "session 4"]

    def test_a_session_without_a_checkpoint_left_is_still_listed(self, backend: Backend) -> None:
        names = {f"session {number}" for number in range(5)}
        for name in sorted(names):
            row = Author(backend, name).commit({"of": name})
            backend.delete_branch(name, branch="main")
            delete(backend, name, row.id)
        assert {row.id for row in pages(backend, 2)} == names
        assert Author(backend, "session 0").commit({"again": True}).sequence == 2
        assert pages(backend, 2)[0].id == "session 0"
        assert {row.id for row in pages(backend, 2)} == names

    def test_checkpoints_are_listed_oldest_first_whatever_branch_they_are_on(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(3)
        other = author.fork(author.rows[1].id, "other")
        order = [row.id for row in author.rows]
        for _ in range(4):
            order += [row.id for row in (*other.grow(1), *author.grow(1))]
        assert list(backend.ids("a session")) == order
        rows = [backend.find_row("a session", id_) for id_ in order]
        assert [row.sequence for row in rows if row is not None] == list(range(1, 12))

    def test_the_order_of_checkpoints_survives_deletions_in_other_sessions(self, backend: Backend) -> None:
        author, other = Author(backend), Author(backend, "other")
        states = {}
        for _ in range(3):
            author.grow(2)
            other.grow(2)
            backend.delete_session("other")
            other = Author(backend, "other")
            states.update(author.states)
        assert list(backend.ids("a session")) == [row.id for row in author.rows]
        check_states(backend, "a session", states)
        assert not list(backend.check())

    def test_a_closed_backend_refuses_every_verb(self) -> None:
        backend = self.make()
        author = Author(backend)
        row = author.commit({"turn": 1})
        draft = author.draft({"turn": 2})
        backend.close()
        backend.close()  # a second time is harmless
        for call in every_verb(backend, row.id):
            with pytest.raises(ClosedError):
                call()
        with pytest.raises(ClosedError):
            backend.commit(draft)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    def test_a_forked_child_is_refused_and_leaves_the_parent_unharmed(self, backend: Backend) -> None:
        author = Author(backend)
        row = author.commit({"turn": 1})
        draft = author.draft({"turn": "of the child"})
        child = os.fork()
        if not child:
            signal.alarm(30)  # one that waits for a lock of its parent's would wait for ever
            answers = []
            verbs: list[Callable[[], object]] = [*every_verb(backend, row.id), partial(backend.commit, draft)]
            for call in verbs:
                try:
                    call()
                except ClosedError:
                    answers.append(True)
                except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
                    answers.append(False)
                else:
                    answers.append(False)
            os._exit(0 if all(answers) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        author.grow(3)
        check_states(backend, "a session", author.states)


def every_verb(backend: Backend, id_: str) -> list[Callable[[], object]]:
    """A call of each verb but `commit` and `close`."""
    return [
        lambda: backend.fork("a session", id_=id_, branch="b"),
        lambda: backend.delete_branch("a session", branch="main"),
        lambda: backend.tag("a session", id_=id_, name="t"),
        lambda: backend.untag("a session", name="t"),
        lambda: backend.delete_checkpoints(Deletion("a session", (id_,), ())),
        lambda: backend.delete_session("a session"),
        lambda: backend.find_session("a session"),
        lambda: backend.sessions(before=None, limit=1, status=None, agent=None),
        lambda: backend.names("a session"),
        lambda: backend.find_branch("a session", "main"),
        lambda: backend.find_row("a session", id_),
        lambda: backend.find_ids("a session", id_[:4], limit=1),
        lambda: backend.line("a session", id_, limit=1),
        lambda: read_back(backend, "a session", id_),
        lambda: backend.children("a session", id_),
        lambda: backend.ids("a session"),
        lambda: backend.blobs([MISSING]),
        backend.sizes,
        lambda: list(backend.check()),
    ]


def pages(
    backend: Backend,
    size: int,
    *,
    status: str | None = None,
    agent: str | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[SessionRow]:
    """A whole listing, read page by page as the store does."""
    found: list[SessionRow] = []
    before = None
    while True:
        page = backend.sessions(before=before, limit=size, status=status, agent=agent)
        assert len(page) <= size
        found += page
        if len(page) < size:
            return found
        before = page[-1].touched
        meanwhile()
