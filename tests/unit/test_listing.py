"""Lists of files: what goes into one comes out of it, and two of them differ in what differs."""

from __future__ import annotations

import stat
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.delta import LARGE_BYTES
from backstay.errors import CorruptionError
from backstay.listing import (
    OLDER,
    OUTSIDE,
    SECRET,
    ContentPlace,
    FileEntry,
    Listing,
    PlaceStep,
    difference,
    in_order,
    shown,
)
from backstay.listing.folders import folder_of, key_of, pack_folder

ROOT = FileEntry(b"", stat.S_IFDIR | 0o755)


def file(path: bytes, contents: bytes = b"x", mode: int = 0o644, mark: str = "", pieces: int = 0) -> FileEntry:
    place = None if mark == SECRET else ContentPlace(3, 17, pieces)
    return FileEntry(path, stat.S_IFREG | mode, len(contents), sha256(contents).digest(), b"", 5, place, mark)


def folder(path: bytes, mode: int = 0o755) -> FileEntry:
    return FileEntry(path, stat.S_IFDIR | mode)


def link(path: bytes, target: bytes) -> FileEntry:
    return FileEntry(path, stat.S_IFLNK | 0o777, target=target)


def listing(*entries: FileEntry) -> Listing:
    folders: dict[bytes, list[FileEntry]] = {}
    for entry in (ROOT, *entries):
        at = entry.path if entry.kind == "folder" else entry.path.rpartition(b"/")[0]
        folders.setdefault(at, []).append(entry)
    tree: dict[str, bytes] = {}
    for at, inside in folders.items():
        tree |= pack_folder(at, inside)
    return Listing(tree)


_NAMES = st.binary(min_size=1, max_size=9).filter(
    lambda name: not set(name) & {0, ord("/")} and name not in {b".", b".."}
)


@given(st.sets(_NAMES, max_size=20), _NAMES)
def test_every_name_that_a_file_system_has_comes_back(names: set[bytes], at: bytes) -> None:
    entries = [folder(at), *[file(at + b"/" + name, name) for name in names]]
    assert list(listing(*entries)) == sorted(entries, key=lambda entry: entry.path)
    assert folder_of(key_of(at)) == at


def test_links_secrets_pieces_and_empty_folders_come_back_as_they_were() -> None:
    entries = [
        file(b"big", mark=OLDER, pieces=9),
        folder(b"empty", 0o1700),
        link(b"link", b"../\xff"),
        file(b"secret", mark=SECRET),
    ]
    found = listing(*entries)
    assert list(found) == entries
    assert [entry.kind for entry in found] == ["file", "folder", "link", "file"]
    assert not found[b"secret"].has_contents
    assert len(found) == len(entries)
    assert b"big" in found
    assert b"nothing" not in found


def test_a_folder_of_many_files_is_cut_so_that_one_change_stays_small() -> None:
    entries = [file(b"f%d" % number, b"%d" % number) for number in range(5000)]
    before = listing(*entries)
    assert max(map(len, before.tree.values())) < LARGE_BYTES
    changed = pack_folder(b"", [ROOT, file(b"f0", b"other"), *entries[1:]], before.tree)
    differing = [key for key, value in changed.items() if before.tree.get(key) != value]
    assert len(differing) == 1
    assert list(changed) == list(before.tree)


def test_a_difference_names_what_was_added_removed_changed_and_of_another_mode() -> None:
    before = listing(file(b"a"), file(b"b"), file(b"c"), folder(b"d"), file(b"d/gone"), file(b"same"))
    after = listing(
        file(b"a", b"y"), file(b"b", mode=0o755), file(b"new"), folder(b"d"), link(b"c", b"a"), file(b"same")
    )
    found = difference(before, after)
    assert [change.path for change in found.added] == [b"new"]
    assert [change.path for change in found.removed] == [b"d/gone"]
    assert [change.path for change in found.changed] == [b"a", b"c"]
    assert [change.path for change in found.mode] == [b"b"]
    assert not difference(before, before)


def test_a_file_that_only_got_another_time_is_no_change() -> None:
    touched = msgspec.structs.replace(file(b"a"), mtime_ns=99, place=ContentPlace(7))
    assert not difference(listing(file(b"a")), listing(touched))


def test_below_gives_a_folder_and_all_in_it_and_not_its_namesakes() -> None:
    found = listing(folder(b"src"), file(b"src/a"), folder(b"src/lib"), file(b"src/lib/b"), file(b"src2"))
    assert [entry.path for entry in found.below(b"src")] == [b"src", b"src/a", b"src/lib", b"src/lib/b"]
    assert [entry.path for entry in found.below(b"src2")] == [b"src2"]


def test_the_authors_of_a_path_are_those_after_a_capture() -> None:
    who = {"a": b"".join([number.to_bytes(4, "big") for number in (1, 0, 3, 1, 4, 0)])}
    found = Listing({}, who=who, authors=(OUTSIDE, "call:7"))
    assert found.authors_since(b"a", 2) == ("call:7", OUTSIDE)
    assert found.authors_since(b"a", 4) == ()
    assert found.changes_of(b"b") == []


@pytest.mark.parametrize("damage", [b"", b"\x91\x92\xc4\x01a\xcd\x00\x00", b"\xc1", b"\x91\x93\xc4\x01a\x0f\xa1x"])
def test_a_damaged_folder_is_said_to_be_damaged(damage: bytes) -> None:
    with pytest.raises(CorruptionError):
        list(Listing({"src": damage}))


def test_steps_take_away_deepest_first_and_make_folders_before_what_is_in_them() -> None:
    steps = [
        PlaceStep(b"new/file", None, file(b"new/file")),
        PlaceStep(b"old", folder(b"old"), None),
        PlaceStep(b"new", None, folder(b"new")),
        PlaceStep(b"old/deep", file(b"old/deep"), None),
    ]
    assert [step.path for step in in_order(steps)] == [b"old/deep", b"old", b"new", b"new/file"]


def test_a_name_that_is_no_text_is_shown_spelled_out() -> None:
    assert shown(b"caf\xe9") == "caf\\xe9"
