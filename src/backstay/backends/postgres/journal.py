"""The journal: calls written down as they happen, read back in their order, none missing unnoticed."""

from __future__ import annotations

import secrets
import time
from typing import Any

from msgspec.structs import replace

from backstay import whereabouts
from backstay.backend import ABANDONED, FORMAT_VERSION, CallRow, Journaled, Lease
from backstay.backends.postgres.calls import open_journaled, seal
from backstay.backends.postgres.functions import FENCED, LOST, NEWER
from backstay.backends.postgres.reads import claim_for, sid_of
from backstay.backends.postgres.texts import mark_of
from backstay.backends.postgres.wire import Wire, newer
from backstay.errors import CorruptionError

_JOURNAL = "SELECT {schema}.journal_1(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_SET_CALL = "UPDATE {schema}.calls SET body = %s, result = %s, place = %s WHERE slot = %s AND run = %s"
_CALL = "run, stood, slot, body, result, place, n"
_CALLS = f"SELECT {_CALL} FROM {{schema}}.calls WHERE run = %s AND stood = %s ORDER BY n"
_ALL_CALLS = (
    f"SELECT {_CALL} FROM {{schema}}.calls WHERE run IN (SELECT run FROM {{schema}}.runs WHERE sid = %s) ORDER BY slot"
)
_SET_PLACE = "UPDATE {schema}.calls SET n = %s WHERE slot = %s"
_NEW_CALL = "INSERT INTO {schema}.calls(run, stood, mark, n, body, result, place) VALUES (%s, %s, %s, %s, %s, %s, %s)"
_ALL_TAKEN = "SELECT took_run, took_stood, took_calls FROM {schema}.checkpoints WHERE sid = %s AND took_run IS NOT NULL"

LOST_CALL = "(damaged)"  # the name of a call that was given up and could not be read


def write(wire: Wire, lease: Lease, call: CallRow, after: int, slot: int | None, *, again: bool) -> int:
    """Write down a call, or what became of it; see the port."""
    sealed = seal(call, lease.run)
    answer = wire.told_often(
        _JOURNAL,
        *(FORMAT_VERSION, wire.place.relaxed, lease.run, lease.token, lease.lease_us, claim_for(lease)),
        *(after, slot, mark_of(call.id), *sealed, again),
    )
    if answer is None or answer == FENCED:
        raise whereabouts.fenced(lease.session, lease.branch)
    if answer == LOST:
        message = f"call {call.id} is not in the journal any more"
        raise CorruptionError(message, hint="run verify")
    number = int.from_bytes(answer[1:], "big")
    if answer.startswith(NEWER):
        raise newer(number, "write")
    return number


def calls_at(wire: Wire, run: int, stood: int) -> list[Journaled]:
    """The calls of a run while its branch stood at one sequence."""
    found = wire.rows(_CALLS, run, stood)
    if [row[-1] for row in found] != list(range(len(found))):
        raise missing_call()
    return [open_journaled(row[:-1]) for row in found]


def missing_call() -> CorruptionError:
    """The error for a journal with a gap."""
    message = "a journaled call is missing"
    return CorruptionError(message, hint="run verify to see what is intact")


def pending_at(wire: Wire, run: int, stood: int) -> list[Journaled]:
    """Those of them that were not given up."""
    return [journaled for journaled in calls_at(wire, run, stood) if journaled.call.status != ABANDONED]


def change(wire: Wire, before: Journaled, after: CallRow) -> None:
    """Write what a call has become."""
    wire.do(_SET_CALL, *seal(after, before.run), before.slot, before.run)


def give_up(wire: Wire, run: int, stood: int, reason: str) -> int:
    """All calls pending there become abandoned, damaged ones too: it is the way to go on there. How many there were."""
    found = wire.rows(_CALLS, run, stood)
    missing: int = found[-1][-1] + 1 - len(found) if found else 0
    given_up = missing
    for n, row in enumerate(found):
        call = _given_up(row, reason)
        if call is not None:
            wire.do(_SET_CALL, *seal(call, run), row[2], run)
            given_up += 1
        if missing:  # closed up, so that those that are left are not taken for damaged
            wire.do(_SET_PLACE, n, row[2])
    for n in range(len(found), len(found) + missing):
        call = _lost_call(n, reason, "it is missing")
        wire.do(_NEW_CALL, run, stood, mark_of(call.id), n, *seal(call, run))
    return given_up


def _given_up(row: Any, reason: str) -> CallRow | None:
    """A pending call as it is once it was given up; None if it was before."""
    try:
        call = open_journaled(row[:-1]).call
    except CorruptionError as error:
        return _lost_call(row[-1], reason, error.args[0])
    return None if call.status == ABANDONED else replace(call, status=ABANDONED, error=("abandoned", reason))


def _lost_call(n: int, reason: str, why: str) -> CallRow:
    """Stands where a call was that could not be read when it was given up, and says so."""
    now_us = time.time_ns() // 1000
    row = CallRow(secrets.token_hex(8), None, LOST_CALL, None, n, "tool", None, bytes(16), ABANDONED, 0, now_us)
    return replace(row, error=("abandoned", f"{reason} (what was recorded is damaged: {why})"))


def entries(wire: Wire, session: str) -> list[Journaled]:
    """The whole journal of a session."""
    sid = sid_of(wire, session)
    found = wire.rows(_ALL_CALLS, sid)
    counts: dict[Any, int] = {}
    for run, stood, *_, n in found:
        if n != counts.setdefault((run, stood), 0):
            raise missing_call()
        counts[run, stood] += 1
    for run, stood, count in wire.rows(_ALL_TAKEN, sid):
        if counts.get((run, stood), 0) != count:
            raise missing_call()
    return [open_journaled(row[:-1]) for row in found]
