"""Stores written by formats of the past: whatever changes, they open, verify, and give what was put into them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw
import pytest

import backstay
from backstay.backend import FORMAT_VERSION
from tests.compat.portrait import portrait

HERE = Path(__file__).parent
GOLDEN = sorted(HERE.glob("format-*.db"))
golden = pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)


def copied(golden: Path, folder: Path) -> Path:
    return Path(shutil.copy(golden, folder / "store.db"))


def test_the_format_of_today_has_a_store_that_tomorrow_will_be_held_to() -> None:
    assert HERE / f"format-{FORMAT_VERSION}.db" in GOLDEN
    assert all(path.stat().st_size < 200_000 for path in GOLDEN)


@golden
def test_a_store_kept_for_years_gives_back_every_state_and_digest(golden: Path, tmp_path: Path) -> None:
    expected = json.loads(golden.with_suffix(".json").read_text("ascii"))
    with backstay.open(copied(golden, tmp_path)) as store:
        found = json.loads(json.dumps(portrait(store)))
    assert list(found) == list(expected)
    for name, session in expected.items():
        for point, wanted in zip(found[name].pop("checkpoints"), session.pop("checkpoints"), strict=True):
            assert point == wanted
        assert found[name] == session


@golden
def test_a_store_kept_for_years_is_whole_and_can_be_written_on(golden: Path, tmp_path: Path) -> None:
    with backstay.open(copied(golden, tmp_path)) as store:
        before = store.stats().checkpoints
        report = store.verify()
        assert report.ok, str(report)
        assert report.checked == before
        for info in list(store.sessions()):
            session = store.session(info.id)
            for branch in session.branches():
                state = {**session.load(branch), "written on": True}
                point = session.commit(state, branch=branch)
                assert "written on" in store.session(info.id).load(point.id)
        report = store.verify()
        assert report.ok, str(report)
        assert report.checked > before


@golden
def test_the_golden_store_holds_each_kind_of_row_that_can_be_lost(golden: Path, tmp_path: Path) -> None:
    file = copied(golden, tmp_path)
    backstay.open(file).close()
    connection = apsw.Connection(str(file), vfs="cksmvfs", flags=apsw.SQLITE_OPEN_READONLY)
    try:
        for what in (
            "checkpoints WHERE roll IS NOT NULL",
            "checkpoints WHERE whole IS NOT NULL AND delta IS NOT NULL",
            "checkpoints WHERE whole IS NULL AND place > 32",
            "checkpoints WHERE lost_parent_id IS NOT NULL",
            "checkpoints WHERE typeof(id) = 'text'",
            "names WHERE undo IS NOT NULL",
            "names WHERE tag",
            "blobs",
        ):
            ((count,),) = connection.execute(f"SELECT count(*) FROM {what}")
            assert count, what
    finally:
        connection.close()
