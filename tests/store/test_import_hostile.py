"""Files that nobody exported: damaged, cut, forged, or made to fill the memory. None gets in that is not harmless."""

import contextlib
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

import backstay
from backstay import (
    BackstayError,
    CorruptionError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    Store,
    UnavailableError,
)
from backstay.backends.sqlite import SqliteBackend
from backstay.backends.sqlite.connections import connect
from backstay.codec import encode_stored
from backstay.delta import Record
from backstay.model import MAX_DEPTH
from backstay.port import SessionQuery, TagRow
from backstay.port.rows import Head, Took
from backstay.sealing import pack_blob
from tests.store.children import run
from tests.store.test_import import is_empty
from tests.store.travel import KINDS, Part, Parts, about, live, open_kind

REFUSED = (CorruptionError, FormatError)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sessions.backstay"


@pytest.fixture
def there() -> Store:
    return backstay.open("memory://")


@pytest.fixture(scope="module")
def origin() -> Store:
    """Two sessions, one of them with a branch, a picture and a run."""
    store = backstay.open("memory://")
    session = store.session("s", agent="a")
    for turn in range(6):
        session.commit({"messages": [f"message {n}" for n in range(turn)], "image": b"i" * 5000}, step=turn)
    session.fork("main~4", "b")
    session.commit({**session.load("b"), "other": 1}, branch="b", metadata={"odd": (1, b"\xff")}, id="an id of ours")
    session.tag("main", "good")
    with session.run(branch="b", input="in") as running:
        running.append(running.call("tool", lambda: {"role": "tool", "content": "x" * 400}, args={"n": 1}))
    store.session("t").commit({"n": 1})
    return store


@pytest.fixture(scope="module")
def small(origin: Store, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "file"
    origin.export(path)
    return path.read_bytes()


# damage


def arrives(file: Path, origin: Store) -> bool:
    """False if a file is refused and leaves nothing; True if what is in it is what was exported."""
    with backstay.open("memory://") as there:
        try:
            there.import_(file)
        except REFUSED:
            assert is_empty(there)
            return False
        for name in ("s", "t"):
            assert about(there, name) == about(origin, name)
        return True


def test_no_flipped_bit_gets_in_that_changes_anything(small: bytes, file: Path, origin: Store) -> None:
    chance = random.Random(7)
    places = [*range(120), *[at for at in range(120, len(small)) if at % 61 == 0]]
    came = 0
    for at in places:
        damaged = bytearray(small)
        damaged[at] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        came += arrives(file, origin)
    assert came < len(places) / 2  # pages that an import does not need: it looks for references itself
    file.write_bytes(small)
    assert arrives(file, origin)


def test_no_page_that_stands_in_the_place_of_another_changes_anything(small: bytes, file: Path, origin: Store) -> None:
    pages = [small[at : at + 4096] for at in range(0, len(small), 4096)]
    chance = random.Random(7)
    for _ in range(60):
        one, other = chance.sample(range(1, len(pages)), 2)
        for wrong in (
            [*pages[:one], pages[other], *pages[one + 1 :]],
            [bytes(4096) if at == one else page for at, page in enumerate(pages)],
        ):
            file.write_bytes(b"".join(wrong))
            arrives(file, origin)


def test_no_file_that_was_cut_gets_in(small: bytes, file: Path, origin: Store) -> None:
    for length in [*range(0, 200, 7), *range(200, len(small) - 4095, 1021)]:
        file.write_bytes(small[:length])
        assert not arrives(file, origin)
    file.write_bytes(small[:-1])
    arrives(file, origin)
    for tail in (b"\0", bytes(5000), small):
        file.write_bytes(small + tail)
        arrives(file, origin)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_changes_while_it_is_read_changes_nothing(kind: str, tmp_path: Path, file: Path) -> None:
    with backstay.open("memory://") as here:
        live(here, turns=400)
        here.export(file)
        changed: list[bool] = []

        def change(done: int, total: int | None) -> None:
            if not changed:
                changed.append(True)
                data = bytearray(file.read_bytes())
                for at in range(20_000, len(data), 3000):
                    data[at] ^= 1
                with file.open("r+b") as damaged:
                    damaged.write(data)

        other = tmp_path / "other"
        other.mkdir()
        with open_kind(kind, other) as there:
            with pytest.raises(CorruptionError):
                there.import_(file, progress=change)
            assert is_empty(there)
            assert not list(there.backend.check())


# other files


def test_what_is_no_export_or_not_a_whole_one_is_said_to_be_that(
    file: Path, there: Store, small: bytes, tmp_path: Path
) -> None:
    database = apsw.Connection(str(tmp_path / "other.db"))
    database.execute("CREATE TABLE t(x)")
    database.close()
    with backstay.open(tmp_path / "store.db") as store:
        live(store)
    for content in (
        b"",
        b"{}",
        b"SQLite format 3\0" + bytes(100),
        b"backstay-export 1\n" + bytes(99),
        (tmp_path / "other.db").read_bytes(),
        (tmp_path / "store.db").read_bytes(),
    ):
        file.write_bytes(content)
        with pytest.raises(FormatError):
            there.import_(file)
    file.unlink()
    SqliteBackend.make_export(file).close()
    with pytest.raises(FormatError):
        there.import_(file)
    with pytest.raises(FormatError):
        backstay.open(file)
    assert is_empty(there)


def test_an_export_of_a_newer_version_is_refused_and_named(small: bytes, file: Path, there: Store) -> None:
    file.write_bytes(small)
    with contextlib.closing(connect(file, durability="full")) as connection:
        connection.execute("UPDATE meta SET value = 1 << 40 WHERE key = 'read'")
    with pytest.raises(FormatError, match="does not know"):
        there.import_(file)
    file.write_bytes(small)
    with contextlib.closing(connect(file, durability="full")) as connection:
        connection.execute("CREATE TABLE novelties(x)")
    with pytest.raises(FormatError, match="novelties"):
        there.import_(file)


def test_a_file_that_is_not_there_or_is_no_file_is_said_to_be_that(tmp_path: Path, there: Store, small: bytes) -> None:
    with pytest.raises(NotFoundError):
        there.import_(tmp_path / "nothing")
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotFoundError):
        there.import_(tmp_path / "nowhere")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises((InvalidInputError, UnavailableError)):
        there.import_(tmp_path / "round")
    odd: Any
    for odd in (tmp_path, "a\0b", 5, "/dev/null", "/dev/zero"):
        with pytest.raises(InvalidInputError):
            there.import_(odd)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to a pipe").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "to a pipe"):
        with pytest.raises(InvalidInputError):
            there.import_(tmp_path / name)
    (tmp_path / "export").write_bytes(small)
    (tmp_path / "link").symlink_to(tmp_path / "export")
    assert there.import_(tmp_path / "link").checkpoints == 9


def test_what_lies_beside_an_export_is_not_taken_for_a_part_of_it(small: bytes, file: Path, origin: Store) -> None:
    file.write_bytes(small)
    for ending in ("-wal", "-journal", "-shm"):
        file.with_name(file.name + ending).write_bytes(random.Random(1).randbytes(9000))
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    assert arrives(file, origin)
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before


# forged


def nested(depth: int) -> bytes:
    return b"\x81\xa1k" * depth + b"\xa1x"


def fields_with(part: Part, **changed: Any) -> None:
    part.change(fields=msgspec.msgpack.encode({**msgspec.msgpack.decode(part.row.fields), **changed}))


A_DELTA = Record(b"\x91\x93\x00\x90\xa1x", b"\x01")


def twice(rows: list[Part]) -> None:
    for part in rows[3:5]:
        part.change(id="twice")


HOSTILE_ROWS: dict[str, Callable[[list[Part]], Any]] = {
    "another state": lambda rows: rows[2].change(state_digest=bytes(32)),
    "a digest cut short": lambda rows: rows[2].change(state_digest=bytes(31)),
    "another delta": lambda rows: setattr(rows[2], "delta", rows[3].delta),
    "the delta of another base": lambda rows: setattr(rows[2], "base", bytes(32)),
    "a delta that cannot be": lambda rows: setattr(rows[2], "delta", Record(b"\x91\x93\x02\x90\x07", b"")),
    "a delta of nothing": lambda rows: setattr(rows[2], "delta", Record(b"", b"")),
    "a delta without end": lambda rows: setattr(rows[2], "delta", Record(b"\xdd\xff\xff\xff\xff", b"")),
    "no delta": lambda rows: setattr(rows[2], "delta", None),
    "a delta without a parent": lambda rows: setattr(rows[0], "delta", A_DELTA),
    "another keyframe": lambda rows: setattr(rows[2], "keyframe", rows[0].keyframe),
    "a blob that is not there": lambda rows: setattr(rows[2], "delta", Record(b"\x90", b"", (bytes(32),))),
    "half a name of a blob": lambda rows: setattr(rows[2], "delta", Record(b"\x90", b"", (bytes(33),))),
    "a parent that is not here": lambda rows: rows.pop(2),
    "a parent that comes later": lambda rows: rows[2].change(parent=5),
    "itself as a parent": lambda rows: rows[2].change(parent=3),
    "a parent below all": lambda rows: rows[2].change(parent=-1),
    "no parent but a digest of one": lambda rows: rows[2].change(parent_id=None),
    "a parent without a digest": lambda rows: rows[3].change(parent_id="x", parent_digest=b""),
    "a parent that is here, and rests on another": lambda rows: rows[3].change(parent_id=rows[1].row.id),
    "another parent": lambda rows: rows[3].change(parent_id="x" * 300),
    "an id of another": lambda rows: rows[5].change(id=rows[4].row.id),
    "an id twice": twice,
    "an empty id": lambda rows: rows[2].change(id=""),
    "an id with a NUL": lambda rows: rows[2].change(id="a\0b"),
    "an endless id": lambda rows: rows[2].change(id="x" * 10_000),
    "a tail cut short": lambda rows: rows[2].change(tail=b"x"),
    "a negative size": lambda rows: rows[2].change(size_bytes=-1),
    "an enormous size": lambda rows: rows[2].change(size_bytes=2**62),
    "fields that are none": lambda rows: rows[2].change(fields=b"fields"),
    "a status that is none": lambda rows: fields_with(rows[2], s="bogus"),
    "a time that cannot be": lambda rows: fields_with(rows[2], c=2**62),
    "metadata that is none": lambda rows: fields_with(rows[2], m=encode_stored([1])),
    "metadata that does not decode": lambda rows: fields_with(rows[2], m=b"\xc1"),
    "metadata too deep": lambda rows: fields_with(rows[2], m=nested(MAX_DEPTH + 5)),
    "metadata too deep for anybody": lambda rows: fields_with(rows[2], m=nested(200_000)),
    "a usage of text": lambda rows: fields_with(rows[2], u=encode_stored(["a", "b", "c", "d", {}])),
    "a total with too much": lambda rows: fields_with(rows[2], v=encode_stored([1, 2, 3, 4, {}, 6])),
    "a step beyond 63 bits": lambda rows: fields_with(rows[2], n=2**63),
    "calls of nobody": lambda rows: rows[2].change(took=Took(7, 2, 1)),
    "calls of the future": lambda rows: rows[7].change(took=Took(rows[7].row.took.run, 90, 1)),  # type: ignore[union-attr]
    "calls that others have": lambda rows: rows[6].change(took=rows[7].row.took),
    "less than no calls": lambda rows: rows[7].change(took=Took(rows[7].row.took.run, 7, -1)),  # type: ignore[union-attr]
    "more calls than there are": lambda rows: rows[7].change(took=Took(rows[7].row.took.run, 7, 2)),  # type: ignore[union-attr]
    "one checkpoint less": lambda rows: rows.pop(),
}


@pytest.fixture
def parts(origin: Store) -> Parts:
    """A session, to be taken apart."""
    return Parts(origin, "s")


def test_a_file_put_together_by_hand_gets_in_if_all_of_it_is_right(
    parts: Parts, file: Path, there: Store, origin: Store
) -> None:
    parts.write(file)
    assert there.import_(file).checkpoints == 8
    assert about(there, "s") == about(origin, "s")
    assert there.verify().ok


def refused(parts: Parts, file: Path, there: Store) -> None:
    parts.write(file)
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)
    # Whoever only looks into it is told, too, or sees something else: never a traceback of ours.
    with contextlib.suppress(BackstayError), backstay.open(file) as looked_at:
        for info in looked_at.sessions():
            session = looked_at.session(info.id)
            acts: list[Callable[[], Any]] = [session.load, session.branches, session.calls, partial(_log, session)]
            for act in acts:
                with contextlib.suppress(BackstayError):
                    act()


def _log(session: backstay.Session) -> list[Any]:
    return list(session.log())


@pytest.mark.parametrize("how", HOSTILE_ROWS)
def test_a_checkpoint_that_no_commit_could_have_made_does_not_get_in(
    how: str, parts: Parts, file: Path, there: Store
) -> None:
    HOSTILE_ROWS[how](parts.rows)
    refused(parts, file, there)


HOSTILE_LINES: dict[str, Callable[[Parts], Any]] = {
    "a session without a name": lambda parts: parts.set_line(id=""),
    "a session with a NUL": lambda parts: parts.set_line(id="a\0b"),
    "an endless name": lambda parts: parts.set_line(id="x" * 257),
    "a status that is none": lambda parts: parts.set_line(status="bogus"),
    "a time that cannot be": lambda parts: parts.set_line(created_us=2**62),
    "a usage that is none": lambda parts: parts.set_line(usage=b"\xc1"),
    "a usage of text": lambda parts: parts.set_line(usage=encode_stored(["a"])),
    "an agent with a NUL": lambda parts: parts.set_line(agent="a\0"),
    "a step beyond 63 bits": lambda parts: parts.set_line(last_step=2**63),
    "fewer checkpoints": lambda parts: parts.set_line(checkpoints=3),
    "more checkpoints": lambda parts: parts.set_line(checkpoints=300),
    "less than none": lambda parts: parts.set_line(checkpoints=-1),
    "fewer branches": lambda parts: parts.set_line(lanes=1),
    "more tags": lambda parts: parts.set_line(tags=7),
    "a number that is too small": lambda parts: parts.set_line(sequence=3),
    "a branch without a name": lambda parts: parts.set_name(0, name=""),
    "an endless tag": lambda parts: parts.set_name(1, name="x" * 257),
    "a tag on nothing": lambda parts: parts.set_name(1, sequence=77),
    "a tag below all": lambda parts: parts.set_name(1, sequence=-1),
    "a tag on no number": lambda parts: parts.set_name(1, sequence="one"),
    "a head that is not there": lambda parts: parts.set_name(2, head=Head(77, "x", bytes(32), bytes(32))),
    "a head that is another": lambda parts: parts.set_name(2, head=Head(2, "x", bytes(32), bytes(32))),
    "an undo to nobody": lambda parts: parts.set_name(2, undo=77),
    "a branch in no state": lambda parts: parts.set_name(2, status="bogus"),
    "an input that is none": lambda parts: parts.set_name(2, input=b"\0\xc1"),
    "an input that unpacks without end": lambda parts: parts.set_name(2, input=pack_blob(bytes(100_000_000))),
    "a run below all": lambda parts: parts.set_name(2, run=-1),
    "a run beyond all": lambda parts: parts.set_name(2, run=2**63 - 1),
    "two branches with one run": lambda parts: parts.set_name(2, run=parts.names[0].run),
    "calls on no checkpoint": lambda parts: parts.set_name(2, journal=77),
    "parked calls that are not there": lambda parts: parts.set_name(0, undo_journal=1, undo_calls=2),
}


@pytest.mark.parametrize("how", HOSTILE_LINES)
def test_a_session_that_no_store_could_have_does_not_get_in(how: str, parts: Parts, file: Path, there: Store) -> None:
    assert [type(row) is TagRow for row in parts.names] == [False, True, False]
    HOSTILE_LINES[how](parts)
    refused(parts, file, there)


def test_a_state_deeper_than_may_be_committed_does_not_get_in(parts: Parts, file: Path, there: Store) -> None:
    parts.rows[0].keyframe = Record(msgspec.msgpack.encode([[0, [], "a"]]), nested(MAX_DEPTH + 1))
    parts.write(file)
    with pytest.raises(CorruptionError, match="deeper"):
        there.import_(file)


def test_a_session_that_comes_twice_in_a_file_does_not_get_in(parts: Parts, file: Path, there: Store) -> None:
    parts.write(file)
    with contextlib.closing(connect(file, durability="full")) as connection:
        connection.execute("INSERT INTO lookup SELECT what, value, sid + 1, at FROM lookup WHERE what IN (0, 3)")
        connection.execute("INSERT INTO rows SELECT sid + 1, kind, name, marks, body FROM rows WHERE kind = 0")
    with pytest.raises(CorruptionError):
        there.import_(file)
    assert is_empty(there)


ODD_VALUES = ("NULL", "-1", "'text'", "x'00'", "1.5", "9223372036854775807", "''")


def test_no_odd_value_in_any_column_gets_in_or_breaks_anything(parts: Parts, file: Path, there: Store) -> None:
    parts.write(file)
    good = file.read_bytes()
    with contextlib.closing(connect(file, durability="full")) as connection:
        tables: list[Any] = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        columns = [
            (table, row[1])
            for (table,) in tables
            for row in connection.execute(f"PRAGMA table_info({table})").fetchall()
        ]
    came = 0
    for table, column in columns:
        for value in ODD_VALUES:
            file.write_bytes(good)
            with contextlib.closing(connect(file, durability="full")) as connection, contextlib.suppress(apsw.Error):
                connection.execute(f"UPDATE OR IGNORE {table} SET {column} = {value}")
            with backstay.open("memory://") as target:
                try:
                    target.import_(file)
                    came += 1
                    assert [info.checkpoints for info in target.sessions()] in ([8], [])
                except BackstayError:
                    assert is_empty(target)
            with contextlib.suppress(BackstayError), backstay.open(file) as looked_at:
                for info in looked_at.sessions():
                    with contextlib.suppress(BackstayError):
                        looked_at.session(info.id).load()
    assert came < len(columns) * len(ODD_VALUES) / 2


# bombs


BOMB = """
import resource, sys, backstay
limit = int(sys.argv[2]) * 1024 * 1024
there = backstay.open("memory://")
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    there.import_(sys.argv[1])
    print("came")
except backstay.CorruptionError as error:
    print("refused", error)
"""


def long_refs(count: int) -> tuple[Record, dict[bytes, bytes]]:
    """A record that names many blobs, each of which is sixteen megabytes of next to nothing."""
    from hashlib import sha256

    blobs = {}
    for number in range(count):
        content = number.to_bytes(4, "big") * (4 * 1024 * 1024)
        blobs[sha256(content).digest()] = pack_blob(content)
    return Record(b"\x90", b"", tuple(blobs)), blobs


def bomb_keyframe(parts: Parts) -> None:
    parts.rows[0].keyframe = Record(msgspec.msgpack.encode([[0, [], "a"]]), encode_stored("x" * 400_000_000))


def bomb_delta(parts: Parts) -> None:
    parts.rows[2].delta = Record(b"\xdd\x00\x0f\x42\x40" + b"\x93\x01\x90\xa1x" * 1_000_000, b"")


def bomb_blobs(parts: Parts) -> None:
    parts.rows[2].delta, more = long_refs(40)
    parts.blobs |= more


def bomb_journal(parts: Parts) -> None:
    parts.set_call(0, n=2**24 - 1)


def bomb_count(parts: Parts) -> None:
    parts.rows[7].change(took=Took(parts.rows[7].row.took.run, 7, 2**31))  # type: ignore[union-attr]


def bomb_result(parts: Parts) -> None:
    parts.set_call(0, place=None, result=pack_blob(bytes(400_000_000)))


@pytest.mark.parametrize("bomb", [bomb_keyframe, bomb_delta, bomb_blobs, bomb_journal, bomb_count, bomb_result])
def test_a_short_file_that_unpacks_to_gigabytes_is_refused_before_it_does(
    bomb: Callable[[Parts], None], parts: Parts, file: Path
) -> None:
    bomb(parts)
    parts.write(file)
    (said,) = run(BOMB, file, 700)  # of address space, a third of which Python and SQLite take to begin with
    assert said.startswith("refused")
    assert "MemoryError" not in said


def test_states_as_large_as_may_be_are_one_at_a_time(file: Path) -> None:
    with backstay.open("memory://") as store:
        session = store.session("s")
        for turn in range(6):
            session.commit({"text": f"{turn}" * 20_000_000, "n": turn})
        store.export(file)
    assert run(BOMB, file, 900) == ["came"]


def test_what_a_refused_file_had_brought_is_gone(parts: Parts, file: Path, tmp_path: Path) -> None:
    HOSTILE_ROWS["one checkpoint less"](parts.rows)
    parts.write(file)
    with backstay.open(tmp_path / "there.db") as there:
        with pytest.raises(CorruptionError):
            there.import_(file)
        assert not there.backend.sessions(SessionQuery(hidden=True))
        assert not list(there.backend.check())
