"""A restore that cannot write a path says so and has changed nothing; it never says that it was done."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay
from backstay.errors import UnavailableError
from backstay.workspace import placement, system_calls
from tests.faces.cli import shell
from tests.workspace.folders import capture_as
from tests.workspace.privileges import as_anyone
from tests.workspace.trees import leftovers

OLD = {"a.txt": "one\n", "gone.txt": "gone\n", "sub/b.txt": "one\n"}
NEW = {"a.txt": "two\n", "new/c.txt": "new\n", "sub/b.txt": "two\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    return folder


@pytest.fixture
def session(root: Path) -> Iterator[backstay.Session]:
    """Two steps; the second, by a call, changes a file in each folder, removes one and makes one."""
    with backstay.open(root / ".backstay" / "store.db") as store:
        made = store.session("s", workspace=root)
        for name in ("a.txt", "gone.txt", "sub/b.txt"):
            (root / name).write_text(OLD[name])
        capture_as(made, {"step": 1}, "outside")
        (root / "gone.txt").unlink()
        (root / "new").mkdir()
        for name, text in NEW.items():
            (root / name).write_text(text)
        capture_as(made, {"step": 2}, "call:1")
        yield made


def contents(root: Path) -> dict[str, str]:
    paths = [path for path in root.rglob("*") if path.is_file() and ".backstay" not in path.parts]
    return {str(path.relative_to(root)): path.read_text() for path in sorted(paths)}


def refuse(monkeypatch: pytest.MonkeyPatch, name: bytes, number: int) -> None:
    """Let the system refuse to put a file of this name into its place."""
    real = system_calls.exchange

    def exchange(from_: int, aside: bytes, to: int, at: bytes) -> bool:
        if at == name:
            raise OSError(number, os.strerror(number))
        return real(from_, aside, to, at)

    monkeypatch.setattr(placement, "exchange", exchange)


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_changed(
    session: backstay.Session, root: Path
) -> None:
    (root / "sub").chmod(0o555)
    head = session.checkpoint("main").id
    with as_anyone():
        assert session.restore("main~1", files=True, keep_mine=True, dry_run=True).blocked == (b"sub/b.txt",)
        with pytest.raises(UnavailableError, match=r"nothing was put back: sub/b\.txt: its folder cannot be written"):
            session.restore("main~1", files=True, keep_mine=True)
    assert contents(root) == NEW
    assert session.checkpoint("main").id == head
    (root / "sub").chmod(0o755)
    session.restore("main~1", files=True)
    assert contents(root) == OLD


def test_the_command_line_refuses_it_too_and_puts_back_the_others_with_partial(
    session: backstay.Session, root: Path
) -> None:
    (root / "sub").chmod(0o555)
    with as_anyone():
        done = shell.run("rewind", "s", "main~1", "-y", folder=root)
        assert done.code == 1
        assert "cannot be put back, because their folder cannot be written (1)" in done.out
        assert "nothing was changed: sub/b.txt: its folder cannot be written" in done.err
        assert "--partial puts back the others" in done.err
        assert "Rewound" not in done.out
        assert contents(root) == NEW
        told = shell.run("rewind", "s", "main~1", "-y", "--partial", "--json", folder=root)
    assert told.code == 0, told.err
    files = json.loads(told.out)["files"]
    assert (files["put"], files["removed"], files["blocked"]) == (
        ["a.txt", "gone.txt"],
        ["new/c.txt", "new"],
        ["sub/b.txt"],
    )
    assert contents(root) == {**OLD, "sub/b.txt": "two\n"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_refusal_half_way_takes_back_what_was_put(
    session: backstay.Session, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    refuse(monkeypatch, b"b.txt", number)
    first, head = session.checkpoint("main~1"), session.checkpoint("main").id
    with pytest.raises(UnavailableError, match=f"sub/b.txt: it cannot be written: {os.strerror(number)}"):
        session.restore("main~1", files=True)
    assert contents(root) == NEW
    assert (session.checkpoint("main").id, session.load()) == (head, {"step": 2})
    assert not [name for name in leftovers(root) if name.startswith(("tmp", "kept"))]
    monkeypatch.undo()
    with session.run() as run:
        assert run.state == {"step": 2}
    session.restore(first, files=True, keep_mine=True)
    assert contents(root) == OLD


def test_one_that_can_neither_be_done_nor_taken_back_stays_to_be_done_again(
    session: backstay.Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = system_calls.exchange, list[bytes]()

    def exchange(from_: int, aside: bytes, to: int, at: bytes) -> bool:
        seen.append(at)
        if len(seen) > 1:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(from_, aside, to, at)

    monkeypatch.setattr(placement, "exchange", exchange)
    with pytest.raises(UnavailableError, match=r"and its files cannot be taken back either: a\.txt"):
        session.restore("main~1", files=True)
    monkeypatch.undo()
    assert session.finish_files()
    assert contents(root) == OLD
    assert session.load() == {"step": 1}


def test_a_save_at_the_very_moment_is_told_and_not_called_put_back(
    session: backstay.Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = system_calls.exchange

    def exchange(from_: int, aside: bytes, to: int, at: bytes) -> bool:
        if at == b"b.txt":
            (root / "sub" / "b.txt").write_text("saved just now\n")
        return real(from_, aside, to, at)

    monkeypatch.setattr(placement, "exchange", exchange)
    done = shell.run("rewind", "s", "main~1", "-y", folder=root)
    assert done.code == 0, done.err
    assert "left as they are, because they were changed meanwhile or cannot be written (1)\n    sub/b.txt" in done.out
    assert contents(root) == {**OLD, "sub/b.txt": "saved just now\n"}


def test_a_folder_of_the_agent_that_cannot_be_written_goes_with_what_is_in_it(
    session: backstay.Session, root: Path
) -> None:
    (root / "locked").mkdir()
    (root / "locked" / "f").write_text("x")
    (root / "locked").chmod(0o555)
    capture_as(session, {"step": 3}, "call:2")
    with as_anyone():
        session.restore("main~1", files=True)
    assert contents(root) == NEW
    assert not (root / "locked").exists()
