"""The SQLite backend keeps the contract, on a disk."""

import random
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

import backstay
from backstay.backend import Backend
from backstay.backends.sqlite import SqliteBackend, writes
from backstay.backends.sqlite.reads import pack_id
from backstay.backends.sqlite.schema import connect
from backstay.errors import BackstayError, CorruptionError
from backstay.model import StateDict
from backstay.testing import BackendContract
from backstay.testing.author import Author, read_back, read_row
from backstay.testing.contract import What
from backstay.testing.exact import exactly_equal


class TestSqlite(BackendContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"store-{number}.db" for number in range(1_000))

    def make(self) -> Backend:
        return SqliteBackend(next(self.paths))

    def reopen(self, backend: Backend) -> Backend:
        backend.close()
        return self.beside(backend)

    def beside(self, backend: Backend) -> Backend:
        return SqliteBackend(path_of(backend))

    def damage(self, backend: Backend, session: str, id_: str, what: What, *, at: float = 0.5) -> bool:
        with closing(connect(path_of(backend), durability="full")) as connection:
            if what in ("call", "call's row"):
                slot = next(each.slot for each in backend.entries(session) if each.call.id == id_)
                body: Any = connection.execute("SELECT body FROM calls WHERE call = ?", (slot,)).fetchone()
                if what == "call":
                    connection.execute("UPDATE calls SET body = ? WHERE call = ?", (flipped(body[0], at), slot))
                else:
                    connection.execute("DELETE FROM calls WHERE call = ?", (slot,))
                return True
            found: Any = connection.execute(
                "SELECT c.cid, c.fields, c.delta, c.roll, c.whole FROM checkpoints c JOIN sessions s ON s.sid = c.sid "
                "WHERE s.id = ? AND c.id = ?",
                (session, pack_id(id_)),
            ).fetchone()
            cid: Any = found[0]
            kept: dict[str, Any] = dict(zip(("fields", "delta", "roll", "whole"), found[1:], strict=True))
            if what == "row":
                connection.execute("DELETE FROM checkpoints WHERE cid = ?", (cid,))
                return True
            if what == "blob":
                blob: Any = connection.execute(
                    "SELECT b.bid, b.data FROM blobs b JOIN blob_refs r ON r.bid = b.bid WHERE r.cid = ?", (cid,)
                ).fetchone()
                bid, data = blob
                connection.execute("UPDATE blobs SET data = ? WHERE bid = ?", (flipped(data, at), bid))
                return True
            if kept[what] is None:
                return False
            connection.execute(f"UPDATE checkpoints SET {what} = ? WHERE cid = ?", (flipped(kept[what], at), cid))
            return True

    def opening_code(self, backend: Backend) -> str | None:
        return (
            "from pathlib import Path; from backstay.backends.sqlite import SqliteBackend; "
            f"backend = SqliteBackend(Path({str(path_of(backend))!r}))"
        )

    def raw_text(self, backend: Backend) -> bytes:
        # By another process: closing a descriptor of ours would drop the locks that SQLite holds on the file.
        path = path_of(backend)
        files = [str(file) for file in path.parent.glob(f"{path.name}*")]
        return subprocess.run(["cat", *files], capture_output=True, check=True).stdout

    def shrink_rows(self, monkeypatch: pytest.MonkeyPatch) -> bool:
        monkeypatch.setattr(writes, "MAX_ROW_BYTES", 1_000)
        return True


def test_a_flipped_bit_anywhere_in_the_file_is_never_a_wrong_value_or_a_missing_session(tmp_path: Path) -> None:
    states = write_sessions(tmp_path / "store.db")
    whole = (tmp_path / "store.db").read_bytes()
    chance = random.Random(7)
    noticed = 0
    for number in range(120):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path = tmp_path / f"damaged-{number}.db"
        path.write_bytes(damaged)
        noticed += read_sessions(path, states)
        for file in tmp_path.glob(f"{path.name}*"):
            file.unlink()
    assert noticed > 60


def write_sessions(path: Path) -> dict[str, dict[str, StateDict]]:
    """Three small sessions with known states, in a file that is closed."""
    states: dict[str, dict[str, StateDict]] = {}
    with closing(SqliteBackend(path)) as backend:
        for session in ("one", "two", "three"):
            author = Author(backend, session, whole_every=8)
            author.grow(12)
            states[session] = author.states
    return states


def read_sessions(path: Path, states: dict[str, dict[str, StateDict]]) -> bool:
    """Read everything in every way; true values and errors of ours are allowed. True if anything was an error."""
    errors = 0
    try:
        backend = SqliteBackend(path)
    except BackstayError:
        return True
    with closing(backend):
        for session, known in states.items():
            for look in (ids_of, line_of):
                try:
                    assert look(backend, session) == set(known)
                except BackstayError:
                    errors += 1
            for id_, state in known.items():
                try:
                    assert exactly_equal(read_back(backend, session, id_), state)
                except CorruptionError:
                    errors += 1
        try:
            page = backend.sessions(before=None, limit=9, status=None, agent=None)
            assert [row.id for row in page] == ["three", "two", "one"]
        except BackstayError:
            errors += 1
        if errors:
            assert list(backend.check())
    return errors > 0


def ids_of(backend: Backend, session: str) -> set[str]:
    return set(backend.ids(session))


def line_of(backend: Backend, session: str) -> set[str]:
    found = backend.find_branch(session, "main")
    assert found is not None
    return {read_row(row).id for row in backend.line(session, found.head_id, limit=99)}


def path_of(backend: Backend) -> Path:
    assert isinstance(backend, SqliteBackend)
    return backend.path


def flipped(data: bytes, at: float) -> bytes:
    changed = bytearray(data)
    changed[int(at * len(changed))] ^= 1
    return bytes(changed)


def test_who_reads_after_an_interrupted_read_is_not_shown_an_old_view(tmp_path: Path) -> None:
    with closing(SqliteBackend(tmp_path / "store.db")) as backend:
        Author(backend).grow(3)
        kept: list[object] = []

        def cut_off(connection: apsw.Connection) -> None:
            rows = connection.execute("SELECT cid FROM checkpoints")
            kept.append(rows)  # as the frames of an error do
            next(iter(rows))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backend._read(cut_off)
        Author(backend, "another session").grow(1)
        assert backend.find_session("another session") is not None


@pytest.mark.parametrize("index", ["runs_branch", "calls_run"])
def test_an_index_exchanged_for_an_empty_one_never_hides_a_run_nor_a_call(tmp_path: Path, index: str) -> None:
    path = tmp_path / "store.db"
    made: list[str] = []

    def pay() -> str:
        made.append("paid")
        return "paid"

    with backstay.open(path) as store, suppress(KeyboardInterrupt), store.run("s") as run:
        run.call("pay", pay, args=1)
        raise KeyboardInterrupt
    with closing(connect(path, durability="full")) as connection:
        roots: dict[Any, Any] = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema"))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    # Each page is whole and has its right checksum; it stands in the place of another. Disks do that, too.
    content, one, other = bytearray(path.read_bytes()), roots[index], roots["blob_refs_bid"]
    here, there = (slice(4096 * (page - 1), 4096 * page) for page in (one, other))
    content[here], content[there] = content[there], content[here]
    path.write_bytes(content)
    with backstay.open(path) as store, pytest.raises(CorruptionError), store.run("s") as run:
        run.call("pay", pay, args=1)
    assert made == ["paid"]
