"""Waiting for news: told by the server where it can tell, otherwise looked for now and then.

A write that somebody may be waiting for says so on a channel (NOTIFY); others do not, because the server lets those who
tell commit one after another. A lease that runs out says nothing, a process that dies neither, and a pooler may hear
for nobody: so a wait is never longer than a moment, and who waits looks again.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable

import psycopg
from psycopg import sql

from backstay.backends.postgres.pool import Pool, Wire
from backstay.port import LOOK_S


class Listener:
    """One connection that listens, made when somebody first waits. A second who waits meanwhile just looks."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._channel = pool.place.channel
        self._wire: Wire | None = None
        self._turn = threading.Lock()

    def wait(self, seconds: float, has_news: Callable[[], bool]) -> None:
        """Return when there is news, or after a while in which there may have been some."""
        seconds = max(0.0, min(seconds, LOOK_S))
        if has_news():
            return
        if not self._turn.acquire(blocking=False):
            time.sleep(seconds)
            return
        try:
            if self._wire is None:
                self._wire = self._pool.connect()
                self._wire.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                if has_news():  # what was told before is lost
                    return
            for _ in self._wire.connection.notifies(timeout=seconds, stop_after=1):
                pass
        except psycopg.Error:
            # Not a reason to fail: who waits looks again, through the pool, which says what is wrong.
            self._drop()
            time.sleep(seconds)
        finally:
            self._turn.release()

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            with contextlib.suppress(psycopg.Error):
                wire.connection.close()

    def close(self) -> None:
        """Hear no more."""
        with self._turn:
            self._drop()

    def abandon(self) -> None:
        """In a forked child; see `Pool.abandon`."""
        if self._wire is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._wire.connection))
