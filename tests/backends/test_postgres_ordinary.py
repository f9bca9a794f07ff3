"""The short way of an ordinary commit: taken when there is nothing to weigh, and undone whole when there is."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from backstay.backends.postgres import PostgresBackend
from backstay.errors import ConflictError, FormatError, LeaseHeldError
from backstay.testing.author import Author, check_states
from backstay.testing.runner import SESSION, Runner
from tests.backends.conftest import Fresh
from tests.backends.proxy import Proxy
from tests.backends.test_postgres import connect

Setting = tuple[PostgresBackend, psycopg.Connection[Any]]


@pytest.fixture
def setting(postgres_url: str, fresh_schema: Fresh) -> Iterator[Setting]:
    with (
        closing(PostgresBackend(postgres_url, schema=fresh_schema())) as backend,
        closing(connect(postgres_url, backend)) as connection,
    ):
        yield backend, connection


def totals(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT sequence, checkpoints, logical, touched, usage FROM sessions").fetchall()


def test_an_ordinary_commit_takes_the_short_way_alone(setting: Setting) -> None:
    backend, connection = setting
    author = Author(backend)
    author.commit({"n": 0})
    connection.execute("ALTER FUNCTION commit_1 RENAME TO commit_away")
    for number in range(3):
        author.commit({"n": number})
    check_states(backend, SESSION, author.states)
    with pytest.raises(FormatError):
        Author(backend, "new").commit({"n": 0})
    assert not list(backend.check())


def test_what_is_refused_on_the_short_way_leaves_nothing_behind(setting: Setting) -> None:
    backend, connection = setting
    author = Author(backend)
    author.commit({"n": 2})
    stale = Author(backend).stand_on_head()
    author.commit({"n": 1})
    before = totals(connection)
    with pytest.raises(ConflictError, match="stands at"):
        stale.commit({"n": 1})
    draft = author.draft({"on": "a branch that is not there"})
    with pytest.raises(ConflictError, match="does not exist"):
        backend.commit(replace(draft, branch="other"))
    assert totals(connection) == before
    assert backend._pool._idle[0].usable
    check_states(backend, SESSION, author.states)
    assert not list(backend.check())


def test_a_commit_that_comes_again_is_recognised(setting: Setting) -> None:
    backend, connection = setting
    author = Author(backend)
    author.commit({"n": 2})
    draft = author.draft({"twice": True})
    first = backend.commit(draft)
    before = totals(connection)
    assert backend.commit(draft) == first
    assert totals(connection) == before


def test_a_branch_on_which_somebody_runs_takes_no_commit_by_the_short_way(setting: Setting) -> None:
    backend, connection = setting
    run = Runner(backend)
    run.call()
    run.boundary()
    before = totals(connection)
    outsider = Author(backend).stand_on_head()
    with pytest.raises(LeaseHeldError):
        outsider.commit({"n": 1})
    assert totals(connection) == before
    run.leave("completed")
    outsider = Author(backend).stand_on_head()
    outsider.commit({"n": 2})
    assert not list(backend.check())


def kept(backend: PostgresBackend) -> list[str]:
    """What the server's sessions of a backend have prepared."""
    found = [row for wire in backend._pool._idle for row in wire.rows("SELECT name FROM pg_prepared_statements")]
    return sorted(name.split(".")[1] for (name,) in found)


def work(backend: PostgresBackend, session: str) -> None:
    author, run = Author(backend, session), Runner(backend, f"run of {session}")
    for number in range(9):
        author.commit({"n": number})
        run.call()
    check_states(backend, session, author.states)


def test_what_is_asked_all_the_time_is_parsed_once(setting: Setting) -> None:
    backend, _ = setting
    work(backend, "one")
    assert kept(backend) == ["commit_short_1", "journal_1"]


def test_what_the_server_has_thrown_away_is_asked_in_full(setting: Setting) -> None:
    backend, _ = setting
    work(backend, "one")
    (wire,) = backend._pool._idle
    wire.connection.execute("DEALLOCATE ALL")
    work(backend, "two")
    assert kept(backend) == []
    assert not list(backend.check())


def test_behind_a_pooler_nothing_is_kept_in_a_session_of_the_server(postgres_url: str, fresh_schema: Fresh) -> None:
    with Proxy(postgres_url) as proxy:
        proxy.greets = True
        with closing(PostgresBackend(proxy.url, schema=fresh_schema())) as backend:
            work(backend, "one")
            assert kept(backend) == []
