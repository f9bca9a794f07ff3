"""A run for tests that speaks to a backend alone: it enters, journals calls, and commits boundaries with an Author."""

from __future__ import annotations

import secrets
import time
from typing import Any

from msgspec.structs import replace

from backstay.backend import DONE, STARTED, Backend, CallRow, Entry, Journaled, Kept, Row
from backstay.model import StateDict
from backstay.testing.author import NOW_US, Author, next_turn

LONG_US = 3_600_000_000
SHORT_US = 60_000
SHORT_S = SHORT_US / 1e6
SESSION = "a session"


class Runner:
    """One run on one branch. Making one enters it."""

    def __init__(
        self,
        backend: Backend,
        session: str = SESSION,
        *,
        branch: str = "main",
        agent: str | None = None,
        lease_us: int = LONG_US,
        input_: bytes | None = None,
        expect_token: int | None = None,
    ) -> None:
        self.backend = backend
        entry = Entry(session, branch, agent, lease_us, NOW_US, input_, expect_token)
        self.entered = backend.enter(entry)
        self.lease = self.entered.lease
        self.author = Author(backend, session, branch=branch)
        self.after = 0
        self.seen: list[Journaled] = list(self.entered.calls)
        if self.entered.head_id is not None:
            self.author.stand_on(self.entered.head_id)
            row = backend.find_row(session, self.entered.head_id)
            assert row is not None
            self.after = row.sequence

    def start(self, name: str = "a tool", **fields: Any) -> Journaled:
        """A call that is begun, and whose outcome is open."""
        call = new_call(name, token=self.lease.token, **fields)
        slot = self.backend.journal(self.lease, call, after=self.after)
        self.seen.append(Journaled(self.lease.run, self.after, slot, call))
        return self.seen[-1]

    def finish(self, begun: Journaled, result: bytes | None = b"\xa4done", **fields: Any) -> Journaled:
        """What became of it."""
        call = replace(begun.call, **{"status": DONE, "ended_us": NOW_US + 5, "result": result, **fields})
        slot = self.backend.journal(self.lease, call, after=begun.after, slot=begun.slot)
        assert slot == begun.slot, "an outcome has the place of its call"
        ended = Journaled(begun.run, begun.after, slot, call)
        self.seen[self.seen.index(begun)] = ended
        return ended

    def call(self, name: str = "a tool", result: bytes | None = b"\xa4done", **fields: Any) -> Journaled:
        """Both."""
        return self.finish(self.start(name, **fields), result)

    def draft(self, state: StateDict | None = None, **options: Any) -> Any:
        """A boundary that is not yet written."""
        wanted = next_turn(self.author.state, len(self.author.rows)) if state is None else state
        return self.author.draft(wanted, lease=self.lease, **options), wanted

    def boundary(self, state: StateDict | None = None, **options: Any) -> Row:
        """A boundary; it takes in what is pending."""
        row = self.author.write(*self.draft(state, **options))
        self.after, self.seen = row.sequence, []
        return row

    def leave(self, status: str | None = None, reason: str | None = None) -> None:
        """Give the lease back."""
        self.backend.leave(self.lease, status=status, reason=reason)


def new_call(name: str, **fields: Any) -> CallRow:
    """A tool call that was started, with nothing special about it but what is given."""
    plain: dict[str, Any] = {
        "id": secrets.token_hex(12),
        "parent": None,
        "name": name,
        "key": None,
        "nth": 0,
        "kind": "tool",
        "args": b"\x81\xa1a\x01",
        "args_digest": b"\x05" * 32,
        "status": STARTED,
        "token": 1,
        "started_us": NOW_US,
    }
    return CallRow(**plain | fields)


def pending(backend: Backend, branch: str = "main", session: str = SESSION) -> list[Journaled]:
    """What is pending on a branch."""
    return list(backend.pending(session, branch).calls)


def took(backend: Backend, id_: str, session: str = SESSION) -> tuple[int, int] | None:
    """What a history says a checkpoint took in."""
    found: list[Kept] = list(backend.history(session, after=0, limit=1_000))
    return next(kept.took for kept in found if kept.row.id == id_)


def expire() -> None:
    """Wait until a lease of SHORT_US is over."""
    time.sleep(SHORT_S * 1.5)
