"""What a store in PostgreSQL leaves on the disk: what every commit changes is changed in place."""

from contextlib import closing

import pytest
from psycopg import sql

from backstay.backends.postgres import PostgresBackend
from backstay.testing.author import Author
from tests.backends.conftest import Fresh
from tests.backends.proxy import eventually
from tests.backends.test_postgres import connect, schema_of

COMMITS = 400
_UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = %s"


def test_what_every_commit_changes_is_changed_in_place(postgres_url: str, fresh_schema: Fresh) -> None:
    with closing(PostgresBackend(postgres_url, schema=fresh_schema())) as backend:
        Author(backend).grow(COMMITS)
    with closing(connect(postgres_url, backend)) as connection:
        for table in ("sessions", "names"):

            def updates(table: str = table) -> tuple[int, int]:
                found = connection.execute(_UPDATES, (schema_of(backend), table)).fetchone()
                return (0, 0) if found is None else (found[0], found[1])

            # The server counts when a session of it ends, in its own time.
            assert eventually(lambda: updates()[0] >= COMMITS - 1), table
            changed, in_place = updates()
            assert in_place > 0.95 * changed, table


def test_an_id_that_begins_with_a_uuid_takes_few_bytes(postgres_url: str, fresh_schema: Fresh) -> None:
    with closing(PostgresBackend(postgres_url, schema=fresh_schema())) as backend:
        author = Author(backend)
        for number in range(10):
            author.commit({"n": number}, id_=f"1ef4f797-8335-6428-8001-8a1503f9b87{number}+1")
        with closing(connect(postgres_url, backend)) as connection:
            assert connection.execute("SELECT max(octet_length(id)) FROM checkpoints").fetchone() == (18,)


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_sessions_are_listed_newest_first_however_many_writes_lie_between(
    postgres_url: str, fresh_schema: Fresh, limit: int
) -> None:
    jumps = [1, 1, 254, 1, 1, 255, 256, 257, 511, 512, 1, 100_000, 1, 1, 2**40, 3]
    with closing(PostgresBackend(postgres_url, schema=fresh_schema())) as backend:
        with closing(connect(postgres_url, backend)) as connection:
            for number, jump in enumerate(jumps):
                connection.execute(
                    sql.SQL("SELECT setval('touches', nextval('touches') + {})").format(sql.Literal(jump))
                )
                Author(backend, f"session {number}").grow(1)
        seen: list[str] = []
        before = None
        while page := backend.sessions(before=before, limit=limit, status=None, agent=None):
            seen += [line.id for line in page]
            before = page[-1].touched
        assert seen == [f"session {number}" for number in reversed(range(len(jumps)))]
