"""Where the users of a Session last saw its branches: a commit never writes over what its caller has not seen."""

from __future__ import annotations

import contextvars
import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary, ref

from backstay.model import ANY, Mark

Place = str | Mark

# The task that calls, where the call itself is made in another thread (backstay.aio).
caller: contextvars.ContextVar[object | None] = contextvars.ContextVar("backstay_caller", default=None)


class Looks:
    """Where a Session's users last saw each branch: what a commit of a plain dict expects.

    Tasks and threads may share a Session. Each remembers where it last saw a branch itself; one that never looked goes
    by the Session's last look, which other tasks' commits do not move: a ConflictError too many, never a lost turn. To
    have looked and found nothing is to have seen NOTHING.
    """

    def __init__(self) -> None:
        self._last: dict[str, Place] = {}
        self._by_caller: WeakKeyDictionary[Any, dict[str, Place]] = WeakKeyDictionary()
        self._latest: tuple[Any, dict[str, Place]] | None = None  # of these: a commit asks twice in a row

    def saw(self, branch: str, place: Place) -> None:
        """A look: by this caller, and the Session's last."""
        self._last[branch] = place
        self.moved(branch, place)

    def moved(self, branch: str, place: Place) -> None:
        """This caller's own commit."""
        here = current_caller()
        own = self._own(here)
        if own is None:
            own = self._by_caller.setdefault(here, {})
        own[branch] = place

    def expected(self, branch: str) -> Place:
        """What a commit of this caller expects; ANY if nobody has looked."""
        own = self._own(current_caller())
        if own is not None and branch in own:
            return own[branch]
        return self._last.get(branch, ANY)

    def _own(self, here: object) -> dict[str, Place] | None:
        latest = self._latest
        if latest is not None and latest[0]() is here:
            return latest[1]
        own = self._by_caller.get(here)
        if own is not None:
            self._latest = ref(here), own
        return own

    def followed(self, branch: str, gone: str, place: str) -> None:
        """A checkpoint was deleted through this Session: those who saw it see where the branch is now."""
        for seen in (self._last, *self._by_caller.values()):
            if seen.get(branch) == gone:
                seen[branch] = place

    def forget(self, branch: str) -> None:
        """The branch was deleted."""
        for seen in (self._last, *self._by_caller.values()):
            seen.pop(branch, None)


def current_caller() -> object:
    """The task that calls, or the thread where there is none."""
    task = caller.get()
    if task is not None:
        return task
    # Asked in a way that raises nothing where no loop runs: every commit of a program that has asyncio comes here.
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    loop = None if running is None else running()
    if loop is not None:
        task = sys.modules["asyncio"].current_task(loop)
    return threading.current_thread() if task is None else task
