"""Many sessions: pages of lines, newest first; branches that need attention; and the totals of a store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from backstay.backends.sqlite import schema
from backstay.backends.sqlite.connections import Connection
from backstay.backends.sqlite.views import beyond, open_body, refuse_lost_index
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.port import FoundLane, LaneQuery, LaneRow, SessionQuery, SessionRow, Sizes, live_lanes
from backstay.port.lease import clock_us
from backstay.port.row_codec import marks_of, open_name, open_session
from backstay.port.rows import DUE_BITS

_FOUND = (
    "SELECT l.value, l.sid, r.name, r.marks, r.body FROM lookup l LEFT JOIN rows r ON r.sid = l.sid AND r.kind = 0 "
    "WHERE l.what = ?1 AND l.value >= ?2 AND l.value < ?3"
)
_BY_ERA = f"{_FOUND} ORDER BY l.value DESC"
_MARKED = (
    "SELECT l.value, l.sid, l.at, n.body FROM lookup l LEFT JOIN rows n ON n.sid = l.sid AND n.kind = 1 "
    "AND n.name = l.at WHERE l.what = ?1 AND (l.value & ?2 OR l.value >> ?3 BETWEEN 1 AND ?4)"
)
_LINE = "SELECT name, marks, body FROM rows WHERE sid = ? AND kind = 0"
_LINES = "SELECT name, marks, body FROM rows WHERE kind = 0"
_NEWEST_ERA = 2**55
_SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"


def sessions(connection: Connection, query: SessionQuery) -> list[SessionRow]:
    """A page of sessions, the one touched last first."""
    found: list[SessionRow] = []
    for group in _groups(connection, query) if query.limit > 0 else ():
        for touched, id_, body in sorted(group, reverse=True):
            if query.before is not None and touched >= query.before:
                continue
            row = open_line(id_, touched, body)
            if _matches(row, query):
                found.append(row)
                if len(found) >= query.limit:
                    return found
    if not found:
        refuse_lost_index(connection)
    return found


def _groups(connection: Connection, query: SessionQuery) -> Iterator[list[tuple[int, str, bytes]]]:
    """Lines in groups, each newer than the next; within a group the caller sorts."""
    if query.uid_start is None and query.foreign is None and not query.prefix and not query.hidden:
        era: int | None = None
        group: list[tuple[int, str, bytes]] = []
        newest = _NEWEST_ERA if query.before is None else (query.before >> schema.ERA_BITS) + 1
        rows: Any = connection.execute(_BY_ERA, (schema.ERA, -_NEWEST_ERA, newest))
        for value, sid, id_, touched, body in rows:
            columns = _columns(sid, touched, id_, body)
            if columns[0] >> schema.ERA_BITS != value:
                raise _stray(sid)
            if value != era and group:
                yield group
                group = []
            era = value
            group.append(columns)
        yield group
        return
    what: Any = (schema.HIDDEN if query.hidden else schema.SHOWN, query.prefix, beyond(query.prefix))
    if query.uid_start is not None:
        start = query.uid_start[: schema.UID_START_BYTES]
        what = (schema.UID, start, start + b"\xff" * (schema.UID_START_BYTES + 1))
    elif query.foreign is not None:
        what = _foreign(query)
    picked: dict[int, tuple[int, str, bytes]] = {}
    rows = connection.execute(_FOUND, what)
    for _, sid, id_, touched, body in rows:
        picked[sid] = _columns(sid, touched, id_, body)
    if query.foreign is not None and query.uid_start is not None:
        having: Any = connection.execute(_FOUND, _foreign(query))
        sids = {sid for _, sid, _, _, _ in having}
        picked = {sid: line for sid, line in picked.items() if sid in sids}
    yield list(picked.values())


def _foreign(query: SessionQuery) -> tuple[int, str, str | bytes]:
    """The range of the index that holds a foreign id, or those that begin like it."""
    id_ = query.foreign or ""
    return schema.FOREIGN, id_, beyond(id_) if query.foreign_start else id_ + "\0"


def _columns(sid: int, *columns: Any) -> tuple[int, str, bytes]:
    """The columns of a line, if they are those of one; other shapes are rows of another table."""
    if [type(column) for column in columns] != [int, str, bytes]:
        raise _stray(sid)
    touched, id_, body = columns
    return touched, id_, body


def open_line(id_: Any, touched: Any, body: Any) -> SessionRow:
    """A session's line from its columns, hidden or not."""
    if not isinstance(id_, str):
        raise CorruptionError("the line of a session is damaged", hint=RUN_VERIFY)
    row = open_session(open_body(body), id_=id_, hidden=None)
    if row.touched != touched:
        raise CorruptionError(f"the line of session {id_!r} does not agree with its index", hint=RUN_VERIFY)
    return row


def _stray(sid: int) -> CorruptionError:
    return CorruptionError(f"the index of sessions leads to number {sid}, which is not there", hint=RUN_VERIFY)


def _matches(row: SessionRow, query: SessionQuery) -> bool:
    return (
        row.hidden == query.hidden
        and (query.status is None or row.status == query.status)
        and (query.agent is None or row.agent == query.agent)
        and row.id.startswith(query.prefix)
        and (query.uid_start is None or row.uid.startswith(query.uid_start))
    )


def lanes(connection: Connection, query: LaneQuery) -> list[FoundLane]:
    """Branches that have one of some marks, the session touched last first."""
    now_us, wall_us = clock_us(), time.time_ns() // 1000
    lines: dict[int, SessionRow] = {}
    found: list[FoundLane] = []
    due_ms = wall_us // 1000 if query.due else 0
    rows: Any = connection.execute(_MARKED, (schema.MARKS, query.marks, DUE_BITS, due_ms)).fetchall()
    if not rows:
        refuse_lost_index(connection)
    for marks, sid, name, body in rows:
        if sid not in lines:
            line: Any = connection.execute(_LINE, (sid,)).fetchone()
            if line is None:
                raise _stray(sid)
            lines[sid] = open_line(*line)
        lane = None if body is None else open_name(open_body(body), uid=lines[sid].uid, name=name)
        if not isinstance(lane, LaneRow) or marks_of(lane) != marks:
            raise CorruptionError(f"the index of branches leads to {name!r}, which is another", hint=RUN_VERIFY)
        if not lines[sid].hidden:
            live = lane.name in live_lanes([lane], now_us=now_us, wall_us=wall_us)
            found.append(FoundLane(lines[sid], lane, live))
    return sorted(found, key=lambda pair: (-pair.session.touched, pair.lane.name))


def sizes(connection: Connection) -> Sizes:
    """Totals over all sessions, and the size of the store's file."""
    rows: Any = connection.execute(_LINES)
    lines = [row for row in [open_line(*columns) for columns in rows] if not row.hidden]
    stored: Any = connection.execute(_SIZE).fetchall()[0][0]
    checkpoints, logical = sum([row.checkpoints for row in lines]), sum([row.logical_bytes for row in lines])
    return Sizes(len(lines), checkpoints, logical, stored)
