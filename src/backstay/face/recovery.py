"""Going on with what crashed, and with what waited and is ready: answered, sent a message, or due. Each once.

The process that takes a run's lease first resumes it; the run must still be the one that was found, so that two
recoverers never do the same work one after the other. A run that crashes again and again at one spot is halted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.errors import BackstayError, ConflictError, InDoubtError, LeaseHeldError, NotFoundError
from backstay.face.store import Store
from backstay.loops import LoopGuard
from backstay.model import RecoverReport, SessionId, counted
from backstay.port import Ask, FoundLane, LaneQuery, LaneRow, SessionRow
from backstay.port.rows import DOUBTFUL, ENTERED, MARK_READY
from backstay.run import Run
from backstay.run.options import OnDoubt, OnFailed
from backstay.strategy import ALWAYS, Strategy

if TYPE_CHECKING:
    import os

    from backstay.workspace.policy import Workspace

MAX_CRASHES = 5


def recover(
    store: Store,
    handler: Callable[[Run], Any],
    *,
    agent: str | None = None,
    wait_s: float = 0.0,
    strategy: Strategy = ALWAYS,
    lease_s: float = 30.0,
    on_doubt: OnDoubt = "ask",
    on_failed: OnFailed = "raise",
    loops: LoopGuard | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
) -> RecoverReport:
    """Call `handler(run)` for every session that crashed or is ready to go on; one that fails does not stop the rest.

    A session whose run was left, or that was imported, with calls in doubt is reported and not gone on with.

    With `wait_s` it goes on looking for that long: it resumes what is answered, sent or due as soon as that is known,
    and what crashes within a second of the end of its lease.
    The other options are those of `session.run`.

    ```python
    import backstay

    def work(run):
        run.state["out"] = run.call("search", lambda: "a lamp", args={"q": "lamp"}, on_doubt="retry")

    with backstay.open() as store:
        print(backstay.recover(store, work, agent="support"))
    ```
    """
    options = RunOptions(strategy, lease_s, on_doubt, on_failed, loops, workspace)
    tally = Tally()
    watch = RunWatch(store, agent, wait_s)
    tally.in_doubt |= watch.undecided()
    while (found := watch.look()) is not None:
        for session_id, row in found:
            run = take_up(store, session_id, row, tally, options)
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


class RunOptions(NamedTuple):
    """How recovered runs are made: the options of `session.run`."""

    strategy: Strategy
    lease_s: float
    on_doubt: OnDoubt
    on_failed: OnFailed
    loops: LoopGuard | None
    workspace: Workspace | str | os.PathLike[str] | None = None


class RunWatch:
    """Looks for runs to go on with, at once and then for a while. None is given twice, unless it waited in between."""

    def __init__(self, store: Store, agent: str | None, wait_s: float) -> None:
        self._store = store
        self._agent = agent
        self._until = time.monotonic() + wait_s
        self._looked, self._since = False, 0
        self._given: set[tuple[str, str, int, bool]] = set()

    def look(self) -> list[tuple[SessionId, LaneRow]] | None:
        """The runs to go on with; none if nothing happened for a moment, None when the time is up."""
        self._store.refuse_closed()
        backend = self._store.backend
        if self._looked:
            left_s = self._until - time.monotonic()
            if left_s <= 0:
                return None
            backend.wait(left_s, since=self._since)
        self._looked, self._since = True, backend.changes()
        found: dict[tuple[str, str, int, bool], tuple[SessionId, LaneRow]] = {}
        for one in backend.lanes(LaneQuery(ENTERED | MARK_READY, due=True)):
            if one.lane.stop is not None and not one.live:  # it died before it heard of its stop
                self._store.session(one.session.id).cancel(one.lane.name, reason=one.lane.stop)
                continue
            root = self._root(one)
            if root is not None and root[1].stop is None and self._agent in (None, root[0].agent):
                key = _key(root[0].id, root[1])
                if key not in self._given:
                    found.setdefault(key, (SessionId(root[0].id), root[1]))
        self._given |= found.keys()
        return list(found.values())

    def _root(self, one: FoundLane) -> tuple[SessionRow, LaneRow] | None:
        """The branch to go on with: a child goes on inside the run of its parent. None if that is alive, or over."""
        session, lane, live = one.session, one.lane, one.live
        while session.parent is not None and not live:
            view = self._store.backend.read(Ask(session.parent, names=(lane.name,)))
            above = view.lanes.get(lane.name)
            if view.session is None or above is None or not (above.entered or above.wait):
                return None
            session, lane, live = view.session, above, lane.name in view.live
        return None if live else (session, lane)

    def undecided(self) -> dict[SessionId, str]:
        """Sessions that no run crashed in, where calls are in doubt: nothing can go on before they are decided.

        Files that were being put back when their process died come to their place here.
        """
        found: dict[SessionId, str] = {}
        for one in self._store.backend.lanes(LaneQuery(DOUBTFUL)):
            if one.live or self._agent not in (None, one.session.agent):
                continue
            id_ = SessionId(one.session.id)
            try:
                if self._store.session(id_).finish_files(branch=one.lane.name):
                    continue
            except LeaseHeldError:
                continue  # another process does it
            except BackstayError as error:
                found[id_] = f"{type(error).__name__}: {error}"
            else:
                found[id_] = f"{counted(one.lane.doubts, 'call')} in doubt on branch {one.lane.name!r}"
        return found

    def took(self, session_id: SessionId, run: Run) -> None:
        """It was entered: should it be left as it was found, it is not for us again."""
        self._given.add((session_id, run.branch, run.token, False))


def _key(session_id: str, lane: LaneRow) -> tuple[str, str, int, bool]:
    return session_id, lane.name, lane.token, lane.wait is not None


def take_up(store: Store, session_id: SessionId, row: LaneRow, tally: Tally, options: RunOptions) -> Run | None:
    """The crashed run, entered; None if another process has it, or if it has crashed too often."""
    run = store.session(session_id).run(
        branch=row.name,
        strategy=options.strategy,
        lease_s=options.lease_s,
        on_doubt=options.on_doubt,
        on_failed=options.on_failed,
        loops=options.loops,
        workspace=options.workspace,
    )
    try:
        run.enter(expect_token=row.token)
    except (LeaseHeldError, ConflictError, NotFoundError):
        if session_id not in tally.skipped:
            tally.skipped.append(session_id)
        return None
    except BackstayError as error:  # its state is damaged, say
        tally.failed(session_id, error)
        return None
    if run.crashes >= MAX_CRASHES:
        reason = "crash loop"
        run.end_with("halted", reason)
        tally.halted[session_id] = f"{reason}: {counted(run.crashes, 'crash')} at one spot"
        store.events.emit("crash_loop", run)
        return None
    return run


class Tally:
    """The outcome of each session."""

    def __init__(self) -> None:
        self.completed: list[SessionId] = []
        self.failures: dict[SessionId, str] = {}
        self.in_doubt: dict[SessionId, str] = {}
        self.halted: dict[SessionId, str] = {}
        self.cancelled: dict[SessionId, str] = {}
        self.waiting: dict[SessionId, str] = {}
        self.skipped: list[SessionId] = []

    def failed(self, session_id: SessionId, error: Exception) -> None:
        """The handler raised."""
        where = self.in_doubt if isinstance(error, InDoubtError) else self.failures
        where[session_id] = f"{type(error).__name__}: {error}"

    def ended(self, session_id: SessionId, run: Run) -> None:
        """The handler came to its end, or ended the run."""
        end = run.end
        if end is None:
            self.completed.append(session_id)
        else:
            ended: dict[str, dict[SessionId, str]] = {
                "halted": self.halted,
                "cancelled": self.cancelled,
                "waiting": self.waiting,
            }
            ended.get(end.status, self.failures)[session_id] = end.reason

    def report(self) -> RecoverReport:
        """All of it."""
        return RecoverReport(
            completed=tuple(self.completed),
            failed=self.failures,
            in_doubt=self.in_doubt,
            halted=self.halted,
            cancelled=self.cancelled,
            waiting=self.waiting,
            skipped=tuple(self.skipped),
        )
