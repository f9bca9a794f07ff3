"""kill -9 at any storage call around waiting: the answer is kept, the effect happens once, a stop stays a stop."""

import random
import signal
from collections.abc import Iterator

import pytest

from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import Place, room
from tests.crash.runs.agent import KINDS, Outside, Told
from tests.crash.runs.waits import examine, go

SAMPLE = 25  # of the storage calls, one in so many is tried by default; `-m exhaustive` tries all


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "store", request.param)


def clear(place: Place) -> None:
    place.clear()
    (place.folder.parent / "outside").unlink(missing_ok=True)


def live(nursery: Nursery, told: Told) -> tuple[int, int]:
    """One child; how it ended, and how many storage calls it made."""
    born = nursery.run(go, told)
    assert not born.trouble, born.trouble
    return born.ended, born.said[-1] if born.said and isinstance(born.said[-1], int) else 0


def undisturbed(nursery: Nursery, place: Place) -> int:
    """How many storage calls there are."""
    clear(place)
    ended, calls = live(nursery, Told(place))
    assert ended == 0
    with place.open() as store:
        assert examine(store, Outside(place.folder.parent))
    return calls


def kill_at(nursery: Nursery, place: Place, *numbers: int) -> None:
    """Killed at these storage calls, one after the other, and then left in peace until the end."""
    clear(place)
    outside = Outside(place.folder.parent)
    told = [*[Told(place, kill_at=number) for number in numbers], *[Told(place)] * 6]
    for each in told:
        ended, _ = live(nursery, each)
        assert ended in (0, -signal.SIGKILL)
        with place.open() as store:
            if examine(store, outside):
                return
    message = f"killed at {numbers} it never came to its end"
    raise AssertionError(message)


def test_a_wait_killed_at_any_storage_call_loses_no_answer_and_does_nothing_twice(
    nursery: Nursery, place: Place
) -> None:
    total = undisturbed(nursery, place)
    first = random.Random(place.kind).randrange(1, SAMPLE)
    for number in range(first, total + 1, SAMPLE):
        kill_at(nursery, place, number)


@pytest.mark.exhaustive
def test_no_storage_call_at_all_can_be_found_at_which_a_kill_loses_an_answer(nursery: Nursery, place: Place) -> None:
    for number in range(1, undisturbed(nursery, place) + 1):
        kill_at(nursery, place, number)


@pytest.mark.exhaustive
def test_no_second_and_third_kill_loses_an_answer(nursery: Nursery, place: Place) -> None:
    total = undisturbed(nursery, place)
    for seed in range(100):
        chance = random.Random(seed)
        kill_at(nursery, place, *[chance.randrange(1, total) for _ in range(3)])
