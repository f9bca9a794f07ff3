"""Runs: their verbs, and what commits and deletions owe them. Each change is called with the store's lock held.

The order is the same everywhere: look and refuse, then the line, on the disk when the verb returns; the claim comes
before the line that makes it count, and after those that it witnesses. What cannot be read for certain is refused: a
call that might have been made must not be taken for one that was not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from backstay.backend import (
    ABANDONED,
    FORMAT_VERSION,
    CallRow,
    Commit,
    Entered,
    Entry,
    Journaled,
    Lease,
    Pending,
    RunRow,
    refuse_in_doubt,
    spot_of,
)
from backstay.backends.files.folder import Folder
from backstay.backends.files.index import Index
from backstay.backends.files.journal import Journal
from backstay.backends.files.leases import NOBODY, Leases, Witness
from backstay.backends.files.ledger import Called, Group, ended
from backstay.backends.files.lines import GaveUp, RunState, first_line, session_lines
from backstay.backends.files.runlines import brief_of, call_lines, input_sum, read_call, run_lines
from backstay.errors import ConflictError, CorruptionError, NotFoundError
from backstay.whereabouts import Claim, claim, fenced, held, is_live, token_after

# After lost lines a run may have been entered that nobody knows of: the next token is beyond any it could have had.
_TOKENS_BEYOND = 1000

Applied = Callable[[Callable[[], None]], None]


# who is alive


def live_claim(leases: Leases, session: str, state: RunState | None) -> Claim | None:
    """The claim on a branch, if somebody alive holds it."""
    if state is None or not state.entered or state.left:
        return None
    found = leases.find(session, state.run, state.token)
    return found if is_live(found) else None


def has_crashed(leases: Leases, session: str, states: Collection[RunState]) -> bool:
    """True if one was entered, has not ended, and nobody alive holds its lease."""
    return any([state.entered and live_claim(leases, session, state) is None for state in states])


def refuse_live(leases: Leases, session: str, branch: str, state: RunState | None) -> None:
    """LeaseHeldError if a run is alive on a branch."""
    found = live_claim(leases, session, state)
    if found is not None:
        raise held(session, branch, found)


def row_of(branch: str, state: RunState, input_: bytes | None, *, live: bool) -> RunRow:
    """A branch's runs as the port shows them."""
    return RunRow(
        branch=branch,
        run=state.run,
        token=state.token,
        entered=state.entered,
        live=live,
        unfinished=state.unfinished,
        input=input_,
        crashes=state.crashes,
        spot=bytes.fromhex(state.spot),
    )


def _row(leases: Leases, index: Index, branch: str) -> RunRow | None:
    state = index.ledger.states.get(branch)
    if state is None:
        return None
    live = live_claim(leases, index.id or "", state) is not None
    return row_of(branch, state, index.ledger.input_of(branch), live=live)


def _holding(journal: Journal | None, lease: Lease) -> RunState:
    """How the run stands, if the lease is the newest one's and was not given back; FencedError otherwise."""
    if journal is None:
        raise fenced(lease.session, lease.branch)
    journal.index.be_certain_of_run(lease.branch)
    state = journal.index.ledger.states.get(lease.branch)
    if state is None or (state.run, state.token) != (lease.run, lease.token) or not state.entered or state.left:
        raise fenced(lease.session, lease.branch)
    return state


# reading


def read(journal: Journal, called: Called, places: Mapping[str, bytes] | None = None) -> Journaled:
    """A call as it stands; `places` are those of the checkpoint that took it in."""
    call = find_call(journal, called)
    if call is None:
        message = f"session {journal.index.id!r}: the line of call {called.brief.id} is damaged"
        hint = "find out what it did; if it is pending, session.abandon(branch, reason=…) gives it up"
        raise CorruptionError(message, hint=hint)
    place = None if places is None else places.get(call.id)
    if place is not None:
        call = msgspec.structs.replace(call, result=None, place=place)
    return Journaled(called.brief.run, called.after, called.brief.slot, call)


def find_call(journal: Journal, called: Called) -> CallRow | None:
    """A call's words, verified; None if they are lost."""
    span, args = called.span, called.args
    raw = journal.line(span) if span.size else b""
    call = read_call(raw, called.brief.slot, journal.line(args) if args.size and args != span else None)
    if call is None or call.id != called.brief.id:
        return None
    if called.gave_up is not None:
        call = msgspec.structs.replace(call, status=ABANDONED, error=("abandoned", called.gave_up))
    return call


def pending_calls(journal: Journal, branch: str) -> list[Journaled]:
    """The calls since the head that nobody gave up; a CorruptionError if there may be others."""
    index = journal.index
    index.be_certain_of_run(branch)
    return [read(journal, called) for called in index.ledger.pending(branch, index.stands_at(branch))]


def pending(leases: Leases, journal: Journal, branch: str) -> Pending:
    """See the port."""
    calls = pending_calls(journal, branch)
    return Pending(_row(leases, journal.index, branch), tuple(calls))


def calls(journal: Journal, id_: str) -> list[Journaled]:
    """See the port."""
    took = journal.index.entry(id_).about.took
    return [] if took is None else _taken_in(journal, id_, took)


def _taken_in(journal: Journal, id_: str, took: tuple[int, int, int]) -> list[Journaled]:
    index = journal.index
    found = index.ledger.at(took[:2])
    if len(found) != took[2]:
        message = f"session {index.id!r}: of {took[2]} calls that checkpoint {id_[:12]} took in, {len(found)} are left"
        raise CorruptionError(message, hint="run verify to see what is intact")
    places = journal.places(index.entries[id_]) if found else {}
    return [read(journal, called, places) for called in found]


def entries(journal: Journal) -> list[Journaled]:
    """See the port."""
    index = journal.index
    index.ids()  # raises if lines are lost, which may have been calls
    found: list[Journaled] = []
    places: dict[Group, Mapping[str, bytes]] = {}
    for _, called in sorted(index.ledger.calls.items()):
        taken_by = index.ledger.taken.get(called.group)
        if taken_by is not None and called.group not in places:
            places[called.group] = journal.places(index.entries[taken_by])
        found.append(read(journal, called, places.get(called.group)))
    return found


def runs(leases: Leases, journal: Journal) -> list[RunRow]:
    """See the port."""
    index = journal.index
    index.names()  # raises if lines are lost, which may have been about a run
    rows = [_row(leases, index, branch) for branch in sorted(index.ledger.states)]
    return [row for row in rows if row is not None]


# writing


class Runs:
    """The verbs that write: the folder, its claims, and how an index is told."""

    def __init__(self, folder: Folder, leases: Leases, applied: Applied) -> None:
        self._folder = folder
        self._leases = leases
        self._applied = applied

    def _append(self, journal: Journal, lines: list[bytes]) -> None:
        journal.append(lines, sync=self._folder.durable)
        self._applied(lambda: journal.feed(lines))

    def hold(self, lease: Lease, journal: Journal | None) -> None:
        """Claim a branch anew, and witness what is on the disk."""
        self._leases.put(lease.session, lease.run, lease.token, claim(lease.lease_us), self._witness(journal))

    def let_go(self, journal: Journal, state: RunState) -> None:
        """Nobody claims a branch any more; what is on the disk is witnessed, if that can be done."""
        with contextlib.suppress(OSError):
            self._leases.put(journal.index.id or "", state.run, state.token, claim(0), self._witness(journal))

    def _witness(self, journal: Journal | None) -> Witness:
        if journal is None or not self._folder.durable:
            return NOBODY
        return Witness(journal.index.born, journal.index.epoch, journal.index.lines)

    def enter(self, journal: Journal | None, entry: Entry, number: Callable[[], int]) -> Entered:
        """See the port."""
        index = Index() if journal is None else journal.index
        branch, ledger = entry.branch, index.ledger
        index.be_certain_of_run(branch)
        known = ledger.states.get(branch)
        refuse_live(self._leases, entry.session, branch, known)
        if entry.expect_token is not None and (known is None or known.token != entry.expect_token or not known.entered):
            message = f"session {entry.session!r}, branch {branch!r}: its run has ended or was taken up meanwhile"
            raise ConflictError(message, hint="there is nothing left to do")
        stand = index.find_branch(branch)
        if stand is None and index.entries:
            message = f"session {entry.session!r} has no branch {branch!r}"
            raise NotFoundError(message, hint="session.fork(ref, name) makes one")
        if stand is not None:
            index.entry(stand.head_id)
        pending_ = [] if journal is None else pending_calls(journal, branch)
        before = None if known is None else row_of(branch, known, ledger.input_of(branch), live=False)

        state, fresh, kept = _entered(index, entry, pending_, before)
        lease = Lease(entry.session, branch, state.run, state.token, entry.lease_us)
        self.hold(lease, journal)  # first: without its line it means nothing
        self._write_entered(journal, entry, state, fresh, number)
        if journal is not None:
            with contextlib.suppress(OSError):
                self.hold(lease, journal)  # again, now that its line is there to be witnessed
        return Entered(
            lease=lease,
            head_id=None if stand is None else stand.head_id,
            before=before,
            run=row_of(branch, state, kept, live=True),
            calls=tuple(pending_),
        )

    def _write_entered(
        self, journal: Journal | None, entry: Entry, state: RunState, fresh: bytes | None, number: Callable[[], int]
    ) -> None:
        def lines(n: int) -> list[bytes]:
            return run_lines(
                n,
                entry.branch,
                "entered",
                state,
                at_us=entry.at_us,
                input_=fresh,
                status="in_progress",
                agent=entry.agent,
            )

        if journal is None:
            begin = session_lines(1, entry.session, created_us=entry.at_us, born=number())
            whole = [*begin, *lines(len(begin) + 1)]
            text = b"".join([first_line(len(whole), FORMAT_VERSION), *whole])
            self._folder.put(self._folder.journal(entry.session), text)
        else:
            self._append(journal, lines(journal.index.lines + 1))

    def renew(self, journal: Journal | None, lease: Lease) -> None:
        """See the port."""
        _holding(journal, lease)
        self.hold(lease, journal)

    def journal(
        self, journal: Journal | None, lease: Lease, call: CallRow, *, after: int, slot: int | None = None
    ) -> int:
        """See the port."""
        _holding(journal, lease)
        assert journal is not None  # noqa: S101 - nobody holds a lease on a session that is not there
        place = journal.index.ledger.last_slot + 1 if slot is None else slot
        self._write_call(journal, lease.run, after, place, call)
        self.hold(lease, journal)  # last: it says that the line is there
        return place

    def _write_call(self, journal: Journal, run: int, after: int, slot: int, call: CallRow) -> None:
        known = journal.index.ledger.calls.get(slot)
        before = None if known is None else find_call(journal, known)
        same = before is not None and before.args == call.args
        brief = brief_of(call, run=run, after=after, slot=slot)
        self._append(journal, call_lines(journal.index.lines + 1, brief, call, same_args=same))

    def leave(self, journal: Journal | None, lease: Lease, *, status: str | None, reason: str | None) -> None:
        """See the port."""
        state = _holding(journal, lease)
        assert journal is not None  # noqa: S101 - nobody holds a lease on a session that is not there
        if status is None:
            state = msgspec.structs.replace(state, left=True)
        else:
            state = ended(state, completed=status == "completed")
        event = "left" if status is None else "ended"
        self._say(journal, lease.branch, event, state, status=status or "", reason=reason if status else None)
        self.let_go(journal, state)

    def _say(
        self,
        journal: Journal,
        branch: str,
        event: str,
        state: RunState,
        *,
        status: str,
        reason: str | None,
        gave_up: GaveUp | None = None,
    ) -> None:
        at_us, n = time.time_ns() // 1000, journal.index.lines + 1
        lines = run_lines(n, branch, event, state, at_us=at_us, status=status, reason=reason, gave_up=gave_up)
        self._append(journal, lines)

    def settle(self, journal: Journal, branch: str, *, before: Journaled, after: CallRow) -> None:
        """See the port."""
        if before not in pending_calls(journal, branch):
            message = f"call {before.call.id} is no longer as it was: another has decided it, or a run went on"
            raise ConflictError(message, hint="look again: session.calls(pending=True)")
        self._write_call(journal, before.run, before.after, before.slot, after)
        if live_claim(self._leases, journal.index.id or "", journal.index.ledger.states.get(branch)) is None:
            self.fence(journal, branch)

    def fence(self, journal: Journal, branch: str) -> None:
        """Somebody else writes here: a run that was silent too long, and yet lives, writes no more."""
        state = journal.index.ledger.states.get(branch)
        if state is not None and state.entered and not state.left:
            fenced_ = msgspec.structs.replace(state, token=state.token + 1)
            self._say(journal, branch, "fenced", fenced_, status="", reason=None)

    def abandon(self, journal: Journal, branch: str, *, reason: str) -> int:
        """See the port. Works where calls are damaged or lost, too: it is the way to go on there."""
        index, ledger = journal.index, journal.index.ledger
        index.be_certain_of(branch)
        state, after = ledger.states.get(branch), index.stands_at(branch)
        refuse_live(self._leases, index.id or "", branch, state)
        given_up, lost = ledger.pending(branch, after), _is_lost(index, branch)
        if not lost and (state is None or not (state.unfinished or given_up)):
            return 0
        known = state or RunState(ledger.last_run + 1, 0)
        over = RunState(known.run, known.token + (_TOKENS_BEYOND if lost else 0))
        gave_up = GaveUp(after, reason)
        self._say(journal, branch, "abandoned", over, status="halted", reason=reason, gave_up=gave_up)
        self.let_go(journal, over)
        return len(given_up)

    # what others owe to a run

    def refuse_commit(self, journal: Journal | None, commit: Commit) -> None:
        """FencedError for a run that lost its lease; LeaseHeldError or InDoubtError for others where they may not."""
        if journal is not None and commit.id in journal.index.entries:
            return  # an earlier try of this very commit went through, and may have ended its run
        if commit.lease is not None:
            _holding(journal, commit.lease)
        elif journal is not None:
            self.refuse_others(journal, commit.branch)

    def refuse_others(self, journal: Journal, branch: str) -> None:
        """LeaseHeldError if a run is alive on a branch, InDoubtError if a call pending there is in doubt."""
        index = journal.index
        state = index.ledger.states.get(branch)
        if state is None and not index.unknown_at:
            return
        session = index.id or ""
        refuse_live(self._leases, session, branch, state)
        index.be_certain_of(branch)
        if state is not None and (state.doubt or (state.run, index.stands_at(branch)) in index.ledger.broken):
            index.be_certain_of_run(branch)
        found = [read(journal, called) for called in index.ledger.pending(branch, index.stands_at(branch))]
        refuse_in_doubt(session, branch, found)


def _entered(
    index: Index, entry: Entry, calls_: list[Journaled], before: RunRow | None
) -> tuple[RunState, bytes | None, bytes | None]:
    """How a branch stands when a run is entered; the input to write down, if it is new; and the one that holds."""
    known = index.ledger.states.get(entry.branch)
    if known is None or before is None:
        known = RunState(index.ledger.last_run + 1, 0)
    crashes, spot = known.crashes, known.spot
    if known.entered and not known.left:
        stood = spot_of(index.stands_at(entry.branch), calls_).hex()
        crashes, spot = crashes + 1 if stood == spot else 1, stood
    kept = None if before is None else before.input
    fresh = entry.input if not known.unfinished or kept is None else None
    if not known.unfinished or kept is None:
        kept = entry.input
    state = RunState(
        run=known.run,
        token=token_after(known.token),
        entered=True,
        unfinished=True,
        crashes=crashes,
        spot=spot,
        input_sum=input_sum(kept),
    )
    return state, fresh, kept


def _is_lost(index: Index, branch: str) -> bool:
    try:
        index.be_certain_of_run(branch)
    except CorruptionError:
        return True
    return False


class Bearing(msgspec.Struct, frozen=True, gc=False):
    """What a commit does to runs and calls, as its lines say it."""

    run: tuple[int, int] | None = None
    ends_run: bool = False
    took: tuple[int, int, int] | None = None
    took_up: tuple[int, int, int] | None = None


_NONE = Bearing()


def bearing(index: Index, commit: Commit) -> Bearing:
    """A boundary takes in what is pending; an undo takes up what it left behind."""
    ledger = index.ledger
    state = ledger.states.get(commit.branch)
    if state is None:
        return _NONE
    if commit.lease is None:
        if commit.take_up is None:
            return _NONE
        left_at = index.entry(commit.take_up).about.sequence
        count = 0 if (state.run, left_at) in ledger.taken else len(ledger.at((state.run, left_at)))
        return Bearing(took_up=(state.run, left_at, count)) if count else _NONE
    after = index.stands_at(commit.branch)
    count = len(ledger.at((state.run, after)))
    took = (state.run, after, count) if count else None
    return Bearing(run=(state.run, state.token), ends_run=commit.ends_run, took=took)


def settled_runs(index: Index, standing: Mapping[str, int]) -> tuple[dict[str, RunState], list[str]]:
    """The runs of a journal that has lost lines, for the branches that are left, and what is lost of them.

    A run that another may have followed gets a token beyond that one's. Where a call may be lost that was pending, the
    branch is in doubt until somebody gives it up; a session without a trace of any run is not.
    """
    states: dict[str, RunState] = {}
    said: list[str] = []
    ledger, inputs = index.ledger, index.ledger.inputs()
    for branch in sorted({*standing, *ledger.states}):
        state = ledger.states.get(branch)
        lost_at = max(index.settled_at, index.named_at.get(branch, 0))
        head = index.branches.get(branch)
        moved = head is not None and head.head_id not in index.entries
        broken = state is not None and (state.run, standing.get(branch, 0)) in ledger.broken
        doubt = bool(ledger.last_run) and (moved or broken or index.unknown_at > lost_at)
        doubt = doubt or (state is not None and state.doubt)
        if not _is_lost(index, branch) and not moved and state is not None:
            states[branch] = state
            continue
        if state is None and not doubt:
            continue
        known = state or RunState(ledger.last_run + 1 + len(states), 0)
        kept = known.input_sum if branch in inputs else ""
        states[branch] = RunState(
            known.run, known.token + _TOKENS_BEYOND, unfinished=known.unfinished, input_sum=kept, doubt=doubt
        )
        if doubt:
            said.append(f"calls on branch {branch!r} may be lost: find out, then session.abandon(…) to run it again")
        if known.input_sum != kept:
            said.append(f"the input of the run on branch {branch!r} is lost")
    return states, said
