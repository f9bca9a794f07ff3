"""Listing and forking: what must not depend on how long the history is."""

from __future__ import annotations

import itertools
import statistics
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.measuring import Settings, alternate, stored_bytes
from bench.report import Figure
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHORT, LONG, QUICK_LONG = 10, 10_000, 1500
PAGE = 50
SESSIONS = 60
# How far two medians of the same work lie apart on a shared machine before they count as different.
SAME = 1.5
LIMIT_BYTES = 2048


def _ratio(taken: dict[str, list[int]], above: str, below: str) -> float:
    return statistics.median(taken[above]) / statistics.median(taken[below])


@contextmanager
def _histories(settings: Settings) -> Iterator[tuple[Subject, Subject]]:
    """Two stores of 60 sessions: a short history of small states, a long one of 0.5 MB states.

    Built once a run and kept until its end; only the filling is done with relaxed durability.
    """
    if "histories" not in settings.memo:
        keep = settings.memo["stack"].enter_context(settings.folder())
        short, long = Subject(keep, file="short.db"), Subject(keep, file="long.db")
        _fill(short, settings.messages(4), PAGE + SHORT)
        _fill(long, settings.messages(settings.scaled(1000, 300)), settings.scaled(LONG, QUICK_LONG))
        settings.memo["histories"] = (short, long)
    short, long = settings.memo["histories"]
    short.open()
    long.open()
    try:
        yield short, long
    finally:
        short.close()
        long.close()


def _fill(subject: Subject, messages: list[Any], checkpoints: int) -> None:
    subject.open(durable=False)
    for number in range(SESSIONS - 2):
        subject.save(f"other-{number}", {"messages": messages[:2]}, b"")
    for number in range(SHORT):
        subject.save("short", {"messages": messages[:2], "turn": number}, b"")
    for number in range(checkpoints):
        subject.save("long", {"messages": messages, "turn": number}, b"")
    subject.close()


def fork(settings: Settings) -> list[Figure]:
    """At 10 checkpoints in one store, at 10,000 in the other, in turn; each fork is durable by itself."""
    times = settings.scaled(200, 60)
    with _histories(settings) as (short, long):
        sizes = {"short": stored_bytes(short.path), "long": stored_bytes(long.path)}
        count = itertools.count()

        def forking(subject: Subject, name: str) -> Callable[[], object]:
            session = subject.session(name)
            return lambda: session.fork("main", f"fork-{next(count)}")

        taken = alternate({"short": forking(short, "short"), "long": forking(long, "long")}, times)
        paths = {"short": short.path, "long": long.path}
    each = {name: (stored_bytes(path) - sizes[name]) / (times + 1) for name, path in paths.items()}
    detail: dict[str, object] = {"median_us": {name: statistics.median(t) / 1e3 for name, t in taken.items()}}
    long_count = settings.scaled(LONG, QUICK_LONG)
    return [
        Figure(
            "fork",
            f"time at {long_count:,} / at {SHORT}",
            _ratio(taken, "long", "short"),
            must=SAME,
            detail=detail,
        ),
        Figure("fork", f"bytes at {SHORT}", each["short"], unit="B", must=LIMIT_BYTES),
        Figure("fork", f"bytes at {long_count:,}", each["long"], unit="B", must=LIMIT_BYTES),
    ]


def listings(settings: Settings) -> list[Figure]:
    figures = []
    long_count = settings.scaled(LONG, QUICK_LONG)
    with _histories(settings) as (short, long):
        for name, call in (("log", _log), ("sessions", _sessions)):
            calls = {"short": partial(call, short), "long": partial(call, long)}
            taken = alternate(calls, settings.scaled(100, 40))
            detail: dict[str, object] = {"median_us": {n: statistics.median(t) / 1e3 for n, t in taken.items()}}
            label = f"{name}(limit={PAGE}), {long_count:,} / {PAGE + SHORT}"
            figures.append(Figure("listing", label, _ratio(taken, "long", "short"), must=SAME, detail=detail))
    return figures


def _log(subject: Subject) -> None:
    assert len(list(subject.session("long").log(limit=PAGE))) == PAGE


def _sessions(subject: Subject) -> None:
    assert len(list(subject.store.sessions(limit=PAGE))) == PAGE
