"""News: tells open pages that the store was written to, by any process, or that a process which held a run is gone.

One look at a time serves all pages. A write shows in `changes`. A process that dies writes nothing: that is seen by
looking which runs are alive, a little less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from backstay.errors import BackstayError
from backstay.port import LaneQuery
from backstay.port.rows import DOUBTFUL, ENTERED, MARK_WAITING

if TYPE_CHECKING:
    from backstay.face import Store
    from backstay.web.jobs import Jobs

LOOK_S = 0.2
LONGEST_S = 600.0  # a page asks again; so one that is forgotten holds no connection for ever
_RUNS_LOOK_S = 0.5
_STILL_HERE_S = 15.0


class News:
    """Wakes those who listen with each piece of news.

    A listener may be cancelled at any moment, when its page goes: each has an event of its own, and no lock is shared.
    """

    def __init__(self, store: Store, jobs: Jobs) -> None:
        self._store, self._jobs = store, jobs
        self._number, self._closed = 0, False
        self._listeners: set[asyncio.Event] = set()
        self._looking: asyncio.Task[None] | None = None
        self._runs: object = None
        self._runs_seen_at = 0.0

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events, one for each piece of news, for at most ten minutes."""
        woken = asyncio.Event()
        self._listeners.add(woken)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        end = time.monotonic() + LONGEST_S
        try:
            yield b"retry: 1000\ndata: 0\n\n"
            while not self._closed and (left_s := end - time.monotonic()) > 0:
                try:
                    await asyncio.wait_for(woken.wait(), min(_STILL_HERE_S, left_s))
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                woken.clear()
                yield f"data: {self._number}\n\n".encode()
        finally:
            self._listeners.discard(woken)

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for woken in self._listeners:
            woken.set()

    async def _look(self) -> None:
        """Look for as long as a page listens."""
        seen = await asyncio.to_thread(self._state, None)
        while self._listeners and not self._closed:
            now = await asyncio.to_thread(self._state, seen)
            if now != seen:
                seen = now
                self._number += 1
                self._wake()

    def _state(self, seen: tuple[object, ...] | None) -> tuple[object, ...]:
        """The store in a few numbers, after a moment, or as soon as they may differ."""
        backend = self._store.backend
        try:
            if seen is not None:
                backend.wait(LOOK_S, since=int(str(seen[0])))
            if time.monotonic() - self._runs_seen_at >= _RUNS_LOOK_S:
                lanes = backend.lanes(LaneQuery(ENTERED | DOUBTFUL | MARK_WAITING))
                self._runs = tuple((one.session.id, one.lane.name, one.live, one.lane.doubts) for one in lanes)
                self._runs_seen_at = time.monotonic()
            return backend.changes(), self._runs, self._jobs.stand()
        except BackstayError:
            time.sleep(LOOK_S)
            return seen if seen is not None else (0, None, None)
