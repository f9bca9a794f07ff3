"""Files put back: every kind of thing at every kind of place, and nothing of a person's is lost."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest

from backstay.errors import CorruptionError, InvalidInputError, LeaseHeldError, UnavailableError
from backstay.listing import PlaceStep
from backstay.workspace import placement as placement_module
from backstay.workspace import system_calls
from backstay.workspace.open_root import OpenRoot, look_in
from backstay.workspace.placement import CHANGED, CREATED, GONE, NOT_EMPTY, Placement
from tests.workspace.trees import (
    FOLDER,
    Tree,
    entry_of,
    file,
    leftovers,
    link,
    place,
    random_tree,
    read_tree,
    steps_between,
    write,
    write_tree,
)

SEEDS = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture(params=["exchange", "without exchange"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the calls of this system, and as on one that has none of them."""
    if request.param == "without exchange":
        monkeypatch.setattr(system_calls, "_rename", None)
        monkeypatch.setattr(system_calls, "_has_openat2", False)
        monkeypatch.setattr(system_calls, "_syncfs", None)
    return str(request.param)


def test_any_folder_becomes_any_other(tmp_path: Path, way: str) -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        before, after = random_tree(rng), random_tree(rng)
        root = tmp_path / str(seed)
        root.mkdir()
        write_tree(root, before)
        placed = place(root, before, after)
        assert read_tree(root) == after, seed
        assert not placed.kept
        assert not leftovers(root)


def test_what_does_not_differ_is_not_touched(root: Path) -> None:
    before: Tree = {b"same": file(b"1"), b"other": file(b"2"), b"run": file(b"3")}
    write_tree(root, before)
    os.utime(root / "same", (1, 1))
    inode = (root / "run").stat().st_ino
    place(root, before, {**before, b"other": file(b"new"), b"run": file(b"3", 0o755)})
    assert (root / "same").stat().st_mtime == 1
    assert (root / "run").stat().st_ino == inode, "only its permissions differed"
    assert (root / "run").stat().st_mode & 0o777 == 0o755


def test_a_program_that_tells_files_by_size_and_second_sees_a_new_one(root: Path, way: str) -> None:
    before: Tree = {b"price.py": file(b"PRICE = 12\n")}
    write_tree(root, before)
    for number in range(3):
        second = int((root / "price.py").stat().st_mtime)
        after: Tree = {b"price.py": file(b"PRICE = %d\n" % (20 + number))}
        place(root, before, after)
        assert int((root / "price.py").stat().st_mtime) != second, "Python would run what it compiled before"
        before = after


def test_a_later_edit_is_kept_and_named(root: Path, way: str) -> None:
    before: Tree = {b"edited": file(b"1"), b"gone": file(b"1"), b"free": file(b"1"), b"f": file(b"1"), b"x": file(b"1")}
    after: Tree = {
        b"edited": file(b"2"),
        b"gone": file(b"2"),
        b"new": file(b"2"),
        b"x": file(b"2"),
        b"free": file(b"2"),
    }
    write_tree(root, before)
    (root / "edited").write_bytes(b"mine")
    (root / "gone").unlink()
    (root / "new").write_bytes(b"mine too")
    (root / "f").write_bytes(b"was to be removed")
    (root / "x").unlink()
    (root / "x").symlink_to("/etc/passwd")
    placed = place(root, before, after)
    assert placed.kept == {b"edited": CHANGED, b"gone": GONE, b"new": CREATED, b"f": CHANGED, b"x": CHANGED}
    now = read_tree(root)
    assert now[b"edited"][2] == b"mine"
    assert now[b"new"][2] == b"mine too"
    assert now[b"f"][2] == b"was to be removed"
    assert now[b"free"] == file(b"2")
    assert now[b"x"] == link(b"/etc/passwd")


def test_a_folder_with_something_not_captured_stays(root: Path, way: str) -> None:
    before: Tree = {b"d": FOLDER, b"d/known": file(b"1"), b"e": FOLDER, b"e/known": file(b"1")}
    write_tree(root, before)
    (root / "d" / "ignored").write_bytes(b"never captured")
    (root / "e" / "ignored").write_bytes(b"never captured")
    placed = place(root, before, {b"e": file(b"a file now")})
    assert placed.kept == {b"d": NOT_EMPTY, b"e": NOT_EMPTY}
    assert read_tree(root) == {
        b"d": FOLDER,
        b"d/ignored": file(b"never captured"),
        b"e": FOLDER,
        b"e/ignored": file(b"never captured"),
    }


def test_a_socket_in_the_way_is_never_opened(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
        os.mkfifo(root / "pipe")
        placed = place(root, {}, {b"s": file(b"1"), b"pipe": file(b"2")})
    assert placed.kept == {b"s": CREATED, b"pipe": CREATED}


def test_done_again_it_does_nothing(root: Path, way: str) -> None:
    before, after = random_tree(random.Random(5)), random_tree(random.Random(7))
    write_tree(root, before)
    place(root, before, after)
    stamps = {path: (root / os.fsdecode(path)).lstat().st_ctime_ns for path in after}
    assert not place(root, before, after).kept
    assert stamps == {path: (root / os.fsdecode(path)).lstat().st_ctime_ns for path in after}


@pytest.mark.parametrize(
    "path",
    [b"../out", b"/etc/x", b"a/../../x", b".git/hooks/post-commit", b"sub/.GIT/config", b".backstay/x", b"", b"a\0b"],
)
def test_no_list_reaches_beyond_the_folder_or_into_git(root: Path, path: bytes) -> None:
    step = PlaceStep(path, None, entry_of(path, file(b"bad")))
    with OpenRoot(root) as opened, opened.locked():
        placement = Placement(opened, "p", [step])
        placement.stage(lambda _: (b"bad",))
        placed = placement.apply()
        placement.clear()
    assert list(placed.kept) == [path]
    assert not read_tree(root)
    assert {entry.name for entry in root.parent.iterdir()} == {"root"}


def test_a_folder_of_ours_that_is_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (root / ".backstay").symlink_to(victim)
    with pytest.raises(InvalidInputError, match="no folder of its own"):
        place(root, {}, {b"a": file(b"1")})
    assert not list(victim.iterdir())


def test_a_link_in_the_way_is_not_followed(root: Path, tmp_path: Path, way: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "f").write_bytes(b"1")
    before: Tree = {b"d": FOLDER, b"d/f": file(b"1")}
    (root / "d").symlink_to(victim)
    placed = place(root, before, {b"d": FOLDER, b"d/f": file(b"2"), b"d/g": file(b"3")})
    assert set(placed.kept) == {b"d/f", b"d/g"}
    placed = place(root, before, {})
    assert set(placed.kept) == {b"d"}
    assert read_tree(victim) == {b"f": file(b"1")}


def test_damaged_contents_cost_the_restore_and_not_the_folder(root: Path) -> None:
    before: Tree = {b"a": file(b"1"), b"b": file(b"1")}
    write_tree(root, before)
    with OpenRoot(root) as opened, opened.locked():
        placement = Placement(opened, "p", steps_between(before, {b"a": file(b"2"), b"b": file(b"2")}))
        with pytest.raises(CorruptionError, match="1 file"):
            placement.stage(lambda step: (b"2" if step.path == b"a" else b"rot",))
    assert read_tree(root) == before
    assert not leftovers(root)


def test_a_disk_that_is_full_changes_nothing(root: Path) -> None:
    before: Tree = {b"a": file(b"1")}
    write_tree(root, before)
    entry = entry_of(b"a", file(b""))
    assert entry is not None
    huge = PlaceStep(b"a", entry_of(b"a", before[b"a"]), type(entry)(b"a", entry.mode, 2**60, entry.digest))
    with OpenRoot(root) as opened, opened.locked():
        placement = Placement(opened, "p", [huge])
        with pytest.raises(UnavailableError, match="are free; nothing was changed"):
            placement.stage(lambda _: (b"",))
    assert read_tree(root) == before


def test_two_restores_of_one_folder_take_turns(root: Path) -> None:
    with OpenRoot(root) as one, one.locked(), OpenRoot(root) as other, pytest.raises(LeaseHeldError), other.locked():
        pass


def test_a_save_at_the_very_moment_wins(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save lands between the look at the old file and the exchange."""
    before: Tree = {b"put": file(b"1"), b"removed": file(b"1")}
    write_tree(root, before)

    def save_then_exchange(tmp: int, aside: bytes, folder: int, name: bytes) -> bool:
        (root / os.fsdecode(name)).write_bytes(b"saved just now")
        return system_calls.exchange(tmp, aside, folder, name)

    def save_then_move(from_folder: int, from_name: bytes, to_folder: int, to_name: bytes) -> None:
        if from_name == b"removed":
            (root / "removed").write_bytes(b"saved just now")
        system_calls.move(from_folder, from_name, to_folder, to_name)

    monkeypatch.setattr(placement_module, "exchange", save_then_exchange)
    monkeypatch.setattr(placement_module, "move", save_then_move)
    placed = place(root, before, {b"put": file(b"2")})
    assert placed.kept == {b"put": CHANGED, b"removed": CHANGED}
    assert read_tree(root) == {b"put": file(b"saved just now"), b"removed": file(b"saved just now")}
    assert not leftovers(root)


def test_a_program_that_has_the_old_file_open_still_writes_to_its_own(root: Path, way: str) -> None:
    before: Tree = {b"log": file(b"1"), b"z": file(b"1")}
    write_tree(root, before)
    with (root / "log").open("ab", buffering=0) as log, OpenRoot(root) as opened, opened.locked():
        after: Tree = {b"log": file(b"2"), b"z": file(b"2")}
        placement = Placement(opened, "p", steps_between(before, after))
        placement.stage(lambda step: (after[step.path][2],))
        seen: list[int | None] = []

        def write_late(folder: int, name: bytes, device: int) -> object:
            if name == b"z" and not seen:  # the log has been exchanged by now
                seen.append(log.write(b" and more"))
            return look_in(folder, name, device)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placement_module, "look_in", write_late)
            placed = placement.apply()
        placement.clear()
    assert placed.kept == {b"log": CHANGED}
    if way == "exchange":
        assert read_tree(root) == {b"log": file(b"1 and more"), b"z": file(b"2")}
    else:  # its name cannot be had back in one step: what was written lies apart, and is named
        assert read_tree(root)[b"log"] == file(b"2")
        assert (root / placed.rescued[b"log"]).read_bytes() == b"1 and more"


def test_holes_stay_holes(root: Path) -> None:
    content = b"x" + bytes(4 << 20) + b"y"
    place(root, {}, {b"sparse": file(content), b"tail": file(bytes(1 << 17))})
    assert (root / "sparse").read_bytes() == content
    assert (root / "sparse").stat().st_blocks * 512 < 1 << 20
    assert (root / "tail").stat().st_size == 1 << 17


def test_setuid_is_never_set(root: Path) -> None:
    place(root, {}, {b"su": file(b"#!", 0o6755)})
    assert (root / "su").stat().st_mode & 0o7777 == 0o755


def test_a_thing_put_aside_by_a_killed_restore_is_given_back(root: Path) -> None:
    """A kill between the exchange and the look at what came out: a person's save lies in the folder of ours."""
    before, after = {b"a": file(b"1")}, {b"a": file(b"2")}
    write_tree(root, before)
    with OpenRoot(root) as opened, opened.locked():
        placement = Placement(opened, "p", steps_between(before, after))
        placement.stage(lambda _: (b"2",))
        aside = root / ".backstay" / "tmp" / "p" / "s0"
        aside.write_bytes(b"saved just now")
        write(root, b"a", file(b"2"))
    placed = place(root, before, after)
    assert placed.kept == {b"a": CHANGED}
    assert read_tree(root)[b"a"][2] == b"saved just now"
    assert not leftovers(root)
