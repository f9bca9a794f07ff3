"""The one place where PostgreSQL's errors become Backstay's, and where it is decided what trying again can mend.

Two questions are asked of each error. May the same be tried again, here and now? And could it have been recorded all
the same? An answer that never came leaves the second one open: then the next try looks for what the last one left.
No message here carries a connection string: what libpq says of a failed connection names host, user and database,
never the password.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from backstay.errors import (
    BackstayError,
    ConflictError,
    CorruptionError,
    FormatError,
    UnavailableError,
    UnsupportedError,
)

MISSING_BLOB = "BS001"  # raised by our own functions; the detail is the digest
NOT_ORDINARY = "BS002"  # likewise: what was begun is undone, and to be done the longer way

_UNDONE = {
    "40001",  # serialization failure
    "40P01",  # deadlock
    "55P03",  # a lock was not to be had
}
_AWAY = {
    "57P01",  # the backend was terminated
    "57P02",
    "57P03",  # starting up, shutting down, recovering
    "57P05",
    "53300",  # too many connections
    "25006",  # a standby: the address may lead elsewhere in a moment
    "08000",
    "08001",
    "08003",
    "08004",
    "08006",
    "08P01",  # what a pooler says when its server went away
}
_DAMAGED = {"XX001", "XX002"}
_FORBIDDEN = {"42501"}
_NOT_THERE = {"42P01", "42883", "3F000", "42703", "42804"}
_REFUSED = ("28", "3D")  # no such user, wrong password, no such database
_PASSING = ("the database system is", "too many", "connection slots", "terminating", "shutting down", "recovery")
_FULL = {"53100", "53200", "54000"}


class Fault(NamedTuple):
    """What to make of an error: `again` if the same may be tried now, `unclear` if it may have been recorded."""

    again: bool
    unclear: bool


def fault_of(error: psycopg.Error, *, broken: bool) -> Fault:
    """Judge an error; `broken`: the connection it came from is gone."""
    state = error.sqlstate
    if state in _UNDONE:
        return Fault(again=True, unclear=False)
    if state is not None and (state in _FORBIDDEN or state.startswith(_REFUSED)):
        return Fault(again=False, unclear=False)
    if state in _AWAY:
        # A read-only server has recorded nothing; of a terminated one nobody knows how far it came.
        return Fault(again=True, unclear=broken and state != "25006")
    if is_refusal(error):
        return Fault(again=False, unclear=False)
    if broken or (state is None and isinstance(error, psycopg.OperationalError)):
        return Fault(again=True, unclear=True)
    return Fault(again=False, unclear=False)


def is_refusal(error: psycopg.Error) -> bool:
    """True if a server answered that it will not have this connection, now or later.

    The driver gives no code for that, only the server's words behind "FATAL:".
    """
    text = str(error)
    return error.sqlstate is None and "FATAL:" in text and not any([word in text for word in _PASSING])


def translate(error: psycopg.Error, doing: str, *, unclear: bool = False) -> BackstayError:
    """The Backstay error for one of the driver's."""
    state = error.sqlstate
    text = f"{doing}: {said(error)}"
    if unclear:
        text += "; it is not known whether it was recorded"
    if state == MISSING_BLOB:
        digest = (error.diag.message_detail or "")[:12]
        return CorruptionError(f"blob {digest} is needed and not here", hint="run verify")
    if state in _DAMAGED:
        return CorruptionError(f"{doing}: the server found damage ({said(error)})", hint="run verify")
    if state == "23505":
        return ConflictError(text, hint="load again and decide")
    if state in _NOT_THERE:
        message = f"{doing}: the tables are not those of a Backstay store ({said(error)})"
        return FormatError(message, hint="name another schema: '?schema=…'")
    if state in _FORBIDDEN:
        return UnsupportedError(text, hint="grant the role what docs/backends.md lists")
    if is_refusal(error):
        return UnavailableError(text, hint="check user, password and database", retryable=False)
    return _unavailable(state, text)


def _unavailable(state: str | None, text: str) -> UnavailableError:
    if state is not None and state.startswith(_REFUSED):
        return UnavailableError(text, hint="check user, password and database", retryable=False)
    if state in _FULL:
        return UnavailableError(text, hint="the server is out of room: free some and try again")
    if state == "25006":
        return UnavailableError(text, hint="this server only reads: connect to the primary, or wait for one")
    if state == "57014":
        return UnavailableError(text, hint="the server gave up on it (statement_timeout); try again")
    if state in _UNDONE:
        return UnavailableError(text, hint="others were in the way; try again")
    return UnavailableError(text, hint="the server did not answer; try again")


def said(error: psycopg.Error) -> str:
    """The first line of what the server or the driver said."""
    return (error.diag.message_primary or str(error) or type(error).__name__).strip().split("\n")[0]
