"""What keeps a store in PostgreSQL in shape: what belongs to nothing goes, what an index says wrong is mended."""

import contextlib
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from backstay.backends.postgres import PostgresBackend
from backstay.errors import CorruptionError
from backstay.port import Ask, Backend, SessionQuery
from backstay.port.lease import here
from backstay.testing.author import SESSION, Author, Runner, check_states, tag
from backstay.testing.contract.packing import pack
from backstay.upkeep.verifying import verify
from tests.backends.conftest import Fresh

HARM = {
    "rows of no session": "INSERT INTO names VALUES (999, 1, 0, NULL, NULL, 1, 'x', 'x')",
    "keyframes of no checkpoint": "INSERT INTO keyframes SELECT sid, 999, body FROM keyframes LIMIT 1",
    "foreign ids of no checkpoint": "INSERT INTO foreign_ids SELECT sid, 999, 'x' FROM sessions LIMIT 1",
    "references of no row": "INSERT INTO refs SELECT sid, 2, 999, 'x' FROM sessions LIMIT 1",
    "blobs that no row needs": "INSERT INTO blobs VALUES ('x', 'y')",
    "the line of session 'a session' does not agree": "UPDATE sessions SET facets = '{7}', checkpoints = 7",
    "session 'a session' does not agree with its index": "UPDATE sessions SET era = 99",
    "the row of 'main' does not agree": "UPDATE names SET sequence = 1, marks = 1 WHERE name = 'main'",
    "checkpoint #4 is not found by its id": "DELETE FROM foreign_ids",
    "an id leads to checkpoint #2, which has another": "UPDATE foreign_ids SET sequence = 2",
    "checkpoint #3 lies where it is not found": "UPDATE checkpoints SET slot = 31 WHERE sequence = 3",
    "checkpoint #3 has two rows": "INSERT INTO checkpoints SELECT sid, 31, sequence, parent, body FROM checkpoints "
    "WHERE sequence = 3",
    "rows of no checkpoint": "INSERT INTO checkpoints SELECT sid, 31, 0, NULL, body FROM checkpoints "
    "WHERE sequence = 3",
    "checkpoint #3 has a keyframe and does not know of it": "INSERT INTO keyframes SELECT sid, 3, body FROM keyframes",
}
HARM_PACKED = {
    "rows of no session (segments)": "INSERT INTO segments SELECT 999, first, last, needs, entries, starts, parents, "
    "links, body FROM segments LIMIT 1",
    "the segment of checkpoint #1 does not agree with its index": "UPDATE segments SET entries = 7, starts = '{2}'",
    "checkpoint #4 is not found by its id": "DELETE FROM foreign_ids",
    "foreign ids of no checkpoint": "INSERT INTO foreign_ids SELECT sid, 999, 'x' FROM sessions LIMIT 1",
    "references of no row": "INSERT INTO refs SELECT sid, 2, 999, 'x' FROM sessions LIMIT 1",
    "an id leads to checkpoint #2, which has another": "UPDATE foreign_ids SET sequence = 2",
    "a checkpoint of the segment of #1 has a row as well": "UPDATE checkpoints SET sequence = 3 WHERE slot = 3",
    "checkpoint #3 has a keyframe and does not know of it": "INSERT INTO keyframes SELECT sid, 3, body FROM keyframes",
}


@pytest.fixture
def author(postgres_url: str, fresh_schema: Fresh) -> Iterator[Author]:
    with contextlib.closing(PostgresBackend(postgres_url, schema=fresh_schema())) as backend:
        author = Author(backend)
        author.commit({"picture": b"p" * 6_000})
        author.grow(2)
        author.commit({"named": True}, id_="a foreign id")
        author.grow(1)
        tag(backend, SESSION, author.rows[0], "good")
        yield author


def change(author: Author, statement: str, url: str) -> None:
    assert isinstance(author.backend, PostgresBackend)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(author.backend.schema)))
        connection.execute(statement.encode())


def newcomer(backend: Backend, url: str) -> None:
    """A process that knows nothing yet begins a run."""
    assert isinstance(backend, PostgresBackend)
    with contextlib.closing(PostgresBackend(url, schema=backend.schema)) as fresh:
        Runner(fresh, holder=here())


@pytest.mark.parametrize("what", HARM)
def test_what_is_out_of_order_is_found_and_mended(author: Author, postgres_url: str, what: str) -> None:
    backend = author.backend
    assert not list(backend.check())
    change(author, (HARM | HARM_PACKED)[what], postgres_url)
    problems = [problem.what for problem in backend.check()]
    assert any([what in problem for problem in problems]), problems
    assert any([what in done for done in backend.tend(repair=True)])
    assert not list(backend.check())
    check_states(backend, SESSION, author.states)
    assert len(backend.sessions(SessionQuery(foreign="a foreign id"))) == 1


@pytest.mark.parametrize("what", HARM_PACKED)
def test_the_same_of_packed_checkpoints(author: Author, postgres_url: str, what: str) -> None:
    pack(author.backend, rows=4)
    check_states(author.backend, SESSION, author.states)
    test_what_is_out_of_order_is_found_and_mended(author, postgres_url, what)


def test_an_index_that_says_otherwise_than_its_row_is_damage_until_it_is_mended(
    author: Author, postgres_url: str
) -> None:
    backend = author.backend
    change(author, "UPDATE sessions SET facets = '{7}'", postgres_url)
    with pytest.raises(CorruptionError):
        backend.sessions(SessionQuery())
    change(author, "UPDATE names SET journal = 99 WHERE name = 'main'", postgres_url)
    for act in (
        lambda: backend.read(Ask(SESSION, names=("main",))),
        lambda: backend.read(Ask(SESSION, names=None)),
        lambda: newcomer(backend, postgres_url),
    ):
        with pytest.raises(CorruptionError):
            act()
    change(author, "UPDATE names SET sequence = 1 WHERE name = 'main'", postgres_url)
    with pytest.raises(CorruptionError):
        backend.state(SESSION, "main")
    backend.tend(repair=True)
    check_states(backend, SESSION, author.states)
    author.grow(1)


def test_what_is_missing_and_cannot_be_mended_is_said(author: Author, postgres_url: str) -> None:
    change(author, "DELETE FROM blobs", postgres_url)
    change(author, "DELETE FROM checkpoints WHERE sequence = 2", postgres_url)
    author.backend.tend(repair=True)
    said = str(verify(author.backend))
    assert "is missing" in said
    assert f"has {len(author.rows) - 1} checkpoints and counts {len(author.rows)}" in said


def test_tending_sweeps_what_nobody_refers_to_and_nothing_else(author: Author) -> None:
    backend = author.backend
    backend.put_blobs({bytes([number]) * 32: b"x" for number in range(200)})
    done = backend.tend()
    assert done == ["removed blobs that no row needs: 200"]
    assert backend.tend() == []
    check_states(backend, SESSION, author.states)
