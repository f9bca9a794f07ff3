"""Deletions: one checkpoint, and its descendants stay readable; a session, and nothing of it is left."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest

from backstay.backend import Backend, BranchRow, Deletion, Rewrite
from backstay.delta import LARGE_BYTES, whole
from backstay.errors import ConflictError, CorruptionError, InvalidInputError, NotFoundError
from backstay.testing.author import Author, check_states, delete, next_turn, read_back
from backstay.testing.contract.hooks import Hooks


def picture(number: int) -> bytes:
    """Bytes that are kept as a blob, and only once."""
    return bytes([number]) * LARGE_BYTES


class DeletingContract(Hooks):
    """What `delete_checkpoints` and `delete_session` owe."""

    @pytest.mark.parametrize("at", [0, 1, 5, 14, 15, 16, 17, 18, 19, 20, 21, 22, 31, 38])
    def test_deleting_one_checkpoint_leaves_all_others_readable(self, backend: Backend, at: int) -> None:
        author = Author(backend, whole_every=19)
        author.grow(40)
        gone = author.rows[at]
        delete(backend, "a session", gone.id)
        del author.states[gone.id]
        check_states(backend, "a session", author.states)
        child = backend.find_row("a session", author.rows[at + 1].id)
        assert child is not None
        assert (child.parent_id, child.parent_digest, child.link_id) == (gone.id, gone.digest, gone.parent_id)
        assert backend.find_row("a session", gone.id) is None
        assert not backend.find_ids("a session", gone.id, limit=9)
        author.grow(20)
        assert author.rows[-1].sequence == 60
        check_states(backend, "a session", author.states)
        assert not list(backend.check())

    def test_deleting_the_head_moves_its_branches_to_the_parent(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(5)
        backend.fork("a session", id_=author.rows[4].id, branch="too")
        backend.fork("a session", id_=author.rows[2].id, branch="elsewhere")
        delete(backend, "a session", author.rows[4].id)
        heads = {branch.name: branch.head_id for branch in backend.names("a session").branches}
        ids = [row.id for row in author.rows]
        assert heads == {"main": ids[3], "too": ids[3], "elsewhere": ids[2]}
        with pytest.raises(ConflictError):
            author.commit({"on": "what is gone"})
        del author.states[ids[4]]
        assert author.stand_on_head().commit({"on": "what is there"}).sequence == 6
        check_states(backend, "a session", author.states)

    def test_deleting_a_fork_point_leaves_every_branch_readable(self, backend: Backend) -> None:
        author = Author(backend, whole_every=40)
        author.grow(12)
        states = dict(author.states)
        for name in ("b", "c"):
            branch = author.fork(author.rows[6].id, name)
            branch.grow(14)
            side = branch.fork(branch.rows[3].id, f"{name} {name}")
            side.grow(4)
            states.update(branch.states | side.states)
        for at in (6, 5, 7, 0):
            delete(backend, "a session", author.rows[at].id)
            del states[author.rows[at].id]
            check_states(backend, "a session", states)
        names = [branch.name for branch in backend.names("a session").branches]
        assert names == ["b", "b b", "c", "c c", "main"]

    @pytest.mark.parametrize("seed", [1, 2, 3, 4])
    def test_deleting_in_any_order_leaves_the_rest_readable(self, backend: Backend, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - a test that can be repeated, not a secret
        author = Author(backend, whole_every=chance.choice([3, 10, 40]))
        author.grow(12)
        writers = [author, *(author.fork(author.rows[at].id, f"from {at}") for at in (2, 7))]
        states = dict(author.states)
        for round_ in range(30):
            writer = chance.choice(writers)
            try:
                row = writer.commit(next_turn(writer.state, round_))
                states[row.id] = writer.states[row.id]
            except ConflictError:
                writer.stand_on_head()
            gone = chance.choice(sorted(states))
            with contextlib.suppress(InvalidInputError):
                delete(backend, "a session", gone)
                del states[gone]
            if round_ % 5 == 0:
                check_states(backend, "a session", states)
        check_states(backend, "a session", states)
        line = backend.find_session("a session")
        assert line is not None
        assert line.checkpoints == len(states)
        assert not list(backend.check())

    @pytest.mark.parametrize("at", [3, 9, 15, 16, 17, 20])
    def test_a_writer_that_did_not_see_a_deletion_writes_what_can_be_read(self, backend: Backend, at: int) -> None:
        author = Author(backend, whole_every=40)
        author.grow(22)
        author.fork(author.rows[21].id, "fresh")
        delete(backend, "a session", author.rows[at].id)
        del author.states[author.rows[at].id]
        assert backend.chain("a session", author.rows[-1].id).epoch == author.epoch + 1
        author.grow(20)  # still with the epoch and the prefix of before
        fresh = Author(backend, branch="fresh", whole_every=40).stand_on_head()
        fresh.grow(20)
        check_states(backend, "a session", author.states | fresh.states)

    def test_an_undo_to_a_deleted_checkpoint_is_no_longer_offered(self, backend: Backend) -> None:
        author = Author(backend)
        first, second = author.grow(2)
        third = author.commit(author.states[first.id], undo_to=second.id)
        delete(backend, "a session", second.id)
        assert backend.find_branch("a session", "main") == BranchRow("main", third.id, None)

    def test_an_undo_never_leads_to_a_checkpoint_that_came_after_the_deleted_one(self, backend: Backend) -> None:
        author = Author(backend)
        first, second = author.grow(2)
        third = author.commit(author.states[first.id], undo_to=second.id)
        for gone in (third.id, second.id):
            delete(backend, "a session", gone)
        Author(backend, "another session").grow(1)
        (fourth,) = author.stand_on_head().grow(1)
        assert backend.find_branch("a session", "main") == BranchRow("main", fourth.id, None)

    def test_what_only_a_deleted_checkpoint_held_is_read_from_nowhere_else(self, backend: Backend) -> None:
        author = Author(backend, whole_every=40, roll_every=16)
        author.grow(5)
        author.commit({**author.state, "secret": "held by one checkpoint only"})
        author.commit({key: value for key, value in author.state.items() if key != "secret"})
        author.grow(30)
        delete(backend, "a session", author.rows[5].id)
        del author.states[author.rows[5].id]
        check_states(backend, "a session", author.states)
        for id_ in backend.ids("a session"):
            assert not [record for record in backend.chain("a session", id_).records if b"held by one" in record.body]

    def test_a_tagged_checkpoint_cannot_be_deleted(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(3)
        backend.tag("a session", id_=author.rows[1].id, name="good")
        with pytest.raises(InvalidInputError):
            delete(backend, "a session", author.rows[1].id)
        check_states(backend, "a session", author.states)
        backend.untag("a session", name="good")
        delete(backend, "a session", author.rows[1].id)

    def test_the_only_checkpoint_of_a_branch_cannot_be_deleted(self, backend: Backend) -> None:
        author = Author(backend)
        first, second = author.grow(2)
        backend.fork("a session", id_=first.id, branch="other")
        with pytest.raises(InvalidInputError):
            delete(backend, "a session", first.id)
        check_states(backend, "a session", author.states)
        backend.delete_branch("a session", branch="other")
        delete(backend, "a session", first.id)
        with pytest.raises(InvalidInputError):
            delete(backend, "a session", second.id)

    def test_a_deletion_that_overlooks_a_child_changes_nothing(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(5)
        author.fork(author.rows[2].id, "other").grow(1)
        child = author.rows[3].id
        record, blobs = whole(author.states[child])
        stranger = author.rows[4].id
        rewrite, other = Rewrite(child, record, blobs), Rewrite(stranger, *whole(author.states[stranger]))
        for rewrites in ((), (rewrite,), (rewrite, other), (other,)):
            with pytest.raises(ConflictError):
                backend.delete_checkpoints(Deletion("a session", (author.rows[2].id,), rewrites))
        with pytest.raises(NotFoundError):
            backend.delete_checkpoints(Deletion("a session", (author.rows[2].id,), (Rewrite("nobody", record, blobs),)))
        for id_, state in author.states.items():
            assert read_back(backend, "a session", id_) == state
        assert backend.chain("a session", child).epoch == 0

    def test_a_deletion_that_spares_names_takes_nothing_that_a_branch_needs(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(4)
        middle, head = author.rows[2].id, author.rows[3].id
        with pytest.raises(ConflictError):
            backend.delete_checkpoints(Deletion("a session", (head,), (), spare_names=True))
        author.fork(middle, "other")
        rewrites = (Rewrite(head, *whole(author.states[head])),)
        with pytest.raises(ConflictError):
            backend.delete_checkpoints(Deletion("a session", (middle,), rewrites, spare_names=True))
        assert [branch.head_id for branch in backend.names("a session").branches] == [head, middle]
        check_states(backend, "a session", author.states)

    def test_a_child_that_needs_a_whole_copy_and_is_given_none_is_a_conflict(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(3)
        author.commit({"a whole": "copy"}, keep_whole=True)
        author.grow(2)
        middle = author.rows[1].id
        with pytest.raises(ConflictError):
            backend.delete_checkpoints(
                Deletion("a session", (middle,), (Rewrite(author.rows[2].id, None, {}),)),
            )
        check_states(backend, "a session", author.states)
        # The one that has its own needs none.
        backend.delete_checkpoints(Deletion("a session", (author.rows[2].id,), (Rewrite(author.rows[3].id, None, {}),)))
        del author.states[author.rows[2].id]
        check_states(backend, "a session", author.states)

    def test_a_deletion_that_fails_midway_changes_nothing(self, backend: Backend) -> None:
        author = Author(backend)
        author.commit({"picture": picture(1), "turn": 0})
        author.commit({"picture": picture(1), "turn": 1})
        author.commit({"picture": picture(1), "turn": 2})
        before = backend.find_session("a session"), backend.names("a session"), backend.sizes()
        record, _ = whole({"picture": picture(2), "turn": 2})
        assert record.refs
        with pytest.raises(CorruptionError):
            backend.delete_checkpoints(
                Deletion("a session", (author.rows[1].id,), (Rewrite(author.rows[2].id, record, {}),))
            )
        assert (backend.find_session("a session"), backend.names("a session"), backend.sizes()) == before
        check_states(backend, "a session", author.states)
        assert not list(backend.check())

    def test_totals_shrink_by_what_was_deleted(self, backend: Backend) -> None:
        author = Author(backend)
        drafts = []
        for number in range(5):
            state = next_turn(author.state, number)
            drafts.append(author.draft(state))
            author.write(drafts[-1], state)
        delete(backend, "a session", author.rows[2].id)
        sizes = backend.sizes()
        assert (sizes.sessions, sizes.checkpoints) == (1, 4)
        assert sizes.logical_bytes == sum(draft.size_bytes for at, draft in enumerate(drafts) if at != 2)
        line = backend.find_session("a session")
        assert line is not None
        assert (line.checkpoints, line.branches) == (4, 1)

    def test_a_picture_goes_with_the_last_checkpoint_that_needs_it(self, backend: Backend) -> None:
        author, other = Author(backend), Author(backend, "other")
        mine, shared = author.draft({"picture": picture(1)}), other.draft({"picture": picture(2)})
        (only_mine,), (of_both,) = mine.blobs, shared.blobs
        other.write(shared, {"picture": picture(2)})
        author.commit({"turn": 0})
        author.commit({"turn": 1, "picture": picture(1), "shared": picture(2)})
        author.commit({"turn": 2})
        author.commit({"turn": 3, "picture": picture(1)})
        author.commit({"turn": 4})
        everything = {only_mine: picture(1), of_both: picture(2)}
        for at, left in ((1, everything), (3, {of_both: picture(2)})):
            delete(backend, "a session", author.rows[at].id)
            del author.states[author.rows[at].id]
            check_states(backend, "a session", author.states)
            assert dict(backend.blobs([only_mine, of_both], salvage=True)) == left
        assert not list(backend.check())

    def test_a_picture_that_a_child_still_shows_stays_when_its_parent_goes(self, backend: Backend) -> None:
        author = Author(backend)
        for turn in range(4):
            author.commit({"turn": turn, "pictures": [picture(at) for at in range(turn + 1)]})
        for at in (0, 1, 2):
            delete(backend, "a session", author.rows[at].id)
            del author.states[author.rows[at].id]
            check_states(backend, "a session", author.states)
        assert not list(backend.check())

    def test_a_piece_that_only_a_delta_needed_goes_with_the_delta(self, backend: Backend) -> None:
        author = Author(backend)
        text = "before " * 3_000
        author.commit({"text": text})
        draft = author.draft({"text": text[:9_000] + "inserted " * 1_000 + text[9_000:]})
        author.write(draft, {"text": text[:9_000] + "inserted " * 1_000 + text[9_000:]})
        author.commit({"text": "short"})
        inserted = set(draft.blobs) - set(whole(author.states[draft.id])[1])
        assert len(backend.blobs(inserted)) == len(inserted) > 0
        delete(backend, "a session", author.rows[0].id)
        del author.states[author.rows[0].id]
        check_states(backend, "a session", author.states)
        assert not backend.blobs(inserted, salvage=True)
        assert not list(backend.check())

    def test_deleting_a_session_takes_all_that_only_it_needed(self, backend: Backend) -> None:
        author, other = Author(backend), Author(backend, "another session")
        author.grow(30)
        author.fork(author.rows[4].id, "branch").grow(4)
        backend.tag("a session", id_=author.rows[4].id, name="tag")
        delete(backend, "a session", author.rows[8].id)
        draft = author.draft({"mine": picture(99), "shared": picture(98)})
        author.write(draft, {})
        other.commit({"shared": picture(98)})
        backend.delete_session("a session")
        assert backend.find_session("a session") is None
        assert not backend.ids("a session")
        assert not backend.names("a session").branches + backend.names("a session").tags
        assert list(backend.blobs(list(draft.blobs), salvage=True).values()) == [picture(98)]
        check_states(backend, "another session", other.states)
        assert (backend.sizes().sessions, backend.sizes().checkpoints) == (1, 1)
        assert not list(backend.check())
        again = Author(backend)
        assert again.commit({"a new": "beginning"}).sequence == 1
        check_states(backend, "a session", again.states)

    def test_nothing_of_a_deleted_session_can_be_found_in_the_bytes(self, backend: Backend) -> None:
        marks = [b"very-private-session", b"very-private-label", b"very-private-branch", b"very-private-tag"]
        kept, gone = Author(backend, "kept"), Author(backend, "very-private-session", branch="very-private-branch")
        small = {"note": "very-private-state"}
        for number in range(60):
            kept.commit(next_turn(kept.state, number))
            state = small if number % 9 == 0 else {**next_turn(gone.state, number), **small}
            gone.commit(state, fields=b"very-private-label %d" % number)
            if number % 10 == 0:
                backend.tag(gone.session, id_=gone.rows[-1].id, name=f"very-private-tag {number}")
        delete(backend, gone.session, gone.rows[33].id)
        text = self.raw_text(backend)
        if text is None:
            pytest.skip("the bytes of this backend cannot be had")
        for mark in marks:
            assert mark in text, "the test looks in the wrong place"
        backend.delete_session(gone.session)
        text = self.raw_text(backend)
        assert text is not None
        assert not [mark for mark in [*marks, b"very-private"] if mark in text]
        assert not [row.id for row in gone.rows if row.id.encode() in text or bytes.fromhex(row.id) in text]
        check_states(backend, "kept", kept.states)

    def test_a_retry_of_a_commit_that_was_deleted_since_is_not_taken_for_done(self, backend: Backend) -> None:
        author = Author(backend)
        author.grow(1)
        draft = author.draft({"turn": 1})
        author.write(draft, {"turn": 1})
        author.grow(1)
        delete(backend, "a session", draft.id)
        with pytest.raises(ConflictError):
            backend.commit(msgspec.structs.replace(draft))
