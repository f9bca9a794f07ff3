"""A lost sector is named, costs its own session, and makes no list shorter; nor does the lost head of a log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import backstay
from backstay import CorruptionError, Run, Store
from tests.hostile import corpus

pytestmark = pytest.mark.usefixtures("alone")

SECTOR = 512


@pytest.fixture
def place(tmp_path: Path) -> corpus.Place:
    """A store of files: a session `s` with a run that was cut off, and one beside it."""
    place = corpus.Place(tmp_path, corpus.FILES)
    place.make()
    with place.open() as store:
        store.session("other").commit({"n": 1})
    return place


def journal_of_s(place: corpus.Place) -> Path:
    return max((place.store / "sessions").iterdir(), key=lambda file: file.stat().st_size)


def handle(_run: Run) -> None:
    pytest.fail("a damaged run was gone on with")


def check_lists(store: Store, folder: Path) -> None:
    """Every list has both sessions, and the one that is intact can be used in every way."""
    assert sorted(info.id for info in store.sessions()) == ["other", "s"]
    assert store.stats().sessions == 2
    assert [info.id for info in store.crashed()] == ["s"]
    copy = folder / "copy.backstay"
    with pytest.raises(CorruptionError, match="'s' is damaged and was left out"):
        store.export(copy, overwrite=True)
    with backstay.open(copy) as export:
        assert [info.id for info in export.sessions()] == ["other"]
        assert export.session("other").load() == {"n": 1}
        assert export.verify().ok
    assert store.session("other").load() == {"n": 1}
    report = store.verify()
    assert {problem.session_id for problem in report.problems} == {"s"}


def check_calls(store: Store) -> None:
    """A call that a checkpoint took in is settled, or damaged: it never seems to be under way, without a result."""
    try:
        for point in store.session("s").log("side"):
            for call in store.session("s").calls(point):
                assert (call.status, call.result) == ("done", "seen")
    except CorruptionError:
        pass


def test_each_lost_sector_of_a_journal_is_named_and_costs_its_own_session(place: corpus.Place, tmp_path: Path) -> None:
    whole = {file: file.read_bytes() for file in place.store.rglob("*") if file.is_file()}
    journal = journal_of_s(place)
    data = whole[journal]
    for at in range(0, len(data), SECTOR):
        for file, content in whole.items():
            file.write_bytes(content)
        journal.write_bytes(data[:at] + bytes(min(SECTOR, len(data) - at)) + data[at + SECTOR :])
        with place.open() as store:
            check_lists(store, tmp_path)
            check_calls(store)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9])
def test_a_cut_journal_is_named_and_costs_its_own_session(place: corpus.Place, tmp_path: Path, keep: float) -> None:
    journal = journal_of_s(place)
    data = journal.read_bytes()
    journal.write_bytes(data[: int(len(data) * keep)])
    with place.open() as store:
        check_lists(store, tmp_path)


def test_a_journal_that_is_gone_is_named_and_costs_its_own_session(place: corpus.Place, tmp_path: Path) -> None:
    journal_of_s(place).unlink()
    with place.open() as store:
        assert [info.id for info in store.crashed()] == ["s"]
        report = backstay.recover(store, handle)
        ((name, why),) = report.failed.items()
        assert name == "s"
        assert "CorruptionError" in why
        assert sorted(info.id for info in store.sessions()) == ["other", "s"]
        assert store.stats().sessions == 2
        with pytest.raises(CorruptionError, match="'s' is damaged"):
            store.export(tmp_path / "copy.backstay")


# SQLite: what the first bytes of a log hold is in the note beside it, too


@pytest.mark.parametrize("size", [32, 512, 4096])
def test_zeros_at_the_head_of_a_log_are_damage_and_not_an_empty_log(tmp_path: Path, size: int) -> None:
    path = tmp_path / "store.db"
    copied = tmp_path / "copied.db"
    with backstay.open(path) as store:
        for turn in range(8):
            store.session("s").commit({"turn": turn})
        for ending in ("", "-wal", "-tail"):
            shutil.copyfile(f"{path}{ending}", f"{copied}{ending}")
    log = Path(f"{copied}-wal")
    log.write_bytes(bytes(size) + log.read_bytes()[size:])
    before = log.read_bytes()
    with pytest.raises(CorruptionError, match="log"):
        backstay.open(copied)
    assert log.read_bytes() == before


def test_a_log_of_zeros_alone_holds_nothing_and_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with backstay.open(path) as store:
        store.session("s").commit({"turn": 1})
    Path(f"{path}-wal").write_bytes(bytes(1024 * 1024))
    with backstay.open(path) as store:
        assert store.session("s").load() == {"turn": 1}
