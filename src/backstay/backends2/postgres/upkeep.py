"""What keeps a store in shape: rows that belong to nothing, blobs that nobody needs, room given back.

A check reads one moment. Tending works in steps of its own transactions, so that nobody waits for it long.
"""

from __future__ import annotations

import psycopg

from backstay.backends2.postgres.pool import Wire
from backstay.backends2.postgres.queries import scan
from backstay.errors import CorruptionError
from backstay.model import Problem
from backstay.port import Kind

_STRAY = "NOT EXISTS(SELECT 1 FROM {schema}.sessions s WHERE s.sid = t.sid)"
_UNUSED = "NOT EXISTS(SELECT 1 FROM {schema}.refs r WHERE r.digest = t.digest)"
_LEADS_NOWHERE = f"""NOT EXISTS(
  SELECT 1 FROM {{schema}}.checkpoints c WHERE c.sid = t.sid AND c.sequence = t.number AND t.kind = {Kind.CHECKPOINT:d})
AND NOT EXISTS(
  SELECT 1 FROM {{schema}}.keyframes k WHERE k.sid = t.sid AND k.sequence = t.number AND t.kind = {Kind.KEYFRAME:d})"""
_NO_CHECKPOINT = "NOT EXISTS(SELECT 1 FROM {schema}.checkpoints c WHERE c.sid = t.sid AND c.sequence = t.sequence)"
# Table, what makes a row of it an orphan, and what to call it.
_ORPHANS = (
    *[(table, _STRAY, f"rows of no session ({table})") for table in ("names", "calls", "checkpoints")],
    ("keyframes", _NO_CHECKPOINT, "keyframes of no checkpoint"),
    ("foreign_ids", _NO_CHECKPOINT, "foreign ids of no checkpoint"),
    ("refs", _LEADS_NOWHERE, "references of no row"),
)
_ABSENT_BLOBS = (
    "SELECT DISTINCT s.id, t.number FROM {schema}.refs t JOIN {schema}.sessions s ON s.sid = t.sid "
    "WHERE NOT EXISTS(SELECT 1 FROM {schema}.blobs b WHERE b.digest = t.digest) ORDER BY s.id, t.number LIMIT 1000"
)
_MISCOUNTED = (
    "SELECT s.id FROM {schema}.sessions s WHERE NOT s.hidden AND "
    "s.checkpoints <> (SELECT count(*) FROM {schema}.checkpoints c WHERE c.sid = s.sid) ORDER BY s.id"
)
# Locked by one statement, looked at again by the next: a commit that holds one has its reference in by then.
_UNUSED_BLOBS = (
    f"SELECT t.digest FROM {{schema}}.blobs t WHERE t.digest > %s AND {_UNUSED} ORDER BY t.digest LIMIT 500 "
    "FOR UPDATE SKIP LOCKED"
)
_DROP_BLOBS = f"DELETE FROM {{schema}}.blobs t WHERE t.digest = ANY(%s::bytea[]) AND {_UNUSED}"
_ALONE = (
    "LOCK TABLE {schema}.sessions, {schema}.names, {schema}.checkpoints, {schema}.keyframes, {schema}.calls, "
    "{schema}.foreign_ids, {schema}.refs, {schema}.blobs IN SHARE ROW EXCLUSIVE MODE"
)
_TABLES = ("checkpoints", "keyframes", "blobs", "refs", "calls", "sessions", "names", "foreign_ids")


def check(wire: Wire) -> list[Problem]:
    """Nothing left without an owner, nothing referred to that is not there."""
    problems = []
    with wire.transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY"):
        for table, orphaned, what in (*_ORPHANS, ("blobs", _UNUSED, "blobs that no row needs")):
            ((count,),) = wire.rows(f"SELECT count(*) FROM {{schema}}.{table} t WHERE {orphaned}")
            if count:
                problems.append(Problem(what=f"{count} {what}", cost="space only", remedy="verify(repair=True)"))
        for session, number in wire.rows(_ABSENT_BLOBS):
            what = f"session {_text(session)!r}: a blob that checkpoint #{number} needs is missing"
            problems.append(Problem(what=what, cost="that checkpoint and those that rest on it", remedy="salvage"))
        for (session,) in wire.rows(_MISCOUNTED):
            problems.append(Problem(what=f"session {_text(session)!r} counts other checkpoints than it has"))
        for hidden, session in wire.rows("SELECT hidden, id FROM {schema}.sessions ORDER BY id"):
            problems += _broken_names(wire, _text(session), hidden=hidden)
    return problems


def _broken_names(wire: Wire, session: str, *, hidden: bool) -> list[Problem]:
    try:
        scan(wire, session, Kind.NAME, None, None, 1 << 31, hidden=hidden)
    except CorruptionError as error:
        return [Problem(what=f"session {session!r}: {error.args[0]}")]
    return []


def tend(wire: Wire, *, repair: bool) -> list[str]:
    """Sweep blobs that nobody needs; with `repair`, rows that belong to nothing. Then give room back."""
    done = []
    if repair:
        with wire.transaction():
            wire.do(_ALONE)
            for table, orphaned, what in _ORPHANS:
                count = wire.do(f"DELETE FROM {{schema}}.{table} t WHERE {orphaned}")
                done += [f"{count} {what} removed"] if count else []
    swept = _sweep(wire)
    done += [f"{swept} blobs that no row needs removed"] if swept else []
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
