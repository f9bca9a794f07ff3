"""The limit on what contents of files take in a store: looked at beside the work, after captures that brought much.

A thread of its own weighs the store and forgets the oldest contents that no branch, tag, label or undo leads to, until
what is left fits. It is no part of any commit. Closing the store waits some seconds for it, and looks once more if much
came meanwhile: a process that does nothing but one quick run would never come to it otherwise. A kill leaves each group
as it was or as it is to be; the first capture of the next process looks again, and so does one that brings enough.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from backstay.errors import BackstayError
from backstay.port import Backend
from backstay.retention import Retention

if TYPE_CHECKING:
    from logging import Logger

_LOOK_PART = 64  # of the limit: so much must have come since the last look
_FINISH_S = 5.0  # that closing a store may wait for the limit to be kept
_CLOSE_S = 30.0  # and then for the portion that is being written


def _log() -> Logger:
    import logging  # noqa: PLC0415 - what is seldom said need not be waited for

    return logging.getLogger("backstay")


class FilesLimit:
    """The limits that sessions of one Store ask for. Threads may share it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._since: int | None = None  # bytes that came since the last look; None before the first
        self._failed = False  # the last look, because others wrote all the time
        self._last: tuple[str, int] = "", 0  # whose capture was the last, and its limit

    def captured(self, session: str, put_bytes: int, limit_bytes: int) -> None:
        """A commit brought so many bytes of contents; if it may be time, look whether they fit."""
        with self._lock:
            came = put_bytes + (self._since or 0)
            busy = self._thread is not None and self._thread.is_alive()
            if not put_bytes or self._closing or busy or (self._since is not None and not _is_due(came, limit_bytes)):
                self._since = came if self._since is not None else None
            else:
                self._begin(session, limit_bytes)
            if put_bytes:
                self._last = session, limit_bytes

    def _begin(self, session: str, limit_bytes: int) -> threading.Thread:
        self._since = 0
        self._thread = threading.Thread(
            target=self._look, args=(session, limit_bytes), name="backstay-files-limit", daemon=True
        )
        self._thread.start()
        return self._thread

    def wait(self) -> None:
        """Return when no look is under way."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def close(self, finish_s: float = _FINISH_S) -> None:
        """Finish what is due, for so long; then stop at the next portion, and wait for it."""
        until = time.monotonic() + finish_s
        with self._lock:
            self._closing = True
            thread = self._thread
        if thread is None:
            return
        try:
            thread.join(max(0.0, until - time.monotonic()))
            if not thread.is_alive() and (self._failed or _is_due(self._since or 0, self._last[1])):
                thread = self._begin(*self._last)
                thread.join(max(0.0, until - time.monotonic()))
        finally:  # Ctrl-C ends the waiting, not the portion that is being written
            self._stop.set()
            thread.join(_CLOSE_S)

    def _look(self, session: str, limit_bytes: int) -> None:
        self._failed = False
        try:
            if self._backend.sizes().held_bytes > limit_bytes:
                self._forget(session, limit_bytes)
        except BackstayError as error:  # the next look may be luckier; no work depends on it
            self._failed = True
            _log().warning("the limit on contents of files could not be kept: %s", error)

    def _forget(self, session: str, limit_bytes: int) -> None:
        from backstay.upkeep.file_policies import KeepByRetention  # noqa: PLC0415 - few stores come to that
        from backstay.upkeep.forgetting import Forgetting  # noqa: PLC0415

        retention, now_us = Retention(files_bytes=limit_bytes), time.time_ns() // 1000
        work = Forgetting(
            self._backend, lambda _: KeepByRetention(retention, now_us), writer=session, stopped=self._stop.is_set
        )
        done = work.run(limit_bytes)
        if done.versions:
            _log().info(
                "contents of %d file versions were forgotten: the limit is %d bytes", done.versions, limit_bytes
            )


def _is_due(came: int, limit_bytes: int) -> bool:
    return came * _LOOK_PART >= limit_bytes
