"""Reading the head of a long session, against decoding a plain copy of the state.

*Cold* is a Store that was opened for this one load, in a process that has loaded before: modules are imported, the file
is in the system's cache, and nothing else of it is known. A process keeps a few segments that it has opened, so cold
loads go round three stores. Opening and closing the Store is not counted.
"""

from __future__ import annotations

import statistics
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import msgspec

from bench.coding import sources, trajectories
from bench.conversations import pack
from bench.measuring import Settings, Step, collector_paused, interleave
from bench.peer import Peer
from bench.report import Figure
from bench.scenarios.append import PER_STEP, step_count, steps
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

STORES = 3
# Steps of a coding agent, and the files that it is shown whole: each is a blob, and half of the state is blobs.
CODING_STEPS, FILES, FILE_BYTES = 150, 30, 12 * 1024


def load(settings: Settings) -> list[Figure]:
    """The head after the append; and that of a coding agent which was shown 30 files."""
    times = settings.scaled(60, 20)
    plain = pack({"messages": settings.messages(PER_STEP * step_count(settings))})
    taken: dict[str, list[int]] = {"backstay": [], "again": [], "decode": []}
    if settings.with_peer:
        taken["peer"] = []
    with settings.folder() as folder:
        interleave(settings.contenders(folder), steps(settings))
        subjects = [Subject(folder), *_filled(folder, STORES - 1, lambda: steps(settings))]
        with collector_paused():
            for number in range(times):
                taken["backstay"].append(_fresh_load(subjects[number % STORES]))
                taken["decode"].append(_timed(lambda: msgspec.msgpack.decode(plain)))
                if settings.with_peer:
                    taken["peer"].append(_fresh_load(Peer(folder)))
            subject = Subject(folder)
            subject.open()
            for number in range(times + 2):
                again = _timed(lambda: subject.load("append"))
                taken["decode"].append(_timed(lambda: msgspec.msgpack.decode(plain)))
                if number > 1:  # read twice, it is kept
                    taken["again"].append(again)
            subject.close()
    medians = {name: statistics.median(each) / 1e3 for name, each in taken.items()}
    best = {name: min(each) / 1e3 for name, each in taken.items()}
    detail: dict[str, object] = {"median_us": medians, "best_us": best}
    ratio = medians["backstay"] / medians["decode"]
    blobs, about_blobs = _with_blobs(settings, times)
    return [
        Figure("load head", "load / decoding plain msgpack", ratio, must=2.6, detail=detail),
        Figure("load head", f"the same, with {FILES} blobs", blobs, must=3.5, detail=about_blobs),
        Figure("load head", "a head read before / decoding", medians["again"] / medians["decode"], must=1.4),
        Figure("load head", "the best of each", best["backstay"] / best["decode"]),
        Figure("load head", "median load", medians["backstay"], unit="us"),
    ]


def _with_blobs(settings: Settings, times: int) -> tuple[float, dict[str, object]]:
    """Cold loads, by the median, against decoding the same state."""
    taken: dict[str, list[int]] = {"backstay": [], "decode": []}
    plain = pack(list(_shown_files())[-1].state)
    with settings.folder() as folder:
        subjects = _filled(folder, STORES, _shown_files)
        with collector_paused():
            for number in range(times):
                taken["backstay"].append(_fresh_load(subjects[number % STORES]))
                taken["decode"].append(_timed(lambda: msgspec.msgpack.decode(plain)))
    medians = {name: statistics.median(each) / 1e3 for name, each in taken.items()}
    return medians["backstay"] / medians["decode"], {"median_us": medians, "plain_bytes": len(plain)}


def _shown_files() -> Iterator[Step]:
    """A coding agent that is shown a whole file now and then."""
    messages: list[Any] = []
    long = ["\n".join(lines) for _, lines in sources()]
    files = [text[:FILE_BYTES] for text in long if len(text) >= FILE_BYTES][:FILES]
    every = CODING_STEPS // FILES
    for number, added in enumerate(trajectories(CODING_STEPS)):
        if number % every == 0:
            added[-1]["content"] = files[number // every]
        messages += added
        yield Step("append", {"messages": messages}, b"")


def _filled(folder: Path, count: int, make: Callable[[], Iterable[Step]]) -> list[Subject]:
    found = [Subject(folder, file=f"other-{number}.db") for number in range(count)]
    for subject in found:
        subject.open(durable=False)
        for session, state, new in make():
            subject.save(session, state, new)
        subject.close()
    return found


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
