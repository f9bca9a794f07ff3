"""The place where each caller of a Session last saw each branch: what a commit of a plain dict expects.

Tasks and threads may share a Session. Each remembers where it last saw a branch itself; one that never looked goes by
the Session's last look, which other tasks' commits do not move: a ConflictError too many, never a lost turn. To have
looked and found nothing is to have seen NOTHING.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary

from backstay.model import ANY, NOTHING, Mark

Place = str | Mark

# The task that calls, where the call itself is made in another thread (backstay.aio).
caller: contextvars.ContextVar[object | None] = contextvars.ContextVar("backstay_caller", default=None)


class Looks:
    """The heads that callers saw of the branches of one session."""

    def __init__(self) -> None:
        self._last: dict[str, Place] = {}
        self._by_caller: WeakKeyDictionary[Any, dict[str, Place]] = WeakKeyDictionary()

    def saw(self, branch: str, place: Place) -> None:
        """A look: by this caller, and the Session's last."""
        self._last[branch] = place
        self.moved(branch, place)

    def moved(self, branch: str, place: Place) -> None:
        """This caller's own commit."""
        self._by_caller.setdefault(_caller(), {})[branch] = place

    def expected(self, branch: str) -> Place:
        """The head that a commit of this caller expects; ANY if this caller has not read the branch."""
        own = self._by_caller.get(_caller())
        if own is not None and branch in own:
            return own[branch]
        return self._last.get(branch, ANY)

    def followed(self, branch: str, gone: str, place: str) -> None:
        """A checkpoint was deleted through this Session: callers who saw it are moved to the branch's head of now."""
        for seen in (self._last, *self._by_caller.values()):
            if seen.get(branch) == gone:
                seen[branch] = place

    def forget(self, branch: str) -> None:
        """The branch was deleted."""
        for seen in (self._last, *self._by_caller.values()):
            seen.pop(branch, None)


def _caller() -> object:
    task = caller.get()
    if task is not None:
        return task
    loops = sys.modules.get("asyncio")
    if loops is not None:
        try:
            task = loops.current_task()
        except RuntimeError:
            task = None
    return threading.current_thread() if task is None else task


__all__ = ["ANY", "NOTHING", "Looks", "Place", "caller"]
