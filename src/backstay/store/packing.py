"""Packing older history: the second write of a commit, once in a while, when its own is durable.

A commit that finds 32 checkpoints with rows of their own packs them into a segment, in its caller's thread: there is no
thread of its own and nothing owed at exit. Three short segments before them are merged with them. If packing fails the
commit has still succeeded, and the next one tries again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from backstay.errors import BackstayError, CorruptionError
from backstay.port import Backend, CheckpointRow, Kind, SegmentRow, SessionRow
from backstay.port.segment_packing import pack_segment, portions, weigh_entry
from backstay.port.segments import MAX_BYTES, MAX_ENTRIES, Segment, open_segment
from backstay.rules.packing import Packing, pack
from backstay.sealing import delta_refs, spilled

PACK_ROWS = 32
MERGED = 3  # short segments that wait for the next one
_PAUSE = 8  # commits until packing is tried again where it cannot be done
HOT_BYTES = 16 * 1024  # of a delta: a Session keeps its last ones until they are packed, if they are not long

_at_work: set[tuple[int, str]] = set()  # sessions that a thread of this process is packing, by their backends
_lock = threading.Lock()


class Short(msgspec.Struct, frozen=True, gc=False):
    """A segment that is to be merged with the next ones, and about what it weighs."""

    kept: SegmentRow
    weight: int


class Hot(msgspec.Struct, frozen=True, gc=False):
    """The rows to be packed as a History committed them, so that they need not be read.

    With `touched`, no other write came between these commits, and as long as the session's line has that number none
    has come since: the rows need not be compared either. `short` are then the segments that wait before them, if known.
    """

    rows: tuple[CheckpointRow, ...]
    touched: int | None = None
    short: tuple[Short, ...] | None = None


class Packer:
    """Packs one session, after commits of one History.

    `hot` has its last commits: the row, and the `touched` of the session's line before and after, if that is sure.
    """

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session
        self._from = 0
        self.hot: deque[tuple[CheckpointRow, int | None, int | None]] = deque(maxlen=PACK_ROWS)
        self._left: int | None = 0  # `touched` when it packed last
        self._short: tuple[Short, ...] | None = ()

    def committed(self, sequence: int, before: SessionRow) -> None:
        """A checkpoint was committed, and many are not packed; `before` is the session's line as it was before that."""
        if sequence < self._from or not self._backend.packs:
            return
        commits = tuple(self.hot)  # in one go: threads may share a Session
        self.hot.clear()
        rows, left = tuple([row for row, _, _ in commits]), None
        hot = None
        if [row.sequence for row in rows] == [*range(before.packed + 1, before.packed + 1 + PACK_ROWS)]:
            hot = Hot(rows)
            # Each found what the one before it had left: then no other write came between.
            if all([one[2] == other[1] for one, other in pairwise(commits)]):
                left = commits[-1][2]
                hot = Hot(rows, left, self._short if commits[0][1] == self._left else None)
        self._left = left
        most = PACK_ROWS, MERGED
        done, self._short = _pack(self._backend, self._session, before.uid, before.packed, most, hot)
        self._from = sequence + min(_PAUSE, PACK_ROWS) if done else 0


def pack_older(
    backend: Backend, session: str, *, uid: bytes, packed: int, rows: int | None = None, merged: int | None = None
) -> bool:
    """Pack the oldest checkpoints that are not packed; False if that is to be tried again by the next commit.

    `rows` at a time, with `merged` short segments before them.
    """
    most = PACK_ROWS if rows is None else rows, MERGED if merged is None else merged
    return _pack(backend, session, uid, packed, most, None)[0]


def _pack(
    backend: Backend, session: str, uid: bytes, packed: int, most: tuple[int, int], hot: Hot | None
) -> tuple[bool, tuple[Short, ...] | None]:
    """As `pack_older`, and the short segments that wait then, if that is known."""
    mark = id(backend), session
    with _lock:
        if mark in _at_work:
            return True, None
        _at_work.add(mark)
    try:
        found = _plan(backend, session, uid, packed, most, hot)
        if found is None:
            return True, None
        packing, short = found
        done = bool(backend.write(packing.ask, pack(packing)).answer)
    except CorruptionError:
        return True, None  # what is damaged stays where it is: `verify` finds it there
    except BackstayError:
        return False, None
    else:
        return done, short if done else None
    finally:
        with _lock:
            _at_work.discard(mark)


def _plan(
    backend: Backend, session: str, uid: bytes, packed: int, most: tuple[int, int], hot: Hot | None
) -> tuple[Packing, tuple[Short, ...] | None] | None:
    """What to pack, and which short segments wait when it is done; None if nothing can be."""
    page = backend.scan(session, Kind.CHECKPOINT, after=packed, limit=most[0]) if hot is None else hot.rows
    rows = [row for row in page if isinstance(row, CheckpointRow)]
    if not rows or len(rows) < len(page):
        return None
    sealed = set[int]() if hot is None else {row.sequence for row in rows}
    weight = sum(map(weigh_entry, rows))
    short = None if hot is None else hot.short
    if short is None:
        short = _short(backend, session, uid, packed, most[1]) if packed and most[1] else ()
    merged: list[Segment] = []
    if len(short) >= max(1, most[1]) or sum([one.weight for one in short]) + weight > MAX_BYTES:
        merged = [open_segment(one.kept, uid=uid) for one in short]
    older: list[CheckpointRow] = []
    for segment in merged:
        for row in segment.rows(delta=True, refs=True):
            if not isinstance(row, CheckpointRow):
                return None
            older.append(row)
        sealed |= segment.sealed
    known = with_refs(backend, rows) if hot is None else rows
    segments = [pack_segment(portion, uid=uid, sealed=sealed) for portion in portions([*older, *known])]
    read = rows if hot is None else [msgspec.structs.replace(row, refs=None) for row in rows]
    kept = tuple([segment.kept for segment in merged])
    touched = None if hot is None else hot.touched
    packing = Packing(session, uid, packed, tuple(read), kept, tuple(segments), touched)
    # Of one that was just made all is known; where rows are so long that they are several, they are looked for.
    waiting: tuple[Short, ...] | None = None
    if len(segments) == 1:
        made = Short(segments[0], weight + sum(map(weigh_entry, older)))
        is_short = _is_short(len(older) + len(rows), made.weight)
        waiting = (*(() if merged else short), made) if is_short else ()
    return packing, waiting


def _short(backend: Backend, session: str, uid: bytes, packed: int, most: int) -> tuple[Short, ...]:
    """The short segments before the rows that are not packed, the last of them at most."""
    found: list[Short] = []
    for row in backend.scan(session, Kind.SEGMENT, before=packed + 1, limit=most):
        segment = open_segment(row, uid=uid) if isinstance(row, SegmentRow) else None
        if segment is None or not _is_short(len(segment), segment.size_bytes):
            break
        found.insert(0, Short(segment.kept, segment.size_bytes))
    return tuple(found)


def _is_short(entries: int, weight: int) -> bool:
    return entries <= MAX_ENTRIES - PACK_ROWS and weight <= MAX_BYTES // 2


def with_refs(backend: Backend, rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """Rows with the blobs that their deltas need."""
    known: list[CheckpointRow] = []
    for row in rows:
        parts = spilled(row.delta)
        known.append(msgspec.structs.replace(row, refs=delta_refs(row.delta, backend.blobs(parts) if parts else {})))
    return known
