"""Reading, listing and forking: what must not depend on how long the history is."""

from __future__ import annotations

import itertools
import statistics
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from bench.conversations import pack
from bench.measuring import Settings, alternate, collector_paused, interleave, stored_bytes
from bench.peer import Peer
from bench.report import Figure
from bench.scenarios.append import PER_STEP, step_count, steps
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


def load(settings: Settings) -> list[Figure]:
    """The head after the append against decoding a plain copy: in a Store opened for it and nothing else, and again.

    A process keeps a few segments that it has opened. So the loads that count as cold go round several stores.
    """
    plain = pack({"messages": settings.messages(PER_STEP * step_count(settings))})
    taken: dict[str, list[int]] = {"backstay": [], "again": [], "decode": []}
    if settings.with_peer:
        taken["peer"] = []
    with settings.folder() as folder:
        interleave(settings.contenders(folder), steps(settings))
        others = [Subject(folder, file=f"other-{number}.db") for number in range(2)]
        for other in others:
            other.open(durable=False)
            for session, state, new in steps(settings):
                other.save(session, state, new)
            other.close()
        with collector_paused():
            for number in range(settings.scaled(60, 20)):
                taken["backstay"].append(_fresh_load([Subject(folder), *others][number % 3]))
                taken["decode"].append(_timed(lambda: msgspec.msgpack.decode(plain)))
                if settings.with_peer:
                    taken["peer"].append(_fresh_load(Peer(folder)))
            subject = Subject(folder)
            subject.open()
            for number in range(settings.scaled(60, 20) + 2):
                again = _timed(lambda: subject.load("append"))
                taken["decode"].append(_timed(lambda: msgspec.msgpack.decode(plain)))
                if number > 1:  # read twice, it is kept
                    taken["again"].append(again)
            subject.close()
    medians = {name: statistics.median(times) / 1e3 for name, times in taken.items()}
    detail: dict[str, object] = {"median_us": medians, "best_us": {n: min(t) / 1e3 for n, t in taken.items()}}
    best = min(taken["backstay"]) / min(taken["decode"])
    ratio = _ratio(taken, "backstay", "decode")
    return [
        Figure("load head", "load / decoding plain msgpack", ratio, must=2.6, detail=detail),
        Figure("load head", "a head read before / decoding", _ratio(taken, "again", "decode"), must=1.4),
        Figure("load head", "the best of each", best),
        Figure("load head", "median load", medians["backstay"], unit="us"),
    ]


def _fresh_load(one: Subject | Peer) -> int:
    one.open()
    try:
        return _timed(lambda: one.load("append"))
    finally:
        one.close()


def _timed(call: Callable[[], object]) -> int:
    begun = perf_counter_ns()
    kept = call()
    taken = perf_counter_ns() - begun
    # Freeing a thousand messages is not part of reading them.
    del kept
    return taken


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
