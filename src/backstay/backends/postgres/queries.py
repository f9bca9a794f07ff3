"""Reading beyond one ask: states, ancestors, pages of rows and of sessions, blobs. One statement, one moment each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from backstay.backends.postgres.pool import Wire
from backstay.backends.postgres.protocol import BYTES, INT, INT_LIST, pack_int, pack_ints, rows_of, text_bytes
from backstay.backends.postgres.views import (
    count_checkpoints,
    count_names,
    line_columns,
    name_columns,
    name_of,
    session_of,
)
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
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
    SessionQuery,
    SessionRow,
    Sizes,
    TagRow,
    Unreadable,
    live_lanes,
)
from backstay.port.row_codec import open_call, open_checkpoint, open_name, open_session
from backstay.port.rows import DUE_BITS

_STATE = "SELECT * FROM {schema}.state_2(%s, %s, %s, %s)"
_STATE_TYPES = (BYTES, BYTES, INT, INT_LIST)
_SESSION, _NAME, _ROW, _KEYFRAME, _BLOB, _NO_NAME, _NO_ROW, _LOST = range(8)
_DIGEST_BYTES = 32

# A child comes after its parent: so a loop in damaged rows ends.
_ANCESTORS = """
WITH RECURSIVE line AS (
  SELECT c.sid, c.sequence, c.parent, c.body, 1::bigint AS place
  FROM {schema}.sessions s JOIN {schema}.checkpoints c ON c.sid = s.sid
  WHERE NOT s.hidden AND s.id = %s AND c.sequence = %s
  UNION ALL
  SELECT c.sid, c.sequence, c.parent, c.body, l.place + 1
  FROM line l JOIN {schema}.checkpoints c ON c.sid = l.sid AND c.sequence = l.parent AND c.sequence < l.sequence
  WHERE l.place < %s)
SELECT place, sequence, parent, body FROM line UNION ALL
SELECT 0, s.touched, CASE WHEN NOT EXISTS (SELECT 1 FROM line)
  THEN (SELECT count(*) FROM {schema}.checkpoints c WHERE c.sid = s.sid) END, s.body
FROM {schema}.sessions s WHERE NOT s.hidden AND s.id = %s ORDER BY place
"""
_COLUMNS = {
    Kind.NAME: ("names", "name, marks, run, journal, sequence, body", ("name",)),
    Kind.CHECKPOINT: ("checkpoints", "sequence, parent, body", ("sequence",)),
    Kind.KEYFRAME: ("keyframes", "sequence, body", ("sequence",)),
    Kind.CALL: ("calls", "run, journal, n, body", ("run", "journal", "n")),
}
_LISTED = "s.id, s.hidden, s.touched, s.body, s.uid, s.checkpoints, s.logical, s.status, s.agent"
_LANES = (
    "SELECT n.name, n.marks, n.run, n.journal, n.sequence, n.body, "
    "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint, "
    f"{_LISTED} FROM {{schema}}.names n JOIN {{schema}}.sessions s ON s.sid = n.sid "
    "WHERE n.marks <> 0 AND (n.marks & %s <> 0 OR n.marks >> (%s)::int BETWEEN 1 AND "
    "CASE WHEN %s THEN (extract(epoch FROM clock_timestamp()) * 1000)::bigint ELSE 0 END) "
    "AND NOT s.hidden ORDER BY s.touched DESC, n.name"
)
_BLOBS = "SELECT digest, data FROM {schema}.blobs WHERE digest = ANY(%s::bytea[])"
_HERE = "SELECT digest FROM {schema}.blobs WHERE digest = ANY(%s::bytea[])"
_NEW_BLOBS = (
    "INSERT INTO {schema}.blobs(digest, data) SELECT * FROM unnest(%s::bytea[], %s::bytea[]) AS b(digest, data) "
    "ORDER BY b.digest ON CONFLICT (digest) DO NOTHING"
)
_SIZES = (
    "SELECT count(*), coalesce(sum(checkpoints), 0)::bigint, coalesce(sum(logical), 0)::bigint, "
    "(SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = "
    "(SELECT m.relnamespace FROM pg_class m WHERE m.oid = '{schema_text}.meta'::regclass)) "
    "FROM {schema}.sessions WHERE NOT hidden"
)
_CHANGES = "SELECT hashtextextended(pg_current_snapshot()::text, 0)"

_BLOBS_AT_ONCE = 64
_BYTES_AT_ONCE = 16 * 1024 * 1024


def state(wire: Wire, session: str, ref: str | int, without: Collection[int], *, salvage: bool) -> Records:
    """See the port."""
    sent = [
        text_bytes(session),
        text_bytes(ref) if isinstance(ref, str) else None,
        None if isinstance(ref, str) else pack_int(ref),
        pack_ints(list(without)),
    ]
    line: SessionRow | None = None
    name: LaneRow | TagRow | None = None
    rows: list[CheckpointRow | Unreadable] = []
    keyframe: bytes | None = None
    blobs: dict[bytes, bytes] = {}
    for kind, number, parent, body in rows_of(wire.call(_STATE, sent, _STATE_TYPES)):
        if kind == _SESSION:
            line = session_of(body, session, number)
            continue
        assert line is not None  # noqa: S101 - it comes first
        if kind == _NAME:
            name = open_name(body, uid=line.uid, name=str(ref))
            if name_columns(name)[-1] != number:
                raise CorruptionError(f"the row of {ref!r} does not agree with its index", hint=RUN_VERIFY)
        elif kind in (_ROW, _LOST):
            row: CheckpointRow | Unreadable = Unreadable(number, f"checkpoint #{number} is missing")
            if kind == _ROW:
                row = open_checkpoint(body, uid=line.uid, sequence=number, parent=parent)
            if isinstance(row, Unreadable) and not salvage:
                raise CorruptionError(f"session {session!r}: {row.why}", hint=RUN_VERIFY)
            rows.append(row)
        elif kind == _KEYFRAME:
            keyframe = body
        elif kind == _BLOB:
            blobs[body[:_DIGEST_BYTES]] = body[_DIGEST_BYTES:]
        elif kind == _NO_NAME:
            count_names(line, number)
        else:
            count_checkpoints(line, number)
    return Records(line, name if isinstance(name, LaneRow) else None, tuple(rows[::-1]), keyframe, blobs)


def ancestors(wire: Wire, session: str, sequence: int, limit: int) -> list[CheckpointRow | Unreadable]:
    """See the port."""
    id_ = text_bytes(session)
    first, *rows = wire.rows(_ANCESTORS, id_, sequence, limit, id_) or [None]
    if first is None:
        return []
    line = session_of(first[3], session, first[1])
    if not rows:
        count_checkpoints(line, first[2])
    found = [open_checkpoint(body, uid=line.uid, sequence=at, parent=parent) for _, at, parent, body in rows]
    if found and len(found) < limit and (lost := found[-1].parent) is not None:
        found.append(Unreadable(lost, f"checkpoint #{lost} is missing"))
    return found


def scan(
    wire: Wire, session: str, kind: Kind, after: Key | None, before: Key | None, limit: int, *, hidden: bool
) -> list[Row | Unreadable]:
    """See the port."""
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


def _row(kind: Kind, uid: bytes, *columns: Any) -> Row | Unreadable:
    *key, body = columns
    if kind is Kind.NAME:
        name = key[0].decode("utf-8", "surrogatepass")
        try:
            return name_of(body, uid, name, [-1 if column is None else column for column in key[1:]])
        except CorruptionError as error:
            return Unreadable(name, str(error.args[0]))
    if kind is Kind.CHECKPOINT:
        return open_checkpoint(body, uid=uid, sequence=key[0], parent=key[1])
    if kind is Kind.CALL:
        return open_call(body, uid=uid, at=(key[0], key[1], key[2]))
    return KeyframeRow(key[0], body)


def sessions(wire: Wire, query: SessionQuery) -> list[SessionRow]:
    """See the port."""
    where: list[str] = ["s.hidden = %s"]
    values: list[Any] = [query.hidden]
    for condition, given in (
        ("s.era <= %s >> 8 AND s.touched < %s", None if query.before is None else (query.before, query.before)),
        ("s.status = %s", None if query.status is None else (text_bytes(query.status),)),
        ("s.agent = %s", None if query.agent is None else (text_bytes(query.agent),)),
        ("s.id >= %s AND s.id < %s", _range(text_bytes(query.prefix)) if query.prefix else None),
        ("s.uid >= %s AND s.uid < %s", None if query.uid_start is None else _range(query.uid_start)),
        (
            "s.sid IN (SELECT f.sid FROM {schema}.foreign_ids f WHERE f.id >= %s AND f.id < %s)",
            None if query.foreign is None else _foreign(text_bytes(query.foreign), starts=query.foreign_start),
        ),
    ):
        if given is not None:
            where.append(condition)
            values += given
    statement = (
        f"SELECT {_LISTED} FROM {{schema}}.sessions s WHERE {' AND '.join(where)} "
        "ORDER BY s.era DESC, s.touched DESC LIMIT %s"
    )
    return [_listed(*row) for row in wire.rows(statement, *values, query.limit)]


def _range(start: bytes) -> tuple[bytes, bytes]:
    return start, start + b"\xff" * 17


def _foreign(id_: bytes, *, starts: bool) -> tuple[bytes, bytes]:
    return _range(id_) if starts else (id_, id_ + b"\0")


def _listed(id_: bytes, hidden: bool, touched: int, body: bytes, *columns: Any) -> SessionRow:  # noqa: FBT001 - a column
    row = session_of(body, id_.decode("utf-8", "surrogatepass"), touched, hidden=hidden)
    if list(columns) != line_columns(row):
        raise CorruptionError(f"the line of session {row.id!r} does not agree with its index", hint=RUN_VERIFY)
    return row


def lanes(wire: Wire, query: LaneQuery) -> list[FoundLane]:
    """See the port."""
    found: list[FoundLane] = []
    for name, marks, run, journal, sequence, body, now_us, *listed in wire.rows(
        _LANES, query.marks, DUE_BITS, query.due
    ):
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
    here = {row[0] for row in wire.rows(_HERE, wanted)} if wanted else set()
    return [digest for digest in wanted if digest not in here]


def put_blobs(wire: Wire, blobs: Mapping[bytes, bytes]) -> None:
    """See the port."""
    portion: list[bytes] = []
    size = 0
    for digest in sorted(blobs):
        portion.append(digest)
        size += len(blobs[digest])
        if size > _BYTES_AT_ONCE:
            wire.do(_NEW_BLOBS, portion, [blobs[each] for each in portion])
            portion, size = [], 0
    if portion:
        wire.do(_NEW_BLOBS, portion, [blobs[each] for each in portion])


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
    return Sizes(*wire.rows(_SIZES)[0])
