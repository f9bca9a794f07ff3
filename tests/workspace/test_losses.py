"""After a power cut: files that a checkpoint has and the disk lost are named and written again. Edits are no loss.

Time cannot be turned back here. So a copy of the folder is made before a step and takes the folder's place after it:
its files have the times that they had, as those of a disk that lost the step.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

import pytest

import backstay
from tests.workspace.trees import leftovers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("old\n")
    (folder / "src" / "b.py").write_text("b\n")
    return folder


def step(root: Path) -> None:
    time.sleep(0.02)  # a tick of the file system's clock
    (root / "src" / "a.py").write_text("new\n" * 50)
    (root / "src" / "c.py").write_text("c\n")
    (root / "src" / "deep").mkdir()
    (root / "src" / "deep" / "d.py").write_text("d\n")


AFTER = {"src/a.py": "new\n" * 50, "src/b.py": "b\n", "src/c.py": "c\n", "src/deep/d.py": "d\n"}


def contents(root: Path) -> dict[str, str]:
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and ".backstay" not in path.parts]
    return {str(path.relative_to(root)): path.read_text() for path in paths}


def lose_a_step(store: backstay.Store, root: Path) -> None:
    """A step whose checkpoint is kept and whose files are not."""
    before = root.parent / "before"
    with store.run("s", workspace=root) as run:
        run.step()
        shutil.copytree(root, before)
        run.call("write", lambda: step(root))
        run.step()
    root.rename(root.parent / "gone")
    before.rename(root)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_files_that_a_power_cut_took_are_named_and_written_again(
    tmp_path: Path, root: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with backstay.open("memory://" if kind == "memory" else tmp_path / "s.db") as store:
        lose_a_step(store, root)
        assert contents(root) == {"src/a.py": "old\n", "src/b.py": "b\n"}
        with caplog.at_level(logging.WARNING, "backstay"), store.run("s", workspace=root) as run:
            assert run.files is not None
            assert run.files.lost == ["src/a.py", "src/c.py", "src/deep/d.py"]
            assert "3 files of the last checkpoint never reached the disk" in caplog.text
            assert run.files.put_back_lost() == []
            assert contents(root) == AFTER
            assert run.files.lost == []
        assert not [name for name in leftovers(root) if name.startswith(("tmp", "kept"))]


def test_what_is_lost_is_put_back_by_a_restore_without_being_asked_about(root: Path) -> None:
    with backstay.open("memory://") as store:
        lose_a_step(store, root)
        with store.run("s", workspace=root) as run:
            run.step()
        (root / "mine").write_text("mine\n")
        session = store.session("s", workspace=root)
        wanted = next(point for point in session.log() if (files := point.files) is not None and "src/c.py" in files)
        session.restore(wanted, files=True, keep_mine=True)
        assert contents(root) == {**AFTER, "mine": "mine\n"}


def test_an_edit_or_a_removal_of_yours_is_no_loss(root: Path) -> None:
    with backstay.open("memory://") as store:
        with store.run("s", workspace=root) as run:
            run.call("write", lambda: step(root))
            run.step()
        time.sleep(0.02)
        (root / "src" / "a.py").write_text("")
        (root / "src" / "c.py").unlink()
        shutil.rmtree(root / "src" / "deep")
        with store.run("s", workspace=root) as run:
            assert run.files is not None
            assert run.files.lost == []


def test_what_was_changed_after_the_cut_stays_and_is_given_back_by_name(root: Path) -> None:
    with backstay.open("memory://") as store:
        lose_a_step(store, root)
        with store.run("s", workspace=root) as run:
            assert run.files is not None
            (root / "src" / "c.py").write_text("mine\n")
            run.step()
            assert run.files.put_back_lost() == ["src/c.py"]
            assert contents(root) == {**AFTER, "src/c.py": "mine\n"}
