"""Runs: the lease of a branch, on the server's clock, and the journal of the calls made on it.

A journal write is one statement. A boundary touches no call: its checkpoint names those it took in by their run and the
sequence they were made after. Leases last until a moment on the clock of the server; whether the process that holds one
lives is asked only where its number means something, on the same boot of the same machine.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any, NamedTuple

from msgspec.structs import replace

from backstay import whereabouts
from backstay.backend import (
    CallRow,
    Entered,
    Entry,
    Journaled,
    Lease,
    Moved,
    Pending,
    RunRow,
    SessionRow,
    refuse_in_doubt,
    spot_of,
)
from backstay.backends.postgres import journal
from backstay.backends.postgres.calls import seal
from backstay.backends.postgres.reads import (
    SESSION,
    SESSION_COLUMNS,
    Claim,
    claim_for,
    claim_of,
    encode_claim,
    find_sid,
    is_held,
    sequence_of,
    session_line,
    sid_of,
)
from backstay.backends.postgres.texts import mark_of, pack, pack_or_none, unpack, unpack_id
from backstay.backends.postgres.wire import Wire
from backstay.errors import ConflictError, LeaseHeldError, NotFoundError

_LOCK_SESSION = "SELECT sid, checkpoints FROM {schema}.sessions WHERE id = %s FOR NO KEY UPDATE"
_NEW_SESSION = (
    "INSERT INTO {schema}.sessions(touched, created_us, updated_us, logical, sequence, checkpoints, branches, epoch, "
    "id, agent, status, usage) VALUES (0, %s, %s, 0, 0, 0, 0, 0, %s, %s, 'in_progress', '') ON CONFLICT (id) DO NOTHING"
)
_NEVER_TOUCHED = "UPDATE {schema}.sessions SET touched = -sid WHERE sid = %s AND touched = 0"
_RUN = (
    "r.run, r.branch, r.token, r.holder, r.until_us, r.until_us > {schema}.now_us(), r.entered, r.unfinished, r.input, "
    "r.crashes, r.spot"
)
_ONE_RUN = f"SELECT {_RUN} FROM {{schema}}.runs r WHERE r.sid = %s AND r.branch = %s"
_LOCK_RUN = f"{_ONE_RUN} FOR NO KEY UPDATE"
_ALL_RUNS = f"SELECT {_RUN} FROM {{schema}}.runs r WHERE r.sid = %s AND r.branch IS NOT NULL ORDER BY r.branch"
_CRASHED = (
    f"SELECT {SESSION}, {_RUN} FROM {{schema}}.runs r JOIN {{schema}}.sessions s ON s.sid = r.sid WHERE r.entered "
    "ORDER BY s.touched DESC, r.branch"
)
_UNTIL = "{schema}.now_us() + %s"
_NEW_RUN = (
    f"INSERT INTO {{schema}}.runs(sid, branch, token, holder, until_us, entered, unfinished, input, crashes, spot) "
    f"VALUES (%s, %s, %s, %s, {_UNTIL}, true, true, %s, 0, '') RETURNING run"
)
_ENTER = (
    f"UPDATE {{schema}}.runs SET token = %s, holder = %s, until_us = {_UNTIL}, entered = true, unfinished = true, "
    "input = %s, crashes = %s, spot = %s WHERE run = %s"
)
_BEGIN = (
    "UPDATE {schema}.sessions SET status = 'in_progress', reason = NULL, agent = coalesce(%s, agent) WHERE sid = %s"
)
_RENEW = (
    f"UPDATE {{schema}}.runs SET holder = %s, until_us = {_UNTIL} "
    "WHERE run = %s AND token = %s AND entered AND holder IS NOT NULL"
)
_LEASE = "SELECT token, holder IS NOT NULL, entered, sid FROM {schema}.runs WHERE run = %s FOR NO KEY UPDATE"
_LOCK_OWNER = (
    "SELECT s.sid FROM {schema}.sessions s WHERE s.sid = (SELECT r.sid FROM {schema}.runs r WHERE r.run = %s) "
    "FOR NO KEY UPDATE"
)
_END = "UPDATE {schema}.runs SET holder = NULL, until_us = NULL, entered = false, crashes = 0, spot = '' WHERE run = %s"
_COMPLETE = (
    "UPDATE {schema}.runs SET holder = NULL, until_us = NULL, entered = false, crashes = 0, spot = '', "
    "unfinished = false, input = NULL WHERE run = %s"
)
# Somebody else writes here: a run that was silent too long, and yet lives, writes no more.
_FENCE = "UPDATE {schema}.runs SET token = token + 1 WHERE run = %s"
_LET_GO = "UPDATE {schema}.runs SET holder = NULL, until_us = NULL WHERE run = %s"
# Its number stays taken: checkpoints go on naming it.
_FORGET_RUN = (
    "UPDATE {schema}.runs SET branch = NULL, holder = NULL, until_us = NULL, entered = false, unfinished = false, "
    "input = NULL WHERE run = %s"
)
_STATUS = "UPDATE {schema}.sessions SET status = %s, reason = %s WHERE sid = %s"
_NOTIFY = "SELECT pg_notify(%s, '')"
_HEAD = (
    "SELECT c.id, c.sequence FROM {schema}.names n CROSS JOIN LATERAL (SELECT k.id, k.sequence "
    "FROM {schema}.checkpoints k WHERE k.sid = n.sid AND k.sequence = n.sequence OFFSET 0) c "
    "WHERE n.sid = %s AND n.name = %s AND NOT n.tag"
)
_TOOK = "SELECT took_run, took_stood, took_calls FROM {schema}.checkpoints WHERE sid = %s AND sequence = %s"
_DROP_CALLS = "DELETE FROM {schema}.calls WHERE run = %s AND stood = %s"
_DROP_LOOSE = (
    "DELETE FROM {schema}.calls k WHERE k.run = %s AND NOT EXISTS (SELECT 1 FROM {schema}.checkpoints c "
    "WHERE c.sid = %s AND c.took_run = k.run AND c.took_stood = k.stood)"
)
_STOOD = "SELECT DISTINCT stood FROM {schema}.calls WHERE run = %s"
_DROP_SESSION = (
    "DELETE FROM {schema}.calls WHERE run IN (SELECT run FROM {schema}.runs WHERE sid = %s)",
    "DELETE FROM {schema}.runs WHERE sid = %s",
)
_ARRIVE_RUN = (
    "INSERT INTO {schema}.runs(sid, branch, token, entered, unfinished, input, crashes, spot) "
    "VALUES (%s, %s, %s, false, %s, %s, 0, '') RETURNING run"
)
_ARRIVE_CALL = (
    "INSERT INTO {schema}.calls(run, stood, mark, n, body, result, place) VALUES (%s, %s, %s, %s, %s, %s, %s)"
)

Took = tuple[int, int]


class Running(NamedTuple):
    """A branch's line in `runs`."""

    run: int
    branch: bytes
    token: int
    holder: bytes | None
    until_us: int | None
    ahead: bool | None
    entered: bool
    unfinished: bool
    input: bytes | None
    crashes: int
    spot: bytes

    def live(self) -> bool:
        return bool(self.entered and self.ahead and self.holder is not None and is_held(self.holder))

    def row(self) -> RunRow:
        flags = self.entered, self.live(), self.unfinished
        return RunRow(unpack(self.branch), self.run, self.token, *flags, self.input, self.crashes, self.spot)


def held_by(session: str, branch: str, claim: Claim, until_us: int) -> LeaseHeldError:
    """The error for who wants to write where a run is alive."""
    return whereabouts.held(session, branch, whereabouts.Claim(claim.holder, 0, 0, until_us))


def lock(wire: Wire, sid: int, branch: str) -> Running | None:
    """A branch's line, locked; None if it never ran."""
    found = wire.find(_LOCK_RUN, sid, pack(branch))
    return None if found is None else Running(*found)


def refuse_live(session: str, running: Running) -> None:
    """LeaseHeldError if a run is alive on a branch."""
    if running.live() and running.holder is not None:
        raise held_by(session, unpack(running.branch), claim_of(running.holder), running.until_us or 0)


def pending_on(wire: Wire, sid: int, running: Running) -> list[Journaled]:
    """The calls on a branch since its head that were not given up."""
    return journal.pending_at(wire, running.run, _stands(wire, sid, running.branch)[1])


def _stands(wire: Wire, sid: int, branch: bytes) -> tuple[str | None, int]:
    """The head of a branch and its sequence; nothing and 0 if there is none."""
    found = wire.find(_HEAD, sid, branch)
    return (None, 0) if found is None else (unpack_id(found[0]), found[1])


# writing


class Entering:
    """One entering of a branch, which may take several tries. What it found is remembered with what it wrote."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._claim = encode_claim(Claim(whereabouts.here(), secrets.token_bytes(8)))
        self._entered: Entered | None = None

    def __call__(self, wire: Wire, again: bool) -> Entered:  # noqa: FBT001 - called by the pool
        entry, branch = self._entry, pack(self._entry.branch)
        with wire.writing():
            sid, checkpoints = self._lock_session(wire)
            running = lock(wire, sid, entry.branch)
            if again and running is not None and running.holder == self._claim and self._entered is not None:
                return self._entered  # the answer to an earlier try was lost
            if running is not None:
                refuse_live(entry.session, running)
            expected = entry.expect_token
            if expected is not None and (running is None or running.token != expected or not running.entered):
                message = (
                    f"session {entry.session!r}, branch {entry.branch!r}: its run has ended or was taken up meanwhile"
                )
                raise ConflictError(message, hint="there is nothing left to do")
            head_id, stood = _stands(wire, sid, branch)
            if head_id is None and checkpoints:
                message = f"session {entry.session!r} has no branch {entry.branch!r}"
                raise NotFoundError(message, hint="session.fork(ref, name) makes one")
            calls = journal.pending_at(wire, running.run, stood) if running is not None else []
            now = self._take(wire, sid, running, spot_of(stood, calls))
            wire.do(_BEGIN, pack_or_none(entry.agent), sid)
            self._entered = Entered(
                lease=Lease(entry.session, entry.branch, now.run, now.token, entry.lease_us),
                head_id=head_id,
                before=None if running is None else running.row(),
                run=now.row(),
                calls=tuple(calls),
            )
        return self._entered

    def _lock_session(self, wire: Wire) -> tuple[int, int]:
        entry = self._entry
        found = wire.find(_LOCK_SESSION, pack(entry.session))
        while found is None:
            if entry.expect_token is not None:
                message = f"session {entry.session!r} never ran"
                raise ConflictError(message, hint="there is nothing left to do")
            wire.do(_NEW_SESSION, entry.at_us, entry.at_us, pack(entry.session), pack_or_none(entry.agent))
            found = wire.find(_LOCK_SESSION, pack(entry.session))
        wire.do(_NEVER_TOUCHED, found[0])
        return int(found[0]), int(found[1])

    def _take(self, wire: Wire, sid: int, running: Running | None, spot: bytes) -> Running:
        entry, claim = self._entry, self._claim
        if running is None:
            token = whereabouts.token_after(0)
            (run,) = wire.one(_NEW_RUN, sid, pack(entry.branch), token, claim, entry.lease_us, entry.input)
            return Running(run, pack(entry.branch), token, claim, None, True, True, True, entry.input, 0, b"")
        crashes, last_spot = running.crashes, running.spot
        if running.entered and running.holder is not None:
            crashes, last_spot = crashes + 1 if spot == last_spot else 1, spot
        kept = running.input if running.unfinished and running.input is not None else entry.input
        token = whereabouts.token_after(running.token)
        wire.do(_ENTER, token, claim, entry.lease_us, kept, crashes, last_spot, running.run)
        return Running(running.run, running.branch, token, claim, None, True, True, True, kept, crashes, last_spot)


def renew(wire: Wire, lease: Lease) -> None:
    """Hold on for longer; see the port."""
    if not wire.do(_RENEW, claim_for(lease), lease.lease_us, lease.run, lease.token):
        raise whereabouts.fenced(lease.session, lease.branch)


def leave(wire: Wire, lease: Lease, status: str | None, reason: str | None, *, again: bool) -> None:
    """Give the lease back; see the port."""
    with wire.writing():
        wire.find(_LOCK_OWNER, lease.run)
        token, holds, entered, sid = wire.find(_LEASE, lease.run) or (None, False, False, None)
        if again and token == lease.token and not holds:
            return  # nobody but this run could have given it back
        if token != lease.token or not holds or not entered:
            raise whereabouts.fenced(lease.session, lease.branch)
        if status is None:
            wire.do(_LET_GO, lease.run)
        else:
            wire.do(_COMPLETE if status == "completed" else _END, lease.run)
            wire.do(_STATUS, pack(status), pack_or_none(reason), sid)
        wire.find(_NOTIFY, wire.place.channel)


def settle(wire: Wire, sid: int, branch: str, before: Journaled, after: CallRow, *, again: bool) -> None:
    """Change a pending call from outside; see the port. The session is locked."""
    running = lock(wire, sid, branch)
    pending_now = [] if running is None else pending_on(wire, sid, running)
    if again and replace(before, call=after) in pending_now:
        return
    if before not in pending_now:
        message = f"call {before.call.id} is no longer as it was: another has decided it, or a run went on"
        raise ConflictError(message, hint="look again: session.calls(pending=True)")
    journal.change(wire, before, after)
    if running is not None and not running.live():
        wire.do(_FENCE, running.run)


def abandon(wire: Wire, session: str, sid: int, branch: str, reason: str) -> int:
    """Give up what is pending; see the port. The session is locked."""
    running = lock(wire, sid, branch)
    if running is None:
        return 0
    refuse_live(session, running)
    given_up = journal.give_up(wire, running.run, _stands(wire, sid, running.branch)[1], reason)
    if running.unfinished or given_up:
        wire.do(_STATUS, b"halted", pack(reason), sid)
        wire.do(_COMPLETE, running.run)
    return given_up


# what other writes do to the journal


def forget_branch(wire: Wire, session: str, sid: int, branch: str) -> None:
    """The runs of a branch that goes, and the calls that no checkpoint took in. LeaseHeldError if one is alive."""
    running = lock(wire, sid, branch)
    if running is None:
        return
    refuse_live(session, running)
    wire.do(_FORGET_RUN, running.run)
    wire.do(_DROP_LOOSE, running.run, sid)


def refuse_head_gone(wire: Wire, session: str, sid: int, branch: str, stood: int) -> None:
    """LeaseHeldError or InDoubtError if the head of a branch may not go; who comes back to it is fenced."""
    running = lock(wire, sid, branch)
    if running is not None:
        refuse_live(session, running)
        refuse_in_doubt(session, branch, journal.pending_at(wire, running.run, stood))
        wire.do(_FENCE, running.run)


def forget_checkpoints(
    wire: Wire, sid: int, gone: Collection[Took], taken: Collection[Took], sequences: Collection[int]
) -> None:
    """The calls that deleted checkpoints took in (`gone`), and those pending at one and `taken` by no other."""
    dropped = set(gone)
    for found in wire.rows(_ALL_RUNS, sid) if sequences else ():
        run = Running(*found).run
        at = {stood for (stood,) in wire.rows(_STOOD, run)}
        dropped |= {(run, stood) for stood in at.intersection(sequences) if (run, stood) not in taken}
    wire.each(_DROP_CALLS, sorted(dropped))


def forget_session(wire: Wire, session: str, sid: int) -> None:
    """All runs and calls of a session that goes. LeaseHeldError if one is alive."""
    for found in wire.rows(f"{_ALL_RUNS} FOR NO KEY UPDATE", sid):
        refuse_live(session, Running(*found))
    for statement in _DROP_SESSION:
        wire.do(statement, sid)


def arrive(wire: Wire, sid: int, moved: Moved) -> dict[int, int]:
    """The runs and the journal of a session that comes from elsewhere; how its runs are numbered here."""
    numbers: dict[int, int] = {}
    for row in moved.runs:
        # The token goes on from where it was: a call that was started elsewhere must not look like the next run's own.
        values = pack(row.branch), row.token, row.unfinished or row.entered, row.input
        numbers[row.run] = wire.one(_ARRIVE_RUN, sid, *values)[0]
    counts: dict[Took, int] = {}
    rows: list[Any] = []
    for journaled in moved.calls:
        if journaled.run not in numbers:  # of a branch that is gone
            numbers[journaled.run] = wire.one(_ARRIVE_RUN, sid, None, 0, False, None)[0]
        run, at = numbers[journaled.run], (journaled.run, journaled.after)
        n = counts[at] = counts.get(at, -1) + 1
        rows.append((run, journaled.after, mark_of(journaled.call.id), n, *seal(journaled.call, run)))
    wire.each(_ARRIVE_CALL, rows)
    return numbers


# reading


def pending(wire: Wire, session: str, branch: str) -> Pending:
    """How a branch stands between boundaries; see the port."""
    sid = find_sid(wire, session)
    found = None if sid is None else wire.find(_ONE_RUN, sid, pack(branch))
    if sid is None or found is None:
        return Pending(None, ())
    running = Running(*found)
    return Pending(running.row(), tuple(pending_on(wire, sid, running)))


def calls(wire: Wire, session: str, id_: str) -> list[Journaled]:
    """The calls that a checkpoint took in."""
    sid = sid_of(wire, session)
    run, stood, count = wire.one(_TOOK, sid, sequence_of(wire, sid, id_))
    found = [] if run is None else journal.calls_at(wire, run, stood)
    if len(found) != (count or 0):
        raise journal.missing_call()
    return found


def runs(wire: Wire, session: str) -> list[RunRow]:
    """The runs of a session."""
    sid = find_sid(wire, session)
    return [] if sid is None else [Running(*found).row() for found in wire.rows(_ALL_RUNS, sid)]


def crashed(wire: Wire) -> list[tuple[SessionRow, RunRow]]:
    """Runs that were entered, have not ended, and whose lease nobody alive holds; see the port."""
    found = [
        (session_line(row[:SESSION_COLUMNS]), Running(*row[SESSION_COLUMNS:]).row()) for row in wire.rows(_CRASHED)
    ]
    return [(line, row) for line, row in found if not row.live]
