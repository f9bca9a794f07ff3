"""The PostgreSQL backend keeps the contract."""

from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from backstay.backends.postgres import PostgresBackend
from backstay.port import Backend, Key, Kind
from backstay.testing.contract import BackendContract, Change
from tests.backends.conftest import Fresh

TABLES = {
    Kind.NAME: ("names", ("name",)),
    Kind.CHECKPOINT: ("checkpoints", ("sequence",)),
    Kind.KEYFRAME: ("keyframes", ("sequence",)),
    Kind.SEGMENT: ("segments", ("first",)),
    Kind.CALL: ("calls", ("run", "journal", "n")),
}


# An interrupt inside psycopg's own connect leaves a connection that nobody was given.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
class TestPostgres(BackendContract):
    alone = False  # a snapshot is one of all databases of a server

    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str, fresh_schema: Fresh) -> None:
        self.url, self.fresh = postgres_url, fresh_schema

    def make(self) -> Backend:
        return PostgresBackend(self.url, schema=self.fresh())

    def reopen(self, backend: Backend) -> Backend:
        backend.close()
        return self.beside(backend)

    def beside(self, backend: Backend) -> Backend:
        assert isinstance(backend, PostgresBackend)
        return PostgresBackend(self.url, schema=backend.schema)

    def opening_code(self, backend: Backend) -> str:
        assert isinstance(backend, PostgresBackend)
        return (
            "from backstay.backends.postgres import PostgresBackend\n"
            f"backend = PostgresBackend({self.url!r}, schema={backend.schema!r})"
        )

    def harm(self, backend: Backend, session: str, kind: Kind, key: Key, change: Change) -> bool:
        if kind is Kind.SESSION:
            return self._harm(backend, "sessions", {"id": session.encode()}, "body", change)
        table, columns = TABLES[kind]
        values = key if isinstance(key, tuple) else (key.encode() if isinstance(key, str) else key,)
        where = dict(zip(columns, values, strict=True))
        return self._harm(backend, table, where, "body", change, session.encode())

    def harm_blob(self, backend: Backend, digest: bytes, change: Change) -> bool:
        return self._harm(backend, "blobs", {"digest": digest}, "data", change)

    def _harm(
        self, backend: Backend, table: str, where: dict[str, Any], column: str, change: Change, session: bytes = b""
    ) -> bool:
        assert isinstance(backend, PostgresBackend)
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(backend.schema)))
            if session:
                found = connection.execute(
                    "SELECT sid FROM sessions WHERE NOT hidden AND id = %s", (session,)
                ).fetchone()
                assert found is not None
                where = {**where, "sid": found[0]}
            clause = sql.SQL(" AND ").join([sql.SQL("{} = %s").format(sql.Identifier(name)) for name in where])
            names = {"table": sql.Identifier(table), "column": sql.Identifier(column), "clause": clause}
            values = list(where.values())
            row = connection.execute(
                sql.SQL("SELECT {column} FROM {table} WHERE {clause}").format(**names), values
            ).fetchone()
            assert row is not None
            body = change(row[0])
            if body is None:
                connection.execute(sql.SQL("DELETE FROM {table} WHERE {clause}").format(**names), values)
            else:
                connection.execute(
                    sql.SQL("UPDATE {table} SET {column} = %s WHERE {clause}").format(**names), [body, *values]
                )
        return True

    def raw_bytes(self, backend: Backend) -> bytes:
        assert isinstance(backend, PostgresBackend)
        with closing(psycopg.connect(self.url)) as connection:
            connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(backend.schema)))
            tables = (
                "sessions",
                "names",
                "checkpoints",
                "keyframes",
                "segments",
                "calls",
                "refs",
                "foreign_ids",
                "blobs",
            )
            rows = [
                connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))).fetchall()
                for table in tables
            ]
        return repr(rows).encode()
