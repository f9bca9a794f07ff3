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


def test_du_lists_the_sessions_that_have_files(work: Path) -> None:
    done = shell.run("du", folder=work, columns=80)
    assert done.code == 0, done.err
    head, row, total = done.out.splitlines()
    assert head.split() == ["SESSION", "VERSIONS", "PLAIN", "COPIES", "STORED"]
    assert row.split()[:2] == ["fix-bug", "3"]
    assert total.startswith("contents of files in the store: ")
    assert all([len(line) <= 80 for line in done.out.splitlines()])


def test_contents_are_forgotten_after_a_preview(work: Path) -> None:
    shown = shell.run("forget-files", "fix-bug", "src", folder=work)
    assert shown.code == 1
    assert "src/main.py         2" in shown.out
    assert "Contents of 2 file versions would be forgotten" in shown.out
    assert "nothing was changed" in shown.err
    assert "print('hello')" in shell.run("files", "fix-bug", "main", "src/main.py", "--cat", folder=work).out
    done = shell.run("forget-files", "fix-bug", "src", "-y", folder=work)
    assert "Contents of 2 file versions are forgotten" in done.out
    assert (
        "its contents were forgotten" in shell.run("files", "fix-bug", "main", "src/main.py", "--cat", folder=work).err
    )
    listed = shell.run("files", "fix-bug", folder=work).out
    assert "the contents of 1 file were forgotten" in listed
    assert "its contents are not kept" in shell.run("diff", "fix-bug", "main~1", "main", "--files", folder=work).out
    assert "forgotten               2" in shell.run("du", "fix-bug", folder=work).out
    assert "0 problems, contents of 2 file versions forgotten" in shell.run("verify", folder=work).out
    (work / "src" / "main.py").write_text("another\n")
    refused = shell.run("rewind", "fix-bug", "main~1", "--theirs", "-y", folder=work)
    assert (refused.code, "cannot come back" in refused.out) == (1, True)
    assert "src/main.py (--partial takes the other files)" in refused.err
    assert shell.run("rewind", "fix-bug", "main~1", "--theirs", "--partial", "-y", folder=work).code == 0
    assert not (work / "notes.txt").exists()
    assert "Nothing goes" in shell.run("forget-files", "fix-bug", "nowhere", "-y", folder=work).out


def test_contents_of_files_are_pruned_earlier_than_checkpoints(work: Path) -> None:
    import backstay

    with backstay.open(work / ".backstay" / "store.db") as store:
        session = store.session("fix-bug", workspace=work)
        (work / "notes.txt").write_bytes(bytes(range(256)) * 400)
        session.commit({})
        (work / "notes.txt").write_text("short")
        session.commit({})
    done = shell.run("prune", "--files-last", "1", "-y", folder=work)
    assert done.code == 0, done.err
    assert "Contents of 2 file versions went" in done.out
    assert shell.run("prune", "--files-bytes", "many", "-y", folder=work).code == 1


def test_a_session_without_files_is_told_so(work: Path) -> None:
    import backstay

    with backstay.open(work / ".backstay" / "store.db") as store:
        store.session("plain").commit({})
    assert "has no files" in shell.run("files", "plain", folder=work).err
    assert "has no files (files are recorded where" in shell.run("blame", "plain", "a.py", folder=work).err
