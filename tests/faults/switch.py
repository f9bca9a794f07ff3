"""The switch: what is to happen at which storage call. Counts them, records them, and strikes."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

SECTOR_BYTES = 512

Verb = Literal[
    "create", "make_folder", "write", "truncate", "rename", "delete", "sync", "sync_folder", "failed_sync", "mark"
]


class Call(NamedTuple):
    """One storage call. `offset` is a truncation's length and a mark's number; `data` a rename's new name."""

    verb: Verb
    file: str
    offset: int = 0
    data: bytes = b""


class Faults:
    """Decides at each storage call; the first is number 1.

    `kill_at` ends the process before that call; `tear_at` lets it write the first sectors and then ends the process.
    `fail_from` raises OSError with `error` from that call on, up to and without `fail_until`: EIO for everything,
    ENOSPC for what needs room. `only` counts and strikes calls of one verb. `lie` says yes to every sync and does
    none, `deaf` says yes to those that fail. `record` keeps every call in `trace`.
    """

    def __init__(self, **wanted: Any) -> None:
        self.reset(**wanted)

    def reset(
        self,
        *,
        kill_at: int | None = None,
        tear_at: int | None = None,
        fail_from: int | None = None,
        fail_until: int | None = None,
        error: int = errno.EIO,
        only: Verb | None = None,
        lie: bool = False,
        deaf: bool = False,
        record: bool = False,
    ) -> None:
        """Begin anew with these faults, as when it was made."""
        self.kill_at, self.tear_at = kill_at, tear_at
        self.fail_from, self.fail_until, self.error = fail_from, fail_until, error
        self.only = only
        self.lie, self.deaf, self.record = lie, deaf, record
        self.calls = 0
        self.struck = 0
        self.trace: list[Call] = []

    def lift(self) -> None:
        """The disk is well again."""
        self.kill_at = self.tear_at = self.fail_from = None

    def mark(self, number: int) -> None:
        """Note in the trace that something was acknowledged."""
        self.trace.append(Call("mark", "", number))

    def meet(self, call: Call, do: Callable[[bytes], object]) -> None:
        """Let a call pass to `do` (with the bytes to write), or strike."""
        if self.only is None or call.verb == self.only:
            self.calls += 1
            if self.calls == self.kill_at:
                die()
            if self.calls == self.tear_at:
                self._tear(call, do)
            if self._fails(call):
                self.struck += 1
                if self.record and call.verb == "sync":
                    self.trace.append(call._replace(verb="failed_sync"))
                if self.deaf and call.verb == "sync":
                    return
                raise OSError(self.error, os.strerror(self.error), call.file)
        if self.lie and call.verb in ("sync", "sync_folder"):
            return
        do(call.data)
        if self.record:
            self.trace.append(call)

    def _fails(self, call: Call) -> bool:
        if self.fail_from is None or self.calls < self.fail_from:
            return False
        if self.fail_until is not None and self.calls >= self.fail_until:
            return False
        return self.error != errno.ENOSPC or call.verb in ("create", "make_folder", "write")

    def _tear(self, call: Call, do: Callable[[bytes], object]) -> None:
        if call.verb == "write":
            # Up to a sector's end in the file, not in the buffer: that is what a disk writes in one piece.
            sectors = (call.offset % SECTOR_BYTES + len(call.data)) // SECTOR_BYTES
            kept = max(0, (1 + sectors // 2) * SECTOR_BYTES - call.offset % SECTOR_BYTES)
            if kept < len(call.data):
                do(call.data[:kept])
        die()


def die() -> None:
    """End this process at once, as nothing can prevent."""
    os.kill(os.getpid(), signal.SIGKILL)
