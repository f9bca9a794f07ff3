"""Runs as part of what is killed and damaged: single verbs of the port, and how runs and calls look afterwards.

Each verb is a step that happens whole or not at all. What a step needs from an earlier one it looks up in the store:
the earlier one may have been reported as failed and be there all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from msgspec.structs import replace

from backstay.backend import DONE, Backend, Entry, Journaled, Lease
from backstay.errors import FencedError
from backstay.testing.author import NOW_US
from backstay.testing.runner import LONG_US, new_call


class Agent:
    """The verbs of runs on one session."""

    def __init__(self, backend: Backend, session: str, branch: str = "main") -> None:
        self._backend, self._session, self._branch = backend, session, branch

    def enter(self, input_: bytes = b"\xa2go") -> None:
        """Begin, or go on with what is unfinished."""
        self._backend.enter(Entry(self._session, self._branch, "an agent", LONG_US, NOW_US, input_))

    def start(self, name: str) -> None:
        """A call is begun."""
        call = new_call(name, id=f"call {name}")
        self._backend.journal(self.lease(), call, after=self._after())

    def finish(self, name: str) -> None:
        """What became of it."""
        begun = self._begun(name)
        call = replace(begun.call, status=DONE, ended_us=NOW_US + 9, result=b"\xa6result")
        self._backend.journal(self.lease(), call, after=begun.after, slot=begun.slot)

    def leave(self, status: str | None = None) -> None:
        """Give the lease back; that an interruption is recorded cannot be seen, so it may be tried twice."""
        with suppress(FencedError) if status is None else nullcontext():
            self._backend.leave(self.lease(), status=status, reason=None if status is None else "a reason")

    def abandon(self) -> None:
        """Give up what is pending."""
        self._backend.abandon(self._session, self._branch, reason="no use")

    @contextmanager
    def boundary(self, **more: Any) -> Iterator[None]:
        """What is committed in here is a boundary of the run."""
        write, lease = self._backend.commit, self.lease()
        self._backend.commit = lambda commit: write(replace(commit, lease=lease, **more))  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self._backend.commit

    def lease(self) -> Lease:
        """What the run on the branch shows."""
        (row,) = [row for row in self._backend.runs(self._session) if row.branch == self._branch]
        return Lease(self._session, self._branch, row.run, row.token, LONG_US)

    def _begun(self, name: str) -> Journaled:
        calls = self._backend.pending(self._session, self._branch).calls
        return next(journaled for journaled in calls if journaled.call.name == name)

    def _after(self) -> int:
        found = self._backend.find_branch(self._session, self._branch)
        row = None if found is None else self._backend.find_row(self._session, found.head_id)
        return 0 if row is None else row.sequence


def look_at_runs(backend: Backend, session: str) -> dict[str, Any]:
    """All there is to see of a session's runs and calls, but who is alive and what is drawn or counted by a backend."""
    rows = backend.runs(session)
    return {
        "runs": [(row.branch, row.entered, row.unfinished, row.input, row.crashes) for row in rows],
        "calls": [(journaled.after, journaled.call) for journaled in backend.entries(session)],
        "pending": {row.branch: [each.call for each in backend.pending(session, row.branch).calls] for row in rows},
        "taken in": [[each.call for each in backend.calls(session, id_)] for id_ in backend.ids(session)],
    }
