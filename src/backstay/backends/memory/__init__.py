"""The memory backend: rows in dicts, gone with the process. One lock; a rule decides while it is held.

An interrupt may come between any two lines. So a batch is put in place by steps that can be taken again: those that an
interrupt cut short are taken from the first one on, and the interrupt is raised when the batch is whole. The lock is a
plain one because `with` cannot be interrupted between taking it and entering the block.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from backstay.codec import is_held
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
    SegmentRow,
    SessionQuery,
    SessionRow,
    Sizes,
    Unreadable,
    View,
    decided,
    live_lanes,
)
from backstay.port.lease import clock_us
from backstay.port.row_codec import are_wanted, marks_of
from backstay.port.rows import key_of, kind_of
from backstay.port.tables import Tables
from backstay.sealing import is_cut

Place = tuple[bool, str]  # hidden, and the session's id
User = tuple[Tables, Kind, Key]  # a row that refers to a blob


class MemoryBackend:
    """See the module's text."""

    name = "memory"
    packs = True

    def __init__(self) -> None:
        self._tables: dict[Place, Tables] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._uses: dict[bytes, set[User]] = {}
        self._last = 0
        self._changes = 0
        self._mutex = threading.Lock()
        self._waiting: list[threading.Event] = []
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
        line = next((row for row in batch.puts if isinstance(row, SessionRow)), None)
        tables = self._tables.get(place) or (None if line is None else Tables(line))
        if tables is None:
            return
        needed = {ref for row in batch.puts for ref in getattr(row, "refs", None) or ()}
        absent = needed - self._blobs.keys() - batch.blobs.keys()
        absent |= {digest for digest in batch.whole if digest not in batch.blobs and not self._is_whole(digest)}
        if absent:
            raise BlobsAbsentError(absent)
        released = [(at, tables.refs.get(at, ())) for at in _let_go(tables, batch)]
        changes = self._changes + (not batch.lazy)
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                self._install(place, tables, batch, released)
                self._changes = changes
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if not batch.lazy:
            self._wake()
        if interrupt is not None:
            raise interrupt

    def _install(
        self, place: Place, tables: Tables, batch: Batch, released: list[tuple[tuple[Kind, Key], tuple[bytes, ...]]]
    ) -> None:
        """Every step may be taken again. A blob goes last: a row may let go of what the next one refers to."""
        for row in sorted(batch.puts, key=lambda row: not isinstance(row, SessionRow)):
            if isinstance(row, SessionRow):
                self._tables.pop(place, None)
                place = row.hidden, row.id
                self._tables[place] = tables
                self._last = max(self._last, row.touched)
            tables.put(row)
        for kind, key in batch.drops:
            if kind is Kind.SESSION:
                self._tables.pop(place, None)
            else:
                tables.drop(kind, key)
        for at, refs in released:
            for ref in refs:
                self._uses.get(ref, set()).discard((tables, *at))
        for row in batch.puts if place in self._tables else ():
            at = kind_of(row), key_of(row)
            for ref in tables.refs.get(at, ()):
                self._uses.setdefault(ref, set()).add((tables, *at))
                if ref in batch.blobs:
                    self._keep_blob(ref, batch.blobs[ref])
        for ref in {ref for _, refs in released for ref in refs}:
            if not self._uses.get(ref):
                self._uses.pop(ref, None)
                self._blobs.pop(ref, None)
        self._blobs |= {digest: data for digest, data in batch.cuts.items() if digest in self._blobs}

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
                if isinstance(lane, LaneRow) and are_wanted(marks_of(lane), query, wall_us)
            ]
        return sorted(found, key=lambda pair: (-pair.session.touched, pair.lane.name))

    # blobs

    def absent(self, digests: Collection[bytes]) -> Collection[bytes]:
        with self._lock():
            return [digest for digest in digests if not self._is_whole(digest)]

    def put_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        with self._lock():
            for digest, data in blobs.items():
                self._keep_blob(digest, data)

    def _is_whole(self, digest: bytes) -> bool:
        return digest in self._blobs and not is_cut(digest, self._blobs[digest])

    def _keep_blob(self, digest: bytes, data: bytes) -> None:
        if digest not in self._blobs or (is_cut(digest, self._blobs[digest]) and not is_cut(digest, data)):
            self._blobs[digest] = data

    def blobs(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        with self._lock():
            return {digest: self._blobs[digest] for digest in digests if digest in self._blobs}

    # news

    def changes(self) -> int:
        with self._lock():
            return self._changes

    def wait(self, seconds: float, *, since: int) -> None:
        news = threading.Event()
        with self._lock():
            if self._changes != since:
                return
            self._waiting.append(news)
        news.wait(max(0.0, min(seconds, LOOK_S)))
        with self._mutex:
            self._waiting = [event for event in self._waiting if event is not news]

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    # upkeep

    def sizes(self) -> Sizes:
        with self._lock():
            lines = [tables.session for tables in self._tables.values() if not tables.session.hidden]
            rows = [row for tables in self._tables.values() for row in tables.rows()]
            stored = sum(map(len, self._blobs.values())) + sum([_weight(row) for row in rows])
            held = sum([len(data) for digest, data in self._blobs.items() if is_held(digest)])
        checkpoints, logical = sum([row.checkpoints for row in lines]), sum([row.logical_bytes for row in lines])
        return Sizes(len(lines), checkpoints, logical, stored, held)

    def check(self) -> Iterator[Problem]:
        with self._lock():
            return iter(())

    def tend(self, *, repair: bool = False) -> Sequence[str]:  # noqa: ARG002 - nothing here can be out of order
        with self._lock():
            orphans = [digest for digest in self._blobs if not self._uses.get(digest)]
            for digest in orphans:
                del self._blobs[digest]
        return []

    def close(self) -> None:
        if self._pid == os.getpid():
            with self._mutex:
                self._closed = True
                self._wake()

    def _lock(self) -> threading.Lock:
        if self._pid != os.getpid():
            raise ClosedError("this store was opened by the parent process", hint="open it again in this process")
        if self._closed:
            raise ClosedError("the store is closed", hint="open it again")
        return self._mutex


def _let_go(tables: Tables, batch: Batch) -> list[tuple[Kind, Key]]:
    """The rows whose references a batch replaces or drops."""
    if any([kind is Kind.SESSION for kind, _ in batch.drops]):
        return list(tables.refs)
    replaced = [place for row in batch.puts if isinstance(row, SegmentRow) for place in tables.replaced(row)]
    return [*replaced, *[(kind_of(row), key_of(row)) for row in batch.puts], *batch.drops]


def _weight(row: Row) -> int:
    """Roughly what a row takes."""
    if isinstance(row, CheckpointRow):
        return len(row.delta) + len(row.fields) + 200
    if isinstance(row, SegmentRow):
        return len(row.body) + len(row.links) + 100
    return len(getattr(row, "data", b"")) + len(getattr(row, "result", None) or b"") + 100
