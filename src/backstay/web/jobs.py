"""Work on the whole store that a page starts: runs in a thread of its own, and the pages say how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from backstay.errors import BackstayError
from backstay.shapes.text import now

if TYPE_CHECKING:
    from backstay.fitness import Finding
    from backstay.model import Problem, PruneReport, VerifyReport
    from backstay.retention import Retention
    from backstay.upkeep.progress import Progress

T = TypeVar("T")


class Progressed(NamedTuple, Generic[T]):
    """How a job stands: how far it is, or what it gave and when; `failed` where it could not go on."""

    running: bool = False
    done: int = 0
    total: int = 0
    result: T | None = None
    at: datetime | None = None
    failed: str = ""


class StoreJob(Generic[T]):
    """One kind of work, at most once at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: Progressed[T] = Progressed()

    def seen(self) -> Progressed[T]:
        """How it stands."""
        return self._now

    def start(self, work: Callable[[Progress], T]) -> bool:
        """Begin, unless one is under way."""
        with self._lock:
            if self._now.running:
                return False
            self._now = self._now._replace(running=True, done=0, total=0, failed="")
        threading.Thread(target=self._run, args=(work,), name="backstay-web-job", daemon=True).start()
        return True

    def _run(self, work: Callable[[Progress], T]) -> None:
        try:
            result = work(self._progress)
        except (BackstayError, OSError) as error:
            self._now = self._now._replace(running=False, failed=getattr(error, "message", str(error)))
        else:
            self._now = self._now._replace(running=False, result=result, at=now())

    def _progress(self, done: int, total: int | None) -> None:
        self._now = self._now._replace(done=done, total=total or 0)


class Preview(NamedTuple):
    """What a retention would remove."""

    retention: Retention
    report: PruneReport


class Jobs:
    """The jobs of a site: verify, doctor, and the preview of a prune."""

    def __init__(self) -> None:
        self.verify: StoreJob[VerifyReport] = StoreJob()
        self.doctor: StoreJob[list[Finding]] = StoreJob()
        self.preview: StoreJob[Preview] = StoreJob()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What the last verification found."""
        report = self.verify.seen().result
        return () if report is None else report.problems

    def stand(self) -> tuple[object, ...]:
        """All that a page shows of them, to be compared."""
        return tuple([(one.running, one.done, one.at) for one in (each.seen() for each in vars(self).values())])
