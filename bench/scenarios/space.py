"""What all checkpoints of a session take, as the file lies after an ordinary close; and which commits pack them.

Sizes do not depend on the noise of the machine, so one run of each tells.
"""

from __future__ import annotations

import itertools
import statistics
from contextlib import closing
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import apsw

import backstay
from backstay.backends.sqlite.connections import connect
from backstay.store.packing import PACK_ROWS
from bench.coding import trajectories
from bench.conversations import compact_json
from bench.measuring import Settings, collector_paused, stored_bytes
from bench.report import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STEPS, LONG = 500, 5000
PER_STEP = 2


def _pairs(settings: Settings, steps: int) -> Iterator[list[Any]]:
    messages = settings.messages(PER_STEP * steps)
    return (messages[at : at + PER_STEP] for at in range(0, len(messages), PER_STEP))


def _taken(settings: Settings, pairs: Iterable[list[Any]]) -> tuple[float, list[int], dict[str, object]]:
    """The file against the JSON of the last state, how long each commit took, and what the first was made from."""
    messages: list[Any] = []
    times: list[int] = []
    with settings.folder() as folder:
        path = folder / "store.db"
        with backstay.open(path) as store, collector_paused():
            session = store.session("space")
            for added in pairs:
                messages += added
                begun = perf_counter_ns()
                session.commit({"messages": messages})
                times.append(perf_counter_ns() - begun)
        stored, plain = stored_bytes(path), len(compact_json({"messages": messages}))
    return stored / plain, times, {"stored_bytes": stored, "json_bytes": plain, "steps": len(times)}


def _pages(settings: Settings, pairs: Iterable[list[Any]]) -> float:
    """Pages that a commit adds to the log, on average, those of packing with them; another connection counts."""
    messages: list[Any] = []
    frames: list[int] = [0]
    with settings.folder() as folder:
        path = folder / "store.db"
        with backstay.open(path, durability="relaxed") as store, closing(connect(path, durability="relaxed")) as other:
            session = store.session("pages")
            for added in pairs:
                messages += added
                session.commit({"messages": messages})
                other.execute("SELECT 1 FROM meta").fetchall()  # it looks at the log only when something is read
                frames.append(other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0])
    grown = [after - before if after >= before else after for before, after in itertools.pairwise(frames)]
    return statistics.mean(grown)


def space(settings: Settings) -> list[Figure]:
    count, long = settings.scaled(STEPS, 150), settings.scaled(LONG, 600)
    chat, times, about_chat = _taken(settings, _pairs(settings, count))
    code, _, about_code = _taken(settings, trajectories(count))
    much, _, about_much = _taken(settings, _pairs(settings, long))
    packing = statistics.median([took for at, took in enumerate(times, 1) if at % PACK_ROWS == 0])
    others = statistics.median([took for at, took in enumerate(times, 1) if at % PACK_ROWS])
    return [
        Figure("space", f"all checkpoints / JSON, {count} steps", chat, must=0.45, detail=about_chat),
        Figure("space", f"the same, {count} steps of coding", code, must=0.40, detail=about_code),
        Figure("space", f"the same, {long} steps", much, must=0.35, detail=about_much),
        Figure("space", "a commit that packs / one that does not", packing / others, must=3.0),
        Figure("space", "pages written a commit", _pages(settings, _pairs(settings, count)), unit="", must=3.0),
    ]
