"""Commits: whole or not at all, by compare-and-set, recognised when tried again, in the store's own order."""

from __future__ import annotations

import contextlib
from hashlib import sha256

import msgspec
import pytest

from backstay.backend import Backend, BranchRow, Row, Sizes
from backstay.delta import whole
from backstay.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError
from backstay.model import StateDict
from backstay.testing.author import NOW_US, Author, check_states, delete, read_back, read_row, totals_at
from backstay.testing.contract.hooks import Hooks

PICTURE = bytes(range(256)) * 20
OTHER_PICTURE = PICTURE[::-1]


class WritingContract(Hooks):
    """What `commit` owes."""

    def test_what_was_committed_is_found_by_every_way_to_look_for_it(self, backend: Backend) -> None:
        author = Author(backend)
        first = author.commit({"messages": ["hello"]}, fields=b"\0 any bytes \xff")
        second = author.commit({"messages": ["hello", "world"]})

        assert read_row(first).fields == b"\0 any bytes \xff"
        assert (first.sequence, first.parent_id, first.parent_digest, first.link_id) == (1, None, None, None)
        assert (second.sequence, second.parent_id, second.link_id) == (2, first.id, first.id)
        assert read_row(second).parent_digest == first.digest
        assert backend.find_row("a session", first.id) == first
        assert backend.find_row("a session", second.id) == second
        assert backend.find_branch("a session", "main") == BranchRow("main", second.id, None)
        assert list(backend.ids("a session")) == [first.id, second.id]
        assert list(backend.children("a session", first.id)) == [second.id]
        assert list(backend.line("a session", second.id, limit=9)) == [second, first]
        check_states(backend, "a session", author.states)

    def test_what_was_committed_is_there_after_closing_and_opening_again(self) -> None:
        backend = self.make()
        author = Author(backend)
        author.grow(40)
        author.fork(author.rows[7].id, "other").grow(3)
        backend.tag("a session", id_=author.rows[3].id, name="good")
        backend.delete_branch("a session", branch="other")
        rows, names = (
            [backend.find_row("a session", id_) for id_ in backend.ids("a session")],
            backend.names("a session"),
        )
        line, sizes = backend.find_session("a session"), backend.sizes()
        with contextlib.closing(self.reopen(backend)) as again:
            assert [again.find_row("a session", id_) for id_ in again.ids("a session")] == rows
            assert again.names("a session") == names
            assert again.find_session("a session") == line
            after = again.sizes()
            assert (after.sessions, after.checkpoints, after.logical_bytes) == (1, 43, sizes.logical_bytes)
            for id_, state in author.states.items():
                assert read_back(again, "a session", id_) == state
            author.backend = again
            author.stand_on_head().grow(3)
            assert author.rows[-1].sequence == 46

    def test_a_commit_that_fails_midway_leaves_nothing_of_a_new_session(self, backend: Backend) -> None:
        author, state = Author(backend), {"a": PICTURE, "b": OTHER_PICTURE, "c": "text"}
        draft = author.draft(state)
        assert len(draft.blobs) > 1
        kept, lost = min(draft.blobs), max(draft.blobs)
        with pytest.raises(CorruptionError):
            backend.commit(msgspec.structs.replace(draft, blobs={kept: draft.blobs[kept]}))
        assert backend.find_session("a session") is None
        assert backend.find_branch("a session", "main") is None
        assert backend.find_row("a session", draft.id) is None
        assert not backend.ids("a session")
        assert not list(backend.sessions(before=None, limit=9, status=None, agent=None))
        assert not backend.blobs([kept, lost], salvage=True)
        assert backend.sizes().checkpoints == backend.sizes().logical_bytes == 0
        assert not list(backend.check())
        assert author.write(draft, state).sequence == 1  # and the very same commit can still be made

    def test_a_commit_that_fails_midway_leaves_the_session_as_it_was(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(3)
        before = backend.find_session("a session"), backend.names("a session"), backend.sizes()
        state = {**author.state, "picture": PICTURE}
        draft = author.draft(state, totals=totals_at(NOW_US + 1, status="completed"))
        with pytest.raises(CorruptionError):
            backend.commit(msgspec.structs.replace(draft, blobs={}))
        assert (backend.find_session("a session"), backend.names("a session"), backend.sizes()) == before
        check_states(backend, "a session", author.states)
        assert author.write(draft, state).sequence == 4

    def test_a_writer_that_has_not_seen_the_newest_turn_cannot_bury_it(self, backend: Backend) -> None:
        author, late = Author(backend), Author(backend)
        author.commit({"turn": 1})
        late.stand_on_head()
        author.commit({"turn": 2})
        before = backend.find_session("a session"), backend.names("a session")
        with pytest.raises(ConflictError):
            late.commit({"turn": "other"}, totals=totals_at(NOW_US + 1, status="failed"))
        assert (backend.find_session("a session"), backend.names("a session")) == before
        check_states(backend, "a session", author.states)

    def test_a_writer_that_expects_no_branch_cannot_start_a_second_history_on_it(self, backend: Backend) -> None:
        Author(backend).commit({"turn": 1})
        with pytest.raises(ConflictError):
            Author(backend).commit({"turn": "mine"})

    def test_a_branch_that_is_gone_is_a_conflict_and_not_a_new_branch(self, backend: Backend) -> None:
        author = Author(backend)
        author.commit({"turn": 1})
        backend.delete_branch("a session", branch="main")
        with pytest.raises(ConflictError):
            author.commit({"turn": 2})
        assert backend.find_branch("a session", "main") is None

    def test_a_session_that_is_gone_is_a_conflict_and_not_a_new_session(self, backend: Backend) -> None:
        author = Author(backend)
        author.commit({"turn": 1})
        backend.delete_session("a session")
        with pytest.raises(ConflictError):
            author.commit({"turn": 2})
        assert backend.find_session("a session") is None

    def test_a_commit_tried_again_after_a_lost_answer_counts_once(self, backend: Backend) -> None:
        author = Author(backend)
        first: StateDict = {"picture": PICTURE}
        second: StateDict = {"picture": PICTURE, "more": OTHER_PICTURE}
        one = author.draft(first)
        assert backend.commit(one) == author_row(backend, one.id)
        assert backend.commit(one).sequence == 1
        author.stand_on(one.id)
        two = author.draft(second)
        row = author.write(two, second)
        assert backend.commit(two) == row
        author.commit({"something": "on top"})
        assert backend.commit(two) == row
        assert backend.commit(one).id == one.id
        assert [author_row(backend, id_).sequence for id_ in backend.ids("a session")] == [1, 2, 3]
        line = backend.find_session("a session")
        assert line is not None
        assert (line.checkpoints, line.branches) == (3, 1)
        assert backend.sizes().checkpoints == 3

    def test_an_id_that_is_taken_cannot_be_given_to_another_checkpoint(self, backend: Backend) -> None:
        author = Author(backend)
        first, second = author.grow(2)
        other = author.fork(first.id, "other")
        with pytest.raises(ConflictError):
            other.commit({"another": "state"}, id_=second.id)
        check_states(backend, "a session", author.states)
        assert backend.find_branch("a session", "other") == BranchRow("other", first.id, None)

    def test_two_sessions_may_use_the_same_checkpoint_id(self, backend: Backend) -> None:
        for session in ("one", "two"):
            Author(backend, session).commit({"of": session}, id_="same")
        for session in ("one", "two"):
            assert read_back(backend, session, "same") == {"of": session}
        backend.delete_session("one")
        assert read_back(backend, "two", "same") == {"of": "two"}

    def test_a_new_branch_by_commit_is_a_history_of_its_own(self, backend: Backend) -> None:
        author, apart = Author(backend), Author(backend, branch="apart")
        author.grow(2)
        row = apart.commit({"apart": True})
        assert (row.sequence, row.parent_id, row.link_id) == (3, None, None)
        check_states(backend, "a session", author.states | apart.states)
        line = backend.find_session("a session")
        assert line is not None
        assert (line.branches, line.checkpoints) == (2, 3)

    def test_a_new_branch_by_commit_cannot_take_the_name_of_a_tag(self, backend: Backend) -> None:
        author = Author(backend)
        backend.tag("a session", id_=author.commit({"turn": 1}).id, name="good")
        with pytest.raises(AlreadyExistsError):
            Author(backend, branch="good").commit({"turn": "mine"})
        check_states(backend, "a session", author.states)

    def test_where_an_undo_leads_is_kept_until_the_next_restore(self, backend: Backend) -> None:
        author = Author(backend)
        first, second = author.grow(2)
        third = author.commit(author.states[first.id], undo_to=second.id)
        assert backend.find_branch("a session", "main") == BranchRow("main", third.id, second.id)
        (fourth,) = author.grow(1)
        assert backend.find_branch("a session", "main") == BranchRow("main", fourth.id, second.id)
        fifth = author.commit(author.states[second.id], undo_to=fourth.id)
        assert backend.names("a session").branches == (BranchRow("main", fifth.id, fourth.id),)
        author.fork(fifth.id, "other")
        assert backend.find_branch("a session", "other") == BranchRow("other", fifth.id, None)

    def test_an_undo_that_would_lead_nowhere_is_refused_with_its_commit(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(1)
        with pytest.raises(NotFoundError):
            author.commit({"turn": 2}, undo_to="nowhere")
        check_states(backend, "a session", author.states)

    def test_a_session_line_shows_the_newest_totals_and_the_first_time(self, backend: Backend) -> None:
        author = Author(backend)
        author.commit({"turn": 1}, totals=totals_at(NOW_US, agent="planner"))
        newest = msgspec.structs.replace(
            totals_at(NOW_US - 5, status="failed", agent="writer"), reason="no money", last_step=7, usage=b"\x01\x02"
        )
        author.commit({"turn": 2}, totals=newest)
        line = backend.find_session("a session")
        assert line is not None
        assert (line.totals, line.created_us, line.checkpoints, line.branches) == (newest, NOW_US, 2, 1)

    def test_a_writer_whose_clock_is_behind_is_not_listed_as_older(self, backend: Backend) -> None:
        authors = [Author(backend, name) for name in ("one", "two", "three")]
        for hours, author in enumerate(authors):
            author.commit({"turn": 1}, totals=totals_at(NOW_US - hours * 3_600_000_000))
        assert listed(backend) == ["three", "two", "one"]
        authors[1].commit({"turn": 2}, totals=totals_at(1))
        assert listed(backend) == ["two", "three", "one"]
        authors[1].commit({"turn": 3}, totals=totals_at(-1))
        assert list(backend.ids("two")) == [row.id for row in authors[1].rows]
        assert [row.sequence for row in backend.line("two", authors[1].rows[-1].id, limit=9)] == [3, 2, 1]

    def test_the_same_picture_in_many_checkpoints_is_kept_once(self, backend: Backend) -> None:
        picture = bytes((7 * at * at + 3 * at) % 251 for at in range(20_000))
        Author(backend, "first").commit({"picture": picture})
        before = backend.sizes().stored_bytes
        for number in range(20):
            author = Author(backend, f"session {number}")
            author.commit({"picture": picture, "number": number})
            author.commit({"number": number, "moved": [picture]})
        assert backend.sizes().stored_bytes - before < 40 * len(picture) / 2
        assert read_back(backend, "session 19", author.rows[0].id) == {"picture": picture, "number": 19}

    def test_a_picture_already_kept_need_not_be_sent_again(self, backend: Backend) -> None:
        Author(backend, "first").commit({"picture": PICTURE})
        second = Author(backend, "second")
        draft = msgspec.structs.replace(second.draft({"picture": PICTURE}), blobs={})
        second.write(draft, {"picture": PICTURE})
        check_states(backend, "second", second.states)

    def test_a_record_larger_than_a_row_comes_back_whole(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not self.shrink_rows(monkeypatch):
            pytest.skip("this backend does not cut its rows")
        author = Author(backend, whole_every=3)
        noise = {f"key {number}": noise_of(3_000, number) for number in range(40)}
        for number in range(8):
            author.commit(dict(list(noise.items())[: 5 * (number + 1)]))
        author.commit({"number": 8})
        assert whole(noise)[0].size_bytes > 100_000
        check_states(backend, "a session", author.states)
        backend = author.backend = self.reopen(backend)
        with contextlib.closing(backend):
            check_states(backend, "a session", author.states)
            delete(backend, "a session", author.rows[5].id)
            del author.states[author.rows[5].id]
            check_states(backend, "a session", author.states)
            backend.delete_session("a session")
            assert backend.sizes() == Sizes(0, 0, 0, backend.sizes().stored_bytes)
            assert not list(backend.check())

    def test_sizes_add_up_what_is_kept(self, backend: Backend) -> None:
        assert backend.sizes().sessions == backend.sizes().checkpoints == backend.sizes().logical_bytes == 0
        drafts = []
        for session in ("one", "two"):
            author = Author(backend, session)
            for number in range(3):
                state = {"number": number, "text": "word " * 100 * number}
                drafts.append(author.draft(state))
                author.write(drafts[-1], state)
        sizes = backend.sizes()
        assert (sizes.sessions, sizes.checkpoints) == (2, 6)
        assert sizes.logical_bytes == sum(draft.size_bytes for draft in drafts)
        assert sizes.stored_bytes > 0


def noise_of(length: int, seed: int) -> str:
    """Text that does not pack well."""
    return "".join(sha256(f"{seed}/{at}".encode()).hexdigest() for at in range(length // 64 + 1))[:length]


def author_row(backend: Backend, id_: str) -> Row:
    """The row as the backend now gives it."""
    row = backend.find_row("a session", id_)
    assert row is not None
    return row


def listed(backend: Backend) -> list[str]:
    """The sessions in the order of a listing."""
    return [row.id for row in backend.sessions(before=None, limit=99, status=None, agent=None)]
