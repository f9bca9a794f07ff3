"""Waiting for the end of a lease: told by the server where it can tell, otherwise looked for now and then.

A run that gives its lease back says so on a channel (NOTIFY). A lease that runs out says nothing, a process that dies
neither, and a pooler may hear for nobody: so a wait is never longer than a moment, and who waits looks again.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time

import psycopg
from psycopg import sql

from backstay.backend import LOOK_S
from backstay.backends.postgres.wire import Pool, Wire


class Listener:
    """One connection that listens, made when somebody first waits. A second who waits meanwhile just looks."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._channel = pool.place.channel
        self._wire: Wire | None = None
        self._turn = threading.Lock()

    def wait(self, seconds: float) -> None:
        """Return when a lease was given back, or after a while in which one may have ended."""
        self._pool.refuse_child()
        seconds = max(0.0, min(seconds, LOOK_S))
        if not self._turn.acquire(blocking=False):
            time.sleep(seconds)
            return
        try:
            self._listen(seconds)
        except psycopg.Error:
            # Not a reason to fail: who waits looks again, through the pool, which says what is wrong.
            self._drop()
            time.sleep(seconds)
        finally:
            self._turn.release()

    def _listen(self, seconds: float) -> None:
        if self._wire is None:
            self._wire = self._pool.connect()
            self._wire.connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            return  # what was told before is lost: look once more
        for _ in self._wire.connection.notifies(timeout=seconds, stop_after=1):
            pass

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
