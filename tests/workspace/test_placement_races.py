"""Links swapped in while files are put back: nothing outside the folder is written or removed, whatever the moment."""

from __future__ import annotations

import multiprocessing
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pytest

from backstay.workspace import system_calls
from tests.workspace.trees import FOLDER, Tree, file, place, read_tree, write_tree

_fork = multiprocessing.get_context("fork")


def swap(root: Path, victim: Path, swaps: Synchronized[int], stop: Synchronized[int]) -> None:
    """Let `d` be a folder, then a link to the victim, then a folder, as fast as can be."""
    folder, away = root / "d", root / "away"
    link = root / "link"
    while not stop.value:
        folder.rename(away)
        link.symlink_to(victim)
        link.rename(folder)
        folder.unlink()
        away.rename(folder)
        swaps.value += 1


def race(tmp_path: Path, wanted_swaps: int, wanted_writes: int) -> None:
    root, victim = tmp_path / "root", tmp_path / "victim"
    root.mkdir()
    victim.mkdir()
    old: Tree = {b"d": FOLDER, b"d/f": file(b"old"), b"d/gone": file(b"old")}
    new: Tree = {b"d": FOLDER, b"d/f": file(b"new"), b"d/made": file(b"new")}
    write_tree(root, old)
    # The victim looks exactly like the folder, so that nothing but the way there tells them apart.
    write_tree(victim, {b"f": file(b"old"), b"gone": file(b"old")})
    swaps, stop = _fork.Value("i", 0), _fork.Value("i", 0)
    swapper = _fork.Process(target=swap, args=(root, victim, swaps, stop))
    swapper.start()
    writes = 0
    try:
        while (swaps.value < wanted_swaps or writes < wanted_writes) and swapper.is_alive():
            for a, b in ((old, new), (new, old)):
                writes += len([path for path in place(root, a, b).done if b"/" in path])
            assert read_tree(victim) == {b"f": file(b"old"), b"gone": file(b"old")}
    finally:
        stop.value = 1
        swapper.join()
    assert swapper.exitcode == 0
    assert swaps.value >= wanted_swaps
    assert read_tree(victim) == {b"f": file(b"old"), b"gone": file(b"old")}


@pytest.mark.parametrize("walk", ["openat2", "one folder at a time"])
def test_nothing_outside_is_written_while_links_are_swapped_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: str
) -> None:
    if walk != "openat2":
        monkeypatch.setattr(system_calls, "_has_openat2", False)
    race(tmp_path, 300, 4)


@pytest.mark.exhaustive
def test_nothing_outside_is_written_in_a_hundred_thousand_swaps(tmp_path: Path) -> None:
    race(tmp_path, 100_000, 50)


def save(root: Path, saves: int, done: Synchronized[int]) -> None:
    """An editor: writes aside and renames, again and again; each save holds all the ones before it."""
    for number in range(saves):
        aside = root.parent / "f.swp"
        aside.write_bytes(b"save %d" % number)
        aside.rename(root / "f")
        done.value = number


def no_save_is_lost(root: Path, saves: int) -> None:
    """The last save is on the disk: neither a restore nor an exchange back has put an older one over it."""
    root.mkdir()
    write_tree(root, {b"f": file(b"start")})
    done = _fork.Value("i", -1)
    editor = _fork.Process(target=save, args=(root, saves, done))
    editor.start()
    replaced: set[bytes] = set()
    while editor.is_alive():
        seen = read_tree(root).get(b"f")
        if seen is not None and b"f" in place(root, {b"f": seen}, {b"f": file(b"target")}).done:
            replaced.add(seen[2])
    editor.join()
    assert editor.exitcode == 0
    last = read_tree(root)[b"f"][2]
    apart = [path.read_bytes() for path in (root / ".backstay" / "kept").glob("*")]
    final = b"save %d" % (saves - 1)
    # It was either left alone, or it was what a restore was asked to replace.
    assert last == final or final in apart or (last == b"target" and final in replaced)


def test_a_restore_never_buries_a_save(tmp_path: Path) -> None:
    no_save_is_lost(tmp_path / "root", 300)


@pytest.mark.exhaustive
def test_a_restore_never_buries_a_save_in_thirty_thousand(tmp_path: Path) -> None:
    no_save_is_lost(tmp_path / "root", 30_000)
