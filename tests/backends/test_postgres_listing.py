"""Listings of a PostgreSQL store: the right sessions by either way to them, in few round trips, without a scan."""

import itertools
import random
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

import backstay
from backstay.backends.postgres import PostgresBackend, queries
from backstay.port import LaneQuery, SessionQuery
from backstay.port.facets import facet
from backstay.port.tables import is_wanted
from tests.backends.conftest import Fresh
from tests.backends.round_trips import Trips, trips

__all__ = ["trips"]

SESSIONS = 90
PAGE = 3


@pytest.fixture
def store(postgres_url: str, fresh_schema: Fresh) -> Any:
    """Sessions of many eras: few and many have the same status, agent, start of the id."""
    schema = fresh_schema()
    dice = random.Random(4)
    with (
        backstay.Store(PostgresBackend(postgres_url, schema=schema)) as store,
        psycopg.connect(postgres_url, autocommit=True) as connection,
    ):
        later = sql.SQL("SELECT setval({}, nextval({}) + %s)").format(*[sql.Literal(f'"{schema}".touches')] * 2)
        for number in range(SESSIONS):
            session = store.session(f"{'few' if number in (3, 60) else 'many'}/{number}", agent=f"agent {number % 2}")
            status = backstay.Status.FAILED if number in (5, 6, 7, 8) else backstay.Status.COMPLETED
            session.commit({"n": number}, status=status)
            connection.execute(later, (dice.randrange(200),))
        yield store


def asked() -> dict[str, dict[str, Any]]:
    one, other = facet("agent", "agent 0"), facet("agent", "agent 1")
    return {
        "everything": {},
        "a status of few": {"facets": ((facet("status", "failed"),),)},
        "a status of most": {"facets": ((facet("status", "completed"),),)},
        "either of two agents, and a status": {"facets": ((one, other), (facet("status", "failed"),))},
        "an agent": {"facets": ((one,),)},
        "both agents, which none has": {"facets": ((one,), (other,))},
        "a start that few have": {"prefix": "few/"},
        "a start that most have": {"prefix": "many/"},
        "a start and an agent": {"prefix": "few/", "facets": ((other,),)},
        "a time": {"since_us": 1},
        "a time to come": {"since_us": 2**52},
    }


def test_every_page_by_every_filter_has_the_sessions_that_match_newest_first(store: Any) -> None:
    backend: PostgresBackend = store.backend
    everyone = backend.sessions(SessionQuery(limit=SESSIONS + 1))
    assert len(everyone) == SESSIONS
    assert (everyone[0].touched >> 8) - (everyone[SESSIONS // 2].touched >> 8) > PAGE, "all within a few eras"
    for name, by in asked().items():
        matching = [row for row in everyone if is_wanted(row, SessionQuery(**by))]
        before: int | None = None
        while matching:
            page = backend.sessions(SessionQuery(before=before, limit=PAGE, **by))
            assert page == matching[:PAGE], name
            del matching[:PAGE]
            before = page[-1].touched
        assert not backend.sessions(SessionQuery(before=before, limit=PAGE, **by)), name


def test_a_page_by_any_filter_is_two_round_trips(store: Any, trips: Trips) -> None:
    filters: list[dict[str, Any]] = [{}, {"status": "failed"}, {"agent": "agent 1"}, {"prefix": "many/"}]
    for by, _ in itertools.product(filters, range(6)):  # the statements are kept from some time on
        list(store.sessions(limit=PAGE, **by))
    listings = [partial(store.sessions, limit=PAGE, **by) for by in filters]
    assert [trips.of(lambda: list(listing())) for listing in listings] == [2] * len(filters)  # noqa: B023 - called at once


def test_a_listing_never_reads_a_table_from_end_to_end(store: Any) -> None:
    counts = "SELECT sum(seq_scan)::bigint, sum(idx_scan)::bigint FROM pg_stat_xact_user_tables WHERE schemaname = %s"

    def scans(wire: Any) -> list[tuple[int, int]]:
        found = []
        with wire.connection.transaction():
            found.append(wire.connection.execute(counts, (wire.place.schema,)).fetchone())
            for by in asked().values():
                queries.sessions(wire, SessionQuery(limit=PAGE, **by))
            queries.lanes(wire, LaneQuery(7))
            found.append(wire.connection.execute(counts, (wire.place.schema,)).fetchone())
        return found

    before, after = store.backend._pool.run(scans, "listing")  # in one transaction, which counts
    assert after[1] > before[1] + len(asked())
    assert after[0] == before[0]
