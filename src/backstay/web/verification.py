"""Verify, started from a page: runs in a thread of its own, and the pages say how far it is and what it found."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from backstay.errors import BackstayError
from backstay.shapes.text import now

if TYPE_CHECKING:
    from backstay.face import Store
    from backstay.model import Problem, VerifyReport


class Progressed(NamedTuple):
    """How a verification stands: how far it is, or what it found and when; `failed` where it could not go on."""

    running: bool
    done: int
    total: int
    report: VerifyReport | None
    at: datetime | None
    failed: str = ""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last one found."""
        return () if self.report is None else self.report.problems


class Verification:
    """At most one at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._now = Progressed(running=False, done=0, total=0, report=None, at=None)

    def seen(self) -> Progressed:
        """How it stands."""
        return self._now

    def start(self) -> bool:
        """Begin, unless one is under way."""
        with self._lock:
            if self._now.running:
                return False
            self._now = self._now._replace(running=True, done=0, total=0, failed="")
        threading.Thread(target=self._verify, name="backstay-verify", daemon=True).start()
        return True

    def _verify(self) -> None:
        try:
            report = self._store.verify(progress=self._progress)
        except BackstayError as error:
            self._now = self._now._replace(running=False, failed=error.message)
        else:
            self._now = self._now._replace(running=False, report=report, at=now())

    def _progress(self, done: int, total: int | None) -> None:
        self._now = self._now._replace(done=done, total=total or 0)
