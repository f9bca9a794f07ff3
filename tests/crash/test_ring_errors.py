"""A disk that says no: nothing acknowledged is lost, reading goes on, and writing too once the disk is well again."""

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.faults import Call, Timeline
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.power import survive_all
from tests.crash.ring.rooms import room
from tests.crash.ring.suffering import count, forget_syncs, suffer
from tests.crash.ring.workload import Look, looks

ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as warm:
        yield warm


@pytest.fixture(scope="module")
def expected() -> list[Look]:
    return looks()


@pytest.fixture
def folder() -> Iterator[Path]:
    with room() as place:
        yield place / "ring"


def ring(nursery: Nursery, folder: Path, expected: list[Look], error: int, *, lasting: bool, step: int) -> int:
    (calls,) = nursery.do(count, folder)
    tried = list(range(1 + error % step, calls + 1, step))
    said = nursery.do(suffer, folder, expected, error, tried, lasting)
    assert [number for number, _ in said] == tried
    return sum(1 for _, struck in said if struck)


@pytest.mark.parametrize("error", ERRORS)
def test_a_disk_that_fails_for_a_while_costs_nothing_but_the_calls_it_refused(
    nursery: Nursery, folder: Path, expected: list[Look], error: str
) -> None:
    assert ring(nursery, folder, expected, ERRORS[error], lasting=True, step=4) > 60


@pytest.mark.parametrize("error", ERRORS)
def test_a_single_failing_call_is_never_taken_for_done(
    nursery: Nursery, folder: Path, expected: list[Look], error: str
) -> None:
    assert ring(nursery, folder, expected, ERRORS[error], lasting=False, step=8) > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("lasting", [True, False])
@pytest.mark.parametrize("error", ERRORS)
def test_no_call_at_all_can_be_found_whose_failure_costs_more(
    nursery: Nursery, folder: Path, expected: list[Look], error: str, lasting: bool
) -> None:
    assert ring(nursery, folder, expected, ERRORS[error], lasting=lasting, step=1) > 200


def after_failure(trace: list[Call], count: int, seed: int) -> list[int]:
    failed = next(number for number, call in enumerate(trace) if call.verb == "failed_sync")
    marks = [number for number, call in enumerate(trace) if call.verb == "mark" and number > failed]
    return sorted(random.Random(seed).sample(marks, min(count, len(marks))))


def forgotten(nursery: Nursery, folder: Path, expected: list[Look], syncs: list[int], cuts: int, chances: int) -> int:
    """A sync fails once; the system forgets what it should have kept, as Linux does; later the power is cut."""
    states = 0
    for number, trace in nursery.do(forget_syncs, folder / "recorded", expected, syncs):
        chosen = random.Random(number)
        wanted = after_failure(trace, cuts, number)
        for moment in Timeline(trace):
            if moment.number in wanted:
                nothing = moment.crash(lambda *_: False, names=(), how="nothing that was not synced")
                found = [nothing, *(moment.chance(chosen) for _ in range(chances))]
                states += survive_all(iter(found), folder / "found", expected).states
    return states


def test_a_failed_sync_is_never_made_good_by_trying_it_again(
    nursery: Nursery, folder: Path, expected: list[Look]
) -> None:
    assert forgotten(nursery, folder, expected, list(range(1, 99, 2)), 4, 1) > 200


@pytest.mark.exhaustive
def test_no_failed_sync_can_be_found_that_is_made_good_by_trying_it_again(
    nursery: Nursery, folder: Path, expected: list[Look]
) -> None:
    assert forgotten(nursery, folder, expected, list(range(1, 99)), 99, 8) > 2_000
