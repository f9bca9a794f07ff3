"""What keeps a store in shape: pages given back to the disk, and the checks below the level of sessions."""

from __future__ import annotations

import time

import apsw

from holdfast.backends.sqlite.reads import one
from holdfast.backends.sqlite.schema import BUSY_TIMEOUT_MS
from holdfast.model import Problem

_ORPHAN_BLOBS = "SELECT count(*) FROM blobs b WHERE NOT EXISTS(SELECT 1 FROM blob_refs r WHERE r.bid = b.bid)"
_DANGLING_REFS = (
    "SELECT count(*) FROM blob_refs r WHERE NOT EXISTS(SELECT 1 FROM blobs b WHERE b.bid = r.bid) "
    "OR NOT EXISTS(SELECT 1 FROM checkpoints c WHERE c.cid = r.cid)"
)
_STRAY_CHECKPOINTS = "SELECT count(*) FROM checkpoints c WHERE NOT EXISTS(SELECT 1 FROM sessions s WHERE s.sid = c.sid)"
_MISCOUNTED = (
    "SELECT s.id FROM sessions s WHERE s.checkpoints <> (SELECT count(*) FROM checkpoints c WHERE c.sid = s.sid) "
    "OR s.branches <> (SELECT count(*) FROM names n WHERE n.sid = s.sid AND NOT n.tag)"
)


def give_back(connection: apsw.Connection) -> None:
    """Return free pages to the disk and empty the WAL, so that what was deleted is nowhere on it."""
    connection.execute("PRAGMA incremental_vacuum").fetchall()
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
        ):
            (count,) = one(connection, sql)
            if count:
                problems.append(Problem(what=f"{count} {what}", cost="space only", remedy="verify(repair=True)"))
        for (session,) in connection.execute(_MISCOUNTED):
            problems.append(Problem(what=f"session {session!r} counts other rows than it has"))
    except apsw.Error as error:
        problems.append(Problem(what=f"pages cannot be read: {error}", remedy="copy what is intact with export"))
    return problems
