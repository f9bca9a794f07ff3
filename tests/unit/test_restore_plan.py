"""The plan of a restore: what is put back, what stays a person's, and two changes of one text put together."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.listing import (
    OLDER,
    SECRET,
    ContentPlace,
    FileEntry,
    KeepMine,
    Listing,
    RestorePlan,
    Wish,
    merge_lines,
    plan_restore,
)
from backstay.listing.folders import key_of, pack_folder

CALLS, MINE = "call:1", "outside"
AUTHORS = (MINE, CALLS)
SINCE = 4


def entry(path: bytes, content: bytes | None, mark: str = "") -> FileEntry:
    if content is None:
        return FileEntry(path, stat.S_IFDIR | 0o755)
    place = None if mark == SECRET else ContentPlace(1)
    return FileEntry(path, stat.S_IFREG | 0o644, len(content), sha256(content).digest(), place=place, mark=mark)


def listing(files: dict[bytes, bytes | None], who: Mapping[bytes, tuple[str, ...]], marks: dict[bytes, str]) -> Listing:
    folders: dict[bytes, list[FileEntry]] = {b"": [entry(b"", None)]}
    for path, content in files.items():
        found = entry(path, content, marks.get(path, ""))
        at = path if content is None else path.rpartition(b"/")[0]
        folders.setdefault(at, []).append(found)
    tree: dict[str, bytes] = {}
    for at, inside in folders.items():
        tree |= pack_folder(at, inside)
    changes = {
        key_of(path): b"".join(
            (SINCE + 1 + n).to_bytes(4) + AUTHORS.index(author).to_bytes(4) for n, author in enumerate(authors)
        )
        for path, authors in who.items()
    }
    return Listing(tree, who=changes, authors=AUTHORS)


def plan(
    target: dict[bytes, bytes | None],
    disk: dict[bytes, bytes | None],
    who: Mapping[bytes, tuple[str, ...]],
    *,
    keep_mine: KeepMine = True,
    paths: tuple[bytes, ...] | None = None,
    merged: bytes | None = None,
    folds: bool = False,
    marks: dict[bytes, str] | None = None,
) -> RestorePlan:
    lists = listing(disk, who, marks or {}), listing(target, {}, {})
    return plan_restore(*lists, Wish(keep_mine, paths, SINCE, folds), lambda _: merged)


def sorted_of(found: RestorePlan) -> dict[str, list[bytes]]:
    return {
        "put": [step.path for step in found.put],
        "removed": [step.path for step in found.remove],
        "kept": list(found.kept),
        "merged": list(found.merged),
        "conflicts": list(found.conflicts),
    }


WHO = {b"calls": (CALLS,), b"mine": (MINE,), b"both": (CALLS, MINE), b"new": (CALLS,), b"my-new": (MINE,)}
TARGET: dict[bytes, bytes | None] = {b"calls": b"1", b"mine": b"1", b"both": b"1", b"gone": b"1"}
DISK: dict[bytes, bytes | None] = {b"calls": b"2", b"mine": b"2", b"both": b"2", b"new": b"2", b"my-new": b"2"}
NOTHING: list[bytes] = []


@pytest.mark.parametrize(
    ("keep_mine", "merged", "expected"),
    [
        (True, b"m", ([b"both", b"calls"], [b"new"], [b"gone", b"mine", b"my-new"], [b"both"], [])),
        (True, None, ([b"calls"], [b"new"], [b"gone", b"mine", b"my-new"], [], [b"both"])),
        ("always", None, ([b"calls"], [b"new"], [b"both", b"gone", b"mine", b"my-new"], [], [])),
        (False, None, ([b"both", b"calls", b"gone", b"mine"], [b"my-new", b"new"], [], [], [])),
        (None, b"m", ([b"calls"], [b"new"], [], [], [b"both", b"gone", b"mine", b"my-new"])),
    ],
)
def test_the_author_of_a_change_decides(
    keep_mine: KeepMine, merged: bytes | None, expected: tuple[list[bytes], ...]
) -> None:
    found = plan(TARGET, DISK, WHO, keep_mine=keep_mine, merged=merged)
    assert tuple(sorted_of(found).values()) == expected


def test_a_path_asked_for_by_its_name_is_put_back_and_no_other() -> None:
    found = plan(TARGET, DISK, WHO, keep_mine=None, paths=(b"mine", b"both"))
    assert sorted_of(found) == {
        "put": [b"both", b"mine"],
        "removed": [],
        "kept": [],
        "merged": [],
        "conflicts": [],
    }


def test_a_folder_asked_for_does_not_ask_for_what_is_mine_in_it() -> None:
    target: dict[bytes, bytes | None] = {b"d": None, b"d/a": b"1", b"d/b": b"1", b"e": b"1"}
    disk: dict[bytes, bytes | None] = {b"d": None, b"d/a": b"2", b"d/b": b"2", b"e": b"2"}
    who = {b"d/a": (CALLS,), b"d/b": (MINE,), b"e": (CALLS,)}
    found = plan(target, disk, who, paths=(b"d",))
    assert sorted_of(found)["put"] == [b"d/a"]
    assert found.kept == (b"d/b",)


def test_the_folder_of_a_file_that_stays_is_not_removed() -> None:
    disk: dict[bytes, bytes | None] = {b"d": None, b"d/e": None, b"d/e/mine": b"2", b"d/calls": b"2", b"x": None}
    found = plan({}, disk, {b"d/e/mine": (MINE,), b"d/calls": (CALLS,)})
    assert sorted_of(found)["removed"] == [b"d/calls", b"x"]
    assert found.kept == (b"d/e/mine",)


def test_a_file_that_stays_leaves_no_room_for_a_folder() -> None:
    found = plan({b"d": None, b"d/a": b"1"}, {b"d": b"mine now"}, {b"d": (MINE,)})
    assert not found.steps
    assert found.kept == (b"d", b"d/a")


def test_a_folder_with_mine_in_it_is_not_made_a_file() -> None:
    disk: dict[bytes, bytes | None] = {b"d": None, b"d/mine": b"2"}
    found = plan({b"d": b"a file once"}, disk, {b"d/mine": (MINE,), b"d": (CALLS,)})
    assert not found.steps
    assert found.kept == (b"d", b"d/mine")


def test_a_secret_and_a_file_that_outgrew_the_limit_are_left_alone() -> None:
    target: dict[bytes, bytes | None] = {b".env": b"1", b"big": b"1"}
    disk: dict[bytes, bytes | None] = {b".env": b"2", b"big": b"2"}
    who = {b".env": (CALLS,), b"big": (CALLS,)}
    found = plan(target, disk, who, keep_mine=False, marks={b".env": SECRET, b"big": OLDER})
    assert not found.steps
    assert found.without_contents == (b".env", b"big")


def test_names_that_fold_together_are_a_conflict_and_neither_is_lost() -> None:
    target: dict[bytes, bytes | None] = {b"README": b"1", b"readme": b"2", b"other": b"3"}
    found = plan(target, {b"README": b"0"}, {b"README": (CALLS,), b"readme": (CALLS,), b"other": (CALLS,)}, folds=True)
    assert found.conflicts == (b"README", b"readme")
    assert [step.path for step in found.steps] == [b"other"]


def test_a_merged_file_comes_with_its_contents() -> None:
    (step,) = plan({b"both": b"1"}, {b"both": b"2"}, {b"both": (CALLS, MINE)}, merged=b"merged").steps
    assert step.contents == b"merged"
    assert step.after is not None
    assert step.after.digest == sha256(b"merged").digest()
    assert msgspec.msgpack.encode(step)


# lines

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n"]), max_size=12).map(b"".join)


@given(LINES, LINES)
def test_a_change_of_one_side_is_that_change(base: bytes, changed: bytes) -> None:
    assert merge_lines(base, changed, base) == changed
    assert merge_lines(base, base, changed) == changed
    assert merge_lines(base, changed, changed) == changed


@given(LINES, LINES, LINES)
def test_it_does_not_matter_who_is_who(base: bytes, mine: bytes, theirs: bytes) -> None:
    assert merge_lines(base, mine, theirs) == merge_lines(base, theirs, mine)


@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=10), st.booleans())
def test_changes_that_do_not_touch_are_both_there(sides: list[int], ends: bool) -> None:
    """Every other line stays as it is; of those between, each is changed by one side or by none."""

    def text(changed_by: tuple[int, ...]) -> bytes:
        lines = [b"%d %b\nkept %d\n" % (n, b"new" if side in changed_by else b"old", n) for n, side in enumerate(sides)]
        return b"".join(lines) + (b"end" if ends else b"")

    assert merge_lines(text(()), text((1,)), text((2,))) == text((1, 2))


@pytest.mark.parametrize(
    ("base", "mine", "theirs"),
    [
        (b"a\nb\n", b"x\nb\n", b"y\nb\n"),
        (b"a\nb\nc\n", b"a\nx\nc\n", b"y\nb\nc\n"),  # neighbours
        (b"a\n", b"a\nx\n", b"a\ny\n"),
        (b"\0a", b"\0b", b"\0c"),
    ],
)
def test_changes_of_the_same_lines_are_no_merge(base: bytes, mine: bytes, theirs: bytes) -> None:
    assert merge_lines(base, mine, theirs) is None
