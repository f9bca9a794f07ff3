"""The step that broke something, and the step that wrote a line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from backstay.errors import InvalidInputError, NotFoundError, UnavailableError
from tests.workspace.folders import capture_as
from tests.workspace.trees import read_tree

BAD = "! grep -q bad n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def session(tmp_path: Path, root: Path) -> Iterator[backstay.Session]:
    """Twenty steps that count in a file; from the thirteenth on it also says bad."""
    with backstay.open(tmp_path / "s.db") as store:
        made = store.session("s", workspace=root)
        (root / "other").mkdir()
        for step in range(20):
            (root / "n").write_text(f"{step} {'bad' if step >= 13 else 'fine'}\n")
            (root / "other" / f"f{step}").write_text("x")
            if step > 5:
                (root / "other" / f"f{step - 5}").unlink()
            capture_as(made, {"step": step}, f"call:{step}")
        yield made


def first_bad(session: backstay.Session, script: str, **options: object) -> int:
    tried: list[str] = []

    def told(_: backstay.Checkpoint, verdict: str) -> None:
        tried.append(verdict)

    given: dict[str, object] = {"on_try": told, **options}
    found = session.bisect(good="main~19", bad="main", test=["sh", "-c", script], **given)  # type: ignore[arg-type]
    assert len(tried) <= 9
    return int(found.state["step"])


def test_the_step_is_found_in_few_tries(session: backstay.Session) -> None:
    assert first_bad(session, BAD) == 13


def test_a_step_that_cannot_be_tested_is_skipped(session: backstay.Session) -> None:
    assert first_bad(session, f"grep -q '^10 ' n && exit 125; {BAD}") == 13


def test_steps_that_hide_the_first_bad_one_are_named(session: backstay.Session) -> None:
    with pytest.raises(InvalidInputError, match="one of these is the first bad one"):
        first_bad(session, f"grep -q '^1[23] ' n && exit 125; {BAD}")


def test_what_a_test_leaves_or_breaks_does_not_mislead_the_next(session: backstay.Session) -> None:
    assert (
        first_bad(session, f"test -e junk && exit 200; {BAD}; verdict=$?; touch junk; echo bad > n; exit $verdict")
        == 13
    )


def test_each_tree_is_exactly_its_checkpoints(session: backstay.Session, tmp_path: Path) -> None:
    tried: list[str] = []

    def told(point: backstay.Checkpoint, verdict: str) -> None:
        files = point.files
        assert files is not None
        want = {path: files[path].read() for path in files if files[path].kind == "file"}
        assert {os.fsdecode(path): thing[2] for path, thing in read_tree(tmp_path / "kept").items() if thing[2]} == want
        tried.append(verdict)

    assert first_bad(session, BAD, into=tmp_path / "kept", on_try=told) == 13
    assert len(tried) > 4
    assert (tmp_path / "kept" / "n").exists()


def test_a_test_that_is_killed_ends_the_search(session: backstay.Session) -> None:
    with pytest.raises(UnavailableError, match="the search ends here"):
        first_bad(session, "kill -9 $$")


def test_ends_that_are_not_good_and_bad_are_said(session: backstay.Session) -> None:
    with pytest.raises(InvalidInputError, match=r"does not find .* bad"):
        first_bad(session, "exit 0")
    with pytest.raises(InvalidInputError, match=r"does not find .* good"):
        first_bad(session, "exit 1")
    with pytest.raises(InvalidInputError, match="is not among"):
        session.bisect(good="main", bad="main~3", test=["true"])


def test_a_path_that_is_not_captured_can_be_linked(session: backstay.Session, root: Path) -> None:
    (root / "node_modules").mkdir()
    (root / "node_modules" / "x").write_text("needed")
    assert first_bad(session, f"test -e node_modules/x || exit 200; {BAD}", link=["node_modules"]) == 13
    assert (root / "node_modules" / "x").read_text() == "needed"


def test_the_folder_of_the_person_is_not_touched(session: backstay.Session, root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if ".backstay" not in path.parts}
    first_bad(session, BAD)
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*") if ".backstay" not in path.parts}


def test_each_line_has_its_step(session: backstay.Session, root: Path) -> None:
    talk = {"messages": [{"role": "user", "content": "write a file\nplease"}]}
    (root / "f").write_text("one\ntwo\n")
    first = capture_as(session, talk, "call:a")
    (root / "f").write_text("one\nmine\ntwo\n")
    second = capture_as(session, {**talk, "n": 1}, "outside")
    lines = session.blame("f")
    assert [(line.number, line.text) for line in lines] == [(1, "one"), (2, "mine"), (3, "two")]
    assert [line.checkpoint.id for line in lines] == [first.id, second.id, first.id]
    assert [line.is_yours for line in lines] == [False, True, False]
    assert lines[0].author == "call:a"
    assert lines[0].prompt == "write a file"
    assert [line.text for line in session.blame("f", first)] == ["one", "two"]
    with pytest.raises(NotFoundError, match="has no file absent"):
        session.blame("absent")
