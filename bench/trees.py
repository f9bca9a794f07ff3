"""Folders to capture, a git beside them, and how much of a processor each takes."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
from time import process_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WORDS = 4_000
_NAMES = {"GIT_AUTHOR_NAME": "b", "GIT_AUTHOR_EMAIL": "b@b", "GIT_COMMITTER_NAME": "b", "GIT_COMMITTER_EMAIL": "b@b"}


def make_tree(work: Path, count: int) -> Path:
    """Small texts, 1.6 KB on average, 13 to a folder, ten folders to a folder."""
    rng = random.Random(1)
    words = [f"w{rng.randrange(WORDS)}" for _ in range(5_000)]
    folders = max(1, count // 13)
    for number in range(count):
        folder = work / f"pkg{number % folders // 10}" / f"m{number % folders % 10}"
        if number < folders:
            folder.mkdir(parents=True, exist_ok=True)
        length = int(rng.expovariate(1 / 1600)) + 20
        (folder / f"f{number}.py").write_text(" ".join(rng.choices(words, k=length // 5)))
    return work


def texts_of(work: Path) -> list[Path]:
    """The files of a tree that an agent edits."""
    return sorted(work.rglob("*.py"))


def took(work: Callable[[], object]) -> float:
    """Processor seconds of something that this process does."""
    begun = process_time()
    work()
    return process_time() - begun


def took_child(*words: str, env: dict[str, str] | None = None) -> float:
    """Processor seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class ShadowGit:
    """A git folder beside the work tree, as coding agents keep one."""

    def __init__(self, folder: Path, work: Path) -> None:
        self._git = folder / "shadow.git"
        shutil.rmtree(self._git, ignore_errors=True)
        self._env = {**os.environ, **_NAMES, "GIT_DIR": str(self._git), "GIT_WORK_TREE": str(work)}
        took_child("git", "init", "-q", env=self._env)
        (self._git / "info" / "exclude").write_text(".backstay\n")

    def capture(self) -> float:
        """Processor seconds of one capture."""
        return took_child("git", "add", "-A", env=self._env) + took_child("git", "write-tree", env=self._env)

    def blocks_bytes(self) -> int:
        """Its objects as they take room on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self._git.rglob("*") if path.is_file())

    def objects_bytes(self) -> int:
        """The lengths of its objects, compressed each by itself."""
        return sum(path.stat().st_size for path in (self._git / "objects").rglob("*") if path.is_file())


def shadow_git(folder: Path, work: Path) -> ShadowGit | None:
    """A git beside a work tree; None where there is no git."""
    return ShadowGit(folder, work) if shutil.which("git") else None
