"""Ctrl-C while files are put back: what is said, what finishes it, and an undo that takes back that very rewind."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import backstay
from tests.faces.cli import shell
from tests.workspace.folders import capture_as

NAMES = [f"f{number}.py" for number in range(6)]
STEPS = 3


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Six files, each written at every step, and a file of yours."""
    root = tmp_path / "project"
    root.mkdir()
    with backstay.open(root / ".backstay" / "store.db") as store:
        session = store.session("s", workspace=root)
        for step in range(STEPS):
            write(root, step)
            capture_as(session, {"n": step}, f"call:{step}")
    (root / "mine.txt").write_text("mine\n")
    return root


def write(root: Path, step: int) -> None:
    for name in NAMES:
        (root / name).write_text(f"{step}\n")


def texts(root: Path) -> list[str]:
    return [(root / name).read_text().strip() for name in NAMES]


@contextlib.contextmanager
def ctrl_c(function: str, times: int) -> Iterator[None]:
    """A Ctrl-C when a function of the placement is called for the nth time."""
    left = times

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith("workspace/placement.py"):
            left -= 1
            if not left:
                signal.raise_signal(signal.SIGINT)

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupt(root: Path, *words: str, function: str = "_put", times: int = 3) -> shell.Done:
    with ctrl_c(function, times):
        done = shell.run(*words, folder=root)
    assert done.code == 130
    return done


def load(root: Path) -> Any:
    with backstay.open(root / ".backstay" / "store.db") as store:
        assert not store.session("s").calls(pending=True)
        return store.session("s").load()["n"]


def test_a_ctrl_c_says_what_stands_and_both_ways_on(project: Path) -> None:
    done = interrupt(project, "rewind", "s", "main~2", "-y")
    assert sorted(texts(project)) == ["0", "0", "2", "2", "2", "2"]
    assert f"Interrupted: in {project} some files are put back and others are not yet." in done.err
    assert "To finish it: backstay recover s\nTo take it back: backstay undo s\n" in done.err
    shown = shell.run("recover", folder=project)
    assert "files were being put back" in shown.out
    assert "To finish it: backstay recover s\n  To take it back: backstay undo s\n" in shown.out
    assert "Did it happen?" not in shown.out
    assert shell.run("recover", "s", "--list", folder=project).out == shown.out
    assert sorted(texts(project)) == ["0", "0", "2", "2", "2", "2"]


def test_before_the_first_file_a_ctrl_c_changes_nothing(project: Path) -> None:
    done = interrupt(project, "rewind", "s", "main~2", "-y", function="_write_file", times=2)
    assert "Interrupted: no file was changed" in done.err
    assert texts(project) == ["2"] * 6
    assert load(project) == 2
    assert "Nothing crashed" in shell.run("recover", folder=project).out


@pytest.mark.parametrize("decision", [(), ("--retry",), ("--rollback",)])
def test_recover_brings_it_to_its_end_and_an_undo_takes_it_back(project: Path, decision: tuple[str, ...]) -> None:
    interrupt(project, "rewind", "s", "main~2", "-y")
    done = shell.run("recover", "s", *decision, folder=project)
    assert (done.code, done.err) == (0, "")
    assert f"The interrupted rewind came to its end first: files in {project} are put back" in done.out
    assert done.out.endswith("To take it back: backstay undo s\n")
    assert texts(project) == ["0"] * 6
    assert load(project) == 0
    assert shell.run("undo", "s", "-y", folder=project).code == 0
    assert texts(project) == ["2"] * 6
    assert load(project) == 2


@pytest.mark.parametrize("earlier", [False, True])
def test_an_undo_takes_back_the_interrupted_rewind_and_not_the_one_before(project: Path, earlier: bool) -> None:
    expected = 2
    if earlier:
        assert shell.run("rewind", "s", "main~1", "-y", folder=project).code == 0
        expected = 1
    with backstay.open(project / ".backstay" / "store.db") as store:
        oldest = list(store.session("s").log(limit=None))[-1].id
    interrupt(project, "rewind", "s", oldest, "-y")
    done = shell.run("undo", "s", "-y", folder=project)
    assert (done.code, done.err) == (0, "")
    assert done.out.index("came to its end first") < done.out.index("put back (6)")
    assert texts(project) == [str(expected)] * 6
    assert (project / "mine.txt").read_text() == "mine\n"
    assert load(project) == expected


def test_an_undo_in_python_does_so_too(project: Path) -> None:
    interrupt(project, "rewind", "s", "main~2", "-y")
    with backstay.open(project / ".backstay" / "store.db") as store:
        store.session("s", workspace=project).undo()
    assert texts(project) == ["2"] * 6
    assert load(project) == 2


def test_the_same_line_again_finishes_it_as_one_rewind_even_after_an_edit(project: Path) -> None:
    interrupt(project, "rewind", "s", "main~2", "-y")
    (project / NAMES[0]).write_text("mine now\n")
    done = shell.run("rewind", "s", "main~2", "-y", folder=project)
    assert (done.code, done.err) == (0, "")
    assert "Nothing more is to be put back. To take it back: backstay undo s" in done.out
    assert texts(project) == ["mine now", *["0"] * 5]
    assert load(project) == 0
    assert shell.run("undo", "s", "-y", "--json", folder=project).code == 0
    assert texts(project)[1:] == ["2"] * 5
    assert load(project) == 2


def test_another_rewind_is_shown_from_where_the_interrupted_one_ends(project: Path) -> None:
    interrupt(project, "rewind", "s", "main~2", "-y")
    refused = shell.run("rewind", "s", "main~1", "--dry-run", folder=project)
    assert refused.code == 1
    assert f"files were being put back in {project}" in refused.err
    assert "`backstay recover s` brings it to its end" in refused.err
    assert sorted(texts(project)) == ["0", "0", "2", "2", "2", "2"]
    done = shell.run("rewind", "s", "main~1", "-y", "--json", folder=project)
    assert done.code == 0, done.err
    assert sorted(json.loads(done.out)["files"]["put"]) == NAMES
    assert texts(project) == ["1"] * 6
    assert shell.run("undo", "s", "-y", folder=project).code == 0
    assert texts(project) == ["0"] * 6


def test_an_interrupted_undo_is_finished_or_taken_back(project: Path) -> None:
    assert shell.run("rewind", "s", "main~2", "-y", folder=project).code == 0
    done = interrupt(project, "undo", "s", "-y")
    assert "To take it back: backstay undo s" in done.err
    assert "The interrupted undo came to its end" in shell.run("recover", "s", folder=project).out
    assert texts(project) == ["2"] * 6
    assert load(project) == 2


def test_where_the_folder_is_not_here_it_is_said_where(project: Path) -> None:
    interrupt(project, "rewind", "s", "main~2", "-y")
    moved = project.with_name("moved")
    project.rename(moved)
    shown = shell.run("recover", "s", folder=moved)
    assert shown.code == 0, shown.err
    assert "files were being put back" in shown.out
    assert f"in {project} on " in shown.out
    assert "That folder is not here. To finish it there: backstay recover s" in shown.out
    done = shell.run("undo", "s", "-y", folder=moved)
    assert done.code == 1
    assert f"files were being put back in {project} on " in done.err
    line = shown.out.partition("as they are: backstay ")[2].splitlines()[0]
    assert shell.run(*line.split(), folder=moved).code == 0
    assert sorted(texts(moved)) == ["0", "0", "2", "2", "2", "2"]
    assert shell.run("rewind", "s", "main~2", "-y", "--workspace", str(moved), "--theirs", folder=moved).code == 0
