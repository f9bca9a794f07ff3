"""How a run ends by a word of its own or of another process: what is raised, and how a `with` recognises it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backstay.errors import InDoubtError

if TYPE_CHECKING:
    from backstay.run import Run

_REASON_CHARS = 1000


class RunEnded(BaseException):
    """Raised by `run.halt`, `run.fail` and `run.pause`, and swallowed by the `with` of their run."""

    def __init__(self, run: Run, status: str, reason: str) -> None:
        super().__init__(f"the run has {status}: {reason}")
        self.run, self.status, self.reason = run, status, reason


class RunCancelled(RunEnded):
    """Raised where a run notices that `session.cancel` was called, and by `run.cancel`; swallowed by its `with`."""

    def __init__(self, run: Run, reason: str) -> None:
        super().__init__(run, "cancelled", reason)


class Waiting(RunEnded):
    """Raised where a run is left for an answer, a time or a message; swallowed by its `with`. The next run goes on."""

    def __init__(self, run: Run, reason: str) -> None:
        super().__init__(run, "waiting", reason)


def reason_of(error: BaseException) -> str:
    """An exception as the reason of a status."""
    text = f"{type(error).__name__}: {error}"[:_REASON_CHARS]
    return text.encode("utf-8", "replace").decode()


def ends(error: BaseException | None, run: Run) -> bool:
    """True if an error is the end of this run and nothing else; of a group, if each of its errors is."""
    if isinstance(error, BaseExceptionGroup):
        return all(ends(leaf, run) for leaf in _leaves(error))
    return isinstance(error, RunEnded) and error.run is run


def interrupts(error: BaseException | None, run: Run) -> bool:
    """True if an error leaves the run in progress: an interruption or a doubt, or a group with one in it."""
    if isinstance(error, BaseExceptionGroup):
        return any(interrupts(leaf, run) for leaf in _leaves(error) if not ends(leaf, run))
    return isinstance(error, InDoubtError) or not isinstance(error, Exception)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def handled_cancellation() -> BaseException | None:
    """The cancellation of an asyncio task that the caller is handling right now, if it is."""
    loops, error = sys.modules.get("asyncio"), sys.exc_info()[1]
    return error if loops is not None and isinstance(error, loops.CancelledError) else None
