"""A progress bar on stderr: only at a terminal, only when something takes longer than a second."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

_PATIENCE_S = 1.0


class Bar:
    """Given as `progress=` to what takes long; draws nothing where there is no terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = time.monotonic()
        self._drawn: Any = None
        self._task: Any = None
        self._watched = sys.stderr is not None and sys.stderr.isatty()

    def __call__(self, done: int, total: int | None) -> None:
        """So much of so much is done."""
        if not self._watched or (self._drawn is None and time.monotonic() - self._since < _PATIENCE_S):
            return
        if self._drawn is None:
            from rich.console import Console
            from rich.progress import Progress

            self._drawn = Progress(console=Console(stderr=True), transient=True)
            self._drawn.start()
            self._task = self._drawn.add_task(self._what, total=total)
        self._drawn.update(self._task, completed=done, total=total)

    def stop(self) -> None:
        """Draw no more: something else is about to be written."""
        self._watched = False
        if self._drawn is not None:
            self._drawn.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
