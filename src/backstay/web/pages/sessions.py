"""The list of sessions: what needs a person on top, filters, search, a page of a hundred."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay import shapes
from backstay.errors import BackstayError, InvalidInputError
from backstay.model import Hit, Status
from backstay.store import overview
from backstay.store.history import History
from backstay.upkeep import searching
from backstay.web import drawing
from backstay.web.history import last_steps
from backstay.web.needs import MAX_SHOWN, Need, needs_of_store
from backstay.web.view import Shown

if TYPE_CHECKING:
    from backstay.face import Store
    from backstay.model import SessionInfo
    from backstay.web.view import Visit

PAGE = 100
_HITS = 50
_SEARCH_S = 3.0
_COUNTED = 1000  # sessions: beyond, counting them by status would take longer than the page
_SPARKS = 14
_FILTERS = ("in_progress", "waiting", "in_doubt", "failed", "completed")


class SessionLine(NamedTuple):
    """A session's line."""

    info: SessionInfo
    status: str
    last: str
    code: str
    spark: str


def show(visit: Visit) -> Shown:
    """The page."""
    query, store = visit.query, visit.store
    text = query.get("q", "").strip()
    needs = needs_of_store(store, visit.jobs.problems)
    doubted = {need.session: need for need in reversed(needs)}
    status, agent, before = query.get("status") or None, query.get("agent") or None, _cursor(query.get("before"))
    search = Search(store, text, agent, before)
    infos = [] if text else _listed(store, status, agent, before)
    more, infos = len(infos) > PAGE, infos[:PAGE]
    total = store.stats().sessions
    data: dict[str, Any] = {
        "needs": needs[:MAX_SHOWN] if not query.get("needs") else needs,
        "needs_more": 0 if query.get("needs") else max(0, len(needs) - MAX_SHOWN),
        "needs_all": len(needs),
        "lines": [_line(store, info, doubted.get(info.id)) for info in infos],
        "search": search,
        "q": text,
        "status": status or "",
        "agent": agent or "",
        "agents": sorted({info.agent for info in infos if info.agent}),
        "filters": _filters(store, status, total, needs),
        "total": total,
        "before": before,
        "older": str(infos[-1].cursor) if more else "",
        "live": sum(run.live for run in _runs(store)),
        "week_cost": 0,
    }
    crumbs: list[tuple[str, str | None]] = [(visit.about.name, None)]
    return Shown(
        "sessions.html",
        "Sessions",
        crumbs,
        data,
        lambda: [_hit_shape(hit) for hit in search] if text else [shapes.session(info) for info in infos],
        streams=bool(text),
    )


def _cursor(given: str | None) -> int | None:
    if not given:
        return None
    if not given.isdecimal():
        raise InvalidInputError(f"{given!r} is not the end of a page")
    return int(given)


def _listed(store: Store, status: str | None, agent: str | None, before: int | None) -> list[SessionInfo]:
    crashed = True if status in ("crashed", "in_doubt") else None
    if status is not None and crashed is None and status not in list(Status):
        raise InvalidInputError(f"{status!r} is not a status")
    named = None if status is None or crashed else Status(status)
    found = store.sessions(status=named, agent=agent, crashed=crashed, before=before, limit=PAGE + 1)
    return list(found)


class _Late(Exception):  # noqa: N818 - no error: the page has searched long enough
    """Ends a search in the middle of a session."""


class Search:
    """Places that have a text, found while the page is on its way: session by session, the one touched last first.

    Once they were gone through: how many there are, how many sessions were looked into, the session that was searched
    in part, and where to go on if those were not all. A page searches for a moment, not through all of a store.
    """

    def __init__(self, store: Store, text: str, agent: str | None, before: int | None) -> None:
        self._store, self._text, self._agent, self._before = store, text, agent, before
        self._end = 0.0
        self.count, self.sessions, self.go_on, self.in_part, self.failed = 0, 0, "", "", ""

    def __iter__(self) -> Iterator[Hit]:
        """The places, as they are found."""
        self.count, self.sessions, self._end = 0, 0, time.monotonic() + _SEARCH_S
        try:
            for info in self._store.sessions(agent=self._agent, before=self._before) if self._text else ():
                self.sessions += 1
                yield from self._in(info.id)
                if self.count >= _HITS or self.in_part or time.monotonic() > self._end:
                    self.go_on = str(info.cursor)
                    return
        except BackstayError as error:  # half of the page has been sent
            self.failed = error.message

    def _in(self, session: str) -> Iterator[Hit]:
        history = History(self._store.backend, self._store.events, self._store.session(session).id, agent=None)
        try:
            for match in searching.search(self._store.backend, session, self._text, progress=self._look_at_the_clock):
                self.count += 1
                words = searching.excerpt(match.text, match.at, len(self._text))
                yield Hit(session=history.id, checkpoint=history.checkpoint(match.row), path=match.path, excerpt=words)
                if self.count >= _HITS:
                    return
        except _Late:
            self.in_part = session

    def _look_at_the_clock(self, *_: object) -> None:
        if time.monotonic() > self._end:
            raise _Late


def _runs(store: Store) -> list[Any]:
    from backstay.port import LaneQuery  # noqa: PLC0415 - the words of the port stay out of the rest
    from backstay.port.rows import ENTERED  # noqa: PLC0415

    return list(store.backend.lanes(LaneQuery(ENTERED)))


def _filters(
    store: Store, status: str | None, total: int, needs: list[Need]
) -> list[tuple[str, str, int | None, bool]]:
    """The filters: value, word, how many where that is known at once, and which is chosen."""
    counts: Counter[str] | None = None
    if total <= _COUNTED:
        counts = Counter(info.status.value for info in store.sessions())
    found: list[tuple[str, str, int | None, bool]] = [("", "All", total, status is None)]
    words = {"in_progress": "In progress", "in_doubt": "In doubt"}
    for value in _FILTERS:
        number = None if counts is None else counts[value]
        if value == "in_doubt":
            number = len({need.session for need in needs if need.kind in ("doubt", "crash")})
        elif value == "waiting":
            number = len(overview.waiting_sessions(store.backend))
        if number != 0 or status == value:
            found.append((value, words.get(value, value.capitalize()), number, status == value))
    return found


def _line(store: Store, info: SessionInfo, need: Need | None) -> SessionLine:
    points = last_steps(store, info.id, _SPARKS)
    status = info.status.value
    code, last = "", points[0].summary if points else ""
    if info.reason and status in ("failed", "halted", "cancelled", "waiting"):
        last = info.reason
    if info.crashed:
        status = "in_doubt" if need is not None and need.kind == "doubt" else "crashed"
    if need is not None and need.kind == "doubt":
        code, last = need.name, "in flight when its process died"
    elif need is not None and need.kind == "approval":
        code, last = need.name, "asks for approval"
    elif need is not None and need.kind == "damage":
        status, last = "damaged", need.name
    if status == "waiting" and last.startswith("until"):
        last = f"Sleeps {last}"
    costs = [point.usage.cost or (point.usage.tokens_in + point.usage.tokens_out) / 1e6 for point in reversed(points)]
    return SessionLine(info, status, last, code, drawing.spark(costs))


def _hit_shape(hit: Hit) -> dict[str, Any]:
    return {
        "session": hit.session,
        "checkpoint": hit.checkpoint.id,
        "sequence": hit.checkpoint.sequence,
        "step": hit.checkpoint.step,
        "created_at": shapes.time(hit.checkpoint.created_at),
        "path": [shapes.plain(step) for step in hit.path],
        "role": None,
        "tool": None,
        "text": shapes.plain(hit.excerpt),
    }
