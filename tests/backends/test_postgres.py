"""The PostgreSQL backend keeps the contract, on a real server."""

from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from backstay.backend import Backend
from backstay.backends.postgres import PostgresBackend, writes
from backstay.backends.postgres.texts import pack, pack_id
from backstay.testing import BackendContract
from backstay.testing.contract import What
from tests.backends.conftest import Fresh

TABLES = ("backstay", "sessions", "names", "checkpoints", "blobs", "blob_refs", "runs", "calls")


class TestPostgres(BackendContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str, fresh_schema: Fresh) -> None:
        self.url = postgres_url
        self.fresh = fresh_schema

    def make(self) -> Backend:
        return PostgresBackend(self.url, schema=self.fresh())

    def reopen(self, backend: Backend) -> Backend:
        backend.close()
        return self.beside(backend)

    def beside(self, backend: Backend) -> Backend:
        return PostgresBackend(self.url, schema=schema_of(backend))

    def damage(self, backend: Backend, session: str, id_: str, what: What, *, at: float = 0.5) -> bool:
        with closing(connect(self.url, backend)) as connection:
            if what in ("call", "call's row"):
                slot = next(each.slot for each in backend.entries(session) if each.call.id == id_)
                if what == "call's row":
                    connection.execute("DELETE FROM calls WHERE slot = %s", (slot,))
                    return True
                found = connection.execute("SELECT body FROM calls WHERE slot = %s", (slot,), binary=True).fetchone()
                assert found is not None
                connection.execute("UPDATE calls SET body = %s WHERE slot = %s", (flipped(found[0], at), slot))
                return True
            found = connection.execute(
                "SELECT c.sid, c.sequence, c.fields, c.delta, c.roll, c.whole FROM checkpoints c "
                "JOIN sessions s ON s.sid = c.sid WHERE s.id = %s AND c.id = %s",
                (pack(session), pack_id(id_)),
                binary=True,
            ).fetchone()
            assert found is not None
            key, kept = found[:2], dict(zip(("fields", "delta", "roll", "whole"), found[2:], strict=True))
            if what == "row":
                connection.execute("DELETE FROM checkpoints WHERE sid = %s AND sequence = %s", key)
                return True
            if what == "blob":
                blob = connection.execute(
                    "SELECT b.bid, b.data FROM blobs b JOIN blob_refs r ON r.bid = b.bid "
                    "WHERE r.sid = %s AND r.sequence = %s",
                    key,
                    binary=True,
                ).fetchone()
                assert blob is not None
                connection.execute("UPDATE blobs SET data = %s WHERE bid = %s", (flipped(blob[1], at), blob[0]))
                return True
            if kept[what] is None:
                return False
            update = sql.SQL("UPDATE checkpoints SET {} = %s WHERE sid = %s AND sequence = %s")
            connection.execute(update.format(sql.Identifier(what)), (flipped(kept[what], at), *key))
            return True

    def opening_code(self, backend: Backend) -> str | None:
        return (
            "from backstay.backends.postgres import PostgresBackend; "
            f"backend = PostgresBackend({self.url!r}, schema={schema_of(backend)!r})"
        )

    def raw_text(self, backend: Backend) -> bytes:
        # What can be asked of the server. When the pages of a deleted row are overwritten is its own affair.
        with closing(connect(self.url, backend)) as connection:
            tables = [connection.execute(f"SELECT * FROM {table}", binary=True).fetchall() for table in TABLES]
        values = [value for rows in tables for row in rows for value in row]
        return b"\n".join([value if isinstance(value, bytes) else str(value).encode() for value in values])

    def shrink_rows(self, monkeypatch: pytest.MonkeyPatch) -> bool:
        monkeypatch.setattr(writes, "MAX_ROW_BYTES", 1_000)
        return True


def connect(url: str, backend: Backend) -> psycopg.Connection[Any]:
    """A connection behind the backend's back."""
    connection: psycopg.Connection[Any] = psycopg.connect(url, autocommit=True)
    connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema_of(backend))))
    return connection


def schema_of(backend: Backend) -> str:
    assert isinstance(backend, PostgresBackend)
    return backend.schema


def flipped(data: bytes, at: float) -> bytes:
    changed = bytearray(data)
    changed[int(at * len(changed))] ^= 1
    return bytes(changed)
