"""Files being put back, as the journal has it: a call of ours on a branch that is held for it.

It is written down before the first file is changed, and goes in the same transaction as the checkpoint that says how
the folder is then (`Commit.settles`). In between the branch is marked as doubtful, so that it is found after a kill.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backstay.port import Ask, Batch, CallRow, Decide, Kind, LaneRow, Row, Unreadable, View
from backstay.rules import refusals
from backstay.rules.refusals import Lease

PLACE = "backstay.place"  # the name of the call
RESTORE = "restoring files"  # the purpose of the lease


class FilesPendingError(Exception):
    """Raised by the rule of a run where files were being put back: that comes to its end first; nothing is written."""

    def __init__(self, call: CallRow) -> None:
        super().__init__(call.id)
        self.call = call


def place_ask(lease: Lease) -> Ask:
    """The rows that these rules read."""
    return Ask(lease.session, names=(lease.branch,), pending=(lease.branch,))


def begin(lease: Lease, call: CallRow) -> Decide:
    """Write down that files are about to be put back. The answer is the call's row."""

    def decide(view: View) -> Batch:
        lane = _own_lane(view, lease)
        calls = view.pending.get(lease.branch, ())
        for kept in calls:
            if isinstance(kept, CallRow) and kept.id == call.id:
                return Batch(answer=kept)  # an earlier try of this very write went through
        row = msgspec.structs.replace(call, run=lane.run, journal=lane.journal, n=len(calls))
        puts: list[Row] = [row, msgspec.structs.replace(lane, doubts=lane.doubts + 1)]
        if view.session is not None:  # touched: contents that it needs are not forgotten from now on (rules.forgetting)
            puts.append(msgspec.structs.replace(view.session, touched=view.fresh))
        return Batch(tuple(puts), answer=row)

    return decide


def give_up(lease: Lease, call: CallRow) -> Decide:
    """Forget that files were being put back: no file was changed, or they are as they were again."""

    def decide(view: View) -> Batch:
        lane = _own_lane(view, lease)
        left = max(0, len(view.pending.get(lease.branch, ())) - 1)
        after = msgspec.structs.replace(lane, doubts=max(0, lane.doubts - 1), calls=min(lane.calls, left))
        return Batch((after,), ((Kind.CALL, call.at),))

    return decide


def placing(calls: Iterable[CallRow | Unreadable]) -> CallRow | None:
    """The call among those pending on a branch that put files back and was not brought to its end."""
    for call in calls:
        if isinstance(call, CallRow) and call.name == PLACE and call.parent is None:
            return call
    return None


def _own_lane(view: View, lease: Lease) -> LaneRow:
    lane = view.lanes.get(lease.branch)
    if lane is None or not refusals.holds(lane, lease):
        raise refusals.fenced(lease)[1]
    return lane
