"""The heartbeat: one thread per process that renews the leases of runs whose calls take long.

It looks a few times per lease at each run, and a run renews only if a call is in flight and nothing was written for a
while: a loop that hangs between two calls loses its lease, as it should.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

_LOOKS_PER_LEASE = 5


class Beating(Protocol):
    """A run as its heartbeat sees it."""

    lease_s: float

    def beat(self) -> None:
        """Renew if need be; never raises."""


class Heartbeat:
    """See the module's text. The thread is there while there are runs."""

    def __init__(self) -> None:
        self._runs: set[Beating] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, run: Beating) -> None:
        """Look after a run from now on."""
        with self._changed:
            self._runs.add(run)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_after, name="backstay-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()

    def discard(self, run: Beating) -> None:
        """It has ended. The thread notices when it next looks: waking it would cost each run a switch."""
        with self._changed:
            self._runs.discard(run)

    def _look_after(self) -> None:
        while True:
            with self._changed:
                if not self._runs:
                    self._thread = None
                    return
                shortest = min(run.lease_s for run in self._runs)
                self._changed.wait(shortest / _LOOKS_PER_LEASE)
                runs = list(self._runs)
            for run in runs:
                run.beat()


heartbeat = Heartbeat()


def _begin_anew() -> None:
    # A forked child has inherited the runs but not the thread, and none of the runs is its own.
    heartbeat.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
