"""What a face shows before a restore or an undo, and how it makes sure that it is still so when the answer comes."""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING

from backstay.bookkeeping import told
from backstay.errors import ConflictError, CorruptionError, NotFoundError
from backstay.hints import Hint

if TYPE_CHECKING:
    from backstay.face import Session
    from backstay.model import Checkpoint

LOOKED_AT = 1000


def standing_at(session: Session, branch: str) -> Checkpoint:
    """The head of a branch that must be there; what is written to it from here on must find it there still."""
    with contextlib.suppress(CorruptionError):
        session.load(branch)  # the session has now seen the branch, and refuses to write over what it has not
    head = session.head(branch)
    if head is None:
        message = f"session {session.id!r} has no branch {branch!r}"
        hint = Hint("session.branches() has those there are", "`backstay branches` lists those there are")
        raise NotFoundError(message, hint=hint)
    return head


def refuse_moved(session: Session, branch: str, head_id: str) -> None:
    """ConflictError if the branch is not where it was when it was shown."""
    now = session.head(branch)
    if now is None or now.id != head_id:
        message = f"branch {branch!r} has moved since this was shown"
        raise ConflictError(message, hint="look again, then decide")


def leaving(
    session: Session, head: Checkpoint, target: Checkpoint, *, most: int = LOOKED_AT
) -> list[Checkpoint] | None:
    """The checkpoints that leave the head, newest first; None if the target is not among the last that led to it."""
    found: list[Checkpoint] = []
    for point in islice(told(session.log(head)), most):
        if point.id == target.id:
            return found
        found.append(point)
    return None


def made_since(session: Session, head: Checkpoint, target: str, *, most: int = LOOKED_AT) -> int:
    """How many checkpoints led from the restore of a checkpoint to the head; 0 if it is not among the last."""
    for count, point in enumerate(islice(session.log(head), most)):
        if point.parent_id == target:
            return count
    return 0


def aside(head: Checkpoint, *, most: int = LOOKED_AT) -> str:
    """What is said where `leaving` found nothing."""
    looked = f"last {most:,} checkpoints" if head.sequence > most else "checkpoints"
    return f"It is not among the {looked} that led to the head."
