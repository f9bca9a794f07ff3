"""Calls seen from outside their run: what history holds of them, and how one in doubt is decided from any process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from backstay.backend import DONE, FAILED, IN_DOUBT, RETRY, SKIPPED, CallRow, Journaled, in_doubt
from backstay.codec import Root, encode_stored
from backstay.errors import InvalidInputError, NotFoundError
from backstay.model import Call, Checkpoint
from backstay.run.keeping import at_place
from backstay.store.fields import check_text, to_call

if TYPE_CHECKING:
    from backstay.store.refs import Ref
    from backstay.store.session import Session


class Undecided:
    """Stands for a result that was not given, because None is one."""

    def __repr__(self) -> str:
        return "…"


UNDECIDED = Undecided()


def calls(session: Session, ref: Ref, *, pending: bool) -> list[Call]:
    """The calls that a checkpoint took in; or those on a branch since its head."""
    backend = session._backend
    if pending:
        if isinstance(ref, Checkpoint):
            raise InvalidInputError("calls are pending on a branch, not on a checkpoint", hint="give the branch's name")
        found = backend.pending(session.id, ref)
        if found.run is None and ref != "main" and backend.find_branch(session.id, ref) is None:
            raise session._refs.no_branch(ref)
        live = found.run.token if found.run is not None and found.run.live else None
        return [to_call(one.call, status=IN_DOUBT if in_doubt(one.call, live) else None) for one in found.calls]
    point = session.checkpoint(ref)
    rows = [journaled.call for journaled in backend.calls(session.id, point.id)]
    return [to_call(row, result=None if row.place is None else at_place(point.state, row.place)) for row in rows]


def resolve(session: Session, call_id: str, decision: str | None, *, result: Any, failed: str | None) -> None:
    """Decide a call in doubt: it is made again, passed over, or had this result, or failed like that."""
    branch, before = _find(session, call_id)
    call = before.call
    given = [decision is not None, result is not UNDECIDED, failed is not None]
    if sum(given) != 1:
        message = "a call is decided by one of 'retry', 'skip', result=… and failed=…"
        raise InvalidInputError(message, hint=f"session.resolve({call_id!r}, 'skip')")
    now_us = time.time_ns() // 1000
    change: dict[str, Any]
    if result is not UNDECIDED:
        change = {"status": DONE, "result": encode_stored(result, (Root("result"),)), "error": None}
    elif failed is not None:
        check_text(failed, "failed", required=True)
        change = {"status": FAILED, "error": ("decided", failed)}
    elif decision in ("retry", "skip"):
        change = {"status": RETRY if decision == "retry" else SKIPPED, "error": None}
    else:
        raise InvalidInputError(f"a call can be decided by 'retry' or 'skip', not {decision!r}")
    after: CallRow = msgspec.structs.replace(call, ended_us=now_us, **change)
    session._backend.settle(session.id, branch, before=before, after=after)


def _find(session: Session, call_id: str) -> tuple[str, Journaled]:
    """A call that can be decided, and the branch it is pending on."""
    backend = session._backend
    if not isinstance(call_id, str):
        raise InvalidInputError(f"a call id is text, not {type(call_id).__name__}")
    known: list[str] = []
    for run in backend.runs(session.id):
        found = backend.pending(session.id, run.branch)
        live = found.run.token if found.run is not None and found.run.live else None
        for journaled in found.calls:
            call = journaled.call
            # A tool that was done, but whose result could not be stored, can be told what that was.
            open_ = in_doubt(call, live) or (call.status == DONE and call.error is not None)
            if call.id == call_id:
                if not open_:
                    message = f"call {call.name!r} ({call.id}) is {call.status}, not in doubt"
                    raise InvalidInputError(message, hint="only what is in doubt can be decided")
                return run.branch, journaled
            known += [call.id] if open_ else []
    message = f"session {session.id!r} has no pending call {call_id!r}"
    hint = f"in doubt: {', '.join(known[:8])}" if known else "no call is in doubt: session.calls(pending=True)"
    raise NotFoundError(message, hint=hint)
