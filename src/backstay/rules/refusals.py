"""Every refusal about sessions, branches, checkpoints, calls and leases: its words once, and one order for all.

A rule collects the reasons that hold and `settle` raises the one that comes first in Reason. So a caller whom two
things stand against is told the same one whatever it wanted and wherever its session is kept.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from backstay.errors import (
    AlreadyExistsError,
    BackstayError,
    ConflictError,
    CorruptionError,
    FencedError,
    InDoubtError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
)
from backstay.hints import DECIDE_CALLS, LIST_SESSIONS, NEWEST_INTACT, Hint
from backstay.model import counted
from backstay.port import CallRow, LaneRow, Unreadable, View
from backstay.port.rows import IN_DOUBT, STARTED

_SHOWN = 12
_VALUE_CHARS = 80
_NAMES = 8

_FORK = Hint("session.fork(ref, name) makes one", "`backstay fork SESSION REF NAME` makes one")
_TAGS = Hint("session.tags() lists those there are", "`backstay tag SESSION` lists those there are")
_DELETED = Hint(
    "it was deleted; session.log() lists those there are",
    "it was deleted; `backstay log SESSION` lists those there are",
)
_ABANDON = Hint(
    "run verify; session.abandon() gives up what is pending",
    "run `backstay verify`; `backstay recover SESSION --abandon` gives up what is pending",
)
_PENDING = Hint(
    "session.calls(pending=True) lists those pending now", "`backstay recover SESSION` lists those pending now"
)
_LOAD = Hint("load the branch again, then decide", "look at the branch again, then decide")
_OTHER_INPUT = Hint(
    "run it without input to resume it; restart=True begins anew with this one; session.cancel(reason=…) ends it",
    "resume it without input; `backstay cancel SESSION` ends it, and the next input begins anew",
)
_WAITING = Hint("session.waiting() lists what waits now", "`backstay waiting` lists what waits now")
_UNTAG = Hint("session.untag(name) first", "`backstay tag SESSION -d NAME` first")


class Reason(enum.IntEnum):
    """Why something is refused, in the order in which it is said."""

    NO_SESSION = 1
    SESSION_EXISTS = 2
    NO_BRANCH = 3
    NO_TAG = 4
    NO_CHECKPOINT = 5
    NAME_TAKEN = 6
    FENCED = 7
    HELD = 8
    DAMAGED = 9
    IN_DOUBT = 10
    ID_TAKEN = 11
    MOVED = 12
    CALL_MOVED = 13
    CHANGED = 14
    TAGGED = 15
    LAST_OF_BRANCH = 16
    FULL = 17


_HOLD_ENDS = "wait for it to end, or fork a branch of your own"
_RUN_ENDS = Hint(
    "wait for it to end, stop it with session.cancel(reason=…), or fork a branch of your own",
    "wait for it to end, stop it with `backstay cancel SESSION`, or fork a branch of your own",
)
EDIT = "edit"  # the purpose of a lease that keeps other edits and runs away, and no commit


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A run shows its lease with each write: proof that it is the last one entered on its branch.

    With a `purpose` it is not a run's: see `runs.hold`.
    """

    session: str
    branch: str
    run: int
    token: int
    lease_us: int
    purpose: str | None = None


class StopAsked(Exception):  # noqa: N818 - no error: the run ends where it is
    """Raised by a rule where a run would go on that was asked to stop; nothing is written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Found = tuple[Reason, BackstayError]


def settle(found: list[Found]) -> None:
    """Raise the first of the reasons that hold, if any. Of two alike (two tags, two branches) the words decide."""
    if found:
        raise min(found, key=lambda reason: (reason[0], str(reason[1])))[1]


# what is not there


def no_session(session: str) -> Found:
    """For a caller who names a session that is not there."""
    message = f"there is no session {session!r}"
    return Reason.NO_SESSION, NotFoundError(message, hint=LIST_SESSIONS)


def session_exists(session: str) -> Found:
    """For an import under a name that is taken."""
    message = f"there is already a session {session!r}"
    return Reason.SESSION_EXISTS, AlreadyExistsError(message, hint="import it under another name")


def no_branch(session: str, branch: str) -> Found:
    """For a caller who names a branch that is not there."""
    message = f"session {session!r} has no branch {branch!r}"
    return Reason.NO_BRANCH, NotFoundError(message, hint=_FORK)


def no_tag(session: str, tag: str) -> Found:
    """For a caller who names a tag that is not there."""
    message = f"session {session!r} has no tag {tag!r}"
    return Reason.NO_TAG, NotFoundError(message, hint=_TAGS)


def no_checkpoint(session: str, id_: str) -> Found:
    """For a checkpoint that was found a moment ago and is gone."""
    message = f"session {session!r} has no checkpoint {id_[:_SHOWN]}"
    return Reason.NO_CHECKPOINT, NotFoundError(message, hint=_DELETED)


def damaged_checkpoint(session: str, why: str) -> Found:
    """For a checkpoint that is there and cannot be read: it is not missing."""
    return Reason.DAMAGED, CorruptionError(f"session {session!r}: {why}", hint=NEWEST_INTACT)


def name_taken(name: str) -> Found:
    """For a new branch or tag whose name is in use, and for a commit to a tag."""
    message = f"there is already a branch or tag named {name!r}"
    return Reason.NAME_TAKEN, AlreadyExistsError(message, hint="branches and tags share their names: choose another")


def no_child(session: str, parent: str) -> Found:
    """For a child whose name is that of a session of its own."""
    message = f"there is already a session {session!r}, and it is no child of {parent!r}"
    return Reason.NAME_TAKEN, AlreadyExistsError(message, hint="give the child another name")


# who may write


def fenced(lease: Lease) -> Found:
    """For a run that is no longer the one on its branch."""
    message = f"session {lease.session!r}, branch {lease.branch!r}: this run has lost its lease to another"
    return Reason.FENCED, FencedError(message, hint="stop here; the other run goes on from what was recorded")


def holds(lane: LaneRow | None, lease: Lease) -> bool:
    """True if a lease is still the one of its branch."""
    return lane is not None and lane.claim is not None and (lane.run, lane.token) == (lease.run, lease.token)


def is_edited(lane: LaneRow | None) -> bool:
    """True if the lease of a branch is, or was, that of an edit, which no commit has to wait for."""
    return lane is not None and lane.claim is not None and lane.purpose == EDIT


def held(view: View, branch: str) -> list[Found]:
    """For a write by anyone but the run that is alive on a branch."""
    lane = view.lanes.get(branch)
    if lane is None or lane.claim is None or branch not in view.live:
        return []
    holder = lane.claim.holder
    until = datetime.fromtimestamp(lane.claim.until_wall_us / 1e6, UTC)
    doing = "is being run" if lane.purpose is None else f"is held ({lane.purpose})"
    session = "" if view.session is None else view.session.id
    message = (
        f"session {session!r}, branch {branch!r} {doing} by process {holder.pid} on {holder.host}, "
        f"which holds the lease until {until:%Y-%m-%d %H:%M:%S} UTC"
    )
    return [(Reason.HELD, LeaseHeldError(message, hint=_RUN_ENDS if lane.purpose is None else _HOLD_ENDS))]


# calls


def in_doubt(call: CallRow, live_token: int | None) -> bool:
    """True if it is not known whether a call happened. `live_token`: of the run alive on its branch, if any."""
    return call.status == IN_DOUBT or (call.status == STARTED and call.token != live_token)


def doubtful(session: str, branch: str, calls: Iterable[CallRow | Unreadable]) -> list[Found]:
    """For a write where calls are pending without a live run: one that is in doubt, or cannot be read."""
    found: list[Found] = []
    unknown = []
    for call in calls:
        if isinstance(call, Unreadable):
            message = f"session {session!r}, branch {branch!r}: a pending call is damaged: {call.why}"
            found.append((Reason.DAMAGED, CorruptionError(message, hint=_ABANDON)))
        elif in_doubt(call, None):
            unknown.append(f"{call.name} ({call.id})")
    if unknown:
        message = f"session {session!r}, branch {branch!r}: it is not known whether these calls happened: "
        found.append((Reason.IN_DOUBT, InDoubtError(message + ", ".join(unknown[:_NAMES]), hint=DECIDE_CALLS)))
    return found


def calls_missing(session: str, view: View, lane: LaneRow | None) -> list[Found]:
    """For a run that would go on where fewer calls are pending than there were: it would make them again."""
    if lane is None or len(view.pending.get(lane.name, ())) >= lane.calls:
        return []
    must, there = counted(lane.calls, "call"), len(view.pending.get(lane.name, ()))
    message = f"session {session!r}, branch {lane.name!r}: {must} must be pending, and {there} can be read"
    return [(Reason.DAMAGED, CorruptionError(message, hint=_ABANDON))]


def call_moved(call_id: str) -> Found:
    """For a decision about a call that is no longer as it was shown."""
    message = f"call {call_id} is no longer as it was: it has been decided, or a run went on"
    return Reason.CALL_MOVED, ConflictError(message, hint=_PENDING)


def already_answered(message: str) -> Found:
    """For an answer that comes too late."""
    return Reason.CALL_MOVED, ConflictError(message, hint=_WAITING)


def run_moved(session: str, branch: str) -> Found:
    """For a recovery that comes too late."""
    message = f"session {session!r}, branch {branch!r}: its run has ended or was resumed meanwhile"
    return Reason.MOVED, ConflictError(message, hint="there is nothing left to do")


def other_input(session: str, branch: str, *, given: object, kept: object) -> Found:
    """For a run that is to begin with one input where another run is unfinished."""
    begun = "without input" if kept is None else f"with input {short(kept)}"
    message = (
        f"session {session!r}, branch {branch!r}: a run begun {begun} is unfinished, and {short(given)} is another"
    )
    return Reason.MOVED, ConflictError(message, hint=_OTHER_INPUT)


def short(value: object) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}…"


# what has changed


def moved(session: str, branch: str, *, head: str | None, expect: str | None) -> Found:
    """For a commit whose branch is not where it was expected."""
    where = "has no checkpoint" if head is None else f"is at {head[:_SHOWN]}"
    wanted = "expected to have none" if expect is None else f"expected at {expect[:_SHOWN]}"
    message = f"session {session!r}: branch {branch!r} {where}, {wanted}"
    return Reason.MOVED, ConflictError(message, hint=_LOAD)


def id_taken(session: str, id_: str) -> Found:
    """For a commit under an id of the caller's that is in use."""
    message = f"session {session!r}: there is already a checkpoint {id_!r}"
    return Reason.ID_TAKEN, ConflictError(message, hint="load it; or choose another id")


def changed(session: str, what: str) -> Found:
    """For a plan that no longer fits the rows; the caller plans again."""
    return Reason.CHANGED, ConflictError(f"session {session!r}: {what}", hint="try again")


# what may not go


def tagged(name: str) -> Found:
    """For the deletion of a tagged checkpoint."""
    return Reason.TAGGED, InvalidInputError(f"the checkpoint is tagged {name!r}", hint=_UNTAG)


def full(session: str) -> Found:
    """For a checkpoint or a run whose number would have no room."""
    message = f"session {session!r} has no numbers left for another checkpoint or run"
    return Reason.FULL, InvalidInputError(message, hint="go on in a new session")


def last_of_branch(branch: str) -> Found:
    """For the deletion of the only checkpoint of a branch."""
    message = f"branch {branch!r} has no other checkpoint to go back to"
    return Reason.LAST_OF_BRANCH, InvalidInputError(message, hint="delete the branch or the whole session instead")
