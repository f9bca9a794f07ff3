"""The short way of an ordinary commit: taken when there is nothing to weigh, and undone whole when there is."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast.backends.postgres import PostgresBackend
from holdfast.errors import ConflictError, FormatError, LeaseHeldError
from holdfast.testing.author import Author, check_states
from holdfast.testing.runner import SESSION, Runner
from tests.backends.conftest import Fresh
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
