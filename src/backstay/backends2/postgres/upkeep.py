"""What keeps a store in shape: rows that belong to nothing, blobs that nobody needs, room given back.

A check reads one moment. Tending works in steps of its own transactions, so that nobody waits for it long.
"""

from __future__ import annotations

import psycopg

from backstay.backends2.postgres.pool import Wire
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
    """Nothing left without an owner."""
    problems = []
    with wire.transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY"):
        for table, orphaned, what in (*_ORPHANS, ("blobs", _UNUSED, "blobs that no row needs")):
            ((count,),) = wire.rows(f"SELECT count(*) FROM {{schema}}.{table} t WHERE {orphaned}")
            if count:
                problems.append(Problem(what=f"{count} {what}", cost="space only", remedy="verify(repair=True)"))
    return problems


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
