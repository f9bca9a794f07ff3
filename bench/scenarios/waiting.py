"""Waiting: how soon the few ready sessions are found among many that wait, and how soon a worker goes on."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from time import process_time, time
from typing import TYPE_CHECKING

import backstay
from backstay.port import Ask, Batch, LaneQuery, LaneRow, SessionRow, View
from backstay.port.rows import ENTERED, MARK_READY, LaneWait
from bench.report import Figure

if TYPE_CHECKING:
    from backstay.face import Store
    from bench.measuring import Settings

SESSIONS, QUICK_SESSIONS = 10_000, 500
READY = 3
LOOKS = 30
ANSWERS, QUICK_ANSWERS = 9, 3
FOUND_MS, RESUMED_MS = 20.0, 500.0

WORKER = """
import sys, time, backstay
store = backstay.open(sys.argv[1])
def handler(run):
    run.wait("ok")
    run.call("resumed", lambda: print(time.time(), flush=True), args={})
    raise KeyboardInterrupt
print("ready", flush=True)
try:
    backstay.recover(store, handler, wait_s=60.0)
except KeyboardInterrupt:
    pass
"""


def waiting(settings: Settings) -> list[Figure]:
    """Many sessions wait and three are ready; and one answer after the other, to a worker that waits."""
    count = settings.scaled(SESSIONS, QUICK_SESSIONS)
    figures = []
    for kind in ("sqlite", "files"):
        with settings.folder() as folder:
            url = str(folder / "many.db") if kind == "sqlite" else f"file:{folder / 'many'}"
            with backstay.open(url, durability="relaxed") as store:
                figures.append(_found(store, kind, count))
    with settings.folder() as folder:
        took = [_resumed(folder) * 1e3 for _ in range(settings.scaled(ANSWERS, QUICK_ANSWERS))]
    name = "from an answer to the resumed call, a worker waiting (SQLite)"
    detail: dict[str, object] = {"took_ms": took}
    figures.append(Figure("waiting", name, statistics.median(took), unit="ms", must=RESUMED_MS, detail=detail))
    return figures


def _found(store: Store, kind: str, count: int) -> Figure:
    for number in range(count):
        _wait(store, number, ready=number % (count // READY) == 1)
    wanted = LaneQuery(ENTERED | MARK_READY, due=True)
    assert len(store.backend.lanes(wanted)) == READY
    taken = []
    for _ in range(LOOKS):
        began = process_time()
        store.backend.lanes(wanted)
        taken.append((process_time() - began) * 1e3)
    name = f"{READY} ready of {count:,} waiting found ({kind}, processor time)"
    return Figure("waiting", name, statistics.median(taken), unit="ms", must=FOUND_MS)


def _wait(store: Store, number: int, *, ready: bool) -> None:
    """A session as a run leaves it that waits; written as rows, because ten thousand runs would take long."""

    def decide(view: View) -> Batch:
        due_us = view.wall_us + 3_600_000_000 if number % 2 else None
        wait = LaneWait("for an answer to 'ok'", due_us, ready)
        line = SessionRow(f"s{number}", number.to_bytes(16), 1, 1, touched=view.fresh, lanes=1, status="waiting")
        return Batch((line, LaneRow("main", status="waiting", run=view.fresh, unfinished=True, wait=wait)))

    store.backend.write(Ask(f"s{number}"), decide)


def _resumed(folder: Path) -> float:
    """Seconds from an answer to the call behind the wait, in another process."""
    file = folder / "one.db"
    with backstay.open(file) as store:
        with store.run("t") as run:
            run.wait("ok")
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(file)], stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        began = time()
        store.session("t").answer("ok", True)
        took = float(worker.stdout.readline()) - began
        worker.communicate()
        store.delete("t")
    return took
