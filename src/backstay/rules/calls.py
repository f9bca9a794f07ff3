"""Pending calls as a whole: those that a run goes on with, and how they are given up."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backstay.port import CallRow, Unreadable
from backstay.port.rows import ABANDONED, CANCELLED, WAITING
from backstay.rules.refusals import in_doubt

_GIVEN_UP = (ABANDONED, CANCELLED)

LOST_CALL = "(damaged)"  # the name of a call that was given up and could not be read


def pending_of(calls: Iterable[CallRow | Unreadable]) -> list[CallRow | Unreadable]:
    """Those of a journal's calls that were not given up."""
    return [call for call in calls if isinstance(call, Unreadable) or call.status not in _GIVEN_UP]


def doubts_in(calls: Iterable[CallRow | Unreadable]) -> int:
    """How many of the calls pending on a branch without a live run are in doubt."""
    return sum([isinstance(call, CallRow) and in_doubt(call, None) for call in calls])


def given_up(calls: Iterable[CallRow | Unreadable], reason: str, *, at_us: int, nonce: str) -> list[CallRow]:
    """Those that are pending, abandoned; unanswered waits are cancelled.

    `nonce` begins the ids of those that are damaged, and tells a second try.
    """
    return [
        _given_up(call, reason, at_us, nonce, n)
        for n, call in enumerate(calls)
        if isinstance(call, Unreadable) or call.status not in _GIVEN_UP
    ]


def stopped(calls: Iterable[CallRow | Unreadable], reason: str, *, at_us: int, nonce: str) -> list[CallRow]:
    """The same for a run that was stopped or restarted: of a call in flight it says that its outcome is unknown."""
    calls = list(calls)
    unknown = {call.id for call in calls if isinstance(call, CallRow) and in_doubt(call, None)}
    return [
        msgspec.structs.replace(call, error=("abandoned", f"outcome unknown: {reason}")) if call.id in unknown else call
        for call in given_up(calls, reason, at_us=at_us, nonce=nonce)
    ]


def _given_up(call: CallRow | Unreadable, reason: str, at_us: int, nonce: str, n: int) -> CallRow:
    why, mark = ("abandoned", reason), nonce.encode()
    if isinstance(call, CallRow):
        ended_us = at_us if call.ended_us is None else call.ended_us
        status = CANCELLED if call.status == WAITING else ABANDONED
        return msgspec.structs.replace(call, status=status, error=why, ended_us=ended_us, nonce=mark)
    assert isinstance(call.key, tuple)  # noqa: S101 - the key of a call
    why = ("abandoned", f"{reason} (what was recorded is damaged: {call.why})")
    row = CallRow(*call.key, f"{nonce}{n:x}", None, LOST_CALL, None, n, "tool", None, bytes(16), ABANDONED, 0, at_us)
    return msgspec.structs.replace(row, error=why, nonce=mark)
