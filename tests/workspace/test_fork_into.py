"""Files written to a folder of their own: whole, without what git would run, and shared where that can be."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

import backstay
from backstay.workspace import sharing
from tests.workspace.trees import read_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "large").write_bytes(os.urandom(300_000))
    (folder / "small").write_text("small\n")
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A file system that can share blocks, as far as a reader can tell: it copies."""
    made: list[int] = []

    def cloned(source: int, target: int) -> None:
        made.append(os.sendfile(target, source, 0, os.fstat(source).st_size))

    monkeypatch.setattr(sharing, "clone", cloned)
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="sendfile to a file")
def test_a_file_that_the_workspace_still_has_is_shared_and_verified(
    root: Path, tmp_path: Path, calls: list[int]
) -> None:
    with backstay.open("memory://") as store:
        session = store.session("s", workspace=root)
        session.commit({})
        wanted = read_tree(root)
        session.fork("main", "same", into=tmp_path / "same")
        assert calls == [300_000], "the short one is written"
        (root / "large").write_bytes(os.urandom(300_000))  # of the same length, and other contents
        session.fork("main", "other", into=tmp_path / "other")
        (root / "large").unlink()
        (root / "large").symlink_to("small")
        session.fork("main", "link", into=tmp_path / "link")
    assert read_tree(tmp_path / "same") == read_tree(tmp_path / "other") == read_tree(tmp_path / "link") == wanted


def test_a_file_system_that_cannot_is_asked_once(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refused(source: int, _target: int) -> None:
        asked.append(source)
        raise OSError(errno.EOPNOTSUPP, "no")

    monkeypatch.setattr(sharing, "clone", refused)
    (root / "larger").write_bytes(os.urandom(400_000))
    with backstay.open("memory://") as store:
        session = store.session("s", workspace=root)
        session.commit({})
        session.fork("main", "b", into=tmp_path / "b")
    assert read_tree(tmp_path / "b") == read_tree(root)
    assert len(asked) == 1


def test_what_git_would_run_is_not_written_unless_it_is_captured_here(tmp_path: Path) -> None:
    """A list may come from an import: a hook in it would be run by the next git command in that folder."""
    root = tmp_path / "project"
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "hooks" / "post-commit").write_text("#!/bin/sh\n")
    (root / "sub" / ".Git").mkdir(parents=True)
    (root / "sub" / ".Git" / "config").write_text("[core]\n")
    (root / "a").write_text("a\n")
    with backstay.open("memory://") as store:
        session = store.session("s", workspace=backstay.Workspace(root, git="capture"))
        session.commit({})
        files = session.checkpoint("main").files
        assert files is not None
        assert ".git/hooks/post-commit" in files
        store.session("s").fork("main", "b", into=tmp_path / "b")
        assert sorted(read_tree(tmp_path / "b")) == [b"a", b"sub"]
        session.fork("main", "c", into=tmp_path / "c")
        assert read_tree(tmp_path / "c") == read_tree(root)
