"""The rules of runs: the lease of a branch, the journal of its calls, and decisions about calls from outside.

A lease is a claim in the lane's row and a token that proves it. Each run that takes the lease raises the token; a run
whose token is not the lane's is fenced at its next write. Renewals are written when a twentieth of the lease has
passed, so that most journal writes touch the call's row alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec

from backstay.codec import decode, encode_canonical
from backstay.port import Ask, Batch, CallKey, CallRow, Decide, Kind, LaneRow, More, SessionRow, Unreadable, View
from backstay.port.lease import Claim, Holder
from backstay.port.rows import ABANDONED, STARTED, WAITING
from backstay.rules import file_restore, refusals
from backstay.rules.calls import doubts_in, given_up, pending_of, stopped
from backstay.rules.refusals import EDIT, Lease
from backstay.rules.sessions import About, filled
from backstay.sealing import open_value

_OVER = ("completed", "cancelled")  # the next run begins with an input of its own
_FRESH_SHARE = 20
_SPOT_BYTES = 12


class Enter(msgspec.Struct, frozen=True, gc=False):
    """A run about to begin. `expect_token`: only if the run that has this token is still the last one there.

    `restart`: it begins anew where another is unfinished, whose calls are given up. `parent`: it is a child of that
    session's run, for its call `caller`.
    """

    session: str
    branch: str
    uid: bytes
    nonce: bytes
    holder: Holder
    agent: str | None
    lease_us: int
    at_us: int
    input: bytes | None
    expect_token: int | None = None
    about: About | None = None
    restart: bool = False
    parent: str | None = None
    caller: str = ""

    @property
    def ask(self) -> Ask:
        """The rows that the rule reads."""
        return Ask(self.session, names=(self.branch,), pending=(self.branch,))


class Entered(msgspec.Struct, frozen=True, gc=False):
    """A run that has begun: its lease, its lane before and after, and the calls that are pending."""

    lease: Lease
    before: LaneRow | None
    lane: LaneRow
    calls: tuple[CallRow, ...]


def claim_for(view: View, holder: Holder, lease_us: int) -> Claim:
    """A lease from the moment of a view on."""
    return Claim(holder, lease_us, view.now_us + lease_us, view.wall_us + lease_us)


def aged(lane: LaneRow, view: View, lease: Lease) -> bool:
    """True if a lease is old enough to be written again."""
    claim = lane.claim
    return claim is None or claim.until_us - view.now_us < lease.lease_us - lease.lease_us // _FRESH_SHARE


def renewed(lane: LaneRow, view: View, lease: Lease) -> LaneRow:
    """The lane with its lease from now on."""
    if lane.claim is None:
        return lane
    return msgspec.structs.replace(lane, claim=claim_for(view, lane.claim.holder, lease.lease_us))


def ended(lane: LaneRow, *, completed: bool) -> LaneRow:
    """The lane after its run; the next run goes on with its input unless this one came to its end."""
    rest = {"unfinished": False, "input": None} if completed else {}
    return msgspec.structs.replace(
        lane,
        claim=None,
        purpose=None,
        entered=False,
        crashes=0,
        spot=b"",
        nonce=b"",
        doubts=0,
        stop=None,
        wait=None,
        **rest,
    )


def let_go(lane: LaneRow) -> LaneRow:
    """The lane without its lease, and all else as it was."""
    return msgspec.structs.replace(lane, claim=None, purpose=None, nonce=b"")


def stood_at(lane: LaneRow) -> int:
    """The sequence of a branch's head, 0 if it has none."""
    return 0 if lane.head is None else lane.head.sequence


def spot_of(head: int, calls: Iterable[CallRow | Unreadable]) -> bytes:
    """The spot a run was at: two crashes at one spot had nothing recorded between them."""
    stood = [(call.id, call.status) if isinstance(call, CallRow) else ("", "") for call in calls]
    return sha256(msgspec.msgpack.encode((head, stood))).digest()[:_SPOT_BYTES]


def _crashes(lane: LaneRow, calls: Iterable[CallRow | Unreadable]) -> tuple[int, bytes]:
    """How often runs died at one spot, and at which, as the run that takes the lease finds it."""
    if not lane.entered or lane.claim is None or lane.purpose is not None:
        return lane.crashes, lane.spot  # the last one was left or given up, or its end has been counted
    here = spot_of(stood_at(lane), calls)
    return lane.crashes + 1 if here == lane.spot else 1, here


# entering and leaving


def enter(new: Enter) -> Decide:
    """Take the lease of a branch and record that a run was entered, making the session if there is none.

    It resumes what is unfinished there, unless that was asked to stop or a restart is wanted. It never does so with
    another input than was recorded.
    """

    def decide(view: View) -> Batch:
        session, lane = view.session, view.lanes.get(new.branch)
        calls = pending_of(view.pending.get(new.branch, ()))
        if lane is not None and lane.nonce == new.nonce and new.nonce:
            found_it = {"entered": lane.was_entered, "unfinished": lane.was_unfinished}
            return Batch(answer=_entered(new, msgspec.structs.replace(lane, **found_it), lane, calls))
        if not (found := refusals.held(view, new.branch)) and (placing := file_restore.placing(calls)) is not None:
            raise file_restore.FilesPendingError(placing)
        if new.branch in view.tags:
            found.append(refusals.name_taken(new.branch))
        elif lane is None and session is not None and session.checkpoints and new.parent is None:
            found.append(refusals.no_branch(new.session, new.branch))
        if new.parent is not None and session is not None and session.parent != new.parent:
            found.append(refusals.no_child(new.session, new.parent))
        expected = new.expect_token
        if expected is not None and (lane is None or lane.token != expected or not (lane.entered or lane.wait)):
            found.append(refusals.run_moved(new.session, new.branch))
        doubtful = refusals.doubtful(new.session, new.branch, calls) + refusals.calls_missing(new.session, view, lane)
        stop = None if lane is None else lane.stop
        if stop is None:
            found += [reason for reason in doubtful if new.restart or reason[0] is _DAMAGED]
            found += [] if lane is None or new.restart else _other_input(new, lane)
        refusals.settle(found)
        dropped: list[CallRow] = []
        if lane is not None and (new.restart or stop is not None):
            why, nonce = "restarted" if stop is None else stop, new.nonce.hex()
            dropped, calls = stopped(calls, why, at_us=new.at_us, nonce=nonce), []
            lane = ended(lane, completed=True)
        after = _begun(new, view, lane, calls)
        if session is None:
            session = SessionRow(new.session, new.uid, new.at_us, new.at_us, agent=new.agent, parent=new.parent)
        line = msgspec.structs.replace(
            filled(session, new.about),
            touched=view.fresh,
            lanes=session.lanes + (lane is None),
            status="in_progress",
            reason=None,
            agent=new.agent or session.agent,
        )
        return Batch((line, after, *dropped), answer=_entered(new, lane, after, calls))

    return decide


_DAMAGED = refusals.Reason.DAMAGED


def _other_input(new: Enter, lane: LaneRow) -> list[refusals.Found]:
    """For a run whose input is another than that of the run it would resume."""
    if new.input is None or new.input == lane.input or not lane.unfinished:
        return []
    given, kept = (None if data is None else decode(open_value(data)) for data in (new.input, lane.input))
    if lane.input is not None and encode_canonical(given) == encode_canonical(kept):
        return []
    return [refusals.other_input(new.session, new.branch, given=given, kept=kept)]


def _begun(new: Enter, view: View, lane: LaneRow | None, calls: list[CallRow | Unreadable]) -> LaneRow:
    before = LaneRow(new.branch) if lane is None else lane
    crashes, spot = _crashes(before, calls)
    return msgspec.structs.replace(
        before,
        run=before.run or view.fresh,
        token=before.token + 1,
        claim=claim_for(view, new.holder, new.lease_us),
        entered=True,
        unfinished=True,
        input=before.input if before.unfinished else new.input,
        status="in_progress",
        reason=None,
        crashes=crashes,
        spot=spot,
        nonce=new.nonce,
        purpose=None,
        was_entered=before.entered,
        was_unfinished=before.unfinished,
        wait=None,
        caller=new.caller or before.caller,
        since_us=new.at_us,
        doubts=0,
        stop=None,
        calls=len(view.pending.get(new.branch, ())),
    )


def _entered(new: Enter, before: LaneRow | None, lane: LaneRow, calls: list[CallRow | Unreadable]) -> Entered:
    lease = Lease(new.session, new.branch, lane.run, lane.token, new.lease_us)
    return Entered(lease, before, lane, tuple([call for call in calls if isinstance(call, CallRow)]))


def hold(new: Enter, purpose: str) -> Decide:
    """Take the lease of a branch for something that is no run: lease and fence only. The answer is a Lease.

    A run that died there is counted now, because its lease goes; the next run goes on as if none had been between. An
    edit takes its turn: the answer is None while another one has it, and a session that is not there is made.
    """

    def decide(view: View) -> Batch:
        lane, session = view.lanes.get(new.branch), view.session
        if lane is not None and lane.nonce == new.nonce and new.nonce:
            return Batch(answer=Lease(new.session, new.branch, lane.run, lane.token, new.lease_us, purpose))
        if purpose == EDIT and new.branch in view.live and refusals.is_edited(lane):
            return Batch()
        found = refusals.held(view, new.branch)
        if new.branch in view.tags:
            found.append(refusals.name_taken(new.branch))
        if session is None and purpose == EDIT:
            session, lane = SessionRow(new.session, new.uid, new.at_us, new.at_us, agent=new.agent), LaneRow(new.branch)
            session = filled(msgspec.structs.replace(session, lanes=1), new.about)
        if session is None:
            found.append(refusals.no_session(new.session))
        if lane is None:
            found.append(refusals.no_branch(new.session, new.branch))
        refusals.settle(found)
        assert lane is not None  # noqa: S101 - refused above
        assert session is not None  # noqa: S101 - refused above
        crashes, spot = _crashes(lane, pending_of(view.pending.get(new.branch, ())))
        after = msgspec.structs.replace(
            lane,
            run=lane.run or view.fresh,
            token=lane.token + 1,
            claim=claim_for(view, new.holder, new.lease_us),
            crashes=crashes,
            spot=spot,
            nonce=new.nonce,
            purpose=purpose,
        )
        line = msgspec.structs.replace(session, touched=view.fresh)
        answer = Lease(new.session, new.branch, after.run, after.token, new.lease_us, purpose)
        return Batch((line, after), answer=answer)

    return decide


def release(lease: Lease) -> Decide:
    """Let go of a lease that was held for a purpose. A session that was made for it alone goes again."""

    def decide(view: View) -> Batch:
        lane, session = view.lanes.get(lease.branch), view.session
        if lane is None or session is None or not refusals.holds(lane, lease):
            return Batch()  # it was lost, or an earlier try of this very release went through
        empty = (session.checkpoints, session.lanes, session.tags) == (0, 1, 0)
        if empty and lane.head is None and not lane.entered and not lane.unfinished:
            return Batch(drops=((Kind.NAME, lane.name), (Kind.SESSION, session.id)), wakes=True)
        return Batch((msgspec.structs.replace(session, touched=view.fresh), let_go(lane)), wakes=True)

    return decide


def lease_ask(lease: Lease) -> Ask:
    """The rows that `renew` reads."""
    return Ask(lease.session, names=(lease.branch,))


def leave_ask(lease: Lease) -> Ask:
    """The rows that `leave` reads: it leaves a mark where calls are in doubt."""
    return Ask(lease.session, names=(lease.branch,), pending=(lease.branch,))


def renew(lease: Lease) -> Decide:
    """Hold on for another `lease_us`."""

    def decide(view: View) -> Batch:
        lane = _own_lane(view, lease)
        return Batch((renewed(lane, view, lease),), lazy=True)

    return decide


def leave(lease: Lease, *, status: str | None, reason: str | None, at_us: int = 0, nonce: str = "") -> Decide:
    """Give the lease back, with how the run ended; None: it was interrupted and still counts as entered.

    A run that was asked to stop is cancelled however it ends: what is pending is given up. The answer is why, or None.
    """

    def decide(view: View) -> Batch | More:
        lane = view.lanes.get(lease.branch)
        given_back = lane is not None and lane.claim is None and (lane.run, lane.token) == (lease.run, lease.token)
        if view.again and given_back:  # an earlier try of this very leave went through
            return Batch(answer=lane.reason if lane is not None and lane.status == "cancelled" else None)
        lane = _own_lane(view, lease)
        assert view.session is not None  # noqa: S101 - its lane is here
        if lane.purpose is None and (status == "cancelled" or lane.stop is not None):
            if lease.branch not in view.pending:
                return More(Ask(lease.session, names=(lease.branch,), pending=(lease.branch,)))
            why = lane.stop or reason or ""
            return _cancelled(view, lane, why, at_us=at_us, nonce=nonce, answer=why)
        if lane.name in view.pending:
            lane = msgspec.structs.replace(lane, calls=len(view.pending[lane.name]))
        if status is None or lane.purpose is not None:
            return Batch((msgspec.structs.replace(view.session, touched=view.fresh), let_go(lane)), wakes=True)
        doubts = doubts_in(view.pending.get(lane.name, ()))
        after = msgspec.structs.replace(
            ended(lane, completed=status in _OVER), status=status, reason=reason, doubts=doubts
        )
        line = msgspec.structs.replace(view.session, touched=view.fresh, status=status, reason=reason)
        return Batch((line, after), wakes=True)

    return decide


def _own_lane(view: View, lease: Lease) -> LaneRow:
    lane = view.lanes.get(lease.branch)
    if lane is None or not refusals.holds(lane, lease):
        raise refusals.fenced(lease)[1]
    return lane


# the journal


def journal_ask(lease: Lease, at: CallKey | None) -> Ask:
    """The rows that `journal` reads: a call that is there, or how many there are."""
    return Ask(
        lease.session,
        names=(lease.branch,),
        calls=() if at is None else (at,),
        counted=(lease.branch,) if at is None else (),
    )


def journal(lease: Lease, call: CallRow, *, at: CallKey | None) -> Decide:
    """Write down a call, or (with its key) what became of it. The answer is its row.

    A decision from outside that this run has not seen is not written over: its nonce is another than the call's. A run
    that was asked to stop begins no call; outcomes of those in flight are still recorded.
    """

    def decide(view: View) -> Batch:
        for kept in view.calls.values():
            same = isinstance(kept, CallRow) and kept.id == call.id
            if same and (at is None or (view.again and kept == _at(call, at))):
                return Batch(answer=kept)  # an earlier try of this very write went through
        lane = _own_lane(view, lease)
        if lane.stop is not None and call.status in (STARTED, WAITING) and call.token == lease.token:
            raise refusals.StopAsked(lane.stop)
        if at is None:
            row = _at(call, (lane.run, lane.journal, view.counts.get(lane.name, 0)))
        else:
            before = view.calls.get(at)
            seen = isinstance(before, CallRow) and (before.id, before.nonce) == (call.id, call.nonce)
            if not seen or at[:2] != (lane.run, lane.journal):
                raise refusals.call_moved(call.id)[1]
            row = _at(call, at)
        puts = (row, renewed(lane, view, lease)) if aged(lane, view, lease) else (row,)
        return Batch(puts, answer=row)

    return decide


def _at(call: CallRow, at: CallKey) -> CallRow:
    return msgspec.structs.replace(call, run=at[0], journal=at[1], n=at[2])


def settle_ask(session: str, branch: str, at: CallKey) -> Ask:
    """The rows that `settle` reads."""
    return Ask(session, names=(branch,), calls=(at,), pending=(branch,))


def settle(session: str, branch: str, *, before: CallRow, after: CallRow) -> Decide:
    """Change a pending call from outside, if it is as it was `before`. A run that is not alive is fenced."""

    def decide(view: View) -> Batch:
        lane, kept = view.lanes.get(branch), view.calls.get(before.at)
        is_new = after.nonce and after.nonce != before.nonce  # a call that was decided before carries that nonce on
        if is_new and isinstance(kept, CallRow) and kept.nonce == after.nonce:
            return Batch()  # an earlier try of this very decision went through
        found: list[refusals.Found] = []
        if view.session is None:
            found.append(refusals.no_session(session))
        over = before.status == ABANDONED or kept != before
        if lane is None or over or (lane.run, lane.journal) != before.at[:2]:
            found.append(refusals.call_moved(before.id))
        refusals.settle(found)
        assert lane is not None  # noqa: S101 - refused above
        if branch in view.live:
            return Batch((after,), wakes=True)
        calls = [after if _is_at(call, after.at) else call for call in view.pending.get(branch, ())]
        doubts = doubts_in(calls) if lane.doubts else 0
        return Batch((after, msgspec.structs.replace(lane, token=lane.token + 1, doubts=doubts)), wakes=True)

    return decide


def _is_at(call: CallRow | Unreadable, at: CallKey) -> bool:
    return isinstance(call, CallRow) and call.at == at


def abandon_ask(session: str, branch: str) -> Ask:
    """The rows that `abandon` reads."""
    return Ask(session, names=(branch,), pending=(branch,))


def abandon(session: str, branch: str, *, reason: str, at_us: int, nonce: str) -> Decide:
    """Give up what is pending: calls become abandoned, the run is over, its input dropped. The answer is how many.

    Works where calls are damaged, too: it is the way to go on there. `nonce` begins the ids of those, and recognises
    calls that an earlier try has given up.
    """

    def decide(view: View) -> Batch:
        lane, pending = view.lanes.get(branch), view.pending.get(branch, ())
        done = [call for call in pending if isinstance(call, CallRow) and call.nonce == nonce.encode()]
        if done:
            return Batch(answer=len(done))
        found: list[refusals.Found] = []
        if view.session is None:
            found.append(refusals.no_session(session))
        elif lane is None:
            found.append(refusals.no_branch(session, branch))
        found += refusals.held(view, branch)
        refusals.settle(found)
        assert lane is not None  # noqa: S101 - refused above
        assert view.session is not None  # noqa: S101 - refused above
        calls = given_up(pending, reason, at_us=at_us, nonce=nonce)
        if not calls and not lane.unfinished:
            return Batch(answer=0)
        after = msgspec.structs.replace(
            ended(lane, completed=True), token=lane.token + 1, status="halted", reason=reason, calls=len(pending)
        )
        line = msgspec.structs.replace(view.session, touched=view.fresh, status="halted", reason=reason)
        return Batch((*calls, after, line), wakes=True, answer=len(calls))

    return decide


def cancel(session: str, branch: str, *, reason: str, at_us: int, nonce: str) -> Decide:
    """Stop the run of a branch. The answer is True if there was one to stop.

    One that is alive is asked to: it ends at its next call or boundary. Any other ends at once and is fenced; what is
    pending is given up, calls in flight among it, and its input is dropped.
    """

    def decide(view: View) -> Batch:
        lane, pending = view.lanes.get(branch), view.pending.get(branch, ())
        found: list[refusals.Found] = []
        if view.session is None:
            found.append(refusals.no_session(session))
        elif lane is None:
            found.append(refusals.no_branch(session, branch))
        refusals.settle(found)
        assert lane is not None  # noqa: S101 - refused above
        if branch in view.live and (lane.entered or lane.unfinished):
            if lane.stop is not None:
                return Batch(answer=True)  # it was asked already
            return Batch((msgspec.structs.replace(lane, stop=reason),), wakes=True, answer=True)
        if not lane.unfinished and not pending_of(pending):
            return Batch(answer=view.again and lane.status == "cancelled")
        fenced = msgspec.structs.replace(lane, token=lane.token + 1)
        return _cancelled(view, fenced, lane.stop or reason, at_us=at_us, nonce=nonce, answer=True)

    return decide


def _cancelled(view: View, lane: LaneRow, reason: str, *, at_us: int, nonce: str, answer: object) -> Batch:
    """The end of a run that was stopped."""
    assert view.session is not None  # noqa: S101 - its lane is here
    pending = view.pending.get(lane.name, ())
    calls = stopped(pending, reason, at_us=at_us, nonce=nonce)
    after = msgspec.structs.replace(ended(lane, completed=True), status="cancelled", reason=reason, calls=len(pending))
    line = msgspec.structs.replace(view.session, touched=view.fresh, status="cancelled", reason=reason)
    return Batch((*calls, after, line), wakes=True, answer=answer)
