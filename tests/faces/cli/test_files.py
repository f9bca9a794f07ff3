"""`backstay files`, `du` and `diff --files`: what a session has of its folder can be seen, read and written out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faces.cli import shell, story


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / ".backstay").mkdir()
    (tmp_path / ".env").write_text("PASSWORD=1")
    story.files_too(tmp_path / ".backstay" / "store.db", tmp_path)
    return tmp_path


def test_files_are_listed_with_sizes_and_authors(work: Path) -> None:
    done = shell.run("files", "fix-bug", "main~1", folder=work)
    assert done.code == 0, done.err
    assert "src/main.py" in done.out
    assert "notes.txt" not in done.out
    assert "secret: only a digest" in done.out
    assert "3 files" in shell.run("files", "fix-bug", folder=work).out


def test_what_was_left_out_is_listed_with_its_reason(work: Path) -> None:
    done = shell.run("files", "fix-bug", "--left-out", folder=work)
    assert "left out, secret: only a digest is kept: 1 path" in done.out
    assert ".env" in done.out


def test_a_file_is_printed_as_it_was(work: Path) -> None:
    done = shell.run("files", "fix-bug", "main~1", "src/main.py", "--cat", folder=work)
    assert (done.code, done.out) == (0, "print('hello')\n" * 20)
    assert shell.run("files", "fix-bug", "main", "src", "--cat", folder=work).code == 2
    assert "there is no file 'nothing'" in shell.run("files", "fix-bug", "main", "nothing", folder=work).err


def test_files_are_written_to_a_folder(work: Path) -> None:
    done = shell.run("files", "fix-bug", "main~1", "--to", "out", folder=work)
    assert (done.code, done.out.strip()) == (0, "Wrote 1 file to out.")
    assert (work / "out" / "src" / "main.py").read_text() == "print('hello')\n" * 20


def test_a_diff_lists_files_and_their_lines(work: Path) -> None:
    plain = shell.run("diff", "fix-bug", "main~1", "main", folder=work)
    assert "+ notes.txt" in plain.out
    assert "print('bye')" not in plain.out
    lines = shell.run("diff", "fix-bug", "main~1", "main", "--files", folder=work).out
    assert "+print('bye')" in lines
    assert "messages" in lines


def test_du_says_what_the_files_take(work: Path) -> None:
    done = shell.run("du", "fix-bug", folder=work)
    assert done.code == 0, done.err
    assert "versions of files" in done.out
    assert "src/main.py" in done.out


def test_a_session_without_files_is_told_so(work: Path) -> None:
    import backstay

    with backstay.open(work / ".backstay" / "store.db") as store:
        store.session("plain").commit({})
    assert "has no files" in shell.run("files", "plain", folder=work).err
    assert "has no files (files are recorded where" in shell.run("blame", "plain", "a.py", folder=work).err
