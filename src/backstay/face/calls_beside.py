"""Calls that are kept beside a session: those of a framework's steps, in the session `<session>/tools`.

A framework that records its own steps has no run whose boundary could take calls in. So each call has a branch of its
own in a session beside, and the name of the branch begins with the checkpoint it was asked for at: `<checkpoint>/…`.
"""

from __future__ import annotations

import contextlib
from hashlib import sha256

from backstay.errors import NotFoundError
from backstay.face.run_status import RunStatus
from backstay.face.session import Session
from backstay.face.store import Store
from backstay.model import MAX_NAME_CHARS, Call
from backstay.port import EVERY, Ask, LaneRow

_OPEN = ("started", "in_doubt")


def calls_session(session_id: str) -> str:
    """The id of the session with the calls beside this one."""
    name = f"{session_id}/tools"
    return name if len(name) <= MAX_NAME_CHARS else f"{sha256(name.encode()).hexdigest()}/tools"


class CallsBeside:
    """The calls beside one session, by the checkpoints they were asked for at."""

    def __init__(self, store: Store, session: Session) -> None:
        self._session = store.session(calls_session(session.id))
        self._asker = session
        view = store.backend.read(Ask(self._session.id, names=EVERY))
        self._live = frozenset(view.live)
        self._branches: dict[str, list[LaneRow]] = {}
        for lane in sorted(view.lanes.values(), key=lambda lane: lane.since_us):
            if lane.run and "/" in lane.name:
                self._branches.setdefault(lane.name.partition("/")[0], []).append(lane)

    def at(self, checkpoint_id: str) -> list[Call]:
        """The calls that were asked for at a checkpoint, in the order they began."""
        lanes = self._branches.get(checkpoint_id, ())
        return [call for lane in lanes for call in self._session.calls(lane.name, pending=True)]

    def unfinished(self) -> list[RunStatus]:
        """The calls that are being made now or are in doubt, as runs whose heads are the checkpoints that asked."""
        found = []
        for checkpoint_id, lanes in self._branches.items():
            for lane in [lane for lane in lanes if lane.entered or lane.doubts]:
                calls = [call for call in self._session.calls(lane.name, pending=True) if call.status in _OPEN]
                with contextlib.suppress(NotFoundError):  # its framework had not written it yet, or it was pruned
                    head = self._asker.checkpoint(checkpoint_id)
                    found += [RunStatus(lane.name, lane.name in self._live, 0, head, calls)] if calls else []
        return found
