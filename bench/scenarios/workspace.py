"""Files of a workspace beside git: the cost of a capture, and of a day of an agent's edits. By processor time."""

from __future__ import annotations

import os
import random
import resource
import shutil
import statistics
import subprocess
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

import backstay
from bench.report import Figure

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measuring import Settings

FILES, QUICK_FILES = 10_000, 1_000
STEPS, QUICK_STEPS = 200, 20
TIMES = 9
_WORDS = 4_000


def workspace(settings: Settings) -> list[Figure]:
    """A tree of small files: captured first, unchanged, with one change, and over a day of steps."""
    count, steps = settings.scaled(FILES, QUICK_FILES), settings.scaled(STEPS, QUICK_STEPS)
    with settings.folder() as folder:
        work = folder / "work"
        _make_tree(work, count)
        shadow = _Shadow(folder, work) if shutil.which("git") else None
        figures: list[Figure] = []
        with backstay.open(folder / "store.db") as store:
            session = store.session("s", workspace=backstay.Workspace(work, exclude=["*.old"]))
            ours = _took(lambda: session.commit({"n": 0}))
            stored = store.stats().stored_bytes
            figures.append(Figure("workspace", f"first capture of {count:,} files", ours * 1e3, unit="ms"))
            if shadow is not None:
                theirs = shadow.capture()
                figures.append(Figure("workspace", "the same / git add + write-tree", ours / theirs, must=0.4))
                packed = shadow.packed_bytes()
                figures.append(Figure("workspace", "its bytes / git's, packed objects", stored / packed, must=1.0))
            idle, git_idle = [], []
            for n in range(TIMES):
                idle.append(_took(lambda n=n: session.commit({"n": n})))  # type: ignore[misc]
                if shadow is not None:
                    git_idle.append(shadow.capture())
            figures.append(Figure("workspace", "commit with nothing changed", statistics.median(idle) * 1e3, unit="ms"))
            if git_idle:
                ratio = statistics.median(idle) / statistics.median(git_idle)
                figures.append(Figure("workspace", "the same / git add + write-tree", ratio, must=1.3))
            figures += _one_change(store, session, work)
            figures += _day(store, session, work, steps, shadow)
        return figures


def _one_change(store: backstay.Store, session: backstay.Session, work: Path) -> list[Figure]:
    paths = sorted(work.rglob("*.py"))[:: max(1, TIMES)][:TIMES]
    before = _payload(store)
    for number, path in enumerate(paths):
        path.write_text(path.read_text() + f"\n# edit {number}\n")
        session.commit({"edit": number})
    weight = (_payload(store) - before) / len(paths)
    return [Figure("workspace", "1 changed file, stored", weight, unit="B", must=1024)]


def _day(
    store: backstay.Store, session: backstay.Session, work: Path, steps: int, shadow: _Shadow | None
) -> list[Figure]:
    """1 to 3 edits a step, a growing log, a rewritten bundle, a formatter over 100 files every 20th step."""
    rng = random.Random(5)
    paths = sorted(work.rglob("*.py"))
    before, git_before = _payload(store), shadow.loose_bytes() if shadow is not None else 0
    for step in range(steps):
        for path in rng.sample(paths, rng.randrange(1, 4)):
            path.write_text(path.read_text() + f"\nstep {step} {rng.random()}\n")
        with (work / "agent.log").open("a") as log:
            log.write("".join(f"{step} {rng.random()}\n" for _ in range(200)))
        (work / "bundle.js").write_text(" ".join(f"v{step}{rng.randrange(_WORDS)}" for _ in range(8_000)))
        if step % 20 == 19:
            for path in rng.sample(paths, min(100, len(paths))):
                path.write_text(path.read_text().replace(" ", "  ", 20))
        session.commit({"step": step})
        if shadow is not None:
            shadow.capture()
    grown = _payload(store) - before
    figures = [Figure("workspace", f"{steps} steps of an agent, stored", grown / 1e6, unit="MB", must=12.0)]
    if shadow is not None:
        share = grown / max(1, shadow.loose_bytes() - git_before)
        figures.append(Figure("workspace", "the same / a shadow git", share, must=0.05))
    return figures


class _Shadow:
    """A git folder beside the work tree, as coding agents keep one."""

    def __init__(self, folder: Path, work: Path) -> None:
        self._git = folder / "shadow.git"
        self._env = {**os.environ, "GIT_DIR": str(self._git), "GIT_WORK_TREE": str(work)}
        self._run("init", "-q")
        (self._git / "info" / "exclude").write_text(".backstay\n")

    def _run(self, *words: str) -> None:
        subprocess.run(["git", *words], env=self._env, check=True, capture_output=True)

    def capture(self) -> float:
        """Processor seconds of one capture."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._run("add", "-A")
        self._run("write-tree")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def loose_bytes(self) -> int:
        """Its objects as they lie on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self._git.rglob("*") if path.is_file())

    def packed_bytes(self) -> int:
        """The lengths of its objects, compressed each by itself."""
        return sum(path.stat().st_size for path in (self._git / "objects").rglob("*") if path.is_file())


def _payload(store: backstay.Store) -> int:
    """What a store has written: pages in use, not the file as it was grown."""
    return store.stats().stored_bytes


def _took(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def _make_tree(work: Path, count: int) -> None:
    rng = random.Random(1)
    words = [f"w{rng.randrange(_WORDS)}" for _ in range(5_000)]
    for number in range(count):
        folder = work / f"pkg{number % 77}" / f"m{number // 77 % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        length = int(rng.expovariate(1 / 1600)) + 20
        (folder / f"f{number}.py").write_text(" ".join(rng.choice(words) for _ in range(length // 5)))
