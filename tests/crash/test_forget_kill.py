"""Killed before every storage call while contents of files are forgotten: each is there, or is said to be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.ring import forgetful
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import KINDS, Place, room
from tests.faults import Faults

KILLED = -9


def kill_all(nursery: Nursery, folder: Path, kind: str, *, step: int) -> int:
    """A child for each call, until one gets through alive. How many died."""
    place, kept = Place(folder / "ring", kind), folder / "kept"
    trees = dict(nursery.do(forgetful.prepare, place, folder / "work", kept))
    for died, number in enumerate(range(1 + step // 2, 100_000, step)):
        born = nursery.run(forgetful.forget, place, Faults(kill_at=number), kept)
        if born.ended == 0:
            assert born.said == ["done"]
            return died
        assert born.ended == KILLED, born.trouble
        found = nursery.run(forgetful.inspect, place, trees)
        assert found.ended == 0, f"{kind}: killed at storage call {number}: {found.trouble}"
    raise AssertionError


@pytest.mark.parametrize(("kind", "step"), [("sqlite", 397), ("files", 97)])
def test_a_kill_leaves_contents_or_the_record_that_they_are_forgotten(nursery: Nursery, kind: str, step: int) -> None:
    with room() as folder:
        assert kill_all(nursery, folder, kind, step=step) > 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_before_any_storage_call_leaves_contents_or_the_record(nursery: Nursery, kind: str) -> None:
    with room() as folder:
        assert kill_all(nursery, folder, kind, step=1) > 100
