"""How the runs of a session are: which branches have one that is alive, crashed, or left calls in doubt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from backstay.face.session import Session
from backstay.model import Call, Checkpoint
from backstay.port import EVERY, Ask, Backend
from backstay.rules.file_restore import PLACE, RESTORE


class RunStatus(NamedTuple):
    """A branch on which a run was entered and not ended, or where calls are in doubt.

    `head` is None before the first checkpoint.
    """

    branch: str
    live: bool
    crashes: int
    head: Checkpoint | None
    calls: list[Call]

    @property
    def in_doubt(self) -> list[Call]:
        """The calls that wait for a decision: in doubt, or done with a result that could not be stored."""
        return [
            call
            for call in self.calls
            if call.status == "in_doubt" or (call.status == "done" and call.error is not None)
        ]

    @property
    def placing(self) -> Call | None:
        """The call that put files back, where that was interrupted, or is under way if `live`."""
        return placing(self.calls)


def placing(calls: Iterable[Call]) -> Call | None:
    """The call among those pending on a branch that puts files back."""
    return next((call for call in calls if call.name == PLACE and call.parent is None), None)


def run_statuses(backend: Backend, session: Session) -> list[RunStatus]:
    """Every branch whose run is alive, crashed, or left calls in doubt."""
    view = backend.read(Ask(session.id, names=EVERY))
    found = []
    for lane in sorted(view.lanes.values(), key=lambda lane: lane.name):
        if lane.run and (lane.entered or lane.doubts):
            live = (lane.entered or lane.purpose == RESTORE) and lane.name in view.live
            calls = session.calls(lane.name, pending=True)
            found.append(RunStatus(lane.name, live, lane.crashes, session.head(lane.name), calls))
    return found
