"""Many sessions at once: threads of one process share a transaction and a sync, processes take turns."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import threading
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench.measuring import Settings
from bench.report import Figure
from bench.subject import Subject

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    import backstay

THREADS = 32
PROCESSES = 8
STATE_MESSAGES = 20
PER_COMMIT = 2


def _states(settings: Settings, commits: int, seed: int) -> list[dict[str, Any]]:
    """Twenty messages each, the newest two of them new."""
    messages = settings.messages(STATE_MESSAGES + PER_COMMIT * commits, seed=seed)
    starts = range(0, PER_COMMIT * commits, PER_COMMIT)
    return [{"messages": messages[start : start + STATE_MESSAGES]} for start in starts]


def _counters(store: backstay.Store) -> tuple[int, int] | None:
    """The backend's own count of commits and of syncs made for them, where it keeps one."""
    backend: Any = getattr(store, "backend", None)
    if not (hasattr(backend, "commits") and hasattr(backend, "syncs")):
        return None
    return backend.commits, backend.syncs


def _run(settings: Settings, work: list[list[dict[str, Any]]]) -> tuple[float, float | None]:
    """Commits a second with one thread per list of states, and syncs per commit."""
    with settings.folder() as folder:
        subject = Subject(folder)
        subject.open()
        store, failures = subject.store, list[BaseException]()
        sessions = [store.session(f"session-{number}") for number in range(len(work))]
        for session, states in zip(sessions, work, strict=True):
            session.commit(states[0])
        gate = threading.Barrier(len(work) + 1)

        def commit_all(session: backstay.Session, states: list[dict[str, Any]]) -> None:
            gate.wait()
            try:
                for state in states:
                    session.commit(state)
            except BaseException as error:  # noqa: BLE001 - told below: a thread's failure must not pass for speed
                failures.append(error)

        workers = [threading.Thread(target=commit_all, args=(s, w[1:])) for s, w in zip(sessions, work, strict=True)]
        for worker in workers:
            worker.start()
        before = _counters(store)
        gate.wait()
        begun = perf_counter_ns()
        for worker in workers:
            worker.join()
        seconds = (perf_counter_ns() - begun) / 1e9
        after = _counters(store)
        subject.close()
    if failures:
        raise failures[0]
    done = sum(len(states) - 1 for states in work)
    syncs = None if before is None or after is None else (after[1] - before[1]) / (after[0] - before[0])
    return done / seconds, syncs


def threads(settings: Settings) -> list[Figure]:
    each = settings.scaled(30, 10)
    many = [_states(settings, each + 1, seed) for seed in range(THREADS)]
    alone = [_states(settings, each * THREADS // 2 + 1, 99)]
    ratios, syncs, rates = [], list[float](), []
    for _ in range(settings.rounds):
        one_rate, _ = _run(settings, alone)
        many_rate, shared = _run(settings, many)
        ratios.append(many_rate / one_rate)
        rates.append({"one": one_rate, "many": many_rate})
        if shared is not None:
            syncs.append(shared)
    # Without the backend's counters the figure is unknown, and unknown is not reached.
    per_commit = statistics.median(syncs) if syncs else math.nan
    return [
        Figure(
            "32 threads",
            "commits a second / one thread's",
            statistics.median(ratios),
            must=5.0,
            sense="at least",
            detail={"commits_per_s": rates},
        ),
        Figure("32 threads", "commits a second", statistics.median(rate["many"] for rate in rates), unit="/s"),
        Figure("32 threads", "syncs a commit", per_commit, unit="", must=0.25),
    ]


def _commit_for(seconds: float, folder: Path, states: list[dict[str, Any]], gate: Barrier, told: Queue[Any]) -> None:
    """Commit without a pause in a process of one's own; how long each commit took."""
    subject = Subject(folder)
    subject.open()
    session = subject.session(f"session-{multiprocessing.current_process().name}")
    waits: list[float] = []
    gate.wait()
    end = monotonic() + seconds
    while monotonic() < end:
        begun = perf_counter_ns()
        session.commit(states[len(waits) % len(states)])
        waits.append((perf_counter_ns() - begun) / 1e6)
    subject.close()
    told.put(waits)


def processes(settings: Settings) -> list[Figure]:
    """Eight processes that never pause: how long one of them waits at worst while the others get through."""
    seconds = settings.scaled(6, 2)
    context = multiprocessing.get_context("spawn")
    with settings.folder() as folder:
        subject = Subject(folder)
        subject.open()
        subject.close()
        gate, told = context.Barrier(PROCESSES), context.Queue()
        work = [
            context.Process(target=_commit_for, args=(seconds, folder, _states(settings, 50, seed), gate, told))
            for seed in range(PROCESSES)
        ]
        for one in work:
            one.start()
        waits = [told.get(timeout=60 + 10 * seconds) for _ in work]
        for one in work:
            one.join()
    everything = sorted(wait for one in waits for wait in one)
    return [
        Figure("8 processes", "longest commit", everything[-1], unit="ms", must=1000.0),
        Figure("8 processes", "99 % of the commits within", everything[len(everything) * 99 // 100], unit="ms"),
        Figure("8 processes", "fewest commits of one / most", min(map(len, waits)) / max(map(len, waits))),
        Figure("8 processes", "commits a second", len(everything) / seconds, unit="/s"),
    ]
