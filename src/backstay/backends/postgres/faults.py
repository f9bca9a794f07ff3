"""The one place where PostgreSQL's errors become Backstay's, and where it is decided what trying again can mend.

Two questions are asked of each error. May the same be tried again, here and now? And could it have been recorded all
the same? An answer that never came leaves the second one open: then the next try looks for what the last one left.
A message is in our own words with the server's code: what a server or libpq says may name anything. It is chained.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg

from backstay.errors import BackstayError, CorruptionError, FormatError, UnavailableError, UnsupportedError
from backstay.hints import RUN_VERIFY

# Raised by our own functions.
BLOBS_ABSENT = "BS001"  # the detail is their digests
MISSED = "BS002"  # what a write rests on has changed; everything is undone
NOT_READ_COMMITTED = "BS003"  # the server is set to another isolation
UNIQUE = "23505"

_UNDONE = {
    "40001",  # serialization failure
    "40P01",  # deadlock
    "55P03",  # a lock was not to be had
    "26000",  # a statement that was kept is gone
}
_STANDBY = "25006"
_AWAY = {
    "57P01",  # the backend was terminated
    "57P02",
    "57P03",  # starting up, shutting down, recovering
    "57P05",
    "53300",  # too many connections
    _STANDBY,  # the address may lead elsewhere in a moment
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
        return Fault(again=True, unclear=broken and state != _STANDBY)
    if _is_refusal(error):
        return Fault(again=False, unclear=False)
    if broken or (state is None and isinstance(error, psycopg.OperationalError)):
        return Fault(again=True, unclear=True)
    return Fault(again=False, unclear=False)


def is_standby(error: psycopg.Error) -> bool:
    """True if the server only reads: another connection may lead to one that writes."""
    return error.sqlstate == _STANDBY


def _is_refusal(error: psycopg.Error) -> bool:
    """True if a server answered that it will not have this connection, now or later.

    The driver gives no code for that, only the server's words behind "FATAL:".
    """
    text = str(error)
    return error.sqlstate is None and "FATAL:" in text and not any([word in text for word in _PASSING])


def translate(error: psycopg.Error, doing: str, *, unclear: bool = False) -> BackstayError:
    """The Backstay error for one of the driver's."""
    state = error.sqlstate
    code = "" if state is None else f" (PostgreSQL says {state})"
    if state in _DAMAGED:
        return CorruptionError(f"{doing}: the server found damage{code}", hint=RUN_VERIFY)
    if state in _NOT_THERE:
        message = f"{doing}: the tables are not those of a Backstay store{code}"
        return FormatError(message, hint="name another schema: '?schema=…'")
    if state in _FORBIDDEN:
        message = f"{doing}: this role may not do that{code}"
        return UnsupportedError(message, hint="grant the role what docs/backends.md lists")
    refused = _is_refusal(error) or (state is not None and state.startswith(_REFUSED))
    what, hint = ("the server refuses this connection", "check user, password and database")
    if not refused:
        what, hint = _trouble(state)
    open_question = "; it is not known whether it was recorded" if unclear else ""
    return UnavailableError(f"{doing}: {what}{code}{open_question}", hint=hint, retryable=not refused)


def _trouble(state: str | None) -> tuple[str, str]:
    """What is the matter, and what to do."""
    if state in _FULL:
        return "the server is out of room", "free some and try again"
    if state == _STANDBY:
        return "this server only reads", "connect to the primary, or wait for one"
    if state == "57014":
        return "the server gave up on it (statement timeout)", "try again"
    if state in _UNDONE or state in (UNIQUE, MISSED):
        return "others were in the way", "try again"
    if state is None or state in _AWAY:
        return "the server did not answer", "try again"
    return "the server could not do it", "look at its log"
