"""An export is a store of its own: every command that reads opens it, and none writes to it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

import backstay
from tests.faces.cli import shell

READING = [
    "sessions --agent reports",  # a run that crashed here has not crashed in a copy
    "log ticket-42 --graph --all --calls",
    "show ticket-42 what-if",
    "show ticket-42 --state",
    "diff ticket-42 main what-if",
    "branches ticket-42",
    "tag ticket-42",
    "search EUR",
    "recover ticket-43",
    "verify",
]
WRITING = [
    "restore ticket-42 asked -y",
    "undo ticket-42 -y",
    "fork ticket-42 main other",
    "tag ticket-42 main done",
    "delete ticket-42 -y",
    "delete ticket-42 main~1 -y",
    "delete ticket-42 --branch what-if -y",
    "recover ticket-43 --retry",
    "recover ticket-43 --abandon",
    "prune --keep-last 1 -y",
    "verify --repair",
    "import again.backstay",
]


@pytest.fixture
def export(folder: Path) -> Path:
    """The export, alone in a folder of its own."""
    away = folder / "away"
    away.mkdir()
    assert shell.run("export", "away/out.backstay", folder=folder).code == 0
    return away / "out.backstay"


@pytest.mark.parametrize("command", READING)
def test_a_command_that_reads_says_of_an_export_what_it_says_of_the_store(
    command: str, export: Path, folder: Path
) -> None:
    here = shell.run(*shlex.split(command), folder=folder)
    there = shell.run(*shlex.split(command), "--store", "away/out.backstay", folder=folder)
    assert (there.code, there.err) == (0, "")
    assert there.out == here.out
    assert list(export.parent.iterdir()) == [export]


@pytest.mark.parametrize("command", WRITING)
def test_a_command_that_writes_leaves_an_export_alone_and_says_what_to_do(
    command: str, export: Path, folder: Path
) -> None:
    with backstay.open(folder / "again.db") as store:
        store.session("another").commit({"n": 1})
        store.export(folder / "again.backstay")
    before = export.read_bytes()
    done = shell.run(*shlex.split(command), "--store", "away/out.backstay", folder=folder)
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "is an export: it is only read (backstay import takes it in)" in done.err
    assert export.read_bytes() == before
    assert list(export.parent.iterdir()) == [export]


@pytest.mark.parametrize("shape", ["{}", "sqlite:///{}"])
def test_an_export_is_opened_by_its_path_whatever_it_is_called(shape: str, export: Path) -> None:
    kept = export.rename(export.with_name("kept.of last week"))
    with backstay.open(shape.format(kept)) as store:
        assert store.verify().ok
        assert store.session("ticket-42").load()["last_tool"] == "refund"
        with pytest.raises(backstay.UnsupportedError, match="backstay import"):
            store.session("ticket-42").commit({})
        with pytest.raises(backstay.UnsupportedError, match="backstay import"), store.run("new"):
            pass


def test_what_only_looks_like_an_export_is_neither_opened_nor_waited_for(folder: Path, export: Path) -> None:
    os.mkfifo(folder / "pipe.backstay")
    (folder / "link.backstay").symlink_to(export)
    (folder / "notes.backstay").write_text("dear diary")
    for name in ("pipe.backstay", "link.backstay", "notes.backstay", "gone.backstay"):
        done = shell.run("sessions", "--store", name, folder=folder)
        assert (done.code, len(done.err.splitlines())) == (1, 1), name
    assert not (folder / "gone.backstay").exists()


def test_a_session_is_named_behind_the_file_and_never_taken_for_one(folder: Path) -> None:
    done = shell.run("export", "one.backstay", "ticket-42", folder=folder)
    assert (done.code, done.out) == (0, "written: one.backstay\n"), done.err
    with backstay.open(folder / "one.backstay") as exported:
        assert [info.id for info in exported.sessions()] == ["ticket-42"]
    meant = shell.run("export", "ticket-42", folder=folder)
    assert meant.code == 2
    assert "ticket-42 is a session: give a FILE before it" in meant.err
    assert not (folder / "ticket-42").exists()
    assert shell.run("export", "./ticket-42", folder=folder).code == 0
    assert shell.run("export", "\udcff.backstay", folder=folder).code == 0  # a name that is no text
