"""Reading beyond one ask: states, ancestors, pages of rows and of sessions, blobs. One statement, one moment each."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from backstay.backends.postgres import foreign_ids, packed
from backstay.backends.postgres.functions import LINKS
from backstay.backends.postgres.pool import Wire
from backstay.backends.postgres.protocol import (
    BOOL,
    BYTES,
    BYTES_LIST,
    INT,
    INT_LIST,
    pack_bool,
    pack_int,
    pack_int_lines,
    pack_ints,
    pack_texts,
    rows_of,
    text_bytes,
)
from backstay.backends.postgres.views import (
    count_checkpoints,
    count_names,
    line_columns,
    name_columns,
    name_of,
    session_of,
)
from backstay.codec import HELD_MARK, is_held
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.ids import MAX_SEQUENCE
from backstay.port import (
    CheckpointRow,
    FoundLane,
    Key,
    KeyframeRow,
    Kind,
    LaneQuery,
    LaneRow,
    Records,
    Row,
    SegmentRow,
    SessionQuery,
    SessionRow,
    Sizes,
    TagRow,
    Unreadable,
    live_lanes,
)
from backstay.port.facets import time_era
from backstay.port.row_codec import open_call, open_checkpoint, open_name, open_session
from backstay.port.rows import DUE_BITS
from backstay.port.segments import open_segment
from backstay.port.tables import named_by
from backstay.sealing import CUT

_STATE = "SELECT * FROM {schema}.state_2(%s, %s, %s, %s, %s)"
_STATE_TYPES = (BYTES, BYTES, INT, INT_LIST, INT)
_SESSION, _NAME, _ROW, _KEYFRAME, _BLOB, _NO_NAME, _NO_ROW, _LOST, _SEGMENT = range(9)
_DIGEST_BYTES = 32

_COLUMNS = {
    Kind.NAME: ("names", "name, marks, run, journal, sequence, body", ("name",)),
    Kind.KEYFRAME: ("keyframes", "sequence, body", ("sequence",)),
    Kind.CALL: ("calls", "run, journal, n, body", ("run", "journal", "n")),
}
# The session, its checkpoints that are not packed, and as many of its segments as make a page: by what those before
# each have (checkpoints, or themselves), and by their bytes. `more` says how many there are.
_HISTORY = """
WITH line AS (SELECT sid, body FROM {schema}.sessions WHERE hidden = %s AND id = %s),
own AS (
  SELECT c.sequence, c.parent, c.body FROM {schema}.checkpoints c JOIN line l ON c.sid = l.sid
  WHERE c.sequence > 0 AND c.sequence > %s AND c.sequence < %s ORDER BY c.sequence ASC LIMIT %s),
packed AS (
  SELECT g.*, count(*) OVER () AS more,
    sum(CASE WHEN %s THEN 1 WHEN g.first > b.low AND g.last < b.high THEN g.entries ELSE 0 END) OVER w AS entered,
    sum(octet_length(g.body)) OVER w AS weight
  FROM (SELECT sid, %s AS low, %s AS high FROM line) b JOIN {schema}.segments g
  ON g.sid = b.sid AND g.last > b.low AND g.first < b.high
  WINDOW w AS (ORDER BY g.first ASC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
SELECT 0, 0::bigint, 0::bigint, 0::bigint, body FROM line
UNION ALL SELECT 2, sequence, parent, 0, body FROM own
UNION ALL SELECT 8, first, last, more, {links} || body FROM packed
WHERE entered IS NULL OR (entered < %s AND weight < %s) ORDER BY 1, 2 ASC
""".replace("{links}", LINKS)
_PAGE_BYTES = 4 * 1024 * 1024
_SESSIONS = "SELECT * FROM {schema}.sessions_2(" + ", ".join(["%s"] * 9) + ")"
_SESSIONS_TYPES = (BOOL, INT, INT, INT_LIST, BYTES_LIST, BYTES_LIST, BYTES_LIST, BYTES_LIST, INT)
_LANES = "SELECT * FROM {schema}.lanes_2(%s, %s, %s)"
_LANES_TYPES = (INT, INT, BOOL)
_BLOBS = "SELECT digest, data FROM {schema}.blobs WHERE digest = ANY(%s::bytea[])"
_HERE = (
    "SELECT digest FROM {schema}.blobs WHERE digest = ANY(%s::bytea[]) "
    "AND NOT (digest BETWEEN %s AND %s AND substr(data, 1, 1) = %s)"
)
_NEW_BLOBS = (
    "INSERT INTO {schema}.blobs(digest, data) SELECT * FROM unnest(%s::bytea[], %s::bytea[]) AS b(digest, data) "
    "ORDER BY b.digest ON CONFLICT (digest) DO NOTHING"
)
_WHOLE_AGAIN = (
    "UPDATE {schema}.blobs b SET data = n.data FROM unnest(%s::bytea[], %s::bytea[]) AS n(digest, data) "
    "WHERE b.digest = n.digest AND substr(b.data, 1, 1) = %s AND substr(n.data, 1, 1) <> %s"
)
_SIZES = (
    "SELECT count(*), coalesce(sum(checkpoints), 0)::bigint, coalesce(sum(logical), 0)::bigint, "
    "(SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = "
    "(SELECT m.relnamespace FROM pg_class m WHERE m.oid = '{schema_text}.meta'::regclass)), "
    "(SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM {schema}.blobs WHERE digest BETWEEN %s AND %s) "
    "FROM {schema}.sessions WHERE NOT hidden"
)
_CHANGES = "SELECT hashtextextended(pg_current_snapshot()::text, 0)"

_HELD = HELD_MARK, HELD_MARK + b"\xff" * 24
_BLOBS_AT_ONCE = 64
_BYTES_AT_ONCE = 16 * 1024 * 1024


def state(wire: Wire, session: str, ref: str | int, without: Collection[int], *, salvage: bool) -> Records:
    """See the port."""
    found = _Found(wire, session, ref, without=without)
    line = found.line
    if line is None:
        return Records(None)
    at = ref if isinstance(ref, int) else named_by(found.name)
    at = None if found.is_absent else at
    lane = found.name if isinstance(found.name, LaneRow) else None
    if at is not None and not salvage and not without:
        straight = packed.straight(at, found.rows, found.segments, uid=line.uid, stop=found.stop)
        if straight is not None:
            return Records(line, lane, straight, found.keyframe, found.blobs)
    rows: list[CheckpointRow | Unreadable] = []
    for row in packed.walk(at, found.rows, found.segments, uid=line.uid, delta=True) if at is not None else ():
        if isinstance(row, Unreadable) and not salvage:
            raise CorruptionError(f"session {session!r}: {row.why}", hint=RUN_VERIFY)
        rows.append(row)
        if (row.sequence if isinstance(row, CheckpointRow) else row.key) == found.stop:
            break
    return Records(line, lane, tuple(rows[::-1]), found.keyframe, found.blobs)


class _Found:
    """The server's answer about a state or a line of ancestors."""

    def __init__(
        self, wire: Wire, session: str, ref: str | int, *, without: Collection[int] = (), limit: int | None = None
    ) -> None:
        self.line: SessionRow | None = None
        self.name: LaneRow | TagRow | None = None
        self.rows: dict[int, CheckpointRow | Unreadable] = {}
        self.segments: dict[int, SegmentRow] = {}
        self.keyframe: bytes | None = None
        self.stop: int | None = None  # whose that is
        self.blobs: dict[bytes, bytes] = {}
        self.is_absent = False  # there is no such checkpoint
        sent = [
            text_bytes(session),
            text_bytes(ref) if isinstance(ref, str) else None,
            None if isinstance(ref, str) else pack_int(ref),
            pack_ints(list(without)),
            None if limit is None else pack_int(limit),
        ]
        count = None
        for kind, number, parent, body in rows_of(wire.call(_STATE, sent, _STATE_TYPES)):
            if kind == _SESSION:
                self.line = session_of(body, session, number)
                continue
            assert self.line is not None  # noqa: S101 - it comes first
            if kind == _NAME:
                self.name = open_name(body, uid=self.line.uid, name=str(ref))
                if name_columns(self.name)[-1] != number:
                    raise CorruptionError(f"the row of {ref!r} does not agree with its index", hint=RUN_VERIFY)
            elif kind == _ROW:
                self.rows[number] = open_checkpoint(body, uid=self.line.uid, sequence=number, parent=parent)
            elif kind == _SEGMENT:
                kept = packed.segment_of(body)
                self.segments[kept.first] = kept
            elif kind == _KEYFRAME:
                self.keyframe, self.stop = body, number
            elif kind == _BLOB:
                self.blobs[body[:_DIGEST_BYTES]] = body[_DIGEST_BYTES:]
            elif kind == _NO_NAME:
                count_names(self.line, number)
            elif kind == _NO_ROW:
                count = number
        if self.line is not None and count is not None and isinstance(ref, int):
            kept_at = packed.covering(self.segments, ref)
            if kept_at is None or open_segment(kept_at, uid=self.line.uid).place(ref) is None:
                count_checkpoints(self.line, count)
                self.is_absent = True


def ancestors(wire: Wire, session: str, sequence: int, limit: int) -> list[CheckpointRow | Unreadable]:
    """See the port."""
    found = _Found(wire, session, sequence, limit=limit)
    if found.line is None or found.is_absent:
        return []
    line = packed.walk(sequence, found.rows, found.segments, uid=found.line.uid, delta=False)
    return list(itertools.islice(line, limit))


def scan(
    wire: Wire, session: str, kind: Kind, after: Key | None, before: Key | None, limit: int, *, hidden: bool
) -> list[Row | Unreadable]:
    """See the port."""
    if kind in (Kind.CHECKPOINT, Kind.SEGMENT):
        return _scan_history(wire, session, kind, after, before, limit, hidden=hidden)
    if kind not in _COLUMNS:
        return []
    table, columns, key = _COLUMNS[kind]
    names = ", ".join([f"r.{column}" for column in key])
    bounds: list[Any] = []
    where = ""
    for bound, sign in ((after, ">"), (before, "<")):
        if bound is not None:
            where += f" AND ({names}) {sign} ({', '.join(['%s'] * len(key))})"
            bounds += bound if isinstance(bound, tuple) else [text_bytes(bound) if isinstance(bound, str) else bound]
    order = ", ".join([f"{column}{' DESC' if before is not None else ''}" for column in key])
    statement = (
        f"SELECT s.body, t.* FROM {{schema}}.sessions s LEFT JOIN LATERAL (SELECT {columns} FROM {{schema}}.{table} r "
        f"WHERE r.sid = s.sid{where} ORDER BY {order} LIMIT %s) t ON true WHERE s.hidden = %s AND s.id = %s "
        f"ORDER BY {order}"
    )
    rows = wire.rows(statement, *bounds, limit, hidden, text_bytes(session))
    if not rows:
        return []
    uid = open_session(rows[0][0], id_=session, hidden=hidden).uid
    return [_row(kind, uid, *row) for _, *row in rows if row[-1] is not None]


def _scan_history(
    wire: Wire, session: str, kind: Kind, after: Key | None, before: Key | None, limit: int, *, hidden: bool
) -> list[Row | Unreadable]:
    """A page of segments; or of checkpoints, first those that are packed or, downwards, first those that are not."""
    low = after if isinstance(after, int) else 0
    high = before if isinstance(before, int) else MAX_SEQUENCE + 1
    down = before is not None
    bounds = low, high, limit if kind is Kind.CHECKPOINT else 0
    statement = _HISTORY.replace("ASC", "DESC") if down else _HISTORY
    found = wire.rows(
        statement, hidden, text_bytes(session), *bounds, kind is Kind.SEGMENT, low, high, limit, _PAGE_BYTES
    )
    if not found:
        return []
    uid = open_session(found[0][4], id_=session, hidden=hidden).uid
    rows: list[Row | Unreadable] = []
    kept: list[SegmentRow] = []
    whole = True
    for what, number, parent, more, body in found[1:]:
        if what == _ROW:
            rows.append(open_checkpoint(body, uid=uid, sequence=number, parent=parent))
        else:
            kept.append(packed.segment_of(body))
            whole = len(kept) == more
    if kind is Kind.SEGMENT:
        return list(kept)
    inside: list[Row | Unreadable] = []
    for row in kept:
        segment = open_segment(row, uid=uid)
        places = [place for place, at in enumerate(segment.sequences) if low < at < high]
        inside += segment.rows(places[:: -1 if down else 1], delta=True)
    if down:
        return [*rows, *inside][:limit]
    return [*inside, *(rows if whole else ())][:limit]


def _row(kind: Kind, uid: bytes, *columns: Any) -> Row | Unreadable:
    *key, body = columns
    if kind is Kind.NAME:
        name = key[0].decode("utf-8", "surrogatepass")
        try:
            return name_of(body, uid, name, [-1 if column is None else column for column in key[1:]])
        except CorruptionError as error:
            return Unreadable(name, str(error.args[0]))
    if kind is Kind.CALL:
        return open_call(body, uid=uid, at=(key[0], key[1], key[2]))
    return KeyframeRow(key[0], body)


def sessions(wire: Wire, query: SessionQuery) -> list[SessionRow]:
    """See the port. The server knows in which nine minutes a session was updated; the time itself is compared here."""
    found: list[SessionRow] = []
    while True:
        rest = msgspec.structs.replace(query, limit=query.limit - len(found))
        page = _sessions(wire, rest)
        found += page if query.since_us is None else [row for row in page if row.updated_us >= query.since_us]
        if len(page) < rest.limit or len(found) >= query.limit:
            return found
        query = msgspec.structs.replace(query, before=page[-1].touched)


def _sessions(wire: Wire, query: SessionQuery) -> list[SessionRow]:
    lows, highs = ([], []) if query.foreign is None else _foreign(query.foreign, starts=query.foreign_start)
    sent = [
        pack_bool(query.hidden),
        None if query.before is None else pack_int(query.before),
        None if query.since_us is None else pack_int(time_era(query.since_us)),
        pack_int_lines(query.facets),
        pack_texts(_range(text_bytes(query.prefix)) if query.prefix else ()),
        pack_texts(() if query.uid_start is None else _range(query.uid_start)),
        pack_texts(lows),
        pack_texts(highs),
        pack_int(query.limit),
    ]
    return [_listed(*row) for row in rows_of(wire.call(_SESSIONS, sent, _SESSIONS_TYPES))]


def _range(start: bytes) -> tuple[bytes, bytes]:
    return start, start + b"\xff" * 17


def _foreign(id_: str, *, starts: bool) -> tuple[list[bytes], list[bytes]]:
    kept = foreign_ids.pack_id(id_)
    within = foreign_ids.ranges(id_) if starts else [(kept, kept + b"\0")]
    return [low for low, _ in within], [high for _, high in within]


def _listed(id_: bytes, hidden: bool, touched: int, body: bytes, *columns: Any) -> SessionRow:  # noqa: FBT001 - a column
    row = session_of(body, id_.decode("utf-8", "surrogatepass"), touched, hidden=hidden)
    if list(columns) != line_columns(row):
        raise CorruptionError(f"the line of session {row.id!r} does not agree with its index", hint=RUN_VERIFY)
    return row


def lanes(wire: Wire, query: LaneQuery) -> list[FoundLane]:
    """See the port."""
    found: list[FoundLane] = []
    sent = [pack_int(query.marks), pack_int(DUE_BITS), pack_bool(query.due)]
    for name, marks, run, journal, sequence, body, now_us, *listed in rows_of(wire.call(_LANES, sent, _LANES_TYPES)):
        session = _listed(*listed)
        columns = [-1 if column is None else column for column in (marks, run, journal, sequence)]
        lane = name_of(body, session.uid, name.decode("utf-8", "surrogatepass"), columns)
        if isinstance(lane, LaneRow):
            live = live_lanes([lane], now_us=now_us, wall_us=now_us, server_clock=True)
            found.append(FoundLane(session, lane, bool(live)))
    return found


def absent(wire: Wire, digests: Iterable[bytes]) -> list[bytes]:
    """See the port."""
    wanted = list(dict.fromkeys(digests))
    here = {row[0] for row in wire.rows(_HERE, wanted, *_HELD, CUT)} if wanted else set()
    return [digest for digest in wanted if digest not in here]


def put_blobs(wire: Wire, blobs: Mapping[bytes, bytes]) -> None:
    """See the port."""
    portion: list[bytes] = []
    size = 0
    for digest in sorted(blobs):
        portion.append(digest)
        size += len(blobs[digest])
        if size > _BYTES_AT_ONCE:
            _put_blobs(wire, portion, blobs)
            portion, size = [], 0
    if portion:
        _put_blobs(wire, portion, blobs)


def _put_blobs(wire: Wire, digests: list[bytes], blobs: Mapping[bytes, bytes]) -> None:
    came = wire.do(_NEW_BLOBS, digests, [blobs[digest] for digest in digests])
    held = [digest for digest in digests if is_held(digest)]
    if held and came < len(digests):
        wire.do(_WHOLE_AGAIN, held, [blobs[digest] for digest in held], CUT, CUT)


def blobs(wire: Wire, digests: Iterable[bytes]) -> dict[bytes, bytes]:
    """See the port."""
    wanted = list(dict.fromkeys(digests))
    found: dict[bytes, bytes] = {}
    for at in range(0, len(wanted), _BLOBS_AT_ONCE):
        found |= dict(wire.rows(_BLOBS, wanted[at : at + _BLOBS_AT_ONCE]))
    return found


def changes(wire: Wire) -> int:
    """See the port: another transaction, another snapshot."""
    return int(wire.rows(_CHANGES)[0][0])


def sizes(wire: Wire) -> Sizes:
    """Totals, and what the tables with their indexes take on the server's disk."""
    return Sizes(*wire.rows(_SIZES, *_HELD)[0])
