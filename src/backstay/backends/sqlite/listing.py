"""Many sessions: pages of lines, newest first; branches that need attention; and the totals of a store."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from backstay.backends.sqlite import schema
from backstay.backends.sqlite.connections import Connection
from backstay.backends.sqlite.views import beyond, open_body, refuse_lost_index
from backstay.codec import HELD_MARK
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.port import FoundLane, LaneQuery, LaneRow, SessionQuery, SessionRow, Sizes, live_lanes
from backstay.port.facets import time_era
from backstay.port.lease import clock_us
from backstay.port.row_codec import marks_of, open_name, open_session
from backstay.port.rows import DUE_BITS
from backstay.port.tables import is_wanted

_FOUND = (
    "SELECT l.value, l.sid, r.name, r.marks, r.body FROM lookup l LEFT JOIN rows r ON r.sid = l.sid AND r.kind = 0 "
    "WHERE l.what = ?1 AND l.value >= ?2 AND l.value < ?3"
)
# A line that is missing comes first, so that it is found to be.
_BY_TOUCHED = " AND (r.marks IS NULL OR r.marks < ?4) ORDER BY {} r.marks IS NULL DESC, r.marks DESC LIMIT ?5"
_NEWEST = "l.value DESC,"
# For facets that are asked for as well: ?6 is what they are in the index, and they themselves follow.
_LED = " AND EXISTS(SELECT 1 FROM lookup f WHERE f.what = ?6 AND f.value IN ({}) AND f.sid = l.sid AND f.at = 0)"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM lookup WHERE what = ?1 AND value >= ?2 AND value < ?3 LIMIT ?4)"
_LAST_SID = "SELECT max(sid) FROM rows"
_MARKED = (
    "SELECT l.value, l.sid, l.at, n.body FROM lookup l LEFT JOIN rows n ON n.sid = l.sid AND n.kind = 1 "
    "AND n.name = l.at WHERE l.what = ?1 AND (l.value & ?2 OR l.value >> ?3 BETWEEN 1 AND ?4)"
)
_LINE = "SELECT name, marks, body FROM rows WHERE sid = ? AND kind = 0"
_LINES = "SELECT name, marks, body FROM rows WHERE kind = 0"
_NEWEST_ERA = 2**62
_MANY, _FEW = 10_000, 1_000
_LAST_PLACE = 6
_HELD = "SELECT coalesce(sum(length(data)), 0) FROM blobs WHERE digest >= ? AND digest < ?"
_HELD_RANGE = HELD_MARK, HELD_MARK + b"\xff" * 25
_SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"


def sessions(connection: Connection, query: SessionQuery) -> list[SessionRow]:
    """A page of sessions, the one touched last first."""
    found: list[SessionRow] = []
    by_names = query.uid_start is not None or query.foreign is not None or query.hidden
    # Facets were compared in the index; a caller compares what they stand for.
    rest = query if by_names or not query.facets else msgspec.structs.replace(query, facets=())
    for group in (_named if by_names else _groups)(connection, query) if query.limit > 0 else ():
        for touched, id_, body in sorted(group, reverse=True):
            if query.before is not None and touched >= query.before:
                continue
            row = open_line(id_, touched, body)
            if is_wanted(row, rest):
                found.append(row)
                if len(found) >= query.limit:
                    return found
    if not found:
        refuse_lost_index(connection)
    return found


Range = tuple[int, Any, Any]  # a part of the index: what, from a value, up to another


def _conditions(query: SessionQuery) -> list[list[Range]]:
    """The parts of the index that lead to what is asked for: one of each, and in each all together."""
    found: list[list[Range]] = [[(schema.FACET, facet, facet + 1) for facet in some] for some in query.facets]
    if query.since_us is not None:
        found.append([(schema.TIME, time_era(query.since_us), _NEWEST_ERA)])
    if query.prefix:
        found.append([(schema.SHOWN, query.prefix, beyond(query.prefix))])
    return found


def _rarest(connection: Connection, query: SessionQuery) -> list[Range] | None:
    """A condition that few sessions meet, so that it is best to look at all of these; None if there is none.

    To look at all `m` of `n` sessions costs `m`; to look at the newest until `limit` are found, `limit * n / m`.
    """
    conditions = _conditions(query)
    if not conditions:
        return None
    last: Any = connection.execute(_LAST_SID).fetchall()[0][0]
    most = math.isqrt(min(query.limit, _MANY) * max(last or 0, _FEW)) + 1
    best: list[Range] | None = None
    for ranges in conditions:
        count = 0
        for bounds in ranges:
            counted: Any = connection.execute(_COUNT, (*bounds, most - count)).fetchall()
            count += counted[0][0]
        if count < most:
            best, most = ranges, count
    return best


def _groups(connection: Connection, query: SessionQuery) -> Iterator[list[tuple[int, str, bytes]]]:
    """Lines in groups, each newer than the next; within a group the caller sorts."""
    others, values = "", [schema.FACET] if query.facets else []
    for some in query.facets:
        places = range(_LAST_PLACE + len(values), _LAST_PLACE + len(values) + len(some))
        others += _LED.format(", ".join([f"?{place}" for place in places]))
        values += some
    before = _NEWEST_ERA if query.before is None else query.before
    rare = _rarest(connection, query)
    ranges = rare or [(schema.ERA, -_NEWEST_ERA, (before >> schema.ERA_BITS) + 1)]
    statement = _FOUND + others + _BY_TOUCHED.format("" if rare else _NEWEST)
    while True:
        found: dict[int, tuple[int, str, bytes]] = {}
        for bounds in ranges:
            rows: Any = connection.execute(statement, (*bounds, before, query.limit, *values))
            for value, sid, id_, touched, body in rows:
                found[sid] = _columns(sid, touched, id_, body)
                if not rare and value != touched >> schema.ERA_BITS:
                    raise _stray(sid)
        group = sorted(found.values(), reverse=True)[: query.limit]
        yield group
        if len(group) < query.limit:
            return
        before = group[-1][0]


def _named(connection: Connection, query: SessionQuery) -> Iterator[list[tuple[int, str, bytes]]]:
    """All that have a uid, a foreign id, or a hidden name, in one group."""
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
    held: Any = connection.execute(_HELD, _HELD_RANGE).fetchall() if connection.has("blobs") else ((0,),)
    return Sizes(len(lines), checkpoints, logical, stored, held[0][0])
