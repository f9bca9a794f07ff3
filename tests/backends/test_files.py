"""The files backend keeps the contract, on a disk."""

import base64
import errno
import json
import os
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay.backend import Backend, Kept, Moved
from backstay.backends.files import FilesBackend
from backstay.backends.files.disk import Disk
from backstay.delta import refs_of
from backstay.errors import (
    AlreadyExistsError,
    BackstayError,
    ConflictError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    UnavailableError,
)
from backstay.model import StateDict
from backstay.testing import BackendContract
from backstay.testing.author import Author, check_states, delete, read_back, read_row
from backstay.testing.contract import What
from backstay.testing.exact import exactly_equal
from tests.store.children import finish, start


class TestFiles(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"store-{number}" for number in range(1_000))

    def make(self) -> Backend:
        return FilesBackend(next(self.paths))

    def reopen(self, backend: Backend) -> Backend:
        backend.close()
        return self.beside(backend)

    def beside(self, backend: Backend) -> Backend:
        return FilesBackend(path_of(backend))

    def damage(self, backend: Backend, session: str, id_: str, what: What, *, at: float = 0.5) -> bool:
        return damage(path_of(backend), session, id_, what, at=at)

    def opening_code(self, backend: Backend) -> str:
        return (
            "from pathlib import Path\n"
            "from backstay.backends.files import FilesBackend\n"
            f"backend = FilesBackend(Path({str(path_of(backend))!r}))"
        )

    def raw_text(self, backend: Backend) -> bytes:
        text = b"".join([path.read_bytes() for path in path_of(backend).rglob("*") if path.is_file()])
        # What is kept as base64 is looked into as well.
        return text + b"".join([base64.b64decode(found) for found in re.findall(rb'"fields":"([^"]*)"', text)])


def path_of(backend: Backend) -> Path:
    assert isinstance(backend, FilesBackend)
    return backend.path


def journal_path(store: Path, session: str) -> Path:
    """The journal of a session, found by what is written in it."""
    for path in (store / "sessions").iterdir():
        with path.open("rb") as file:
            if json.loads(file.read().splitlines()[1])["id"] == session:
                return path
    raise LookupError(session)


def damage(store: Path, session: str, id_: str, what: What, *, at: float) -> bool:
    """Flip a bit in a checkpoint's line, in its record's line, in a blob; or cut all its lines out."""
    path = journal_path(store, session)
    lines = path.read_bytes().splitlines(keepends=True)
    mine = [n for n, line in enumerate(lines) if line.strip() and about(line).get("id") == id_]
    if what in ("call", "call's row"):
        return damage_call(path, lines, id_, what, at=at)
    if what == "row":
        path.write_bytes(b"".join([line for n, line in enumerate(lines) if n not in mine]))
        return True
    if what == "blob":
        digest = next(ref for n in mine for ref in json.loads(lines[n]).get("refs", []))
        blob = store / "blobs" / digest[:2] / digest
        blob.write_bytes(flipped(blob.read_bytes(), at))
        return True
    kind, member = ("checkpoint", b'"fields":"') if what == "fields" else (what, b'"ops":')
    for n in mine:
        if json.loads(lines[n])["what"] == kind:
            begin = lines[n].index(member) + (len(member) if what == "fields" else 0)
            stop = lines[n].index(b'"', begin) if what == "fields" else len(lines[n]) - 1
            lines[n] = lines[n][:begin] + flipped(lines[n][begin:stop], at) + lines[n][stop:]
            with path.open("r+b") as file:
                file.write(b"".join(lines))
            return True
    return False


def damage_call(path: Path, lines: list[bytes], id_: str, what: What, *, at: float) -> bool:
    """Flip a bit in the last line that has a call's words, or cut all its lines out."""
    mine = [n for n, line in enumerate(lines) if line.strip() and about(line, "call").get("id") == id_]
    if what == "call":
        last = max(n for n in mine if json.loads(lines[n])["what"] == "call")
        lines[last] = flipped(lines[last][:-1], at) + b"\n"
    else:
        lines = [line for n, line in enumerate(lines) if n not in mine]
    path.write_bytes(b"".join(lines))
    return True


def about(line: bytes, member: str = "about") -> dict[str, object]:
    try:
        found = json.loads(line).get(member)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def flipped(data: bytes, at: float) -> bytes:
    changed = bytearray(data)
    changed[int(at * len(changed))] ^= 1
    return bytes(changed)


# the files as a person finds them


def write_sessions(store: Path) -> dict[str, dict[str, StateDict]]:
    """Three small sessions with known states, in a store that is closed."""
    states: dict[str, dict[str, StateDict]] = {}
    with closing(FilesBackend(store, durability="relaxed")) as backend:
        for session in ("one", "two", "three"):
            author = Author(backend, session, whole_every=4, roll_every=0)
            author.grow(6)
            backend.fork(session, id_=author.rows[1].id, branch="other")
            backend.tag(session, id_=author.rows[2].id, name="good")
            states[session] = author.states
    return states


def read_sessions(store: Path, states: dict[str, dict[str, StateDict]]) -> set[str]:
    """Read everything in every way; true values and errors of ours are allowed. The sessions with an error."""
    troubled: set[str] = set()
    try:
        backend = FilesBackend(store, durability="relaxed")
    except BackstayError:
        return set(states)
    with closing(backend):
        for session, known in states.items():
            try:
                assert set(backend.ids(session)) == set(known)
                head = backend.find_branch(session, "main")
                assert head is not None
                assert head.head_id == list(known)[-1]
                line = backend.line(session, head.head_id, limit=99)
                assert [read_row(row).id for row in line] == list(known)[::-1]
                names = backend.names(session)
                assert [branch.name for branch in names.branches] == ["main", "other"]
                assert [(tag.name, tag.id) for tag in names.tags] == [("good", list(known)[2])]
                found = backend.find_session(session)
                assert found is not None
                assert (found.checkpoints, found.branches) == (6, 2)
            except CorruptionError:
                troubled.add(session)
            for id_, state in known.items():
                try:
                    assert exactly_equal(read_back(backend, session, id_), state)
                except CorruptionError:
                    troubled.add(session)
        try:
            page = backend.sessions(before=None, limit=9, status=None, agent=None)
            assert [row.id for row in page] == ["three", "two", "one"]
        except CorruptionError:
            assert list(backend.check())
        if troubled:
            assert list(backend.check())
    return troubled


def problems(store: Path) -> int:
    with closing(FilesBackend(store)) as backend:
        return len(list(backend.check()))


def files_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != "lock")


def test_a_flipped_bit_anywhere_is_never_a_wrong_value_or_a_missing_session(tmp_path: Path) -> None:
    states = write_sessions(tmp_path / "store")
    chance = random.Random(7)
    files = files_of(tmp_path / "store")
    noticed = 0
    for _ in range(80):
        path = chance.choice(files)
        true = path.read_bytes()
        damaged = bytearray(true)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        troubled = read_sessions(tmp_path / "store", states)
        noticed += bool(troubled)
        # A journal is one session's; a picture may be everybody's.
        assert len(troubled) <= 1 or path.parent.name != "sessions"
        path.write_bytes(true)
    assert noticed > 30


def test_a_journal_cut_off_anywhere_after_the_store_was_closed_is_damage(tmp_path: Path) -> None:
    states = write_sessions(tmp_path / "store")
    path = journal_path(tmp_path / "store", "two")
    true = path.read_bytes()
    chance = random.Random(11)
    for length in {0, 1, 100, len(true) - 2, *[chance.randrange(len(true)) for _ in range(20)]}:
        path.write_bytes(true[:length])
        assert read_sessions(tmp_path / "store", states) <= {"two"}, length
        assert problems(tmp_path / "store"), length
        path.write_bytes(true)
    path.write_bytes(true[:-1])  # all of it is there but the last newline
    assert read_sessions(tmp_path / "store", states) == set()


@pytest.mark.parametrize("filler", [b"\0", b" "])
def test_a_stretch_of_a_journal_that_was_wiped_is_damage(tmp_path: Path, filler: bytes) -> None:
    states = write_sessions(tmp_path / "store")
    path = journal_path(tmp_path / "store", "two")
    true = path.read_bytes()
    for at in range(0, len(true), 512):
        size = min(1024, len(true) - at)
        path.write_bytes(true[:at] + filler * size + true[at + size :])
        assert read_sessions(tmp_path / "store", states) <= {"two"}, at
        assert problems(tmp_path / "store"), at
    path.write_bytes(true)
    assert read_sessions(tmp_path / "store", states) == set()


@pytest.mark.parametrize("room", [b"", b" " * 700, b"\0" * 700])
def test_a_last_line_that_never_came_to_its_end_is_dropped_and_costs_nothing(tmp_path: Path, room: bytes) -> None:
    backend = FilesBackend(tmp_path / "store")
    author = Author(backend)
    author.grow(3)
    path = journal_path(tmp_path / "store", "a session")
    before = path.read_bytes().rstrip(b" ")
    author.grow(1)
    line = path.read_bytes().rstrip(b" ")[len(before) :]
    copy = tmp_path / "copy"
    last = author.rows[-1].id
    for cut in [1, 2, 19, len(line) // 3, len(line) // 2, line.index(b"\n") + 1, len(line) - 3]:
        shutil.copytree(tmp_path / "store", copy)
        (copy / "sessions" / path.name).write_bytes(before + line[:cut] + room)
        with closing(FilesBackend(copy)) as again:
            assert not list(again.check())
            check_states(again, "a session", {id_: state for id_, state in author.states.items() if id_ != last})
            writer = Author(again).stand_on_head()
            writer.grow(2)
            check_states(again, "a session", {**writer.states, **without(author.states, last)})
            assert not list(again.check())
        shutil.rmtree(copy)
    backend.close()


def without(states: dict[str, StateDict], id_: str) -> dict[str, StateDict]:
    return {known: state for known, state in states.items() if known != id_}


def test_a_sector_of_the_last_line_that_never_arrived_drops_the_line_whole(tmp_path: Path) -> None:
    author = Author(FilesBackend(tmp_path / "store"), whole_every=99)
    author.commit({"text": "x" * 900})
    author.commit({"text": "y" * 900})
    path = journal_path(tmp_path / "store", "a session")
    before = len(path.read_bytes().rstrip(b" "))
    row = author.commit({"text": "z" * 2_000})
    after = path.read_bytes()
    sector = (before // 512 + 2) * 512
    assert sector + 512 < len(after.rstrip(b" "))
    for old in (b" ", b"\0"):
        path.write_bytes(after[:sector] + old * 512 + after[sector + 512 :])
        with closing(FilesBackend(tmp_path / "store")) as again:
            assert not list(again.check())
            check_states(again, "a session", without(author.states, row.id))


def test_a_person_can_read_a_journal_line_by_line(tmp_path: Path) -> None:
    with backstay.open(f"file:{tmp_path / 'store'}") as store:
        session = store.session("ticket-42", agent="support")
        session.commit({"messages": [{"role": "user", "content": "where is order 7?"}]}, label="begun")
        session.commit({"messages": [{"role": "user", "content": "where is order 7?"}, {"role": "assistant"}]})
    text = journal_path(tmp_path / "store", "ticket-42").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line.get("what") for line in lines] == [
        *(None, "session", "session", "whole", "checkpoint", "delta", "checkpoint")
    ]
    assert lines[4]["shown"]["label"] == "begun"
    assert lines[4]["shown"]["created"].startswith("20")
    assert lines[5]["values"] == [{"role": "assistant"}]
    assert "\0" not in text
    assert not text.endswith(" \n")


def test_what_json_cannot_hold_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    author = Author(FilesBackend(tmp_path / "store"))
    odd: list[Any] = [
        *(None, True, 1, 1.0, -0.0, 2**64 - 1, 2**70, -(2**63), float("inf"), float("nan"), 1e-320, "\0", "\ud800"),
        *(b"", b"\xff", (1, [2]), {1: "a"}, {"$": 1}, {"$bytes": "x"}, {"$ext": [1, ""]}, {"$dict": []}, {1, 2}),
        *("é ć Δ Ж \U0001f980", " " * 2_000, "x" * 9_000, b"y" * 9_000, {"deep": [{"$": [b"z", float("-inf")]}]}),
    ]
    for number in range(len(odd)):
        author.commit({"odd": odd[: number + 1], "last": odd[number]})
    check_states(author.backend, "a session", author.states)
    author.backend.close()
    with closing(FilesBackend(tmp_path / "store")) as again:
        check_states(again, "a session", author.states)


def test_nobody_else_can_look_into_a_store(tmp_path: Path) -> None:
    write_sessions(tmp_path / "store")
    for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_nothing_is_made_outside_the_folder_whatever_a_session_is_called(tmp_path: Path) -> None:
    inside = tmp_path / "here"
    inside.mkdir()
    with closing(FilesBackend(inside / "store")) as backend:
        for name in ("../../x", "/etc/x", "a/b", "..", "CON", "x" * 256):
            Author(backend, name).grow(1)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert [path.name for path in inside.iterdir()] == ["store"]
    names = [path.name for path in (inside / "store" / "sessions").iterdir()]
    assert all(re.fullmatch(r"[0-9a-f]{64}\.jsonl", name) for name in names)


def test_a_folder_that_is_not_a_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("mine")
    with pytest.raises(FormatError):
        FilesBackend(tmp_path / "notes")
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["diary.txt"]
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FormatError):
        FilesBackend(tmp_path / "file")
    with pytest.raises(InvalidInputError):
        FilesBackend(tmp_path / "nowhere" / "store")


def test_a_store_whose_first_words_are_no_text_is_refused(tmp_path: Path) -> None:
    write_sessions(tmp_path / "store")
    meta = tmp_path / "store" / "backstay.json"
    meta.write_bytes(meta.read_bytes().replace(b"files", b"f\xe9les"))
    with pytest.raises(FormatError):
        FilesBackend(tmp_path / "store")


@pytest.mark.parametrize("asked", [b'"min_reader":', b'"min_writer":'])
def test_a_store_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path, asked: bytes) -> None:
    states = write_sessions(tmp_path / "store")
    meta = tmp_path / "store" / "backstay.json"
    true = meta.read_bytes()
    opened = FilesBackend(tmp_path / "store")
    meta.write_bytes(true.replace(asked + b"1", asked + b"2"))
    before = [path.read_bytes() for path in files_of(tmp_path / "store")]
    with pytest.raises(FormatError):
        FilesBackend(tmp_path / "store")
    with pytest.raises(FormatError):
        Author(opened, "one").stand_on_head().grow(1)
    assert [path.read_bytes() for path in files_of(tmp_path / "store")] == before
    meta.write_bytes(true)
    opened.close()
    assert read_sessions(tmp_path / "store", states) == set()


@pytest.mark.parametrize("url", ["file:", "file://", "file://host/x", "file:x?y", "file:x#y", "file:///a%00b"])
def test_a_url_that_names_no_folder_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError):
        backstay.open(url)
    assert not list(tmp_path.iterdir())


def test_a_url_may_be_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("file:one two", f"file://{tmp_path}/one%20two", f"file:{tmp_path}/one two"):
        with backstay.open(url) as store:
            store.session("s").commit({"from": url})
    with backstay.open("file:one two") as store:
        assert len(list(store.session("s").log())) == 3


# others at the same files


# The first of them begins the shared session: a commit that has loaded nothing goes on top of whatever is there.
WRITER = """
import sys, time, backstay
with backstay.open("file:" + sys.argv[1]) as store:
    for number in range(int(sys.argv[3])):
        while True:
            session = store.session("shared")
            try:
                begins = sys.argv[2] == "a" and not session.head()
                state = {"done": []} if begins else session.load()
                state["done"].append([sys.argv[2], number])
                session.commit(state)
                break
            except (backstay.ConflictError, backstay.NotFoundError):
                time.sleep(0.001)
        store.session("of " + sys.argv[2]).commit({"number": number, "picture": b"p" * 6000})
print("done")
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    children = [start(WRITER, tmp_path / "store", name, 15) for name in "abc"]
    for child in children:
        assert finish(child) == ["done"]
    with backstay.open(f"file:{tmp_path / 'store'}") as store:
        done = store.session("shared").load()["done"]
        assert sorted(done) == [[name, number] for name in "abc" for number in range(15)]
        assert {info.id: info.checkpoints for info in store.sessions()} == {
            "shared": 45,
            "of a": 15,
            "of b": 15,
            "of c": 15,
        }
        assert store.verify().ok


def test_a_journal_written_anew_by_another_is_noticed(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "s")) as ours, closing(FilesBackend(tmp_path / "s")) as theirs:
        author = Author(ours)
        author.grow(6)
        assert len(theirs.ids("a session")) == 6
        delete(theirs, "a session", author.rows[2].id)
        states = without(author.states, author.rows[2].id)
        check_states(ours, "a session", states)
        author.stand_on_head()
        author.grow(1)
        check_states(theirs, "a session", {**states, author.rows[-1].id: author.state})
        theirs.delete_session("a session")
        assert ours.find_session("a session") is None
        with pytest.raises(ConflictError):
            author.grow(1)


# errors of the disk


class Failing(Disk):
    """Fails the n-th change of a kind, or all from it on."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: dict[str, tuple[int, int]] = {}
        self.seen: dict[str, int] = {}

    def fail(self, operation: str, error: int, *, after: int = 0) -> None:
        self.rules[operation] = (self.seen.get(operation, 0) + after + 1, error)

    def before(self, operation: str, size: int) -> int:
        self.seen[operation] = self.seen.get(operation, 0) + 1
        number, error = self.rules.get(operation, (2**62, 0))
        if self.seen[operation] >= number:
            raise OSError(error, os.strerror(error))
        return size


@pytest.mark.parametrize("operation", ["write", "sync", "create", "rename", "sync_folder"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("lasting", [False, True])
def test_a_disk_that_fails_loses_nothing_and_can_be_written_to_again(
    tmp_path: Path, operation: str, error: int, lasting: bool
) -> None:
    disk = Failing()
    with closing(FilesBackend(tmp_path / "store", disk=disk)) as backend:
        author = Author(backend)
        author.grow(4)
        state = {**author.state, "picture": bytes(range(256)) * 20}
        for after in range(4):
            disk.fail(operation, error, after=after)
            if lasting:
                disk.rules["truncate"] = (0, error)
            draft = author.draft(state)
            failed = False
            try:
                backend.commit(draft)
            except UnavailableError:
                failed = True
                check_states(backend, "a session", author.states)
            disk.rules.clear()
            if failed:
                author.write(author.draft(state), state)
            else:
                author.rows.append(backend.commit(draft))
                author.states[draft.id] = state
                author.stand_on(draft.id)
            author.grow(1)
            check_states(backend, "a session", author.states)
            state = {**author.state, "picture": bytes([after]) * 5_000}
        with closing(FilesBackend(tmp_path / "store")) as again:
            check_states(again, "a session", author.states)
            assert not list(again.check())


# moving


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_session_moves_from_store_to_store_as_it_was(tmp_path: Path, size: int) -> None:
    with closing(FilesBackend(tmp_path / "from")) as source, closing(FilesBackend(tmp_path / "to")) as target:
        author = Author(source, whole_every=9)
        author.grow(20)
        source.tag("a session", id_=author.rows[3].id, name="good")
        states = {**author.states, **author.fork(author.rows[5].id, "other").states}
        delete(source, "a session", author.rows[7].id)
        states = without(states, author.rows[7].id)
        Author(target, "neighbour").grow(2)
        move(source, target, size)
        check_states(target, "a session", states)
        assert target.names("a session") == source.names("a session")
        for id_ in states:
            assert target.find_row("a session", id_) == source.find_row("a session", id_)
        ours, theirs = source.find_session("a session"), target.find_session("a session")
        assert ours is not None
        assert theirs is not None
        assert (ours.totals, ours.branches, ours.checkpoints) == (theirs.totals, theirs.branches, theirs.checkpoints)
        with pytest.raises(AlreadyExistsError):
            move(source, target, size)
        assert Author(target).stand_on_head().grow(1)[0].sequence == 21
        assert not list(target.check())


def move(source: Backend, target: Backend, size: int, *, fail_at: int = -1) -> None:
    line = source.find_session("a session")
    assert line is not None

    def history() -> Iterator[tuple[Kept, Mapping[bytes, bytes]]]:
        after = 0
        while page := source.history("a session", after=after, limit=size):
            for kept in page:
                if kept.row.sequence == fail_at:
                    message = "the file ends here"
                    raise CorruptionError(message)
                yield kept, source.blobs(refs_of([record for record in (kept.delta, kept.whole) if record is not None]))
            after = page[-1].row.sequence

    target.adopt(Moved(line, source.names("a session"), line.checkpoints and 20), history())


def test_a_session_that_does_not_arrive_whole_leaves_nothing_behind(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "from")) as source, closing(FilesBackend(tmp_path / "to")) as target:
        Author(source).grow(20)
        with pytest.raises(CorruptionError):
            move(source, target, 5, fail_at=13)
        assert target.find_session("a session") is None
        left = [path.name for path in files_of(tmp_path / "to")]
        assert set(left) <= {"backstay.json", "counter"}


def test_repair_settles_names_after_lost_lines_and_keeps_every_readable_checkpoint(tmp_path: Path) -> None:
    with closing(FilesBackend(tmp_path / "store")) as backend:
        author = Author(backend, whole_every=3)
        author.grow(10)
        backend.fork("a session", id_=author.rows[1].id, branch="other")
        damage(tmp_path / "store", "a session", author.rows[-1].id, "row", at=0)
        with pytest.raises(CorruptionError):
            backend.ids("a session")
        assert backend.repair()
        states = without(author.states, author.rows[-1].id)
        check_states(backend, "a session", states)
        assert not list(backend.check())
        assert not backend.repair()
        again = Author(backend).stand_on_head()
        again.grow(1)
        check_states(backend, "a session", {**states, **again.states})
