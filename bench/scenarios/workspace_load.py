"""A first capture of much, a log that grows, and what others notice of it. By processor time, or against oneself."""

from __future__ import annotations

import multiprocessing
import random
import resource
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import backstay
from bench.report import Figure
from bench.trees import make_tree

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from bench.measuring import Settings

_MB = 1_000_000
LOG_STEPS, QUICK_LOG_STEPS, LOG_BYTES = 500, 50, 100_000


def workspace_load(settings: Settings) -> list[Figure]:
    """Others' commits during a first capture, the memory of one, and 500 steps of a log that grows."""
    with settings.folder() as folder:
        return [*_others(folder, settings), *_memory(folder, settings), *_growing_log(folder, settings)]


def _others(folder: Path, settings: Settings) -> list[Figure]:
    """A session of another process commits; then the same while a folder of 400 MB is captured into that store."""
    work = folder / "large"
    work.mkdir()
    rng = random.Random(3)
    for number in range(settings.scaled(100, 10)):
        (work / f"{number}.bin").write_bytes(rng.randbytes(2 * _MB) + bytes(2 * _MB))
    path = folder / "others.db"
    with backstay.open(path) as store:
        session = store.session("other")
        alone = _commits(session, 300)
        child = multiprocessing.get_context("spawn").Process(target=_capture, args=(path, work))
        child.start()
        beside: list[float] = []
        while child.is_alive():
            beside += _commits(session, 10)
    ratio = statistics.quantiles(beside, n=20)[-1] / statistics.quantiles(alone, n=20)[-1]
    detail: dict[str, object] = {"p95 alone, ms": statistics.quantiles(alone, n=20)[-1] * 1e3, "commits": len(beside)}
    return [Figure("workspace-load", "others' commits meanwhile, p95 / alone", ratio, must=5.0, detail=detail)]


def _commits(session: backstay.Session, count: int) -> list[float]:
    taken = []
    for number in range(count):
        begun = perf_counter()
        session.commit({"n": number, "text": "x" * 500}, expect=backstay.ANY)
        taken.append(perf_counter() - begun)
    return taken


def _capture(path: Path, work: Path) -> None:
    with backstay.open(path) as store:
        store.session("files", workspace=work).commit({})


def _memory(folder: Path, settings: Settings) -> list[Figure]:
    """What a process needs at most for a first capture, of small files and of large ones."""
    work = make_tree(folder / "small", settings.scaled(10_000, 1_000))
    small = _in_child(_peak, folder / "small.db", work)
    large = _in_child(_peak, folder / "large.db", folder / "large")
    return [
        Figure("workspace-load", "memory of a first capture, small files", small / 1024, unit="MB", must=200.0),
        Figure("workspace-load", "the same, 400 MB in files of 4 MB", large / 1024, unit="MB", must=200.0),
    ]


def _in_child(work: Any, *args: Any) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: float = pool.apply(work, args)
    return found


def _peak(path: Path, work: Path) -> float:
    _capture(path, work)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _growing_log(folder: Path, settings: Settings) -> list[Figure]:
    """A log of 50 MB in the end, a step for each of its 500 parts, against the log packed as a whole."""
    work = folder / "log"
    work.mkdir()
    rng = random.Random(4)
    log = work / "agent.log"
    with backstay.open(folder / "log.db") as store:
        session = store.session("s", workspace=work)
        for step in range(settings.scaled(LOG_STEPS, QUICK_LOG_STEPS)):
            lines = [f"{step} {rng.randrange(10**6)} request handled in {rng.random():.3f} s" for _ in range(2_400)]
            with log.open("a") as file:
                file.write("\n".join(lines)[:LOG_BYTES])
            session.commit({"step": step})
        stored = store.stats().stored_bytes
    packed = len(zstd.compress(log.read_bytes(), 3))
    detail: dict[str, object] = {"log, MB": log.stat().st_size / _MB, "packed, MB": packed / _MB}
    return [
        Figure("workspace-load", "a growing log, all steps / the log packed", stored / packed, must=3.0, detail=detail)
    ]
