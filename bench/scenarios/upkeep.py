"""Looking after a store: how fast everything is read again, and what forgetting costs and gives back."""

from __future__ import annotations

import itertools
import statistics
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from backstay import Retention
from bench.conversations import pack
from bench.measuring import Settings, collector_paused, stored_bytes
from bench.report import Figure
from bench.scenarios.append import PER_STEP, steps
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL_NODES, QUICK_SMALL_NODES = 20_000, 4000
SMALL_SESSIONS = 20
SHORTEST, LONGEST = 50, 200
LARGE_NODES, QUICK_LARGE_NODES = 400, 100
LARGE_VALUE_BYTES = 256 * 1024
LARGE_VALUES = 8
PRUNED, QUICK_PRUNED = 10_000, 2000
KEEP = 10
MB = 1e6


def _conversation(settings: Settings) -> Iterator[list[Any]]:
    """A conversation without end: two more messages a step, cut back to 50 whenever there are more than 200."""
    source = settings.messages(1000)
    numbers = itertools.count()
    messages = source[:SHORTEST]
    while True:
        added = [{**source[number % len(source)], "number": number} for number in itertools.islice(numbers, PER_STEP)]
        messages = [*messages, *added]
        if len(messages) > LONGEST:
            messages = [messages[0], *messages[1 - SHORTEST :]]
        yield messages


def _fill(subject: Subject, settings: Settings, checkpoints: int, sessions: int) -> None:
    subject.open(durable=False)
    for number in range(sessions):
        talk = _conversation(settings)
        for messages in itertools.islice(talk, checkpoints // sessions):
            subject.save(f"talk-{number}", {"messages": messages}, b"")
    subject.close()


def _timed(call: Callable[[], object]) -> float:
    with collector_paused():
        begun = perf_counter()
        call()
        return perf_counter() - begun


def verify(settings: Settings) -> list[Figure]:
    """The whole of `store.verify()`: pages and indexes, names, every record of every checkpoint."""
    small, large = settings.scaled(SMALL_NODES, QUICK_SMALL_NODES), settings.scaled(LARGE_NODES, QUICK_LARGE_NODES)
    with settings.folder() as folder:
        one, other = Subject(folder, file="small.db"), Subject(folder, file="large.db")
        _fill(one, settings, small, SMALL_SESSIONS)
        written = _fill_large(other, settings, large)
        begun = process_time()
        of_small = [_verified(one, small) for _ in range(settings.rounds)]
        busy = (process_time() - begun) / settings.rounds
        of_large = [_verified(other, large) for _ in range(settings.rounds)]
    rate, best = small / statistics.median(of_small), small / min(of_small)
    speed = written / MB / statistics.median(of_large)
    detail: dict[str, object] = {"seconds": of_small, "nodes": small}
    return [
        Figure("verify", "small nodes", rate, unit="/s", must=30_000, sense="at least", detail=detail),
        Figure("verify", "small nodes, the best round", best, unit="/s"),
        # What the clock on the wall says depends on who else is running; this does so less.
        Figure("verify", "small nodes, by processor time", small / busy, unit="/s"),
        Figure(
            "verify",
            "large nodes",
            speed,
            unit="MB/s",
            must=100,
            sense="at least",
            detail={"seconds": of_large, "bytes": written},
        ),
    ]


def _verified(subject: Subject, expected: int) -> float:
    subject.open()
    try:
        report = None

        def run() -> None:
            nonlocal report
            report = subject.store.verify()

        taken = _timed(run)
        assert report is not None
        assert report.ok
        assert report.checked == expected
        return taken
    finally:
        subject.close()


def _fill_large(subject: Subject, settings: Settings, checkpoints: int) -> int:
    """Each step brings one tool result of 256 KB and lets the oldest of eight go; what was new in all, in bytes."""
    text = "\n".join(str(message["content"]) for message in settings.messages(1500))
    subject.open(durable=False)
    results: list[dict[str, Any]] = []
    written = 0
    for number in range(checkpoints):
        start = number * 997 % (len(text) - 1)
        content = f"result {number}\n{(text[start:] + text * 2)[:LARGE_VALUE_BYTES]}"
        results = [*results, {"role": "tool", "content": content}][-LARGE_VALUES:]
        subject.save("large", {"results": results}, b"")
        written += len(content.encode())
    subject.close()
    return written


def prune(settings: Settings) -> list[Figure]:
    count = settings.scaled(PRUNED, QUICK_PRUNED)
    taken = {sessions: _pruned(settings, count, sessions) for sessions in (1, 100)}
    after, fresh = _sizes(settings)
    share = count / PRUNED
    return [
        Figure("prune", f"{count:,} checkpoints of one session", taken[1], unit="s", must=2.0 * share),
        Figure("prune", f"{count:,} checkpoints of 100 sessions", taken[100], unit="s", must=2.0 * share),
        Figure(
            "prune",
            f"append kept to {KEEP} / the same {KEEP} fresh",
            after / fresh,
            must=2.0,
            detail={"after_bytes": after, "fresh_bytes": fresh},
        ),
    ]


def _pruned(settings: Settings, count: int, sessions: int) -> float:
    """The median of a few rounds, each on a store of its own."""
    taken = []
    for _ in range(min(settings.rounds, 3)):
        with settings.folder() as folder:
            subject = Subject(folder)
            _fill(subject, settings, count + KEEP * sessions, sessions)
            subject.open()
            try:
                store = subject.store
                taken.append(_timed(lambda store=store: store.prune(Retention(keep_last=KEEP))))  # type: ignore[misc]
                assert store.stats().checkpoints == KEEP * sessions
            finally:
                subject.close()
    return statistics.median(taken)


def _sizes(settings: Settings) -> tuple[int, int]:
    with settings.folder() as folder:
        pruned, fresh = Subject(folder, file="pruned.db"), Subject(folder, file="fresh.db")
        last: list[dict[str, Any]] = []
        pruned.open(durable=False)
        for session, state, new in steps(settings):
            pruned.save(session, state, new)
            last = [*last, {"messages": state["messages"].copy()}][-KEEP:]
        pruned.store.prune(Retention(keep_last=KEEP))
        pruned.close()
        fresh.open(durable=False)
        for state in last:
            fresh.save("append", state, pack(state))
        fresh.close()
        return stored_bytes(pruned.path), stored_bytes(fresh.path)
