"""The PostgreSQL backend: the same store for many machines.

A look, a write and a load are one round trip each, through functions inside the server (`functions`). A write is
decided on what this process knows from its last one, and sent with what it rests on (`views`, `shipment`, `writing`).
What goes wrong on the wire is tried again where that is safe (`pool`, `faults`). After a fork the child may not use
what it inherited.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from backstay.backends.postgres import queries, upkeep
from backstay.backends.postgres.listener import Listener
from backstay.backends.postgres.pool import Pool, SchemaPlace, Wire
from backstay.backends.postgres.schema import check_schema_name, prepare
from backstay.backends.postgres.writing import SessionQueues, looked
from backstay.model import Problem
from backstay.port import (
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

T = TypeVar("T")


class PostgresBackend:
    """See the module's text. `conninfo` is what libpq understands: a URL, or words like `host=… dbname=…`."""

    name = "postgres"
    packs = True

    def __init__(self, conninfo: str, *, schema: str = "backstay", durability: str = "full") -> None:
        self.schema = check_schema_name(schema)
        self._pool = Pool(conninfo, SchemaPlace(schema, relaxed=durability != "full"))
        self._writer = SessionQueues(self._pool)
        self._listener = Listener(self._pool)
        try:
            self._pool.run(prepare, "opening the store")
        except BaseException:
            self._pool.close()
            raise
        _open_backends.add(self)

    def __repr__(self) -> str:
        return f"<PostgresBackend in schema {self.schema!r}>"

    # one session

    def read(self, ask: Ask) -> View:
        def read(wire: Wire) -> View:
            view = looked(wire, ask, uid=self._writer.uid_of(ask), writing=False).view(ask)
            assert view is not None  # noqa: S101 - all of it was asked for
            return view

        return self._read(read)

    def write(self, ask: Ask, decide: Decide) -> View:
        return self._writer.write(ask, decide)

    def state(self, session: str, ref: str | int, *, salvage: bool = False, without: Collection[int] = ()) -> Records:
        records = self._read(lambda wire: queries.state(wire, session, ref, without, salvage=salvage))
        if records.session is None:
            self._writer.note_absent(session)
        return records

    def ancestors(self, session: str, sequence: int, *, limit: int) -> Sequence[CheckpointRow | Unreadable]:
        return self._read(lambda wire: queries.ancestors(wire, session, sequence, limit))

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
        return self._read(lambda wire: queries.scan(wire, session, kind, after, before, limit, hidden=hidden))

    # many sessions

    def sessions(self, query: SessionQuery) -> Sequence[SessionRow]:
        return self._read(lambda wire: queries.sessions(wire, query))

    def lanes(self, query: LaneQuery) -> Sequence[FoundLane]:
        return self._read(lambda wire: queries.lanes(wire, query))

    # blobs

    def absent(self, digests: Collection[bytes]) -> Collection[bytes]:
        return self._read(lambda wire: queries.absent(wire, digests))

    def put_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        self._pool.run(lambda wire: queries.put_blobs(wire, blobs), "writing to the store")

    def blobs(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        return self._read(lambda wire: queries.blobs(wire, digests))

    # news

    def changes(self) -> int:
        return self._read(queries.changes)

    def wait(self, seconds: float, *, since: int) -> None:
        self._listener.wait(seconds, lambda: self.changes() != since)

    # upkeep

    def sizes(self) -> Sizes:
        return self._read(queries.sizes)

    def check(self) -> Iterator[Problem]:
        yield from self._read(upkeep.check)

    def tend(self, *, repair: bool = False) -> Sequence[str]:
        return self._pool.run(lambda wire: upkeep.tend(wire, repair=repair), "tending the store")

    def close(self) -> None:
        if not self._pool.foreign:
            self._listener.close()
            self._pool.close()

    def abandon(self) -> None:
        """In a forked child: leave alone what belongs to the parent."""
        self._pool.abandon()
        self._listener.abandon()

    def _read(self, job: Callable[[Wire], T]) -> T:
        return self._pool.run(job, "reading the store")


_open_backends: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


def _abandon_all() -> None:
    for backend in list(_open_backends):
        backend.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
