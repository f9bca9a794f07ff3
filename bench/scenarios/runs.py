"""Runs: what a journaled call costs beside a bare commit, how soon a long session goes on, and what calls weigh."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import backstay
from bench import durable
from bench.floor import Floor
from bench.report import Figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.measuring import Settings

STEPS, QUICK_STEPS = 400, 100
CHECKPOINTS, QUICK_CHECKPOINTS = 10_000, 500
MESSAGES = 1000
CALLS, RESULT_BYTES = 500, 1024
BARE = b"x" * 100

RESUME = """
import sys, time
import backstay, backstay.face, backstay.backends.sqlite
begun = time.perf_counter()
with backstay.open(sys.argv[1]) as store, store.run("long") as run:
    run.call("first", lambda: None, key=sys.argv[2], args=1)
    took = time.perf_counter() - begun
    run.halt("measured")
print(took * 1000, run.iteration, len(run.state["messages"]))
"""


def calls(settings: Settings) -> list[Figure]:
    """A bare commit, a tool call, the checkpoint of its step and a model call, in turn; and a step of the peer."""
    ratios: dict[str, list[float]] = {"tool": [], "step": [], "dbos tool": [], "dbos llm": []}
    medians: list[dict[str, float]] = []
    with_dbos = settings.with_peer and durable.installed()
    for _ in range(settings.rounds):
        with settings.folder() as folder:
            taken = _taken(folder, settings.scaled(STEPS, QUICK_STEPS), with_dbos=with_dbos)
        found = {name: statistics.median(times) * 1e6 for name, times in taken.items() if times}
        medians.append(found)
        ratios["tool"].append(found["tool"] / found["floor"])
        ratios["step"].append((found["tool"] + found["step"]) / found["floor"])
        if with_dbos:
            ratios["dbos tool"].append(found["dbos"] / found["tool"])
            ratios["dbos llm"].append(found["dbos"] / found["llm"])
    detail: dict[str, object] = {"median_us": medians}
    middle = {name: statistics.median(found) for name, found in ratios.items() if found}
    figures = [
        Figure("calls", "tool call / bare commit", middle["tool"], must=2.8, detail=detail),
        Figure("calls", "tool call and its checkpoint / bare", middle["step"], must=4.2),
    ]
    if not with_dbos:
        sys.stderr.write("calls: DBOS left out (the extra `bench` brings it)\n")
        return figures
    return [
        *figures,
        Figure("calls", "a step of DBOS / tool call", middle["dbos tool"], must=2.0, sense="at least"),
        Figure("calls", "a step of DBOS / model call", middle["dbos llm"], must=3.0, sense="at least"),
    ]


def _taken(folder: Path, count: int, *, with_dbos: bool) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in ("floor", "tool", "step", "llm", "dbos")}
    floor = Floor(folder)
    floor.open()

    def timed(name: str, fn: Callable[[], Any]) -> None:
        begun = perf_counter()
        fn()
        taken[name].append(perf_counter() - begun)

    def body(peer: Callable[[], Any] | None) -> None:
        with backstay.open(folder / "store.db") as store, store.run("calls") as run:
            run.state["messages"] = [{"role": "user", "content": "refund order 7"}]
            for number in range(count):
                tool = partial(run.call, "t", _nothing, key=str(number), args={"order": number})
                timed("floor", lambda: floor.save("", None, BARE))
                timed("tool", tool)
                timed("step", run.step)
                timed("llm", lambda: run.call("model", lambda: {"role": "assistant", "content": "ok"}, kind="llm"))
                if peer is not None:
                    timed("dbos", peer)
                if number % 100 == 0:
                    gc.collect()

    try:
        if with_dbos:
            durable.inside_a_workflow(folder, body)
        else:
            body(None)
    finally:
        floor.close()
    return taken


def _nothing() -> None:
    return None


def resume(settings: Settings) -> list[Figure]:
    """A process opens a long session, takes its lease, loads it and makes the first new call."""
    count = settings.scaled(CHECKPOINTS, QUICK_CHECKPOINTS)
    with settings.folder() as folder:
        file = folder / "store.db"
        with backstay.open(file, durability="relaxed") as store, store.run("long") as run:
            messages = settings.messages(MESSAGES)
            for number in range(count):
                due = (number + 1) * MESSAGES // count
                run.state["messages"] = messages[:due]
                run.state["step"] = number
                run.step()
            run.halt("to be resumed")
        took = []
        for number in range(settings.rounds):
            command = [sys.executable, "-c", RESUME, str(file), str(number)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            ms, iteration, loaded = done.stdout.split()
            assert (int(iteration), int(loaded)) == (count, MESSAGES)
            took.append(float(ms))
    name = f"{count:,} checkpoints, {MESSAGES} messages, to the first new call"
    return [Figure("resume", name, statistics.median(took), unit="ms", must=100.0, detail={"ms": took})]


def journal(settings: Settings) -> list[Figure]:
    """What calls weigh: with results that stay in the journal, and with results that the state has too."""
    outside, inside, state_only = (_weight(settings, how) for how in ("journal", "both", "state"))
    raw = CALLS * RESULT_BYTES
    return [
        Figure("journal", f"{CALLS} results of 1 KB / raw bytes", outside / raw, must=1.5),
        Figure(
            "journal",
            "the same in the state too / in the state alone",
            inside / state_only,
            must=1.5,
            detail={"journal": outside, "both": inside, "state": state_only, "raw": raw},
        ),
    ]


def _weight(settings: Settings, how: str) -> int:
    texts = [str(message.get("content", "")) for message in settings.messages(4 * CALLS)]
    prose = " ".join(texts).encode("ascii", "replace").decode()
    with settings.folder() as folder:
        file = folder / "store.db"
        with backstay.open(file, durability="relaxed") as store, store.run("calls") as run:
            for number in range(CALLS):
                at = number * RESULT_BYTES % (len(prose) - RESULT_BYTES)
                text = prose[at : at + RESULT_BYTES]
                if how != "state":
                    text = run.call("tool", partial(str, text), key=str(number), args={"n": number})
                if how != "journal":
                    run.append({"role": "tool", "content": text})
                run.step()
        return file.stat().st_size
