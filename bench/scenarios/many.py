"""Many sessions and many branches: a page of a listing by each filter, all branches, one more; one key of many."""

from __future__ import annotations

import importlib
import itertools
import statistics
from datetime import UTC, datetime, timedelta
from functools import partial
from time import process_time_ns
from typing import TYPE_CHECKING, Any

import backstay
from bench.measuring import Settings, alternate, collector_paused
from bench.report import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS, QUICK_SESSIONS = 10_000, 1500
BRANCHES, QUICK_BRANCHES = 3000, 500
KEYS, QUICK_KEYS = 100_000, 10_000
PAGE = 50
LISTINGS = 40
TRIPS = 2


def _taken_ms(act: Callable[[], object], times: int = 25) -> float:
    """By processor time, which a busy machine lengthens least."""
    act()
    taken = []
    with collector_paused():
        for _ in range(times):
            begun = process_time_ns()
            act()
            taken.append(process_time_ns() - begun)
    return statistics.median(taken) / 1e6


def _list(store: backstay.Store, by: dict[str, Any]) -> list[backstay.SessionInfo]:
    return list(store.sessions(limit=PAGE, **by))


def filters(settings: Settings) -> list[Figure]:
    """50 of 10,000 sessions: by what many have, by what few have, and by what none has."""
    count = settings.scaled(SESSIONS, QUICK_SESSIONS)
    with settings.folder() as folder:
        path = folder / "store.db"
        with backstay.open(path, durability="relaxed") as store:
            _fill(store, count)
        with backstay.open(path) as store:
            taken = {name: _taken_ms(partial(_list, store, by)) for name, by in _asked().items()}
    worst = max(taken, key=lambda name: taken[name])
    return [
        Figure("filters", f"{PAGE} of {count:,} sessions, no filter", taken["none"], unit="ms", must=1.0),
        Figure("filters", f"the slowest: {worst}", taken[worst], unit="ms", must=1.0, detail={"ms": taken}),
        *_filters_on_postgres(count),
    ]


def _filters_on_postgres(count: int) -> list[Figure]:
    """The same there, by the clock: what a listing takes beyond its two round trips, which are measured beside it."""
    postgres: Any = importlib.import_module("bench.postgres")
    with postgres.server() as url:
        if url is None:
            return []
        postgres.drop(url, "bench_filters")
        with backstay.Store(postgres.PostgresBackend(url, schema="bench_filters", durability="relaxed")) as store:
            _fill(store, count)
            bare = postgres.psycopg.connect(url, autocommit=True)
            taken = {}
            for name, by in _asked().items():
                found = alternate(
                    {
                        "listing": partial(_list, store, by),
                        "bare": lambda: [bare.execute("SELECT 1").fetchall() for _ in range(TRIPS)],
                    },
                    LISTINGS,
                )
                median = {what: statistics.median(times) / 1e6 for what, times in found.items()}
                taken[name] = median["listing"] - median["bare"]
            bare.close()
        postgres.drop(url, "bench_filters")
    worst = max(taken, key=lambda name: taken[name])
    return [
        Figure("filters", f"on PostgreSQL, no filter, beyond {TRIPS} round trips", taken["none"], unit="ms", must=1.0),
        Figure("filters", f"on PostgreSQL, the slowest: {worst}", taken[worst], "ms", must=1.0, detail={"ms": taken}),
    ]


def _asked() -> dict[str, dict[str, Any]]:
    return {
        "none": {},
        "a status of few": {"status": "failed"},
        "a status of most": {"status": "completed"},
        "agent": {"agent": "agent-1"},
        "owner": {"owner": "owner-77"},
        "an owner of none": {"owner": "nobody"},
        "start of the id": {"prefix": "5/"},
        "metadata of 1": {"metadata": {"number": 77}},
        "metadata of a fiftieth": {"metadata": {"tenant": 3}},
        "metadata of a fourteenth": {"metadata": {"group": 3}},
        "metadata of half": {"metadata": {"half": 1}},
        "since yesterday": {"since": datetime.now(UTC) - timedelta(days=1)},
        "since tomorrow": {"since": datetime.now(UTC) + timedelta(days=1)},
        "crashed": {"crashed": True},
        "waiting": {"waiting": True},
    }


def _fill(store: backstay.Store, count: int) -> None:
    for number in range(count):
        session = store.session(
            f"{number % 100}/{number}",
            agent=f"agent-{number % 4}",
            owner=f"owner-{number % (count // 10)}",
            metadata={"tenant": number % 50, "number": number, "half": number % 2, "group": number % 14},
        )
        status = backstay.Status.FAILED if number % (count // 5) == 0 else backstay.Status.COMPLETED
        session.commit({"messages": [number]}, status=status)


def branches(settings: Settings) -> list[Figure]:
    """All branches of a session with 3000, and one more; one key of 100,000 changed."""
    count, keys = settings.scaled(BRANCHES, QUICK_BRANCHES), settings.scaled(KEYS, QUICK_KEYS)
    with settings.folder() as folder, backstay.open(folder / "store.db", durability="relaxed") as store:
        session = store.session("branches")
        session.commit({"messages": [1]})
        for number in range(count):
            session.fork("main", f"branch-{number}")
        numbers = itertools.count(count)
        all_of_them = _taken_ms(session.branches)
        one_more = _taken_ms(lambda: session.fork("main", f"branch-{next(numbers)}"), 100)
        state = {f"key-{number}": number for number in range(keys)}
        many = store.session("keys")
        many.commit(state)

        def change() -> None:
            state["key-500"] = next(numbers)
            many.commit(state)

        one_key = _taken_ms(change)
    return [
        Figure("branches", f"branches() of {count:,}", all_of_them, unit="ms", must=10.0),
        Figure("branches", f"fork in {count:,}", one_more, unit="ms", must=0.5),
        Figure("branches", f"one key of {keys:,} changed", one_key, unit="ms"),
    ]
