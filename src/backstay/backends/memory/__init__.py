"""The memory backend: rows in dicts, gone with the process. One lock; a rule decides while it is held."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from backstay.errors import ClosedError
from backstay.model import Problem
from backstay.port import (
    LOOK_S,
    Ask,
    Batch,
    BlobsAbsentError,
    CheckpointRow,
    Decide,
    FoundLane,
    Key,
    Kind,
    LaneQuery,
    LaneRow,
    Records,
    Row,
    SessionQuery,
    SessionRow,
    Sizes,
    Unreadable,
    View,
    decided,
    live_lanes,
)
from backstay.port.lease import clock_us
from backstay.port.rows import key_of, kind_of, marks_of
from backstay.port.tables import Tables


class MemoryBackend:
    """See the module's text."""

    name = "memory"

    def __init__(self) -> None:
        self._tables: dict[tuple[bool, str], Tables] = {}  # by hidden and id
        self._blobs: dict[bytes, bytes] = {}
        self._uses: Counter[bytes] = Counter()
        self._last = 0
        self._changes = 0
        self._news = threading.Condition(threading.RLock())
        self._closed = False
        self._pid = os.getpid()

    # one session

    def read(self, ask: Ask) -> View:
        with self._lock():
            return self._view(ask)

    def write(self, ask: Ask, decide: Decide) -> View:
        with self._lock():
            view, batch = decided(self._view, ask, decide)
            if batch.puts or batch.drops:
                self._apply(ask, batch)
            return view

    def _view(self, ask: Ask) -> View:
        view = View(now_us=clock_us(), wall_us=time.time_ns() // 1000, fresh=self._last + 1)
        tables = self._tables.get((ask.hidden, ask.session))
        if tables is not None:
            tables.fill(view, ask)
        beside = None if ask.beside is None else self._tables.get((False, ask.beside))
        view.beside = None if beside is None else beside.session
        return view

    def _apply(self, ask: Ask, batch: Batch) -> None:
        place = ask.hidden, ask.session
        tables = self._tables.get(place)
        refs = {ref for row in batch.puts for ref in getattr(row, "refs", None) or ()}
        absent = refs - self._blobs.keys() - batch.blobs.keys()
        if absent:
            raise BlobsAbsentError(absent)
        for digest in refs & batch.blobs.keys():
            self._blobs.setdefault(digest, batch.blobs[digest])
        released: list[bytes] = []  # only once all is put: a row may let go of what the next one refers to
        for row in sorted(batch.puts, key=lambda row: not isinstance(row, SessionRow)):
            if isinstance(row, SessionRow):
                tables = self._tables.pop(place, None) or Tables(row)
                place = row.hidden, row.id
                self._tables[place] = tables
                self._last = max(self._last, row.touched)
            if tables is not None:
                at = kind_of(row), key_of(row)
                released += tables.refs.get(at, ())
                tables.put(row)
                self._uses.update(tables.refs.get(at, ()))
        for kind, key in batch.drops:
            released += self._drop(place, kind, key)
        self._release(released)
        if not batch.lazy:
            self._changes += 1
            self._news.notify_all()

    def _release(self, refs: Sequence[bytes]) -> None:
        for ref in refs:
            self._uses[ref] -= 1
            if self._uses[ref] <= 0:
                del self._uses[ref]
                self._blobs.pop(ref, None)

    def _drop(self, place: tuple[bool, str], kind: Kind, key: Key) -> list[bytes]:
        """Forget rows. The blobs that they referred to."""
        tables = self._tables.get(place)
        if tables is None:
            return []
        if kind is Kind.SESSION:
            del self._tables[place]
            return [ref for refs in tables.refs.values() for ref in refs]
        gone = tables.refs.get((kind, key), ())
        tables.drop(kind, key)
        return list(gone)

    def state(self, session: str, ref: str | int, *, salvage: bool = False, without: Collection[int] = ()) -> Records:
        with self._lock():
            tables = self._tables.get((False, session))
            if tables is None:
                return Records(None)
            records = tables.state(ref, salvage=salvage, without=without)
            blobs = {ref: self._blobs[ref] for ref in tables.refs_of(records) if ref in self._blobs}
            return Records(records.session, records.lane, records.rows, records.keyframe, blobs)

    def ancestors(self, session: str, sequence: int, *, limit: int) -> Sequence[CheckpointRow | Unreadable]:
        with self._lock():
            tables = self._tables.get((False, session))
            return [] if tables is None else tables.ancestors(sequence, limit)

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
        with self._lock():
            tables = self._tables.get((hidden, session))
            return [] if tables is None else tables.scan(kind, after=after, before=before, limit=limit)

    # many sessions

    def sessions(self, query: SessionQuery) -> Sequence[SessionRow]:
        with self._lock():
            found = [tables.session for tables in self._tables.values() if tables.matches(query)]
        found.sort(key=lambda row: -row.touched)
        return found[: query.limit]

    def lanes(self, query: LaneQuery) -> Sequence[FoundLane]:
        now_us, wall_us = clock_us(), time.time_ns() // 1000
        with self._lock():
            found = [
                FoundLane(tables.session, lane, lane.name in live_lanes([lane], now_us=now_us, wall_us=wall_us))
                for tables in self._tables.values()
                if not tables.session.hidden
                for lane in tables.names.values()
                if isinstance(lane, LaneRow) and marks_of(lane) & query.marks
            ]
        return sorted(found, key=lambda pair: (-pair.session.touched, pair.lane.name))

    # blobs

    def absent(self, digests: Collection[bytes]) -> Collection[bytes]:
        with self._lock():
            return [digest for digest in digests if digest not in self._blobs]

    def put_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        with self._lock():
            for digest, data in blobs.items():
                self._blobs.setdefault(digest, data)

    def blobs(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        with self._lock():
            return {digest: self._blobs[digest] for digest in digests if digest in self._blobs}

    # news

    def changes(self) -> int:
        with self._lock():
            return self._changes

    def wait(self, seconds: float, *, since: int) -> None:
        with self._lock():
            self._news.wait_for(lambda: self._closed or self._changes != since, max(0.0, min(seconds, LOOK_S)))

    # upkeep

    def sizes(self) -> Sizes:
        with self._lock():
            lines = [tables.session for tables in self._tables.values() if not tables.session.hidden]
            rows = [row for tables in self._tables.values() for row in tables.rows()]
            stored = sum(map(len, self._blobs.values())) + sum([_weight(row) for row in rows])
        checkpoints, logical = sum([row.checkpoints for row in lines]), sum([row.logical_bytes for row in lines])
        return Sizes(len(lines), checkpoints, logical, stored)

    def check(self) -> Iterator[Problem]:
        with self._lock():
            return iter(())

    def tend(self, *, repair: bool = False) -> Sequence[str]:  # noqa: ARG002 - nothing here can be out of order
        with self._lock():
            orphans = [digest for digest in self._blobs if not self._uses[digest]]
            for digest in orphans:
                del self._blobs[digest]
        return []

    def close(self) -> None:
        if self._pid == os.getpid():
            with self._news:
                self._closed = True
                self._news.notify_all()

    def _lock(self) -> threading.Condition:
        if self._pid != os.getpid():
            raise ClosedError("this store was opened by the parent process", hint="open it again in this process")
        if self._closed:
            raise ClosedError("the store is closed", hint="open it again")
        return self._news


def _weight(row: Row) -> int:
    """Roughly what a row takes."""
    if isinstance(row, CheckpointRow):
        return len(row.delta) + len(row.fields) + 200
    return len(getattr(row, "data", b"")) + len(getattr(row, "result", None) or b"") + 100
