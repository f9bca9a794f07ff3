"""The lines of sessions: what a listing shows, had without opening a state; and the totals of a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import apsw
import msgspec

from backstay.backend import SessionRow, Sizes, Totals
from backstay.backends.sqlite.reads import one
from backstay.errors import CorruptionError
from backstay.whereabouts import Claim, decode_claim, is_live

_SESSION = (
    "SELECT sid, id, agent, status, reason, last_step, usage, updated_us, branches, checkpoints, created_us, touched "
    "FROM sessions"
)
_SESSION_BY_ID = f"{_SESSION} WHERE id = ?"
_SESSION_BY_SID = f"{_SESSION} WHERE sid = ?"
_ENTERED = "SELECT sid, claim FROM runs WHERE entered = 1"
_SESSIONS = (
    f"{_SESSION} WHERE touched < ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR agent = ?3) "
    "ORDER BY touched DESC LIMIT ?4"
)
_SIZES = "SELECT count(*), coalesce(sum(checkpoints), 0), coalesce(sum(logical), 0) FROM sessions"


def session_line(found: Sequence[Any], crashed: Collection[int]) -> SessionRow:
    """A session's line, from its columns and the inner numbers of those with a crashed run."""
    sid, id_, agent, status, reason, last_step, usage, updated_us, branches, checkpoints, created_us, touched = found
    totals = Totals(agent, status, reason, last_step, usage, updated_us)
    return SessionRow(id_, totals, branches, checkpoints, created_us, touched, sid in crashed)


def find_session(connection: apsw.Connection, session: str) -> SessionRow | None:
    """A session's line, or None."""
    found = connection.execute(_SESSION_BY_ID, (session,)).fetchone()
    return None if found is None else session_line(found, crashed_sids(connection))


def sessions(
    connection: apsw.Connection, before: int | None, limit: int, status: str | None, agent: str | None
) -> list[SessionRow]:
    """A page of sessions, the one touched last first."""
    newest = 2**63 - 1 if before is None else before
    crashed = crashed_sids(connection)
    return [session_line(found, crashed) for found in connection.execute(_SESSIONS, (newest, status, agent, limit))]


def sessions_by_sid(connection: apsw.Connection, sids: Collection[int]) -> dict[int, SessionRow]:
    """The lines of some sessions."""
    found = [connection.execute(_SESSION_BY_SID, (sid,)).fetchone() for sid in sids]
    return {row[0]: session_line(row, sids) for row in found if row is not None}


def crashed_sids(connection: apsw.Connection) -> set[int]:
    """The sessions with a run that was entered and whose lease nobody alive holds."""
    return {sid for sid, claim in connection.execute(_ENTERED) if not is_live(claim_of(claim))}


def claim_of(data: bytes | None) -> Claim | None:
    """The lease in these bytes."""
    if data is None:
        return None
    try:
        return decode_claim(data)
    except msgspec.DecodeError as error:
        message = "the lease of a run cannot be read"
        raise CorruptionError(message, hint="run verify to see what is intact") from error


def sizes(connection: apsw.Connection) -> Sizes:
    """Running totals, and the size of the store's file."""
    count, checkpoints, logical = one(connection, _SIZES)
    (stored,) = one(connection, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    return Sizes(count, checkpoints, logical, stored)
