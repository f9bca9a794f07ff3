"""The SQLite backend keeps the contract, on a disk."""

import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backstay.backends.sqlite import SqliteBackend
from backstay.backends.sqlite.connections import connect
from backstay.port import Backend, Key, Kind
from backstay.testing.contract import BackendContract, Change


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

    def harm(self, backend: Backend, session: str, kind: Kind, key: Key, change: Change) -> bool:
        with closing(connect(path_of(backend), durability="full")) as connection:
            sid: Any = connection.execute("SELECT sid FROM rows WHERE kind = 0 AND name = ?", (session,)).fetchall()
            where, bindings = place_of(kind, sid[0][0], key)
            (body,) = connection.execute(f"SELECT body FROM {where}", bindings).fetchall()[0]
            assert isinstance(body, bytes)
            harmed = change(body)
            if harmed is None:
                connection.execute(f"DELETE FROM {where}", bindings)
            else:
                table, _, condition = where.partition(" ")
                connection.execute(f"UPDATE {table} SET body = ? {condition}", (harmed, *bindings))
        return True

    def harm_blob(self, backend: Backend, digest: bytes, change: Change) -> bool:
        with closing(connect(path_of(backend), durability="full")) as connection:
            (data,) = connection.execute("SELECT data FROM blobs WHERE digest = ?", (digest,)).fetchall()[0]
            assert isinstance(data, bytes)
            harmed = change(data)
            if harmed is None:
                connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
            else:
                connection.execute("UPDATE blobs SET data = ? WHERE digest = ?", (harmed, digest))
        return True

    def opening_code(self, backend: Backend) -> str | None:
        return (
            "from pathlib import Path; from backstay.backends.sqlite import SqliteBackend; "
            f"backend = SqliteBackend(Path({str(path_of(backend))!r}))"
        )

    def raw_bytes(self, backend: Backend) -> bytes | None:
        # By another process: closing a descriptor of ours would drop the locks that SQLite holds on the file.
        path = path_of(backend)
        files = [str(file) for file in path.parent.glob(f"{path.name}*")]
        return subprocess.run(["cat", *files], capture_output=True, check=True).stdout

    def syncs(self, backend: Backend) -> int | None:
        assert isinstance(backend, SqliteBackend)
        return backend.syncs


def path_of(backend: Backend) -> Path:
    assert isinstance(backend, SqliteBackend)
    return backend.path


def place_of(kind: Kind, sid: int, key: Key) -> tuple[str, tuple[Any, ...]]:
    """The table and the condition that find a row, and what is bound to it."""
    if kind in (Kind.SESSION, Kind.NAME):
        return "rows WHERE sid = ? AND kind = ? AND name = ?", (sid, int(kind), key)
    if kind is Kind.CALL:
        assert isinstance(key, tuple)
        return "calls WHERE sid = ? AND run = ? AND journal = ? AND key & 16777215 = ?", (sid, *key)
    assert isinstance(key, int)
    table = {Kind.CHECKPOINT: "checkpoints", Kind.SEGMENT: "segments"}.get(kind, "keyframes")
    return f"{table} WHERE key = ?", (sid << 32 | key,)
