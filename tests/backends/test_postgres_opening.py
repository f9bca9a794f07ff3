"""Opening a store in a PostgreSQL: who may, what is refused, what a name may hold, and what stays out of messages."""

import builtins
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql

import backstay
from backstay.backend import Backend
from backstay.backends.postgres import PostgresBackend
from backstay.errors import ClosedError, FormatError, InvalidInputError, UnavailableError, UnsupportedError
from backstay.face import Store
from backstay.testing import machine_for
from backstay.testing.author import Author, check_states
from backstay.testing.runner import SESSION, Runner, new_call
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


@contextlib.contextmanager
def dropped(url: str, schema: str) -> Iterator[None]:
    try:
        yield
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def test_a_store_opens_by_its_url_and_everything_works_there(postgres_url: str, fresh_schema: Fresh) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema={fresh_schema()}"
    with backstay.open(url) as store:
        session = store.session("ticket-42", agent="support")
        session.commit({"messages": [{"role": "user", "content": "NUL \0, half \ud800"}]}, label="asked")
        session.fork("main", "what-if")
        session.commit({"n": 1})
        assert session.restore("main~1").restored_from
        assert store.verify().ok
        assert repr(store) == "<Store postgres>"
    with backstay.open(url, durability="relaxed") as store:
        assert store.session("ticket-42").load()["messages"][0]["content"] == "NUL \0, half \ud800"
        with store.run("a run", input="go") as run:
            run.state["out"] = run.call("tool", lambda: "done")
        assert store.session("a run").load() == {"out": "done"}


@pytest.mark.parametrize("schema", HOSTILE)
def test_a_schema_may_have_any_name(postgres_url: str, schema: str) -> None:
    with dropped(postgres_url, schema), contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend:
        author = Author(backend)
        author.grow(4)
        run = Runner(backend, "a run")
        run.call()
        run.boundary()
        run.leave("completed")
        backend.wait(0)
        check_states(backend, SESSION, author.states)
        assert not list(backend.check())
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
        assert other.find_session(SESSION) is None
        theirs = Author(other)
        theirs.grow(3)
        one.delete_session(SESSION)
        check_states(other, SESSION, theirs.states)
        assert one.sizes().sessions == 0


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
    name = f"worker_{os.getpid()}"
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
        for grant in grants_in_the_docs():
            connection.execute(grant.replace("backstay", f'"{schema}"', 1).replace("worker", name))
    with contextlib.closing(PostgresBackend(url, schema=schema)) as backend:
        author = Author(backend)
        author.grow(5)
        run = Runner(backend, "a run")
        run.call()
        run.boundary()
        run.leave("completed")
        backend.compact()
        backend.delete_session("a run")
        assert not list(backend.check())
        assert not backend.repair()
        check_states(backend, SESSION, author.states)


def grants_in_the_docs() -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
    return [line.rstrip(";") for line in text.splitlines() if line.startswith("GRANT ")]


def change(url: str, schema: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.replace("{schema}", f'"{schema}"'))


def test_a_store_that_has_become_too_new_is_not_written_to(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    with contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend:
        author = Author(backend)
        author.grow(2)
        run = Runner(backend, "a run")
        change(postgres_url, schema, "UPDATE {schema}.backstay SET value = 99 WHERE key = 'min_writer'")
        for act in (
            lambda: author.grow(1),
            lambda: Author(backend, "new").grow(1),
            lambda: backend.journal(run.lease, new_call("x", token=run.lease.token), after=0),
            lambda: backend.tag(SESSION, id_=author.rows[0].id, name="good"),
            lambda: backend.delete_session(SESSION),
        ):
            with pytest.raises(FormatError, match="newer Backstay to write"):
                act()
        assert backend.find_session("new") is None
        check_states(backend, SESSION, author.states)
        PostgresBackend(postgres_url, schema=schema).close()
        change(postgres_url, schema, "UPDATE {schema}.backstay SET value = 99 WHERE key = 'min_reader'")
        with pytest.raises(FormatError, match="newer Backstay to read"):
            PostgresBackend(postgres_url, schema=schema)


def test_a_store_of_a_newer_format_is_refused_untouched(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    with contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend:
        Author(backend).grow(2)
    change(postgres_url, schema, "UPDATE {schema}.backstay SET value = 9")
    before = contents(postgres_url, schema)
    with pytest.raises(FormatError, match="newer Backstay to read"):
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
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = %s", (schema,)).fetchone()
        assert found == (1,)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db",
        "postgresql://me:s3cret@127.0.0.1:1/db?schema=a&schema=b",
        "postgresql://me:s3cret@127.0.0.1:1/db?sslmode=never",
        "postgresql://me:s3cret@127.0.0.1:1/db?bogus=1",
        "postgresql://me:s3cret@[bad/db",
        "postgresql://me:s3%zzcret@127.0.0.1/db",
        "postgresql:me:s3cret@127.0.0.1/db",
        "postgresql://me:s3cret@127.0.0.1:1/db?schema=pg_x",
        "postgres://me@127.0.0.1:1/db?password=s3cret",
    ],
)
def test_a_password_is_in_no_message(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstay.backends.postgres.wire.PATIENCE_S", 0.0)
    with pytest.raises((InvalidInputError, UnavailableError)) as refused:
        backstay.open(url)
    error: BaseException | None = refused.value
    while error is not None:
        assert "cret" not in f"{error} {error!r} {getattr(error, 'hint', '')}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_wrong_password_or_database_is_told_at_once(postgres_url: str) -> None:
    with pytest.raises(UnavailableError) as refused:
        PostgresBackend(psycopg.conninfo.make_conninfo(postgres_url, dbname="no such database"))
    assert not refused.value.retryable


def test_a_missing_driver_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "psycopg" or "backends.postgres" in name]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnsupportedError, match=r"pip install 'backstay\[postgres\]'"):
        backstay.open("postgresql://localhost/db")


def test_a_forked_child_may_not_use_it_and_the_parent_goes_on(postgres_url: str, fresh_schema: Fresh) -> None:
    schema = fresh_schema()
    with contextlib.closing(PostgresBackend(postgres_url, schema=schema)) as backend:
        author = Author(backend)
        author.grow(3)
        backend.wait(0)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                code = in_child(backend, postgres_url, schema)
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        author.grow(3)
        check_states(backend, SESSION, author.states)
        assert backend.ids("of the child")


def in_child(backend: Backend, url: str, schema: str) -> int:
    for act in (lambda: backend.ids(SESSION), lambda: Author(backend).grow(1), lambda: backend.wait(1)):
        try:
            act()
        except ClosedError:
            continue
        return 2
    backend.close()
    with contextlib.closing(PostgresBackend(url, schema=schema)) as own:
        Author(own, "of the child").grow(1)
    return 0


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
        author = Author(backend)
        for number in range(3):
            author.commit({"n": number})
        Runner(backend, "a run").call()
        backend.tag(SESSION, id_=author.rows[0].id, name="good")
    with psycopg.connect(postgres_url) as connection:
        seen = connection.execute(f'SELECT DISTINCT value FROM "{schema}".seen').fetchall()
    assert seen == [(wanted,)]


SPY = """
CREATE TABLE IF NOT EXISTS {schema}.seen(value text);
CREATE OR REPLACE FUNCTION {schema}.spy() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN INSERT INTO {schema}.seen VALUES (current_setting(''synchronous_commit'')); RETURN NEW; END';
CREATE TRIGGER spy AFTER INSERT ON {schema}.{table} FOR EACH ROW EXECUTE FUNCTION {schema}.spy();
"""


def test_nothing_is_kept_in_a_session_of_the_server(postgres_url: str, fresh_schema: Fresh) -> None:
    with contextlib.closing(PostgresBackend(postgres_url, schema=fresh_schema(), durability="relaxed")) as backend:
        author = Author(backend)
        author.grow(20)
        run = Runner(backend, "a run")
        run.call()
        run.leave()
        list(backend.check())
        for question in (
            "SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'backstay.%'",
            "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name <> 'application_name'",
            "SELECT count(*) FROM pg_cursors WHERE name <> ''",
            "SELECT count(*) FROM pg_listening_channels()",
            "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'",
        ):
            for wire in backend._pool._idle:
                assert wire.one(question) == (0,), question


def test_a_store_moves_between_sqlite_and_postgresql_with_the_same_digests(
    postgres_url: str, fresh_schema: Fresh, tmp_path: Path
) -> None:
    opened = [
        backstay.open(tmp_path / "one.db"),
        Store(PostgresBackend(postgres_url, schema=fresh_schema())),
        backstay.open(tmp_path / "two.db"),
    ]
    with contextlib.ExitStack() as stack:
        first, second, third = [stack.enter_context(store) for store in opened]
        live(first)
        for number, (here, there) in enumerate([(first, second), (second, third)]):
            here.export(tmp_path / f"{number}.backstay")
            there.import_(tmp_path / f"{number}.backstay")
            assert there.verify().ok
        for session in ("talk", "a run"):
            histories = [list(store.session(session).log()) for store in (first, second, third)]
            assert [[each.digest for each in log] for log in histories[1:]] == [
                [each.digest for each in histories[0]]
            ] * 2
            assert [store.session(session).load() for store in (second, third)] == [first.session(session).load()] * 2
            assert second.session(session).calls() == first.session(session).calls()


def live(store: Store) -> None:
    session = store.session("talk", agent="support")
    messages: list[dict[str, Any]] = []
    for number in range(40):
        messages.append({"role": "user", "content": f"question {number} \0 \ud800"})
        session.commit({"messages": messages, "image": bytes([number % 3]) * 6_000})
    session.fork("main~7", "what-if")
    session.commit({"other": True}, branch="what-if")
    session.tag("main~3", "good")
    with store.run("a run", input="go") as run:
        for number in range(3):
            run.append({"role": "tool", "content": run.call("tool", lambda: number, key=str(number))})  # noqa: B023
            run.step()


WHERE: dict[str, str] = {}  # the server of this run, and then the schemas that were made in it


def open_postgres(folder: Path) -> Store:
    """The machine names a folder; its name is that of the schema."""
    schema = WHERE.setdefault(folder.name, folder.name[-40:])
    return Store(PostgresBackend(WHERE["url"], schema=schema, durability="relaxed"))


Machine: Any = machine_for(open_postgres)


class TestPostgresMachine(Machine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=20, max_examples=6)

    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str) -> Iterator[None]:
        WHERE["url"] = postgres_url
        yield
        del WHERE["url"]
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            for schema in WHERE.values():
                connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))
        WHERE.clear()
