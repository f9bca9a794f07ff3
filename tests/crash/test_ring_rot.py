"""Bytes that rot on the disk: an error or the right value, never a wrong one and never nothing."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast.errors import CorruptionError, HoldfastError
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import room
from tests.crash.ring.rot import NAMES, PAGE_BYTES, Damage, image, leave, read_all, step_of
from tests.crash.ring.workload import Look, go_on, look, path_in

STORE, LOG, NOTE = "store.db", "store.db-wal", "store.db-tail"
FLIPS = 400


class Left(NamedTuple):
    damage: Damage
    looks: list[Look]

    @property
    def truth(self) -> Look:
        return self.looks[-1]


def left(folder: Path, *, cut: bool) -> Left:
    with Nursery() as nursery:
        said = nursery.do(leave, folder / "original", cut)
    return Left(Damage(folder / "original", folder / "damaged"), said)


@pytest.fixture(scope="module")
def closed() -> Iterator[Left]:
    with room() as folder:
        yield left(folder, cut=False)


@pytest.fixture(scope="module")
def cut() -> Iterator[Left]:
    with room() as folder:
        yield left(folder, cut=True)


def spread(size: int, count: int) -> list[int]:
    """Places over all pages, the header of the file among them."""
    chosen = random.Random(size)
    step = max(1, size // count)
    return sorted({*range(16, 100, 3), *(min(size - 1, at + chosen.randrange(step)) for at in range(0, size, step))})


def refused(place: Path, truth: Look, what: str) -> int:
    try:
        return read_all(place, truth).refused
    except AssertionError as error:
        message = f"{what}: {error}"
        raise AssertionError(message) from error


def test_without_damage_everything_is_read(closed: Left, cut: Left) -> None:
    for one in (closed, cut):
        assert read_all(one.damage.copy(), one.truth).whole == set(NAMES)
    assert cut.damage.size(LOG) > 20 * PAGE_BYTES


def test_a_flipped_bit_in_a_store_is_never_a_wrong_value_nor_a_session_that_seems_not_to_exist(closed: Left) -> None:
    places = spread(closed.damage.size(STORE), FLIPS)
    noticed = sum(refused(closed.damage.flip(STORE, at, at % 8), closed.truth, f"byte {at}") > 0 for at in places)
    assert noticed > len(places) * 0.5


@pytest.mark.exhaustive
def test_no_byte_of_a_store_can_be_found_whose_damage_is_taken_for_truth(closed: Left) -> None:
    for at in range(closed.damage.size(STORE)):
        refused(closed.damage.flip(STORE, at, (at * 7) % 8), closed.truth, f"byte {at}")


def test_a_flipped_bit_in_the_log_never_takes_back_what_was_acknowledged_without_a_word(cut: Left) -> None:
    places = [*range(32), *spread(cut.damage.size(LOG), FLIPS // 2)]
    for at in places:
        place = cut.damage.flip(LOG, at, at % 8)
        with pytest.raises(CorruptionError):
            holdfast.open(path_in(place))
        assert (place / LOG).stat().st_size, "the evidence is gone"


@pytest.mark.exhaustive
def test_no_byte_of_the_log_can_be_found_whose_damage_is_taken_for_truth(cut: Left) -> None:
    for at in range(cut.damage.size(LOG)):
        refused(cut.damage.flip(LOG, at, (at * 7) % 8), cut.truth, f"byte {at} of the log")


def test_a_damaged_note_about_the_log_costs_nothing(cut: Left) -> None:
    for at in range(cut.damage.size(NOTE)):
        assert read_all(cut.damage.flip(NOTE, at, at % 8), cut.truth).whole == set(NAMES)
    assert read_all(cut.damage.drop(NOTE), cut.truth).whole == set(NAMES)


def test_whoever_is_told_of_a_damaged_log_can_go_on_without_the_newest_checkpoints(cut: Left) -> None:
    newest = []
    for at in spread(cut.damage.size(LOG), 12)[-10:]:
        place = cut.damage.flip(LOG, at, 3)
        with pytest.raises(CorruptionError, match=f"delete {NOTE} to go on"):
            holdfast.open(path_in(place))
        (place / NOTE).unlink()
        with holdfast.open(path_in(place)) as store:
            newest.append(step_of(look(store), cut.looks))
            go_on(store)
    assert len(set(newest)) > 5  # damage further back costs more


def test_a_damaged_head_of_the_log_can_be_left_behind_too(cut: Left) -> None:
    place = cut.damage.flip(LOG, 17, 0)
    with pytest.raises(CorruptionError, match="or delete it"):
        holdfast.open(path_in(place))
    (place / LOG).unlink()
    with holdfast.open(path_in(place)) as store:
        assert step_of(look(store), cut.looks) < len(cut.looks) - 1
        go_on(store)


def test_a_deleted_log_takes_back_the_newest_checkpoints_and_nothing_else(cut: Left) -> None:
    with holdfast.open(path_in(cut.damage.drop(LOG))) as store:
        found = step_of(look(store), cut.looks)
        assert 0 < found < len(cut.looks) - 1
        assert store.verify().ok
        go_on(store)


@pytest.mark.parametrize("name", [STORE, LOG])
def test_a_file_cut_off_at_any_length_is_an_error_where_it_matters(closed: Left, cut: Left, name: str) -> None:
    one = closed if name == STORE else cut
    size = one.damage.size(name)
    chosen = random.Random(3)
    lengths = [1, 31, 32, 99, 100, 511, *range(PAGE_BYTES, size, PAGE_BYTES), *chosen.sample(range(size), 40)]
    for length in lengths:
        if name == LOG and length < 32:
            continue  # what is shorter than its header is no log: the same as deleting it
        count = refused(one.damage.cut(name, length), one.truth, f"{name} cut off at {length}")
        assert count, f"{name} cut off at {length}, and nobody noticed"


def test_a_page_of_zeros_is_an_error_where_it_matters(closed: Left, cut: Left) -> None:
    for at in range(0, closed.damage.size(STORE), PAGE_BYTES):
        refused(closed.damage.write(STORE, at, bytes(PAGE_BYTES)), closed.truth, f"zeros at {at}")
    for at in range(PAGE_BYTES, cut.damage.size(LOG), PAGE_BYTES):
        assert refused(cut.damage.write(LOG, at, bytes(PAGE_BYTES)), cut.truth, f"zeros at {at} of the log")


def test_a_log_whose_store_is_gone_or_empty_is_not_thrown_away(cut: Left) -> None:
    for place in (cut.damage.drop(STORE), cut.damage.cut(STORE, 0)):
        with pytest.raises(CorruptionError, match="its log"):
            holdfast.open(path_in(place))
        assert (place / LOG).stat().st_size


def test_damage_in_what_one_session_has_for_itself_leaves_the_others_readable(closed: Left) -> None:
    start = closed.damage.find(image()[8_000:8_400])
    for at in range(start, start + 400, 57):
        seen = read_all(closed.damage.flip(STORE, at, 1), closed.truth)
        assert seen.whole == {"one", "three"}
        assert seen.refused


def test_a_session_whose_page_is_damaged_can_go_on_from_its_newest_intact_checkpoint(closed: Left) -> None:
    place = closed.damage.flip(STORE, closed.damage.find(image()[8_000:8_400]), 1)
    with holdfast.open(path_in(place)) as store:
        session = store.session("two")
        with pytest.raises(HoldfastError):
            session.load()
        intact = session.newest_intact()
        assert intact is not None
        assert session.load(intact) == closed.truth["two"]["states"][intact.sequence]
