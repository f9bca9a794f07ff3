"""Opening: one clear error for what is not a store, and whatever it was is left as it was."""

import asyncio
import hashlib
import os
import shutil
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import backstay
import backstay.aio
from backstay import (
    BackstayError,
    ClosedError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    UnavailableError,
    UnsupportedError,
    opening,
)
from backstay.backends.sqlite import connections, store_file
from backstay.backends.sqlite import file_system as mounts
from tests.crash.ring.nursery import Nursery, Say
from tests.store.children import finish, start


def fingerprints(folder: Path) -> dict[str, str]:
    """Every file in a folder, by its content."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def refused(path: Path, error: type[BackstayError], text: str = "") -> None:
    """Opening fails as it should, with the path in its text, and nothing in the folder changes."""
    before = fingerprints(path.parent)
    with pytest.raises(error, match=text) as caught:
        backstay.open(path)
    assert str(path) in str(caught.value)
    assert fingerprints(path.parent) == before


def made(path: Path, count: int = 5) -> None:
    with backstay.open(path) as store:
        for number in range(count):
            store.session("s").commit({"n": number, "text": "x" * 500})


def test_a_directory_is_not_a_store(tmp_path: Path) -> None:
    refused(tmp_path / "..", FormatError, "is not a file")
    with pytest.raises(FormatError):
        backstay.open(tmp_path)


@pytest.mark.parametrize("content", [b"hello\n" * 500, b"\0" * 5000, b"SQLite format 3\0" + b"\xff" * 5000, b"x"])
def test_a_file_of_something_else_is_not_a_store(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refused(path, FormatError, "not a Backstay store")


def test_somebody_elses_database_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE t(x)")
    other.close()
    refused(path, FormatError, "not a Backstay store")


@pytest.mark.parametrize("tables", [True, False])
def test_somebody_elses_database_with_a_live_log_is_left_alone(path: Path, tables: bool) -> None:
    other = sqlite3.connect(path)
    other.execute("PRAGMA journal_mode=wal")
    if tables:
        other.execute("CREATE TABLE t(x)")
    other.execute("PRAGMA user_version=7")
    other.commit()
    assert Path(f"{path}-wal").stat().st_size > 0
    refused(path, FormatError, "not a Backstay store")
    assert other.execute("PRAGMA user_version").fetchone() == (7,)
    other.close()


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    made(path)
    with backstay.open(path) as store:
        assert store.session("s").load()["n"] == 4


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("store.db", "deep/store.db"):
        with pytest.raises(UnavailableError, match="file"):
            backstay.open(tmp_path / "file" / name)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("kind", ["path", "sqlite", "file"])
def test_the_folders_above_a_store_are_made_private_to_the_user(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "agents" / "support" / "store.db"
    urls: dict[str, str | Path] = {"path": path, "sqlite": f"sqlite:///{path}", "file": f"file:{path}"}
    url = urls[kind]
    mask = os.umask(0)
    try:
        with backstay.open(url) as store:
            store.session("s").commit({"n": 1})
    finally:
        os.umask(mask)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
    with backstay.open(url) as store:
        assert store.session("s").load() == {"n": 1}


def test_the_environment_names_the_store_where_the_caller_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKSTAY_URL", "sqlite:///elsewhere/store.db")
    with backstay.open() as store:
        store.session("s").commit({"n": 1})

    async def main() -> backstay.State:
        async with backstay.aio.open() as store:
            return await store.session("s").load()

    assert asyncio.run(main()) == {"n": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["elsewhere"]
    with backstay.open("named.db") as store:
        assert store.session("s").head() is None
    monkeypatch.setenv("BACKSTAY_URL", "")
    with backstay.open() as store:
        assert store.session("s").head() is None
    assert (tmp_path / ".backstay").is_dir()
    monkeypatch.setenv("BACKSTAY_URL", "nonsense")
    with pytest.raises(InvalidInputError, match="nonsense"):
        backstay.open()


def test_what_sqlite_calls_memory_is_a_store_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with backstay.open("sqlite:///:memory:") as store, backstay.open("sqlite:///:memory:") as other:
        store.session("s").commit({"n": 1})
        assert store.session("s").load() == {"n": 1}
        assert other.session("s").head() is None
    assert opening.place("sqlite:///:memory:") is None
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_file_is_refused(path: Path) -> None:
    made(path)
    path.chmod(0o444)
    refused(path, UnavailableError, "read-only")
    path.chmod(0o600)
    backstay.open(path).close()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which nobody can make a file")
def test_a_folder_that_cannot_be_written_is_one_clear_error() -> None:
    with pytest.raises(UnavailableError, match=r"store\.db"):
        backstay.open("/proc/self/store.db")


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_truncated_store_is_damage_and_never_an_empty_one(path: Path, keep: float) -> None:
    made(path, 300)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) // 4096 * 4096 + 100])
    before = path.read_bytes()
    try:
        with backstay.open(path) as store:
            report = store.verify()
            assert not report.ok
            with pytest.raises(CorruptionError):
                list(store.session("s").log())
    except CorruptionError:
        pass
    assert path.read_bytes() == before


WRONG: list[Any] = [
    "",
    "store",
    "http://example.org/store.db",
    "sqlite://store.db",
    "sqlite:store.db",
    "sqlite:///",
    "sqlite:///a.db?mode=ro",
    "sqlite:///a.db#x",
    "sqlite:///a%00.db",
    "a\0.db",
    Path("a\0.db"),
    "\udcff.db",
    Path("\udcff.db"),
    "memory://x",
    "memory:x",
    "postgres",
    5,
    b"store.db",
    [],
]


@pytest.mark.parametrize("url", WRONG, ids=lambda url: f"{url!r}")
def test_a_wrong_url_is_one_clear_error_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError) as caught:
        backstay.open(url)
    assert caught.value.code == "invalid_input"
    assert list(tmp_path.iterdir()) == []


def test_every_way_to_name_a_file_leads_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd name #?%").mkdir()
    odd = tmp_path / "odd name #?%" / "é?.db"
    for write, read in (
        ("a.db", "sqlite:///a.db"),
        ("sqlite:///./b.db", tmp_path / "b.db"),
        (f"sqlite:///{tmp_path}/c.db", str(tmp_path / "c.db")),
        (odd, str(odd)),
    ):
        with backstay.open(write) as store:
            store.session("s").commit({"n": 1})
        with backstay.open(read) as store:
            assert store.session("s").load() == {"n": 1}


@pytest.mark.parametrize("durability", ["half", "", None, 1])
def test_an_unknown_durability_is_refused(path: Path, durability: Any) -> None:
    with pytest.raises(InvalidInputError, match="durability"):
        backstay.open(path, durability=durability)
    assert not path.exists()


def test_a_relaxed_store_is_the_same_store(path: Path) -> None:
    with backstay.open(path, durability="relaxed") as store:
        for number in range(50):
            store.session("s").commit({"n": number})
    with backstay.open(path) as store:
        assert store.session("s").load() == {"n": 49}
        assert store.verify().ok


def set_meta(path: Path, **values: int) -> None:
    connections._load_checksums()
    connection = apsw.Connection(str(path), vfs="cksmvfs")
    for key, value in values.items():
        connection.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
    connection.close()


def test_a_store_of_a_newer_format_is_refused_untouched(path: Path) -> None:
    made(path)
    set_meta(path, read=1 << 9, write=1 << 9)
    before = fingerprints(path.parent)
    with pytest.raises(FormatError, match="does not know"):
        backstay.open(path)
    assert fingerprints(path.parent) == before
    assert set(before) == {"store.db"}


def test_a_store_that_only_newer_versions_may_write_can_still_be_read(path: Path) -> None:
    made(path)
    with backstay.open(path) as store:
        session = store.session("s")
        session.load()
        set_meta(path, write=1 << 9)
        for write in (
            lambda: session.commit({"n": "new"}),
            lambda: session.tag("main", "t"),
            lambda: session.fork("main", "b"),
            lambda: session.delete("main"),
            lambda: store.delete("s"),
        ):
            with pytest.raises(FormatError, match="does not know"):
                write()
        assert session.load()["n"] == 4
        assert len(list(session.log())) == 5
        assert store.verify().ok
    with backstay.open(path) as store:
        assert store.session("s").load()["n"] == 4
        with pytest.raises(FormatError):
            store.session("s").commit({})


def test_a_store_is_private_to_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0)
    try:
        with backstay.open() as store:
            store.session("s").commit({})
            for each in (tmp_path / ".backstay").iterdir():
                assert stat.S_IMODE(each.stat().st_mode) == 0o600, each
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / ".backstay").stat().st_mode) == 0o700
    assert sorted(each.name for each in (tmp_path / ".backstay").iterdir()) == [".gitignore", "store.db"]


def test_git_add_takes_neither_the_store_nor_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with backstay.open() as store:
        store.session("s").commit({})
    with backstay.open("sqlite:///deep/.backstay/store.db"):
        pass
    with backstay.open("memory://") as store, store.run("r", workspace=_folder(tmp_path / "work")) as run:
        run.step()
    ignores = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob(".gitignore"))
    assert [str(path.parent) for path in ignores] == [".backstay", "deep/.backstay", "work/.backstay"]
    for path in ignores:
        assert path.read_text() == "*\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_we_did_not_make_gets_no_gitignore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _folder(tmp_path / ".backstay")
    with backstay.open():
        pass
    _folder(tmp_path / "work" / ".backstay")
    (tmp_path / "work" / ".backstay" / ".gitignore").write_text("mine")
    with backstay.open("memory://") as store, store.run("r", workspace="work") as run:
        run.step()
    assert [path.read_text() for path in tmp_path.rglob(".gitignore")] == ["mine"]


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_the_store_of_a_parent_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with backstay.open() as store:
        store.session("s").commit({"n": 1})
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    with backstay.open() as store:
        assert store.session("s").load() == {"n": 1}
    assert not (deep / ".backstay").exists()


def test_a_file_in_place_of_the_folder_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".backstay").write_text("mine")
    with pytest.raises(InvalidInputError, match="not a folder"):
        backstay.open()
    assert (tmp_path / ".backstay").read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".backstay").mkdir()
    os.chown(tmp_path / ".backstay", 12345, 12345)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(UnsupportedError, match="another user"):
        backstay.open()
    assert list((tmp_path / ".backstay").iterdir()) == []
    assert list((tmp_path / "below").iterdir()) == []


def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "filesystem_of", lambda _folder: "nfs4")
    with pytest.raises(UnsupportedError, match=r"network file system \(nfs4\)"):
        backstay.open(path)
    assert not path.exists()


@pytest.mark.parametrize(
    "version", ["3.51.3", "3.51.3.1", "3.52.0", "3.54.1", "4.0.0", "3.50.7", "3.50.8", "3.44.6", "3.6.23"]
)
def test_a_sqlite_without_the_wal_reset_race_is_used(version: str) -> None:
    store_file.refuse_unsafe_sqlite(version)


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.44.5", "3.45.0", "3.49.9", "3.50.6", "3.51.0", "3.51.2"])
def test_a_sqlite_with_the_wal_reset_race_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{version}.*WAL-reset race"):
        store_file.refuse_unsafe_sqlite(version)


def test_a_store_opened_twice_in_one_process_is_one_store(path: Path) -> None:
    with backstay.open(path) as one, backstay.open(path) as other:
        one.session("s").commit({"n": 1})
        assert other.session("s").load() == {"n": 1}
        other.session("s").commit({"n": 2})
        assert one.session("s").load() == {"n": 2}
        other.close()
        for number in range(20):
            one.session("s").commit({"n": number})
        with backstay.open(path) as third:
            assert third.session("s").load() == {"n": 19}
        assert one.verify().ok
    assert fingerprints(path.parent).keys() == {"store.db"}


def test_a_closed_store_says_so_and_can_be_closed_again(path: Path) -> None:
    store = backstay.open(path)
    session = store.session("s")
    point = session.commit({"n": 1})
    listing, log = store.sessions(), session.log()
    store.close()
    store.close()
    for use in (
        lambda: store.session("s"),
        store.sessions,
        store.stats,
        store.verify,
        lambda: store.delete("s"),
        lambda: session.commit({}),
        session.load,
        session.head,
        session.log,
        lambda: session.restore(point),
        session.undo,
        lambda: session.fork(point, "b"),
        lambda: session.tag(point, "t"),
        lambda: session.delete(point),
        session.branches,
        lambda: point.state,
        lambda: next(listing),
        lambda: next(log),
    ):
        with pytest.raises(ClosedError):
            use()
    backstay.open(path).close()


def make_at_once(say: Say, folder: Path, name: str | None, workers: int) -> None:
    """Forks processes that are ready to open a store, and lets all go at the same moment."""
    os.chdir(folder)
    ready, go = os.pipe()
    pids = []
    for number in range(workers):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.close(go)
            os.read(ready, 1)  # until nobody can write any more
            with backstay.open(name) as store:
                store.session(f"s{number}").commit({"by": number})
            os._exit(0)
    os.close(go)
    for pid in pids:
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@pytest.mark.parametrize("name", ["store.db", None])
def test_processes_that_make_the_same_store_at_once_all_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    workers = 4
    with Nursery() as nursery:
        for number in range(8):
            folder = tmp_path / str(number)
            folder.mkdir()
            assert nursery.do(make_at_once, folder, name, workers) == [0] * workers
            monkeypatch.chdir(folder)
            with backstay.open(name) as store:
                assert {info.id for info in store.sessions()} == {f"s{child}" for child in range(workers)}
                assert store.verify().ok


MAKE_SLOWLY = """
import sys, time, backstay
from backstay.backends.sqlite import store_file
for name in ("_create", "_inspect", "connect"):
    def slow(*given, _real=getattr(store_file, name), **more):
        time.sleep(0.02)
        result = _real(*given, **more)
        time.sleep(0.02)
        return result
    setattr(store_file, name, slow)
print("begins")
backstay.open(sys.argv[1])
"""


def test_a_store_whose_making_is_killed_anywhere_is_there_whole_or_not_at_all(path: Path) -> None:
    for number in range(12):
        child = start(MAKE_SLOWLY, path)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(number * 0.02)
        child.kill()
        child.communicate()
        with backstay.open(path) as store:
            store.session("s").commit({"n": number})
            assert store.verify().ok
        assert fingerprints(path.parent).keys() == {"store.db"}
        path.unlink()


WRITE = """
import os, sys, backstay
with backstay.open(sys.argv[1]) as store:
    session = store.session("s")
    for number in range(400):
        session.commit({"n": number, "noise": os.urandom(20_000)})
"""


def test_a_store_that_others_are_writing_to_is_never_taken_for_a_damaged_one(path: Path) -> None:
    made(path, 1)
    child = start(WRITE, path)
    try:
        while child.poll() is None:
            with backstay.open(path) as store:
                store.session("s").load()
    finally:
        finish(child)


def test_a_link_is_no_store_and_where_it_leads_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real" / "store.db")
    with pytest.raises(FormatError, match="is a link"):
        backstay.open(link)
    assert not list((tmp_path / "real").iterdir())


def test_a_store_moved_or_copied_while_closed_is_the_same_store(tmp_path: Path) -> None:
    made(tmp_path / "a.db")
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    (tmp_path / "a.db").rename(tmp_path / "c.db")
    for name in ("b.db", "c.db"):
        with backstay.open(tmp_path / name) as store:
            assert store.session("s").load()["n"] == 4


@pytest.mark.parametrize("named", ["", ".backstay"])
def test_a_folder_with_a_store_in_it_is_told_which_file_is_meant(named: str, tmp_path: Path) -> None:
    file = tmp_path / ".backstay" / "store.db"
    backstay.open(file).close()
    with pytest.raises(InvalidInputError, match="names no store") as caught:
        backstay.open(str(tmp_path / named))
    assert str(file) in str(caught.value)
