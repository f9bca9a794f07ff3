"""Changes: which sessions were written since the last look, by this process or any other.

`touched` numbers rise, but a number is given before its write is committed: on a server a lower one may be seen after a
higher one. So a look reads again all sessions that were touched in the last moments, and compares.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backstay.errors import InvalidInputError
from backstay.model import SessionInfo
from backstay.names import check_name
from backstay.port import Ask, SessionQuery, SessionRow
from backstay.store.fields import to_info

if TYPE_CHECKING:
    from backstay.face.store import Store

POLL_S = 0.2  # the longest between two looks
_SETTLED_S = 15.0  # a write that was given its number is done, or will never be
_PAGE_ROWS = 200


class ChangeWatch:
    """Looks for sessions that were written. The first look compares with the moment when this was made."""

    def __init__(self, store: Store, session: str | None, timeout_s: float | None) -> None:
        store.refuse_closed()
        if timeout_s is not None and not 0 <= timeout_s < math.inf:
            message = f"timeout_s must be a number of seconds, and is {timeout_s}"
            raise InvalidInputError(message, hint="leave it out to watch without an end")
        self._store, self._backend = store, store.backend
        self._session = None if session is None else check_name(session, "session")
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        self._since = self._backend.changes()
        self._low = 0  # nothing below this number can still change
        self._marks: deque[tuple[float, int]] = deque()  # the first number that was free at a moment
        rows = self._own() if self._session else list(self._backend.sessions(SessionQuery(limit=_PAGE_ROWS)))
        if len(rows) >= _PAGE_ROWS:
            self._low = rows[-1].touched
        self._seen = {row.id: row.touched for row in rows}

    def infos(self) -> Iterator[SessionInfo]:
        """Sessions as they are written, until the time is up."""
        while True:
            yield from self.look()
            left_s = self.left_s()
            if left_s <= 0:
                return
            self._backend.wait(min(left_s, POLL_S), since=self._since)

    def left_s(self) -> float:
        """How long this goes on."""
        return math.inf if self._until is None else self._until - time.monotonic()

    def look(self) -> list[SessionInfo]:
        """The sessions that were written since the last look, the one touched last behind the others."""
        self._store.refuse_closed()
        changes = self._backend.changes()
        if changes == self._since:
            return []
        self._since = changes  # from before the look: what is written meanwhile is looked for again
        rows = self._own() if self._session else self._recent()
        rows = [row for row in rows if self._seen.get(row.id) != row.touched]
        self._seen |= {row.id: row.touched for row in rows}
        self._seen = {id_: touched for id_, touched in self._seen.items() if touched >= self._low}
        crashed = {info.id for info in self._store.crashed()} if rows else set()
        return [to_info(row, crashed=row.id in crashed) for row in reversed(rows)]

    def _own(self) -> list[SessionRow]:
        row = self._backend.read(Ask(self._session or "")).session
        return [] if row is None else [row]

    def _recent(self) -> list[SessionRow]:
        """All sessions whose number may have been seen for the first time since the last look."""
        now, fresh = time.monotonic(), self._backend.read(Ask("")).fresh
        while self._marks and self._marks[0][0] < now - _SETTLED_S:
            self._low = max(self._low, self._marks.popleft()[1])
        self._marks.append((now, fresh))
        rows: list[SessionRow] = []
        before: int | None = None
        while before is None or before > self._low:
            page = self._backend.sessions(SessionQuery(before=before, limit=_PAGE_ROWS))
            rows += [row for row in page if row.touched >= self._low]
            before = page[-1].touched if len(page) == _PAGE_ROWS else self._low
        return rows
