"""How many bytes a deletion would give back, before anything is deleted; and how many a session takes.

Rows are weighed as they are kept. A checkpoint that stays but whose parent goes is written again, so what it will weigh
is taken off. A large value counts once, and only if nothing that stays refers to it. Sessions that are not looked at
may hold the same value: the weight is then what goes at most.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Collection, Iterable

from backstay.errors import CorruptionError
from backstay.port import Backend, CallRow, CheckpointRow, KeyframeRow, Kind, Row, SessionQuery, SessionRow, Unreadable
from backstay.sealing import refs_in, spilled, unspill
from backstay.upkeep.deletion import rewrite
from backstay.upkeep.pages import pages, weigh

_BLOBS_AT_ONCE = 16
_PAGE_ROWS = 1000
_KINDS = (Kind.CHECKPOINT, Kind.KEYFRAME, Kind.CALL)


class Weighing:
    """Adds up what goes, of any number of sessions; `total_bytes` then looks up the large values."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._rows_bytes = 0
        self._going: set[bytes] = set()
        self._staying: set[bytes] = set()
        self._kept: list[str] = []

    def add_session(self, session: str) -> None:
        """A whole session goes."""
        for kind in _KINDS:
            for page in pages(self._backend, session, kind):
                self._drop(page)

    def keep_session(self, session: str) -> None:
        """A session stays, and with it every large value that it refers to; read only if one is in question."""
        self._kept.append(session)

    def add_checkpoints(self, session: str, gone: Collection[int]) -> None:
        """These checkpoints of a session go, by their sequences; its others stay."""
        parents: dict[int, int | None] = {}
        journals: set[tuple[int, int]] = set()
        again: dict[int, int] = {}  # checkpoints that are written again, and what they weigh now
        for page in pages(self._backend, session, Kind.CHECKPOINT):
            for row in page:
                if not isinstance(row, CheckpointRow):
                    continue
                parents[row.sequence] = row.parent
                if row.sequence in gone:
                    self._drop([row])
                    journals |= {(row.took.run, row.took.journal)} if row.took and row.took.left is None else set()
                elif row.parent in gone and not row.keyframe:
                    again[row.sequence] = len(row.delta)
                else:
                    self._keep([row])
        for page in pages(self._backend, session, Kind.KEYFRAME):
            frames = [row for row in page if isinstance(row, KeyframeRow)]
            self._drop([row for row in frames if row.sequence in gone])
            self._keep([row for row in frames if row.sequence not in gone])
        for page in pages(self._backend, session, Kind.CALL) if journals else ():
            self._drop([row for row in page if isinstance(row, CallRow) and (row.run, row.journal) in journals])
        for child, before in again.items():
            anchor = parents[child]
            while anchor is not None and anchor in gone:
                anchor = parents[anchor]
            with contextlib.suppress(CorruptionError):  # the deletion itself will say so
                blobs: dict[bytes, bytes] = {}
                made = rewrite(self._backend, session, child, anchor, blobs)
                new = sum([len(blobs[digest]) for digest in self._backend.absent(list(blobs))])
                self._rows_bytes += before - len(made.delta) - len(made.keyframe or b"") - new
                self._staying.update(made.refs, made.keyframe_refs)

    @property
    def total_bytes(self) -> int:
        """All that goes, large values among them."""
        for session in self._kept if self._going - self._staying else ():
            for kind in (Kind.CHECKPOINT, Kind.KEYFRAME):
                for page in pages(self._backend, session, kind):
                    self._keep(page)
        wanted = sorted(self._going - self._staying)
        total = self._rows_bytes
        for at in range(0, len(wanted), _BLOBS_AT_ONCE):
            total += sum([len(data) for data in self._backend.blobs(wanted[at : at + _BLOBS_AT_ONCE]).values()])
        return max(0, total)

    def _drop(self, rows: Iterable[Row | Unreadable]) -> None:
        for row in rows:
            self._rows_bytes += weigh(row)
            self._going.update(self._refs(row))

    def _keep(self, rows: Iterable[Row | Unreadable]) -> None:
        for row in rows:
            self._staying.update(self._refs(row))

    def _refs(self, row: Row | Unreadable) -> tuple[bytes, ...]:
        data = row.delta if isinstance(row, CheckpointRow) else row.data if isinstance(row, KeyframeRow) else b""
        if not data:
            return ()
        parts = spilled(data)
        blobs = self._backend.blobs(parts) if parts else {}
        return (*parts, *refs_in(unspill(data, blobs))) if len(blobs) == len(set(parts)) else parts


def largest(backend: Backend, top: int) -> list[SessionRow]:
    """The sessions that would take the most as plain copies, the largest first; no state is read."""
    rows: list[SessionRow] = []
    before: int | None = None
    while page := backend.sessions(SessionQuery(before=before, limit=_PAGE_ROWS)):
        rows = heapq.nlargest(top, [*rows, *page], key=lambda row: row.logical_bytes)
        before = page[-1].touched
    return rows


def session_bytes(backend: Backend, session: str) -> int:
    """What a session takes: its rows, and each large value that it refers to once."""
    weighing = Weighing(backend)
    weighing.add_session(session)
    return weighing.total_bytes
