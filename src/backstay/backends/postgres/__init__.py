"""The PostgreSQL backend: the same store for many machines.

Every verb is one statement or one transaction on a borrowed connection; a commit and a journal write are one round trip
each. What goes wrong on the wire is tried again where that is safe: whoever tries again looks first for what the last
try may have left. After a fork the child may not use what it inherited.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from backstay.backend import (
    BranchRow,
    CallRow,
    Chain,
    Commit,
    Deletion,
    Entered,
    Entry,
    Journaled,
    Kept,
    Lease,
    Moved,
    Names,
    Pending,
    Row,
    RunRow,
    SessionRow,
    Sizes,
)
from backstay.backends.postgres import chains, deleting, journal, moving, reads, running, upkeep, writes
from backstay.backends.postgres.schema import check_schema_name, prepare
from backstay.backends.postgres.waiting import Listener
from backstay.backends.postgres.wire import Job, Place, Pool, Wire
from backstay.model import Problem

T = TypeVar("T")


class PostgresBackend:
    """See the module's text. `conninfo` is what libpq understands: a URL, or words like `host=… dbname=…`."""

    name = "postgres"

    def __init__(self, conninfo: str, *, schema: str = "backstay", durability: str = "full") -> None:
        self.schema = check_schema_name(schema)
        self._pool = Pool(conninfo, Place(schema, relaxed=durability != "full"))
        self._listener = Listener(self._pool)
        try:
            self._pool.run(lambda wire, _: prepare(wire), "opening the store")
        except BaseException:
            self._pool.close()
            raise
        _open_backends.add(self)

    def __repr__(self) -> str:
        return f"<PostgresBackend in schema {self.schema!r}>"

    # writes

    def commit(self, commit: Commit) -> Row:
        return self._write(lambda wire, _: writes.commit(wire, commit))

    def fork(self, session: str, *, id_: str, branch: str) -> None:
        self._write(lambda wire, again: writes.give_name(wire, session, id_, branch, tag=False, again=again))

    def delete_branch(self, session: str, *, branch: str) -> None:
        self._write(lambda wire, again: writes.delete_branch(wire, session, branch, again=again))

    def tag(self, session: str, *, id_: str, name: str) -> None:
        self._write(lambda wire, again: writes.give_name(wire, session, id_, name, tag=True, again=again))

    def untag(self, session: str, *, name: str) -> None:
        self._write(lambda wire, again: writes.untag(wire, session, name, again=again))

    def delete_checkpoints(self, deletion: Deletion) -> None:
        self._write(lambda wire, again: deleting.delete_checkpoints(wire, deletion, again=again))

    def delete_session(self, session: str, *, touched: int | None = None) -> None:
        self._write(lambda wire, again: deleting.delete_session(wire, session, touched, again=again))

    def adopt(self, moved: Moved, history: Iterable[tuple[Kept, Mapping[bytes, bytes]]]) -> None:
        if self.find_session(moved.line.id) is not None:
            raise moving.already_here(moved.line.id)
        # Read first, without a transaction: what comes may be slow, may turn out to be damaged, and comes only once.
        with contextlib.closing(moving.Spool()) as spool:
            spool.fill(history)
            self._write(moving.Adopting(moved, spool))

    # runs

    def enter(self, entry: Entry) -> Entered:
        return self._write(running.Entering(entry))

    def renew(self, lease: Lease) -> None:
        self._write(lambda wire, _: running.renew(wire, lease))

    def journal(self, lease: Lease, call: CallRow, *, after: int, slot: int | None = None) -> int:
        return self._write(lambda wire, again: journal.write(wire, lease, call, after, slot, again=again))

    def leave(self, lease: Lease, *, status: str | None, reason: str | None) -> None:
        self._write(lambda wire, again: running.leave(wire, lease, status, reason, again=again))

    def settle(self, session: str, branch: str, *, before: Journaled, after: CallRow) -> None:
        def settle(wire: Wire, again: bool) -> None:  # noqa: FBT001 - called by the pool
            with wire.writing():
                sid, _ = writes.lock_session(wire, session)
                running.settle(wire, sid, branch, before, after, again=again)

        self._write(settle)

    def abandon(self, session: str, branch: str, *, reason: str) -> int:
        given_up = 0

        def abandon(wire: Wire, _again: bool) -> int:  # noqa: FBT001 - called by the pool
            nonlocal given_up
            with wire.writing():
                sid, _ = writes.lock_session(wire, session)
                # A try whose answer was lost has left nothing to give up; what it counted is remembered.
                given_up = running.abandon(wire, session, sid, branch, reason) or given_up
            return given_up

        return self._write(abandon)

    def pending(self, session: str, branch: str) -> Pending:
        return self._read_moment(lambda wire: running.pending(wire, session, branch))

    def calls(self, session: str, id_: str) -> Sequence[Journaled]:
        return self._read_moment(lambda wire: running.calls(wire, session, id_))

    def runs(self, session: str) -> Sequence[RunRow]:
        return self._read(lambda wire: running.runs(wire, session))

    def entries(self, session: str) -> Sequence[Journaled]:
        return self._read_moment(lambda wire: journal.entries(wire, session))

    def crashed(self) -> Sequence[tuple[SessionRow, RunRow]]:
        return self._read(running.crashed)

    def wait(self, seconds: float) -> None:
        self._listener.wait(seconds)

    # reads

    def find_session(self, session: str) -> SessionRow | None:
        return self._read(lambda wire: reads.find_session(wire, session))

    def sessions(
        self, *, before: int | None, limit: int, status: str | None, agent: str | None
    ) -> Sequence[SessionRow]:
        return self._read(lambda wire: reads.sessions(wire, before, limit, status, agent))

    def names(self, session: str) -> Names:
        return self._read(lambda wire: reads.names(wire, session))

    def find_branch(self, session: str, branch: str) -> BranchRow | None:
        return self._read(lambda wire: reads.find_branch(wire, session, branch))

    def find_row(self, session: str, id_: str) -> Row | None:
        return self._read(lambda wire: reads.find_row(wire, session, id_))

    def find_ids(self, session: str, prefix: str, *, limit: int) -> Sequence[str]:
        return self._read(lambda wire: reads.find_ids(wire, session, prefix, limit))

    def line(self, session: str, id_: str, *, limit: int) -> Sequence[Row]:
        return self._read(lambda wire: reads.line(wire, session, id_, limit))

    def chain(self, session: str, id_: str, *, salvage: bool = False) -> Chain:
        return self._read(lambda wire: chains.chain(wire, session, id_, salvage=salvage))

    def children(self, session: str, id_: str) -> Sequence[str]:
        return self._read(lambda wire: reads.children(wire, session, id_))

    def ids(self, session: str) -> Sequence[str]:
        return self._read(lambda wire: reads.ids(wire, session))

    def history(self, session: str, *, after: int, limit: int) -> Sequence[Kept]:
        return self._read(lambda wire: moving.history(wire, session, after, limit))

    def blobs(self, digests: Collection[bytes], *, salvage: bool = False) -> Mapping[bytes, bytes]:
        return self._read(lambda wire: reads.blobs(wire, digests, salvage=salvage))

    # upkeep

    def sizes(self) -> Sizes:
        return self._read(reads.sizes)

    def check(self) -> Iterator[Problem]:
        yield from self._read(upkeep.check)

    def compact(self) -> None:
        self._pool.run(lambda wire, _: upkeep.compact(wire), "compacting the store")

    def repair(self) -> Sequence[str]:
        return self._write(lambda wire, _: upkeep.repair(wire))

    def close(self) -> None:
        if not self._pool.foreign:
            self._listener.close()
            self._pool.close()

    def _write(self, job: Job[T]) -> T:
        return self._pool.run(job, "writing to the store")

    def _read(self, job: Callable[[Wire], T]) -> T:
        return self._pool.run(lambda wire, _: job(wire), "reading the store")

    def _read_moment(self, job: Callable[[Wire], T]) -> T:
        def read(wire: Wire) -> T:
            with wire.reading():
                return job(wire)

        return self._read(read)


_open_backends: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


def _abandon_all() -> None:
    for backend in list(_open_backends):
        backend._pool.abandon()  # noqa: SLF001
        backend._listener.abandon()  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
