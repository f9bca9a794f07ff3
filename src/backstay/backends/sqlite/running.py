"""Runs: the lease of a branch, and the journal of the calls made on it.

A journal write is one row (its body sealed) and the reading of one other, the branch's line in `runs`, which is
written again only when the lease in it has aged. A boundary writes neither: its checkpoint names the calls it took in
by their run and the sequence they were made after. So calls need not be touched when they become history.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import apsw
import msgspec

from backstay.backend import (
    ABANDONED,
    CallRow,
    Commit,
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
from backstay.backends.sqlite.calls import open_journaled, seal
from backstay.backends.sqlite.listing import claim_of, sessions_by_sid
from backstay.backends.sqlite.reads import cid_of, find_sid, one, sid_of, unpack_id
from backstay.errors import ConflictError, CorruptionError, NotFoundError
from backstay.whereabouts import claim, clock_us, encode_claim, fenced, held, is_live, token_after

_RUN = "SELECT run, branch, token, claim, entered, unfinished, input, crashes, spot FROM runs"
_ONE_RUN = f"{_RUN} WHERE sid = ? AND branch = ?"
# What is not found by an index decides whether a tool is run: it is looked for once more, without.
_ONE_RUN_UNINDEXED = "SELECT 1 FROM runs NOT INDEXED WHERE sid = ? AND branch = ?"
_ANY_CALL = "SELECT EXISTS(SELECT 1 FROM calls NOT INDEXED)"
_ANY_CALL_INDEXED = "SELECT EXISTS(SELECT 1 FROM calls INDEXED BY calls_run WHERE run > 0)"
_ALL_RUNS = f"{_RUN} WHERE sid = ? AND branch IS NOT NULL ORDER BY branch"
_NEXT_RUN = "SELECT coalesce(max(run), 0) + 1 FROM runs"
_NEW_RUN = (
    "INSERT INTO runs(run, sid, branch, token, claim, entered, unfinished, input, crashes, spot) "
    "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ENTER = (
    "UPDATE runs SET token = ?2, claim = ?3, entered = 1, unfinished = 1, input = ?4, crashes = ?5, spot = ?6 "
    "WHERE run = ?1"
)
_LEASE = "SELECT token, claim, entered FROM runs WHERE run = ?"
_RENEW = "UPDATE runs SET claim = ? WHERE run = ?"
_END = "UPDATE runs SET claim = NULL, entered = 0, crashes = 0, spot = x'' WHERE run = ?"
_COMPLETE = (
    "UPDATE runs SET claim = NULL, entered = 0, crashes = 0, spot = x'', unfinished = 0, input = NULL WHERE run = ?"
)
_LET_GO = "UPDATE runs SET claim = NULL WHERE run = ?"
# Somebody else writes here: a run that was silent too long, and yet lives, writes no more.
_FENCE = "UPDATE runs SET token = token + 1 WHERE run = ?"
# Its number stays taken: checkpoints go on naming it.
_FORGET_RUN = "UPDATE runs SET branch = NULL, claim = NULL, entered = 0, unfinished = 0, input = NULL WHERE run = ?"
_NEW_SESSION = (
    "INSERT INTO sessions(id, sequence, checkpoints, branches, logical, epoch, touched, created_us, updated_us, agent, "
    "status, reason, last_step, usage) "
    "VALUES(?1, 0, 0, 0, 0, 0, -(SELECT coalesce(max(sid), 0) + 1 FROM sessions), ?2, ?2, ?3, 'in_progress', NULL, "
    "NULL, x'')"
)
_BEGIN = "UPDATE sessions SET status = 'in_progress', reason = NULL, agent = coalesce(?2, agent) WHERE sid = ?1"
_STATUS = "UPDATE sessions SET status = ?2, reason = ?3 WHERE sid = (SELECT sid FROM runs WHERE run = ?1)"
_HEAD = (
    "SELECT n.tag, c.id, c.sequence FROM names n LEFT JOIN checkpoints c ON c.cid = n.cid "
    "WHERE n.sid = ? AND n.name = ?"
)
_NEW_CALL = (
    "INSERT INTO calls(run, stood, n, body) "
    "VALUES(?1, ?2, (SELECT coalesce(max(n) + 1, 0) FROM calls WHERE run = ?1 AND stood = ?2), ?3)"
)
_SET_CALL = "UPDATE calls SET body = ? WHERE call = ? AND run = ?"
_SET_PLACE = "UPDATE calls SET n = ? WHERE call = ?"
_MOVE_CALLS = "UPDATE calls SET stood = ?3 WHERE run = ?1 AND stood = ?2"
_CALLS = "SELECT run, stood, call, body, n FROM calls WHERE run = ? AND stood = ? ORDER BY n"
_ALL_CALLS = (
    "SELECT run, stood, call, body, n FROM calls WHERE run IN (SELECT run FROM runs WHERE sid = ?) ORDER BY call"
)
_TOOK = "SELECT took_run, took_stood, took_calls FROM checkpoints WHERE cid = ?"
_ALL_TAKEN = "SELECT took_run, took_stood, took_calls FROM checkpoints WHERE sid = ? AND took_run IS NOT NULL"
_COUNT = "SELECT coalesce(max(n) + 1, 0) FROM calls WHERE run = ? AND stood = ?"
_IS_TAKEN = "SELECT 1 FROM checkpoints WHERE sid = ? AND took_run = ? AND took_stood = ?"
_SEQUENCE = "SELECT sequence FROM checkpoints WHERE cid = ?"
_DROP_CALLS = "DELETE FROM calls WHERE run = ? AND stood = ?"
_STOOD = "SELECT DISTINCT stood FROM calls WHERE run = ?"
_DROP_SESSION = (
    "DELETE FROM calls WHERE run IN (SELECT run FROM runs WHERE sid = ?)",
    "DELETE FROM runs WHERE sid = ?",
)
_ENTERED_RUNS = f"{_RUN.replace('SELECT run', 'SELECT sid, run', 1)} WHERE entered = 1"

LOST_CALL = "(damaged)"  # the name of a call that was given up and could not be read

_FRESH_SHARE = 20  # a lease is written anew once this part of it has passed

Took = tuple[int, int]


class Running(NamedTuple):
    """A branch's line in `runs`."""

    run: int
    branch: str
    token: int
    claim: bytes | None
    entered: int
    unfinished: int
    input: bytes | None
    crashes: int
    spot: bytes

    def live(self) -> bool:
        return bool(self.entered) and is_live(claim_of(self.claim))

    def row(self) -> RunRow:
        flags = bool(self.entered), self.live(), bool(self.unfinished)
        return RunRow(self.branch, self.run, self.token, *flags, self.input, self.crashes, self.spot)


def _find(connection: apsw.Connection, sid: int | None, branch: str) -> Running | None:
    found = None if sid is None else connection.execute(_ONE_RUN, (sid, branch)).fetchone()
    if found is None and sid is not None and connection.execute(_ONE_RUN_UNINDEXED, (sid, branch)).fetchone():
        message = "the index of the runs cannot be read"
        raise CorruptionError(message, hint="run verify to see what is intact")
    return None if found is None else Running(*found)


def _calls(connection: apsw.Connection, run: int, stood: int) -> list[Journaled]:
    found = connection.execute(_CALLS, (run, stood)).fetchall()
    if [row[-1] for row in found] != list(range(len(found))):
        raise _missing_call()
    if not found and one(connection, _ANY_CALL) != one(connection, _ANY_CALL_INDEXED):
        raise _missing_call()  # the index is not that of this table: pages were exchanged
    return [open_journaled(row) for row in found]


def _missing_call() -> CorruptionError:
    message = "a journaled call is missing"
    return CorruptionError(message, hint="run verify to see what is intact")


def _pending(connection: apsw.Connection, run: int, stood: int) -> list[Journaled]:
    return [journaled for journaled in _calls(connection, run, stood) if journaled.call.status != ABANDONED]


def _stands(connection: apsw.Connection, sid: int, branch: str) -> tuple[str | None, int]:
    """The head of a branch and its sequence; nothing and 0 if there is none."""
    tagged, kept_id, sequence = connection.execute(_HEAD, (sid, branch)).fetchone() or (0, None, 0)
    return (None, 0) if tagged or kept_id is None else (unpack_id(kept_id), sequence)


# writing


def enter(connection: apsw.Connection, entry: Entry) -> Entered:
    """Take the lease of a branch; see the port."""
    branch = entry.branch
    sid = find_sid(connection, entry.session)
    running = _find(connection, sid, branch)
    if running is not None:
        _refuse_live(entry.session, running)
    expected = entry.expect_token
    if expected is not None and (running is None or running.token != expected or not running.entered):
        message = f"session {entry.session!r}, branch {branch!r}: its run has ended or was taken up meanwhile"
        raise ConflictError(message, hint="there is nothing left to do")
    if sid is None:
        connection.execute(_NEW_SESSION, (entry.session, entry.at_us, entry.agent))
        sid = connection.last_insert_rowid()
    head_id, stood = _stands(connection, sid, branch)
    if head_id is None and one(connection, "SELECT checkpoints FROM sessions WHERE sid = ?", (sid,))[0]:
        message = f"session {entry.session!r} has no branch {branch!r}"
        raise NotFoundError(message, hint="session.fork(ref, name) makes one")
    calls = _pending(connection, running.run, stood) if running is not None else []

    lease = encode_claim(claim(entry.lease_us))
    if running is None:
        (run,) = one(connection, _NEXT_RUN)
        now = Running(run, branch, token_after(0), lease, 1, 1, entry.input, 0, b"")
        connection.execute(_NEW_RUN, (run, sid, *now[1:]))
    else:
        now = _entered(running, entry, lease, spot_of(stood, calls))
        connection.execute(_ENTER, (now.run, now.token, now.claim, now.input, now.crashes, now.spot))
    connection.execute(_BEGIN, (sid, entry.agent))
    return Entered(
        lease=Lease(entry.session, branch, now.run, now.token, entry.lease_us),
        head_id=head_id,
        before=None if running is None else running.row(),
        run=now.row(),
        calls=tuple(calls),
    )


def _entered(running: Running, entry: Entry, lease: bytes, spot: bytes) -> Running:
    crashes, last_spot = running.crashes, running.spot
    if running.entered and running.claim is not None:
        crashes, last_spot = crashes + 1 if spot == last_spot else 1, spot
    kept = running.input if running.unfinished and running.input is not None else entry.input
    return Running(running.run, running.branch, token_after(running.token), lease, 1, 1, kept, crashes, last_spot)


def _refuse_live(session: str, running: Running) -> None:
    lease = claim_of(running.claim) if running.entered else None
    if lease is not None and is_live(lease):
        raise held(session, running.branch, lease)


def renew(connection: apsw.Connection, lease: Lease, *, at_once: bool = True) -> None:
    """FencedError if the lease is lost; otherwise it is written anew, `at_once` or if it has aged."""
    token, kept, entered = connection.execute(_LEASE, (lease.run,)).fetchone() or (None, None, 0)
    if token != lease.token or not entered or kept is None:
        raise fenced(lease.session, lease.branch)
    old = None if at_once else claim_of(kept)
    if old is None or old.until_us - clock_us() < lease.lease_us - lease.lease_us // _FRESH_SHARE:
        connection.execute(_RENEW, (encode_claim(claim(lease.lease_us)), lease.run))


def journal(connection: apsw.Connection, lease: Lease, call: CallRow, after: int, slot: int | None) -> int:
    """Write down a call, or what became of it; see the port."""
    renew(connection, lease, at_once=False)
    body = seal(call, lease.run)
    if slot is None:
        connection.execute(_NEW_CALL, (lease.run, after, body))
        return connection.last_insert_rowid()
    connection.execute(_SET_CALL, (body, slot, lease.run))
    if not connection.changes():
        message = f"call {call.id} is not in the journal any more"
        raise CorruptionError(message, hint="run verify")
    return slot


def leave(connection: apsw.Connection, lease: Lease, status: str | None, reason: str | None) -> None:
    """Give the lease back; see the port."""
    renew(connection, lease, at_once=False)
    if status is None:
        connection.execute(_LET_GO, (lease.run,))
        return
    connection.execute(_COMPLETE if status == "completed" else _END, (lease.run,))
    connection.execute(_STATUS, (lease.run, status, reason))


def settle(connection: apsw.Connection, session: str, branch: str, before: Journaled, after: CallRow) -> None:
    """Change a pending call from outside; see the port."""
    sid_of(connection, session)
    found = pending(connection, session, branch)
    if found.run is None or before not in found.calls:
        message = f"call {before.call.id} is no longer as it was: another has decided it, or a run went on"
        raise ConflictError(message, hint="look again: session.calls(pending=True)")
    connection.execute(_SET_CALL, (seal(after, before.run), before.slot, before.run))
    if not found.run.live:
        connection.execute(_FENCE, (before.run,))


def abandon(connection: apsw.Connection, session: str, branch: str, reason: str) -> int:
    """Give up what is pending; see the port. Works where calls are damaged, too: it is the way to go on there."""
    sid = sid_of(connection, session)
    running = _find(connection, sid, branch)
    if running is None:
        return 0
    _refuse_live(session, running)
    _, stood = _stands(connection, sid, branch)
    found: list[Any] = connection.execute(_CALLS, (running.run, stood)).fetchall()
    missing: int = found[-1][-1] + 1 - len(found) if found else 0
    given_up = missing
    for n, row in enumerate(found):
        call = _given_up(row, reason)
        if call is not None:
            connection.execute(_SET_CALL, (seal(call, running.run), row[2], running.run))
            given_up += 1
        if missing:  # closed up, so that those that are left are not taken for damaged
            connection.execute(_SET_PLACE, (n, row[2]))
    for n in range(len(found), len(found) + missing):
        body = seal(_lost_call(n, reason, "it is missing"), running.run)
        connection.execute(_NEW_CALL, (running.run, stood, body))
    if running.unfinished or given_up:
        connection.execute(_STATUS, (running.run, "halted", reason))
        connection.execute(_COMPLETE, (running.run,))
    return given_up


def _given_up(row: Any, reason: str) -> CallRow | None:
    """A pending call as it is once it was given up; None if it was before."""
    try:
        call = open_journaled(row).call
    except CorruptionError as error:
        return _lost_call(row[-1], reason, error.args[0])
    over = msgspec.structs.replace(call, status=ABANDONED, error=("abandoned", reason))
    return None if call.status == ABANDONED else over


def _lost_call(n: int, reason: str, why: str) -> CallRow:
    """Stands where a call was that could not be read when it was given up, and says so."""
    now_us = time.time_ns() // 1000
    row = CallRow(secrets.token_hex(8), None, LOST_CALL, None, n, "tool", None, bytes(16), ABANDONED, 0, now_us)
    return msgspec.structs.replace(row, error=("abandoned", f"{reason} (what was recorded is damaged: {why})"))


# what other writes do to the journal


class Standing(NamedTuple):
    """What a commit finds of its branch's run: the columns it needs, and where the branch stood."""

    run: int
    token: int
    claim: bytes | None
    entered: int
    stood: int


def check_commit(connection: apsw.Connection, new: Commit, standing: Standing | None) -> None:
    """FencedError for a run that lost its lease; LeaseHeldError or InDoubtError for others where they may not write."""
    lease = new.lease
    if lease is not None:
        held_by = None if standing is None or standing.claim is None else (standing.run, standing.token)
        if held_by != (lease.run, lease.token):
            raise fenced(lease.session, lease.branch)
    elif standing is not None:
        kept = claim_of(standing.claim) if standing.entered else None
        if kept is not None and is_live(kept):
            raise held(new.session, new.branch, kept)
        refuse_in_doubt(new.session, new.branch, _pending(connection, standing.run, standing.stood))


def took_by(connection: apsw.Connection, new: Commit, standing: Standing | None) -> tuple[int | None, ...]:
    """The run, the sequence and the number of the calls that a commit takes in; nothing if there are none."""
    if standing is not None and new.lease is not None:
        (count,) = one(connection, _COUNT, (standing.run, standing.stood))
        if count:
            return standing.run, standing.stood, count
    return None, None, None


def take_in(connection: apsw.Connection, new: Commit, standing: Standing, sid: int, sequence: int) -> None:
    """What a commit does to the journal beside naming what it took in."""
    if new.lease is None:
        if standing.entered:
            connection.execute(_FENCE, (standing.run,))
        if new.take_up is not None:
            _take_up(connection, sid, standing.run, cid_of(connection, sid, new.take_up), sequence)
        return
    if new.kept_in_state:
        for journaled in _calls(connection, standing.run, standing.stood):
            place = new.kept_in_state.get(journaled.call.id)
            if place is not None:
                call = msgspec.structs.replace(journaled.call, result=None, place=place)
                sealed = seal(call, standing.run)
                connection.execute(_SET_CALL, (sealed, journaled.slot, standing.run))
    if new.ends_run:
        connection.execute(_COMPLETE, (standing.run,))
    else:
        renew(connection, new.lease, at_once=False)


def _take_up(connection: apsw.Connection, sid: int, run: int, left: int, sequence: int) -> None:
    (stood,) = one(connection, _SEQUENCE, (left,))
    if connection.execute(_IS_TAKEN, (sid, run, stood)).fetchone() is None:
        connection.execute(_MOVE_CALLS, (run, stood, sequence))


def forget_branch(connection: apsw.Connection, session: str, sid: int, branch: str) -> None:
    """The runs of a branch that goes, and the calls that no checkpoint took in. LeaseHeldError if one is alive."""
    running = _find(connection, sid, branch)
    if running is None:
        return
    _refuse_live(session, running)
    connection.execute(_FORGET_RUN, (running.run,))
    for (stood,) in list(connection.execute(_STOOD, (running.run,))):
        if connection.execute(_IS_TAKEN, (sid, running.run, stood)).fetchone() is None:
            connection.execute(_DROP_CALLS, (running.run, stood))


def refuse_head_gone(connection: apsw.Connection, session: str, sid: int, branch: str, stood: int) -> None:
    """LeaseHeldError or InDoubtError if the head of a branch may not go; who comes back to it is fenced."""
    running = _find(connection, sid, branch)
    if running is not None:
        _refuse_live(session, running)
        refuse_in_doubt(session, branch, _pending(connection, running.run, stood))
        connection.execute(_FENCE, (running.run,))


def forget_checkpoints(
    connection: apsw.Connection, sid: int, gone: Collection[Took], taken: Collection[Took], sequences: Iterable[int]
) -> None:
    """The calls that deleted checkpoints took in (`gone`), and those pending at one and `taken` by no other."""
    for run, stood in gone:
        connection.execute(_DROP_CALLS, (run, stood))
    runs = [Running(*found).run for found in connection.execute(_ALL_RUNS, (sid,))]
    for run in runs:
        at = {stood for (stood,) in connection.execute(_STOOD, (run,))}
        for stood in at.intersection(sequences):
            if (run, stood) not in taken:
                connection.execute(_DROP_CALLS, (run, stood))


def forget_session(connection: apsw.Connection, session: str, sid: int) -> None:
    """All runs and calls of a session that goes. LeaseHeldError if one is alive."""
    for found in list(connection.execute(_ALL_RUNS, (sid,))):
        _refuse_live(session, Running(*found))
    for statement in _DROP_SESSION:
        connection.execute(statement, (sid,))


def arrive(connection: apsw.Connection, sid: int, moved: Moved) -> dict[int, int]:
    """The runs and the journal of a session that comes from elsewhere; how its runs are numbered here."""
    (following,) = one(connection, _NEXT_RUN)
    numbers: dict[int, int] = {}
    for number in [*[row.run for row in moved.runs], *[journaled.run for journaled in moved.calls]]:
        numbers.setdefault(number, following + len(numbers))
    for row in moved.runs:
        # The token goes on from where it was: a call that was started elsewhere must not look like the next run's own.
        unfinished = row.unfinished or row.entered
        values = row.branch, row.token, None, 0, unfinished, row.input, 0, b""
        connection.execute(_NEW_RUN, (numbers[row.run], sid, *values))
    for number in numbers.keys() - {row.run for row in moved.runs}:  # of branches that are gone
        connection.execute(_NEW_RUN, (numbers[number], sid, None, 0, None, 0, 0, None, 0, b""))
    for journaled in moved.calls:
        run = numbers[journaled.run]
        connection.execute(_NEW_CALL, (run, journaled.after, seal(journaled.call, run)))
    return numbers


# reading


def pending(connection: apsw.Connection, session: str, branch: str) -> Pending:
    """How a branch stands between boundaries; see the port."""
    sid = find_sid(connection, session)
    running = _find(connection, sid, branch)
    if sid is None or running is None:
        return Pending(None, ())
    _, stood = _stands(connection, sid, branch)
    return Pending(running.row(), tuple(_pending(connection, running.run, stood)))


def calls(connection: apsw.Connection, session: str, id_: str) -> list[Journaled]:
    """The calls that a checkpoint took in."""
    run, stood, count = one(connection, _TOOK, (cid_of(connection, sid_of(connection, session), id_),))
    found = [] if run is None else _calls(connection, run, stood)
    if len(found) != (count or 0):
        raise _missing_call()
    return found


def runs(connection: apsw.Connection, session: str) -> list[RunRow]:
    """The runs of a session."""
    sid = find_sid(connection, session)
    return [] if sid is None else [Running(*found).row() for found in connection.execute(_ALL_RUNS, (sid,))]


def entries(connection: apsw.Connection, session: str) -> list[Journaled]:
    """The whole journal of a session."""
    sid = sid_of(connection, session)
    found = connection.execute(_ALL_CALLS, (sid,)).fetchall()
    counts: dict[Any, int] = {}
    for run, stood, *_, n in found:
        if n != counts.setdefault((run, stood), 0):
            raise _missing_call()
        counts[run, stood] += 1
    for run, stood, count in connection.execute(_ALL_TAKEN, (sid,)):
        if counts.get((run, stood), 0) != count:
            raise _missing_call()
    return [open_journaled(row) for row in found]


def crashed(connection: apsw.Connection) -> list[tuple[SessionRow, RunRow]]:
    """Runs that were entered, have not ended, and whose lease nobody alive holds; see the port."""
    found = [(sid, Running(*rest).row()) for sid, *rest in connection.execute(_ENTERED_RUNS)]
    dead = [(sid, row) for sid, row in found if not row.live]
    lines = sessions_by_sid(connection, {sid for sid, _ in dead})
    rows = [(lines[sid], row) for sid, row in dead if sid in lines]
    return sorted(rows, key=lambda pair: (-pair[0].touched, pair[1].branch))
