"""A Store: where sessions live. Thread-safe; made by `backstay.open`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from backstay.errors import ClosedError, InvalidInputError
from backstay.face.session import Session
from backstay.face.watching import ChangeWatch
from backstay.model import (
    Checkpoint,
    ImportReport,
    PruneReport,
    SessionId,
    SessionInfo,
    Status,
    StoreStats,
    VerifyReport,
    Wait,
)
from backstay.names import check_name
from backstay.port import Backend, LaneQuery, SessionQuery
from backstay.port.rows import DOUBTFUL, ENTERED
from backstay.retention import Retention
from backstay.store.events import EVENTS, Events
from backstay.store.fields import to_info
from backstay.store.history import History
from backstay.store.recent import RecentHeads
from backstay.strategy import ALWAYS, Strategy
from backstay.upkeep.progress import Progress

if TYPE_CHECKING:
    from backstay.loops import LoopGuard
    from backstay.run import Run
    from backstay.run.options import OnDoubt, OnFailed

_FIRST_PAGE_ROWS = 200
_MAX_PAGE_ROWS = 5000


class Store:
    """A store of sessions. A context manager; threads may share it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._events = Events()
        self._recent = RecentHeads()
        self._closed = False
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.backend.name}>"

    def session(self, id: str, *, agent: str | None = None) -> Session:
        """A session by its id. Nothing is written until the first commit or run."""
        self.refuse_closed()
        return Session(self.backend, self._events, id, agent=agent, recent=self._recent)

    def sessions(
        self, *, status: Status | str | None = None, agent: str | None = None, limit: int | None = None
    ) -> Iterator[SessionInfo]:
        """One line per session, the one touched last first; never opens a state."""
        self.refuse_closed()
        if limit is not None and limit < 0:
            message = f"limit must not be negative, and is {limit}"
            raise InvalidInputError(message)
        try:
            wanted = None if status is None else Status(status).value
        except ValueError:
            message = f"{status!r} is not a status"
            raise InvalidInputError(message, hint=f"one of {', '.join(Status)}") from None
        return self._sessions(wanted, agent, limit)

    def _sessions(self, status: str | None, agent: str | None, limit: int | None) -> Iterator[SessionInfo]:
        left, before = limit if limit is not None else 2**62, None
        rows = _FIRST_PAGE_ROWS
        while left > 0:
            size = min(left, rows)
            rows = min(2 * rows, _MAX_PAGE_ROWS)  # the first page comes soon; a backend may pass over all for each
            page = self.backend.sessions(SessionQuery(before=before, limit=size, status=status, agent=agent))
            crashed = self._crashed() if page else {}
            for row in page:
                yield to_info(row, crashed=row.id in crashed)
            if len(page) < size:
                return
            left -= len(page)
            before = page[-1].touched

    def run(
        self,
        id: str,
        *,
        agent: str | None = None,
        strategy: Strategy = ALWAYS,
        branch: str = "main",
        input: Any = None,
        restart: bool = False,
        lease_s: float = 30.0,
        on_doubt: OnDoubt = "ask",
        on_failed: OnFailed = "raise",
        loops: LoopGuard | None = None,
    ) -> Run:
        """A loop that survives, on the session of that id: `session(id, agent=agent).run(…)`."""
        return self.session(id, agent=agent).run(
            strategy=strategy,
            branch=branch,
            input=input,
            restart=restart,
            lease_s=lease_s,
            on_doubt=on_doubt,
            on_failed=on_failed,
            loops=loops,
        )

    def crashed(self) -> list[SessionInfo]:
        """Sessions that need a decision or another run: a run crashed there, or left calls in doubt, or they came so.

        A run crashed that was entered and never properly left, and whose lease no living process holds.
        """
        self.refuse_closed()
        return list(self._crashed().values())

    def _crashed(self) -> dict[str, SessionInfo]:
        found = self.backend.lanes(LaneQuery(ENTERED | DOUBTFUL))
        return {
            one.session.id: to_info(one.session, crashed=True)
            for one in found
            if not one.live and one.lane.stop is None
        }

    def waiting(self, agent: str | None = None) -> list[Wait]:
        """What sessions wait for, the one touched last first; with `agent`, those of that agent."""
        self.refuse_closed()
        from backstay.run.answering import all_waits

        return list(all_waits(self.backend, agent))

    def find(self, checkpoint_id: str) -> Checkpoint:
        """A checkpoint by its id alone, or a start of it that only one has, whatever session it is in."""
        self.refuse_closed()
        from backstay.store.finding import find_checkpoint

        session, row = find_checkpoint(self.backend, checkpoint_id)
        return History(self.backend, self._events, SessionId(session), agent=None).checkpoint(row)

    def changes(self) -> int:
        """A number that is another once any process has written to the store. Compare it with this Store's own only."""
        self.refuse_closed()
        return self.backend.changes()

    def watch(self, session: str | None = None, *, timeout_s: float | None = None) -> Iterator[SessionInfo]:
        """Sessions as any process writes to them, from now on, within 0.3 s; for `timeout_s`, or without an end.

        A session that was written several times between two looks comes once. One that is deleted does not come, and
        neither does a call of a run before its next checkpoint.
        """
        return ChangeWatch(self, session, timeout_s).infos()

    def delete(self, session_id: str) -> int:
        """Delete a whole session; nothing of it is left behind. How many checkpoints went."""
        self.refuse_closed()
        check_name(session_id, "a session id")
        from backstay.upkeep.deletion import delete_session, sweep

        count = delete_session(self.backend, session_id)
        self._recent.drop(session_id)
        sweep(self.backend)
        self.backend.tend()
        return count

    def verify(
        self, session: str | None = None, *, repair: bool = False, progress: Progress | None = None
    ) -> VerifyReport:
        """Read everything again and compare it with its digests.

        `repair` first removes what is provably useless (orphans, names that lead nowhere); never a readable checkpoint.
        """
        self.refuse_closed()
        if session is not None:
            check_name(session, "a session id")
        from backstay.upkeep import verifying

        return verifying.verify(self.backend, session=session, repair=repair, progress=progress)

    def prune(
        self,
        retention: Retention,
        *,
        session: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> PruneReport:
        """Forget what a retention allows; with `dry_run`, say exactly what that would be."""
        self.refuse_closed()
        if session is not None:
            check_name(session, "a session id")
        from backstay.upkeep import pruning

        return pruning.prune(self.backend, retention, session=session, dry_run=dry_run, progress=progress)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        session: str | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write a session, or all of them, to one file that `import_` of any store can read.

        Writers go on meanwhile: each session is in it as it stood at one moment. The file is there whole or not at all.
        Of several sessions, one that is damaged is left out; a CorruptionError says so once the file is there.
        """
        self.refuse_closed()
        if session is not None:
            check_name(session, "a session id")
        from backstay.upkeep import exporting

        exporting.export(self.backend, path, session=session, overwrite=overwrite, progress=progress)

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        rename: str | Mapping[str, str] | None = None,
        on_exists: str = "refuse",
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Import the sessions of an export file; everything in it is verified before any of it can be seen.

        A session that is here already is refused and with it the whole file, unless `on_exists` is "skip" or "rename".
        With `dry_run` all of it is read and verified, and nothing is imported.
        """
        self.refuse_closed()
        from backstay.upkeep import importing

        return importing.import_file(
            self.backend, path, rename=rename, on_exists=on_exists, dry_run=dry_run, progress=progress
        )

    def stats(self) -> StoreStats:
        """How much is kept, and in how little space."""
        self.refuse_closed()
        sizes = self.backend.sizes()
        return StoreStats(
            sessions=sizes.sessions,
            checkpoints=sizes.checkpoints,
            logical_bytes=sizes.logical_bytes,
            stored_bytes=sizes.stored_bytes,
        )

    def on(self, event: str, fn: Callable[[Any], object]) -> None:
        """Call `fn` after each event of that name. An exception in it is logged and disturbs nothing."""
        self._events.on(event, fn)

    def close(self) -> None:
        """Release everything; sessions of this store can no longer be used."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            self.backend.close()

    @property
    def events(self) -> Events:
        """The listeners of this store."""
        return self._events

    def refuse_closed(self) -> None:
        """ClosedError if the store was closed, or opened by the parent of this process."""
        if self._pid != os.getpid():
            message = "this store was opened by the parent process"
            raise ClosedError(message, hint="open it again in this process")
        if self._closed:
            message = "the store is closed"
            raise ClosedError(message, hint="open it again")


__all__ = ["EVENTS", "Store"]
