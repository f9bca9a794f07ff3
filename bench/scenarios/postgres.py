"""PostgreSQL: a growing conversation against a bare insert and the peer, many threads far away, and a large store."""

from __future__ import annotations

import gc
import random
import statistics
import sys
import threading
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

import psycopg

from bench.measuring import Settings, alternate, collector_paused, stored_bytes
from bench.postgres import (
    Far,
    PostgresAppending,
    PostgresFloor,
    PostgresPeer,
    PostgresSubject,
    drop,
    peer_installed,
    relations_bytes,
    server,
)
from bench.report import Figure
from bench.scenarios import append
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 16
ROUND_TRIP_S = 0.02
FAR_COMMITS = 25
NEAR = 10
MORE = 3  # conversations by which sizes are taken: a table grows by whole pages
SCALE_SESSIONS, SCALE_PER_SESSION = 100_000, 10
SCALE_ROUNDS = 100


def postgres(settings: Settings) -> list[Figure]:
    with server() as url:
        if url is None:
            sys.stderr.write("postgres: left out (neither a server is named nor the wheel installed)\n")
            return []
        figures = _append(settings, url) + _threads(settings, url)
        drop(url, "bench")
        return figures


def _append(settings: Settings, url: str) -> list[Figure]:
    rounds = [_round(settings, url, seed) for seed in range(settings.rounds)]
    cost = statistics.median(_median(one["backstay"]) / _median(one["floor"]) for one, _ in rounds)
    appended = statistics.median(_median(one["append"]) / _median(one["floor"]) for one, _ in rounds)
    sizes = rounds[0][1]
    small = _stored_by_sqlite(settings)
    figures = [
        Figure(
            "postgres",
            "median commit / floor",
            cost,
            must=1.8,
            detail={"median_us": {name: [_median(one[name]) for one, _ in rounds] for name in rounds[0][0]}},
        ),
        Figure("postgres", "median append / floor", appended, must=1.4),
        Figure("postgres", "stored / what SQLite stores", sizes["backstay"] / small, must=1.2, detail={"bytes": sizes}),
        Figure(
            "postgres", "median commit", statistics.median(_median(one["backstay"]) for one, _ in rounds), unit="us"
        ),
        Figure("postgres", "median floor", statistics.median(_median(one["floor"]) for one, _ in rounds), unit="us"),
    ]
    if "peer" in sizes:
        slower = statistics.median(_median(one["peer"][-NEAR:]) / _median(one["backstay"][-NEAR:]) for one, _ in rounds)
        most = statistics.median(_median(one["peer"][-NEAR:]) / _median(one["floor"][-NEAR:]) for one, _ in rounds)
        larger = sizes["peer"] / sizes["backstay"]
        last = append.step_count(settings)
        figures += [
            Figure("postgres", f"PostgresSaver's time, step {last}", slower, must=20.0, sense="at least"),
            Figure("postgres", f"PostgresSaver's time / the floor's, step {last}", most),
            Figure("postgres", "PostgresSaver's bytes", larger, must=50.0, sense="at least"),
        ]
    return figures


def _stored_by_sqlite(settings: Settings) -> int:
    """By how much a file with one such conversation grows by another: what an empty one takes is not counted."""
    sizes = []
    for conversations in (1, 1 + MORE):
        with settings.folder() as folder:
            subject = Subject(folder)
            subject.open(durable=False)
            for number in range(conversations):
                for _, state, new in append.steps(settings):
                    subject.save(f"conversation {number}", state, new)
            subject.close()
            sizes.append(stored_bytes(subject.path))
    return (sizes[1] - sizes[0]) // MORE


def _median(times_ns: list[int]) -> float:
    return statistics.median(times_ns) / 1e3


def _round(settings: Settings, url: str, seed: int) -> tuple[dict[str, list[int]], dict[str, int]]:
    """A second conversation given to each in turn; what each took, and by how much its tables have grown."""
    kinds: dict[str, Any] = {"backstay": PostgresSubject, "append": PostgresAppending, "floor": PostgresFloor}
    if settings.with_peer and peer_installed():
        kinds["peer"] = PostgresPeer
    for name in kinds:
        drop(url, f"bench_{name}")
    contenders = [kind(url, f"bench_{name}") for name, kind in kinds.items()]
    for contender in contenders:
        for _, state, new in append.steps(settings):
            contender.save("before", state, new)
    before = {name: relations_bytes(url, f"bench_{name}") for name in kinds}
    times: dict[str, list[int]] = {name: [] for name in kinds}
    rng = random.Random(seed)
    with collector_paused():
        for number, (session, state, new) in enumerate(append.steps(settings), 1):
            rng.shuffle(contenders)
            for contender in contenders:
                begun = perf_counter_ns()
                contender.save(session, state, new)
                times[contender.name].append(perf_counter_ns() - begun)
            if number % 100 == 0:
                gc.collect()
    for number in range(MORE - 1):
        relations_bytes(url, "bench_backstay")  # vacuums, as the server does by itself within minutes
        for contender in [each for each in contenders if each.name == "backstay"]:
            for _, state, new in append.steps(settings):
                contender.save(f"more {number}", state, new)
    for contender in contenders:
        contender.close()
    grown = {name: relations_bytes(url, f"bench_{name}") - before[name] for name in kinds}
    grown["backstay"] //= MORE
    for name in kinds:
        drop(url, f"bench_{name}")
    return times, grown


def _threads(settings: Settings, url: str) -> list[Figure]:
    far = Far(url, ROUND_TRIP_S)
    drop(url, "bench")
    subject = PostgresSubject(far.url, "bench")
    try:
        rates = {count: _rate(settings, subject, count) for count in (THREADS, 1, THREADS)}
    finally:
        subject.close()
        far.close()
    name = f"{THREADS} threads / one, {ROUND_TRIP_S * 1000:.0f} ms away"
    ratio = rates[THREADS] / rates[1]
    return [Figure("postgres", name, ratio, must=12.0, sense="at least", detail={"commits_per_s": rates})]


def _rate(settings: Settings, subject: PostgresSubject, threads: int) -> float:
    """Commits a second by so many threads, each on its session."""
    messages = settings.messages(2 * FAR_COMMITS + 2)
    sessions = [subject.store.session(f"of {threads}, {number}, {perf_counter()}") for number in range(threads)]
    for session in sessions:
        session.commit({"messages": messages[:2]})
    gate = threading.Barrier(threads + 1)
    failures: list[BaseException] = []

    def work(session: Any) -> None:
        gate.wait()
        try:
            for at in range(1, FAR_COMMITS + 1):
                session.commit({"messages": messages[: 2 * at + 2]})
        except BaseException as error:  # noqa: BLE001 - told below: a thread's failure must not pass for speed
            failures.append(error)

    workers = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for worker in workers:
        worker.start()
    gate.wait()
    begun = perf_counter()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return threads * FAR_COMMITS / (perf_counter() - begun)


def scale(settings: Settings) -> list[Figure]:
    """The same five questions to an empty store and to one with a million checkpoints."""
    with server() as url:
        if url is None:
            sys.stderr.write("scale: left out (neither a server is named nor the wheel installed)\n")
            return []
        sessions = settings.scaled(SCALE_SESSIONS, SCALE_SESSIONS // 10)
        for schema in ("bench_small", "bench_large"):
            drop(url, schema)
        small, large = PostgresSubject(url, "bench_small"), PostgresSubject(url, "bench_large")
        _fill(url, large, sessions)
        large.close()  # the scans that made its indexes are counted when its connection ends, and not below
        large = PostgresSubject(url, "bench_large")
        questions = {"small": _questions(settings, small), "large": _questions(settings, large)}
        scans = _scans(url)
        figures = []
        for what in questions["small"]:
            taken = alternate({name: asked[what] for name, asked in questions.items()}, SCALE_ROUNDS)
            near = {name: statistics.median(times) for name, times in taken.items()}
            detail: dict[str, object] = {"median_us": {name: time / 1e3 for name, time in near.items()}}
            figures.append(
                Figure(
                    "scale",
                    f"{what}, {sessions:,} sessions / none",
                    near["large"] / near["small"],
                    must=2.0,
                    detail=detail,
                )
            )
        small.close()
        large.close()  # what its connections did is counted when they end
        scanned = _scans(url) - scans
        figures.append(Figure("scale", "sequential scans of the large store", scanned, unit="", must=0.0))
        for schema in ("bench_small", "bench_large"):
            drop(url, schema)
        return figures


def _fill(url: str, subject: PostgresSubject, sessions: int) -> None:
    """One real session, then that many copies of its rows under other ids, made inside the server: none is opened."""
    session = subject.store.session("template")
    for number in range(SCALE_PER_SESSION):
        session.commit({"messages": [{"role": "user", "content": f"question {at}"} for at in range(number + 1)]})
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_SESSIONS, {"sessions": sessions})
        for statement in (_NAMES, _CHECKPOINTS, _ANALYZE):
            connection.execute(statement)


_SESSIONS = (
    "INSERT INTO bench_large.sessions"
    "(touched, era, time_era, revision, checkpoints, logical, hidden, id, uid, facets, body) "
    "SELECT next, next >> 8, time_era, revision, checkpoints, logical, hidden, convert_to('session ' || n, 'UTF8'), "
    "uid, facets, body FROM (SELECT s.*, n, nextval('bench_large.touches') AS next FROM bench_large.sessions s, "
    "generate_series(1, %(sessions)s) n WHERE s.sid = 1 OFFSET 0) AS made"
)
_NAMES = (
    "INSERT INTO bench_large.names(sid, revision, marks, run, journal, sequence, name, body) SELECT s.sid, n.revision, "
    "n.marks, n.run, n.journal, n.sequence, n.name, n.body FROM bench_large.names n, bench_large.sessions s "
    "WHERE n.sid = 1 AND s.sid > 1"
)
_CHECKPOINTS = (
    "INSERT INTO bench_large.checkpoints(sid, slot, sequence, parent, body) SELECT s.sid, c.slot, c.sequence, "
    "c.parent, c.body FROM bench_large.sessions s, bench_large.checkpoints c WHERE c.sid = 1 AND s.sid > 1"
)
_ANALYZE = "VACUUM ANALYZE bench_large.sessions, bench_large.names, bench_large.checkpoints"


def _scans(url: str) -> int:
    """How often a table of the large store was read from end to end, as the server counts it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        found = connection.execute(
            "SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_user_tables "
            "WHERE schemaname = 'bench_large' AND relname IN ('sessions', 'checkpoints', 'names', 'calls')"
        ).fetchone()
    return int(found[0]) if found is not None else 0


def _questions(settings: Settings, subject: PostgresSubject) -> dict[str, Callable[[], object]]:
    store = subject.store
    session = store.session("measured")
    messages = settings.messages(400)
    for at in range(60):
        session.commit({"messages": messages[: at + 1]})
    count = [60]

    def commit() -> None:
        count[0] += 1
        session.commit({"messages": messages[: count[0]]})

    for number in range(60):
        store.session(f"recent {number}").commit({"n": number})
    return {
        "commit": commit,
        "load": lambda: store.session("measured").load(),
        "sessions(limit=50)": lambda: list(store.sessions(limit=50)),
        "crashed()": store.crashed,
        "log(limit=50)": lambda: list(store.session("measured").log(limit=50)),
    }
