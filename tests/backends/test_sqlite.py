"""The SQLite backend keeps the contract, on a disk."""

import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.backend import Backend
from holdfast.backends.sqlite import SqliteBackend, writes
from holdfast.backends.sqlite.reads import pack_id
from holdfast.backends.sqlite.schema import connect
from holdfast.testing import BackendContract
from holdfast.testing.contract import What


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

    def raw_text(self, backend: Backend) -> bytes:
        # By another process: closing a descriptor of ours would drop the locks that SQLite holds on the file.
        path = path_of(backend)
        files = [str(file) for file in path.parent.glob(f"{path.name}*")]
        return subprocess.run(["cat", *files], capture_output=True, check=True).stdout

    def shrink_rows(self, monkeypatch: pytest.MonkeyPatch) -> bool:
        monkeypatch.setattr(writes, "MAX_ROW_BYTES", 1_000)
        return True


def path_of(backend: Backend) -> Path:
    assert isinstance(backend, SqliteBackend)
    return backend.path


def flipped(data: bytes, at: float) -> bytes:
    changed = bytearray(data)
    changed[int(at * len(changed))] ^= 1
    return bytes(changed)
