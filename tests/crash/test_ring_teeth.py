"""The rings themselves: run against stores that are broken on purpose, each of them must go red."""

from collections.abc import Iterator

import pytest

from tests.crash.ring.broken import believe_everything, ignore_notes, work_head_first
from tests.crash.ring.children import inspect, record
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.power import crashes, forgotten_in, survive_all
from tests.crash.ring.rooms import KINDS, Place, room
from tests.crash.ring.rot import Damage, image, leave, read_all
from tests.crash.ring.suffering import forget_syncs
from tests.crash.ring.workload import Look, looks
from tests.faults import Faults

KILLED = -9


@pytest.fixture(scope="module")
def expected() -> list[Look]:
    return looks()


@pytest.fixture
def place() -> Iterator[Place]:
    with room() as folder:
        yield Place(folder / "ring")


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_only_believes_it_syncs_is_found_out_by_a_power_cut(
    nursery: Nursery, place: Place, expected: list[Look], kind: str
) -> None:
    place = place._replace(kind=kind)
    (trace,) = nursery.do(record, place, Faults(record=True, lie=True), "full")
    with pytest.raises(AssertionError):
        survive_all(crashes(trace, 300, seed=0), place, expected)


def test_a_head_that_moves_before_its_checkpoint_is_written_is_found_out_by_a_kill(
    nursery: Nursery, place: Place
) -> None:
    red = 0
    for number in range(20, 120):
        born = nursery.run(work_head_first, place, Faults(kill_at=number), "full")
        assert born.ended == KILLED, born.trouble
        red += nursery.run(inspect, place, born.said[-1] if born.said else 0).ended != 0
        if red:
            break
    assert red


def test_a_failed_sync_that_is_taken_for_done_is_found_out_by_a_power_cut(
    nursery: Nursery, place: Place, expected: list[Look]
) -> None:
    traces = nursery.do(forget_syncs, place, expected, list(range(8, 30, 4)), True)
    with pytest.raises(AssertionError):
        forgotten_in(traces, place, expected, cuts=6, chances=1)


def test_a_store_that_verifies_nothing_is_found_out_by_a_flipped_bit(
    nursery: Nursery, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, truth = nursery.do(leave, place, False)
    damage = Damage(place)
    start = damage.find(image()[8_000:8_400])
    read_all(damage.flip("store.db", start, 1), truth)
    believe_everything(monkeypatch)
    with pytest.raises(AssertionError, match="damage became a value"):
        read_all(damage.flip("store.db", start, 1), truth)


def test_a_store_that_keeps_no_note_of_its_log_is_found_out_by_a_flipped_bit_in_it(
    nursery: Nursery, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, truth = nursery.do(leave, place, True)
    damage = Damage(place)
    middle = damage.size("store.db-wal") // 2
    read_all(damage.flip("store.db-wal", middle, 1), truth)
    ignore_notes(monkeypatch)
    with pytest.raises(AssertionError, match="damage became a value"):
        read_all(damage.flip("store.db-wal", middle, 1), truth)
