"""Killed before every single storage call, one after the other: what was acknowledged is there, nothing is half."""

from collections.abc import Callable, Iterator

import pytest

from tests.crash.ring.children import inspect, work
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import KINDS, Place, room
from tests.faults import Faults

SHARES = 4  # so that both workers have something to do
KILLED = -9


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "ring", request.param)


def kill_all(
    nursery: Nursery,
    place: Place,
    faults: Callable[[int], Faults],
    *,
    start: int,
    step: int,
    durability: str = "full",
) -> int:
    """A child for each call, until one gets through the day alive. How many died."""
    for died, number in enumerate(range(start, 100_000, step)):
        born = nursery.run(work, place, faults(number), durability)
        if born.ended == 0:
            return died
        assert born.ended == KILLED, born.trouble
        acknowledged = born.said[-1] if born.said else 0
        found = nursery.run(inspect, place, acknowledged)
        where = f"{place}: killed at storage call {number}, acknowledged up to step {acknowledged}"
        assert found.ended == 0, f"{where}: {found.trouble}"
    raise AssertionError


@pytest.mark.parametrize("share", range(SHARES))
def test_a_process_killed_before_any_storage_call_loses_nothing_that_was_acknowledged(
    nursery: Nursery, place: Place, share: int
) -> None:
    faults = lambda at: Faults(kill_at=at)  # noqa: E731
    # Every eleventh call, so that the whole command stays within its minutes; all of them are tried below.
    died = kill_all(nursery, place, faults, start=1 + 11 * share, step=11 * SHARES)
    assert died > {"sqlite": 300, "files": 100}[place.kind] // (11 * SHARES)


def test_a_process_killed_in_the_middle_of_a_write_loses_nothing_that_was_acknowledged(
    nursery: Nursery, place: Place
) -> None:
    assert kill_all(nursery, place, lambda at: Faults(tear_at=at), start=2, step=23) > 3


def test_a_killed_process_loses_nothing_with_relaxed_durability_either(nursery: Nursery, place: Place) -> None:
    faults = lambda at: Faults(kill_at=at)  # noqa: E731
    assert kill_all(nursery, place, faults, start=3, step=31, durability="relaxed") > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("durability", ["full", "relaxed"])
def test_no_call_at_all_can_be_found_at_which_a_kill_or_a_torn_write_loses_anything(
    nursery: Nursery, place: Place, durability: str
) -> None:
    for faults in (lambda at: Faults(kill_at=at), lambda at: Faults(tear_at=at)):
        assert kill_all(nursery, place, faults, start=1, step=1, durability=durability) > 80
