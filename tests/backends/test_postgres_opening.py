"""Opening a store in a PostgreSQL: who may, what is refused, what a name may hold, and what stays out of messages."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from backstay.backends.postgres import PostgresBackend
from backstay.backends.postgres import schema as layout
from backstay.errors import FormatError, InvalidInputError, UnavailableError, UnsupportedError
from backstay.port import Ask
from backstay.testing.author import SESSION, Author, Runner, check_states, delete, fork, tag
from tests.backends.conftest import Fresh

HOSTILE = [
    'a"b',
    "a'b",
    "a b",
    "a.b",
    "Ab",
    "select",
    '"; DROP SCHEMA public CASCADE; --',
    "%s",
    "100%",
    "{schema}",
    "{body}{channel}{schema_text}",
    "$body$",
    "$$",
    "\\",
    "é",
    "名前",
    "\U0001f980",
    "x" * 63,
]
GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};
"""


def live(backend: PostgresBackend) -> Author:
    """A little of everything."""
    author = Author(backend)
    author.grow(4)
    fork(backend, SESSION, author.rows[1], "other")
    tag(backend, SESSION, author.rows[1], "good")
    run = Runner(backend, "a run")
    run.call()
    run.boundary()
    run.leave("completed")
    return author


@contextlib.contextmanager
def dropped(url: str, schema: str) -> Iterator[None]:
    try:
        yield
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


@pytest.mark.parametrize("schema", HOSTILE)
def test_a_schema_may_have_any_name(postgres_url: str, schema: str) -> None:
    with dropped(postgres_url, schema), contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend:
        author = live(backend)
        backend.wait(0, since=backend.changes())
        check_states(backend, SESSION, author.states)
        assert not list(backend.check())
        assert not backend.tend(repair=True)
        assert backend.sizes().stored_bytes > 0


@pytest.mark.parametrize(
    "schema", ["", "x" * 64, "é" * 32, "a\0b", "\ud800", "pg_toast", "pg_mine", "information_schema"]
)
def test_a_name_that_no_schema_can_have_is_refused(postgres_url: str, schema: str) -> None:
    with pytest.raises(InvalidInputError):
        PostgresBackend(postgres_url, schema=schema)


def test_two_schemas_are_two_stores(postgres_url: str, fresh_schema: Fresh) -> None:
    with (
        contextlib.closing(PostgresBackend(postgres_url, schema=fresh_schema())) as one,
        contextlib.closing(PostgresBackend(postgres_url, schema=fresh_schema())) as other,
    ):
        ours = Author(one)
        ours.grow(5)
        assert other.read(Ask(SESSION)).session is None
        theirs = Author(other)
        theirs.grow(3)
        delete(one, SESSION, ours.rows[1].sequence)
        check_states(other, SESSION, theirs.states)


def test_of_many_that_come_first_one_makes_the_store(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    made: list[PostgresBackend] = []
    errors: list[BaseException] = []

    def open_it() -> None:
        try:
            made.append(PostgresBackend(postgres_url, schema=schema))
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for number, backend in enumerate(made):
        Author(backend, f"session {number}").grow(1)
    assert made[0].sizes().sessions == 8
    for backend in made:
        backend.close()


@pytest.fixture
def worker(postgres_url: str) -> Iterator[tuple[str, str]]:
    """A role that may log in and nothing else: its name, and the URL with which it comes."""
    name = f"worker2_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name, psycopg.conninfo.make_conninfo(postgres_url, user=name)
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_a_role_that_may_not_create_uses_what_its_owner_made(
    postgres_url: str, fresh_schema: Fresh, worker: tuple[str, str]
) -> None:
    name, url = worker
    schema = fresh_schema()
    with pytest.raises(UnsupportedError, match="may not make one"):
        PostgresBackend(url, schema=schema)
    PostgresBackend(postgres_url, schema=schema).close()
    with pytest.raises(UnsupportedError) as refused:
        PostgresBackend(url, schema=schema)
    assert isinstance(refused.value.__cause__, psycopg.Error)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        words = {"schema": sql.Identifier(schema), "role": sql.Identifier(name)}
        connection.execute(sql.SQL(GRANTS).format(**words))
    with contextlib.closing(PostgresBackend(url, schema=schema)) as backend:
        author = live(backend)
        backend.tend()
        assert not list(backend.check())
        check_states(backend, SESSION, author.states)


def change(url: str, schema: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.replace("{schema}", f'"{schema}"'))


def test_a_store_of_another_format_is_refused_untouched(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    with contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend:
        Author(backend).grow(2)
    change(postgres_url, schema, "UPDATE {schema}.meta SET format = 9")
    before = contents(postgres_url, schema)
    with pytest.raises(FormatError, match="format 9"):
        PostgresBackend(postgres_url, schema=schema)
    assert contents(postgres_url, schema) == before
    assert len(before["checkpoints"]) == 2


def contents(url: str, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of a schema."""
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        return {
            name: connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, name))).fetchall()
            for (name,) in tables
        }


def test_tables_of_others_are_left_alone(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    change(postgres_url, schema, "CREATE SCHEMA {schema}")
    change(postgres_url, schema, "CREATE TABLE {schema}.sessions(id int)")
    with pytest.raises(FormatError, match="sessions"):
        PostgresBackend(postgres_url, schema=schema)
    assert list(contents(postgres_url, schema)) == ["sessions"]


@pytest.mark.parametrize(
    "greeting", ["CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)", "PostgreSQL 16 on dsql, no language", "EnterpriseX 9"]
)
def test_a_server_that_only_speaks_like_postgresql_is_refused(
    postgres_url: str, fresh_schema: Fresh, monkeypatch: pytest.MonkeyPatch, greeting: str
) -> None:
    speaks = "false" if "dsql" in greeting else "true"
    monkeypatch.setattr(layout, "_SERVER", f"SELECT '{greeting}', 160000, {speaks}")
    schema = fresh_schema()
    with pytest.raises(UnsupportedError, match="cannot keep a store"):
        PostgresBackend(postgres_url, schema=schema)
    monkeypatch.setattr(layout, "_SERVER", "SELECT 'PostgreSQL 12.1', 120001, true")
    with pytest.raises(UnsupportedError, match="13 or newer"):
        PostgresBackend(postgres_url, schema=schema)
    assert not contents(postgres_url, schema)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db",
        "postgresql://me:s3cret@127.0.0.1:1/db?sslmode=never",
        "postgresql://me:s3cret@127.0.0.1:1/db?bogus=1",
        "postgresql://me:s3cret@[bad/db",
        "postgresql://me:s3%zzcret@127.0.0.1/db",
        "postgres://me@127.0.0.1:1/db?password=s3cret",
    ],
)
def test_a_password_is_in_no_message(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.backends.postgres.pool.PATIENCE_S", 0.0)
    with pytest.raises((InvalidInputError, UnavailableError)) as refused:
        PostgresBackend(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "cret" not in f"{error} {error!r} {getattr(error, 'hint', '')}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_wrong_password_or_database_is_told_at_once(postgres_url: str) -> None:
    with pytest.raises(UnavailableError) as refused:
        PostgresBackend(psycopg.conninfo.make_conninfo(postgres_url, dbname="no such database"))
    assert not refused.value.retryable


SPY = """
CREATE TABLE IF NOT EXISTS {schema}.seen(value text);
CREATE OR REPLACE FUNCTION {schema}.spy() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO {schema}.seen VALUES (current_setting(''synchronous_commit'')); RETURN NEW; END';
CREATE TRIGGER spy AFTER INSERT ON {schema}.{table} FOR EACH ROW EXECUTE FUNCTION {schema}.spy();
"""


@pytest.mark.parametrize(("durability", "wanted"), [("full", "on"), ("relaxed", "off")])
@pytest.mark.parametrize("default", ["on", "off"])
def test_durability_holds_whatever_the_server_is_set_to(
    postgres_url: str, fresh_schema: Fresh, durability: str, wanted: str, default: str
) -> None:
    schema = fresh_schema()
    url = psycopg.conninfo.make_conninfo(postgres_url, options=f"-c synchronous_commit={default}")
    with contextlib.closing(PostgresBackend(url, schema=schema, durability=durability)) as backend:
        for table in ("checkpoints", "calls", "names"):
            change(postgres_url, schema, SPY.replace("{table}", table))
        live(backend)
    with psycopg.connect(postgres_url) as connection:
        seen = connection.execute(f'SELECT DISTINCT value FROM "{schema}".seen').fetchall()
    assert seen == [(wanted,)]


def test_a_renewal_is_not_waited_for(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    with contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend:
        run = Runner(backend)
        change(postgres_url, schema, SPY.replace("{table}", "names").replace("AFTER INSERT", "AFTER UPDATE"))
        run.renew()
        run.leave()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(f'SELECT value FROM "{schema}".seen').fetchall() == [("off",), ("on",)]


def test_nothing_is_kept_in_a_session_of_the_server(postgres_url: str, fresh_schema: Fresh) -> None:
    with contextlib.closing(PostgresBackend(postgres_url, schema=fresh_schema(), durability="relaxed")) as backend:
        live(backend)
        Author(backend, "long").grow(20)
        list(backend.check())
        for question in (
            "SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'backstay.%%'",
            "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name <> 'application_name'",
            "SELECT count(*) FROM pg_cursors WHERE name <> ''",
            "SELECT count(*) FROM pg_listening_channels()",
            "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'",
        ):
            for wire in backend._pool._idle:
                assert wire.connection.execute(question, []).fetchone() == (0,), question
