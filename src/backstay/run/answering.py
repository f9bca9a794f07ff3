"""Waits seen from outside their run: what a session waits for, and how it is answered or sent to, from any process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from backstay.codec import Root, encode_stored
from backstay.errors import InvalidInputError, NotFoundError
from backstay.hints import Hint
from backstay.ids import UID_BYTES
from backstay.model import SessionId, Wait
from backstay.names import check_name
from backstay.port import Ask, Backend, CallRow, Kind, LaneQuery, LaneRow, View
from backstay.port.rows import DONE, FOR_ANSWER, FOR_APPROVAL, FOR_CHILD, FOR_MESSAGE, MARK_WAITING, REJECTED, WAIT
from backstay.rules import refusals, waiting
from backstay.run.wait_words import to_wait
from backstay.sealing import pack_value
from backstay.store.fields import check_text, to_call, to_datetime
from backstay.store.history import History

_NONCE_BYTES = 8
_NAMED = 8
_PAGE_ROWS = 200
_NOT_APPROVED = "not approved"

_SEND = Hint("session.send(name, value) sends one", "`backstay send SESSION NAME JSON` sends one")
_WAITING = Hint("session.waiting() lists what waits now", "`backstay waiting` lists what waits now")


def waits(history: History, branch: str) -> list[Wait]:
    """What a branch waits for."""
    view = history.backend.read(Ask(history.id, names=(branch,), pending=(branch,)))
    return [] if branch not in view.lanes else _waits(view, view.lanes[branch])


def all_waits(backend: Backend, agent: str | None) -> Iterator[Wait]:
    """What all branches of all sessions wait for, the session touched last first; no state is opened."""
    for found in backend.lanes(LaneQuery(MARK_WAITING)):
        if agent in (None, found.session.agent):
            view = backend.read(Ask(found.session.id, names=(found.lane.name,), pending=(found.lane.name,)))
            lane = view.lanes.get(found.lane.name)
            if lane is not None and lane.status == "waiting":
                yield from _waits(view, lane)


def _waits(view: View, lane: LaneRow) -> list[Wait]:
    if view.session is None:
        return []
    rows = [row for row in waiting.waits_of(view.pending.get(lane.name, ())) if row.wait and row.wait.what != FOR_CHILD]
    found = [to_wait(view.session, lane.name, row) for row in rows]
    if not found and lane.status == "waiting" and not _was_answered(view, lane):  # a framework waits by itself
        reason = lane.reason or "waits"
        wait = Wait(
            session_id=SessionId(view.session.id),
            branch=lane.name,
            agent=view.session.agent,
            owner=view.session.owner,
            id=None,
            name=reason,
            what="framework",
            since=to_datetime(view.session.updated_us),
            reason=reason,
        )
        found.append(wait)
    return found


def _was_answered(view: View, lane: LaneRow) -> bool:
    return lane.wait is not None and (
        lane.wait.ready
        or any([isinstance(row, CallRow) and row.kind == WAIT for row in view.pending.get(lane.name, ())])
    )


def answer(history: History, name: str, value: Any, *, branch: str, by: str | None, args: Any) -> None:
    """Give a wait its value; by the name of the one that waits now, or by its id."""
    check_text(by, "by")
    row = _find(history, branch, name)
    what = None if row.wait is None else row.wait.what
    if args is not None and what != FOR_APPROVAL:
        raise InvalidInputError("args= approves a call with other arguments; this is no approval", hint=_WAITING)
    if what == FOR_APPROVAL and type(value) is not bool:
        message = f"wait {row.name!r} is for an approval: it is answered by True or False, not {type(value).__name__}"
        raise InvalidInputError(message, hint="session.reject(name, reason) says why not")
    if what == FOR_APPROVAL and not value:
        reject(history, name, _NOT_APPROVED, branch=branch, by=by)
        return
    data = pack_value(encode_stored(value, (Root("value"),)))
    edited = None if args is None else pack_value(encode_stored(args, (Root("args"),)))
    _decide(history, branch, row, by, edited, status=DONE, result=data)


def reject(history: History, name: str, reason: str, *, branch: str, by: str | None) -> None:
    """Say no: the run gets a CallFailedError of type "rejected" with this reason."""
    check_text(by, "by")
    check_text(reason, "reason", required=True)
    _decide(history, branch, _find(history, branch, name), by, None, status=REJECTED, error=("rejected", reason))


def _decide(history: History, branch: str, row: CallRow, by: str | None, args: bytes | None, **change: Any) -> None:
    assert row.wait is not None  # noqa: S101 - it is a wait
    wait = msgspec.structs.replace(row.wait, by=by, args=args)
    now_us, nonce = time.time_ns() // 1000, secrets.token_bytes(_NONCE_BYTES)
    after: CallRow = msgspec.structs.replace(row, wait=wait, ended_us=now_us, nonce=nonce, **change)
    rule = waiting.answer(history.id, branch, before=row, after=after)
    kept: CallRow = history.backend.write(waiting.answer_ask(history.id, branch, row), rule).answer
    if kept.nonce == nonce:
        history.events.emit("answered", to_call(kept))


def _find(history: History, branch: str, name: str) -> CallRow:
    """The wait that is meant: the one of this id, or the one of this name that waits, or was answered last."""
    check_name(name, "the name of a wait")
    view = history.backend.read(Ask(history.id, names=(branch,), pending=(branch,)))
    if view.session is None:
        raise refusals.no_session(history.id)[1]
    if branch not in view.lanes:
        raise refusals.no_branch(history.id, branch)[1]
    rows = [row for row in view.pending.get(branch, ()) if isinstance(row, CallRow) and row.kind == WAIT]
    meant = [row for row in rows if row.id == name] or [row for row in rows if row.name == name]
    open_ = waiting.waits_of(meant)
    if len(open_) > 1:
        ids = ", ".join([row.id for row in open_[:_NAMED]])
        message = f"session {history.id!r} has {len(open_)} waits named {name!r}: {ids}"
        raise InvalidInputError(message, hint="answer by the id of one")
    found = open_[0] if open_ else meant[-1] if meant else None
    if found is None:
        raise _not_waiting(history, view, branch, name)
    what = None if found.wait is None else found.wait.what
    if what not in (FOR_ANSWER, FOR_APPROVAL):
        message = f"wait {found.name!r} ({found.id}) is for {'a message' if what == FOR_MESSAGE else 'a time'}"
        raise InvalidInputError(message, hint=_SEND if what == FOR_MESSAGE else "it ends by itself")
    return found


def _not_waiting(history: History, view: View, branch: str, name: str) -> Exception:
    """The error for an answer to what nothing waits for: it was answered before, or never asked."""
    last: CallRow | None = None
    after: Any = None
    while page := history.backend.scan(history.id, Kind.CALL, after=after, limit=_PAGE_ROWS):
        for row in page:
            if isinstance(row, CallRow) and row.kind == WAIT and name in (row.id, row.name):
                last = row
        after = page[-1].at if isinstance(page[-1], CallRow) else page[-1].key  # type: ignore[union-attr]
    if last is not None:
        return (waiting.answered(last) if last.status in waiting.ANSWERED else waiting.no_longer_waits(last))[1]
    known = [row.name for row in waiting.waits_of(view.pending.get(branch, ()))]
    hint = f"it waits for: {', '.join(known[:_NAMED])}" if known else _WAITING
    return NotFoundError(f"session {history.id!r}, branch {branch!r} has no wait {name!r}", hint=hint)


def send(history: History, name: str, value: Any, *, branch: str) -> None:
    """Put a message into the inbox of a branch, on disk when this returns."""
    check_name(name, "the name of a message")
    data = encode_stored(value, (Root("value"),))
    if len(data) > waiting.MAX_MESSAGE_BYTES:
        message = f"a message has {len(data):,} bytes, more than the limit of {waiting.MAX_MESSAGE_BYTES:,}"
        raise InvalidInputError(message, hint="keep large things outside and send where they are")
    new = waiting.Message(
        history.id,
        branch,
        name,
        secrets.token_hex(_NONCE_BYTES),
        pack_value(data),
        time.time_ns() // 1000,
        secrets.token_bytes(UID_BYTES),
        history.agent,
    )
    history.backend.write(new.ask, waiting.send(new))
