"""kill -9 at any line while files are put back: the next try ends at the target, and later edits are kept and named."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.workspace.dying import run_killed
from tests.workspace.trees import FOLDER, Tree, file, leftovers, link, place, random_tree, read_tree, write_tree

MODULES = ("workspace",)
KILLS = 12
SEED = int(os.environ.get("BACKSTAY_SEED", "0")) or random.SystemRandom().randrange(1 << 30)

# One of each: replaced, made, removed, only its permissions, a link, and every change of kind.
BEFORE: Tree = {
    b"edited": file(b"1"),
    b"removed": file(b"1"),
    b"run": file(b"1"),
    b"l": link(b"a"),
    b"f2d": file(b"1"),
    b"d2f": FOLDER,
    b"d2f/x": file(b"1"),
    b"l2f": link(b"b"),
    b"gone": FOLDER,
    b"gone/y": file(b"1"),
}
AFTER: Tree = {
    b"edited": file(b"2"),
    b"run": file(b"1", 0o755),
    b"l": link(b"c"),
    b"f2d": ("folder", 0o700, b""),
    b"f2d/z": file(b"2"),
    b"d2f": file(b"2"),
    b"l2f": file(b"2"),
    b"new": FOLDER,
    b"new/\xff": file(b"2"),
}


def kill_once(root: Path, before: Tree, after: Tree, number: int, edit: bytes | None) -> None:
    """A kill at a line; then a person saves a file; then the restore is done again."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    write_tree(root, before)
    assert run_killed(lambda: place(root, before, after), MODULES, number) is None
    expected = dict(after)
    if edit is not None:
        (root / os.fsdecode(edit)).write_bytes(b"mine, saved after the kill")
        expected[edit] = ("file", (root / os.fsdecode(edit)).stat().st_mode & 0o777, b"mine, saved after the kill")
    placed = place(root, before, after)
    assert read_tree(root) == expected, f"killed at line {number}"
    assert set(placed.kept) == ({edit} if edit is not None else set()), f"killed at line {number}"
    assert not placed.rescued
    assert not leftovers(root)


def go_back_after(root: Path, before: Tree, after: Tree, number: int) -> None:
    """A kill at a line; then it is taken back instead."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    write_tree(root, before)
    assert run_killed(lambda: place(root, before, after), MODULES, number) is None
    placed = place(root, after, before, name="p2")
    assert read_tree(root) == before, f"killed at line {number}"
    assert not placed.kept
    assert not leftovers(root)


def lines_of(root: Path, before: Tree, after: Tree) -> int:
    root.mkdir()
    write_tree(root, before)
    total = run_killed(lambda: place(root, before, after), MODULES, None)
    assert total is not None
    assert read_tree(root) == after
    return total


def test_a_restore_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    total = lines_of(tmp_path / "counted", BEFORE, AFTER)
    for number in rng.sample(range(1, total), KILLS):
        kill_once(tmp_path / "root", BEFORE, AFTER, number, rng.choice((None, b"edited")))
        go_back_after(tmp_path / "root", BEFORE, AFTER, number)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
def test_at_every_single_line(tmp_path: Path, part: int) -> None:
    total = lines_of(tmp_path / "counted", BEFORE, AFTER)
    for number in range(1 + part, total, 8):
        kill_once(tmp_path / "root", BEFORE, AFTER, number, None)
        kill_once(tmp_path / "root", BEFORE, AFTER, number, b"edited")
        go_back_after(tmp_path / "root", BEFORE, AFTER, number)


@pytest.mark.exhaustive
def test_with_folders_of_every_shape(tmp_path: Path) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    for round_ in range(50):
        before, after = random_tree(rng), random_tree(rng)
        total = lines_of(tmp_path / f"counted{round_}", before, after)
        for number in rng.sample(range(1, total), 10):
            kill_once(tmp_path / "root", before, after, number, None)
            go_back_after(tmp_path / "root", before, after, number)
