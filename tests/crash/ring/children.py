"""What the children of the nursery do. Each mounts its own faults before it opens its first store."""

from __future__ import annotations

import shutil
from pathlib import Path

import holdfast
from holdfast.backends.sqlite import desk, wal
from holdfast.store import Store
from holdfast.testing.faults import Faults, Posix, mount
from tests.crash.ring.nursery import Say
from tests.crash.ring.workload import Day, Look, go_on, judge, judge_bundle, path_in, shorten


def small_log() -> None:
    """A log so short that it is moved into the store, and begun anew, several times in a day."""
    wal.WAL_BYTES = 48 * 1024
    desk._CHECKPOINT_PAGES = 8
    desk._RESTART_PAGES = 24


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def opener(folder: Path, durability: str) -> Store:
    return holdfast.open(path_in(folder), durability=durability)


def work(say: Say, folder: Path, faults: Faults, durability: str = "full") -> None:
    """The whole day; each step is said once it has returned."""
    small_log()
    fresh(folder)
    with mount(faults), Posix(faults, folder):
        Day(lambda: opener(folder, durability), folder).run(say)


def inspect(say: Say, folder: Path, expected: list[Look], least: int) -> None:
    """After a kill: what was acknowledged is there, nothing is half there, and work goes on."""
    judge_bundle(folder, expected, least)
    with opener(folder, "full") as store:
        verdict = judge(store, expected)
        assert {least, least + 1} & set(verdict.steps), (
            f"step {least} was acknowledged, and the store looks as after {verdict.steps}: "
            + "; ".join(shorten(verdict.found))
        )
        go_on(store)
    say(verdict.steps)


def record(say: Say, folder: Path, faults: Faults, durability: str) -> None:
    """The whole day with every storage call written down, acknowledgements among them."""
    small_log()
    fresh(folder)
    with mount(faults), Posix(faults, folder):
        Day(lambda: opener(folder, durability), folder).run(faults.mark)
    say(faults.trace)
