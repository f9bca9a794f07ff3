"""A branch held for something that is no run: its lease is taken, renewed while that lasts, and given back."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import Self

from backstay.errors import BackstayError
from backstay.ids import UID_BYTES
from backstay.port.lease import clock_us, here
from backstay.rules import runs
from backstay.rules.refusals import Lease
from backstay.run.heartbeat import heartbeat
from backstay.store.history import History

LEASE_S = 30.0
_NONCE_BYTES = 8


class HeldBranch:
    """Holds a branch inside a `with`; LeaseHeldError if another process runs or holds it. `lease` is its proof."""

    lease_s = LEASE_S

    def __init__(self, history: History, branch: str, purpose: str) -> None:
        self._history = history
        self._branch = branch
        self._purpose = purpose
        self._renewed_us = 0
        self.lease = Lease(history.id, branch, 0, 0, 0, purpose)

    def __enter__(self) -> Self:
        history = self._history
        intent = runs.Enter(
            session=history.id,
            branch=self._branch,
            uid=secrets.token_bytes(UID_BYTES),
            nonce=secrets.token_bytes(_NONCE_BYTES),
            holder=here(),
            agent=history.agent,
            lease_us=int(LEASE_S * 1_000_000),
            at_us=time.time_ns() // 1000,
            input=None,
        )
        self.lease = history.backend.write(intent.ask, runs.hold(intent, self._purpose)).answer
        self._renewed_us = clock_us()
        heartbeat.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        heartbeat.discard(self)
        with contextlib.suppress(BackstayError):  # a lease ends by itself
            self._history.backend.write(runs.lease_ask(self.lease), runs.release(self.lease))

    def beat(self) -> None:
        """Renew the lease while it takes long; see heartbeat."""
        if clock_us() - self._renewed_us < self.lease.lease_us // 3:
            return
        with contextlib.suppress(Exception):  # one that is lost shows at the next write
            self._history.backend.write(runs.lease_ask(self.lease), runs.renew(self.lease))
            self._renewed_us = clock_us()
