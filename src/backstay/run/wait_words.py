"""Waits in words, and as people hold them: what a branch waits for, since when, until when."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.codec import decode
from backstay.errors import CorruptionError
from backstay.model import SessionId, Wait
from backstay.port import CallRow, SessionRow
from backstay.port.rows import FOR_APPROVAL, FOR_CHILD, FOR_MESSAGE, FOR_TIME
from backstay.sealing import open_value
from backstay.store.fields import to_datetime

_NAMED = 4


def phrase(row: CallRow) -> str:
    """What a wait waits for, in a few words."""
    what, due_us = ("", None) if row.wait is None else (row.wait.what, row.wait.due_us)
    if what == FOR_TIME and due_us is not None:
        return f"until {to_datetime(due_us):%Y-%m-%d %H:%M:%S} UTC"
    if what == FOR_CHILD:
        return f"for child {row.name!r}"
    if what == FOR_APPROVAL:
        return f"for approval of {row.name!r}"
    return f"for a message {row.name!r}" if what == FOR_MESSAGE else f"for an answer to {row.name!r}"


def reason_for(rows: Sequence[CallRow]) -> str:
    """The reason of the status of a run that waits for these."""
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return ", ".join([phrase(row) for row in rows[:_NAMED]]) + more


def to_wait(session: SessionRow, branch: str, row: CallRow) -> Wait:
    """A wait as people hold it."""
    if row.wait is None:
        raise CorruptionError(f"wait {row.id[:24]!r} does not say what it waits for")
    due_us = row.wait.due_us
    return Wait(
        session_id=SessionId(session.id),
        branch=branch,
        agent=session.agent,
        owner=session.owner,
        id=row.id,
        name=row.name,
        key=row.key,
        what=row.wait.what,
        args=None if row.args is None else decode(open_value(row.args)),
        since=to_datetime(row.started_us),
        until=None if due_us is None else to_datetime(due_us),
        reason=phrase(row),
    )
