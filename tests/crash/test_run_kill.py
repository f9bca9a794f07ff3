"""kill -9 at any moment of a run: nothing recorded as done is done again, and nothing done is unknown."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import Place, room
from tests.crash.runs.agent import KINDS, STRATEGIES, Told, go, places_to_die, through

SAMPLE = 8  # of the places to die at, one in so many is tried by default; `-m exhaustive` tries all

Child = Callable[[Told], tuple[list[Any], int]]


@pytest.fixture
def child(nursery: Nursery) -> Child:
    def run(told: Told) -> tuple[list[Any], int]:
        born = nursery.run(go, told)
        assert not born.trouble, born.trouble
        return born.said, born.ended

    return run


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "store", request.param)


def clear(place: Place) -> None:
    place.clear()
    (place.folder.parent / "outside").unlink(missing_ok=True)


def storage_calls(child: Child, place: Place, strategy: str) -> int:
    """How many storage calls a run takes that nothing disturbs."""
    clear(place)
    said, ended = child(Told(place, strategy))
    assert ended == 0
    return int(said[-1])


def chosen(total: list[Any], share: int, seed: str) -> list[Any]:
    return total[random.Random(seed).randrange(share) :: share]


def kill_at_moments(child: Child, place: Place, strategy: str, moments: list[tuple[str, str]]) -> None:
    for moment in moments:
        clear(place)
        kills = through(child, Told(place, strategy, die_at=moment), again=lambda _: None)
        assert kills == 1, f"{moment} was never reached"


def kill_at_storage_calls(child: Child, place: Place, strategy: str, numbers: list[int]) -> None:
    for number in numbers:
        clear(place)
        kills = through(child, Told(place, strategy, kill_at=number), again=lambda _: None)
        assert kills == 1, f"storage call {number} was never made"


def kill_twice(
    child: Child, place: Place, strategy: str, firsts: list[Any], seconds: Callable[[Any], list[int]]
) -> None:
    """A first kill anywhere, and a second one while the run is being resumed."""
    for first in firsts:
        for second in seconds(first):
            clear(place)
            told = (
                Told(place, strategy, die_at=first)
                if isinstance(first, tuple)
                else Told(place, strategy, kill_at=first)
            )
            again = Told(place, strategy, kill_at=second)
            through(child, told, again=lambda attempt, again=again: again if attempt == 1 else None)  # type: ignore[misc]


@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=pytest.mark.quick if name == "always" else ()) for name in STRATEGIES]
)
def test_a_run_killed_at_any_moment_of_its_loop_does_nothing_twice(child: Child, place: Place, strategy: str) -> None:
    share = SAMPLE // 2 if strategy == "always" else SAMPLE * 3
    kill_at_moments(child, place, strategy, chosen(places_to_die(), share, strategy))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_killed_at_any_storage_call_does_nothing_twice(child: Child, place: Place, strategy: str) -> None:
    total = storage_calls(child, place, strategy)
    share = SAMPLE * 2 if strategy == "always" else SAMPLE * 6
    kill_at_storage_calls(child, place, strategy, chosen(list(range(1, total + 1)), share, strategy))


@pytest.mark.parametrize("strategy", ["always", "never", "every 5", "2 or tools"])
def test_a_run_killed_again_while_it_resumes_does_nothing_twice(child: Child, place: Place, strategy: str) -> None:
    chance = random.Random(strategy)
    firsts = chosen(places_to_die(), SAMPLE * 3, strategy)
    kill_twice(child, place, strategy, firsts, lambda _: [chance.randrange(1, 12), chance.randrange(12, 60)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_moment_at_all_can_be_found_at_which_a_kill_repeats_anything(
    child: Child, place: Place, strategy: str
) -> None:
    kill_at_moments(child, place, strategy, places_to_die())


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_storage_call_at_all_can_be_found_at_which_a_kill_repeats_anything(
    child: Child, place: Place, strategy: str
) -> None:
    kill_at_storage_calls(child, place, strategy, list(range(1, storage_calls(child, place, strategy) + 1)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_second_kill_at_any_storage_call_of_the_resume_repeats_anything(
    child: Child, place: Place, strategy: str
) -> None:
    chance = random.Random(strategy)
    total = storage_calls(child, place, strategy)
    for first in [*chosen(places_to_die(), 3, strategy), *chance.sample(range(1, total), 8)]:
        kill_twice(child, place, strategy, [first], lambda _: [*range(1, 20), *chance.sample(range(20, 90), 8)])


@pytest.mark.exhaustive
def test_a_run_killed_again_and_again_comes_to_its_end(child: Child, place: Place) -> None:
    for seed in range(150):
        chance = random.Random(seed)
        strategy = chance.choice(list(STRATEGIES))
        clear(place)
        through(
            child,
            Told(place, strategy, kill_at=chance.randrange(1, 120)),
            again=lambda _, chance=chance, strategy=strategy: Told(  # type: ignore[misc]
                place, strategy, kill_at=chance.randrange(8, 150)
            ),
        )
