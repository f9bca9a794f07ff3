"""An edit: load, change, commit, by one writer at a time. `session.edit()` is made of it, awaited or not.

Edits of one branch take turns, in all processes: each holds the branch's lease from its load to its commit, so the
block of an edit always sees what the edit before it wrote. A run is kept away as well. A commit is not: it overtakes
the edit, whose changes are then made again on top of it, as far as the two changed different parts (see rebase). So
does an edit inside another one's block, by the same task or thread, which could wait for ever.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from typing import Any
from weakref import WeakKeyDictionary

from backstay.errors import BackstayError, ConflictError, FencedError, LeaseHeldError, NotFoundError
from backstay.hints import Hint
from backstay.ids import UID_BYTES
from backstay.model import NOTHING, Checkpoint, State
from backstay.port.lease import clock_us, here
from backstay.rebase import rebase
from backstay.rules import runs
from backstay.rules.refusals import EDIT, Lease
from backstay.run.heartbeat import heartbeat
from backstay.store.fields import Given
from backstay.store.history import RACES, History
from backstay.store.looks import Place, current_caller

LEASE_S = 30.0

_NONCE_BYTES = 8
_SHORTEST_S, _LONGEST_S = 0.001, 0.03
_NOTHING_SAID = Given("manual")
_AGAIN = Hint("load the branch again, then decide", "look at the branch again, then decide")


_Branch = tuple[int, str, str]  # a backend, a session, a branch
_held: WeakKeyDictionary[Any, set[_Branch]] = WeakKeyDictionary()  # by task or thread: the branches it edits


def _held_by(caller: object) -> set[_Branch]:
    return _held.setdefault(caller, set())


class Edit:
    """One edit of a branch. `try_begin` until it is its turn; then `state`; then `finish` or `give_up`."""

    lease_s = LEASE_S

    def __init__(self, history: History, branch: str, wait_s: float) -> None:
        self._history = history
        self._branch = branch
        self._until = time.monotonic() + wait_s
        self._wait_s = wait_s
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._lease: Lease | None = None
        self._base: Place = NOTHING
        self._renewed_us = 0
        self._at = id(history.backend), str(history.id), branch
        self._held: set[_Branch] = set()
        self.state = State({})

    # taking turns

    def try_begin(self) -> bool:
        """True if it is this edit's turn: the branch is held, and `state` is what is there now."""
        history = self._history
        if self._at in _held_by(current_caller()):  # it would wait for itself: it overtakes it
            self._load()
            return True
        intent = runs.Enter(
            session=history.id,
            branch=self._branch,
            uid=secrets.token_bytes(UID_BYTES),
            nonce=self._nonce,
            holder=here(),
            agent=history.agent,
            lease_us=int(LEASE_S * 1_000_000),
            at_us=time.time_ns() // 1000,
            input=None,
            about=history.about,
        )
        lease: Lease | None = history.backend.write(intent.ask, runs.hold(intent, EDIT)).answer
        if lease is None:
            if time.monotonic() >= self._until:
                message = f"session {history.id!r}: branch {self._branch!r} is being edited for {self._wait_s:g} s"
                raise LeaseHeldError(message, hint="edits take turns: keep the block short")
            return False
        self._lease, self._renewed_us = lease, clock_us()
        self._held = _held_by(current_caller())
        self._held.add(self._at)
        heartbeat.add(self)
        try:
            self._load()
        except BaseException:
            self.give_up()
            raise
        return True

    def pause_s(self) -> float:
        """How long to wait before the next try; not the same for all who wait."""
        return random.uniform(_SHORTEST_S, _LONGEST_S)  # noqa: S311 - nothing secret

    def beat(self) -> None:
        """Renew the lease while the block takes long; see heartbeat."""
        lease = self._lease
        if lease is None or clock_us() - self._renewed_us < lease.lease_us // 3:
            return
        with contextlib.suppress(Exception):  # one that is lost shows at the commit
            self._history.backend.write(runs.lease_ask(lease), runs.renew(lease))
            self._renewed_us = clock_us()

    def _load(self) -> None:
        history, branch = self._history, self._branch
        try:
            found = history.load(branch)
        except NotFoundError:
            self.state, self._base = State({}), NOTHING
        else:
            self.state, self._base = State(found.state, (history.id, branch, found.row.id)), found.row.id
        history.looks.saw(branch, self._base)

    # the end

    def finish(self) -> Checkpoint:
        """Commit what the block left in `state`, and let the next edit begin."""
        state, expect = self.state, self._base
        try:
            for _ in range(RACES):
                try:
                    made = self._commit(state, expect)
                except ConflictError:
                    state, expect = self._rebased()
                else:
                    self._end()
                    return made
            message = f"session {self._history.id!r}: branch {self._branch!r} moved {RACES} times during this commit"
            raise ConflictError(message, hint=_AGAIN)
        except BaseException:
            self.give_up()
            raise

    def _commit(self, state: State, expect: Place) -> Checkpoint:
        history, branch = self._history, self._branch
        try:
            return history.write(branch, state, _NOTHING_SAID, expect=expect, lease=self._lease, ends_run=True)
        except FencedError:  # the lease ended while this process was stopped: what is expected still decides
            return history.write(branch, state, _NOTHING_SAID, expect=expect)

    def _rebased(self) -> tuple[State, Place]:
        """The block's changes on what is there now."""
        history, branch = self._history, self._branch
        try:
            now = history.load(branch)
            base = {} if self._base is NOTHING else history.load(str(self._base)).state
        except NotFoundError as error:
            message = f"session {history.id!r}: branch {branch!r} was taken back during this edit"
            raise ConflictError(message, hint=_AGAIN) from error
        merged, conflicts = rebase(base, dict(self.state), now.state)
        if conflicts:
            message = f"session {history.id!r}: a commit changed {', '.join(conflicts[:8])} during this edit, too"
            raise ConflictError(message, hint=_AGAIN)
        return State(merged), now.row.id

    def give_up(self) -> None:
        """Write nothing, and let the next edit begin."""
        lease = self._end()
        if lease is not None:
            with contextlib.suppress(BackstayError):  # a lease ends by itself
                self._history.backend.write(runs.lease_ask(lease), runs.release(lease))

    def _end(self) -> Lease | None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self._held.discard(self._at)
            heartbeat.discard(self)
        return lease
