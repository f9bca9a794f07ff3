"""A capture has every file that belongs, says what it left out and why, and reads only what may have changed."""

from __future__ import annotations

import os
import random
import shutil
import socket
import time
from pathlib import Path

import pytest

import backstay
from backstay.errors import CorruptionError, InvalidInputError, UnavailableError
from backstay.grouping import apply_patch, contents_of, make_patch
from backstay.listing import EMPTY, OLDER, OUTSIDE, SECRET, Listing, difference, from_value, to_value
from backstay.retention import to_bytes
from backstay.workspace import capturing, reading
from backstay.workspace.capturing import Capture, Capturer
from backstay.workspace.open_root import OpenRoot
from backstay.workspace.policy import Workspace, is_secret_name


class Folder:
    """A folder that is captured again and again, and the groups of its contents."""

    def __init__(self, path: Path, **options: object) -> None:
        self.path = path
        self.groups: dict[bytes, bytes] = {}
        self.workspace = Workspace(path, **options)  # type: ignore[arg-type]
        self.capturer = Capturer(self.workspace)
        self.last = EMPTY

    def write(self, name: str, contents: bytes | str) -> Path:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents.encode() if isinstance(contents, str) else contents)
        return target

    def capture(self, *, author: str = OUTSIDE, every: bool = False, budget_s: float | None = None) -> Capture:
        found = self.capturer.capture(
            self.last, fetch=self.fetch, emit=self.groups.__setitem__, author=author, every=every, budget_s=budget_s
        )
        self.last = from_value(to_value(found.listing)) if found.listing is not self.last else self.last
        return found

    def fetch(self, digests: object) -> dict[bytes, bytes]:
        return {digest: self.groups[digest] for digest in digests}  # type: ignore[attr-defined]

    def contents(self, name: str, listing: Listing | None = None) -> bytes:
        listing = self.last if listing is None else listing
        return contents_of(listing, listing[os.fsencode(name)], self.fetch)

    @property
    def paths(self) -> list[str]:
        return [os.fsdecode(entry.path) for entry in self.last]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    root = tmp_path / "work"
    root.mkdir()
    return Folder(root)


def test_files_links_empty_folders_and_modes_are_all_there(folder: Folder) -> None:
    folder.write("src/run.sh", "echo").chmod(0o750)
    (folder.path / "empty").mkdir(mode=0o700)
    (folder.path / "link").symlink_to("src/run.sh")
    folder.capture()
    assert folder.paths == ["empty", "link", "src", "src/run.sh"]
    assert folder.last[b"src/run.sh"].permissions == 0o750
    assert folder.last[b"link"].target == b"src/run.sh"
    assert folder.contents("src/run.sh") == b"echo"


def test_a_name_that_is_not_utf_8_is_captured(folder: Folder) -> None:
    raw = os.path.join(os.fsencode(folder.path), b"caf\xe9")
    os.mkdir(raw)
    with open(os.path.join(raw, b"\xff.txt"), "wb") as file:
        file.write(b"odd")
    folder.capture()
    assert contents_of(folder.last, folder.last[b"caf\xe9/\xff.txt"], folder.fetch) == b"odd"


def test_nothing_changed_is_the_very_same_list_and_reads_no_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        folder.write(f"d{number % 5}/f{number}", f"{number}")
    settled(folder)
    folder.capture()
    before = folder.last
    monkeypatch.setattr(capturing, "read_file", lambda *_, **__: pytest.fail("a file was read"))
    assert folder.capture().listing is before


def test_a_new_process_reads_nothing_again_that_did_not_change(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a", "one")
    settled(folder)
    folder.capture()
    folder.capturer = Capturer(folder.workspace)
    monkeypatch.setattr(capturing, "read_file", lambda *_, **__: pytest.fail("a file was read"))
    assert folder.capture().changed == ()


def test_a_rewrite_of_the_same_length_right_after_a_capture_is_seen(folder: Folder) -> None:
    for round_ in range(200):
        folder.write("a", f"{round_:08}")
        folder.capture()
        assert folder.contents("a") == b"%08d" % round_


def test_a_file_whose_time_was_put_back_is_seen(folder: Folder) -> None:
    target = folder.write("a", "one")
    settled(folder)
    folder.capture()
    status = target.stat()
    target.write_bytes(b"two")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    folder.capture()
    assert folder.contents("a") == b"two"


def test_every_version_of_a_file_that_is_edited_often_comes_back(folder: Folder) -> None:
    rng = random.Random(3)
    text = [f"line {number} {rng.random()}" for number in range(400)]
    versions: list[tuple[Listing, bytes]] = []
    for step in range(90):
        text[rng.randrange(len(text))] = f"edit {step}"
        contents = "\n".join(text).encode()
        folder.write("main.py", contents)
        folder.capture()
        versions.append((folder.last, contents))
    assert max(len(listing.patches.get("main.py", ())) for listing, _ in versions) > 10
    for listing, contents in versions:
        assert folder.contents("main.py", listing) == contents


def test_an_edit_stores_a_patch_and_no_copy(folder: Folder) -> None:
    folder.write("big.txt", "".join(f"{number}\n" for number in range(60_000)))
    folder.capture()
    stored = sum(map(len, folder.groups.values()))
    with (folder.path / "big.txt").open("ab") as file:
        file.write(b"one more line\n")
    folder.capture()
    assert sum(map(len, folder.groups.values())) == stored
    assert sum(map(len, folder.last.patches["big.txt"])) < 200


def test_a_file_that_was_moved_is_stored_once(folder: Folder) -> None:
    contents = random.Random(1).randbytes(100_000)
    folder.write("a/data", contents)
    folder.capture()
    stored = sum(map(len, folder.groups.values()))
    (folder.path / "a").rename(folder.path / "b")
    folder.capture()
    assert sum(map(len, folder.groups.values())) == stored
    assert folder.contents("b/data") == contents
    assert "a" not in folder.paths


def test_a_file_beyond_8_mib_is_cut_and_keeps_the_pieces_it_had(folder: Folder) -> None:
    rng = random.Random(2)
    contents = rng.randbytes(9 * 1024 * 1024)
    folder.write("large", contents)
    folder.capture()
    assert len(folder.groups) == 2
    for _ in range(17):  # beyond what a chain of a long file may have
        contents += rng.randbytes(100)
        folder.write("large", contents)
        folder.capture()
    assert folder.contents("large") == contents
    assert sum(map(len, folder.groups.values())) < 13 * 1024 * 1024


def test_ignore_files_decide_from_their_folder_down_and_a_change_of_them_counts(folder: Folder) -> None:
    folder.write(".gitignore", "*.log\n/out/\n")
    folder.write("sub/.gitignore", "!keep.log\nsecret/\n")
    for name in ("a.log", "out/x", "sub/b.log", "sub/keep.log", "sub/out/y", "sub/secret/z", "a.txt"):
        folder.write(name, name)
    folder.capture()
    assert [path for path in folder.paths if "." in path.rpartition("/")[2]] == [
        ".gitignore",
        "a.txt",
        "sub/.gitignore",
        "sub/keep.log",
    ]
    assert "sub/out/y" in folder.paths
    assert folder.last.about.why["ignored"].count == 4
    folder.write(".gitignore", "*.txt\n")
    folder.capture()
    assert "a.txt" not in folder.paths
    assert {"a.log", "out/x", "sub/b.log"} <= set(folder.paths)


def test_a_file_in_the_place_of_an_ignored_folder_is_captured(folder: Folder) -> None:
    folder.write(".gitignore", "out/\n")
    folder.write("out/x", "made by a tool")
    folder.capture()
    assert folder.paths == [".gitignore"]
    shutil.rmtree(folder.path / "out")
    folder.write("out", "a report")
    folder.capture()
    assert folder.paths == [".gitignore", "out"]


def test_what_tools_make_is_left_out_where_no_ignore_file_says_anything(folder: Folder) -> None:
    folder.write("node_modules/x/index.js", "x")
    folder.write("src/__pycache__/a.pyc", "x")
    folder.write("src/a.py", "x")
    folder.capture()
    assert folder.paths == ["src", "src/a.py"]
    folder.write(".gitignore", "")
    folder.capture()
    assert "node_modules/x/index.js" in folder.paths


def test_include_and_exclude_come_before_the_ignore_files(folder: Folder) -> None:
    folder.write(".gitignore", "*.log\n")
    folder.write("a.log", "x")
    folder.write("b.txt", "x")
    folder = Folder(folder.path, include=["a.log"], exclude=["b.txt"])
    folder.capture()
    assert folder.paths == [".gitignore", "a.log"]


def test_git_and_backstays_own_folder_are_never_captured(folder: Folder) -> None:
    folder.write(".git/HEAD", "ref: refs/heads/main\n")
    folder.write(".git/refs/heads/main", "0123456789\n")
    folder.write("nested/.git/config", "x")
    folder.write("nested/a", "x")
    folder.capture()
    assert folder.paths == ["nested", "nested/a"]
    assert folder.last.about.git == ("0123456789", "main")
    assert (folder.path / ".backstay").is_dir()


def test_special_files_are_listed_as_left_out_and_never_opened(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder.path / "pipe")
    monkeypatch.chdir(folder.path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind("sock")
    folder.capture()
    assert folder.paths == []
    assert folder.last.about.why["neither file, link nor folder"].first == ("pipe", "sock")


def test_a_file_that_outgrows_the_limit_keeps_its_last_version_and_is_listed(folder: Folder) -> None:
    folder = Folder(folder.path, max_file=1000)
    folder.write("log", "x" * 900)
    folder.write("huge", "y" * 2000)
    folder.capture()
    assert folder.paths == ["log"]
    folder.write("log", "x" * 1100)
    folder.capture()
    assert folder.last[b"log"].mark == OLDER
    assert folder.contents("log") == b"x" * 900
    assert folder.last.about.why["over max_file"].count == 2
    folder.write("log", "z")
    folder.capture()
    assert (folder.last[b"log"].mark, folder.contents("log")) == ("", b"z")


def test_a_folder_that_is_too_large_is_refused_with_its_largest_folders(folder: Folder) -> None:
    folder = Folder(folder.path, max_total="1KB")
    folder.write("data/x", "x" * 2000)
    with pytest.raises(InvalidInputError, match=r"data/  1 files, 2,000 bytes"):
        folder.capture()


@pytest.mark.parametrize("path", ["/", str(Path.home()), str(Path.home().parent), "/does/not/exist"])
def test_a_root_that_is_no_project_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputError):
        Workspace(path)


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        (".env", True),
        ("a/.env.local", True),
        (".env.example", False),
        ("server.pem", True),
        ("id_rsa", True),
        ("id_rsa.pub", False),
        ("id_map.py", False),
        ("credentials.json", True),
        ("credentials.py", False),
        ("x/.aws/config", True),
        ("main.py", False),
    ],
)
def test_secrets_are_told_by_their_names(path: str, secret: bool) -> None:
    assert is_secret_name(path) is secret


def test_of_a_secret_only_a_keyed_digest_is_kept(folder: Folder) -> None:
    folder.write(".env", "PASSWORD=hunter2")
    folder.write("notes.txt", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc")
    folder.capture()
    assert not folder.groups
    assert {folder.last[name].mark for name in (b".env", b"notes.txt")} == {SECRET}
    other = Folder(folder.path)
    (folder.path / ".backstay" / "secret-key").unlink()
    other.capture()
    assert other.last[b".env"].digest != folder.last[b".env"].digest
    with pytest.raises(CorruptionError):
        folder.contents(".env")


def test_secrets_can_be_captured_or_skipped(folder: Folder) -> None:
    folder.write(".env", "x")
    taken, passed = Folder(folder.path, secrets="capture"), Folder(folder.path, secrets="skip")
    taken.capture()
    passed.capture()
    assert taken.contents(".env") == b"x"
    assert passed.paths == []
    assert passed.last.about.why["secret: only a digest is kept"].count == 1


def test_each_change_has_its_author(folder: Folder) -> None:
    folder.write("a", "1")
    folder.write("b", "1")
    folder.capture()
    start = folder.last.about.capture
    folder.write("a", "22")
    folder.capture(author="call:7")
    folder.write("a", "333")
    (folder.path / "b").unlink()
    folder.capture()
    assert folder.last.authors_since(b"a", start) == ("call:7", OUTSIDE)
    assert folder.last.authors_since(b"b", start) == (OUTSIDE,)


def test_a_folder_swapped_for_a_link_is_not_entered(folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    folder.write("sub/a", "x")
    folder.capture()
    (folder.path / "sub" / "a").unlink()
    (folder.path / "sub").rmdir()
    (folder.path / "sub").symlink_to(outside)
    folder.capture()
    assert folder.paths == ["sub"]
    assert folder.last[b"sub"].kind == "link"


def test_a_file_that_is_being_written_is_named_and_the_capture_is_not_exact(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = folder.write("log", "x" * 100)
    read = reading._contents

    def grows(handle: int, size: int, limit: int) -> bytes | None:
        found = read(handle, size, limit)
        with target.open("ab") as file:
            file.write(b"more")
        return found

    monkeypatch.setattr(reading, "_contents", grows)
    monkeypatch.setattr(reading, "_PAUSE_S", 0)
    folder.capture()
    assert not folder.last.about.exact
    assert folder.last.about.why["was being written"].first == ("log",)


def test_a_capture_without_time_says_so_and_the_next_one_finishes_it(folder: Folder) -> None:
    folder.write("a", "1")
    folder.capture()
    folder.write("b", "2")
    folder.capture(budget_s=0)
    assert (folder.last.about.exact, "b" in folder.paths) == (False, False)
    assert folder.last.about.why["ran out of time"].first == ("a", "b")
    folder.capture()
    assert (folder.last.about.exact, folder.contents("b")) == (True, b"2")


def test_another_list_than_the_last_one_is_compared_with_the_folder_too(folder: Folder) -> None:
    folder.write("a", "1")
    settled(folder)
    folder.capture()
    first = folder.last
    folder.write("a", "2")
    settled(folder)
    folder.capture()
    folder.last = first
    assert folder.capture().changed == (b"a",)
    assert folder.contents("a") == b"2"


def test_groups_that_no_file_needs_are_let_go(folder: Folder) -> None:
    for step in range(33):
        folder.write("a", random.Random(step).randbytes(70_000))
        folder.capture()
    assert sum([any(digest) for held in folder.last.groups.values() for digest in held.each()]) < 5


def test_a_patch_that_does_not_fit_is_damage() -> None:
    patch = make_patch(b"x" * 100, b"x" * 100 + b"y")
    assert apply_patch(b"x" * 100, patch) == b"x" * 100 + b"y"
    with pytest.raises(CorruptionError):
        apply_patch(b"x" * 100, patch[:-3])


def test_a_folder_nested_deeper_than_descriptors_are_held_is_walked(folder: Folder) -> None:
    deep = "/".join(["d"] * 120)
    folder.write(f"{deep}/leaf", "x")
    folder.capture()
    assert folder.contents(f"{deep}/leaf") == b"x"
    assert not difference(folder.last, folder.capture().listing)


@pytest.mark.parametrize(("given", "size"), [("64MiB", 64 << 20), ("1.5 kb", 1500), (7, 7), ("3", 3)])
def test_sizes_may_be_given_as_text(given: int | str, size: int) -> None:
    assert to_bytes(given) == size


@pytest.mark.parametrize("given", ["x", "3 apples", -1, 1.5])
def test_a_size_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(InvalidInputError):
        to_bytes(given)  # type: ignore[arg-type]


def settled(folder: Folder) -> None:
    """Make the files older than a tick of the clock: what was written a moment ago is read again."""
    past = time.time_ns() - 10_000_000_000
    for path in folder.path.rglob("*"):
        if path.is_file() and ".backstay" not in path.parts:
            os.utime(path, ns=(past, past))
    time.sleep(0.05)


def test_a_first_run_in_a_folder_that_is_too_large_leaves_no_session_behind(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 5000)
    with backstay.open("memory://") as store:
        workspace = backstay.Workspace(tmp_path, max_total=4000)
        with pytest.raises(InvalidInputError, match="to capture"), store.run("shop", workspace=workspace):
            pytest.fail("it began")
        assert list(store.sessions()) == []


def test_a_tilde_is_said_not_to_be_expanded() -> None:
    with pytest.raises(InvalidInputError) as caught:
        backstay.Workspace("~/no-such-project")
    assert "`~` is not expanded" in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_may_not_be_written_is_named_in_words(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with OpenRoot(tmp_path) as root:
        os.seteuid(65534)
        try:
            with pytest.raises(UnavailableError) as caught:
                root.own_folder()
        finally:
            os.seteuid(0)
    assert str(caught.value).startswith(f".backstay cannot be made in {tmp_path}: Permission denied")
