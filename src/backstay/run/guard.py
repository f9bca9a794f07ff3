"""The loop guard of one run: what it has seen, its warning to the loop, and whether it wants the run to stop."""

from __future__ import annotations

from collections.abc import Callable

from backstay.loops import LoopGuard, Watch

Progress = Callable[[], tuple[int, float]]


class GuardedLoop:
    """A LoopGuard at work. `progress` gives the iterations and the cost since the run began to count."""

    def __init__(self, guard: LoopGuard | None, progress: Progress) -> None:
        self._guard = guard
        self._progress = progress
        self.watch = Watch()
        self.warning: str | None = None

    def answered(self, said: str) -> None:
        """The loop was given this."""
        if self._guard is not None:
            self.watch = self._guard.seen(self.watch, said)

    def succeeded(self) -> None:
        """A call came to a good end."""
        if self._guard is not None:
            self.watch = self._guard.succeeded(self.watch)

    def failed(self) -> None:
        """A call failed."""
        if self._guard is not None:
            self.watch = self._guard.failed(self.watch)

    @property
    def looks(self) -> bool:
        """True if there is a guard."""
        return self._guard is not None

    def heed(self) -> str | None:
        """Let the guard look at what was seen: the reason to stop, if it has one."""
        if self._guard is None:
            return None
        iteration, cost = self._progress()
        verdict = self._guard.verdict(self.watch, iteration=iteration, cost=cost)
        self.warning = verdict.warning
        return verdict.halt
