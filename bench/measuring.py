"""How figures are taken: interleaved, by the median, on real files.

One step of each contender in turn, in an order shuffled anew (and seeded) for
each step, so that what disturbs the machine disturbs all alike and nobody always
runs in another's wake. The garbage collector runs between steps, never in one.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import statistics
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bench import conversations
from bench.floor import Floor
from bench.peer import Peer
from bench.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

COLLECT_EVERY = 100
IN_MEMORY = {"tmpfs", "ramfs"}


class Contender(Protocol):
    """What takes part in a run: one file, one way to save a state."""

    name: str
    path: Path

    def open(self) -> None: ...
    def save(self, session: str, state: dict[str, Any], new: bytes, /) -> None: ...
    def close(self) -> None: ...


class Step(NamedTuple):
    """One checkpoint to be: the state, and the bytes in it that the step before did not have."""

    session: str
    state: dict[str, Any]
    new: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """What one contender took: a duration per step, and the file at rest."""

    times_ns: list[int]
    stored_bytes: int

    def median_us(self, start: int = 0, stop: int | None = None) -> float:
        return statistics.median(self.times_ns[start:stop]) / 1e3

    @property
    def per_step_bytes(self) -> float:
        return self.stored_bytes / len(self.times_ns)


@dataclass(slots=True)
class Settings:
    """One run of the bench: where, with what, how long."""

    root: Path
    data: Path | None = None
    quick: bool = False
    rounds: int = 5
    with_peer: bool = True
    memo: dict[str, Any] = field(default_factory=dict)

    def scaled(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def messages(self, count: int, *, seed: int = 7) -> list[conversations.Message]:
        """Fresh copies each time: a scenario may change them in place."""
        if self.data is not None:
            return conversations.from_file(self.data, count)
        return conversations.generated(count, seed=seed)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder on the measured disk, removed afterwards."""
        path = Path(tempfile.mkdtemp(prefix="run-", dir=self.root))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def contenders(self, folder: Path) -> list[Contender]:
        return [Subject(folder), Floor(folder), *([Peer(folder)] if self.with_peer else [])]


def prepare_root(path: Path) -> Path:
    """The folder for the files of a run; git never sees what is in it."""
    path.mkdir(parents=True, exist_ok=True)
    ignore = path / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return path.resolve()


def file_system(path: Path) -> str:
    """The type of file system under a path, or 'unknown'."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    kinds = {fields[1]: fields[2] for fields in map(str.split, mounts.read_text().splitlines())}
    return next((kinds[str(p)] for p in (path, *path.parents) if str(p) in kinds), "unknown")


def interleave(contenders: Sequence[Contender], steps: Iterable[Step], *, seed: int = 1) -> dict[str, Taken]:
    """Give every step to every contender, then close them and weigh their files."""
    order, rng = list(contenders), random.Random(seed)
    times: dict[str, list[int]] = {contender.name: [] for contender in order}
    for contender in order:
        contender.open()
    try:
        with collector_paused():
            for number, (session, state, new) in enumerate(steps, 1):
                rng.shuffle(order)
                for contender in order:
                    begun = perf_counter_ns()
                    contender.save(session, state, new)
                    times[contender.name].append(perf_counter_ns() - begun)
                if number % COLLECT_EVERY == 0:
                    gc.collect()
    finally:
        for contender in order:
            contender.close()
    return {c.name: Taken(times[c.name], stored_bytes(c.path)) for c in order}


@contextmanager
def collector_paused() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stored_bytes(path: Path) -> int:
    """The database file of a closed store: closing moved the WAL's contents into it."""
    return os.stat(path).st_size  # noqa: PTH116 - the plain call, so that nothing is cached or added


def alternate(subjects: Mapping[str, Callable[[], object]], times: int) -> dict[str, list[int]]:
    """Call each in turn, `times` times over, after one call that does not count; durations in ns."""
    taken: dict[str, list[int]] = {name: [] for name in subjects}
    for call in subjects.values():
        call()
    with collector_paused():
        for _ in range(times):
            for name, call in subjects.items():
                begun = perf_counter_ns()
                call()
                taken[name].append(perf_counter_ns() - begun)
    return taken
