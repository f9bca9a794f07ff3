"""Power loss while files are captured: a checkpoint that was acknowledged has its files whole, all others are gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.ring.captures import record, survive
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.power import crashes
from tests.crash.ring.rooms import KINDS, Place, room
from tests.faults import Faults

pytestmark = pytest.mark.usefixtures("alone")

STEPS, STATES, MANY_STATES = 4, 30, 1_500


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "ring", request.param)


def cut(nursery: Nursery, place: Place, work: Path, states: int) -> None:
    work.mkdir()
    (trace,) = nursery.do(record, place, Faults(record=True), work, STEPS)
    ahead = [survive(crash, place) for crash in crashes(trace, states, seed=1)]
    assert len(ahead) == states
    assert any(ahead), "so the cuts do come in the middle of things"


def test_a_power_cut_takes_no_file_of_a_checkpoint(nursery: Nursery, place: Place, tmp_path: Path) -> None:
    cut(nursery, place, tmp_path / "work", STATES)


@pytest.mark.exhaustive
def test_in_many_states(nursery: Nursery, place: Place, tmp_path: Path) -> None:
    cut(nursery, place, tmp_path / "work", MANY_STATES)
