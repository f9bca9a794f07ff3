"""Power loss at any moment: of what was not synced any part may be missing, of what was acknowledged nothing."""

import random
from collections.abc import Iterator

import pytest

from tests.crash.ring.children import record
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.power import Tally, crashes, survive, survive_all, survive_in_part
from tests.crash.ring.rooms import KINDS, Place, room
from tests.crash.ring.workload import Look, looks
from tests.faults import Call, Crash, Faults, Timeline

pytestmark = pytest.mark.usefixtures("alone")

STATES = {"sqlite": 600, "files": 200}
MANY_STATES = 20_000
SHARES = 4


@pytest.fixture(scope="module")
def expected() -> list[Look]:
    return looks()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "ring", request.param)


def ring(
    nursery: Nursery, place: Place, expected: list[Look], durability: str, states: int, share: int, shares: int
) -> Tally:
    (trace,) = nursery.do(record, place, Faults(record=True), durability)
    found = crashes(trace, states, seed=share, share=share, shares=shares)
    return survive_all(found, place, expected, may_lose=durability == "relaxed")


@pytest.mark.parametrize("share", range(SHARES))
def test_a_power_cut_takes_back_nothing_that_was_acknowledged_and_leaves_nothing_half(
    nursery: Nursery, place: Place, expected: list[Look], share: int
) -> None:
    tally = ring(nursery, place, expected, "full", STATES[place.kind], share, SHARES)
    assert tally.states == STATES[place.kind] // SHARES
    assert tally.lost == 0
    assert tally.ahead > 0  # so the cuts do come in the middle of things
    assert tally.latest > len(expected) - 5, "the evening of the day is never cut"


def test_a_power_cut_while_a_store_is_made_leaves_one_that_can_be_worked_with(
    nursery: Nursery, place: Place, expected: list[Look]
) -> None:
    (trace,) = nursery.do(record, place, Faults(record=True), "full")
    made = trace.index(Call("mark", "", 0)) + 1
    chosen = random.Random(11)
    states = {moment.chance(chosen) for moment in Timeline(trace[:made]) for _ in range(12)}
    for crash in states:
        survive(crash, place, expected, may_lose=False, more=True)
    assert len(states) > 10


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_power_cut_with_relaxed_durability_takes_back_only_the_newest_steps_and_damages_nothing(
    nursery: Nursery, place: Place, expected: list[Look]
) -> None:
    tally = ring(nursery, place, expected, "relaxed", 250, 0, 1)
    assert tally.states == 250
    assert tally.lost > 0, "relaxed is as safe as full, or this ring sees nothing"


@pytest.mark.exhaustive
@pytest.mark.parametrize("share", range(2 * SHARES))
def test_no_power_cut_can_be_found_that_takes_back_what_was_acknowledged(
    nursery: Nursery, place: Place, expected: list[Look], share: int
) -> None:
    tally = ring(nursery, place, expected, "full", MANY_STATES, share, 2 * SHARES)
    assert tally.states == MANY_STATES // (2 * SHARES)
    assert tally.lost == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_no_power_cut_can_be_found_that_damages_a_relaxed_store(
    nursery: Nursery, place: Place, expected: list[Look]
) -> None:
    tally = ring(nursery, place, expected, "relaxed", MANY_STATES, 0, 1)
    assert tally.states == MANY_STATES
    assert tally.lost > 0


@pytest.mark.parametrize("place", ["files"], indirect=True)
def test_a_power_cut_with_relaxed_durability_never_makes_a_folder_of_journals_tell_anything_but_the_truth(
    nursery: Nursery, place: Place, expected: list[Look]
) -> None:
    (trace,) = nursery.do(record, place, Faults(record=True), "relaxed")
    found = [survive_in_part(crash, place, expected) for crash in crashes(trace, 100, seed=0)]
    assert any(found)
    assert not all(found)


def states_of(*calls: Call) -> set[tuple[tuple[str, bytes], ...]]:
    *_, last = Timeline(calls)
    found: list[Crash] = list(last.systematic())
    return {tuple(sorted(crash.files.items())) for crash in found}


def test_what_was_not_synced_may_be_missing_and_what_was_synced_may_not() -> None:
    made = (Call("create", "a"), Call("sync_folder", "."))
    assert states_of(*made, Call("write", "a", 0, b"x")) == {(("a", b""),), (("a", b"x"),)}
    assert states_of(*made, Call("write", "a", 0, b"x"), Call("sync", "a")) == {(("a", b"x"),)}
    other = (Call("write", "a", 0, b"x"), Call("write", "b", 0, b"y"), Call("sync", "b"))
    assert (("a", b""),) in states_of(*made, *other)


def test_a_name_may_be_missing_until_its_folder_was_synced() -> None:
    written = (Call("write", "a", 0, b"x"), Call("sync", "a"))
    assert states_of(*written) == {(), (("a", b"x"),)}
    moved = (Call("sync_folder", "."), Call("rename", "a", 0, b"b"))
    assert states_of(*written, *moved) == {(("a", b"x"),), (("b", b"x"),)}
    assert states_of(*written, *moved, Call("sync_folder", ".")) == {(("b", b"x"),)}


def test_what_a_failed_sync_should_have_kept_is_not_kept_by_the_next_one() -> None:
    made = (Call("create", "a"), Call("sync_folder", "."), Call("write", "a", 0, b"x"), Call("failed_sync", "a"))
    assert states_of(*made, Call("sync", "a")) == {(("a", b""),), (("a", b"x"),)}
    assert states_of(*made, Call("write", "a", 0, b"y"), Call("sync", "a")) == {(("a", b"y"),)}
