"""Calls seen from outside their run: what history holds of them, and how one in doubt is decided from any process."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from backstay.codec import Root, encode_stored
from backstay.errors import ConflictError, CorruptionError, InvalidInputError, NotFoundError
from backstay.hints import RUN_VERIFY, Hint
from backstay.model import Call, Checkpoint, SessionId
from backstay.names import check_name
from backstay.port import EVERY, Ask, CallRow, CheckpointRow, LaneRow, Unreadable, View
from backstay.port.rows import DONE, FAILED, IN_DOUBT, RETRY, SKIPPED
from backstay.rules import refusals, runs
from backstay.rules.calls import pending_of
from backstay.rules.refusals import in_doubt
from backstay.run.result_places import at_place
from backstay.sealing import pack_value
from backstay.store.fields import check_text, to_call
from backstay.store.history import History
from backstay.store.overview import calls_taken, children_of
from backstay.store.refs import Ref

if TYPE_CHECKING:
    from backstay.run.files import SessionFiles

_NONCE_BYTES = 8


class Undecided:
    """The mark for a result that was not given, because None is one."""

    def __repr__(self) -> str:
        return "…"


UNDECIDED = Undecided()


def calls(history: History, ref: Ref, *, pending: bool) -> list[Call]:
    """The calls that a checkpoint took in; or those on a branch since its head."""
    if pending:
        if isinstance(ref, Checkpoint):
            raise InvalidInputError("calls are pending on a branch, not on a checkpoint", hint="give the branch's name")
        branch = check_name(ref, "a branch name")
        view = history.backend.read(Ask(history.id, names=(branch,), pending=(branch,)))
        lane = view.lanes.get(branch)
        if lane is None:
            if branch != "main":
                raise refusals.no_branch(history.id, branch)[1]
            return []
        return [
            to_call(row, status=IN_DOUBT if in_doubt(row, _live_token(view, lane)) else None)
            for row in _pending(view, lane)
        ]
    if _is_empty(history):
        return []
    row = history.refs.row(ref)
    while True:
        try:
            return _taken(history, row)
        except (CorruptionError, ConflictError):
            # Where the branch has moved on and its old head was pruned, these went with it.
            before, row = row, history.refs.row(ref)
            if row.id == before.id:
                raise


def _taken(history: History, row: CheckpointRow) -> list[Call]:
    state, found = None, list[Call]()
    for call in calls_taken(history.backend, history.id, row):
        result = None
        if call.place is not None:
            state = history.state_of(row) if state is None else state
            result = at_place(state, call.place)
        found.append(to_call(call, result=result))
    return found


def _is_empty(history: History) -> bool:
    """True for a session that has no checkpoint yet, and so no calls in its history."""
    line = history.backend.read(Ask(history.id)).session
    return line is None or not line.checkpoints


def _pending(view: View, lane: LaneRow) -> list[CallRow]:
    """The calls pending on a branch; CorruptionError if one of them cannot be read."""
    rows = []
    for call in pending_of(view.pending.get(lane.name, ())):
        if isinstance(call, Unreadable):
            raise _damaged("" if view.session is None else view.session.id, call.why)
        rows.append(call)
    return rows


def _live_token(view: View, lane: LaneRow) -> int | None:
    return lane.token if lane.name in view.live else None


def _damaged(session: str, why: str) -> CorruptionError:
    return CorruptionError(f"session {session!r}: its journal is damaged: {why}", hint=RUN_VERIFY)


def resolve(
    history: History,
    call_id: str,
    decision: str | None,
    *,
    result: Any,
    failed: str | None,
    files: SessionFiles | None = None,
) -> None:
    """Decide a call in doubt: it is made again, passed over, or had this result, or failed like that."""
    branch, call = _find(history, call_id)
    given = [decision is not None, result is not UNDECIDED, failed is not None]
    if sum(given) != 1:
        message = "a call is decided by one of 'retry', 'rollback', 'skip', result=… and failed=…"
        raise InvalidInputError(message, hint=_one_decision(call_id))
    now_us = time.time_ns() // 1000
    change: dict[str, Any]
    if result is not UNDECIDED:
        change = {"status": DONE, "result": pack_value(encode_stored(result, (Root("result"),))), "error": None}
    elif failed is not None:
        check_text(failed, "failed", required=True)
        change = {"status": FAILED, "error": ("decided", failed)}
    elif decision == "rollback":
        from backstay.run.files import put_back_before  # noqa: PLC0415 - few calls have files

        put_back_before(files, history, branch, call)
        change = {"status": RETRY, "error": None, "files": None}  # what differs from now on is not the call's
    elif decision in ("retry", "skip"):
        change = {"status": RETRY if decision == "retry" else SKIPPED, "error": None}
    else:
        raise InvalidInputError(f"a call can be decided by 'retry', 'rollback' or 'skip', not {decision!r}")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    after: CallRow = msgspec.structs.replace(call, ended_us=now_us, nonce=nonce, **change)
    rule = runs.settle(history.id, branch, before=call, after=after)
    history.backend.write(runs.settle_ask(history.id, branch, call.at), rule)


def cancel(history: History, branch: str, *, reason: str) -> bool:
    """Stop the run of a branch, and those of its children; True if there was one to stop."""
    at_us, nonce = time.time_ns() // 1000, secrets.token_hex(_NONCE_BYTES)
    rule = runs.cancel(history.id, branch, reason=reason, at_us=at_us, nonce=nonce)
    stopped: bool = history.backend.write(runs.abandon_ask(history.id, branch), rule).answer
    for row in children_of(history.backend, history.id):
        with contextlib.suppress(NotFoundError):  # it has no child on this branch
            cancel(History(history.backend, history.events, SessionId(row.id), agent=None), branch, reason=reason)
    return stopped


def abandon(history: History, branch: str, *, reason: str) -> int:
    """Give up what is pending on a branch; how many calls there were."""
    at_us, nonce = time.time_ns() // 1000, secrets.token_hex(_NONCE_BYTES)
    rule = runs.abandon(history.id, branch, reason=reason, at_us=at_us, nonce=nonce)
    given_up: int = history.backend.write(runs.abandon_ask(history.id, branch), rule).answer
    return given_up


def _find(history: History, call_id: str) -> tuple[str, CallRow]:
    """A call that can be decided, and the branch it is pending on."""
    if not isinstance(call_id, str):
        raise InvalidInputError(f"a call id is text, not {type(call_id).__name__}")
    known: list[str] = []
    view = history.backend.read(Ask(history.id, names=EVERY, pending=EVERY))
    for lane in view.lanes.values():
        for call in _pending(view, lane):
            # A tool that was done, but whose result could not be stored, can be told what that was.
            open_ = in_doubt(call, _live_token(view, lane)) or (call.status == DONE and call.error is not None)
            if call.id == call_id:
                if not open_:
                    message = f"call {call.name!r} ({call.id}) is {call.status}, not in doubt"
                    raise InvalidInputError(message, hint="only what is in doubt can be decided")
                return lane.name, call
            known += [call.id] if open_ else []
    message = f"session {history.id!r} has no pending call {call_id!r}"
    hint = f"in doubt: {', '.join(known[:8])}" if known else "no call is in doubt"
    raise NotFoundError(message, hint=hint)


def _one_decision(call_id: str) -> Hint:
    return Hint(f"session.resolve({call_id!r}, 'skip')", f"`backstay recover SESSION --call {call_id} --skip`")
