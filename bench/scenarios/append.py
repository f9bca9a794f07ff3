"""A conversation that grows by two messages a step: the everyday case, and the one held against the peer."""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING, Any

from bench.conversations import compact_json, pack
from bench.floor import Floor
from bench.measuring import Settings, Step, Taken, interleave
from bench.report import Figure
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Round = dict[str, Taken]
STEPS, QUICK_STEPS = 500, 150
PER_STEP = 2
STEP_COUNTS = (10, 50, 100, 250, 500)
# A single step is noise; the median of the ten that end at a step count stands for it.
AROUND = 10


def steps(settings: Settings) -> Iterator[Step]:
    """The same list object grows, as in a real loop: what is new is for each contender to find."""
    messages: list[Any] = []
    new = settings.messages(PER_STEP * step_count(settings))
    for at in range(0, len(new), PER_STEP):
        added = new[at : at + PER_STEP]
        messages += added
        yield Step("append", {"messages": messages}, pack(added))


def step_count(settings: Settings) -> int:
    return settings.scaled(STEPS, QUICK_STEPS)


def rounds(settings: Settings, count: int) -> list[Round]:
    """At least `count` rounds of it; those already run in this process are used again."""
    done: list[Round] = settings.memo.setdefault("append", [])
    while len(done) < count:
        with settings.folder() as folder:
            done.append(interleave(settings.contenders(folder), steps(settings), seed=len(done)))
    return done


def stored(settings: Settings) -> int:
    """What all of Backstay's checkpoints of it weigh: the yardstick of the other growth scenarios."""
    return rounds(settings, 1)[0]["backstay"].stored_bytes


def of_rounds(found: list[Round], ratio: Callable[[Round], float]) -> float:
    """The median over rounds of a ratio taken within each."""
    return statistics.median(ratio(one) for one in found)


def _drift(taken: Taken) -> float:
    return taken.median_us(-50) / taken.median_us(50, 100)


def append(settings: Settings) -> list[Figure]:
    found = rounds(settings, settings.rounds)
    last_json = len(compact_json({"messages": settings.messages(PER_STEP * step_count(settings))}))
    size = stored(settings)
    medians = {name: [one[name].median_us() for one in found] for name in found[0]}
    cost = of_rounds(found, lambda one: one["backstay"].median_us() / one["floor"].median_us())
    drift = of_rounds(found, lambda one: _drift(one["backstay"]))
    floor_drift = of_rounds(found, lambda one: _drift(one["floor"]))
    return [
        Figure("append", "median commit / floor", cost, must=1.35, detail={"median_us": medians}),
        Figure("append", "last 50 / commits 50-100", drift, must=1.5, detail={"floor_itself": floor_drift}),
        Figure(
            "append",
            "stored / JSON of last state",
            size / last_json,
            must=0.7,
            detail={
                "stored_bytes": size,
                "json_bytes": last_json,
                "floor_bytes": found[0]["floor"].stored_bytes,
            },
        ),
        Figure("append", "median commit", statistics.median(medians["backstay"]), unit="us"),
        Figure("append", "median floor", statistics.median(medians["floor"]), unit="us"),
    ]


class Appending(Subject):
    """Backstay, told what is new instead of being given the whole."""

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:  # noqa: ARG002 - the new items are in it
        self.session(session).append(state["messages"][-PER_STEP:])


def told(settings: Settings) -> list[Figure]:
    found = []
    for seed in range(settings.rounds):
        with settings.folder() as folder:
            found.append(interleave([Appending(folder), Floor(folder)], steps(settings), seed=seed))
    cost = of_rounds(found, lambda one: one["backstay"].median_us() / one["floor"].median_us())
    drift = of_rounds(found, lambda one: _drift(one["backstay"]))
    return [
        Figure("session.append", "median append / floor", cost, must=1.15),
        Figure("session.append", "last 50 / appends 50-100", drift, must=1.5),
    ]


def against_peer(settings: Settings) -> list[Figure]:
    if not settings.with_peer:
        sys.stderr.write("peer: left out (the extra `bench` brings it)\n")
        return []
    found = rounds(settings, settings.rounds)
    sizes = {name: found[0][name].stored_bytes for name in ("backstay", "peer")}
    figures = [
        Figure(
            "peer",
            "SqliteSaver's bytes / Backstay's",
            sizes["peer"] / sizes["backstay"],
            must=100.0,
            sense="at least",
            detail={"stored_bytes": sizes},
        ),
    ]
    for count in (count for count in STEP_COUNTS if count <= step_count(settings)):
        near = {name: [one[name].median_us(count - AROUND, count) for one in found] for name in found[0]}
        ratio = statistics.median(p / h for p, h in zip(near["peer"], near["backstay"], strict=True))
        label = f"its time / Backstay's, step {count}"
        figures.append(Figure("peer", label, ratio, must=1.0, sense="at least", detail={"median_us": near}))
    return figures
