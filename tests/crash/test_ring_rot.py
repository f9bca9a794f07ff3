"""Bytes that rot on the disk: an error or the right value, never a wrong one and never nothing."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from backstay.errors import BackstayError, CorruptionError
from backstay.face import Store
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import Place, room
from tests.crash.ring.rot import NAMES, PAGE_BYTES, Damage, image, leave, read_all, step_of
from tests.crash.ring.workload import Look, go_on, look, look_at

STORE, LOG, NOTE = "store.db", "store.db-wal", "store.db-tail"
pytestmark = pytest.mark.usefixtures("alone")

FLIPS = 200
SHARES = 8


class Left(NamedTuple):
    damage: Damage
    looks: list[Look]

    @property
    def truth(self) -> Look:
        return self.looks[-1]


def left(nursery: Nursery, folder: Path, kind: str = "sqlite", *, cut: bool) -> Left:
    said = nursery.do(leave, Place(folder / "original", kind), cut)
    return Left(Damage(Place(folder / "original", kind)), said)


@pytest.fixture(scope="module")
def closed(nursery: Nursery) -> Iterator[Left]:
    with room() as folder:
        yield left(nursery, folder, cut=False)


@pytest.fixture(scope="module")
def cut(nursery: Nursery) -> Iterator[Left]:
    with room() as folder:
        yield left(nursery, folder, cut=True)


def spread(size: int, count: int) -> list[int]:
    """Places over all pages, the header of the file among them."""
    chosen = random.Random(size)
    step = max(1, size // count)
    return sorted({*range(16, 100, 3), *(min(size - 1, at + chosen.randrange(step)) for at in range(0, size, step))})


def refused(place: Place, truth: Look, what: str) -> int:
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
@pytest.mark.parametrize("share", range(SHARES))
def test_no_byte_of_a_store_can_be_found_whose_damage_is_taken_for_truth(closed: Left, share: int) -> None:
    for at in range(share, closed.damage.size(STORE), SHARES):
        refused(closed.damage.flip(STORE, at, (at * 7) % 8), closed.truth, f"byte {at}")


def test_a_flipped_bit_in_the_log_never_takes_back_what_was_acknowledged_without_a_word(cut: Left) -> None:
    places = [*range(32), *spread(cut.damage.size(LOG), FLIPS // 2)]
    for at in places:
        place = cut.damage.flip(LOG, at, at % 8)
        with pytest.raises(CorruptionError):
            place.open()
        assert (place.folder / LOG).stat().st_size, "the evidence is gone"


@pytest.mark.exhaustive
@pytest.mark.parametrize("share", range(SHARES))
def test_no_byte_of_the_log_can_be_found_whose_damage_is_taken_for_truth(cut: Left, share: int) -> None:
    for at in range(share, cut.damage.size(LOG), SHARES):
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
            place.open()
        (place.folder / NOTE).unlink()
        with place.open() as store:
            newest.append(step_of(look(store), cut.looks))
            go_on(store)
    assert len(set(newest)) > 5  # damage further back costs more


def test_a_damaged_head_of_the_log_can_be_left_behind_too(cut: Left) -> None:
    place = cut.damage.flip(LOG, 17, 0)
    with pytest.raises(CorruptionError, match="or delete it"):
        place.open()
    (place.folder / LOG).unlink()
    with place.open() as store:
        assert step_of(look(store), cut.looks) < len(cut.looks) - 1
        go_on(store)


def test_a_deleted_log_takes_back_the_newest_checkpoints_and_nothing_else(cut: Left) -> None:
    with cut.damage.drop(LOG).open() as store:
        found = step_of(look(store), cut.looks)
        assert 0 < found < len(cut.looks) - 1
        assert store.verify().ok
        go_on(store)


@pytest.mark.parametrize("name", [STORE, LOG])
def test_a_file_cut_off_at_any_length_is_an_error_where_it_matters(closed: Left, cut: Left, name: str) -> None:
    one = closed if name == STORE else cut
    size = one.damage.size(name)
    chosen = random.Random(3)
    lengths = [1, 31, 32, 99, 100, 511, *range(PAGE_BYTES, size, PAGE_BYTES), *chosen.sample(range(size), 20)]
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
            place.open()
        assert (place.folder / LOG).stat().st_size


def test_damage_in_what_one_session_has_for_itself_leaves_the_others_readable(closed: Left) -> None:
    start = closed.damage.find(image()[8_000:8_400])
    for at in range(start, start + 400, 57):
        seen = read_all(closed.damage.flip(STORE, at, 1), closed.truth)
        assert seen.whole == {"one", "three"}
        assert seen.refused


def test_a_session_whose_page_is_damaged_can_go_on_from_its_newest_intact_checkpoint(closed: Left) -> None:
    place = closed.damage.flip(STORE, closed.damage.find(image()[8_000:8_400]), 1)
    with place.open() as store:
        session = store.session("two")
        with pytest.raises(BackstayError):
            session.load()
        intact = session.newest_intact()
        assert intact is not None
        assert session.load(intact) == closed.truth["two"]["states"][intact.sequence]


@pytest.fixture(scope="module")
def journals(nursery: Nursery) -> Iterator[Left]:
    with room() as folder:
        yield left(nursery, folder, "files", cut=False)


def test_a_flipped_bit_in_a_folder_of_journals_is_never_a_wrong_value_nor_a_missing_session(journals: Left) -> None:
    noticed = 0
    for name in journals.damage.names():
        size = journals.damage.size(name)
        places = sorted({*range(0, size, max(1, size // 10)), size - 1})
        what = f"byte {{}} of {name}"
        noticed += sum(
            refused(journals.damage.flip(name, at, at % 7), journals.truth, what.format(at)) > 0 for at in places
        )
    assert noticed > 20


def test_a_journal_cut_off_or_gone_is_an_error_or_takes_back_the_newest_checkpoints_of_its_session_only(
    journals: Left,
) -> None:
    for name in (each for each in journals.damage.names() if each.endswith(".jsonl")):
        for length in range(1, journals.damage.size(name), 997):
            with journals.damage.cut(name, length).open() as store:
                touched = [each for each in NAMES if not same_or_refused(store, each, journals)]
            assert len(touched) <= 1


def same_or_refused(store: Store, name: str, journals: Left) -> bool:
    """False for a session that looks as it did earlier; AssertionError for one that never looked like this."""
    try:
        found = look_at(store, name)
    except BackstayError:
        return True
    if found == journals.truth[name]:
        return True
    assert any(found == known.get(name) for known in journals.looks), "this session was never like this"
    return False
