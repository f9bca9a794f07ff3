"""Interrupts, full disks, wrong clocks and many threads: a run ends as it should, and the next goes on from there."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import Place, room
from tests.crash.runs.agent import KINDS, STRATEGIES, Outside, Told, go
from tests.crash.runs.troubles import die_and_stay, fill_disk, interrupt, jump_clocks, work_in_threads


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "store", request.param)


def clear(place: Place) -> None:
    place.clear()
    (place.folder.parent / "outside").unlink(missing_ok=True)


def interrupted(nursery: Nursery, place: Place, name: str, seeds: range, *, enough: int | None = None) -> int:
    struck = 0
    for seed in seeds:
        if enough is not None and struck > enough:
            break
        clear(place)
        struck += nursery.do(interrupt, place, seed, random.Random(seed).choice(list(STRATEGIES)), name)[-1]
    return struck


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_run_interrupted_at_random_goes_on_at_once_and_repeats_nothing(
    nursery: Nursery, place: Place, name: str
) -> None:
    # On a busy machine most come too late, on an idle one too.
    assert interrupted(nursery, place, name, range(60), enough=5) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_hundreds_of_interrupts_repeat_nothing(nursery: Nursery, place: Place, name: str) -> None:
    assert interrupted(nursery, place, name, range(100, 500)) > 200


def filled(nursery: Nursery, place: Place, strategy: str, share: int) -> int:
    clear(place)
    total = nursery.do(go, Told(place, strategy))[-1]
    met = 0
    for number in range(1 + random.Random(strategy).randrange(share), total, share):
        clear(place)
        born = nursery.run(fill_disk, place, strategy, number)
        assert born.ended == 0, f"full from storage call {number}: {born.trouble}"
        met += born.said[-1]
    return met


@pytest.mark.parametrize("strategy", ["always", "never"])
def test_a_disk_that_fills_up_ends_the_run_and_the_next_one_goes_on(
    nursery: Nursery, place: Place, strategy: str
) -> None:
    assert filled(nursery, place, strategy, 12) > 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_disk_that_fills_up_at_any_storage_call_repeats_nothing(
    nursery: Nursery, place: Place, strategy: str
) -> None:
    assert filled(nursery, place, strategy, 1) > 20


def threads_killed(nursery: Nursery, place: Place, after: list[int]) -> None:
    threads, each = 16, 3
    for die_after in after:
        clear(place)
        assert nursery.run(work_in_threads, place, die_after, threads, each).ended == -9
        (results,) = nursery.do(work_in_threads, place, None, threads, each)
        assert results == [[f"result {thread}.{number}" for number in range(each)] for thread in range(threads)]
        lines = Counter(Outside(place.folder.parent).lines())
        assert set(lines.values()) == {1}, f"killed after {die_after}: {lines}"
        assert len(lines) == threads * each


def test_threads_killed_in_the_middle_get_each_its_own_outcome(nursery: Nursery, place: Place) -> None:
    threads_killed(nursery, place, [1, 9, 16, 30, 47])


@pytest.mark.exhaustive
def test_threads_killed_after_any_number_of_tools_get_each_its_own_outcome(nursery: Nursery, place: Place) -> None:
    threads_killed(nursery, place, list(range(1, 48)))


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("neighbour", [-1, 1])
def test_a_calendar_that_jumps_steals_no_lease_and_changes_no_order(
    nursery: Nursery, place: Place, hours: int, neighbour: int
) -> None:
    assert nursery.do(jump_clocks, place, hours, neighbour) == []


def test_a_process_that_was_killed_and_not_waited_for_is_dead(nursery: Nursery, place: Place) -> None:
    assert nursery.do(die_and_stay, place) == ["paid"]
