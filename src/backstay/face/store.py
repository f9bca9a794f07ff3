"""A Store: where sessions live. Thread-safe; made by `backstay.open`."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from backstay.errors import ClosedError, InvalidInputError
from backstay.face.session import Session
from backstay.face.watching import ChangeWatch
from backstay.model import (
    Checkpoint,
    Hit,
    ImportReport,
    OnExists,
    PruneReport,
    SessionId,
    SessionInfo,
    Status,
    StatusName,
    StoreStats,
    VerifyReport,
    Wait,
)
from backstay.names import check_name
from backstay.port import Backend, SessionRow
from backstay.retention import Retention
from backstay.rules import refusals
from backstay.store import overview
from backstay.store.events import EVENTS, EventName, Events
from backstay.store.fields import check_text, to_info
from backstay.store.history import History
from backstay.store.overview import descendants_of
from backstay.store.recent import RecentHeads
from backstay.store.session_filter import SessionFilter, check_filter
from backstay.strategy import ALWAYS, Strategy
from backstay.upkeep.progress import Progress

if TYPE_CHECKING:
    from backstay.loops import LoopGuard
    from backstay.run import Run
    from backstay.run.options import OnDoubt, OnFailed
    from backstay.upkeep.files_limit import FilesLimit
    from backstay.workspace.policy import Workspace

_FIRST_PAGE_ROWS = 200
_MAX_PAGE_ROWS = 5000


class Store:
    """A store of sessions. A context manager; threads may share it.

    ```python
    import backstay

    with backstay.open() as store:
        with store.run("ticket-42", agent="support", input="refund order 7") as run:
            run.append({"role": "user", "content": run.input})
        print([info.id for info in store.sessions(agent="support")], store.verify().ok)
    ```
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._events = Events()
        self._recent = RecentHeads()
        self._limit: FilesLimit | None = None
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

    def session(
        self,
        id: str,
        *,
        agent: str | None = None,
        owner: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        workspace: Workspace | str | os.PathLike[str] | None = None,
    ) -> Session:
        """A session by its id. Nothing is written until the first commit or run.

        `owner`, `title` and `metadata` are recorded then, unless the session has its own: `session.describe` changes
        those. The files of a `workspace` (a folder, or a Workspace) are recorded with every commit; see
        docs/workspace.md.
        """
        self.refuse_closed()
        return Session(
            self.backend,
            self._events,
            id,
            agent=agent,
            owner=owner,
            title=title,
            metadata=metadata,
            recent=self._recent,
            workspace=workspace,
            limit=self._files_limit,
        )

    def files_settled(self) -> None:
        """Return when the limit on contents of files is kept, as far as this store's captures crossed it."""
        self.refuse_closed()
        if self._limit is not None:
            self._limit.wait()

    def _files_limit(self) -> FilesLimit:
        """The keeper of the limit on contents of files: sessions with a workspace tell it what they bring."""
        if self._limit is None:
            from backstay.upkeep.files_limit import FilesLimit

            self._limit = FilesLimit(self.backend)
        return self._limit

    def sessions(
        self,
        *,
        status: Status | StatusName | None = None,
        agent: str | None = None,
        owner: str | None = None,
        prefix: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        since: datetime | None = None,
        crashed: bool | None = None,
        waiting: bool | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> Iterator[SessionInfo]:
        """One line per session, the one touched last first; never opens a state.

        Only those with this status (of the branch written last), agent, owner, start of the id, values in their
        metadata, a checkpoint since then; crashed or waiting on any branch, or not. `before` is the cursor of the last
        line you have: the listing goes on behind it.
        """
        self.refuse_closed()
        if limit is not None and limit < 0:
            message = f"limit must not be negative, and is {limit}"
            raise InvalidInputError(message)
        if before is not None and type(before) is not int:
            message = f"before is the cursor of a SessionInfo, not {type(before).__name__}"
            raise InvalidInputError(message, hint="give the number that the last line of the page before has")
        wanted = check_filter(
            status=status,
            agent=agent,
            owner=owner,
            prefix=prefix,
            metadata=metadata,
            since=since,
            crashed=crashed,
            waiting=waiting,
        )
        return self._sessions(wanted, before, limit if limit is not None else 2**62)

    def _sessions(self, wanted: SessionFilter, before: int | None, limit: int) -> Iterator[SessionInfo]:
        if wanted.crashed or wanted.waiting:  # those are few, and found without a look at all the others
            crashed, waiting = overview.troubled_sessions(self.backend)
            lines = (crashed if wanted.crashed else waiting).values()
            found = [row for row in lines if wanted.wants(row) and (before is None or row.touched < before)]
            yield from islice(self._infos(found, wanted, crashed, waiting), limit)
            return
        left, rows = limit, _FIRST_PAGE_ROWS
        while left > 0:
            # The first page comes soon; a backend may pass over all for each. A filter of ours may leave little of one.
            size = min(left, rows) if wanted.is_backends_own else rows
            rows = min(2 * rows, _MAX_PAGE_ROWS)
            page = self.backend.sessions(wanted.query(before=before, limit=size))
            if page:
                crashed, waiting = overview.troubled_sessions(self.backend)
                fitting = [row for row in page if wanted.wants(row)]
                for info in islice(self._infos(fitting, wanted, crashed, waiting), left):
                    left -= 1
                    yield info
            if len(page) < size:
                return
            before = page[-1].touched

    def _infos(
        self, rows: Iterable[SessionRow], wanted: SessionFilter, crashed: Container[str], waiting: Container[str]
    ) -> Iterator[SessionInfo]:
        for row in rows:
            info = to_info(row, crashed=row.id in crashed, waiting=row.id in waiting)
            if wanted.crashed in (None, info.crashed) and wanted.waiting in (None, info.waiting):
                yield info

    def search(
        self,
        text: str,
        *,
        session: str | None = None,
        agent: str | None = None,
        ignore_case: bool = True,
        limit: int | None = None,
    ) -> Iterator[Hit]:
        """Where a text first came up: session, checkpoint, path in its state, and the words around it.

        The session touched last comes first, and in each the oldest checkpoint. A message is told once.
        """
        self.refuse_closed()
        check_text(text, "text", required=True)
        if not text or (limit is not None and limit < 0):
            message = "text must not be empty" if not text else f"limit must not be negative, and is {limit}"
            raise InvalidInputError(message)
        if session is not None and overview.session_row(self.backend, check_name(session, "a session id")) is None:
            raise refusals.no_session(session)[1]
        return islice(self._hits(text, session, agent, ignore_case=ignore_case), limit)

    def _hits(self, text: str, session: str | None, agent: str | None, *, ignore_case: bool) -> Iterator[Hit]:
        from backstay.upkeep.searching import excerpt, search

        for id_ in [info.id for info in self.sessions(agent=agent)] if session is None else [session]:
            history = History(self.backend, self._events, SessionId(id_), agent=None)
            for match in search(self.backend, id_, text, ignore_case=ignore_case):
                yield Hit(
                    session=SessionId(id_),
                    checkpoint=history.checkpoint(match.row),
                    path=match.path,
                    excerpt=excerpt(match.text, match.at, len(text)),
                )

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
        workspace: Workspace | str | os.PathLike[str] | None = None,
    ) -> Run:
        """A loop that survives, on the session of that id: `session(id, agent=agent).run(…)`."""
        return self.session(id, agent=agent, workspace=workspace).run(
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
        return [to_info(row, crashed=True) for row in overview.crashed_sessions(self.backend).values()]

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
        """Delete a whole session, its children first; nothing of it is left behind. How many checkpoints went."""
        self.refuse_closed()
        check_name(session_id, "a session id")
        from backstay.upkeep.deletion import delete_session, sweep

        count = 0
        for id_ in [*[row.id for row in descendants_of(self.backend, session_id)], session_id]:
            count += delete_session(self.backend, id_)
            self._recent.drop(id_)
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
        children: bool = True,
        overwrite: bool = False,
        with_secrets: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Write a session with its children, or all sessions, to one file that `import_` of any store can read.

        Secrets that a workspace captured (`secrets="capture"`) are left out, unless it is `with_secrets`: their
        contents are forgotten in the file.

        Writers go on meanwhile: each session is in it as it stood at one moment. The file is there whole or not at all.
        Of several sessions, one that is damaged is left out; a CorruptionError says so once the file is there.
        """
        self.refuse_closed()
        if session is not None:
            check_name(session, "a session id")
        from backstay.upkeep import exporting

        exporting.export(
            self.backend,
            path,
            session=session,
            children=children,
            overwrite=overwrite,
            with_secrets=with_secrets,
            progress=progress,
        )

    def import_(
        self,
        path: str | os.PathLike[str],
        *,
        rename: str | Mapping[str, str] | None = None,
        on_exists: OnExists = "refuse",
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
            file_stored_bytes=sizes.held_bytes,
        )

    def on(self, event: EventName, fn: Callable[[Any], object]) -> None:
        """Call `fn` after each event of that name. An exception in it is logged and disturbs nothing."""
        self._events.on(event, fn)

    def close(self) -> None:
        """Release everything; sessions of this store can no longer be used."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            try:
                if self._limit is not None:
                    self._limit.close()
            finally:
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
