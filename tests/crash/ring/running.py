"""Runs as part of what is killed and damaged: single verbs of the port, and how runs and calls look afterwards.

Each verb is a step that happens whole or not at all. What a step needs from an earlier one it looks up in the store:
the earlier one may have been reported as failed and be there all the same.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import Any

from msgspec.structs import replace

import backstay
from backstay.errors import CorruptionError, FencedError
from backstay.face import Session
from backstay.model import StateDict
from backstay.port import EVERY, Ask, Backend, CallRow, CheckpointRow, Kind, LaneRow
from backstay.port.lease import here
from backstay.port.rows import DONE, STARTED
from backstay.rules import runs
from backstay.rules.calls import pending_of
from backstay.rules.refusals import Lease
from backstay.store.fields import Given
from backstay.store.overview import calls_taken

NOW_US = 1_700_000_000_000_000
LONG_US = 3_600_000_000


class Agent:
    """The verbs of runs on one session."""

    def __init__(self, backend: Backend, session: str, branch: str = "main") -> None:
        self._backend, self._session, self._branch = backend, session, branch

    def enter(self, input_: bytes = b"\0\xa2go") -> None:
        """Begin, or go on with what is unfinished."""
        uid, nonce = os.urandom(16), os.urandom(8)
        intent = runs.Enter(self._session, self._branch, uid, nonce, here(), "an agent", LONG_US, NOW_US, input_)
        self._backend.write(intent.ask, runs.enter(intent))

    def start(self, name: str) -> None:
        """A call is begun."""
        lease = self.lease()
        call = CallRow(
            *(0, 0, 0, f"call {name}", None, name, None, 0, "tool", None, b"\x05" * 16, STARTED),
            token=lease.token,
            started_us=NOW_US,
        )
        self._backend.write(runs.journal_ask(lease, None), runs.journal(lease, call, at=None))

    def finish(self, name: str) -> None:
        """What became of it."""
        begun, lease = self._begun(name), self.lease()
        call = replace(begun, status=DONE, ended_us=NOW_US + 9, result=b"\0\xa6result")
        self._backend.write(runs.journal_ask(lease, begun.at), runs.journal(lease, call, at=begun.at))

    def leave(self, status: str | None = None) -> None:
        """Give the lease back; that an interruption is recorded cannot be seen, so it may be tried twice."""
        lease = self.lease()
        rule = runs.leave(lease, status=status, reason=None if status is None else "a reason")
        with suppress(FencedError) if status is None else nullcontext():
            self._backend.write(runs.lease_ask(lease), rule)

    def abandon(self) -> None:
        """Give up what is pending."""
        rule = runs.abandon(self._session, self._branch, reason="no use", at_us=NOW_US, nonce="n")
        self._backend.write(runs.abandon_ask(self._session, self._branch), rule)

    def boundary(self, session: Session, state: StateDict, *, step: int, ends_run: bool = False) -> None:
        """A boundary of the run."""
        history, head = session._history, session.head(self._branch)
        history.write(
            self._branch,
            state,
            Given("iteration", status="in_progress", step=step, loop=b""),
            expect=backstay.NOTHING if head is None else head.id,
            lease=self.lease(),
            ends_run=ends_run,
        )

    def lease(self) -> Lease:
        """What the run on the branch shows."""
        lane = self._backend.read(Ask(self._session, names=(self._branch,))).lanes[self._branch]
        return Lease(self._session, self._branch, lane.run, lane.token, LONG_US)

    def _begun(self, name: str) -> CallRow:
        return next(call for call in pending_calls(self._backend, self._session, self._branch) if call.name == name)


def pending_calls(backend: Backend, session: str, branch: str) -> list[CallRow]:
    """What is pending on a branch; runs are numbered by each store for itself."""
    view = backend.read(Ask(session, names=(branch,), pending=(branch,)))
    found = pending_of(view.pending.get(branch, ()))
    assert all(isinstance(call, CallRow) for call in found)
    return [call for call in found if isinstance(call, CallRow)]


def ids_of(backend: Backend, session: str) -> list[str]:
    """The ids of all checkpoints, oldest first."""
    return [row.id for row in rows_of(backend, session)]


def rows_of(backend: Backend, session: str) -> list[CheckpointRow]:
    """All checkpoints, oldest first; CorruptionError if one is damaged or missing."""
    found: list[CheckpointRow] = []
    for row in backend.scan(session, Kind.CHECKPOINT, limit=1_000_000):
        if not isinstance(row, CheckpointRow):
            raise CorruptionError(str(row))
        found.append(row)
    line = backend.read(Ask(session)).session
    if line is not None and line.checkpoints != len(found):
        raise CorruptionError("a checkpoint is missing")
    return found


def look_at_runs(backend: Backend, session: str) -> dict[str, Any]:
    """All there is to see of a session's runs and calls, but who is alive and what a store numbers for itself."""
    lanes: list[LaneRow] = sorted(
        [lane for lane in backend.read(Ask(session, names=EVERY)).lanes.values() if lane.run],
        key=lambda lane: lane.name,
    )
    kept = backend.scan(session, Kind.CALL, limit=1_000_000)
    rows = rows_of(backend, session)
    return {
        "runs": [(lane.name, lane.entered, lane.unfinished, lane.input, lane.crashes) for lane in lanes],
        "calls": sorted([_plain(call) for call in kept], key=lambda call: (call.journal, call.n, call.id)),
        "pending": {lane.name: [_plain(call) for call in pending_calls(backend, session, lane.name)] for lane in lanes},
        "taken in": [[_plain(call) for call in calls_taken(backend, session, row)] for row in rows],
    }


def _plain(call: Any) -> CallRow:
    if not isinstance(call, CallRow):
        raise CorruptionError(call.why)
    return replace(call, run=0)
