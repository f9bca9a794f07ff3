"""The step that broke something: checkpoints between a good and a bad one are tried, half of what is left each time.

One folder is made and changed in place between tries, only where two checkpoints differ; what a test leaves behind goes
again. A test says good by 0, skip by 125, bad by any other code up to 127, as `git bisect run` has it. Anything beyond
that, or a signal, ends the search.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from backstay.errors import InvalidInputError, UnavailableError
from backstay.listing import EMPTY, Listing, PlaceStep, difference
from backstay.model import Checkpoint
from backstay.port import CheckpointRow
from backstay.store.file_contents import CheckpointFiles, GroupReader
from backstay.store.file_export import refuse_forgotten
from backstay.store.history import History
from backstay.store.refs import readable
from backstay.workspace.capturing import Capturer
from backstay.workspace.open_root import OpenRoot
from backstay.workspace.placement import Placement
from backstay.workspace.policy import Workspace

GOOD, SKIP, MOST = 0, 125, 127
_PAGE_ROWS = 100

Told = Callable[[Checkpoint, str], None]  # a checkpoint, and whether it was good, bad or skipped


class _Step(NamedTuple):
    """A checkpoint whose files differ from those before it."""

    row: CheckpointRow
    files: CheckpointFiles


def bisect(
    history: History,
    good: CheckpointRow,
    bad: CheckpointRow,
    test: Sequence[str],
    *,
    into: str | None = None,
    links: Iterable[tuple[str, str]] = (),
    told: Told | None = None,
) -> Checkpoint:
    """The first checkpoint on the way from a good one to a bad one whose files fail the test.

    `into` is a folder to work in, which stays; `links` are names in it and where they lead.
    """
    if not test:
        raise InvalidInputError("a bisection needs a test: a command and its arguments")
    steps = _steps(history, good, bad)
    with _folder(into) as folder:
        tree = _TriedFolder(history, folder, dict(links))
        search = _Search(history, tree, list(test), told)
        return search.run(steps)


@contextlib.contextmanager
def _folder(into: str | None) -> Iterator[str]:
    if into is None:
        with tempfile.TemporaryDirectory(prefix="backstay-bisect-", ignore_cleanup_errors=True) as folder:
            yield os.path.realpath(folder)
        return
    target = Path(into)
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise InvalidInputError(f"{into} is not empty", hint="name a folder that is new or empty")
    yield os.path.realpath(target)


def _steps(history: History, good: CheckpointRow, bad: CheckpointRow) -> list[_Step]:
    """From the good checkpoint to the bad one, oldest first, those between only where files changed."""
    line: list[CheckpointRow] = []
    at: int | None = bad.sequence
    while at is not None and (not line or line[-1].id != good.id):
        page = history.backend.ancestors(history.id, at, limit=_PAGE_ROWS)
        for found in page:
            line.append(readable(history.id, found))
            if line[-1].id == good.id:
                break
        at = line[-1].parent if page else None
    if not line or line[-1].id != good.id or len(line) == 1:
        message = f"session {history.id!r}: {good.id[:12]} is not among the checkpoints that led to {bad.id[:12]}"
        raise InvalidInputError(message, hint="the good one comes before the bad one, on one line")
    steps: list[_Step] = []
    for row in reversed(line):
        files = history.files_of(row)
        if files is None:
            if row.id in (good.id, bad.id):
                raise InvalidInputError(f"checkpoint {row.id[:12]} has no files to test")
            continue
        if not steps or row.id == bad.id or difference(steps[-1].files.listing, files.listing):
            steps.append(_Step(row, files))
    return steps


class _Search:
    """The search itself."""

    def __init__(self, history: History, tree: _TriedFolder, test: list[str], told: Told | None) -> None:
        self._history = history
        self._tree = tree
        self._test = test
        self._told = told

    def run(self, steps: list[_Step]) -> Checkpoint:
        """Both ends first, then the middle of what is left."""
        low, high = 0, len(steps) - 1
        for at, wanted in ((low, "good"), (high, "bad")):
            refuse_forgotten(steps[at].files.forgotten, f"{steps[at].row.id[:12]} cannot be tried")
            if self._try(steps[at]) != wanted:
                message = f"the test does not find {steps[at].row.id[:12]} {wanted}"
                raise InvalidInputError(message, hint="run it on both ends by hand: it must tell them apart")
        skipped: set[int] = set()
        while True:
            open_ = [at for at in range(low + 1, high) if at not in skipped]
            if not open_:
                break
            at = open_[len(open_) // 2]
            verdict = "skip" if steps[at].files.forgotten else self._try(steps[at])
            if verdict == "good":
                low = at
            elif verdict == "bad":
                high = at
            else:
                skipped.add(at)
        if high - low > 1:
            left = ", ".join(steps[at].row.id[:8] for at in range(low + 1, high + 1))
            message = f"the steps between could not be tested; one of these is the first bad one: {left}"
            raise InvalidInputError(message, hint="make the test work on one of them")
        return self._history.checkpoint(steps[high].row)

    def _try(self, step: _Step) -> str:
        self._tree.become(step.files)
        try:
            code = subprocess.run(self._test, cwd=self._tree.path, check=False, stdin=subprocess.DEVNULL).returncode  # noqa: S603
        except OSError as error:
            message = f"the test cannot be run: {error}"
            raise InvalidInputError(message) from error
        if code < 0 or code > MOST:
            message = f"the test ended with {code} at {step.row.id[:12]}: the search ends here"
            raise UnavailableError(message, hint="codes from 1 to 127 say bad, 125 says skip")
        verdict = "good" if code == GOOD else "skip" if code == SKIP else "bad"
        if self._told is not None:
            self._told(self._history.checkpoint(step.row), verdict)
        return verdict


class _TriedFolder:
    """One folder that becomes one checkpoint's files after another's."""

    def __init__(self, history: History, path: str, links: dict[str, str]) -> None:
        self.path = path
        self._history = history
        self._links = links
        # Also what is usually left out: a stale cache of an earlier try would tell of other files than these.
        workspace = Workspace(path, include=("*",), ignore=(), max_file="1GiB", secrets="capture")
        self._capturer = Capturer(workspace)
        self._made: Listing | None = None

    def become(self, files: CheckpointFiles) -> None:
        """Have exactly these files, and the links."""
        if self._made is None or not self._change(files):
            self._make(files)
        self._made = files.listing

    def _make(self, files: CheckpointFiles) -> None:
        for entry in Path(self.path).iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        files.export_to(self.path)
        for name, target in self._links.items():
            Path(self.path, name).symlink_to(target)

    def _change(self, files: CheckpointFiles) -> bool:
        """Only where something differs; False if that cannot be done."""
        fetch = GroupReader(self._history.backend)
        base = EMPTY if self._made is None else self._made
        disk = self._capturer.capture(base, fetch=fetch, emit=lambda _digest, _contents: None).listing
        steps = [
            PlaceStep(change.path, change.before, change.after)
            for change in difference(disk, files.listing).changes
            if change.path and (change.after is None or change.after.has_contents)
            if os.fsdecode(change.path) not in self._links
        ]

        def contents(step: PlaceStep) -> Iterator[bytes]:
            assert step.after is not None  # noqa: S101 - only what comes is staged
            yield files.contents(step.after)

        with OpenRoot(self.path) as root, root.locked():
            placement = Placement(root, "bisect", steps)
            placement.stage(contents)
            placed = placement.apply()
            placement.clear()
        return not placed.kept
