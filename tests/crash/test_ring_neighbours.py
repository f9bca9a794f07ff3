"""Several processes on one store, opened, written, closed and killed at once: no log is called damaged that is not."""

import os
import random
import signal
from collections.abc import Iterator

import pytest

from tests.crash.ring.children import shorten_log
from tests.crash.ring.nursery import Nursery, Say
from tests.crash.ring.rooms import Place, room

PROCESSES = 3
ROUNDS = 14


@pytest.fixture
def place() -> Iterator[Place]:
    with room() as folder:
        folder.joinpath("ring").mkdir()
        yield Place(folder / "ring")


def live_beside_others(say: Say, place: Place, seed: int) -> None:
    """Forks neighbours; each opens the store again and again, and some end by being killed."""
    shorten_log()
    pids = []
    for number in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            os._exit(_neighbour(say, place, random.Random(seed * 100 + number), number))
        pids.append(pid)
    ends = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    say(ends)


def _neighbour(say: Say, place: Place, chosen: random.Random, number: int) -> int:
    for _ in range(ROUNDS):
        try:
            with place.open() as store:
                session = store.session(f"s{number}")
                for _ in range(chosen.randrange(12)):
                    session.commit({"noise": chosen.randbytes(chosen.randrange(6_000))})
                if chosen.random() < 0.05:
                    os.kill(os.getpid(), signal.SIGKILL)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear it
            say(f"{type(error).__name__}: {error}")
            return 1
    return 0


@pytest.mark.parametrize("seed", range(3))
def test_processes_that_share_a_store_never_take_one_anothers_log_for_damaged(
    nursery: Nursery, place: Place, seed: int
) -> None:
    *said, ends = nursery.do(live_beside_others, place, seed)
    assert not said
    assert ends <= {0, -9}
    with place.open() as store:
        assert store.verify().ok
