"""Damage on the disk: never a wrong value, and never something missing that nobody is told of."""

import random
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from backstay.backends.sqlite import SqliteBackend
from backstay.backends.sqlite.connections import connect
from backstay.errors import BackstayError, CorruptionError
from backstay.model import StateDict
from backstay.port import Ask, CheckpointRow, Kind, LaneQuery, SessionQuery, Unreadable
from backstay.port.rows import ENTERED
from backstay.testing.author import Author, Runner, read_back
from backstay.testing.exact import exactly_equal
from backstay.upkeep.verifying import verify

PAGE_BYTES = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


class Made:
    """A store with three sessions, branches, calls, blobs and foreign ids, closed; and what it must say."""

    def __init__(self, path: Path) -> None:
        self.states: dict[str, dict[int, StateDict]] = {}
        with closing(SqliteBackend(path)) as backend:
            for session in ("one", "two", "three"):
                author = Author(backend, session, keyframe_every=5)
                rows = author.grow(9)
                author.commit({"n": 1}, id_=f"foreign to {session}")
                other = author.fork(rows[3], "other")
                other.grow(3)
                run = Runner(backend, session)
                self.calls = [run.call().id for _ in range(4)]
                run.start()
                self.states[session] = author.states | other.states
        self.sessions = ["three", "two", "one"]

    def read_all(self, path: Path) -> int:
        """Read everything in every way; true values and errors of ours are allowed. How many were errors."""
        try:
            backend = SqliteBackend(path)
        except BackstayError:
            return 1
        errors = 0
        with closing(backend):
            for session, states in self.states.items():
                for look in self.looks(session):
                    try:
                        look(backend)
                    except BackstayError:
                        errors += 1
                for sequence, state in states.items():
                    try:
                        assert exactly_equal(read_back(backend, session, sequence), state)
                    except CorruptionError:
                        errors += 1
            for look in (self.listing, self.attention):
                try:
                    look(backend)
                except BackstayError:
                    errors += 1
            if errors:
                assert list(backend.check())
        return errors

    def looks(self, session: str) -> list[Callable[[SqliteBackend], None]]:
        def rows(backend: SqliteBackend) -> None:
            found = backend.scan(session, Kind.CHECKPOINT, limit=99)
            keys = [row.key if isinstance(row, Unreadable) else key(row) for row in found]
            assert keys == sorted(self.states[session])
            if any(isinstance(row, Unreadable) for row in found):
                raise CorruptionError("a row is damaged")

        def names(backend: SqliteBackend) -> None:
            view = backend.read(Ask(session, names=None, pending=None, ids=(f"foreign to {session}",)))
            assert view.lanes.keys() == {"main", "other"}
            if any(isinstance(call, Unreadable) for call in view.pending["main"]):
                raise CorruptionError("a call is damaged")
            assert [len(view.pending[name]) for name in ("main", "other")] == [5, 0]
            assert view.foreign == {f"foreign to {session}": 10}

        def line(backend: SqliteBackend) -> None:
            found = backend.ancestors(session, 13, limit=99)
            keys = [row.key if isinstance(row, Unreadable) else key(row) for row in found]
            assert keys == [13, 12, 11, 4, 3, 2, 1][: len(keys)]
            if len(keys) < 7:
                assert isinstance(found[-1], Unreadable)

        def children(backend: SqliteBackend) -> None:
            view = backend.read(Ask(session, children_of=(4, 10)))
            assert view.children == {4: [5, 11], 10: []}

        return [rows, names, line, children]

    def listing(self, backend: SqliteBackend) -> None:
        assert [row.id for row in backend.sessions(SessionQuery())] == self.sessions

    def attention(self, backend: SqliteBackend) -> None:
        assert [found.session.id for found in backend.lanes(LaneQuery(ENTERED))] == self.sessions


def key(row: Any) -> int:
    assert isinstance(row, CheckpointRow)
    return row.sequence


def copy_of(path: Path, content: bytes | bytearray, number: int) -> Path:
    copied = path.with_name(f"damaged-{number}.db")
    copied.write_bytes(content)
    return copied


def test_a_store_that_nobody_damaged_reads_without_an_error(path: Path) -> None:
    assert Made(path).read_all(path) == 0


def test_a_flipped_bit_anywhere_is_never_a_wrong_value_nor_something_missing(path: Path) -> None:
    made = Made(path)
    whole = path.read_bytes()
    chance = random.Random(11)
    noticed = 0
    for number in range(100):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        copied = copy_of(path, damaged, number)
        noticed += made.read_all(copied) > 0
        for file in path.parent.glob(f"{copied.name}*"):
            file.unlink()
    assert noticed > 50


TABLES = ["rows", "lookup", "checkpoints", "keyframes", "calls", "blobs", "refs"]


@pytest.mark.parametrize("table", TABLES)
def test_a_page_that_is_lost_is_an_error_for_those_who_need_it(path: Path, table: str) -> None:
    made = Made(path)
    page = root_of(path, table)
    content = bytearray(path.read_bytes())
    content[PAGE_BYTES * (page - 1) : PAGE_BYTES * page] = bytes(PAGE_BYTES)
    path.write_bytes(content)
    assert made.read_all(path)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("other", [*TABLES, "meta", "refs_digest"])
def test_pages_exchanged_with_their_checksums_right_are_noticed(path: Path, table: str, other: str) -> None:
    """Each page is whole and has its right checksum; it stands in the place of another. Disks do that, too."""
    if table == other:
        pytest.skip("the same page")
    made = Made(path)
    content = bytearray(path.read_bytes())
    here, there = (
        slice(PAGE_BYTES * (root_of(path, name) - 1), PAGE_BYTES * root_of(path, name)) for name in (table, other)
    )
    content[here], content[there] = content[there], content[here]
    path.write_bytes(content)
    assert made.read_all(path)


def root_of(path: Path, name: str) -> int:
    with closing(connect(path, durability="full")) as connection:
        found: Any = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    return int(found[0][0])


def change(path: Path, sql: str) -> None:
    with closing(connect(path, durability="full")) as connection:
        connection.execute(sql)


@pytest.mark.parametrize("what", range(8))
def test_an_index_that_lost_entries_is_reported_and_mended(path: Path, what: int) -> None:
    made = Made(path)
    change(path, f"DELETE FROM lookup WHERE what = {what}")
    with closing(SqliteBackend(path)) as backend:
        if what != 1:  # no session is hidden
            assert list(backend.check())
            assert backend.tend(repair=True)
        assert list(backend.check()) == []
        assert backend.tend(repair=True) == []
    assert made.read_all(path) == 0


def test_an_index_whose_entries_lead_astray_is_reported_and_mended(path: Path) -> None:
    made = Made(path)
    change(path, "INSERT INTO lookup VALUES(0, 'nobody', 99, 0), (4, 1, 1, 'nothing'), (5, 'nothing', 1, 77)")
    with closing(SqliteBackend(path)) as backend:
        for ask in (lambda: backend.read(Ask("nobody")), lambda: backend.lanes(LaneQuery(1))):
            with pytest.raises(CorruptionError):
                ask()
        with pytest.raises(CorruptionError):
            backend.read(Ask("one", ids=("nothing",)))
        assert list(backend.check())
        backend.tend(repair=True)
    assert made.read_all(path) == 0


def test_rows_of_no_session_are_reported_and_left_alone(path: Path) -> None:
    Made(path)
    change(path, "UPDATE rows SET sid = 77 WHERE sid = 1 AND kind = 1 AND name = 'other'")
    change(path, "INSERT INTO checkpoints SELECT key + (88 << 32), parent, body FROM checkpoints WHERE key >> 32 = 2")
    with closing(SqliteBackend(path)) as backend:
        problems = len(list(backend.check()))
        assert problems == 2
        for use in (lambda: backend.read(Ask("one", names=("other",))), lambda: backend.state("one", "other")):
            with pytest.raises(CorruptionError):
                use()
        assert backend.tend(repair=True) == []
        assert len(list(backend.check())) == problems


@pytest.mark.parametrize("sql", ["DELETE FROM rows", "UPDATE rows SET body = zeroblob(40)"])
@pytest.mark.parametrize("where", ["kind = 0 AND sid = 2", "kind = 1 AND sid = 2", "sid = 2", "sid > 0"])
def test_a_repair_never_makes_a_damaged_session_one_that_was_never_there(path: Path, sql: str, where: str) -> None:
    Made(path)
    change(path, f"{sql} WHERE {where}")
    with closing(SqliteBackend(path)) as backend:
        for _ in range(2):
            with pytest.raises(CorruptionError):
                backend.state("two", "main")
            with pytest.raises(CorruptionError):
                backend.read(Ask("two", names=None))
            with pytest.raises(CorruptionError):
                backend.lanes(LaneQuery(ENTERED))
            backend.tend(repair=True)
        assert verify(backend).problems
        kept = backend._read(lambda connection: connection.execute("SELECT count(*) FROM checkpoints").fetchall())
        assert kept == [(39,)]


@pytest.mark.parametrize("table", ["refs", "refs_digest"])
def test_blobs_whose_references_were_lost_are_not_swept_away(path: Path, table: str) -> None:
    made = Made(path)
    content = bytearray(path.read_bytes())
    one, two = root_of(path, table), root_of(path, "meta")
    here, there = (slice(PAGE_BYTES * (page - 1), PAGE_BYTES * page) for page in (one, two))
    empty = bytearray(content[there])
    content[here] = empty
    path.write_bytes(content)
    with closing(SqliteBackend(path)) as backend:
        with pytest.raises(CorruptionError):
            backend.tend()
        kept: Any = backend._read(lambda connection: connection.execute("SELECT count(*) FROM blobs").fetchall())
        assert kept[0][0]
    assert made.read_all(path) or table == "refs_digest"


def test_one_damaged_page_of_a_long_history_leaves_the_rest_of_it_readable(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        author = Author(backend, keyframe_every=4)
        author.grow(60)
    # A leaf of the table: somewhere behind its root.
    with closing(connect(path, durability="full")) as connection:
        pages: Any = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = 'checkpoints' AND pagetype = 'leaf' ORDER BY path"
        ).fetchall()
    content = bytearray(path.read_bytes())
    content[PAGE_BYTES * (pages[len(pages) // 2][0] - 1) + 2000] ^= 1
    path.write_bytes(content)
    with closing(SqliteBackend(path)) as backend:
        rows = backend.scan(author.session, Kind.CHECKPOINT, limit=99)
        lost = {row.key for row in rows if isinstance(row, Unreadable)}
        assert 0 < len(lost) < 20
        assert len(rows) == 60
        down = backend.scan(author.session, Kind.CHECKPOINT, before=61, limit=99)
        assert [row == other for row, other in zip(rows, reversed(down), strict=True)] == [True] * 60
        walked = backend.ancestors(author.session, 60, limit=99)
        assert isinstance(walked[-1], Unreadable)
        readable = [row.sequence for row in rows if isinstance(row, CheckpointRow)]
        for sequence in (readable[0], readable[-1]):
            assert exactly_equal(read_back(backend, author.session, sequence), author.states[sequence])
        view = backend.read(Ask(author.session, sequences=(min(lost, key=str), 1)))  # type: ignore[arg-type]
        assert sum(isinstance(row, Unreadable) for row in view.checkpoints.values()) == 1


def test_damage_of_one_session_does_not_end_the_writes_of_others_in_the_same_transaction(path: Path) -> None:
    import threading

    with closing(SqliteBackend(path)) as backend:
        for session in ("good", "bad"):
            Author(backend, session).grow(3)
    change(path, "UPDATE rows SET body = zeroblob(50) WHERE kind = 1 AND sid = 2")
    with closing(SqliteBackend(path)) as backend:
        good = Author(backend, "good").stand_on_head()
        bad = good.draft({"n": 1})
        raised: list[type[BaseException]] = []

        def write_bad() -> None:
            from msgspec.structs import replace

            from backstay.rules.commit import commit

            wrong = replace(bad, session="bad")
            for _ in range(50):
                try:
                    backend.write(wrong.ask, commit(wrong))
                except BackstayError as error:
                    raised.append(type(error))

        thread = threading.Thread(target=write_bad)
        thread.start()
        good.grow(50)
        thread.join()
        assert set(raised) == {CorruptionError}
        assert len(raised) == 50


# the log


def logged(path: Path) -> tuple[Path, dict[int, StateDict]]:
    """A copy of a store whose process was killed: the newest checkpoints are in the log alone."""
    backend = SqliteBackend(path)
    author = Author(backend)
    author.grow(8)
    copied = path.with_name("copied.db")
    for ending in ("", "-wal", "-tail"):
        # By another process: closing a descriptor of ours would drop the locks that SQLite holds on the file.
        subprocess.run(["cp", f"{path}{ending}", f"{copied}{ending}"], check=True)
    backend.close()
    return copied, author.states


def test_a_log_that_is_whole_gives_all_back(path: Path) -> None:
    copied, states = logged(path)
    with closing(SqliteBackend(copied)) as backend:
        assert exactly_equal(read_back(backend, "a session", 8), states[8])


@pytest.mark.parametrize("at", ["header", "first frame", "last frame"])
def test_a_damaged_log_is_an_error_and_the_newest_turns_do_not_vanish(path: Path, at: str) -> None:
    copied, _ = logged(path)
    log = Path(f"{copied}-wal")
    content = bytearray(log.read_bytes())
    frames = int.from_bytes(Path(f"{copied}-tail").read_bytes()[12:16], "big")
    place = {"header": 18, "first frame": 3000, "last frame": 32 + frames * (PAGE_BYTES + 24) - 2000}[at]
    content[place] ^= 4
    log.write_bytes(content)
    before = log.read_bytes()
    with pytest.raises(CorruptionError, match="log"):
        SqliteBackend(copied)
    assert log.read_bytes() == before, "the damaged log was taken away"


def test_a_store_without_its_log_opens_as_it_was_when_the_log_was_moved_into_it(path: Path) -> None:
    copied, _ = logged(path)
    Path(f"{copied}-wal").unlink()
    with closing(SqliteBackend(copied)) as backend:
        assert backend.sessions(SessionQuery()) == []


def test_a_log_without_its_store_is_not_thrown_away(path: Path) -> None:
    copied, _ = logged(path)
    copied.unlink()
    with pytest.raises(CorruptionError, match="missing or empty"):
        SqliteBackend(copied)
    assert not copied.exists()
    assert Path(f"{copied}-wal").stat().st_size


def test_what_was_deleted_is_nowhere_on_the_disk_once_the_store_was_tended(path: Path) -> None:
    from backstay.rules.deletion import drop_session, hide, hide_ask

    with closing(SqliteBackend(path)) as backend:
        for turn in range(30):
            for session in ("stays", "goes"):
                author = Author(backend, session)
                if turn:
                    author.stand_on_head()
                author.commit({"turn": turn, "text": f"the secret of {session} is {turn}"})
        row = backend.write(hide_ask("goes"), hide("goes")).answer
        backend.write(Ask(row.id, hidden=True), drop_session())
        backend.tend()
        files = [str(file) for file in path.parent.iterdir()]
        kept = subprocess.run(["cat", *files], capture_output=True, check=True).stdout
        assert b"the secret of goes" not in kept
        assert b"the secret of stays" in kept
        assert exactly_equal(read_back(backend, "stays", 30), {"turn": 29, "text": "the secret of stays is 29"})
        # The log is grown again once, and no step of it grows it further.
        Author(backend, "stays").stand_on_head().commit({"turn": 30, "text": ""})
        assert Path(f"{path}-wal").stat().st_size == 1024 * 1024


def test_a_big_deletion_gives_its_space_back(path: Path) -> None:
    from backstay.rules.deletion import drop_session, hide, hide_ask

    with closing(SqliteBackend(path)) as backend:
        author = Author(backend, "goes")
        author.commit({"picture": random.Random(1).randbytes(6_000_000)})
        Author(backend, "stays").grow(3)
        assert backend.sizes().stored_bytes > 6_000_000
        row = backend.write(hide_ask("goes"), hide("goes")).answer
        backend.write(Ask(row.id, hidden=True), drop_session())
        backend.tend()
        assert backend.sizes().stored_bytes < 200_000
        assert path.stat().st_size < 200_000


def test_who_reads_after_an_interrupted_read_is_not_shown_an_old_view(path: Path) -> None:
    with closing(SqliteBackend(path)) as backend:
        Author(backend).grow(3)
        kept: list[object] = []

        def cut_off(connection: apsw.Connection) -> None:
            rows = connection.execute("SELECT key FROM checkpoints")
            kept.append(rows)  # as the frames of an error do
            next(iter(rows))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backend._read(cut_off)
        Author(backend, "another session").grow(1)
        assert backend.read(Ask("another session")).session is not None


def test_a_copy_of_the_file_alone_is_a_whole_store_once_it_was_closed(path: Path) -> None:
    made = Made(path)
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]
    shutil.copy(path, path.with_name("copy.db"))
    assert made.read_all(path.with_name("copy.db")) == 0
