"""Damage behind the backend's back: an error on the reads that need what is damaged, the truth on all others."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import pytest

from backstay.backend import Backend
from backstay.delta import LARGE_BYTES, rebuild, refs_of
from backstay.errors import BackstayError, CorruptionError
from backstay.model import Damaged, StateDict
from backstay.testing.author import Author, delete, read_back, read_row
from backstay.testing.contract.hooks import Hooks, What
from backstay.testing.exact import exactly_equal

POSITIONS = [0.0, 0.2, 0.5, 0.8, 0.999]


class DamageContract(Hooks):
    """What every read owes when the bytes are not what was written."""

    def harm(self, backend: Backend, id_: str, what: What, *, at: float = 0.5) -> None:
        """Damage a checkpoint of "a session", or skip the test where that cannot be done."""
        if not self.damage(backend, "a session", id_, what, at=at):
            pytest.skip("this backend cannot be damaged from outside")

    def history(self, backend: Backend, *, roll_every: int = 0) -> Author:
        """45 checkpoints with whole copies at 0, 21 and 42, and a neighbour that must not notice anything."""
        Author(backend, "a neighbour").grow(3)
        author = Author(backend, whole_every=20, roll_every=roll_every)
        author.grow(45)
        return author

    @pytest.mark.parametrize("at", POSITIONS)
    def test_damaged_fields_are_noticed_on_that_checkpoint_and_no_other(self, backend: Backend, at: float) -> None:
        author = self.history(backend)
        self.harm(backend, author.rows[7].id, "fields", at=at)
        check_damage(backend, author, {7})
        with pytest.raises(CorruptionError):
            list(map(read_row, backend.line("a session", author.rows[-1].id, limit=99)))

    @pytest.mark.parametrize("at", POSITIONS)
    @pytest.mark.parametrize("number", [1, 7, 20])
    def test_a_damaged_delta_costs_nothing_beyond_the_next_whole_copy(
        self, backend: Backend, number: int, at: float
    ) -> None:
        author = self.history(backend)
        self.harm(backend, author.rows[number].id, "delta", at=at)
        check_damage(backend, author, range(number, 21))

    @pytest.mark.parametrize("at", POSITIONS)
    def test_a_damaged_whole_copy_costs_nothing_beyond_the_next_one(self, backend: Backend, at: float) -> None:
        author = self.history(backend)
        self.harm(backend, author.rows[0].id, "whole", at=at)
        check_damage(backend, author, range(21))

    def test_a_damaged_whole_copy_never_gives_a_wrong_state(self, backend: Backend) -> None:
        author = self.history(backend)
        self.harm(backend, author.rows[21].id, "whole")
        # The way round, by the deltas before it, is open to a backend but not asked of it.
        check_damage(backend, author, (), doubtful=range(21, 42))

    @pytest.mark.parametrize(("what", "number"), [("delta", 5), ("delta", 16), ("delta", 18), ("roll", 16)])
    def test_damage_never_costs_more_because_there_is_a_shorter_way(
        self, backend: Backend, what: What, number: int
    ) -> None:
        author = self.history(backend, roll_every=16)
        self.harm(backend, author.rows[number].id, what)
        check_damage(backend, author, (), doubtful=range(number, 21) if what == "delta" else ())

    @pytest.mark.parametrize("at", POSITIONS)
    def test_a_damaged_blob_costs_the_checkpoints_that_need_it(self, backend: Backend, at: float) -> None:
        author = Author(backend, whole_every=3, roll_every=0)
        for number in range(12):
            author.commit({"number": number, **({"picture": b"p" * LARGE_BYTES} if 4 <= number <= 8 else {})})
        needing = [
            number for number, row in enumerate(author.rows) if refs_of(backend.chain("a session", row.id).records)
        ]
        assert set(range(4, 9)) <= set(needing) < set(range(12))
        self.harm(backend, author.rows[4].id, "blob", at=at)
        check_damage(backend, author, needing)

    @pytest.mark.parametrize("number", [0, 10, 21, 30])
    def test_a_lost_checkpoint_is_damage_and_not_a_shorter_history(self, backend: Backend, number: int) -> None:
        author = self.history(backend)
        self.harm(backend, author.rows[number].id, "row")
        after = author.rows[number + 1].id
        with pytest.raises(CorruptionError):
            backend.line("a session", author.rows[-1].id, limit=99)
        with pytest.raises(CorruptionError):
            backend.find_row("a session", after)
        with pytest.raises(CorruptionError):
            backend.chain("a session", after)
        assert list(backend.check())
        next_whole = next(at for at in (0, 21, 42, 45) if at > number)
        check_damage(backend, author, (), doubtful=range(number, next_whole + 1))

    def test_a_lost_head_is_damage_and_not_a_missing_branch(self, backend: Backend) -> None:
        author = self.history(backend)
        author.fork(author.rows[5].id, "other")
        self.harm(backend, author.rows[-1].id, "row")
        with pytest.raises(CorruptionError):
            backend.find_branch("a session", "main")
        with pytest.raises(CorruptionError):
            backend.names("a session")
        with pytest.raises(CorruptionError):
            author.commit({"on": "a lost head"})
        with pytest.raises(CorruptionError):
            Author(backend).commit({"as if": "the branch were new"})
        found = backend.find_branch("a session", "other")
        assert found is not None
        assert read_back(backend, "a session", found.head_id) == author.states[author.rows[5].id]

    def test_a_lost_tagged_checkpoint_is_damage_and_not_a_missing_tag(self, backend: Backend) -> None:
        author = self.history(backend)
        other = author.fork(author.rows[5].id, "other")
        (row,) = other.grow(1)
        backend.tag("a session", id_=row.id, name="good")
        backend.delete_branch("a session", branch="other")
        self.harm(backend, row.id, "row")
        with pytest.raises(CorruptionError):
            backend.names("a session")

    @pytest.mark.parametrize("what", ["fields", "delta", "whole", "blob", "row"])
    def test_a_damaged_session_can_still_be_deleted_without_a_trace(self, backend: Backend, what: What) -> None:
        for at in POSITIONS:
            author = Author(backend, whole_every=4)
            author.grow(12)
            number = 3 if what == "blob" else 0 if what == "whole" else 2
            self.harm(backend, author.rows[number].id, what, at=at)
            backend.delete_session("a session")
            assert backend.find_session("a session") is None
            assert not list(backend.check())
        assert backend.sizes().checkpoints == 0

    @pytest.mark.parametrize("what", ["fields", "delta", "whole", "blob"])
    def test_a_deletion_beside_damage_gives_an_error_of_ours_or_the_truth(self, backend: Backend, what: What) -> None:
        author = self.history(backend)
        number = 3 if what == "blob" else 0 if what == "whole" else 6
        self.harm(backend, author.rows[number].id, what)
        states = dict(author.states)
        for at in (2, 5, 6, 7, 12, 42):
            with contextlib.suppress(BackstayError):
                delete(backend, "a session", author.rows[at].id)
                del states[author.rows[at].id]
        for id_, state in states.items():
            with contextlib.suppress(CorruptionError):
                assert exactly_equal(read_back(backend, "a session", id_), state)
        for at in (43, 44) if what != "blob" else ():
            assert exactly_equal(read_back(backend, "a session", author.rows[at].id), states[author.rows[at].id])

    def test_a_commit_after_damage_can_be_read_once_it_has_a_whole_copy(self, backend: Backend) -> None:
        author = self.history(backend)
        self.harm(backend, author.rows[43].id, "delta")
        row = author.commit({"a fresh": "start"}, keep_whole=True, keep_delta=False)
        assert read_back(backend, "a session", row.id) == {"a fresh": "start"}

    @pytest.mark.parametrize("number", [1, 9, 16, 17, 30])
    def test_salvage_loses_the_damaged_items_and_little_else(self, backend: Backend, number: int) -> None:
        author = Author(backend, whole_every=60, roll_every=0)
        for at in range(41):
            item = f"item {at} is long enough to be packed together with the items before it"
            author.commit({"items": [*author.state.get("items", []), item]})
        self.harm(backend, author.rows[number].id, "delta", at=0.95)
        last = author.rows[-1].id
        with pytest.raises(CorruptionError):
            read_back(backend, "a session", last)
        items = salvaged(backend, last)["items"]
        assert len(items) == 41
        lost = [at for at, item in enumerate(items) if isinstance(item, Damaged)]
        assert number in lost
        end = (number - 1) // 16 * 16 + 17
        assert set(lost) <= set(range(number, end))
        for at, item in enumerate(items):
            assert at in lost or item == author.state["items"][at]

    @pytest.mark.parametrize("at", POSITIONS)
    @pytest.mark.parametrize("what", ["delta", "whole", "blob"])
    def test_salvage_never_makes_up_a_value(self, backend: Backend, what: What, at: float) -> None:
        author = Author(backend, whole_every=60, roll_every=0)
        author.commit({"items": ["first"], "picture": b"p" * LARGE_BYTES})
        for number in range(1, 30):
            author.commit({**author.state, "items": [*author.state["items"], f"item {number} " * 8]})
        self.harm(backend, author.rows[6 if what == "delta" else 0].id, what, at=at)
        try:
            state = salvaged(backend, author.rows[-1].id)
        except CorruptionError:
            return
        for key, value in state.items():
            true = author.state[key]
            assert isinstance(value, Damaged) or exactly_equal(value, true) or isinstance(value, list)
            for item in value if isinstance(value, list) else ():
                assert isinstance(item, Damaged) or item in true


def salvaged(backend: Backend, id_: str) -> StateDict:
    """What can still be had of a state."""
    chain = backend.chain("a session", id_, salvage=True)
    pieces = backend.blobs(refs_of(chain.records), salvage=True)
    return rebuild(chain.records, pieces, salvage=True).state


def check_damage(backend: Backend, author: Author, damaged: Collection[int], *, doubtful: Collection[int] = ()) -> None:
    """These checkpoints are errors, the doubtful are errors or true, and all others are true."""
    for number, row in enumerate(author.rows):
        try:
            state = read_back(backend, author.session, row.id)
        except CorruptionError:
            assert number in damaged or number in doubtful, f"checkpoint {number} does not need what is damaged"
        except BackstayError:
            assert number in doubtful, f"checkpoint {number} is reported as something else than damaged"
        else:
            assert number not in damaged, f"checkpoint {number} needs what is damaged and nobody noticed"
            assert exactly_equal(state, author.states[row.id]), f"checkpoint {number} gives back a wrong state"
    for id_ in backend.ids("a neighbour"):
        read_back(backend, "a neighbour", id_)
