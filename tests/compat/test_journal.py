"""A journal written in the past: its calls are given again and none of them is made again, whatever changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw

import backstay
from tests.compat.make_journal import NAME, seen, work

HERE = Path(__file__).parent


def copied(folder: Path) -> Path:
    return Path(shutil.copy(HERE / f"{NAME}.db", folder / "store.db"))


def test_calls_kept_for_years_are_read_as_they_were(tmp_path: Path) -> None:
    with backstay.open(copied(tmp_path)) as store:
        assert seen(store) == json.loads((HERE / f"{NAME}.json").read_text("ascii"))
        report = store.verify()
        assert report.ok, str(report)


def test_a_run_that_crashed_years_ago_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    with backstay.open(copied(tmp_path)) as store:
        (info,) = [info for info in store.sessions() if info.id == "crashed"]
        assert (info.crashed, info.usage.cost) == (True, 0.25)
        session = store.session("crashed")
        (pay,) = [call for call in session.calls(pending=True) if call.status == "in_doubt"]
        assert (pay.name, pay.args) == ("pay", {"euro": 7})
        session.resolve(pay.id, result="paid")
        made: list[str] = []
        with store.run("crashed") as run:
            assert (run.resumed, run.iteration, run.input) == (True, 1, {"ask": ("x", 1)})
            work(run, made)
        assert made == ["model", "look up", "fail", "inside"]  # those of the third iteration
        assert run.usage.cost == 0.75
        assert store.verify().ok


def test_the_golden_journal_holds_each_kind_of_row_that_can_be_lost(tmp_path: Path) -> None:
    file = copied(tmp_path)
    backstay.open(file).close()
    connection = apsw.Connection(str(file), vfs="cksmvfs", flags=apsw.SQLITE_OPEN_READONLY)
    try:
        for what in (
            "runs WHERE branch IS NULL",
            "runs WHERE entered = 1 AND input IS NOT NULL",
            "runs WHERE NOT unfinished",
            "checkpoints WHERE took_calls > 1",
            "calls c WHERE EXISTS (SELECT 1 FROM checkpoints p WHERE (p.took_run, p.took_stood) = (c.run, c.stood))",
        ):
            ((count,),) = connection.execute(f"SELECT count(*) FROM {what}")
            assert count, what
    finally:
        connection.close()
