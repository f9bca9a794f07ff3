"""Schemas written by layouts of the past: opening brings them up to date, and nothing that was in them changes."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import backstay
from backstay.backends.postgres import PostgresBackend
from backstay.backends.postgres.schema import LAYOUT
from tests.backends.conftest import Fresh
from tests.compat.make_journal import work
from tests.compat.make_postgres import SCHEMA, told

HERE = Path(__file__).parent
GOLDEN = sorted(HERE.glob("postgres-*.sql.gz"))
UUID = "1ef4f797-8335-6428-8001-8a1503f9b87"


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name.partition(".")[0])
def golden(request: pytest.FixtureRequest) -> Path:
    """Each store that was kept."""
    path: Path = request.param
    return path


@pytest.fixture
def schema(golden: Path, postgres_url: str, fresh_schema: Fresh) -> str:
    """The store, put back into a schema of its own."""
    name = fresh_schema()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(gzip.decompress(golden.read_bytes()).replace(SCHEMA.encode(), name.encode()))
    return name


@contextlib.contextmanager
def opened(url: str, schema: str) -> Iterator[backstay.Store]:
    with backstay.Store(PostgresBackend(url, schema=schema)) as store:
        yield store


def test_the_tables_of_today_have_a_store_that_tomorrow_will_be_held_to() -> None:
    assert HERE / f"postgres-{LAYOUT}.sql.gz" in GOLDEN
    assert all(path.stat().st_size < 100_000 for path in GOLDEN)


def test_an_old_schema_gives_back_every_state_digest_and_call(golden: Path, postgres_url: str, schema: str) -> None:
    expected = json.loads((HERE / f"{golden.name.partition('.')[0]}.json").read_text("ascii"))
    for _ in range(2):  # the first one brings it up to date
        with opened(postgres_url, schema) as store:
            found = told(store)
        assert list(found["sessions"]) == list(expected["sessions"])
        for name, session in expected["sessions"].items():
            assert found["sessions"][name] == session
        assert found["calls"] == expected["calls"]


def test_an_old_schema_is_whole_and_can_be_written_on(postgres_url: str, schema: str) -> None:
    with opened(postgres_url, schema) as store:
        before = store.stats().checkpoints
        report = store.verify()
        assert report.ok, str(report)
        assert report.checked == before
        for info in [info for info in store.sessions() if info.id != "crashed"]:
            session = store.session(info.id)
            for branch in session.branches():
                point = session.commit({**session.load(branch), "written on": True}, branch=branch)
                assert "written on" in store.session(info.id).load(point.id)
            assert next(iter(store.sessions())).id == info.id
        report = store.verify()
        assert report.ok, str(report)
        assert report.checked > before


def test_a_run_that_crashed_in_an_old_schema_goes_on_and_repeats_nothing(postgres_url: str, schema: str) -> None:
    with opened(postgres_url, schema) as store:
        session = store.session("crashed")
        (pay,) = [call for call in session.calls(pending=True) if call.status == "in_doubt"]
        session.resolve(pay.id, result="paid")
        made: list[str] = []
        with store.run("crashed") as run:
            work(run, made)
        assert made == ["model", "look up", "fail", "inside"]
        assert store.verify().ok


def test_ids_in_an_old_schema_are_found_by_how_they_begin(postgres_url: str, schema: str) -> None:
    with opened(postgres_url, schema) as store:
        ids = list(store.backend.ids("uuids"))
        assert ids[:3] == [f"{UUID}5", f"{UUID}5!\1ä", f"{UUID}6"]
        for prefix in {id_[:length] for id_ in ids for length in range(1, 39)}:
            expected = sorted(id_ for id_ in ids if id_.startswith(prefix))
            assert sorted(store.backend.find_ids("uuids", prefix, limit=99)) == expected, prefix
        lost = [row.parent_id for id_ in ids if (row := store.backend.find_row("uuids", id_)) is not None]
        assert f"{UUID}5+1" in lost
        assert "ffffffff-ffff-ffff-ffff-ffffffffffff" in lost


def test_who_still_knows_only_the_old_tables_is_told_so(postgres_url: str, schema: str) -> None:
    with opened(postgres_url, schema), psycopg.connect(postgres_url, autocommit=True) as connection:
        rows = connection.execute(f'SELECT key, value FROM "{schema}".backstay').fetchall()
        assert dict(rows) == {"format_version": 2, "min_reader": 2, "min_writer": 2, "layout": LAYOUT}
        for function in ("chain_1", "line_1"):
            found = connection.execute(
                "SELECT 1 FROM pg_proc WHERE proname = %s AND pronamespace = %s::regnamespace", (function, schema)
            ).fetchone()
            assert found is None
