"""Export: one file, whole or not at all, with each session as it stood at one moment, in little memory."""

import contextlib
import os
import random
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    Session,
    Store,
    UnavailableError,
    UnsupportedError,
)
from backstay.backends.sqlite.connections import connect
from backstay.port import EVERY, Ask
from backstay.testing.author import next_turn
from tests.store.children import run, start
from tests.store.travel import KINDS, about, kept, live, open_kind, run_for_long


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out" / "sessions.backstay"


@pytest.fixture(autouse=True)
def _folder(file: Path) -> None:
    file.parent.mkdir()


def taken_in(file: Path) -> Store:
    store = backstay.open("memory://")
    store.import_(file)
    assert store.verify().ok
    return store


def test_only_its_owner_can_read_the_file(store: Store, file: Path) -> None:
    live(store)
    store.export(file)
    assert file.read_bytes().startswith(b"SQLite format 3\0")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


# an export is a store


@pytest.mark.parametrize("name", ["sessions.backstay", "sessions.db", "no ending", "100% ü?#.x"])
def test_whoever_has_an_export_reads_it_as_any_store_whatever_it_is_called(
    store: Store, file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(store)
    session = run_for_long(store, "ran")
    file = file.with_name(name)
    store.export(file)
    file.chmod(0o400)
    before = file.stat()
    monkeypatch.chdir(file.parent)
    for url in (file, str(file), name):
        with backstay.open(url) as there:
            assert about(there) == about(store)
            assert there.session("ran").calls() == session.calls()
            assert len(there.session("ran").calls(pending=True)) == len(session.calls(pending=True))
            diffs = [some.session("ticket-42").diff("main", "good") for some in (there, store)]
            assert str(diffs[0]) == str(diffs[1])
            assert there.stats().checkpoints == store.stats().checkpoints
            assert [info.id for info in there.crashed()] == ["ran"]  # the call in doubt is known there, too
            there.export(file.parent / "again", overwrite=True)
    assert sorted([path.name for path in file.parent.iterdir()]) == sorted(["again", name])
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert about(taken_in(file.parent / "again")) == about(store)


def test_a_write_to_an_export_is_refused_and_says_what_to_do(store: Store, file: Path) -> None:
    live(store)
    store.export(file)
    content = file.read_bytes()
    with backstay.open(file) as there:
        session = there.session("ticket-42")
        writes: list[Any] = [
            lambda: session.commit({"n": 1}),
            lambda: there.session("new").commit({"n": 1}),
            lambda: session.tag("main", "t"),
            lambda: session.fork("main", "b"),
            lambda: session.delete("main~2"),
            lambda: there.delete("ticket-42"),
            lambda: there.import_(file, on_exists="rename"),
            lambda: session.run().__enter__(),
        ]
        for write in writes:
            with pytest.raises(UnsupportedError, match="backstay import"):
                write()
    assert file.read_bytes() == content
    assert [path.name for path in file.parent.iterdir()] == [file.name]


# the file


def test_a_file_that_is_there_is_not_overwritten_unless_asked(store: Store, file: Path) -> None:
    live(store)
    file.write_text("the only copy of something")
    with pytest.raises(AlreadyExistsError):
        store.export(file)
    assert file.read_text() == "the only copy of something"
    store.export(str(file), overwrite=True)
    assert len(kept(taken_in(file))) == len(kept(store))
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_came_while_the_export_ran_is_not_overwritten(store: Store, file: Path) -> None:
    live(store)
    with pytest.raises(AlreadyExistsError):
        store.export(file, progress=lambda _done, _total: file.write_text("quicker"))
    assert file.read_text() == "quicker"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_link_that_leads_nowhere_is_not_followed(store: Store, file: Path) -> None:
    live(store)
    file.symlink_to(file.parent / "elsewhere")
    with pytest.raises(AlreadyExistsError):
        store.export(file)
    assert not (file.parent / "elsewhere").exists()


@pytest.mark.parametrize("name", ["", ".", "a\0b", "\ud800", 5])
def test_what_cannot_be_a_file_is_said_at_once(store: Store, name: Any) -> None:
    with pytest.raises(InvalidInputError):
        store.export(name)


def test_a_folder_is_not_a_file_and_must_be_there(store: Store, file: Path) -> None:
    with pytest.raises(InvalidInputError):
        store.export(file.parent, overwrite=True)
    with pytest.raises(UnavailableError):
        store.export(file.parent / "not there" / "file")


def test_one_session_goes_without_the_others(store: Store, file: Path) -> None:
    live(store)
    store.session("other").commit({"secret": "of somebody else"})
    store.export(file, session="ticket-42")
    assert [info.id for info in taken_in(file).sessions()] == ["ticket-42"]


def test_a_session_that_is_not_there_makes_no_file(store: Store, file: Path) -> None:
    with pytest.raises(NotFoundError):
        store.export(file, session="nobody")
    assert not list(file.parent.iterdir())


def test_a_store_without_sessions_makes_a_file_without_sessions(store: Store, file: Path) -> None:
    store.export(file)
    assert not list(taken_in(file).sessions())


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_are_listed_in_the_order_they_were(kind: str, tmp_path: Path, file: Path) -> None:
    with open_kind(kind, tmp_path) as store:
        for name in ("c", "a", "d", "b", "a"):
            store.session(name).commit({"n": name})
        store.export(file)
    assert [info.id for info in taken_in(file).sessions()] == ["a", "b", "d", "c"]


def test_an_export_that_is_given_up_leaves_nothing(store: Store, file: Path) -> None:
    live(store)

    def give_up(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.export(file, progress=give_up)
    assert not list(file.parent.iterdir())


FULL = """
import resource, sys, backstay
from tests.store.travel import live
store = backstay.open("memory://")
live(store, turns=300)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    store.export(sys.argv[1])
except backstay.UnavailableError as error:
    print(error)
"""


def test_a_disk_that_takes_no_more_leaves_nothing_and_says_so(file: Path) -> None:
    (said,) = run(FULL, file)
    assert "nothing was exported" in said
    assert not list(file.parent.iterdir())


def test_damage_is_told_when_exporting_and_not_when_the_copy_is_needed(path: Path, file: Path) -> None:
    with backstay.open(path) as store:
        live(store)
        session = store.session("ticket-42")
        for number in range(3):  # some that are not packed
            session.commit({**session.load(), "more": number})
        for table, change in (
            ("checkpoints", "cast(body || x'00' AS blob)"),  # its delta
            ("checkpoints", "cast(x'00' || body AS blob)"),  # its header
            ("segments", "cast(body || x'00' AS blob)"),
            ("segments", "cast(substr(body, 1, length(body) - 1) || x'00' AS blob)"),  # its values
            ("keyframes", "cast(body || x'00' AS blob)"),
        ):
            damaged = f"(SELECT key FROM {table} ORDER BY key LIMIT 1)"
            with contextlib.closing(connect(path, durability="full")) as connection:
                found = connection.execute(f"SELECT key, body FROM {table} WHERE key = {damaged}").fetchall()
                connection.execute(f"UPDATE {table} SET body = {change} WHERE key = {damaged}")
            with pytest.raises(CorruptionError):
                store.export(file)
            assert not list(file.parent.iterdir())
            with contextlib.closing(connect(path, durability="full")) as connection:
                connection.execute(f"UPDATE {table} SET body = ?2 WHERE key = ?1", found[0])
        store.export(file)


# as of one moment


def exported(steps: list[tuple[int, int | None]]) -> Any:
    return lambda done, total: steps.append((done, total))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_committed_meanwhile_is_left_out_and_nothing_else(kind: str, tmp_path: Path, file: Path) -> None:
    with open_kind(kind, tmp_path) as store:
        session = live(store, turns=120)
        before, states = about(store), {name: session.load(name) for name in ("main", "what if", "good")}
        writer = store.session("ticket-42")

        def write(done: int, total: int | None) -> None:
            writer.commit({"too": "late"})
            writer.commit({"too": "late"}, branch="what if")
            writer.fork("main", f"late {done}")
            writer.tag("main", f"late tag {done}")

        store.export(file, progress=write)
        assert len(kept(store)) > len(before[0])
    there = taken_in(file)
    assert about(there) == before
    for name, state in states.items():
        assert str(there.session("ticket-42").load(name)) == str(state)


def test_threads_that_commit_all_the_time_do_not_get_in_the_way(store: Store, file: Path) -> None:
    begin = store.session("busy")
    begin.commit({"n": 0})
    for number in range(4):
        begin.fork("main", f"branch {number}")
    stop = threading.Event()

    def write(number: int) -> None:
        session, n = store.session("busy"), 0
        while not stop.is_set():
            n += 1
            session.commit({"n": n, "from": number}, branch=f"branch {number}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.2)
        for number in range(5):
            store.export(file.with_suffix(f".{number}"))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for number in range(5):
        there = taken_in(file.with_suffix(f".{number}"))
        rows = kept(there, "busy")
        assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
        lanes = there.backend.read(Ask("busy", names=EVERY)).lanes.values()
        assert rows[-1].id in {lane.head.id for lane in lanes if lane.head}  # names and checkpoints are of one moment


@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_meanwhile_does_not_tear_the_history(kind: str, tmp_path: Path, file: Path) -> None:
    with open_kind(kind, tmp_path) as store:
        session = live(store, turns=120)
        todo = [f"main~{at}" for at in (90, 40)]

        def delete(done: int, total: int | None) -> None:
            if todo:
                session.delete(todo.pop())

        store.export(file, progress=delete)
        assert not todo
        assert about(taken_in(file)) == about(store)


def test_deletions_without_end_are_a_conflict_and_no_file(store: Store, file: Path) -> None:
    session = live(store, turns=60)
    with pytest.raises(ConflictError):
        store.export(file, progress=lambda _done, _total: session.delete("main~20"))
    assert not list(file.parent.iterdir())


def test_a_session_deleted_meanwhile_is_not_there_and_the_others_are(store: Store, file: Path) -> None:
    live(store, "first")
    live(store, "second", turns=80)
    live(store, "third")
    gone: list[str] = []

    def delete(done: int, total: int | None) -> None:
        if not gone and done > len(kept(store, "first")):
            gone.append("second")
            store.delete("second")

    store.export(file, progress=delete)
    assert gone
    there = taken_in(file)
    assert [info.id for info in there.sessions()] == ["third", "first"]
    assert about(there, "third") == about(store, "third")
    with pytest.raises(NotFoundError):
        store.export(file.with_suffix(".2"), session="first", progress=lambda _done, _total: store.delete("first"))


def test_an_empty_session_can_be_exported(store: Store, file: Path) -> None:
    session = store.session("s", agent="a")
    point = session.commit({"n": 1})
    session.delete_branch("main")
    session.delete(point)
    store.export(file)
    assert [(info.id, info.agent, info.checkpoints) for info in taken_in(file).sessions()] == [("s", "a", 0)]


# size


def test_a_picture_that_stands_in_many_checkpoints_is_in_the_file_once(store: Store, file: Path) -> None:
    picture = random.Random(1).randbytes(1_000_000)
    for name in ("a", "b"):
        session = store.session(name)
        for step in range(30):
            session.commit({"messages": [{"image": picture, "n": n} for n in range(step + 1)]})
        session.commit({"picture": picture}, branch="main")
    store.export(file)
    assert file.stat().st_size < 1_200_000
    there = taken_in(file)
    assert there.session("b").load()["picture"] == picture


def test_many_lines_written_in_turn_all_arrive(store: Store, file: Path) -> None:
    session = store.session("s")
    state = next_turn({}, 0)
    session.commit(state)
    names = [f"line {number}" for number in range(12)]
    for name in names:
        session.fork("main", name)
    states = dict.fromkeys(names, state)
    for turn in range(10):
        for name in names:
            states[name] = next_turn(states[name], turn)
            session.commit(states[name], branch=name)
    store.export(file)
    there = taken_in(file).session("s")
    for name in names:
        assert there.load(name) == states[name]


# kill


EXPORT = """
import sys, time, backstay
def tell(done, total):
    print(done, flush=True)
    if done >= 100: time.sleep(60)
backstay.open(sys.argv[1]).export(sys.argv[2], progress=tell)
"""


def test_a_kill_while_exporting_leaves_no_file_that_looks_whole(path: Path, file: Path) -> None:
    with backstay.open(path) as store:
        live(store, turns=200)
        child = start(EXPORT, path, file)
        assert child.stdout is not None
        while int(child.stdout.readline()) < 100:
            pass
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert not file.exists()
        (left,) = file.parent.iterdir()
        assert (left.name.startswith(".backstay-"), left.suffix) == (True, ".part")
        store.export(file)
        assert left.exists()  # it may have been made a moment ago, by somebody who is about to lock it
        os.utime(left, (0, 0))
        store.export(file, overwrite=True)
        assert [one.name for one in file.parent.iterdir()] == [file.name]
        assert about(taken_in(file)) == about(store)


def test_what_somebody_else_is_exporting_is_not_swept_away(path: Path, file: Path) -> None:
    with backstay.open(path) as store:
        live(store, turns=200)
        child = start(EXPORT.replace("time.sleep(60)", "sys.stdin.readline()"), path, file)
        assert child.stdout is not None
        while int(child.stdout.readline()) < 100:
            pass
        (theirs,) = file.parent.iterdir()
        os.utime(theirs, (0, 0))
        store.export(file.with_name("other"))
        assert theirs.exists()
        child.communicate("\n" * 1000)
        assert child.returncode == 0
        assert sorted([one.name for one in file.parent.iterdir()]) == ["other", file.name]
        assert about(taken_in(file)) == about(store)


def test_what_only_looks_like_ours_is_left_alone(store: Store, session: Session, file: Path) -> None:
    session.commit({"n": 1})
    names = [
        f".backstay-{'0' * 16}.part",
        f".backstay-{'1' * 16}.part",
        f".backstay-{'2' * 16}.part",
        ".backstay-x.part",
    ]
    (file.parent / names[0]).write_text("a file")
    (file.parent / names[1]).symlink_to(file.parent.parent)
    (file.parent / names[2]).mkdir()
    (file.parent / names[2] / "notes").write_text("of somebody")
    (file.parent / names[3]).mkdir()
    for name in names:
        os.utime(file.parent / name, (0, 0), follow_symlinks=False)
    store.export(file)
    assert sorted([one.name for one in file.parent.iterdir()]) == sorted([*names, file.name])
    assert (file.parent / names[2] / "notes").read_text() == "of somebody"


def test_progress_goes_from_the_first_checkpoint_to_the_last(store: Store, file: Path) -> None:
    live(store, "a", turns=120)
    live(store, "b")
    steps: list[tuple[int, int | None]] = []
    store.export(file, progress=exported(steps))
    total = len(kept(store, "a")) + len(kept(store, "b"))
    assert steps[-1] == (total, total)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert {of for _, of in steps} == {total}


def test_a_closed_store_exports_nothing(store: Store, session: Session, file: Path) -> None:
    session.commit({})
    store.close()
    with pytest.raises(backstay.ClosedError):
        store.export(file)
    assert not file.exists()
    assert not list(file.parent.iterdir())
