"""The command line: how long somebody waits for the first screen, beside an interpreter that does nothing."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import backstay
from bench.report import Figure

if TYPE_CHECKING:
    from bench.measuring import Settings

SESSIONS, QUICK_SESSIONS = 10_000, 500
CHECKPOINTS, QUICK_CHECKPOINTS = 10_000, 500
WINDOW = 200
SCREEN_LINES = 24
TIMES, QUICK_TIMES = 21, 7


def cli(settings: Settings) -> list[Figure]:
    """`python -c pass`, the help, and the first screens of a long list and a long history, in turn."""
    sessions = settings.scaled(SESSIONS, QUICK_SESSIONS)
    checkpoints = settings.scaled(CHECKPOINTS, QUICK_CHECKPOINTS)
    script = Path(sys.executable).with_name("backstay")
    backstay_ = [str(script)] if script.exists() else [sys.executable, "-m", "backstay"]
    with settings.folder() as folder:
        _fill(folder, sessions, checkpoints)
        commands = {
            "pass": ([sys.executable, "-c", "pass"], 0),
            "help": ([*backstay_, "--help"], 0),
            "sessions": ([*backstay_, "sessions", "--store", "many.db"], SCREEN_LINES),
            "log": ([*backstay_, "log", "long", "--store", "long.db"], SCREEN_LINES),
            "graph": ([*backstay_, "log", "long", "--graph", "--all", "--store", "long.db"], SCREEN_LINES),
        }
        for command, lines in commands.values():
            _waited(command, lines, folder)  # the first time also compiles
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(settings.scaled(TIMES, QUICK_TIMES)):
            for name, (command, lines) in commands.items():
                taken[name].append(_waited(command, lines, folder))
    median = {name: statistics.median(times) * 1e3 for name, times in taken.items()}
    ratio = {name: median[name] / median["pass"] for name in median}
    return [
        Figure("cli", "backstay --help / python -c pass", ratio["help"], must=6.0, detail={"median_ms": median}),
        Figure("cli", f"first screen of {sessions:,} sessions / pass", ratio["sessions"], must=12.0),
        Figure("cli", f"first screen of {checkpoints:,} checkpoints / pass", ratio["log"], must=12.0),
        Figure("cli", "the same as a graph / pass", ratio["graph"], must=12.0),
        Figure("cli", "python -c pass", median["pass"], unit="ms"),
    ]


def _fill(folder: Path, sessions: int, checkpoints: int) -> None:
    used = backstay.Usage(100, 20, 0.001)
    with backstay.open(folder / "many.db", durability="relaxed") as store:
        for number in range(sessions):
            state = {"messages": [{"role": "user", "content": f"question {number}"}]}
            store.session(f"session-{number:05}", agent="support").commit(state, step=1, usage=used)
    with backstay.open(folder / "long.db", durability="relaxed") as store:
        session = store.session("long", agent="support")
        messages: list[dict[str, str]] = []
        for number in range(checkpoints):
            messages = [*messages[-WINDOW:], {"role": "user", "content": f"message {number}"}]
            session.commit({"messages": messages}, step=number, usage=used)


def _waited(command: list[str], lines: int, folder: Path) -> float:
    """Seconds until so many lines have come; with 0, until the end."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = perf_counter()
    with subprocess.Popen(
        command, cwd=folder, env=environment | {"COLUMNS": "80"}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        if lines:
            for _ in range(lines):
                assert process.stdout.readline(), f"{command} ended early"
            took = perf_counter() - begun
            process.stdout.close()
        else:
            process.stdout.read()
            process.wait()
            took = perf_counter() - begun
    return took
