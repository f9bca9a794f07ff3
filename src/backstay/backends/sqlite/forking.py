"""What a fork does to connections: the parent goes on, the child lets go of what it inherited.

Nobody may be inside SQLite while the process forks: a lock of its own that a thread holds there would stay locked in
the child for ever. So every open backend comes to rest first. In the child its connections are closed, so that a store
opened anew there starts from true lock counts (POSIX locks are not inherited, SQLite's memory of them is); the parent's
lock keeps that close from tidying the log away. What a thread had in hand all the same is never touched again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from typing import Any, Protocol

import apsw

from backstay.backends.sqlite.connections import Connection

FORK_PATIENCE_S = 5.0


class Forkable(Protocol):
    """What has connections that a fork must not find in use."""

    def before_fork(self) -> bool:
        """Come to rest; False if that took too long."""

    def after_fork(self) -> None:
        """Go on, in the parent."""

    def in_child(self, *, held: bool) -> None:
        """Let go, in the child."""


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[tuple[Forkable, bool]] = []


def register(backend: Forkable) -> None:
    """From now on a fork waits for this one."""
    _open.add(backend)


def unregister(backend: Forkable) -> None:
    """It is closed."""
    _open.discard(backend)


def let_go(connections: list[Connection | None], *, held: bool) -> None:
    """In a child: close what came to rest before the fork; keep from ever being closed what was in use."""
    for connection in connections:
        if connection is not None and held:
            with contextlib.suppress(apsw.Error):
                connection.close()
        elif connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _hold_all() -> None:
    _held[:] = [(backend, backend.before_fork()) for backend in list(_open)]


def _release_all() -> None:
    for backend, held in _held:
        if held:
            backend.after_fork()
    _held.clear()


def _abandon_all() -> None:
    for backend, held in _held:
        backend.in_child(held=held)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_abandon_all)
