"""Two openings of one store in a PostgreSQL, and how many round trips something takes."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from backstay.backends.postgres import PostgresBackend, pool
from backstay.port import Ask
from backstay.testing.author import Author
from tests.backends.conftest import Fresh

Pair = tuple[PostgresBackend, PostgresBackend]


@pytest.fixture
def pair(postgres_url: str, fresh_schema: Fresh) -> Iterator[Pair]:
    """Two openings of one store: for the server, two processes."""
    schema = fresh_schema()
    with (
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as one,
        contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as two,
    ):
        yield one, two


class Trips:
    """Counts what is sent to the server and answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[bytes] = []
        for name in ("ask", "ask_all", "ask_kept", "tell"):
            monkeypatch.setattr(pool, name, self._counting(getattr(pool, name)))
        execute = psycopg.Connection.execute

        def counting(connection: Any, statement: Any, *rest: Any) -> Any:
            self.sent.append(str(statement).encode())
            return execute(connection, statement, *rest)

        monkeypatch.setattr(psycopg.Connection, "execute", counting)

    def _counting(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counting(connection: Any, said: Any, *rest: Any) -> Any:
            words = said if isinstance(said, bytes) else b"; ".join([name or text for name, text, _ in said])
            self.sent.append(words)
            return send(connection, said, *rest)

        return counting

    def of(self, act: Callable[[], Any]) -> int:
        before = len(self.sent)
        act()
        return len(self.sent) - before


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(monkeypatch)


def warm(backend: PostgresBackend) -> None:
    """Statements that are used often are kept by the server from now on."""
    author = Author(backend, "warm")
    author.grow(8)
    for _ in range(8):
        backend.state("warm", "main")
        backend.read(Ask("warm"))
