"""Going on with what crashed: every session whose run was entered and never properly left, each handled once.

Whoever takes a crashed run's lease first has it; the run must still be the one that was found crashed, so that two
recoverers never do the same work one after the other. A run that crashes again and again at one spot is halted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backstay.backend import RunRow
from backstay.errors import BackstayError, ConflictError, InDoubtError, LeaseHeldError, NotFoundError
from backstay.model import RecoverReport, SessionId
from backstay.run import Run

if TYPE_CHECKING:
    from backstay.store import Store

MAX_CRASHES = 5


def recover(
    store: Store, handler: Callable[[Run], Any], *, agent: str | None = None, wait_s: float = 0.0, **run_options: Any
) -> RecoverReport:
    """Call `handler(run)` for every crashed session; one that fails does not stop the rest.

    With `wait_s`, those that crash in that time are taken up too, each within a second of the end of its lease.
    `run_options` are those of `session.run`.
    """
    tally = Tally()
    watch = Watch(store, agent, wait_s)
    while (found := watch.look()) is not None:
        for session_id, row in found:
            run = take_up(store, session_id, row, tally, run_options)
            if run is None:
                continue
            watch.took(session_id, run)
            try:
                with run:
                    handler(run)
            except Exception as error:  # noqa: BLE001 - it is in the report, and in the session's status
                tally.failed(session_id, error)
            else:
                tally.ended(session_id, run)
    return tally.report()


class Watch:
    """Looks for crashed runs, at once and then for a while. None is given twice, unless another had it in between."""

    def __init__(self, store: Store, agent: str | None, wait_s: float) -> None:
        self._store = store
        self._agent = agent
        self._until = time.monotonic() + wait_s
        self._looked = False
        self._given: set[tuple[str, str, int]] = set()

    def look(self) -> list[tuple[SessionId, RunRow]] | None:
        """The runs to go on with; none if nothing happened for a moment, None when the time is up."""
        self._store._refuse_closed()
        backend = self._store.backend
        if self._looked:
            left_s = self._until - time.monotonic()
            if left_s <= 0:
                return None
            backend.wait(left_s)
        self._looked = True
        found = [
            (SessionId(line.id), row)
            for line, row in backend.crashed()
            if self._agent in (None, line.totals.agent) and (line.id, row.branch, row.token) not in self._given
        ]
        self._given |= {(session_id, row.branch, row.token) for session_id, row in found}
        return found

    def took(self, session_id: SessionId, run: Run) -> None:
        """It was entered: should it be left as it was found, it is not for us again."""
        if run._calls is not None:
            self._given.add((session_id, run.branch, run._calls.lease.token))


def take_up(store: Store, session_id: SessionId, row: RunRow, tally: Tally, run_options: dict[str, Any]) -> Run | None:
    """The crashed run, entered; None if somebody else has it, or if it has crashed too often."""
    run = store.session(session_id).run(branch=row.branch, **run_options)
    try:
        run._enter(expect_token=row.token)
    except (LeaseHeldError, ConflictError, NotFoundError):
        if session_id not in tally.skipped:
            tally.skipped.append(session_id)
        return None
    except BackstayError as error:  # its state is damaged, say
        tally.failed(session_id, error)
        return None
    if run._crashes >= MAX_CRASHES:
        reason = "crash loop"
        run._end_with("halted", reason)
        tally.halted[session_id] = f"{reason}: {run._crashes} crashes at one spot"
        run._tell("crash_loop", None)
        return None
    return run


class Tally:
    """What became of each."""

    def __init__(self) -> None:
        self.completed: list[SessionId] = []
        self.failures: dict[SessionId, str] = {}
        self.in_doubt: dict[SessionId, str] = {}
        self.halted: dict[SessionId, str] = {}
        self.skipped: list[SessionId] = []

    def failed(self, session_id: SessionId, error: Exception) -> None:
        """The handler raised."""
        where = self.in_doubt if isinstance(error, InDoubtError) else self.failures
        where[session_id] = f"{type(error).__name__}: {error}"

    def ended(self, session_id: SessionId, run: Run) -> None:
        """The handler came to its end, or ended the run."""
        end = run._end
        if end is None:
            self.completed.append(session_id)
        else:
            (self.halted if end.status == "halted" else self.failures)[session_id] = end.reason

    def report(self) -> RecoverReport:
        """All of it."""
        return RecoverReport(
            completed=tuple(self.completed),
            failed=self.failures,
            in_doubt=self.in_doubt,
            halted=self.halted,
            skipped=tuple(self.skipped),
        )
