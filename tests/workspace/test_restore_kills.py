"""kill -9 at any line of a restore with its files: one recover later the folder is the target, or as it was."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

import backstay
from tests.workspace.dying import run_killed
from tests.workspace.folders import capture_as, session_in
from tests.workspace.trees import leftovers, read_tree

MODULES = ("workspace", "run.file_restore", "run.holding", "store.history", "rules")
KILLS = 6
SEED = int(os.environ.get("BACKSTAY_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


def build(at: Path, kind: str) -> None:
    """A session with two steps, and an edit of a person's after them."""
    shutil.rmtree(at, ignore_errors=True)
    root = at / "project"
    root.mkdir(parents=True)
    with backstay.open(url(at, kind)) as store:
        session = session_in(store, root)
        (root / "a").write_text("1\n")
        (root / "gone").write_text("1\n")
        capture_as(session, {"step": 1}, "outside")
        (root / "a").write_text("2\n")
        (root / "gone").unlink()
        (root / "new").mkdir()
        (root / "new" / "f").write_text("2\n")
        capture_as(session, {"step": 2}, "call:1")
    (root / "mine").write_text("mine\n")


def url(at: Path, kind: str) -> str:
    return str(at / "s.db") if kind == "sqlite" else f"file://{at / 'store'}"


def restore(at: Path, kind: str) -> None:
    with backstay.open(url(at, kind)) as store:
        session_in(store, at / "project").restore("main~1", files=True, keep_mine=True)


def files(at: Path) -> dict[bytes, bytes]:
    return {path: thing[2] for path, thing in read_tree(at / "project").items() if thing[0] == "file"}


TARGET = {b"a": b"1\n", b"gone": b"1\n", b"mine": b"mine\n"}
BEFORE = {b"a": b"2\n", b"new/f": b"2\n", b"mine": b"mine\n"}


def kill_at(at: Path, kind: str, number: int, how: str) -> None:
    build(at, kind)
    assert run_killed(lambda: restore(at, kind), MODULES, number) is None, f"line {number} was never reached"
    with backstay.open(url(at, kind)) as store:
        session = session_in(store, at / "project")
        if how == "recover":
            backstay.recover(store, lambda _: None)
        elif how == "run":
            with session.run():
                pass
        else:
            session.restore(next(iter(session.log(limit=None))), files=True, keep_mine=True)
        step = session.load()["step"]
        assert files(at) == (TARGET if step == 1 else BEFORE), f"killed at line {number}"
        assert not session.calls(pending=True)
        assert not store.verify().problems
        # The folder is what the head says, and an undo leads back.
        assert session.restore("main", files=True, dry_run=True).steps == ()
        if step == 1 and how != "restore":  # that one is what an undo would take back
            session.undo()
            assert files(at) == BEFORE
    assert not [name for name in leftovers(at / "project") if name.startswith(("tmp", "kept"))]


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_killed_restore_ends_at_the_target_or_never_began(tmp_path: Path, kind: str) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    build(tmp_path / "counted", kind)
    total = run_killed(lambda: restore(tmp_path / "counted", kind), MODULES, None)
    assert total is not None
    for number in rng.sample(range(1, total), KILLS):
        kill_at(tmp_path / "at", kind, number, rng.choice(("run", "recover", "restore")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["run", "recover", "restore"])
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_in_hundreds_of_kills(tmp_path: Path, kind: str, how: str) -> None:
    build(tmp_path / "counted", kind)
    total = run_killed(lambda: restore(tmp_path / "counted", kind), MODULES, None)
    assert total is not None
    for number in range(1, total, max(1, total // 90)):
        kill_at(tmp_path / "at", kind, number, how)
