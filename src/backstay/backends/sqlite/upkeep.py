"""What keeps a store in shape: pages given back to the disk, and the checks below the level of sessions."""

from __future__ import annotations

import contextlib
import time

import apsw

from backstay.backends.sqlite.reads import one, unpack_id
from backstay.backends.sqlite.schema import BUSY_TIMEOUT_MS
from backstay.chains import broken_roll
from backstay.model import Problem

_ORPHAN_BLOBS = "SELECT count(*) FROM blobs b WHERE NOT EXISTS(SELECT 1 FROM blob_refs r WHERE r.bid = b.bid)"
_DANGLING_REFS = (
    "SELECT count(*) FROM blob_refs r WHERE NOT EXISTS(SELECT 1 FROM blobs b WHERE b.bid = r.bid) "
    "OR NOT EXISTS(SELECT 1 FROM checkpoints c WHERE c.cid = r.cid)"
)
_STRAY_CHECKPOINTS = "SELECT count(*) FROM checkpoints c WHERE NOT EXISTS(SELECT 1 FROM sessions s WHERE s.sid = c.sid)"
# A call that a checkpoint took in is never one of these, whatever became of its run.
_IS_TAKEN = "(run, stood) IN (SELECT took_run, took_stood FROM checkpoints WHERE took_run IS NOT NULL)"
_STRAY_RUNS = "SELECT count(*) FROM runs WHERE sid NOT IN (SELECT sid FROM sessions)"
_STRAY_CALLS = (
    "SELECT count(*) FROM calls WHERE run NOT IN (SELECT run FROM runs WHERE sid IN (SELECT sid FROM sessions)) "
    f"AND NOT {_IS_TAKEN}"
)
_LOST_RUNS = (
    "SELECT DISTINCT took_run, sid FROM checkpoints WHERE took_run IS NOT NULL "
    "AND took_run NOT IN (SELECT run FROM runs) AND sid IN (SELECT sid FROM sessions)"
)
_KEEP_NUMBER = (
    "INSERT OR IGNORE INTO runs(run, sid, branch, token, claim, entered, unfinished, input, crashes, spot) "
    "VALUES(?, ?, NULL, 0, NULL, 0, 0, NULL, 0, x'')"
)
_REMOVALS = (
    (
        "DELETE FROM checkpoints WHERE sid NOT IN (SELECT sid FROM sessions)",
        "checkpoints of no session, which nobody could read",
    ),
    (
        "DELETE FROM blob_refs WHERE bid NOT IN (SELECT bid FROM blobs) OR cid NOT IN (SELECT cid FROM checkpoints)",
        "references that led nowhere",
    ),
    ("DELETE FROM blobs WHERE bid NOT IN (SELECT bid FROM blob_refs)", "blobs that no checkpoint needs"),
    ("DELETE FROM runs WHERE sid NOT IN (SELECT sid FROM sessions)", "runs of no session"),
    (f"DELETE FROM calls WHERE run NOT IN (SELECT run FROM runs) AND NOT {_IS_TAKEN}", "calls of no run"),
)
_DANGLING_NAMES = (
    "SELECT n.sid, s.id, n.name, n.tag, n.cid FROM names n JOIN sessions s ON s.sid = n.sid "
    "WHERE NOT EXISTS(SELECT 1 FROM checkpoints c WHERE c.cid = n.cid AND c.sid = n.sid)"
)
_NEWEST_BEFORE = "SELECT max(cid) FROM checkpoints WHERE sid = ? AND cid < ?"
_DANGLING_UNDOS = "UPDATE names SET undo = NULL WHERE undo IS NOT NULL AND undo NOT IN (SELECT cid FROM checkpoints)"
_COUNT_ANEW = (
    "UPDATE sessions SET checkpoints = (SELECT count(*) FROM checkpoints c WHERE c.sid = ?1), "
    "branches = (SELECT count(*) FROM names n WHERE n.sid = ?1 AND NOT n.tag), "
    "logical = (SELECT coalesce(sum(size), 0) FROM checkpoints c WHERE c.sid = ?1) WHERE sid = ?1"
)
_ROLLS = (
    "SELECT s.id, c.id, c.roll, c.state_digest, b.state_digest FROM checkpoints c "
    "LEFT JOIN checkpoints b ON b.cid = c.base LEFT JOIN sessions s ON s.sid = c.sid WHERE c.roll IS NOT NULL"
)
_VACUUM_PAGES = 256
_SCRUB_BYTES = 64 * 1024 * 1024
_MISCOUNTED = (
    "SELECT s.sid, s.id FROM sessions s "
    "WHERE s.checkpoints <> (SELECT count(*) FROM checkpoints c WHERE c.sid = s.sid) "
    "OR s.branches <> (SELECT count(*) FROM names n WHERE n.sid = s.sid AND NOT n.tag)"
)


def vacuum_some(connection: apsw.Connection) -> bool:
    """Return some free pages to the disk; True if there are more. Each step is a short transaction of its own."""
    connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
    return bool(one(connection, "PRAGMA freelist_count")[0])


def scrub(connection: apsw.Connection) -> None:
    """Write a store anew if that takes no time.

    SQLite zeroes what is deleted. But where rows moved to another page as it grew, copies of them may lie between the
    rows that are left, and only writing every page anew is sure to leave those behind.
    """
    (size,) = one(connection, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    if size <= _SCRUB_BYTES:
        with contextlib.suppress(apsw.BusyError):  # the deletion itself is done
            connection.execute("VACUUM")


def empty_log(connection: apsw.Connection) -> None:
    """Move the log into the store and cut it, so that what was deleted is nowhere on the disk."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            return
        except apsw.BusyError:
            # Another process is moving its log at this moment. SQLite waits for readers, but not for that.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def repair(connection: apsw.Connection) -> list[str]:
    """Remove orphans, point dangling names at what is left, count anew; see the port."""
    done = []
    for sql, what in _REMOVALS:
        connection.execute(sql)
        if connection.changes():
            done.append(f"{connection.changes()} {what}")
    for run, sid in list(connection.execute(_LOST_RUNS)):
        connection.execute(_KEEP_NUMBER, (run, sid))
        done.append(f"the number of run {run}, which checkpoints name, is taken again")
    for sid, session, name, tagged, cid in list(connection.execute(_DANGLING_NAMES)):
        (newest,) = one(connection, _NEWEST_BEFORE, (sid, cid))
        if tagged or newest is None:
            connection.execute("DELETE FROM names WHERE sid = ? AND name = ?", (sid, name))
            done.append(f"session {session!r}: {name!r} led nowhere and was removed")
        else:
            connection.execute("UPDATE names SET cid = ? WHERE sid = ? AND name = ?", (newest, sid, name))
            done.append(f"session {session!r}: branch {name!r} led nowhere and stands at the newest checkpoint before")
    connection.execute(_DANGLING_UNDOS)
    if connection.changes():
        done.append(f"{connection.changes()} undo targets that were not there")
    for sid, session in list(connection.execute(_MISCOUNTED)):
        connection.execute(_COUNT_ANEW, (sid,))
        done.append(f"session {session!r}: counted anew")
    return done


def check(connection: apsw.Connection) -> list[Problem]:
    """Every page read with its checksum, every index compared with its table, nothing left without an owner."""
    problems = []
    try:
        for (text,) in connection.execute("PRAGMA integrity_check(100)"):
            if text != "ok":
                problems.append(Problem(what=f"SQLite: {text}", remedy="copy what is intact with export"))
        for sql, what in (
            (_ORPHAN_BLOBS, "blobs that no checkpoint needs"),
            (_DANGLING_REFS, "references between blobs and checkpoints that lead nowhere"),
            (_STRAY_CHECKPOINTS, "checkpoints without a session"),
            (_STRAY_RUNS, "runs of no session"),
            (_STRAY_CALLS, "calls of no run"),
        ):
            (count,) = one(connection, sql)
            if count:
                problems.append(Problem(what=f"{count} {what}", cost="space only", remedy="verify(repair=True)"))
        for _, session in connection.execute(_MISCOUNTED):
            what = f"session {session!r} counts other rows than it has"
            problems.append(Problem(what=what, remedy="verify(repair=True)"))
        for _, session, name, _, _ in connection.execute(_DANGLING_NAMES):
            what = f"session {session!r}: {name!r} points at a checkpoint that is not there"
            problems.append(Problem(what=what, remedy="verify(repair=True) points it at the newest before that"))
        for run, sid in connection.execute(_LOST_RUNS):
            what = f"run {run} of session number {sid} is not there, and checkpoints name its calls"
            cost = "a later run may get its number, and their calls be mixed up"
            problems.append(Problem(what=what, cost=cost, remedy="verify(repair=True) keeps the number taken"))
        problems += _broken_rolls(connection)
    except apsw.Error as error:
        problems.append(Problem(what=f"pages cannot be read: {error}", remedy="copy what is intact with export"))
    return problems


def _broken_rolls(connection: apsw.Connection) -> list[Problem]:
    found = [
        broken_roll(session, unpack_id(id_), roll, base, state)
        for session, id_, roll, state, base in connection.execute(_ROLLS)
    ]
    return [problem for problem in found if problem is not None]
