"""The SQLite backend: one file, many threads, many processes on one machine.

A write goes through the group commit: one connection, shared transactions, the rule decides inside. Each read borrows
a connection of its own and sees one moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from backstay.backends.sqlite import batches, history, listing, schema, states, store_file, upkeep, views
from backstay.backends.sqlite.connections import NONSENSE, Connection, connect, connect_export, translated
from backstay.backends.sqlite.forking import FORK_PATIENCE_S, let_go, register, unregister
from backstay.backends.sqlite.group_commit import GroupCommit, Write
from backstay.backends.sqlite.readers import Readers
from backstay.backends.sqlite.views import find_line
from backstay.errors import ClosedError, UnsupportedError
from backstay.model import Problem
from backstay.port import (
    LOOK_S,
    Ask,
    CheckpointRow,
    Decide,
    FoundLane,
    Key,
    Kind,
    LaneQuery,
    Records,
    Row,
    SessionQuery,
    SessionRow,
    Sizes,
    Unreadable,
    View,
)

_GLANCE_S = 0.01  # how often `wait` looks whether anybody has written

T = TypeVar("T")


class SqliteBackend:
    """See the module's text. `commits` and `syncs` count what was written and how often the disk was waited for."""

    name = "sqlite"
    packs = True

    def __init__(self, path: Path, *, durability: str = "full") -> None:
        self.path = store_file.whereabouts(path)
        writer = store_file.prepare(self.path, durability=durability)
        self._open(writer, lambda: connect(self.path, durability=durability), durability)

    @classmethod
    def open_export(cls, path: Path) -> SqliteBackend:
        """An export, to be read: nothing is written to it, nor beside it."""
        self = cls.__new__(cls)
        self.path = store_file.whereabouts(path)
        store_file.open_export(self.path).close()
        self._open(None, lambda: connect_export(self.path), "none")
        return self

    @classmethod
    def make_export(cls, path: Path) -> SqliteBackend:
        """A new export, to be written to; it is whole, and can be opened, once `finish_export` has returned."""
        self = cls.__new__(cls)
        self.path = store_file.whereabouts(path)
        writer = store_file.make_export(self.path)
        self._open(writer, lambda: connect(self.path, durability="none"), "none")
        return self

    def _open(self, writer: Connection | None, make: Callable[[], Connection], durability: str) -> None:
        self._pid = os.getpid()
        self._writer = batches.Writer()
        self._group: GroupCommit | None = None
        try:
            with translated(f"opening {self.path}"):
                self._readers = Readers(make, moved=schema.settle)
                if writer is not None:
                    moved = self._writer.settle
                    self._group = GroupCommit(writer, self.path, moved=moved, durability=durability)
        except BaseException:
            if writer is not None:
                writer.close()
            raise
        register(self)

    @property
    def commits(self) -> int:
        """Jobs written by this process."""
        return 0 if self._group is None else self._group.jobs

    @property
    def syncs(self) -> int:
        """Transactions that they shared."""
        return 0 if self._group is None else self._group.syncs

    # one session

    def read(self, ask: Ask) -> View:
        return self._read(lambda connection: views.look(connection, ask, fresh=batches.last_touched(connection) + 1)[1])

    def write(self, ask: Ask, decide: Decide) -> View:
        return self._write(partial(self._writer.write, ask, decide), lazy=ask.lazy)

    def state(self, session: str, ref: str | int, *, salvage: bool = False, without: Collection[int] = ()) -> Records:
        return self._read(partial(states.state, session, ref, salvage=salvage, without=without))

    def ancestors(self, session: str, sequence: int, *, limit: int) -> Sequence[CheckpointRow | Unreadable]:
        return self._read(lambda connection: history.ancestors(connection, session, sequence, limit))

    def scan(
        self,
        session: str,
        kind: Kind,
        *,
        after: Key | None = None,
        before: Key | None = None,
        limit: int,
        hidden: bool = False,
    ) -> Sequence[Row | Unreadable]:
        def page(connection: Connection) -> Sequence[Row | Unreadable]:
            line = find_line(connection, session, hidden=hidden)
            if line is None:
                return []
            return history.scan(connection, line, kind, after=after, before=before, limit=limit)

        return self._read(page)

    # many sessions

    def sessions(self, query: SessionQuery) -> Sequence[SessionRow]:
        return self._read(lambda connection: listing.sessions(connection, query))

    def lanes(self, query: LaneQuery) -> Sequence[FoundLane]:
        return self._read(lambda connection: listing.lanes(connection, query))

    # blobs

    def absent(self, digests: Collection[bytes]) -> Collection[bytes]:
        return self._read(lambda connection: batches.find_absent(connection, digests))

    def put_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        self._write(lambda connection: batches.put_blobs(connection, blobs))

    def blobs(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        return self._read(lambda connection: views.blobs(connection, digests))

    # news

    def changes(self) -> int:
        self._refuse_child()
        with translated("looking at the store"):
            return self._readers.watch()

    def wait(self, seconds: float, *, since: int) -> None:
        deadline = time.monotonic() + max(0.0, min(seconds, LOOK_S))
        while self.changes() == since and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _GLANCE_S))
            if self._readers.closed:
                return

    # upkeep

    def sizes(self) -> Sizes:
        return self._read(listing.sizes)

    def check(self) -> Iterator[Problem]:
        self._refuse_child()
        with translated("checking the store"):
            problems = self._readers.read(upkeep.check, settled=False)
        yield from problems

    def tend(self, *, repair: bool = False) -> Sequence[str]:
        try:
            return self._tend(repair=repair)
        except NONSENSE:
            with translated("tending the store"):
                raise

    def _tend(self, *, repair: bool) -> Sequence[str]:
        done = self._write(upkeep.repair) if repair else []
        for step in (upkeep.sweep_some, upkeep.vacuum_some):
            while self._write(step):
                pass
        self._write(upkeep.scrub, alone=True)
        self._write(upkeep.empty_log, alone=True)
        return done

    def finish_export(self) -> None:
        """All of an export is on disk, and it says so."""
        self._write(lambda connection: store_file.finish_export(connection, self.path), alone=True)

    def close(self) -> None:
        if self._pid != os.getpid() or self._readers.closed:
            return
        if self._group is not None:
            self._group.close()
        self._readers.close()
        if self._group is not None:
            self._group.disconnect()
        unregister(self)

    def _write(self, job: Callable[[Connection], T], *, alone: bool = False, lazy: bool = False) -> T:
        if self._pid != os.getpid():
            self._refuse_child()
        if self._group is None:
            raise UnsupportedError(f"{self.path} is an export: it is only read", hint="backstay import takes it in")
        done: T = self._group.run(Write(job, alone=alone, lazy=lazy))
        return done

    def _read(self, job: Callable[[Connection], T]) -> T:
        if self._pid != os.getpid():
            self._refuse_child()
        try:
            return self._readers.read(job)
        except (apsw.Error, *NONSENSE):
            with translated("reading the store"):
                raise

    def _refuse_child(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError("this store was opened by the parent process", hint="open it again in this process")

    # forking

    def before_fork(self) -> bool:
        # The lead and the readers' mutex are kept until the fork is done.
        deadline = time.monotonic() + FORK_PATIENCE_S
        if self._group is not None and not self._group.hold(FORK_PATIENCE_S):
            return False
        if self._readers.hold(deadline):
            return True
        if self._group is not None:
            self._group.release()
        return False

    def after_fork(self) -> None:
        self._readers.release()
        if self._group is not None:
            self._group.release()

    def in_child(self, *, held: bool) -> None:
        self._readers.abandon()
        if self._group is not None:
            let_go([self._group.connection], held=held)
