"""How a session stands between its checkpoints: which branches have a run, alive or crashed, and where an undo leads.

The public face tells which sessions crashed, not on which branch, and does an undo without saying first where to. Both
are asked of the port here, and nowhere else on the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from backstay.backend import CallRow
    from backstay.model import Call, Checkpoint
    from backstay.face import Session, Store


class Standing(NamedTuple):
    """A branch on which a run was entered and not ended. `head` is None before the first checkpoint."""

    branch: str
    live: bool
    crashes: int
    head: Checkpoint | None
    calls: list[Call]

    @property
    def in_doubt(self) -> list[Call]:
        """The calls that somebody has to decide."""
        return [call for call in self.calls if call.status == "in_doubt" or _has_lost_result(call)]


def _has_lost_result(call: Call) -> bool:
    # Done, but its result could not be stored: somebody may say what it was.
    return call.status == "done" and call.error is not None


def standings(store: Store, session: Session) -> list[Standing]:
    """Every branch whose run is alive, crashed, or left calls behind."""
    found = []
    for run in store.backend.runs(session.id):
        calls = session.calls(run.branch, pending=True)
        if run.entered or any(call.status == "in_doubt" for call in calls):
            found.append(Standing(run.branch, run.live, run.crashes, session.head(run.branch), calls))
    return found


def names(store: Store, session: Session) -> dict[str, list[tuple[str, str]]]:
    """By the ids of checkpoints: the names they have, each with whether it is a branch or a tag. Opens none of them."""
    found: dict[str, list[tuple[str, str]]] = {}
    kept = store.backend.names(session.id)
    for branch in kept.branches:
        found.setdefault(branch.head_id, []).append((branch.name, "branch"))
    for tag in kept.tags:
        found.setdefault(tag.id, []).append((tag.name, "tag"))
    return found


def made_calls(store: Store, session: Session, point: Checkpoint) -> list[CallRow]:
    """The calls that a checkpoint took in, without opening its state for their results."""
    return [each.call for each in store.backend.calls(session.id, point.id)]


def undo_target(store: Store, session: Session, branch: str) -> str | None:
    """The checkpoint that an undo of this branch would bring back; None if there is nothing to undo."""
    found = store.backend.find_branch(session.id, branch)
    return None if found is None else found.undo_id
