"""A Store: where sessions live. Thread-safe; made by `holdfast.open`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from holdfast.backend import Backend
from holdfast.errors import ClosedError, CorruptionError, InvalidInputError, NotFoundError, UnsupportedError
from holdfast.lineage import check_name
from holdfast.model import Problem, SessionInfo, Status, StoreStats, VerifyReport
from holdfast.store.checking import check_session
from holdfast.store.fields import to_info
from holdfast.store.session import Session

EVENTS = ("checkpoint", "call", "in_doubt", "fenced", "crash_loop")

_FIRST_PAGE_ROWS = 200
_MAX_PAGE_ROWS = 5000
_log = logging.getLogger("holdfast")


class Store:
    """Where sessions live. A context manager; threads may share it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._listeners: dict[str, list[Callable[[Any], object]]] = {event: [] for event in EVENTS}
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
        self._refuse_closed()
        return Session(self, self.backend, id, agent=agent)

    def sessions(
        self, *, status: Status | str | None = None, agent: str | None = None, limit: int | None = None
    ) -> Iterator[SessionInfo]:
        """One line per session, the one touched last first; never opens a state."""
        self._refuse_closed()
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
            page = self.backend.sessions(before=before, limit=size, status=status, agent=agent)
            yield from map(to_info, page)
            if len(page) < size:
                return
            left -= len(page)
            before = page[-1].touched

    def delete(self, session_id: str) -> None:
        """Delete a whole session; nothing of it is left behind."""
        self._refuse_closed()
        self.backend.delete_session(check_name(session_id, "a session id"))

    def verify(self, session: str | None = None, *, repair: bool = False) -> VerifyReport:
        """Read everything again and compare it with its digests."""
        self._refuse_closed()
        if repair:
            message = "this version reports damage but does not repair it"
            raise UnsupportedError(message, hint="carry on from session.newest_intact()")
        if session is not None and self.backend.find_session(check_name(session, "a session id")) is None:
            message = f"there is no session {session!r}"
            raise NotFoundError(message, hint="store.sessions() lists those there are")
        problems: list[Problem] = [] if session is not None else list(self.backend.check())
        checked = 0
        try:
            for id_ in [session] if session is not None else [info.id for info in self.sessions()]:
                for found in check_session(self.backend, id_):
                    checked += found is None or bool(found.checkpoints)
                    if found is not None:
                        problems.append(found)
        except CorruptionError as error:
            problems.append(Problem(what=str(error), cost="what lies behind it was not checked"))
        return VerifyReport(problems=tuple(problems), checked=checked)

    def stats(self) -> StoreStats:
        """How much is kept, and in how little space."""
        self._refuse_closed()
        sizes = self.backend.sizes()
        return StoreStats(
            sessions=sizes.sessions,
            checkpoints=sizes.checkpoints,
            logical_bytes=sizes.logical_bytes,
            stored_bytes=sizes.stored_bytes,
        )

    def on(self, event: str, fn: Callable[[Any], object]) -> None:
        """Call `fn` after each event of that name. What it raises is logged and disturbs nothing."""
        if event not in self._listeners:
            message = f"there is no event {event!r}"
            raise InvalidInputError(message, hint=f"one of {', '.join(EVENTS)}")
        self._listeners[event].append(fn)

    def close(self) -> None:
        """Release everything; sessions of this store can no longer be used."""
        if not self._closed and self._pid == os.getpid():
            self._closed = True
            self.backend.close()

    def _emit(self, event: str, value: object) -> None:
        for fn in self._listeners[event]:
            try:
                fn(value)
            except Exception:  # noqa: BLE001 - a listener's fault is not the writer's
                _log.exception("a listener for %r failed", event)

    def _refuse_closed(self) -> None:
        if self._pid != os.getpid():
            message = "this store was opened by the parent process"
            raise ClosedError(message, hint="open it again in this process")
        if self._closed:
            message = "the store is closed"
            raise ClosedError(message, hint="open it again")


__all__ = ["EVENTS", "Session", "Store"]
