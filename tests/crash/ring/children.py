"""What the children of the nursery do. Each mounts its own faults before it opens its first store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backstay.backends.sqlite import group_commit, wal
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.crash.ring.workload import Day, go_on, judge, judge_bundle, looks, shorten
from tests.faults import Faults, Posix, mount


def shorten_log() -> None:
    """So that it is moved into the store, and begun anew, many times in a day."""
    wal.WAL_BYTES = 48 * 1024
    group_commit._CHECKPOINT_PAGES = 8
    group_commit._RESTART_PAGES = 24


@contextmanager
def beneath(place: Place, faults: Faults) -> Iterator[None]:
    """Everything that is written in a place meets the switch."""
    shorten_log()
    place.clear()
    with mount(faults), Posix(faults, place.folder):
        yield


def work(say: Say, place: Place, faults: Faults, durability: str = "full") -> None:
    """The whole day; each step is said once it has returned."""
    with beneath(place, faults):
        Day(lambda: place.open(durability), place.bundle).run(say)


def inspect(say: Say, place: Place, least: int) -> None:
    """After a kill: what was acknowledged is there, nothing is half there, and work goes on."""
    judge_bundle(place.bundle, looks(), least)
    with place.open() as store:
        verdict = judge(store, looks())
        assert {least, least + 1} & set(verdict.steps), (
            f"step {least} was acknowledged, and the store looks as after {verdict.steps}: "
            + "; ".join(shorten(verdict.found))
        )
        go_on(store)
    say(verdict.steps)


def record(say: Say, place: Place, faults: Faults, durability: str) -> None:
    """The whole day with every storage call written down, acknowledgements among them."""
    with beneath(place, faults):
        Day(lambda: place.open(durability), place.bundle).run(faults.mark)
    say(faults.trace)
