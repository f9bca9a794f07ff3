"""Damage behind the backend's back: an error where it matters, the truth everywhere else (W10). Never a silent gap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from backstay.errors import CorruptionError
from backstay.model import StateDict
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    CallRow,
    CheckpointRow,
    Key,
    Kind,
    LaneQuery,
    LaneRow,
    SessionQuery,
    Unreadable,
    View,
)
from backstay.port.rows import ENTERED
from backstay.rules import runs
from backstay.testing.author import NOW_US, SESSION, Author, Runner, check_states, read_back, tag
from backstay.testing.contract.handmade import bare
from backstay.testing.contract.hidden import hide, take_away
from backstay.testing.contract.hooks import Change, Hooks

OTHER = "another session"
BY_INDEX = ("names", "entered")  # scan and lanes give what is kept: a row that was removed is missed by read and state


def _names_damage(row: object) -> bool:
    """True for what stands in a list in place of rows that cannot be read."""
    return isinstance(row, Unreadable) or (isinstance(row, LaneRow) and row.reason == "damaged")


def flip(body: bytes, *, at: float) -> bytes:
    """One bit changed, this far into the bytes."""
    spot = min(int(len(body) * at), len(body) - 1)
    return body[:spot] + bytes([body[spot] ^ 4]) + body[spot + 1 :]


CHANGES: dict[str, Change] = {
    "its first byte": partial(flip, at=0.0),
    "an early byte": partial(flip, at=0.2),
    "its middle": partial(flip, at=0.5),
    "its last byte": partial(flip, at=1.0),
    "cut off": lambda body: body[: len(body) // 2],
    "emptied": lambda _body: b"",
    "longer": lambda body: body + b"\0",
    "removed": lambda _body: None,
}
LOST = {6: {6, 7, 8}, 5: {5, 6, 7, 8}, 10: {10}}  # what rests on a checkpoint, up to the next keyframe
every_change = pytest.mark.parametrize("change", CHANGES)


class DamageTrial:
    """Two sessions, and what each verb said of the first before it was damaged."""

    def __init__(self, backend: Backend) -> None:
        self.other = Author(backend, OTHER)
        self.other.grow(6)
        tag(backend, OTHER, self.other.rows[2], "a tag")
        author = Author(backend, keyframe_every=4)  # keyframes at 1, 5, 9
        rows = author.grow(3)
        tag(backend, SESSION, rows[0], "a tag")
        author.grow(4)
        author.commit({**author.state, "picture": b"shown" * 2000})
        author.fork(rows[1], "other")
        run = Runner(backend)
        run.call("taken in", result=b"r" * 500)
        run.boundary(keyframe=True)
        self.took = run.author.rows[-1].took
        run.boundary(keyframe=False)
        run.call("done", result=b"r" * 500)
        run.start("begun")
        run.call("last")
        run.leave()
        self.run = run.lease.run
        self.states: dict[int, StateDict] = author.states | run.author.states
        self.truth = look(backend)

    def check_other(self, backend: Backend) -> None:
        """The other session is as it was, and goes on."""
        check_states(backend, OTHER, self.other.states)
        view = backend.read(Ask(OTHER, names=EVERY, pending=EVERY))
        assert set(view.lanes) == {"main"}
        assert set(view.tags) == {"a tag"}
        author = Author(backend, OTHER).stand_on_head()
        author.grow(1)
        assert read_back(backend, OTHER, "main") == author.state

    def check_truth(self, backend: Backend) -> None:
        """Every look at the damaged session says what it said before, or that something is damaged."""
        for name, found in look(backend).items():
            expected = self.truth[name]
            if found is not None and not isinstance(found, list):
                assert found == expected, name
            elif found is not None and name in BY_INDEX:
                assert all([one in expected or _names_damage(one) for one in found]), name
            elif found is not None:
                assert len(found) == len(expected), f"{name}: a silent gap"
                for one, before in zip(found, expected, strict=True):
                    assert one == before or isinstance(one, Unreadable), name

    def readable(self, backend: Backend) -> set[int]:
        """The states that can be read; each is the one that was written."""
        found = set()
        for sequence, state in self.states.items():
            try:
                assert read_back(backend, SESSION, sequence) == state
                found.add(sequence)
            except CorruptionError:
                pass
        return found


class DamageContract(Hooks):
    """What every read owes when the bytes are not what was written."""

    def harmed(self, backend: Backend, kind: Kind, key: Key, change: str) -> Backend:
        """Damage a row of SESSION, or skip the test where that cannot be done."""
        if not self.harm(backend, SESSION, kind, key, CHANGES[change]):
            pytest.skip(f"a {kind.name.lower()} row of this backend cannot be {change}")
        return self.again(backend)

    @every_change
    @pytest.mark.parametrize("sequence", LOST)
    def test_w10_a_damaged_checkpoint_costs_the_states_up_to_the_next_keyframe(
        self, backend: Backend, sequence: int, change: str
    ) -> None:
        world, lost = DamageTrial(backend), LOST[sequence]
        backend = self.harmed(backend, Kind.CHECKPOINT, sequence, change)
        assert world.readable(backend) >= set(world.states) - lost
        assert sequence == 5 or not world.readable(backend) & lost, "only a keyframe may lead around it"
        world.check_truth(backend)
        below = gently(lambda: backend.ancestors(SESSION, max(lost), limit=9))
        assert below is None or len(below) >= len(lost)
        found = gently(
            lambda: backend.read(Ask(SESSION, names=("main",), heads=True, sequences=(sequence,))).checkpoints
        )
        assert found is None or sequence in found
        world.check_other(backend)

    @every_change
    def test_w10_a_damaged_keyframe_never_gives_a_wrong_state(self, backend: Backend, change: str) -> None:
        world = DamageTrial(backend)
        backend = self.harmed(backend, Kind.KEYFRAME, 5, change)
        assert world.readable(backend) >= {1, 2, 3, 4, 9, 10}
        for sequence in (5, 6, 7, 8):  # there is a way around it
            assert read_back(backend, SESSION, sequence, without=(5,)) == world.states[sequence]
        world.check_other(backend)

    @every_change
    def test_w10_a_damaged_blob_costs_the_states_that_need_it(self, backend: Backend, change: str) -> None:
        world = DamageTrial(backend)
        digests = set(backend.state(SESSION, 8).blobs) - set(backend.state(SESSION, 7).blobs)
        if not self.harm_blob(backend, digests.pop(), CHANGES[change]):
            pytest.skip(f"a blob of this backend cannot be {change}")
        backend = self.again(backend)
        found = world.readable(backend)
        assert found >= {1, 2, 3, 4, 5, 6, 7}
        assert change == "longer" or not found & {8, 9, 10}, "what stands behind a blob's end changes nothing"
        world.check_other(backend)

    @every_change
    @pytest.mark.parametrize("name", ["main", "other", "a tag"])
    def test_w10_a_damaged_name_is_an_error_and_not_a_missing_name(
        self, backend: Backend, name: str, change: str
    ) -> None:
        world = DamageTrial(backend)
        backend = self.harmed(backend, Kind.NAME, name, change)
        for ask in (Ask(SESSION, names=(name,)), Ask(SESSION, names=EVERY)):
            with pytest.raises(CorruptionError):
                backend.read(ask)
        with pytest.raises(CorruptionError):
            read_back(backend, SESSION, name)
        with pytest.raises(CorruptionError):
            Author(backend, branch=name).commit({"overwritten": True})
        world.check_truth(backend)
        world.check_other(backend)

    @every_change
    def test_w10_a_damaged_session_is_an_error_and_not_a_missing_session(self, backend: Backend, change: str) -> None:
        world = DamageTrial(backend)
        backend = self.harmed(backend, Kind.SESSION, SESSION, change)
        if change == "removed":  # what no row names any more cannot be missed by a read, but must be by a check
            view = gently(lambda: backend.read(Ask(SESSION)))
            assert view is None or list(backend.check())
            return
        for act in (
            lambda: backend.read(Ask(SESSION)),
            lambda: backend.state(SESSION, "main"),
            lambda: backend.scan(SESSION, Kind.NAME, limit=9),
            lambda: Author(backend).commit({"overwritten": True}),
        ):
            with pytest.raises(CorruptionError):
                act()
        listed = gently(lambda: backend.sessions(SessionQuery()))
        assert listed is None or SESSION in [row.id for row in listed]
        world.check_other(backend)

    @every_change
    def test_w10_a_damaged_call_is_never_taken_for_one_that_was_not_made(self, backend: Backend, change: str) -> None:
        world = DamageTrial(backend)
        backend = self.harmed(backend, Kind.CALL, (world.run, 10, 1), change)
        view: View | None = gently(lambda: backend.read(Ask(SESSION, names=("main",), pending=("main",))))
        if view is not None:
            first, second, third = view.pending["main"]
            assert isinstance(second, Unreadable)
            assert second.key == (world.run, 10, 1)
            assert [row.name for row in (first, third) if isinstance(row, CallRow)] == ["done", "last"]
        world.check_truth(backend)
        with pytest.raises(CorruptionError):
            Runner(backend)
        with pytest.raises(CorruptionError):
            Author(backend).stand_on_head().grow(1)
        if view is not None:
            rule = runs.abandon(SESSION, "main", reason="damaged", at_us=NOW_US, nonce="n")
            assert backend.write(runs.abandon_ask(SESSION, "main"), rule).answer == 3
            Runner(backend).boundary()
        world.check_other(backend)

    @every_change
    def test_w10_a_damaged_call_that_was_taken_in_costs_itself_alone(self, backend: Backend, change: str) -> None:
        world = DamageTrial(backend)
        assert world.took is not None
        at = (world.took.run, world.took.journal)
        backend = self.harmed(backend, Kind.CALL, (*at, 0), change)
        found = gently(lambda: backend.read(Ask(SESSION, journals=(at,))).journals[at])
        assert found is None or len(found) < world.took.count or isinstance(found[0], Unreadable)
        assert world.readable(backend) == set(world.states)
        world.check_other(backend)

    @pytest.mark.parametrize("kind", [Kind.CHECKPOINT, Kind.KEYFRAME, Kind.NAME, Kind.CALL])
    def test_w10_a_row_in_the_place_of_another_is_damage(self, backend: Backend, kind: Kind) -> None:
        world = DamageTrial(backend)
        places: dict[Kind, tuple[Key, Key]] = {
            Kind.CHECKPOINT: (6, 7),
            Kind.KEYFRAME: (5, 9),
            Kind.NAME: ("main", "other"),
            Kind.CALL: ((world.run, 10, 0), (world.run, 10, 1)),
        }
        bodies: list[bytes] = []

        def copy(body: bytes) -> bytes:
            bodies.append(body)
            return body

        source, target = places[kind]
        if not self.harm(backend, SESSION, kind, source, copy):
            pytest.skip(f"a {kind.name.lower()} row of this backend cannot be changed")
        assert self.harm(backend, SESSION, kind, target, lambda _body: bodies[0])
        backend = self.again(backend)
        assert world.readable(backend) >= {1, 2, 3, 4}
        world.check_truth(backend)
        world.check_other(backend)

    @pytest.mark.parametrize("change", ["an early byte", "removed"])
    def test_salvage_has_a_place_for_every_row(self, backend: Backend, change: str) -> None:
        DamageTrial(backend)
        backend = self.harmed(backend, Kind.CHECKPOINT, 6, change)
        with pytest.raises(CorruptionError):
            backend.state(SESSION, 8)
        *_, lost, seven, eight = backend.state(SESSION, 8, salvage=True).rows
        assert isinstance(lost, Unreadable)
        assert lost.key == 6
        assert [row.sequence for row in (seven, eight) if isinstance(row, CheckpointRow)] == [7, 8]

    @pytest.mark.parametrize("kind", [Kind.CHECKPOINT, Kind.KEYFRAME, Kind.CALL])
    @pytest.mark.parametrize("change", ["an early byte", "removed"])
    def test_a_damaged_session_can_be_taken_away(self, backend: Backend, kind: Kind, change: str) -> None:
        world = DamageTrial(backend)
        places: dict[Kind, Key] = {Kind.CHECKPOINT: 6, Kind.KEYFRAME: 5, Kind.CALL: (world.run, 10, 0)}
        backend = self.harmed(backend, kind, places[kind], change)
        row = gently(lambda: hide(backend))
        if row is None:
            pytest.skip("this damage hides the session's names")
        take_away(backend, row)
        assert not backend.sessions(SessionQuery(hidden=True))
        world.check_other(backend)
        assert not list(backend.check())


def gently(act: Callable[[], Any]) -> Any:
    """What it gives; None where it says that something is damaged."""
    try:
        return act()
    except CorruptionError:
        return None


def look(backend: Backend) -> dict[str, Any]:
    """What each verb says of SESSION; None where it says that something is damaged."""
    whole = Ask(SESSION, names=EVERY, pending=EVERY)
    found: dict[str, Any] = {
        "line": gently(lambda: backend.read(Ask(SESSION)).session),
        "names": gently(lambda: backend.scan(SESSION, Kind.NAME, limit=99)),
        "lanes": gently(lambda: dict(backend.read(whole).lanes)),
        "tags": gently(lambda: dict(backend.read(whole).tags)),
        "pending": gently(lambda: list(backend.read(whole).pending["main"])),
        "entered": gently(lambda: [one.lane for one in backend.lanes(LaneQuery(ENTERED))]),
        "listing": gently(lambda: [row.id for row in backend.sessions(SessionQuery())]),
    }
    for sequence in range(1, 11):
        found[f"#{sequence}"] = gently(partial(headers, backend, sequence))
    rows = gently(lambda: backend.ancestors(SESSION, 10, limit=99))
    if rows is not None and not isinstance(rows[-1], Unreadable):  # below one that is lost, its ancestors are unknown
        found["ancestors"] = [without_delta(row) for row in rows]
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    for name in ("main", "a tag"):
        found[f"state {name}"] = gently(partial(read_back, backend, SESSION, name))
    return found


def headers(backend: Backend, sequence: int) -> list[Any]:
    """What `read` says of one checkpoint."""
    view = backend.read(Ask(SESSION, sequences=(sequence,)))
    return [without_delta(row) for row in view.checkpoints.values()]


def without_delta(row: Any) -> Any:
    """A row as far as its own seal covers it: the delta has another, which the reader of the state opens."""
    plain = bare(row)
    if isinstance(plain, CheckpointRow):
        return (plain.sequence, plain.id, plain.parent, plain.digest, plain.state_digest, plain.fields, plain.took)
    return plain
