"""The files backend: a folder to read with your eyes, one journal of JSON lines per session.

`folder` says what lies where and `lines` what stands there; a `journal` is read into an `index` of rows, which the
`catalogue` keeps while they are used; `group_commit` writes. Reads take no lock: another process's line that is not yet
synced may be read, half a line never is. After a fork the child may not use what it inherited.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from backstay.backends.files import upkeep
from backstay.backends.files.blobs import BlobFolder
from backstay.backends.files.catalogue import Catalogue, Summary
from backstay.backends.files.disk import NONSENSE, Disk, translated
from backstay.backends.files.folder import Count, Folder
from backstay.backends.files.group_commit import JournalWriter
from backstay.backends.files.index import Rows
from backstay.errors import BackstayError, ClosedError, CorruptionError
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
    LaneRow,
    Records,
    Row,
    SessionQuery,
    SessionRow,
    Sizes,
    Unreadable,
    View,
    live_lanes,
)
from backstay.port.lease import clock_us
from backstay.port.row_codec import are_wanted
from backstay.port.rows import ENTERED
from backstay.port.tables import is_wanted

_POLL_S = 0.01
_BLOBS_AT_ONCE = 64
T = TypeVar("T")


class FilesBackend:
    """See the module's text. `disk` is the seam for fault injection."""

    name = "files"
    packs = False

    def __init__(self, path: Path, *, durability: str = "full", disk: Disk | None = None) -> None:
        self.path = path
        self._pid = os.getpid()
        self._closed = False
        self._folder = Folder(path, disk or Disk(), durable=durability == "full")
        self._blobs = BlobFolder(self._folder)
        self._catalogue = Catalogue(self._folder)
        self._writer = JournalWriter(self._folder, self._blobs, self._catalogue, self._look, self._refuse_use)

    # one session

    def read(self, ask: Ask) -> View:
        return self._reading(f"reading session {ask.session!r}", lambda: self._view(ask))

    def write(self, ask: Ask, decide: Decide) -> View:
        self._refuse_use()
        return self._writer.write(ask, decide)

    def state(self, session: str, ref: str | int, *, salvage: bool = False, without: Collection[int] = ()) -> Records:
        def find(rows: Rows) -> Records:
            records = rows.state(ref, salvage=salvage, without=without)
            return msgspec.structs.replace(records, blobs=self._contents(rows.refs_of(records)))

        return self._about(session, find, Records(None))

    def ancestors(self, session: str, sequence: int, *, limit: int) -> Sequence[CheckpointRow | Unreadable]:
        return self._about(session, lambda rows: rows.ancestors(sequence, limit), [])

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
        def find(rows: Rows) -> Sequence[Row | Unreadable]:
            return rows.scan(kind, after=after, before=before, limit=limit)

        return self._about(session, find, [], hidden=hidden)

    # many sessions

    def sessions(self, query: SessionQuery) -> Sequence[SessionRow]:
        def find() -> list[SessionRow]:
            found = ((name, one) for name, one in self._catalogue.summaries().items() if is_wanted(one.row, query))
            if query.foreign is not None:
                found = ((name, one) for name, one in list(found) if self._has(name, one, query))
            return [one.row for _, one in islice(found, query.limit)]

        return self._reading("listing the sessions", find)

    def _has(self, name: str, found: Summary, query: SessionQuery) -> bool:
        with contextlib.suppress(BackstayError):  # one that is damaged is in lists, but nothing is found in it
            journal = self._catalogue.journal(name) if found.foreign else None
            ids = {} if journal is None else journal.rows.foreign
            foreign = str(query.foreign)
            return foreign in ids or (query.foreign_start and any([id_.startswith(foreign) for id_ in ids]))
        return False

    def lanes(self, query: LaneQuery) -> Sequence[FoundLane]:
        def find() -> list[FoundLane]:
            wall_us = time.time_ns() // 1000
            marked = [
                (name, one)
                for name, one in self._catalogue.summaries().items()
                if are_wanted(one.marks, query, wall_us) or (one.damaged and not one.row.hidden)
            ]
            found = [lane for name, one in marked for lane in self._marked(name, one, query, wall_us)]
            return sorted(found, key=lambda lane: (-lane.session.touched, lane.lane.name))

        return self._reading("listing the branches", find)

    def _marked(self, name: str, summary: Summary, query: LaneQuery, wall_us: int) -> list[FoundLane]:
        try:
            journal = self._catalogue.journal(name)
        except CorruptionError:
            journal = None
        if journal is None:
            return _unknown_lanes(summary.row, query) if summary.damaged else []
        if journal.rows.session.hidden:
            return []
        journal.renew(-1)
        rows = journal.rows
        known = rows.knows_names()
        unsure = () if known else rows.unsure_names()
        marked = [name for name, marks in rows.marked.items() if are_wanted(marks, query, wall_us)]
        found = [rows.names.get(name) for name in marked if name not in unsure]
        lanes = [row for row in found if isinstance(row, LaneRow)]
        if not known and not lanes:
            return _unknown_lanes(summary.row, query)
        live = live_lanes(lanes, now_us=clock_us(), wall_us=wall_us)
        return [FoundLane(rows.session, lane, lane.name in live) for lane in lanes]

    # blobs

    def absent(self, digests: Collection[bytes]) -> Collection[bytes]:
        return self._reading("looking for blobs", lambda: [one for one in digests if not self._blobs.is_whole(one)])

    def put_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        self._refuse_use()
        with translated("writing blobs"):
            self._writer.alone(lambda: self._blobs.put(blobs))

    def blobs(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        return self._reading("reading blobs", lambda: self._contents(digests))

    def _contents(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        found = {digest: self._blobs.read(digest) for digest in digests}
        return {digest: contents for digest, contents in found.items() if contents is not None}

    # news

    def changes(self) -> int:
        count = self._reading("looking for changes", self._folder.count)
        return 0 if count is None else count.changes // 2

    def wait(self, seconds: float, *, since: int) -> None:
        deadline = time.monotonic() + max(0.0, min(seconds, LOOK_S))
        while self.changes() == since and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _POLL_S))

    # upkeep

    def sizes(self) -> Sizes:
        def find() -> Sizes:
            rows = [found.row for found in self._catalogue.summaries().values() if not found.row.hidden]
            checkpoints, logical = sum([row.checkpoints for row in rows]), sum([row.logical_bytes for row in rows])
            blobs, held = self._blobs.stored_bytes()
            return Sizes(len(rows), checkpoints, logical, upkeep.stored_bytes(self._folder) + blobs, held)

        return self._reading("measuring the store", find)

    def check(self) -> Iterator[Problem]:
        self._refuse_use()
        with translated("checking the store"):
            yield from upkeep.check(self._folder)

    def tend(self, *, repair: bool = False) -> Sequence[str]:
        self._refuse_use()
        done: list[str] = []
        with translated("tending the store"):
            for name in self._folder.journals():  # one at a time, so that others can write in between
                self._writer.alone(partial(self._tend, name, done, repair=repair))
            self._folder.discard_old()
            orphans = upkeep.orphans(self._folder, self._blobs)
            for at in range(0, len(orphans), _BLOBS_AT_ONCE):
                self._writer.alone(partial(self._writer.free, orphans[at : at + _BLOBS_AT_ONCE]))
            gone = len(orphans) - len([digest for digest in orphans if self._blobs.has(digest)])
        return [*done, f"removed blobs that no row needs: {gone:,}"] if gone else done

    def _tend(self, name: str, done: list[str], *, repair: bool) -> None:
        with self._catalogue.lock:
            done += upkeep.tend(self._folder, self._blobs, name, lambda: self._changes(name), repair=repair)

    def _changes(self, name: str) -> None:
        """A journal is about to be changed by other means than `write`."""
        self._writer.announce(name)
        self._catalogue.forget(name)

    def close(self) -> None:
        if self._pid != os.getpid() or self._closed:
            return
        if self._writer.wrote:  # a tidy end is a courtesy: what is not tidied is only longer than it need be
            with contextlib.suppress(OSError, BackstayError):
                self._writer.alone(self._tidy)
        self._closed = True  # whoever writes now finishes first
        self._writer.wait()
        with self._catalogue.lock:
            for name in self._catalogue.open_names():
                self._catalogue.forget(name)
            self._folder.close()

    def _tidy(self) -> None:
        with self._catalogue.lock:
            for name in self._catalogue.open_names():
                journal = self._catalogue.journal(name)
                if journal is not None and journal.writable and journal.has_room:
                    self._writer.announce(name)
                    journal.trim()

    # how verbs get at what they need

    def _refuse_use(self) -> None:
        if self._pid != os.getpid():  # before any lock: in a forked child nobody may be left to release it
            raise ClosedError("this store was opened by the parent process", hint="open it again in this process")
        if self._closed:
            raise ClosedError("the store is closed", hint="open it again")

    def _reading(self, doing: str, find: Callable[[], T]) -> T:
        self._refuse_use()
        with self._catalogue.lock, translated(doing):
            self._refuse_use()
            self._folder.check_meta(writing=False)
            return find()

    def _about(self, session: str, find: Callable[[Rows], T], none: T, *, hidden: bool = False) -> T:
        def look() -> T:
            journal = self._catalogue.of(session, hidden=hidden)
            if journal is None:
                return none
            journal.rows.known_session()
            try:
                return find(journal.rows)
            finally:
                journal.forget_recent()

        return self._reading(f"reading session {session!r}", look)

    def _look(self, ask: Ask) -> View:
        """What a rule decides on; the rule's own errors are its own."""
        try:
            return self._view(ask)
        except NONSENSE:
            with translated(f"reading session {ask.session!r}"):
                raise

    def _view(self, ask: Ask) -> View:
        count = self._catalogue.count
        if count is None:
            count = self._folder.first(self._folder.count() or Count())
        view = View(now_us=clock_us(), wall_us=time.time_ns() // 1000, fresh=count.last + 1)
        journal = self._catalogue.of(ask.session, hidden=ask.hidden)
        if journal is not None:
            journal.renew(count.renewals)
            journal.rows.fill(view, ask)
            journal.forget_recent()
        beside = None if ask.beside is None else self._catalogue.of(ask.beside)
        view.beside = None if beside is None else beside.rows.known_session()
        return view


def _unknown_lanes(session: SessionRow, query: LaneQuery) -> list[FoundLane]:
    """Stands in a list for branches that cannot be read: whether a run crashed there is not known, and is said."""
    lane = LaneRow("main", status="halted", reason="damaged", entered=True)
    return [FoundLane(session, lane, live=False)] if query.marks & ENTERED else []
