"""The files backend: what its folder survives, and what it costs."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backstay.backends.files import FilesBackend
from backstay.backends.files.disk import Disk
from backstay.errors import BackstayError, ClosedError, ConflictError, CorruptionError, FormatError, UnavailableError
from backstay.port import (
    Ask,
    Batch,
    BlobsAbsentError,
    CheckpointRow,
    KeyframeRow,
    Kind,
    LaneQuery,
    SessionQuery,
    Unreadable,
    View,
)
from backstay.port.row_codec import known_lines, known_names
from backstay.port.rows import ENTERED, key_of
from backstay.rules import branches, deletion, runs
from backstay.rules import commit as commits
from tests.backends.writing import call, chain, commit, enter, head_of, is_whole, names, prepared, uid_of

SECTOR = 512
ROOT = Path(__file__).parents[2]


class Counting(Disk):
    """Counts what is done to the disk, and fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []
        self.fail: dict[str, int] = {}

    def before(self, operation: str, size: int) -> int:
        if operation in self.fail:
            raise OSError(self.fail[operation], "as told")
        self.done.append(operation)
        return size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[FilesBackend]:
    with closing(FilesBackend(path)) as backend:
        yield backend


def journals(path: Path) -> list[Path]:
    return sorted((path / "sessions").iterdir())


def journal_of(path: Path, session: str) -> Path:
    (found,) = [one for one in journals(path) if f'"key":"{session}"'.encode() in one.read_bytes()]
    return found


# reading with the eyes


def test_a_journal_is_json_lines_that_say_kind_and_key(path: Path, store: FilesBackend) -> None:
    rows = chain(store, "s", 3)
    store.close()
    lines = journals(path)[0].read_bytes().splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    assert found[0]["backstay"] == "journal"
    put = [row for row in found[2]["rows"] if row["kind"] == "checkpoint"]
    assert (put[0]["key"], put[0]["id"]) == (2, rows[1].id)
    assert [line["n"] for line in found[1:]] == [1, 2, 3]
    assert found[3]["prev"] == found[2]["sum"]


def test_everything_made_is_private(path: Path, store: FilesBackend) -> None:
    commit(store, "s", {"a": os.urandom(100_000)}, None)
    for found in [path, *path.rglob("*")]:
        assert found.stat().st_mode & 0o077 == 0, found


def test_no_name_becomes_a_path(path: Path, store: FilesBackend) -> None:
    odd = ["../../etc/passwd", "/abs", "a\nb", "x" * 500, ".", "é\u202e", "C:\\x"]
    for session in odd:
        commit(store, session, {"a": 1}, None, branch="../up")
    assert {row.id for row in store.sessions(SessionQuery())} == set(odd)
    assert all(len(found.name) == 38 for found in journals(path))
    assert sorted(path.parent.iterdir()) == [path]


# one writer, many processes

CHILD = """
import os, sys
from pathlib import Path
from backstay.backends.files import FilesBackend
from backstay.errors import ConflictError
from backstay.rules import branches, runs, deletion
from backstay.port import Ask
from tests.backends.writing import *
backend = FilesBackend(Path(sys.argv[1]))
"""


def child(path: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + textwrap.dedent(code), str(path), *arguments],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


RACE = """
won = []
while len(won) < 60:
    head = head_of(backend.read(Ask("s", names=("main",))))
    try:
        won.append(commit(backend, "s", {"by": sys.argv[2], "n": len(won)}, head).id)
    except ConflictError:
        pass
print(*won)
backend.close()
"""


def test_of_processes_that_race_none_loses_a_turn(path: Path, store: FilesBackend) -> None:
    found = [child(path, RACE, str(number)) for number in range(3)]
    won = [one.communicate(timeout=120)[0].split() for one in found]
    assert [len(ids) for ids in won] == [60, 60, 60]
    line = store.ancestors("s", 180, limit=1000)
    assert [row.sequence for row in line if isinstance(row, CheckpointRow)] == list(range(180, 0, -1))
    assert {row.id for row in line if isinstance(row, CheckpointRow)} == {id_ for ids in won for id_ in ids}
    assert list(store.check()) == []


KILLED = """
session = sys.argv[2]
head = head_of(backend.read(Ask(session, names=("main",))))
lease = None
for number in range(10_000):
    row = commit(backend, session, {"n": number, "text": "y" * (number * 97 % 6000), "b": os.urandom(40_000)
                                    if number % 7 == 0 else b""}, head)
    head = row.id
    print(row.sequence, row.id, flush=True)
    if number % 5 == 4:
        backend.write(branches.naming_ask(session, f"t{row.sequence}", row.sequence),
                      branches.tag(session, f"t{row.sequence}", sequence=row.sequence, id_=row.id))
        print("tag", f"t{row.sequence}", flush=True)
"""


def test_what_was_acknowledged_survives_kill_9_again_and_again(path: Path) -> None:
    chosen = random.Random(7)
    acknowledged: list[tuple[int, str]] = []
    tags: list[str] = []
    for _ in range(8):
        running = child(path, KILLED, "s")
        assert running.stdout is not None
        wanted = chosen.randrange(3, 40)
        for line in running.stdout:
            if line.startswith("tag"):
                tags.append(line.split()[1])
            else:
                sequence, id_ = line.split()
                acknowledged.append((int(sequence), id_))
                wanted -= 1
            if not wanted:
                time.sleep(chosen.random() * 0.004)
                running.send_signal(signal.SIGKILL)
                break
        rest = running.communicate()[0].splitlines()
        for line in rest:
            if line.startswith("tag ") and len(line.split()) == 2:  # the last line may be cut off
                tags.append(line.split()[1])
            elif len(line.split()) == 2 and len(line.split()[1]) == 32:
                acknowledged.append((int(line.split()[0]), line.split()[1]))
        with closing(FilesBackend(path)) as backend:
            assert [p.what for p in backend.check()] == []
            view = backend.read(Ask("s", names=None, sequences=tuple(at for at, _ in acknowledged)))
            there = {(at, row.id) for at, row in view.checkpoints.items() if isinstance(row, CheckpointRow)}
            assert there == set(acknowledged), f"{path}: acknowledged and missing: {set(acknowledged) - there}"
            assert set(tags) <= set(view.tags), f"{path}: acknowledged and missing: {set(tags) - set(view.tags)}"
            head = view.lanes["main"].head
            assert head is not None
            assert head.sequence in (acknowledged[-1][0], acknowledged[-1][0] + 1)
            assert is_whole(backend, "s", head.sequence)
            assert backend.sessions(SessionQuery())[0].sequence == head.sequence


def test_a_reader_in_another_process_never_sees_half(path: Path, store: FilesBackend) -> None:
    commit(store, "s", {"n": -1}, None)
    running = child(path, KILLED, "s")
    assert running.stdout is not None
    try:
        for _ in range(60):
            said = running.stdout.readline().split()
            view = store.read(names("s"))
            assert view.session is not None
            head = view.lanes["main"].head
            assert head is not None
            assert head.sequence == view.session.sequence
            assert said[0] == "tag" or head.sequence >= int(said[0])
            assert is_whole(store, "s", head.sequence)
            assert len(store.scan("s", Kind.CHECKPOINT, limit=100_000)) >= view.session.checkpoints
    finally:
        running.kill()
        running.communicate()


# torn ends and lost sectors


def test_a_torn_end_was_never_acknowledged_and_is_passed_over(path: Path, store: FilesBackend) -> None:
    rows = chain(store, "s", 3)
    store.close()
    (found,) = journals(path)
    data = found.read_bytes()
    for torn in (b'{"n":4,"first":4,"prev":"', b'{"n":4', b"\0" * 700 + b"x\n", b"garbage\n"):
        found.write_bytes(data + torn)
        with closing(FilesBackend(path)) as backend:
            assert [p.what for p in backend.check()] == []
            assert head_of(backend.read(names("s"))) == rows[-1].id
            assert commit(backend, "s", {"after": 1}, rows[-1].id).sequence == 4
        with closing(FilesBackend(path)) as backend:
            assert len(backend.scan("s", Kind.CHECKPOINT, limit=10)) == 4
        shutil.copy(found, found.with_suffix(".bak"))
        found.with_suffix(".bak").unlink()
        note = next((path / "notes").iterdir())
        note.unlink()
        found.write_bytes(data)


def acknowledged_or_corrupt(backend: FilesBackend, rows: list[CheckpointRow], tags: dict[str, int]) -> int:
    """Every acknowledged thing is there, or it is a CorruptionError: never a wrong or a shorter answer."""
    errors = 0
    try:
        view = backend.read(Ask("s", names=None))
        assert view.session is not None
        assert view.session.sequence == rows[-1].sequence
        assert head_of(view) == rows[-1].id
        assert {name: tag.sequence for name, tag in view.tags.items()} == tags
    except CorruptionError:
        errors += 1
    for row in rows:
        try:
            view = backend.read(Ask("s", sequences=(row.sequence,)))
            found = view.checkpoints[row.sequence]
            assert isinstance(found, Unreadable) or found == msgspec.structs.replace(row, refs=found.refs)
            errors += isinstance(found, Unreadable)
            view = backend.read(Ask("s", ids=(row.id,)))
            found = view.checkpoints[row.sequence]
            assert is_whole(backend, "s", row.sequence)
        except CorruptionError:
            errors += 1
    try:
        page = backend.scan("s", Kind.CHECKPOINT, limit=1000)
        keys = [found.key if isinstance(found, Unreadable) else key_of(found) for found in page]
        assert set(keys) >= {row.sequence for row in rows}
    except CorruptionError:
        errors += 1
    try:
        pending = backend.read(Ask("s", names=("work",), pending=("work",))).pending["work"]
        bad = [one for one in pending if isinstance(one, Unreadable)]
        assert bad or len(pending) == 3
        errors += bool(bad)
    except CorruptionError:
        errors += 1
    listed = backend.sessions(SessionQuery())
    assert {row.id for row in listed} == {"s", "other"}
    assert backend.sizes().sessions == 2
    assert [lane.session.id for lane in backend.lanes(LaneQuery(ENTERED))] in ([], ["s"])
    assert is_whole(backend, "other", 1)
    assert commit(backend, "other", {"more": 1}, head_of(backend.read(names("other")))).sequence > 1
    return errors


def rich(store: FilesBackend) -> tuple[list[CheckpointRow], dict[str, int]]:
    """A session with branches, tags, a run with pending calls, and one beside it."""
    commit(store, "other", {"a": 1}, None)
    rows = chain(store, "s", 4)
    fork = branches.fork("s", "work", sequence=3, id_=rows[2].id)
    store.write(branches.naming_ask("s", "work", 3), fork)
    lease = enter(store, "s", "work")
    for name in ("one", "two", "three"):
        call(store, lease, name)
    store.write(branches.naming_ask("s", "tag", 2), branches.tag("s", "tag", sequence=2, id_=rows[1].id))
    for number in range(3):
        rows.append(commit(store, "s", {"late": number}, rows[-1].id))
    return rows, {"tag": 2}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("shift", [0, 256])
def test_a_lost_sector_is_an_error_that_names_its_session_and_never_a_wrong_answer(path: Path, shift: int) -> None:
    with closing(FilesBackend(path)) as backend:
        rows, tags = rich(backend)
    found = journal_of(path, "s")
    data = found.read_bytes()
    other = journal_of(path, "other")
    kept = other.read_bytes()
    notes = {note: note.read_bytes() for note in (path / "notes").iterdir()}
    for at in range(-shift, len(data), SECTOR):
        start, stop = max(at, 0), min(at + SECTOR, len(data))
        found.write_bytes(data[:start] + bytes(stop - start) + data[stop:])
        other.write_bytes(kept)
        for note, text in notes.items():
            note.write_bytes(text)
        with closing(FilesBackend(path)) as backend:
            problems = list(backend.check())
            errors = acknowledged_or_corrupt(backend, rows, tags)
            assert problems, at
            assert {problem.session_id for problem in problems} == {"s"}
            assert errors or "first line" in problems[0].what


@pytest.mark.usefixtures("alone")
def test_a_flipped_bit_anywhere_is_noticed(path: Path) -> None:
    with closing(FilesBackend(path)) as backend:
        rows, tags = rich(backend)
    found = journal_of(path, "s")
    data = found.read_bytes()
    notes = {note: note.read_bytes() for note in (path / "notes").iterdir()}
    chosen = random.Random(3)
    for _ in range(60):
        at = chosen.randrange(len(data))
        found.write_bytes(data[:at] + bytes([data[at] ^ 1 << chosen.randrange(8)]) + data[at + 1 :])
        for note, text in notes.items():
            note.write_bytes(text)
        with closing(FilesBackend(path)) as backend:
            assert list(backend.check())
            acknowledged_or_corrupt(backend, rows, tags)


def test_repair_makes_a_damaged_session_usable_and_says_what_is_lost(path: Path) -> None:
    with closing(FilesBackend(path)) as backend:
        rows, _ = rich(backend)
    found = journal_of(path, "s")
    data = found.read_bytes()
    at = data.index(rows[5].id.encode())
    found.write_bytes(data[:at] + bytes(100) + data[at + 100 :])
    with closing(FilesBackend(path)) as backend:
        with pytest.raises(CorruptionError):
            backend.read(names("s"))
        done = backend.tend(repair=True)
        assert any("checkpoint #6 is lost" in line for line in done), done
        assert list(backend.check()) == []
        view = backend.read(names("s"))
        assert head_of(view) == rows[-1].id
        assert commit(backend, "s", {"on": 1}, rows[-1].id).sequence == rows[-1].sequence + 1
    with closing(FilesBackend(path)) as backend:
        assert list(backend.check()) == []


def test_a_journal_that_is_gone_or_older_than_its_note_is_damage(path: Path) -> None:
    with closing(FilesBackend(path)) as backend:
        rows = chain(backend, "s", 3)
    (found,) = journals(path)
    early = found.read_bytes()
    with closing(FilesBackend(path)) as backend:
        commit(backend, "s", {"more": 1}, rows[-1].id)
    found.write_bytes(early)
    with closing(FilesBackend(path)) as backend:
        with pytest.raises(CorruptionError, match="'s'"):
            backend.read(names("s"))
        assert list(backend.check())
    found.unlink()
    with closing(FilesBackend(path)) as backend:
        with pytest.raises(CorruptionError, match="'s'"):
            backend.read(names("s"))
        with pytest.raises(CorruptionError):
            commit(backend, "s", {"anew": 1}, None)
        assert [row.id for row in backend.sessions(SessionQuery())] == ["s"]
        assert list(backend.check())
        assert backend.tend(repair=True)
        assert commit(backend, "s", {"anew": 1}, None).sequence == 1


def test_a_lost_counter_gives_no_number_twice(path: Path) -> None:
    with closing(FilesBackend(path)) as backend:
        rows = chain(backend, "s", 3)
        touched = backend.sessions(SessionQuery())[0].touched
    counter = path / "counter"
    counter.write_bytes(bytes(len(counter.read_bytes())))
    with closing(FilesBackend(path)) as backend:
        assert any("counter" in problem.what for problem in backend.check())
        commit(backend, "s", {"more": 1}, rows[-1].id)
        assert backend.sessions(SessionQuery())[0].touched > touched
        assert list(backend.check()) == []


@pytest.mark.usefixtures("alone")
def test_lines_of_one_torn_write_are_passed_over_together_but_not_once_they_were_acknowledged(path: Path) -> None:
    gate = threading.Event()

    class Gated(Counting):
        def sync(self, file: int) -> None:
            gate.wait(5)
            super().sync(file)

    gate.set()
    with closing(FilesBackend(path, disk=Gated())) as backend:
        first = commit(backend, "s", {"n": 0}, None)
        gate.clear()
        threads = [
            threading.Thread(target=commit, args=(backend, "s", {"n": 1}, None), kwargs={"branch": f"b{number}"})
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        gate.set()
        for thread in threads:
            thread.join()
    (found,) = journals(path)
    lines = found.read_bytes().splitlines(keepends=True)
    group = [line for line in lines[1:] if msgspec.json.decode(line)["first"] == 3]
    assert len(group) > 2
    whole = b"".join(lines[: lines.index(group[-1]) + 1])
    at = whole.index(group[0]) + 40
    found.write_bytes(whole[:at] + bytes(60) + whole[at + 60 :])
    with closing(FilesBackend(path)) as backend, pytest.raises(CorruptionError):
        backend.read(names("s"))
    next((path / "notes").iterdir()).unlink()
    with closing(FilesBackend(path)) as backend:
        view = backend.read(names("s"))
        assert head_of(view) == first.id
        assert view.session is not None
        assert view.session.checkpoints == 2
        assert list(backend.check()) == []


def test_a_session_is_renamed_when_its_file_is_and_not_before(path: Path) -> None:
    disk = Counting()
    with closing(FilesBackend(path, disk=disk)) as backend, closing(FilesBackend(path)) as other:
        rows = chain(backend, "s", 2)
        disk.fail = {"rename": errno.EIO}
        with pytest.raises(UnavailableError, match="not known"):
            backend.write(deletion.hide_ask("s"), deletion.hide("s"))
        disk.fail = {}
        for one in (other, backend):
            assert head_of(one.read(names("s"))) == rows[-1].id
            assert [row.id for row in one.sessions(SessionQuery())] == ["s"]
            assert not one.sessions(SessionQuery(hidden=True))
        assert commit(backend, "s", {"on": 1}, rows[-1].id).sequence == 3
        backend.write(deletion.hide_ask("s"), deletion.hide("s"))
        for one in (other, backend):
            assert one.read(names("s")).session is None
            assert len(one.sessions(SessionQuery(hidden=True))) == 1
        assert list(backend.check()) == []


def test_a_session_may_have_the_name_of_its_branch(path: Path, store: FilesBackend) -> None:
    commit(store, "main", {"n": 0}, None)
    for one in (store, FilesBackend(path)):
        view = one.read(names("main"))
        assert view.session is not None
        assert view.lanes["main"].head is not None


# hostile folders


def test_links_fifos_and_foreign_files_are_neither_followed_nor_removed(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    with closing(FilesBackend(path)) as backend:
        rows = chain(backend, "s", 2)
        commit(backend, "linked", {"a": 1}, None)
    linked = journal_of(path, "linked")
    linked.unlink()
    linked.symlink_to(outside)
    os.mkfifo(path / "sessions" / ("0" * 32 + ".jsonl"))
    os.mkfifo(path / "notes" / ("1" * 32))
    foreign = [path / "sessions" / "notes.txt", path / "tmp" / "mine", path / "blobs" / "readme", path / "keep.me"]
    for one in foreign:
        one.write_bytes(b"mine")
    (path / "blobs" / "ab").symlink_to(tmp_path)
    with closing(FilesBackend(path)) as backend:
        assert head_of(backend.read(names("s"))) == rows[-1].id
        listed = [row.id for row in backend.sessions(SessionQuery())]
        assert "s" in listed
        assert len(listed) >= 2
        with pytest.raises(CorruptionError):
            backend.read(names("linked"))
        with pytest.raises(CorruptionError):
            commit(backend, "linked", {"b": 1}, None)
        assert list(backend.check())
        backend.tend(repair=True)
        backend.sizes()
        assert commit(backend, "s", {"more": 1}, rows[-1].id).sequence == 3
    assert outside.read_bytes() == b"precious"
    assert all(one.read_bytes() == b"mine" for one in foreign)
    assert linked.is_symlink()


def test_blobs_behind_a_linked_folder_are_not_counted_as_ours(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ("ab" * 32)).write_bytes(bytes(100_000))
    with closing(FilesBackend(path)) as backend:
        commit(backend, "s", {"text": "x" * 20_000}, None)
        before = backend.sizes().stored_bytes
        assert before < 100_000
        linked = path / "blobs" / "ab"
        shutil.rmtree(linked, ignore_errors=True)
        linked.symlink_to(elsewhere)
        assert backend.sizes().stored_bytes == before
        assert backend.tend() == []
    assert (elsewhere / ("ab" * 32)).stat().st_size == 100_000


def test_no_store_is_made_among_files_that_are_not_ours(tmp_path: Path) -> None:
    for made in ("file", "tmp/file", "sessions/x"):
        folder = tmp_path / made.replace("/", "-")
        (folder / made).parent.mkdir(parents=True)
        (folder / made).write_bytes(b"mine")
        before = sorted(folder.rglob("*"))
        with pytest.raises(FormatError):
            FilesBackend(folder)
        assert sorted(folder.rglob("*")) == before
    link = tmp_path / "linked"
    link.mkdir()
    (link / "sessions").symlink_to(tmp_path)
    with pytest.raises(FormatError):
        FilesBackend(link)


def test_one_who_only_reads_writes_and_deletes_nothing(path: Path) -> None:
    with closing(FilesBackend(path)) as backend:
        chain(backend, "s", 3)
    (journals(path)[0]).write_bytes(journals(path)[0].read_bytes() + b"torn")
    (path / "tmp" / "0123456789abcdef").write_bytes(b"left")
    before = {one: (one.stat().st_mtime_ns, one.stat().st_size) for one in path.rglob("*")}
    disk = Counting()
    with closing(FilesBackend(path, disk=disk)) as backend:
        backend.read(names("s"))
        backend.sessions(SessionQuery())
        backend.sizes()
        backend.lanes(LaneQuery(ENTERED))
        backend.scan("s", Kind.CHECKPOINT, limit=10)
        assert list(backend.check()) == []
        assert is_whole(backend, "s", 3)
    assert disk.done == []
    assert {one: (one.stat().st_mtime_ns, one.stat().st_size) for one in path.rglob("*")} == before


def test_a_newer_store_is_refused_untouched(path: Path, store: FilesBackend) -> None:
    commit(store, "s", {"a": 1}, None)
    meta = path / "backstay.json"
    text = meta.read_bytes()
    meta.write_bytes(text.replace(b'"read":0', b'"read":1073741824'))
    with pytest.raises(FormatError):
        FilesBackend(path)
    with pytest.raises(FormatError):
        store.read(names("s"))
    meta.write_bytes(text.replace(b'"write":0', b'"write":1073741824'))
    assert store.read(names("s")).session is not None
    with pytest.raises(FormatError):
        commit(store, "t", {"a": 1}, None)


# failures of the disk


def test_after_a_failed_sync_nobody_is_told_that_nothing_was_recorded(path: Path) -> None:
    disk = Counting()
    with closing(FilesBackend(path, disk=disk)) as backend:
        rows = chain(backend, "s", 2)
        disk.fail = {"sync": errno.EIO}
        with pytest.raises(UnavailableError, match="not known whether it was recorded"):
            commit(backend, "s", {"lost": 1}, rows[-1].id)
        disk.fail = {}
        assert head_of(backend.read(names("s"))) == rows[-1].id
        assert commit(backend, "s", {"again": 1}, rows[-1].id).sequence == 3
    with closing(FilesBackend(path)) as backend:
        assert list(backend.check()) == []
        assert len(backend.scan("s", Kind.CHECKPOINT, limit=10)) == 3


@pytest.mark.parametrize("operation", ["write", "create", "rename", "sync_folder"])
def test_a_full_disk_costs_the_write_that_met_it_alone(path: Path, operation: str) -> None:
    disk = Counting()
    with closing(FilesBackend(path, disk=disk)) as backend:
        rows = chain(backend, "s", 2)
        disk.fail = {operation: errno.ENOSPC}
        with pytest.raises(BackstayError):
            commit(backend, "new", {"b": os.urandom(50_000)}, None)
        disk.fail = {}
        assert backend.read(names("new")).session is None
        assert commit(backend, "new", {"b": os.urandom(50_000)}, None).sequence == 1
        assert commit(backend, "s", {"more": 1}, rows[-1].id).sequence == 3
        assert list(backend.check()) == []


class _Raising:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, view: View) -> Batch:
        raise self.error


def test_a_rule_that_raises_writes_nothing_and_its_error_is_its_own(path: Path) -> None:
    disk = Counting()
    with closing(FilesBackend(path, disk=disk)) as backend:
        rows = chain(backend, "s", 2)
        disk.done.clear()
        with pytest.raises(ZeroDivisionError):
            backend.write(Ask("s"), _Raising(ZeroDivisionError()))
        with pytest.raises(KeyboardInterrupt):
            backend.write(Ask("s"), _Raising(KeyboardInterrupt()))
        assert "sync" not in disk.done
        assert commit(backend, "s", {"more": 1}, rows[-1].id).sequence == 3


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_an_interrupt_anywhere_leaves_the_store_whole(path: Path, number: int) -> None:
    class Interrupting(Counting):
        left = -1

        def before(self, operation: str, size: int) -> int:
            if self.left == 0:
                self.left = -1
                raise KeyboardInterrupt
            self.left -= 1
            return super().before(operation, size)

    disk = Interrupting()
    with closing(FilesBackend(path, disk=disk)) as backend:
        rows = chain(backend, "s", 2)
        disk.left = number
        try:
            rows.append(commit(backend, "s", {"b": os.urandom(40_000)}, rows[-1].id))
            commit(backend, "new", {"b": 2}, None)
        except KeyboardInterrupt:
            pass
        disk.left = -1
        head = head_of(backend.read(names("s")))
        assert list(backend.check()) == []
        assert commit(backend, "s", {"more": 1}, head).sequence in (3, 4)
        new = head_of(backend.read(names("new")))
        commit(backend, "new", {"b": 3}, new)
    with closing(FilesBackend(path)) as backend:
        assert list(backend.check()) == []
        assert is_whole(backend, "s", 3)


# group commit


def test_sixteen_threads_share_syncs_and_none_fails_because_of_another(path: Path) -> None:
    class Slow(Counting):
        def sync(self, file: int) -> None:
            super().sync(file)
            time.sleep(0.003)

    disk = Slow()
    errors: list[BaseException] = []

    def work(branch: str) -> None:
        try:
            head: str | None = None
            for number in range(12):
                head = commit(backend, "s", {"n": number}, head, branch=branch).id
        except BaseException as error:  # noqa: BLE001 - for the thread that started this one
            errors.append(error)

    with closing(FilesBackend(path, disk=disk)) as backend:
        commit(backend, "s", {"n": 0}, None)
        disk.done.clear()
        threads = [threading.Thread(target=work, args=(f"b{number}",)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert disk.done.count("sync") < 16 * 12 / 3
        view = backend.read(names("s"))
        assert view.session is not None
        assert view.session.checkpoints == 16 * 12 + 1
    with closing(FilesBackend(path)) as backend:
        assert list(backend.check()) == []


def test_a_refused_write_does_not_hurt_those_it_shares_a_sync_with(path: Path, store: FilesBackend) -> None:
    first = commit(store, "s", {"n": 0}, None)
    outcome: list[object] = []

    def work(number: int) -> None:
        try:
            outcome.append(commit(store, "s", {"n": number}, first.id).sequence)
        except ConflictError:
            outcome.append("conflict")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcome)) == ["2", *["conflict"] * 15]


# rewriting


REWRITTEN = """
lease = enter(backend, "s")
for number in range(100_000):
    backend.write(runs.lease_ask(lease), lambda view: Batch(tuple(view.lanes.values())))
    print(number, flush=True)
"""


def test_a_kill_while_a_journal_is_rewritten_loses_nothing(path: Path) -> None:
    with closing(FilesBackend(path)) as backend:
        rows = chain(backend, "s", 20)
    chosen = random.Random(5)
    for _ in range(5):
        running = child(
            path,
            "from backstay.port import Batch\n"
            + REWRITTEN.replace('enter(backend, "s")', 'enter(backend, "s", lease_us=1000)'),
        )
        assert running.stdout is not None
        for _ in range(chosen.randrange(200, 900)):
            if not running.stdout.readline():
                break
        running.kill()
        running.communicate()
        time.sleep(0.002)
        with closing(FilesBackend(path)) as backend:
            assert [p.what for p in backend.check()] == []
            assert [row.sequence for row in backend.scan("s", Kind.CHECKPOINT, limit=100)] == list(range(1, 21))  # type: ignore[union-attr]
            assert head_of(backend.read(names("s"))) == rows[-1].id
    assert journals(path)[0].stat().st_size < 2_000_000


def test_a_journal_mostly_superseded_is_rewritten_and_stays_short(path: Path, store: FilesBackend) -> None:
    rows = chain(store, "s", 5)
    with closing(FilesBackend(path)) as other:
        for number in range(1500):
            store.write(names("s"), lambda view: Batch(tuple(view.lanes.values())))
            if number % 100 == 0:
                assert head_of(other.read(names("s"))) == rows[-1].id
        assert len(other.scan("s", Kind.CHECKPOINT, limit=10)) == 5
        assert is_whole(other, "s", 5)
    assert journals(path)[0].stat().st_size < 600_000
    assert list(store.check()) == []


def test_deleted_rows_are_gone_from_the_disk_after_upkeep(path: Path, store: FilesBackend) -> None:
    rows = [commit(store, "s", {"n": 0}, None)]
    rows.append(commit(store, "s", {"secret": "hush-hush" * 3, "big": "large-secret" * 9000}, rows[-1].id))
    rows.append(commit(store, "s", {"n": 2}, rows[-1].id))
    assert [found for found in (path / "blobs").rglob("*") if found.is_file()]
    gone = deletion.Deletion("s", uid_of("s"), (2,), (deletion.Rewrite(3, 1),), anchors=(1,))
    store.write(gone.ask, deletion.delete_checkpoints(gone))
    assert [found for found in (path / "blobs").rglob("*") if found.is_file()] == []
    store.tend()
    assert rows[1].id.encode() not in journals(path)[0].read_bytes()
    assert is_whole(store, "s", 3)
    assert list(store.check()) == []


# blobs


def test_a_blob_goes_with_the_last_row_that_needs_it(path: Path, store: FilesBackend) -> None:
    big = {"b": os.urandom(60_000)}
    commit(store, "a", big, None)
    commit(store, "b", big, None)
    digests = list(prepared("a", big, None).blobs)
    for session, left in (("a", []), ("b", digests)):
        hidden = store.write(deletion.hide_ask(session), deletion.hide(session)).answer
        store.write(Ask(hidden.id, hidden=True), deletion.drop_session())
        assert list(store.absent(digests)) == left
        assert list(store.check()) == []


def test_a_batch_that_refers_to_an_absent_blob_writes_nothing_and_says_which(store: FilesBackend) -> None:
    new = prepared("s", {"b": os.urandom(60_000)}, None)
    without = msgspec.structs.replace(new, blobs={})
    with pytest.raises(BlobsAbsentError) as caught:
        store.write(without.ask, commits.commit(without))
    assert caught.value.digests == set(new.blobs)
    assert store.read(names("s")).session is None
    store.put_blobs(new.blobs)
    assert store.write(without.ask, commits.commit(without)).answer.sequence == 1
    assert is_whole(store, "s", 1)
    assert store.tend() == []
    assert is_whole(store, "s", 1)


def test_a_row_put_twice_in_one_batch_counts_its_blobs_once(path: Path, store: FilesBackend) -> None:
    first, second = prepared("s", {"b": os.urandom(9_000)}, None), prepared("s", {"b": os.urandom(9_000)}, None)
    row = commit(store, "s", {"n": 0}, None)
    frames = [KeyframeRow(row.sequence, new.keyframe, new.keyframe_refs) for new in (first, second)]
    other = KeyframeRow(row.sequence + 1, second.keyframe, second.keyframe_refs)
    store.write(names("s"), lambda _: Batch((other,), blobs=second.blobs))
    store.write(names("s"), lambda _: Batch(tuple(frames), blobs=first.blobs))
    store.write(names("s"), lambda _: Batch(drops=((Kind.KEYFRAME, row.sequence),)))
    assert list(store.absent(second.blobs)) == []
    with closing(FilesBackend(path)) as backend:
        backend.write(names("s"), lambda _: Batch(drops=((Kind.KEYFRAME, row.sequence + 1),)))
        assert set(backend.absent(second.blobs)) == set(second.blobs)


def test_a_blob_put_ahead_and_never_named_is_swept(store: FilesBackend) -> None:
    new = prepared("s", {"b": os.urandom(60_000)}, None)
    store.put_blobs(new.blobs)
    assert list(store.absent(new.blobs)) == []
    store.tend()
    assert list(store.absent(new.blobs)) == list(new.blobs)


# leases


def test_renewing_a_lease_syncs_nothing_and_wakes_nobody_and_others_see_it(path: Path) -> None:
    disk = Counting()
    with closing(FilesBackend(path, disk=disk)) as backend, closing(FilesBackend(path)) as other:
        commit(backend, "s", {"n": 0}, None)
        lease = enter(backend, "s")
        before = other.read(names("s")).lanes["main"].claim
        changes = other.changes()
        disk.done.clear()
        backend.write(runs.lease_ask(lease), runs.renew(lease))
        assert "sync" not in disk.done
        assert "sync_folder" not in disk.done
        after = other.read(names("s"))
        claim = after.lanes["main"].claim
        assert claim is not None
        assert before is not None
        assert claim.until_us > before.until_us
        assert after.live == {"main"}
        assert other.changes() == changes


# what it costs


@pytest.mark.parametrize("count", [1_500, pytest.param(20_000, marks=pytest.mark.exhaustive)])
def test_memory_does_not_grow_with_commits(path: Path, count: int) -> None:
    tracemalloc.start()  # before anything is cached: what is replaced later must be known to be gone
    try:
        with closing(FilesBackend(path, durability="relaxed")) as backend:
            head = chain(backend, "s", 500)[-1].id
            before = traced_without_known_rows()
            for number in range(count):
                head = commit(backend, "s", {"n": number, "text": "x" * 800}, head).id
            assert max(len(known_lines), len(known_names)) <= 256
            grown = traced_without_known_rows() - before
    finally:
        tracemalloc.stop()
    # Three numbers of eight bytes say where a row lies, which takes two thousand bytes and stays on the disk. Each of
    # these commits has two such rows, a checkpoint and its keyframe. An array has room for a sixteenth more.
    assert grown < count * 2 * 3 * 8 * 1.1 + 16_000


def traced_without_known_rows() -> int:
    """What is held, but for the lines and branches that the row codec remembers: up to 256 of each, then none again."""
    known_lines.clear()
    known_names.clear()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize(
    ("sessions", "descriptors"), [(300, 200), pytest.param(1_300, 1_024, marks=pytest.mark.exhaustive)]
)
def test_many_sessions_need_few_descriptors(path: Path, sessions: int, descriptors: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(FilesBackend(path, durability="relaxed")) as backend:
        for number in range(sessions):
            commit(backend, f"s{number}", {"n": number}, None)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
        try:
            assert list(backend.check()) == []
            for number in range(sessions):
                assert is_whole(backend, f"s{number}", 1)
            assert len(backend.sessions(SessionQuery(limit=2_000))) == sessions
            assert backend.sizes().sessions == sessions
            assert list(backend.tend()) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_listing_replays_no_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backstay.backends.files.journal import JournalFile

    with closing(FilesBackend(path)) as backend:
        for number in range(30):
            chain(backend, f"s{number}", 2)
    opened: list[Any] = []
    real = JournalFile._read

    def read(self: JournalFile, note: Any) -> None:
        opened.append(note)
        real(self, note)

    monkeypatch.setattr(JournalFile, "_read", read)
    with closing(FilesBackend(path)) as backend:
        rows = backend.sessions(SessionQuery(limit=5))
        assert [row.id for row in rows] == ["s29", "s28", "s27", "s26", "s25"]
        assert opened == []


def test_a_commit_syncs_once(path: Path) -> None:
    disk = Counting()
    with closing(FilesBackend(path, disk=disk)) as backend:
        rows = chain(backend, "s", 2)
        disk.done.clear()
        commit(backend, "s", {"n": 9}, rows[-1].id)
        assert disk.done.count("sync") == 1
        assert disk.done.count("sync_folder") == 0


def test_relaxed_syncs_what_makes_a_store_and_nothing_else(path: Path) -> None:
    disk = Counting()
    with closing(FilesBackend(path, durability="relaxed", disk=disk)) as backend:
        assert "sync" in disk.done
        assert "sync_folder" in disk.done
        chain(backend, "s", 2)
        disk.done.clear()
        commit(backend, "t", {"b": os.urandom(40_000)}, None)
        assert "sync" not in disk.done
        assert "sync_folder" not in disk.done


# ends


def test_a_forked_child_may_not_use_it_and_its_parent_is_unharmed(path: Path, store: FilesBackend) -> None:
    rows = chain(store, "s", 1)
    pid = os.fork()
    if not pid:
        try:
            store.read(names("s"))
        except ClosedError:
            store.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert commit(store, "s", {"n": 1}, rows[-1].id).sequence == 2


def test_a_closed_store_says_so(store: FilesBackend) -> None:
    store.close()
    store.close()
    for use in (lambda: store.read(names("s")), lambda: commit(store, "s", {"a": 1}, None), store.changes, store.tend):
        with pytest.raises(ClosedError):
            use()


# power loss


def a_day(backend: FilesBackend, acknowledge: Any) -> None:
    """A bit of everything. `acknowledge` is told what must hold from then on."""
    held: dict[str, Any] = {}

    def told(**news: Any) -> None:
        held.update(news)
        acknowledge(dict(held))

    head: str | None = None
    for number in range(3):
        head = commit(backend, "s", {"n": number, "b": os.urandom(9_000) if number == 1 else b""}, head).id
        told(head=head, count=number + 1)
    backend.write(branches.naming_ask("s", "t", 1), branches.tag("s", "t", sequence=1, id_=row_id(backend, 1)))
    told(tag=True)
    lease = enter(backend, "s")
    told(token=lease.token)
    told(calls=[call(backend, lease, "one").id])
    backend.write(runs.lease_ask(lease), runs.renew(lease))
    commit(backend, "u", {"doomed": os.urandom(9_000)}, None)
    told(other=True)
    backend.write(deletion.hide_ask("u"), deletion.hide("u"))
    told(other=False)
    backend.write(Ask(uid_of("u").hex(), hidden=True), deletion.drop_session())
    told(hidden=False)
    told(calls=[*held["calls"], call(backend, lease, "two").id])
    for _ in range(3):  # rewritten meanwhile
        backend.write(names("s"), lambda view: Batch(tuple(view.lanes.values()) * 120))
        told()
    last = commit(backend, "s", {"last": "x" * 3000}, head, lease=lease)
    told(head=last.id, count=4, calls=[])


def row_id(backend: FilesBackend, sequence: int) -> str:
    row = backend.read(Ask("s", sequences=(sequence,))).checkpoints[sequence]
    assert isinstance(row, CheckpointRow)
    return row.id


def holds(backend: FilesBackend, held: dict[str, Any], ahead: dict[str, Any]) -> None:
    """All of it, or the next step whole."""
    assert [problem.what for problem in backend.check()] == []
    view = backend.read(Ask("s", names=None, pending=None))
    if view.session is None:
        assert not held
        return
    lane = view.lanes["main"]
    assert head_of(view) in (held.get("head"), ahead.get("head"))
    assert view.session.checkpoints in (held.get("count"), ahead.get("count"))
    for sequence in range(1, view.session.checkpoints + 1):
        assert is_whole(backend, "s", sequence)
    assert ("t" in view.tags) in (held.get("tag", False), ahead.get("tag", False))
    assert lane.token in (held.get("token", 0), ahead.get("token", 0))
    assert [one.id for one in view.pending["main"] if not isinstance(one, Unreadable)] in (
        held.get("calls", []),
        ahead.get("calls", []),
    )
    other = backend.read(names("u")).session is not None
    assert other in (held.get("other", False), ahead.get("other", False))
    assert other or not is_listed(backend, "u")
    fresh = backend.read(Ask("s")).fresh
    assert fresh > view.session.touched
    commit(backend, "new", {"n": 1}, None)
    commit(backend, "s", {"on": 1}, None if lane.claim else head_of(view), branch="aside" if lane.claim else "main")
    assert [problem.what for problem in backend.check()] == []


def is_listed(backend: FilesBackend, session: str) -> bool:
    return session in [row.id for row in backend.sessions(SessionQuery())]


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_takes_back_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    from tests.faults import Faults, Posix, Timeline

    ring = tmp_path / "ring"
    ring.mkdir()
    faults = Faults(record=True)
    told: list[dict[str, Any]] = [{}]

    def acknowledge(held: dict[str, Any]) -> None:
        told.append(held)
        faults.mark(len(told) - 1)

    with Posix(faults, ring), closing(FilesBackend(ring / "store")) as backend:
        faults.mark(0)
        a_day(backend, acknowledge)
    chosen = random.Random(seed)
    moments = 0
    for moment in Timeline(faults.trace):
        states = [moment.chance(chosen)]
        if chosen.random() < 0.2:
            states += list(moment.systematic())
        for crash in {state for state in states if chosen.random() < 0.5}:
            crash.put(ring)
            at = moment.marks
            with closing(FilesBackend(ring / "store")) as backend:
                holds(backend, told[at], told[min(at + 1, len(told) - 1)])
            moments += 1
    assert moments > 60
