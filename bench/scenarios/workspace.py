"""Files of a workspace beside git: the cost of a capture, and of a day of an agent's edits. By processor time."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import statistics
from hashlib import sha256
from typing import TYPE_CHECKING

import backstay
from bench.report import Figure
from bench.trees import make_tree, shadow_git, texts_of, took, took_child

if TYPE_CHECKING:
    from pathlib import Path

    from bench.measuring import Settings

FILES, QUICK_FILES = 10_000, 1_000
LARGE_FILES, QUICK_LARGE_FILES = 100_000, 2_000
STEPS, QUICK_STEPS = 200, 20
TIMES = 9
_BUNDLED = 1_000
_ROWS, _ROW_BYTES = 12_000, 180
_IDLE, _IDLE_LARGE = 1.3, 1.6


def workspace(settings: Settings) -> list[Figure]:
    """A tree of small files: captured first, unchanged, with one change, in the steps of a run, and over a day."""
    count = settings.scaled(FILES, QUICK_FILES)
    with settings.folder() as folder:
        work = make_tree(folder / "work", count)
        return [
            *_captures("workspace", folder, work, settings.rounds, idle_must=_IDLE),
            *_steps(folder, work),
            *_fork(folder, work, settings.rounds),
            *_day(folder, work, settings.scaled(STEPS, QUICK_STEPS)),
        ]


def large_workspace(settings: Settings) -> list[Figure]:
    """The same with 100,000 files, and ten of them put back."""
    count = settings.scaled(LARGE_FILES, QUICK_LARGE_FILES)
    with settings.folder() as folder:
        work = make_tree(folder / "work", count)
        return [
            *_captures("workspace-large", folder, work, min(settings.rounds, 3), idle_must=_IDLE_LARGE),
            *_restore(folder, work),
        ]


def _captures(name: str, folder: Path, work: Path, rounds: int, *, idle_must: float) -> list[Figure]:
    """First captures, each by a store of its own; then captures of a folder that does not change, or in one file."""
    first: list[float] = []
    git_first: list[float] = []
    stored = packed = 0
    for number in range(rounds):
        shutil.rmtree(work / ".backstay", ignore_errors=True)
        with backstay.open(folder / f"first-{number}.db") as store:
            session = store.session("s", workspace=work)
            first.append(took(lambda session=session: session.commit({})))  # type: ignore[misc]
            stored = store.stats().stored_bytes
        shadow = shadow_git(folder, work)
        if shadow is not None:
            git_first.append(shadow.capture())
            packed = shadow.objects_bytes()
    figures = [Figure(name, "first capture", statistics.median(first) * 1e3, unit="ms")]
    if git_first:
        share = statistics.median(first) / statistics.median(git_first)
        figures.append(Figure(name, "the same / git add + write-tree", share, must=0.4))
        figures.append(Figure(name, "its bytes / git's, packed objects", stored / packed, must=1.0))
    with backstay.open(folder / f"first-{rounds - 1}.db") as store:
        session = store.session("s", workspace=work)
        session.commit({})
        idle, git_idle = [], []
        for n in range(TIMES):
            idle.append(took(lambda n=n: session.commit({"n": n})))  # type: ignore[misc]
            if shadow is not None:
                git_idle.append(shadow.capture())
        figures.append(Figure(name, "commit with nothing changed", statistics.median(idle) * 1e3, unit="ms"))
        if git_idle:
            share = statistics.median(idle) / statistics.median(git_idle)
            figures.append(Figure(name, "the same / git add + write-tree", share, must=idle_must))
        paths = texts_of(work)[:: max(1, TIMES)][:TIMES]
        before = store.stats().stored_bytes
        for number, path in enumerate(paths):
            path.write_text(path.read_text() + f"\n# edit {number}\n")
            session.commit({"edit": number})
        weight = (store.stats().stored_bytes - before) / len(paths)
        figures.append(Figure(name, "1 changed file, stored", weight, unit="B", must=1024))
    return figures


def _steps(folder: Path, work: Path) -> list[Figure]:
    """A step of a run that edits one file, with a workspace and without, turn about."""
    paths = texts_of(work)
    taken: dict[str, list[float]] = {"with": [], "without": []}
    with (
        backstay.open(folder / "steps.db") as store,
        store.run("with", workspace=work) as with_files,
        store.run("without") as without,
    ):
        for number in range(TIMES + 2):
            for which, run in (("with", with_files), ("without", without)):
                path = paths[number]

                def edit(path: Path = path, number: int = number) -> None:
                    path.write_text(path.read_text() + f"\nstep {number}\n")

                def step(run: backstay.Run = run, edit: object = edit) -> None:
                    run.call("edit", edit)  # type: ignore[call-overload]
                    run.step()

                taken[which].append(took(step))
    extra = statistics.median(taken["with"][2:]) - statistics.median(taken["without"][2:])
    return [Figure("workspace", "a step of one edited file, on top", extra * 1e3, unit="ms", must=75.0)]


def _fork(folder: Path, work: Path, rounds: int) -> list[Figure]:
    """A fork into a folder of its own, and `cp -a` of the same folder, turn about."""
    ours: list[float] = []
    theirs: list[float] = []
    with backstay.open(folder / "fork.db") as store:
        session = store.session("s", workspace=work)
        session.commit({})
        for number in range(rounds):
            into, copy = folder / f"fork-{number}", folder / f"copy-{number}"
            ours.append(took(lambda into=into, n=number: session.fork("main", f"b{n}", into=into)))  # type: ignore[misc]
            theirs.append(took_child("cp", "-a", str(work), str(copy)))
            shutil.rmtree(into)
            shutil.rmtree(copy)
    ratio = statistics.median(ours) / statistics.median(theirs)
    return [Figure("workspace", "fork into a folder / cp -a", ratio, must=2.0)]


def _restore(folder: Path, work: Path) -> list[Figure]:
    """Ten files put back among all, less the scan that a capture of the unchanged folder takes."""
    paths = texts_of(work)[:10]
    with backstay.open(folder / "restore.db") as store:
        session = store.session("s", workspace=work)
        session.commit({})
        idle, back = [], []
        for number in range(5):
            idle.append(took(lambda n=number: session.commit({"n": n})))  # type: ignore[misc]
            point = session.commit({"before": number})
            for path in paths:
                path.write_text(path.read_text() + f"\n# wrong {number}\n")
            session.commit({"after": number})
            back.append(took(lambda point=point: session.restore(point, files=True, keep_mine=False)))  # type: ignore[misc]
    extra = statistics.median(back) - statistics.median(idle)
    return [Figure("workspace-large", "10 files put back, less a scan", extra * 1e3, unit="ms", must=60.0)]


def _day(folder: Path, work: Path, steps: int) -> list[Figure]:
    """1 to 3 edits a step, a growing log, a database of 2.4 MB, a bundle that is built again, a formatter at times."""
    shadow = shadow_git(folder, work)
    shutil.rmtree(work / ".backstay", ignore_errors=True)
    rng = random.Random(5)
    paths = texts_of(work)
    copies = 0
    tree = {os.fsencode(path.relative_to(work)): _digest(path) for path in paths}
    changed: list[tuple[str, dict[bytes, bytes]]] = []  # by checkpoint: what its step changed
    with backstay.open(folder / "day.db") as store, sqlite3.connect(work / "app.db") as database:
        database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT)")
        rows = [(n, "".join(rng.choices("abcdefghij ", k=_ROW_BYTES))) for n in range(_ROWS)]
        database.executemany("INSERT INTO events VALUES (?, ?)", rows)
        database.commit()
        session = store.session("s", workspace=work)
        session.commit({})
        if shadow is not None:
            shadow.capture()
        before, git_before = store.stats().stored_bytes, 0 if shadow is None else shadow.blocks_bytes()
        for step in range(steps):
            edited = _one_step(work, paths, rng, step, database)
            made = session.commit({"step": step})
            changed.append((made.id, {os.fsencode(path.relative_to(work)): _digest(path) for path in edited}))
            copies += sum(path.stat().st_size for path in edited)
            if shadow is not None:
                shadow.capture()
        grown = store.stats().stored_bytes - before
        whole = _whole_trees(session, tree, changed)
    detail: dict[str, object] = {"full copies of what changed, MB": copies / 1e6}
    name = f"{steps} steps of an agent, stored"
    figures = [
        Figure("workspace", name, grown / 1e6, unit="MB", must=12.0, detail=detail),
        Figure("workspace", "trees that come back byte for byte", whole / steps, must=1.0, sense="at least"),
    ]
    if shadow is not None:
        theirs = shadow.blocks_bytes() - git_before
        figures.append(Figure("workspace", "a shadow git over the same steps", theirs / 1e6, unit="MB"))
        figures.append(Figure("workspace", "ours / the shadow git's", grown / theirs, must=0.05))
    return figures


def _one_step(work: Path, paths: list[Path], rng: random.Random, step: int, database: sqlite3.Connection) -> list[Path]:
    edited = rng.sample(paths, rng.randrange(1, 4))
    for path in edited:
        path.write_text(path.read_text() + f"\nstep {step} {rng.random()}\n")
    if step % 20 == 19:
        formatted = rng.sample(paths, min(100, len(paths)))
        for path in formatted:
            path.write_text(path.read_text().replace(" ", "  ", 20))
        edited += formatted
    with (work / "agent.log").open("a") as log:
        log.write("".join(f"{step} {rng.random()}\n" for _ in range(200)))
    for _ in range(20):
        body = "".join(rng.choices("abcdefghij ", k=_ROW_BYTES))
        database.execute("UPDATE events SET body = ? WHERE id = ?", (body, rng.randrange(_ROWS)))
    database.commit()
    (work / "bundle.js").write_text("\n".join(path.read_text() for path in paths[:_BUNDLED]))
    return [*edited, work / "agent.log", work / "app.db", work / "bundle.js"]


def _whole_trees(
    session: backstay.Session, tree: dict[bytes, bytes], changed: list[tuple[str, dict[bytes, bytes]]]
) -> int:
    """How many checkpoints have every path as it was; contents are read where a step changed them."""
    whole = 0
    for id_, step in changed:
        tree |= step
        files = session.checkpoint(id_).files
        if files is None:
            continue
        found = {os.fsencode(file.path): file for file in files.list() if file.kind == "file"}
        listed = {path: bytes.fromhex(file.digest or "") for path, file in found.items()}
        whole += listed == tree and all(sha256(found[path].read()).digest() == digest for path, digest in step.items())
    return whole


def _digest(path: Path) -> bytes:
    return sha256(path.read_bytes()).digest()
