"""What keeps a store in shape: rows that belong to nothing, blobs that nobody needs, room given back.

A check reads one moment. Tending works in steps of its own transactions, so that nobody waits for it long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import psycopg

from backstay.backends.postgres.foreign_ids import pack_id
from backstay.backends.postgres.functions import BEYOND, LINKS, RING
from backstay.backends.postgres.packed import index_of, segment_of
from backstay.backends.postgres.pool import Wire
from backstay.backends.postgres.views import line_columns, name_columns
from backstay.errors import CorruptionError
from backstay.hints import REPAIR
from backstay.model import Problem
from backstay.port import CheckpointRow, Kind, SessionRow
from backstay.port.row_codec import is_foreign, open_checkpoint, open_name, open_session
from backstay.port.segments import Segment

_STRAY = "NOT EXISTS(SELECT 1 FROM {schema}.sessions s WHERE s.sid = t.sid)"
_UNUSED = "NOT EXISTS(SELECT 1 FROM {schema}.refs r WHERE r.digest = t.digest)"
_PACKED = "EXISTS(SELECT 1 FROM {{schema}}.segments s WHERE s.sid = t.sid AND {0} BETWEEN s.first AND s.last)"
_LEADS_NOWHERE = f"""NOT EXISTS(
  SELECT 1 FROM {{schema}}.checkpoints c WHERE c.sid = t.sid AND c.sequence = t.number AND t.kind = {Kind.CHECKPOINT:d})
AND NOT (t.kind = {Kind.CHECKPOINT:d} AND {_PACKED.format("t.number")})
AND NOT EXISTS(
  SELECT 1 FROM {{schema}}.keyframes k WHERE k.sid = t.sid AND k.sequence = t.number AND t.kind = {Kind.KEYFRAME:d})"""
_NO_CHECKPOINT = f"""NOT {_PACKED.format("t.sequence")}
AND NOT EXISTS(SELECT 1 FROM {{schema}}.checkpoints c WHERE c.sid = t.sid AND c.sequence = t.sequence)"""
# Table, what makes a row of it an orphan, and what to call it.
_ORPHANS = (
    ("checkpoints", "t.sequence <= 0 AND octet_length(t.body) > 0", "rows of no checkpoint (checkpoints)"),
    *[(table, _STRAY, f"rows of no session ({table})") for table in ("names", "calls", "checkpoints", "segments")],
    ("keyframes", _NO_CHECKPOINT, "keyframes of no checkpoint"),
    ("foreign_ids", _NO_CHECKPOINT, "foreign ids of no checkpoint"),
    ("refs", _LEADS_NOWHERE, "references of no row"),
)
_LINES = (
    "SELECT sid, hidden, id, era = touched >> 8, uid, checkpoints, logical, time_era, facets, body "
    "FROM {schema}.sessions ORDER BY hidden, id"
)
_NAMES = "SELECT name, marks, run, journal, sequence, body FROM {schema}.names WHERE sid = %s ORDER BY name"
# A page of checkpoints with what leads to each: whether it has a keyframe, and the ids it is found by.
_OWN = (
    "SELECT sequence, parent, body, EXISTS(SELECT 1 FROM {schema}.keyframes k WHERE k.sid = c.sid "
    "AND k.sequence = c.sequence), ARRAY(SELECT f.id FROM {schema}.foreign_ids f WHERE f.sid = c.sid "
    "AND f.sequence >> 7 = c.sequence >> 7 AND f.sequence = c.sequence) FROM {schema}.checkpoints c "
    "WHERE sid = %s AND sequence > %s ORDER BY sequence LIMIT 200"
)
_SEGMENTS = (
    f"SELECT entries, starts, parents, {LINKS} || body, first, ARRAY(SELECT k.sequence FROM {{schema}}.keyframes k "
    "WHERE k.sid = s.sid AND k.sequence BETWEEN s.first AND s.last), "
    "ARRAY(SELECT int8send(f.sequence) || f.id FROM {schema}.foreign_ids f "
    "WHERE f.sid = s.sid AND f.sequence >> 7 BETWEEN s.first >> 7 AND s.last >> 7 "
    "AND f.sequence BETWEEN s.first AND s.last), ARRAY(SELECT c.slot FROM {schema}.checkpoints c "
    "WHERE c.sid = s.sid AND c.sequence BETWEEN s.first AND s.last) FROM {schema}.segments s "
    "WHERE sid = %s AND first > %s ORDER BY first LIMIT 20"
)
_PLACES = f"({{0}}.sequence & {RING - 1}, {{0}}.sequence | {BEYOND})"  # where a reader looks
_OTHERS = f"c.sid = t.sid AND c.slot IN {_PLACES.format('t')} AND c.slot <> t.slot AND c.sequence = t.sequence"
_TWICE = (
    "SELECT DISTINCT t.sequence, t.slot FROM {schema}.checkpoints t JOIN {schema}.checkpoints c "
    f"ON {_OTHERS} AND c.body = t.body WHERE t.sid = %s AND t.sequence > 0 "
    f"AND (t.slot NOT IN {_PLACES.format('t')} OR t.slot > c.slot) ORDER BY 1"
)
_ELSEWHERE = (
    "SELECT t.sequence, t.slot FROM {schema}.checkpoints t WHERE t.sid = %s AND t.sequence > 0 "
    f"AND t.slot NOT IN {_PLACES.format('t')} "
    f"AND NOT EXISTS(SELECT 1 FROM {{schema}}.checkpoints c WHERE {_OTHERS}) ORDER BY 1"
)
_MEND_PLACE = f"UPDATE {{schema}}.checkpoints SET slot = sequence | {BEYOND} WHERE sid = %s AND slot = %s"
_MEND_SEGMENT = "UPDATE {schema}.segments SET entries = %s, starts = %s, parents = %s WHERE sid = %s AND first = %s"
_MEND_LINE = (
    "UPDATE {schema}.sessions SET uid = %s, checkpoints = %s, logical = %s, time_era = %s, facets = %s::bigint[] "
    "WHERE sid = %s"
)
_MEND_NAME = (
    "UPDATE {schema}.names SET marks = %s, run = %s::bigint, journal = %s::bigint, sequence = %s::bigint "
    "WHERE sid = %s AND name = %s"
)
_MEND_ERA = "UPDATE {schema}.sessions SET era = touched >> 8 WHERE sid = %s"
_MEND_ID = (
    "INSERT INTO {schema}.foreign_ids(sid, sequence, id) VALUES (%s, %s, %s) "
    "ON CONFLICT (id, sid) DO UPDATE SET sequence = excluded.sequence"
)
_DROP_ID = "DELETE FROM {schema}.foreign_ids WHERE sid = %s AND sequence = %s AND id = %s"
_DROP_COPY = "DELETE FROM {schema}.checkpoints WHERE sid = %s AND slot = %s"
_DROP_KEYFRAME = "DELETE FROM {schema}.keyframes WHERE sid = %s AND sequence = %s"
# Locked by one statement, looked at again by the next: a commit that holds one has its reference in by then.
_UNUSED_BLOBS = (
    f"SELECT t.digest FROM {{schema}}.blobs t WHERE t.digest > %s AND {_UNUSED} ORDER BY t.digest LIMIT 500 "
    "FOR UPDATE SKIP LOCKED"
)
_DROP_BLOBS = f"DELETE FROM {{schema}}.blobs t WHERE t.digest = ANY(%s::bytea[]) AND {_UNUSED}"
_ALONE = (
    "LOCK TABLE {schema}.sessions, {schema}.names, {schema}.checkpoints, {schema}.keyframes, {schema}.segments, "
    "{schema}.calls, {schema}.foreign_ids, {schema}.refs, {schema}.blobs IN SHARE ROW EXCLUSIVE MODE"
)
_TABLES = ("checkpoints", "keyframes", "segments", "blobs", "refs", "calls", "sessions", "names", "foreign_ids")


def check(wire: Wire) -> list[Problem]:
    """Nothing left without an owner, no index that says otherwise than its rows."""
    problems = []
    with wire.transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY"):
        for table, orphaned, what in (*_ORPHANS, ("blobs", _UNUSED, "blobs that no row needs")):
            ((count,),) = wire.rows(f"SELECT count(*) FROM {{schema}}.{table} t WHERE {orphaned}")
            if count:
                problems.append(Problem(what=f"{what}: {count:,}", cost="space only", remedy=REPAIR))
        # What does not open at all is told by whoever reads it.
        problems += [Problem(what=what, remedy=REPAIR) for what, fix in _disagreements(wire) if fix]
    return problems


Fix = tuple[str, list[Any]]


def _disagreements(wire: Wire) -> Iterator[tuple[str, Fix | None]]:
    """Bodies that do not open, and index columns that say otherwise than their bodies, with what would mend them."""
    for sid, hidden, id_, listed, *columns, body in wire.rows(_LINES):
        try:
            line = open_session(body, id_=_text(id_), hidden=hidden)
        except CorruptionError as error:
            yield str(error.args[0]), None
            continue
        what = f"the line of session {line.id!r} does not agree with its index"
        if not listed:
            yield what, (_MEND_ERA, [sid])
        if columns != line_columns(line):
            yield what, (_MEND_LINE, [*line_columns(line), sid])
        yield from _wrong_names(wire, sid, line)
        yield from _wrong_segments(wire, sid, line)
        yield from _wrong_places(wire, sid, line)
        yield from _wrong_leads(wire, sid, line)


def _wrong_names(wire: Wire, sid: int, line: SessionRow) -> Iterator[tuple[str, Fix | None]]:
    for name, *columns, body in wire.rows(_NAMES, sid):
        try:
            row = open_name(body, uid=line.uid, name=_text(name))
        except CorruptionError as error:
            yield f"session {line.id!r}: {error.args[0]}", None
            continue
        if columns != name_columns(row):
            what = f"session {line.id!r}: the row of {row.name!r} does not agree with its index"
            yield what, (_MEND_NAME, [*name_columns(row), sid, name])


def _wrong_places(wire: Wire, sid: int, line: SessionRow) -> Iterator[tuple[str, Fix | None]]:
    """Checkpoints that have a second row, and those whose rows lie where no reader looks."""
    for sequence, slot in wire.rows(_TWICE, sid):
        yield f"session {line.id!r}: checkpoint #{sequence} has two rows", (_DROP_COPY, [sid, slot])
    for sequence, slot in wire.rows(_ELSEWHERE, sid):
        what = f"session {line.id!r}: checkpoint #{sequence} lies where it is not found"
        yield what, (_MEND_PLACE, [sid, slot])


def _wrong_leads(wire: Wire, sid: int, line: SessionRow) -> Iterator[tuple[str, Fix | None]]:
    """Ids and keyframes of checkpoints that are not packed: such as they have not, and ids that are not known."""
    after = 0
    while page := wire.rows(_OWN, sid, after):
        after = page[-1][0]
        for sequence, parent, body, keyframe, ids in page:
            row = open_checkpoint(body, uid=line.uid, sequence=sequence, parent=parent)
            if isinstance(row, CheckpointRow):
                known = {(sequence, id_) for id_ in ids}
                foreign = {(sequence, pack_id(row.id))} if is_foreign(row, line.uid) else set()
                yield from _wrong_ids(sid, line, known, foreign)
                yield from _wrong_keyframes(sid, line, {sequence} if keyframe and not row.keyframe else ())


def _wrong_segments(wire: Wire, sid: int, line: SessionRow) -> Iterator[tuple[str, Fix | None]]:
    """Segments that the server follows otherwise than their links say, and what leads to packed checkpoints."""
    after = 0
    while page := wire.rows(_SEGMENTS, sid, after):
        for entries, starts, parents, data, first, keyframes, ids, copies in page:
            segment = Segment(segment_of(data), line.uid)
            after = first
            if segment.broken:
                continue
            if [entries, starts, parents] != index_of(segment):
                what = f"session {line.id!r}: the segment of checkpoint #{first} does not agree with its index"
                yield what, (_MEND_SEGMENT, [*index_of(segment), sid, first])
            if segment.is_readable:
                known = {(int.from_bytes(each[:8], "big"), each[8:]) for each in ids}
                foreign = {(sequence, pack_id(id_)) for sequence, id_ in segment.foreign().items()}
                yield from _wrong_ids(sid, line, known, foreign)
                yield from _wrong_keyframes(sid, line, set(keyframes) - segment.keyframes())
                for slot in copies:
                    what = f"session {line.id!r}: a checkpoint of the segment of #{first} has a row as well"
                    yield what, (_DROP_COPY, [sid, slot])


def _wrong_ids(
    sid: int, line: SessionRow, known: set[tuple[int, bytes]], foreign: set[tuple[int, bytes]]
) -> Iterator[tuple[str, Fix | None]]:
    for sequence, id_ in sorted(known - foreign):
        what = f"session {line.id!r}: an id leads to checkpoint #{sequence}, which has another"
        yield what, (_DROP_ID, [sid, sequence, id_])
    for sequence, id_ in sorted(foreign - known):
        what = f"session {line.id!r}: checkpoint #{sequence} is not found by its id"
        yield what, (_MEND_ID, [sid, sequence, id_])


def _wrong_keyframes(sid: int, line: SessionRow, stray: Iterable[int]) -> Iterator[tuple[str, Fix | None]]:
    for sequence in sorted(stray):
        what = f"session {line.id!r}: checkpoint #{sequence} has a keyframe and does not know of it"
        yield what, (_DROP_KEYFRAME, [sid, sequence])


def tend(wire: Wire, *, repair: bool) -> list[str]:
    """Sweep blobs that nobody needs; with `repair`, rows that belong to nothing. Then give room back."""
    done = []
    if repair:
        with wire.transaction():
            wire.do(_ALONE)
            for table, orphaned, what in _ORPHANS:
                count = wire.do(f"DELETE FROM {{schema}}.{table} t WHERE {orphaned}")
                done += [f"removed {what}: {count:,}"] if count else []
            for what, fix in [(what, fix) for what, fix in _disagreements(wire) if fix is not None]:
                wire.do(fix[0], *fix[1])
                done.append(f"{what}: mended")
    swept = _sweep(wire)
    done += [f"removed blobs that no row needs: {swept:,}"] if swept else []
    for table in _TABLES:
        try:
            wire.connection.execute(wire.place(f"VACUUM {{schema}}.{table}"))
        except psycopg.errors.InsufficientPrivilege:
            break  # the server does it in its own time
    return done


def _sweep(wire: Wire) -> int:
    after, count = b"", 0
    while True:
        with wire.transaction():
            found = [digest for (digest,) in wire.rows(_UNUSED_BLOBS, after)]
            count += wire.do(_DROP_BLOBS, found) if found else 0
        if not found:
            return count
        after = max(found)


def _text(kept: bytes) -> str:
    return kept.decode("utf-8", "surrogatepass")
