"""What keeps a store in shape: the checks below the level of sessions, what they can mend, and room given back."""

from __future__ import annotations

import psycopg

from backstay.backends.postgres.calls import open_journaled
from backstay.backends.postgres.texts import unpack, unpack_id
from backstay.backends.postgres.wire import Wire
from backstay.chains import broken_roll
from backstay.errors import CorruptionError
from backstay.model import Problem, SessionId

_ORPHAN_BLOBS = (
    "SELECT count(*) FROM {schema}.blobs b WHERE NOT EXISTS(SELECT 1 FROM {schema}.blob_refs r WHERE r.bid = b.bid)"
)
_DANGLING_REFS = (
    "SELECT count(*) FROM {schema}.blob_refs r WHERE NOT EXISTS(SELECT 1 FROM {schema}.blobs b WHERE b.bid = r.bid) "
    "OR NOT EXISTS(SELECT 1 FROM {schema}.checkpoints c WHERE c.sid = r.sid AND c.sequence = r.sequence)"
)
_STRAY_CHECKPOINTS = (
    "SELECT count(*) FROM {schema}.checkpoints c "
    "WHERE NOT EXISTS(SELECT 1 FROM {schema}.sessions s WHERE s.sid = c.sid)"
)
# A call that a checkpoint took in is never one of these, whatever became of its run.
_IS_TAKEN = "EXISTS(SELECT 1 FROM {schema}.checkpoints c WHERE c.took_run = k.run AND c.took_stood = k.stood)"
_STRAY_RUNS = "SELECT count(*) FROM {schema}.runs WHERE sid NOT IN (SELECT sid FROM {schema}.sessions)"
_STRAY_CALLS = (
    "SELECT count(*) FROM {schema}.calls k WHERE NOT EXISTS(SELECT 1 FROM {schema}.runs r "
    f"JOIN {{schema}}.sessions s ON s.sid = r.sid WHERE r.run = k.run) AND NOT {_IS_TAKEN}"
)
_LOST_RUNS = (
    "SELECT DISTINCT c.took_run, c.sid FROM {schema}.checkpoints c JOIN {schema}.sessions s ON s.sid = c.sid "
    "WHERE c.took_run IS NOT NULL AND NOT EXISTS(SELECT 1 FROM {schema}.runs r WHERE r.run = c.took_run)"
)
_KEEP_RUN = (
    "INSERT INTO {schema}.runs(run, sid, token, entered, unfinished, crashes, spot) OVERRIDING SYSTEM VALUE "
    "VALUES (%s, %s, 0, false, false, 0, '') ON CONFLICT DO NOTHING"
)
_REMOVALS = (
    (
        "DELETE FROM {schema}.checkpoints WHERE sid NOT IN (SELECT sid FROM {schema}.sessions)",
        "checkpoints of no session, which nobody could read",
    ),
    (
        _DANGLING_REFS.replace("SELECT count(*)", "DELETE"),
        "references that led nowhere",
    ),
    (
        "DELETE FROM {schema}.blobs WHERE bid NOT IN (SELECT bid FROM {schema}.blob_refs)",
        "blobs that no checkpoint needs",
    ),
    ("DELETE FROM {schema}.runs WHERE sid NOT IN (SELECT sid FROM {schema}.sessions)", "runs of no session"),
    (
        f"DELETE FROM {{schema}}.calls k WHERE run NOT IN (SELECT run FROM {{schema}}.runs) AND NOT {_IS_TAKEN}",
        "calls of no run",
    ),
)
_DANGLING_NAMES = (
    "SELECT n.sid, s.id, n.name, n.tag, n.sequence FROM {schema}.names n JOIN {schema}.sessions s ON s.sid = n.sid "
    "WHERE NOT EXISTS(SELECT 1 FROM {schema}.checkpoints c WHERE c.sid = n.sid AND c.sequence = n.sequence) "
    "ORDER BY n.sid, n.name"
)
_NEWEST_BEFORE = "SELECT max(sequence) FROM {schema}.checkpoints WHERE sid = %s AND sequence < %s"
_REMOVE_NAME = "DELETE FROM {schema}.names WHERE sid = %s AND name = %s"
_MOVE_NAME = "UPDATE {schema}.names SET sequence = %s WHERE sid = %s AND name = %s"
_DANGLING_UNDOS = (
    "UPDATE {schema}.names n SET undo = NULL WHERE undo IS NOT NULL AND NOT EXISTS("
    "SELECT 1 FROM {schema}.checkpoints c WHERE c.sid = n.sid AND c.sequence = n.undo)"
)
_CHECKPOINTS = "(SELECT count(*) FROM {schema}.checkpoints c WHERE c.sid = s.sid)"
_BRANCHES = "(SELECT count(*) FROM {schema}.names n WHERE n.sid = s.sid AND NOT n.tag)"
_COUNT_ANEW = (
    f"UPDATE {{schema}}.sessions s SET checkpoints = {_CHECKPOINTS}, branches = {_BRANCHES}, "
    "logical = (SELECT coalesce(sum(size), 0)::bigint FROM {schema}.checkpoints c WHERE c.sid = s.sid) WHERE s.sid = %s"
)
_MISCOUNTED = (
    f"SELECT s.sid, s.id FROM {{schema}}.sessions s WHERE s.checkpoints <> {_CHECKPOINTS} OR s.branches <> {_BRANCHES} "
    "ORDER BY s.sid"
)
_ROLLS = (
    "SELECT s.id, c.id, c.sid, c.sequence, c.roll, c.state_digest, b.state_digest FROM {schema}.checkpoints c "
    "LEFT JOIN {schema}.checkpoints b ON b.sid = c.sid AND b.sequence = c.base "
    "LEFT JOIN {schema}.sessions s ON s.sid = c.sid WHERE c.roll IS NOT NULL AND (c.sid, c.sequence) > (%s, %s) "
    "ORDER BY c.sid, c.sequence LIMIT 200"
)
_CALLS = (
    "SELECT s.id, k.run, k.stood, k.slot, k.body, k.result, k.place, k.n, "
    "lag(k.n) OVER (PARTITION BY k.run, k.stood ORDER BY k.n) "
    "FROM {schema}.calls k LEFT JOIN {schema}.runs r ON r.run = k.run LEFT JOIN {schema}.sessions s ON s.sid = r.sid "
    "WHERE k.run > %s AND k.run <= %s"
)
_NEXT_RUNS = "SELECT max(run) FROM (SELECT run FROM {schema}.runs WHERE run > %s ORDER BY run LIMIT 50) r"
_MISSING_CALLS = (
    "SELECT s.id, c.id FROM {schema}.checkpoints c LEFT JOIN {schema}.sessions s ON s.sid = c.sid "
    "WHERE c.took_run IS NOT NULL AND c.took_calls <> (SELECT count(*) FROM {schema}.calls k "
    "WHERE k.run = c.took_run AND k.stood = c.took_stood) ORDER BY c.sid, c.sequence"
)
# Nobody may write while orphans are counted and removed: what is one now might be needed a moment later.
_ALONE = (
    "LOCK TABLE {schema}.sessions, {schema}.names, {schema}.checkpoints, {schema}.blobs, {schema}.blob_refs, "
    "{schema}.runs, {schema}.calls IN SHARE ROW EXCLUSIVE MODE"
)
_NO_REMEDY = "give up what is pending with session.abandon, or go on from an older checkpoint"
_TABLES = ("checkpoints", "blobs", "blob_refs", "calls", "sessions", "names", "runs")


def compact(wire: Wire) -> None:
    """Let the room of what was deleted be used again; for a role that may not, the server does it in its own time."""
    for table in _TABLES:
        try:
            wire.connection.execute(wire.place(f"VACUUM {{schema}}.{table}"))
        except psycopg.errors.InsufficientPrivilege:
            return


def repair(wire: Wire) -> list[str]:
    """Remove orphans, point dangling names at what is left, count anew; see the port."""
    done = []
    with wire.writing():
        wire.do(_ALONE)
        for statement, what in _REMOVALS:
            count = wire.do(statement)
            if count:
                done.append(f"{count} {what}")
        for run, sid in wire.rows(_LOST_RUNS):
            wire.do(_KEEP_RUN, run, sid)
            done.append(f"run {run}, whose calls checkpoints name, is there again")
        for sid, session, name, tagged, at in wire.rows(_DANGLING_NAMES):
            (newest,) = wire.one(_NEWEST_BEFORE, sid, at)
            where = f"session {unpack(session)!r}"
            if tagged or newest is None:
                wire.do(_REMOVE_NAME, sid, name)
                done.append(f"{where}: {unpack(name)!r} led nowhere and was removed")
            else:
                wire.do(_MOVE_NAME, newest, sid, name)
                done.append(f"{where}: branch {unpack(name)!r} led nowhere and stands at the newest checkpoint before")
        count = wire.do(_DANGLING_UNDOS)
        if count:
            done.append(f"{count} undo targets that were not there")
        for sid, session in wire.rows(_MISCOUNTED):
            wire.do(_COUNT_ANEW, sid)
            done.append(f"session {unpack(session)!r}: counted anew")
    return done


def check(wire: Wire) -> list[Problem]:
    """Nothing left without an owner, nothing counted wrong, every merged delta readable."""
    problems = []
    with wire.reading():
        for statement, what in (
            (_ORPHAN_BLOBS, "blobs that no checkpoint needs"),
            (_DANGLING_REFS, "references between blobs and checkpoints that lead nowhere"),
            (_STRAY_CHECKPOINTS, "checkpoints without a session"),
            (_STRAY_RUNS, "runs of no session"),
            (_STRAY_CALLS, "calls of no run"),
        ):
            (count,) = wire.one(statement)
            if count:
                problems.append(Problem(what=f"{count} {what}", cost="space only", remedy="verify(repair=True)"))
        for _, session in wire.rows(_MISCOUNTED):
            what = f"session {unpack(session)!r} counts other rows than it has"
            problems.append(Problem(what=what, remedy="verify(repair=True)"))
        for _, session, name, _, _ in wire.rows(_DANGLING_NAMES):
            what = f"session {unpack(session)!r}: {unpack(name)!r} points at a checkpoint that is not there"
            problems.append(Problem(what=what, remedy="verify(repair=True) points it at the newest before that"))
        for run, sid in wire.rows(_LOST_RUNS):
            what = f"run {run} of session number {sid} is not there, and checkpoints name its calls"
            problems.append(Problem(what=what, cost="its calls are not listed", remedy="verify(repair=True)"))
        problems += _broken_rolls(wire)
        problems += _broken_calls(wire)
    return problems


def _broken_rolls(wire: Wire) -> list[Problem]:
    problems = []
    at = (0, 0)
    while page := wire.rows(_ROLLS, *at):
        at = page[-1][2:4]
        for session, id_, _, _, roll, state, base in page:
            problem = broken_roll(None if session is None else unpack(session), unpack_id(id_), roll, base, state)
            problems += [] if problem is None else [problem]
    return problems


def _broken_calls(wire: Wire) -> list[Problem]:
    """Journaled calls that do not open, or that are not there."""
    problems = []
    for session, id_ in wire.rows(_MISSING_CALLS):
        what = f"checkpoint {unpack_id(id_)[:12]}: calls that it took in are missing"
        where = None if session is None else SessionId(unpack(session))
        problems.append(Problem(what=what, session_id=where, cost="these calls", remedy=_NO_REMEDY))
    after = 0
    while (last := wire.one(_NEXT_RUNS, after)[0]) is not None:
        for session, *call, n, before in wire.rows(_CALLS, after, last):
            try:
                if n != (0 if before is None else before + 1):
                    message = "a journaled call is missing"
                    raise CorruptionError(message)
                open_journaled(call)
            except CorruptionError as error:
                where = None if session is None else SessionId(unpack(session))
                problems.append(Problem(what=error.args[0], session_id=where, cost="that call", remedy=_NO_REMEDY))
        after = last
    return problems
