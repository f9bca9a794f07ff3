"""Runs in memory: what is known of a branch's lease and journal, and the rules that every other backend shares.

Functions on one drawer; the backend holds its lock around each. As everywhere here, a verb first looks and refuses,
then changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    refuse_in_doubt,
    spot_of,
)
from backstay.errors import ConflictError, NotFoundError
from backstay.whereabouts import Claim, claim, fenced, held, is_live, token_after

if TYPE_CHECKING:
    from backstay.backends.memory.drawers import Drawer

Took = tuple[int, int]


@dataclass(slots=True)
class Running:
    """The runs of one branch."""

    run: int
    token: int = 0
    claim: Claim | None = None
    entered: bool = False
    unfinished: bool = False
    input: bytes | None = None
    crashes: int = 0
    spot: bytes = b""

    def live(self) -> bool:
        return self.entered and is_live(self.claim)

    def fence(self) -> None:
        """Somebody else writes here: a run that was silent too long, and yet lives, writes no more."""
        self.token += 1


def row_of_run(branch: str, running: Running) -> RunRow:
    """A branch's runs as the port shows them."""
    return RunRow(
        branch=branch,
        run=running.run,
        token=running.token,
        entered=running.entered,
        live=running.live(),
        unfinished=running.unfinished,
        input=running.input,
        crashes=running.crashes,
        spot=running.spot,
    )


def after_of(session: Drawer, branch: str) -> int:
    """The sequence at which calls on a branch are pending."""
    stand = session.branches.get(branch)
    return 0 if stand is None else session.checkpoints[stand.head].row.sequence


def pending_of(session: Drawer, branch: str) -> list[Journaled]:
    """The calls on a branch since its head that were not given up."""
    running = session.runs.get(branch)
    if running is None:
        return []
    found = calls_of(session, (running.run, after_of(session, branch)))
    return [journaled for journaled in found if journaled.call.status != ABANDONED]


def calls_of(session: Drawer, took: Took | None) -> list[Journaled]:
    """The calls of a run while its branch stood at one sequence."""
    return [journaled for journaled in session.calls.values() if (journaled.run, journaled.after) == took]


def pending(session: Drawer, branch: str) -> Pending:
    """See the port."""
    running = session.runs.get(branch)
    row = None if running is None else row_of_run(branch, running)
    return Pending(row, tuple(pending_of(session, branch)))


def refuse_live(session: Drawer, branch: str) -> None:
    """LeaseHeldError if a run is alive on a branch."""
    running = session.runs.get(branch)
    if running is not None and running.claim is not None and running.live():
        raise held(session.id, branch, running.claim)


def holding(session: Drawer | None, lease: Lease) -> Running:
    """The runs of a branch, if the lease is the newest one's and was not given back; FencedError otherwise."""
    running = None if session is None else session.runs.get(lease.branch)
    if running is None or (running.run, running.token) != (lease.run, lease.token) or running.claim is None:
        raise fenced(lease.session, lease.branch)
    return running


def enter(session: Drawer, entry: Entry) -> Entered:
    """See the port."""
    branch = entry.branch
    running = session.runs.get(branch)
    refuse_live(session, branch)
    if entry.expect_token is not None and (
        running is None or running.token != entry.expect_token or not running.entered
    ):
        message = f"session {session.id!r}, branch {branch!r}: its run has ended or was taken up meanwhile"
        raise ConflictError(message, hint="there is nothing left to do")
    stand = session.branches.get(branch)
    if stand is None and session.checkpoints:
        message = f"session {session.id!r} has no branch {branch!r}"
        raise NotFoundError(message, hint="session.fork(ref, name) makes one")
    calls = pending_of(session, branch)
    before = None if running is None else row_of_run(branch, running)

    if running is None:
        session.last_run += 1
        running = session.runs[branch] = Running(session.last_run)
    if running.entered and running.claim is not None:
        spot = spot_of(after_of(session, branch), calls)
        running.crashes, running.spot = running.crashes + 1 if spot == running.spot else 1, spot
    if not running.unfinished or running.input is None:
        running.input = entry.input
    running.token = token_after(running.token)
    running.claim, running.entered, running.unfinished = claim(entry.lease_us), True, True
    session.totals = msgspec.structs.replace(
        session.totals, agent=entry.agent or session.totals.agent, status="in_progress", reason=None
    )
    return Entered(
        lease=Lease(session.id, branch, running.run, running.token, entry.lease_us),
        head_id=None if stand is None else stand.head,
        before=before,
        run=row_of_run(branch, running),
        calls=tuple(calls),
    )


def journal(session: Drawer | None, lease: Lease, call: CallRow, *, after: int, slot: int | None) -> int:
    """See the port."""
    running = holding(session, lease)
    assert session is not None  # noqa: S101 - nobody holds a lease on a session that is not there
    running.claim = claim(lease.lease_us)
    if slot is None:
        session.last_slot += 1
        slot = session.last_slot
    session.calls[slot] = Journaled(lease.run, after, slot, call)
    return slot


def leave(session: Drawer | None, lease: Lease, *, status: str | None, reason: str | None) -> None:
    """See the port."""
    running = holding(session, lease)
    assert session is not None  # noqa: S101 - nobody holds a lease on a session that is not there
    running.claim = None
    if status is not None:
        end(running, completed=status == "completed")
        session.totals = msgspec.structs.replace(session.totals, status=status, reason=reason)


def end(running: Running, *, completed: bool) -> None:
    """A run is over; unless it completed, the next one goes on with its input."""
    running.claim, running.entered, running.crashes, running.spot = None, False, 0, b""
    if completed:
        running.unfinished, running.input = False, None


def settle(session: Drawer, branch: str, *, before: Journaled, after: CallRow) -> None:
    """See the port."""
    if before not in pending_of(session, branch):
        message = f"call {before.call.id} is no longer as it was: another has decided it, or a run went on"
        raise ConflictError(message, hint="look again: session.calls(pending=True)")
    session.calls[before.slot] = msgspec.structs.replace(before, call=after)
    running = session.runs[branch]
    if not running.live():
        running.fence()


def abandon(session: Drawer, branch: str, *, reason: str) -> int:
    """See the port."""
    refuse_live(session, branch)
    given_up = pending_of(session, branch)
    running = session.runs.get(branch)
    for journaled in given_up:
        call = msgspec.structs.replace(journaled.call, status=ABANDONED, error=("abandoned", reason))
        session.calls[journaled.slot] = msgspec.structs.replace(journaled, call=call)
    if running is not None and (running.unfinished or given_up):
        end(running, completed=True)
        session.totals = msgspec.structs.replace(session.totals, status="halted", reason=reason)
    return len(given_up)


def refuse_commit(session: Drawer | None, commit: Commit) -> None:
    """FencedError for a run that lost its lease; LeaseHeldError or InDoubtError for others where they may not write."""
    if session is not None and commit.id in session.checkpoints:
        return  # an earlier try of this very commit went through, and may have ended its run
    if commit.lease is not None:
        holding(session, commit.lease)
    elif session is not None:
        refuse_live(session, commit.branch)
        refuse_in_doubt(session.id, commit.branch, pending_of(session, commit.branch))


def take_in(session: Drawer, commit: Commit, *, after: int, sequence: int) -> Took | None:
    """What a commit does to the journal: a boundary takes in what is pending; an undo takes up what it left behind."""
    running = session.runs.get(commit.branch)
    if running is None:
        return None
    if commit.lease is None:
        if running.entered:
            running.fence()
        if commit.take_up is not None:
            _take_up(session, running, session.checkpoints[commit.take_up].row.sequence, sequence)
        return None
    took = running.run, after
    calls = calls_of(session, took)
    for journaled in calls:
        place = commit.kept_in_state.get(journaled.call.id)
        if place is not None:
            call = msgspec.structs.replace(journaled.call, result=None, place=place)
            session.calls[journaled.slot] = msgspec.structs.replace(journaled, call=call)
    if commit.ends_run:
        end(running, completed=True)
    else:
        running.claim = claim(commit.lease.lease_us)
    return took if calls else None


def _take_up(session: Drawer, running: Running, left_at: int, now_at: int) -> None:
    if any(kept.took == (running.run, left_at) for kept in session.checkpoints.values()):
        return
    for journaled in calls_of(session, (running.run, left_at)):
        session.calls[journaled.slot] = msgspec.structs.replace(journaled, after=now_at)


def forget_branch(session: Drawer, branch: str) -> None:
    """The branch's runs, and the calls that no checkpoint took in."""
    running = session.runs.pop(branch, None)
    taken = {kept.took for kept in session.checkpoints.values()}
    if running is not None:
        _drop(session, [j for j in session.calls.values() if j.run == running.run and (j.run, j.after) not in taken])


def refuse_deletion(session: Drawer, gone: Collection[str]) -> list[Running]:
    """LeaseHeldError or InDoubtError if a branch's head would go and a run there is alive, or a call in doubt.

    Gives the runs whose heads go.
    """
    branches = [branch for branch, stand in session.branches.items() if stand.head in gone]
    for branch in branches:
        refuse_live(session, branch)
        refuse_in_doubt(session.id, branch, pending_of(session, branch))
    return [session.runs[branch] for branch in branches if branch in session.runs]


def forget_checkpoints(session: Drawer, gone_took: Collection[Took | None], gone_sequences: Collection[int]) -> None:
    """The calls that deleted checkpoints took in, and those pending at one."""
    taken = {kept.took for kept in session.checkpoints.values()}
    _drop(
        session,
        [
            journaled
            for journaled in session.calls.values()
            if (journaled.run, journaled.after) in gone_took
            or (journaled.after in gone_sequences and (journaled.run, journaled.after) not in taken)
        ],
    )


def _drop(session: Drawer, calls: list[Journaled]) -> None:
    for journaled in calls:
        del session.calls[journaled.slot]


def arrive_with(session: Drawer, moved: Moved) -> Mapping[int, int]:
    """The runs and the journal of a session that comes from elsewhere; how its runs are numbered here."""
    numbers: dict[int, int] = {}
    for number in [*[row.run for row in moved.runs], *[journaled.run for journaled in moved.calls]]:
        numbers.setdefault(number, len(numbers) + 1)
    for row in moved.runs:
        # The token goes on from where it was: a call that was started elsewhere must not look like the next run's own.
        session.runs[row.branch] = Running(
            numbers[row.run], row.token, unfinished=row.unfinished or row.entered, input=row.input
        )
    for slot, journaled in enumerate(moved.calls, 1):
        session.calls[slot] = Journaled(numbers[journaled.run], journaled.after, slot, journaled.call)
    session.last_run, session.last_slot = len(numbers), len(moved.calls)
    return numbers
