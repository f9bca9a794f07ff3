"""Power loss at any moment: of what was not synced any part may be missing, of what was acknowledged nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.faults import Call, Crash, Faults, Timeline
from tests.crash.ring.children import record
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.power import Tally, crashes, survive_all
from tests.crash.ring.rooms import room
from tests.crash.ring.workload import Look, looks

STATES = 2_000
MANY_STATES = 20_000
SHARES = 4


@pytest.fixture(scope="module")
def expected() -> list[Look]:
    return looks()


@pytest.fixture
def folder() -> Iterator[Path]:
    with room() as place:
        yield place


def ring(folder: Path, expected: list[Look], durability: str, states: int, share: int, shares: int) -> Tally:
    with Nursery() as nursery:
        (trace,) = nursery.do(record, folder / "recorded", Faults(record=True), durability)
    found = crashes(trace, states, seed=share, share=share, shares=shares)
    return survive_all(found, folder / "found", expected, may_lose=durability == "relaxed")


@pytest.mark.parametrize("share", range(SHARES))
def test_a_power_cut_takes_back_nothing_that_was_acknowledged_and_leaves_nothing_half(
    folder: Path, expected: list[Look], share: int
) -> None:
    tally = ring(folder, expected, "full", STATES, share, SHARES)
    assert tally.states == STATES // SHARES
    assert tally.lost == 0
    assert tally.ahead > 0  # so the cuts do come in the middle of things


def test_a_power_cut_with_relaxed_durability_takes_back_only_the_newest_steps_and_damages_nothing(
    folder: Path, expected: list[Look]
) -> None:
    tally = ring(folder, expected, "relaxed", STATES // 4, 0, 1)
    assert tally.states == STATES // 4
    assert tally.lost > 0, "relaxed is as safe as full, or this ring sees nothing"


@pytest.mark.exhaustive
@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_no_power_cut_can_be_found_that_does_more_than_is_said(
    folder: Path, expected: list[Look], durability: str
) -> None:
    tally = ring(folder, expected, durability, MANY_STATES, 0, 1)
    assert tally.states == MANY_STATES
    assert bool(tally.lost) == (durability == "relaxed")


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
