"""A disk that says no: nothing acknowledged is lost, reading goes on, and writing too once the disk is well again."""

import errno
from collections.abc import Iterator

import pytest

from tests.crash.ring.nursery import Nursery
from tests.crash.ring.power import forgotten_in
from tests.crash.ring.rooms import KINDS, Place, room
from tests.crash.ring.suffering import count, forget_syncs, suffer
from tests.crash.ring.workload import Look, looks

ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}


@pytest.fixture(scope="module")
def expected() -> list[Look]:
    return looks()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "ring", request.param)


def ring(nursery: Nursery, place: Place, expected: list[Look], error: int, *, lasting: bool, step: int) -> int:
    (calls,) = nursery.do(count, place)
    tried = list(range(1 + error % step, calls + 1, step))
    said = nursery.do(suffer, place, expected, error, tried, lasting)
    assert [number for number, _ in said] == tried
    return sum(1 for _, struck in said if struck)


@pytest.mark.parametrize("error", ERRORS)
def test_a_disk_that_fails_for_a_while_costs_nothing_but_the_calls_it_refused(
    nursery: Nursery, place: Place, expected: list[Look], error: str
) -> None:
    assert ring(nursery, place, expected, ERRORS[error], lasting=True, step=43) > 2


@pytest.mark.parametrize("error", ERRORS)
def test_a_single_failing_call_is_never_taken_for_done(
    nursery: Nursery, place: Place, expected: list[Look], error: str
) -> None:
    assert ring(nursery, place, expected, ERRORS[error], lasting=False, step=47) > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("error", ERRORS)
def test_no_call_at_all_can_be_found_whose_failure_costs_more(
    nursery: Nursery, place: Place, expected: list[Look], error: str, lasting: bool
) -> None:
    assert ring(nursery, place, expected, ERRORS[error], lasting=lasting, step=1) > 40


def forgotten(nursery: Nursery, place: Place, expected: list[Look], syncs: list[int], cuts: int, chances: int) -> int:
    return forgotten_in(nursery.do(forget_syncs, place, expected, syncs), place, expected, cuts, chances)


def test_a_failed_sync_is_never_made_good_by_trying_it_again(
    nursery: Nursery, place: Place, expected: list[Look]
) -> None:
    assert forgotten(nursery, place, expected, list(range(1, 99, 9)), 3, 1) > 15


@pytest.mark.exhaustive
def test_no_failed_sync_can_be_found_that_is_made_good_by_trying_it_again(
    nursery: Nursery, place: Place, expected: list[Look]
) -> None:
    assert forgotten(nursery, place, expected, list(range(1, 99)), 99, 8) > 1_000
