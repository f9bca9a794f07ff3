"""Going back: a branch gets an earlier state as a new checkpoint, and an undo takes that back."""

from __future__ import annotations

import contextlib

from backstay.errors import ConflictError, NotFoundError
from backstay.hints import Hint
from backstay.model import ANY, NOTHING, Checkpoint, StateDict
from backstay.port import CheckpointRow
from backstay.rules import refusals
from backstay.store.fields import Given, read_fields
from backstay.store.history import RACES, History
from backstay.store.looks import Place
from backstay.store.refs import Ref

_PAGE_ROWS = 100
_RESTORE = Hint(
    "session.restore(ref) goes back to any checkpoint", "`backstay restore SESSION REF` goes back to any checkpoint"
)


def restore(history: History, ref: Ref, branch: str) -> Checkpoint:
    """Bring a branch back to the state at a ref."""
    target = history.load(ref)
    return _go_back(history, target.row, target.state, branch, "restore", history.looks.expected(branch))


def undo(history: History, branch: str) -> Checkpoint:
    """Bring a branch back to where its last restore or undo left."""
    expected = history.looks.expected(branch)
    for _ in range(RACES):
        lane = history.lane(branch)
        if lane.undo is None or lane.head is None:
            message = f"branch {branch!r} has no restore to undo"
            raise NotFoundError(message, hint=_RESTORE)
        target = history.find(lane.undo)
        if target is not None:
            place = lane.head.id if expected is ANY else expected
            with contextlib.suppress(*([ConflictError] if expected is ANY else [])):
                return _go_back(history, target.row, target.state, branch, "undo", place)
    raise refusals.changed(history.id, f"branch {branch!r} keeps moving")[1]


def undone(history: History, branch: str) -> CheckpointRow | None:
    """The checkpoint that an undo goes back to, if the restore it takes back moved files; None if it did not."""
    lane = history.lane(branch)
    target = None if lane.undo is None else history.find(lane.undo)
    if target is None or target.files is None or lane.head is None:
        return None
    restored = _child_on_the_way(history, lane.head.sequence, target.row.sequence)
    found = None if restored is None else history.find(restored)
    return None if found is None or found.files == target.files else target.row


def _child_on_the_way(history: History, sequence: int, parent: int) -> int | None:
    """The checkpoint after `parent` on the line to another one; None if it is not on that line."""
    at: int | None = sequence
    while at is not None:
        page = history.backend.ancestors(history.id, at, limit=_PAGE_ROWS)
        for row in page:
            if row.parent == parent:
                return row.sequence if isinstance(row, CheckpointRow) else None
        at = page[-1].parent if page else None
    return None


def _go_back(
    history: History, row: CheckpointRow, state: StateDict, branch: str, trigger: str, expect: Place
) -> Checkpoint:
    source = read_fields(row)
    if expect is NOTHING:
        raise refusals.no_branch(history.id, branch)[1]
    history.lane(branch)
    given = Given(
        trigger,
        status=source.status,
        reason=source.reason,
        step=source.step,
        resume_hint=source.resume_hint,
        restored_from=row.id,
        loop=source.loop,
    )
    return history.write(branch, state, given, expect=expect, undoable=True, takes_up=trigger == "undo")
