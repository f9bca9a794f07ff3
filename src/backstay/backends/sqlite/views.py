"""From an Ask to a View: what the rows of one session say, inside a transaction of the caller's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from backstay.backends.sqlite import journals, packed, schema
from backstay.backends.sqlite.connections import Connection, is_damage
from backstay.backends.sqlite.schema import key_of, sequence_in
from backstay.errors import CorruptionError
from backstay.hints import REPAIR, RUN_VERIFY
from backstay.ids import MAX_SEQUENCE, sequence_of
from backstay.model import counted
from backstay.port import Ask, CallRow, CheckpointRow, LaneRow, SessionRow, TagRow, Unreadable, View, live_lanes
from backstay.port.lease import clock_ns
from backstay.port.row_codec import (
    known_lines,
    known_names,
    marks_of,
    open_checkpoint,
    open_checkpoints,
    open_name,
    open_names,
    open_session,
)

# A session's line and one of its names in one go: what most writes look at.
_LINE = (
    "SELECT l.sid, r.marks, r.body, n.marks, n.body FROM lookup l "
    "LEFT JOIN rows r ON r.sid = l.sid AND r.kind = 0 AND r.name = ?2 "
    "LEFT JOIN rows n ON n.sid = l.sid AND n.kind = 1 AND n.name = ?3 WHERE l.what = ?1 AND l.value = ?2"
)
_LAST_ROW = "SELECT sid, kind, name, body FROM rows ORDER BY sid DESC, kind DESC, name DESC LIMIT 1"
_LEADS = (
    "SELECT EXISTS(SELECT 1 FROM rows r CROSS JOIN lookup l ON l.what IN (?2, ?3) AND l.value = r.name AND l.sid = ?1 "
    "WHERE r.sid = ?1 AND r.kind = 0)"
)
_ANY_ENTRY = "SELECT EXISTS(SELECT 1 FROM lookup)"
_NAME = "SELECT marks, body FROM rows WHERE sid = ? AND kind = 1 AND name = ?"
_NAMES = "SELECT name, marks, body FROM rows WHERE sid = ? AND kind = 1 ORDER BY name"
_COUNT_NAMES = "SELECT count(DISTINCT name) FROM rows WHERE sid = ? AND kind = 1"
# Each once: a page that stands in the place of another shows its rows twice.
_COUNT = "SELECT count(*) FROM checkpoints WHERE key BETWEEN ? AND ?"
# Keys that do not rise are those of a page that stands in the place of another: SQLite itself takes them for distinct.
_COUNT_RISING = (
    "SELECT count(*) - coalesce(sum(key <= before), 0) FROM "
    "(SELECT key, lag(key) OVER () AS before FROM checkpoints WHERE key BETWEEN ? AND ?)"
)
_CHECKPOINT = "SELECT parent, body FROM checkpoints WHERE key = ?"
_PARENT = "SELECT parent FROM checkpoints WHERE key = ?"
_BY_VALUE = "SELECT at FROM lookup WHERE what = ? AND value = ? AND sid = ? ORDER BY at"
_BY_START = "SELECT value, at FROM lookup WHERE what = ? AND value >= ? AND value < ? AND sid = ?"

_MANY = 8
_DOWN = "SELECT key, parent, body FROM checkpoints WHERE key BETWEEN ?1 AND ?2 ORDER BY key DESC"
# So many at a time: a statement is prepared once for each number. What is left over is asked for twice.
_BLOBS = {count: f"SELECT digest, data FROM blobs WHERE digest IN ({', '.join('?' * count)})" for count in (1, 8, 64)}


class Line(NamedTuple):
    """A session's line, its inner number, and a name that was asked for along with it."""

    sid: int
    row: SessionRow
    name: LaneRow | TagRow | None = None
    marks: int = 0  # of that name


def look(connection: Connection, ask: Ask, *, fresh: int) -> tuple[Line | None, View]:
    """What holds, as far as asked."""
    view = View(now_us=clock_ns() // 1000, wall_us=time.time_ns() // 1000, fresh=fresh)
    if ask.beside is not None:
        other = find_line(connection, ask.beside)
        view.beside = None if other is None else other.row
    asked = ask.names
    line = find_line(connection, ask.session, hidden=ask.hidden, name=asked[0] if asked else None)
    if line is None:
        return None, view
    view.session = line.row
    if asked is not None and len(asked) == 1 and line.name is not None:
        named = {asked[0]: line.name}
    else:
        named = {} if asked == () else _names(connection, line, asked)
    lanes: dict[str, LaneRow] = {}
    tags: dict[str, TagRow] = {}
    claimed = runs = False
    for name, row in named.items():
        if type(row) is LaneRow:
            lanes[name] = row
            claimed |= row.claim is not None
            runs |= row.run > 0
        else:
            tags[name] = row  # type: ignore[assignment]
    view.lanes, view.tags = lanes, tags
    if claimed:
        view.live = live_lanes(lanes.values(), now_us=view.now_us, wall_us=view.wall_us)
    if ask.heads or ask.sequences or ask.ids or ask.prefix:
        wanted = [*ask.sequences, *(_heads(view) if ask.heads else ())]
        if wanted or ask.ids or ask.prefix:
            _checkpoints(connection, line, ask, view, wanted)
    if ask.segments:
        kept = [packed.find_row(connection, line.sid, at) for at in ask.segments if at <= line.row.packed]
        view.segments = {row.key if isinstance(row, Unreadable) else row.first: row for row in kept if row is not None}  # type: ignore[misc]
    if ask.children_of:
        view.children = _children(connection, line, ask.children_of)
    if runs or ask.calls or ask.journals:
        _look_at_calls(connection, line, ask, view)
    elif ask.pending != ():
        pending: dict[str, list[CallRow | Unreadable]] = {}
        for name in lanes:
            if ask.pending is None or name in ask.pending:
                pending[name] = []
        view.pending = pending
    return line, view


def _look_at_calls(connection: Connection, line: Line, ask: Ask, view: View) -> None:
    """What was asked about calls. A branch on which no run ever was has none."""
    sid, uid, lanes = line.sid, line.row.uid, view.lanes
    if ask.pending is None or ask.pending:
        pending: dict[str, Sequence[CallRow | Unreadable]] = {}
        for name in lanes if ask.pending is None else ask.pending:
            lane = lanes.get(name)
            if lane is not None:
                at = lane.run, lane.journal
                pending[name] = journals.calls_under(connection, sid, uid, at) if lane.run > 0 else []
        view.pending = pending
    if ask.counted:
        counts: dict[str, int] = {}
        for name in ask.counted:
            lane = lanes.get(name)
            if lane is not None:
                counts[name] = journals.count_under(connection, sid, (lane.run, lane.journal)) if lane.run > 0 else 0
        view.counts = counts
    if ask.calls:
        view.calls = journals.single_calls(connection, sid, uid, ask.calls)
    if ask.journals:
        view.journals = {at: journals.calls_under(connection, sid, uid, at) for at in ask.journals}


def find_line(connection: Connection, id_: str, *, hidden: bool = False, name: str | None = None) -> Line | None:
    """A session's line, with a branch or tag of it."""
    what = schema.HIDDEN if hidden else schema.SHOWN
    found: Any = connection.execute(_LINE, (what, id_, name)).fetchone()
    if found is None:
        refuse_lost_index(connection)
        return None
    sid, touched, body, marks, named = found
    if body is None:
        raise CorruptionError(f"the line of session {id_!r} is missing", hint="run verify")
    row = known_lines.get((body, id_))
    if row is None or row.hidden is not hidden:
        row = open_session(body if type(body) is bytes else open_body(body), id_=id_, hidden=hidden)
    if row.touched != touched:
        raise CorruptionError(f"the line of session {id_!r} does not agree with its index", hint="run verify")
    if named is None or name is None:
        return Line(sid, row)
    known = known_names.get((named, row.uid, name))
    found_name = _open_name(row, name, marks, named) if known is None else known[0]
    if known is not None and marks != known[1]:
        raise _marks_disagree(name)
    return Line(sid, row, found_name, marks)


def refuse_lost_index(connection: Connection) -> None:
    """CorruptionError if all sessions seem absent because the pages that lead to them were lost, or exchanged."""
    last: Any = connection.execute(_LAST_ROW).fetchone()
    if last is None:
        known = connection.execute(_ANY_ENTRY).fetchall() == [(0,)]
    else:
        shapes = [type(column) for column in last]
        known = shapes == [int, int, str, bytes]
        known &= connection.execute(_LEADS, (last[0], schema.SHOWN, schema.HIDDEN)).fetchall() == [(1,)]
    if not known:
        raise CorruptionError("the index of sessions is damaged", hint=REPAIR)


def open_body(value: Any) -> bytes:
    """The bytes of a row's body; a column of another type is a row of another table, where pages were exchanged."""
    if type(value) is not bytes:
        raise CorruptionError("a row of the store is damaged", hint=RUN_VERIFY)
    return value


def beyond(start: str) -> str | bytes:
    """What comes after all texts that begin like this; SQLite orders bytes after every text."""
    stem = start.rstrip(chr(0x10FFFF))
    if not stem:
        return b""
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # noqa: PLR2004 - no half of a pair


def _open_name(session: SessionRow, name: str, marks: Any, body: Any) -> LaneRow | TagRow:
    row = open_name(open_body(body), uid=session.uid, name=name)
    if marks != marks_of(row):
        raise _marks_disagree(name)
    return row


def _marks_disagree(name: str) -> CorruptionError:
    return CorruptionError(f"the row of {name!r} does not agree with its index", hint="run verify")


def _names(connection: Connection, line: Line, asked: tuple[str, ...] | None) -> dict[str, LaneRow | TagRow]:
    sid, session = line.sid, line.row
    if asked is None:
        found: Any = connection.execute(_NAMES, (sid,)).fetchall()
        names = open_names(found, uid=session.uid)
        tags = sum([type(row) is TagRow for row in names.values()])
        if not session.hidden and (len(names) - tags, tags) != (session.lanes, session.tags):
            raise _names_missing(session)
        return names
    names = {}
    for name in asked:
        row = line.name
        if row is None or name != row.name:
            one: Any = connection.execute(_NAME, (sid, name)).fetchone() if name != asked[0] else None
            row = None if one is None else _open_name(session, name, *one)
        if row is not None:
            names[name] = row
    if len(names) < len(set(asked)):
        refuse_miscounted_names(connection, line)
    return names


def refuse_miscounted_names(connection: Connection, line: Line) -> None:
    """CorruptionError if a name that seems absent was not deleted, but lost.

    Names are counted once, and then followed until another connection writes: a fork costs the same among thousands.
    """
    if connection.names is None or connection.names[0] != line.sid:
        counts: Any = connection.execute(_COUNT_NAMES, (line.sid,)).fetchall()
        connection.names = line.sid, counts[0][0]
    count = connection.names[1]
    # A hidden session comes or goes in portions: its counts are those of the whole.
    if not line.row.hidden and count != line.row.lanes + line.row.tags:
        raise _names_missing(line.row)


def _names_missing(session: SessionRow) -> CorruptionError:
    return CorruptionError(f"session {session.id!r} has other names than it counts", hint=RUN_VERIFY)


# checkpoints


def find_checkpoint(
    connection: Connection, line: Line, sequence: int, *, packed_too: bool = True
) -> CheckpointRow | Unreadable | None:
    """One checkpoint; None if there is none, which the caller verifies with `refuse_miscount`.

    One that is packed comes without its delta.
    """
    if not 0 < sequence <= MAX_SEQUENCE:
        return None
    try:
        if packed_too and sequence <= line.row.packed:
            segment = packed.find(connection, line.sid, line.row.uid, sequence)
            if segment is None:
                return None
            return Unreadable(sequence, segment.why) if isinstance(segment, Unreadable) else segment.row(sequence)
        found: Any = connection.execute(_CHECKPOINT, (key_of(line.sid, sequence),)).fetchone()
    except apsw.Error as error:
        if not is_damage(error):
            raise
        return Unreadable(sequence, f"checkpoint #{sequence} is in a damaged page")
    return None if found is None else open_found(line, sequence, *found)


def open_found(line: Line, sequence: int, parent: Any, body: Any) -> CheckpointRow | Unreadable:
    """A checkpoint from its columns."""
    if type(body) is not bytes or not isinstance(parent, int | None):
        return Unreadable(sequence, f"checkpoint #{sequence} is damaged")
    return open_checkpoint(body, uid=line.row.uid, sequence=sequence, parent=parent)


def refuse_miscount(connection: Connection, line: Line, count_by: str = _COUNT_RISING) -> None:
    """CorruptionError if a checkpoint that seems absent was not deleted, but lost."""
    counts: Any = connection.execute(count_by, (key_of(line.sid, 0), key_of(line.sid, MAX_SEQUENCE))).fetchall()
    count = counts[0][0]
    if line.row.packed:
        count += packed.count(connection, line.sid, line.row.uid)
    if not line.row.hidden and count != line.row.checkpoints:
        message = f"session {line.row.id!r}: it has {counted(count, 'checkpoint')} and counts {line.row.checkpoints}"
        raise CorruptionError(message, hint=RUN_VERIFY)


def _heads(view: View) -> list[int]:
    """The checkpoints that the names in a view lead to."""
    heads = [lane.head.sequence for lane in view.lanes.values() if lane.head is not None]
    return heads + [tag.sequence for tag in view.tags.values()]


def _checkpoints(connection: Connection, line: Line, ask: Ask, view: View, wanted: Iterable[int]) -> None:
    found: dict[int, CheckpointRow | Unreadable] = {}
    foreign: dict[str, int] = {}
    missing = False
    for sequence, row in _wanted(connection, line, list(dict.fromkeys(wanted))):
        if row is not None:
            found[sequence] = row
        missing |= row is None and sequence <= line.row.sequence
    for id_ in ask.ids:
        sequence = sequence_of(id_, line.row.uid) or 0
        row = find_checkpoint(connection, line, sequence)
        if row is None or (isinstance(row, CheckpointRow) and row.id != id_):
            entry: Any = connection.execute(_BY_VALUE, (schema.FOREIGN, id_, line.sid)).fetchone()
            missing |= row is None and 0 < sequence <= line.row.sequence
            if entry is None:
                continue
            sequence = foreign[id_] = entry[0]
            row = _foreign(connection, line, id_, sequence)
        found[sequence] = row
    if ask.prefix:
        starting: Any = connection.execute(_BY_START, (schema.FOREIGN, ask.prefix, beyond(ask.prefix), line.sid))
        foreign |= dict(starting)
    if missing:
        refuse_miscount(connection, line)
    view.checkpoints, view.foreign = found, foreign


def _wanted(
    connection: Connection, line: Line, wanted: list[int]
) -> Iterator[tuple[int, CheckpointRow | Unreadable | None]]:
    """Checkpoints by sequence; where many lie side by side, as those that are packed together do, in one go."""
    first, last = (min(wanted), max(wanted)) if len(wanted) >= _MANY else (0, 0)
    if line.row.packed < first and last - first < 2 * len(wanted):
        try:
            rows: Any = connection.execute(_DOWN, (key_of(line.sid, first), key_of(line.sid, last))).fetchall()
        except apsw.Error as error:
            if not is_damage(error):
                raise
        else:
            columns = [(sequence_in(key), parent, body) for key, parent, body in rows]
            if all([type(body) is bytes and isinstance(parent, int | None) for _, parent, body in columns]):
                opened = open_checkpoints(columns, uid=line.row.uid)
                there = dict(zip([column[0] for column in columns], opened, strict=True))
                yield from [(sequence, there.get(sequence)) for sequence in wanted]
                return
    for sequence in wanted:
        yield sequence, find_checkpoint(connection, line, sequence)


def _foreign(connection: Connection, line: Line, id_: str, sequence: int) -> CheckpointRow | Unreadable:
    row = find_checkpoint(connection, line, sequence)
    if row is None or (isinstance(row, CheckpointRow) and row.id != id_):
        raise CorruptionError(
            f"session {line.row.id!r}: checkpoint {id_!r} is not where its index says", hint=RUN_VERIFY
        )
    return row


def _children(connection: Connection, line: Line, parents: Iterable[int]) -> dict[int, list[int]]:
    """Those in the index, and the next one: where it rests on this one, it is not in the index."""
    found: dict[int, list[int]] = {}
    missing = False
    for parent in parents:
        if not 0 < parent < MAX_SEQUENCE:
            found[parent] = []
            continue
        rows: Any = connection.execute(_BY_VALUE, (schema.CHILD, key_of(line.sid, parent), line.sid)).fetchall()
        following = _parent_of(connection, line, parent + 1)
        found[parent] = [*([parent + 1] if following == (parent,) else []), *[at for (at,) in rows]]
        missing |= following is None and parent < line.row.sequence
    if missing:
        refuse_miscount(connection, line, _COUNT)
    return found


def _parent_of(connection: Connection, line: Line, sequence: int) -> Any:
    """What the next checkpoint rests on, as a column; None if there is none."""
    if sequence > line.row.packed:
        return connection.execute(_PARENT, (key_of(line.sid, sequence),)).fetchone()
    segment = packed.find(connection, line.sid, line.row.uid, sequence)
    if isinstance(segment, Unreadable) or (segment is not None and segment.broken):
        raise CorruptionError(f"session {line.row.id!r}: a segment of it is damaged", hint=RUN_VERIFY)
    at = None if segment is None else segment.place(sequence)
    return None if at is None or segment is None else (segment.parent(at),)


# along the parents


def walk(
    connection: Connection, line: Line, sequence: int, *, expected: bool, delta: bool = False
) -> Iterator[CheckpointRow | Unreadable]:
    """A checkpoint and its ancestors along `parent`, newest first; Unreadable where one is missing.

    Most rest on the one before, so they are read as they lie; where one does not, its parent is looked for. Those that
    are packed have their delta where that is asked for.
    `expected`: something leads to the first; otherwise it may be absent, and then nothing comes.
    """
    at: int | None = sequence
    while at is not None and 0 < at <= MAX_SEQUENCE:
        here = at
        try:
            if at <= line.row.packed:
                for row in packed.line(connection, line.sid, line.row.uid, at, delta=delta):
                    yield row
                    at, expected = row.parent, True
                if at is None:
                    return
                if at != here:
                    continue
            rows: Any = connection.execute(_DOWN, (key_of(line.sid, line.row.packed), key_of(line.sid, at)))
            for key, parent, body in rows:
                if sequence_in(key) != at:
                    break
                row = open_found(line, at, parent, body)
                yield row
                at, expected = row.parent, True
                if at is None:
                    return
        except apsw.Error as error:
            if not is_damage(error):
                raise
            if at == here:
                yield Unreadable(here, f"checkpoint #{here} is in a damaged page")
                return
        if at == here:
            if expected:
                yield Unreadable(here, f"checkpoint #{here} is missing")
            return


# blobs


def blobs(connection: Connection, digests: Iterable[bytes]) -> dict[bytes, bytes]:
    """Blobs as they are kept; what is not here is left out."""
    if not connection.has("blobs"):
        return {}
    found: dict[bytes, bytes] = {}
    wanted = list(digests)
    for start in range(0, len(wanted), 64):
        some = wanted[start : start + 64]
        count = next(count for count in _BLOBS if count >= len(some))
        rows: Any = connection.execute(_BLOBS[count], (*some, *some[-1:] * (count - len(some))))
        found.update([(digest, open_body(data)) for digest, data in rows])
    return found
