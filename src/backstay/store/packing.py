"""Packing older history: the second write of a commit, once in a while, when its own is durable.

A commit that finds 32 checkpoints with rows of their own packs them into a segment, in its caller's thread: there is no
thread of its own and nothing owed at exit. Three short segments before them are merged with them. If packing fails the
commit has still succeeded, and the next one tries again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

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


class Packer:
    """Packs one session, after commits of one History.

    `hot` has the rows of its last commits, as they were written: where they are all that is to be packed, they need
    not be read. The write compares them with what holds, as it does with rows that were read.
    """

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session
        self._from = 0
        self.hot: deque[CheckpointRow] = deque(maxlen=PACK_ROWS)

    def committed(self, sequence: int, before: SessionRow) -> None:
        """A checkpoint was committed, and many are not packed; `before` is the session's line as it was before that."""
        if sequence < self._from or not self._backend.packs:
            return
        rows = tuple(self.hot)
        self.hot.clear()
        whole = [row.sequence for row in rows] == [*range(before.packed + 1, before.packed + 1 + PACK_ROWS)]
        known = rows if whole else ()
        done = pack_older(self._backend, self._session, uid=before.uid, packed=before.packed, known=known)
        self._from = sequence + min(_PAUSE, PACK_ROWS) if done else 0


def pack_older(
    backend: Backend,
    session: str,
    *,
    uid: bytes,
    packed: int,
    rows: int | None = None,
    merged: int | None = None,
    known: Sequence[CheckpointRow] = (),
) -> bool:
    """Pack the oldest checkpoints that are not packed; False if that is to be tried again by the next commit.

    `rows` at a time, with `merged` short segments before them; `known`: as the caller wrote them.
    """
    mark = id(backend), session
    with _lock:
        if mark in _at_work:
            return True
        _at_work.add(mark)
    try:
        most = PACK_ROWS if rows is None else rows, MERGED if merged is None else merged
        packing = _plan(backend, session, uid, packed, *most, known)
        return packing is None or bool(backend.write(packing.ask, pack(packing)).answer)
    except CorruptionError:
        return True  # what is damaged stays where it is: `verify` finds it there
    except BackstayError:
        return False
    finally:
        with _lock:
            _at_work.discard(mark)


def _plan(
    backend: Backend,
    session: str,
    uid: bytes,
    packed: int,
    most: int,
    merges: int,
    known: Sequence[CheckpointRow],
) -> Packing | None:
    page = known or backend.scan(session, Kind.CHECKPOINT, after=packed, limit=most)
    rows = [row for row in page if isinstance(row, CheckpointRow)]
    if not rows or len(rows) < len(page):
        return None
    weight = sum(map(weigh_entry, rows))
    merged = _short(backend, session, uid, packed, weight, merges) if packed and merges else []
    found = [row for segment in merged for row in segment.rows(delta=True, refs=True)]
    older = [row for row in found if isinstance(row, CheckpointRow)]
    if len(older) < len(found):
        return None
    segments = [pack_segment(portion, uid=uid) for portion in portions([*older, *(known or with_refs(backend, rows))])]
    kept = tuple([segment.kept for segment in merged])
    read = [msgspec.structs.replace(row, refs=None) for row in rows] if known else rows
    return Packing(session, uid, packed, tuple(read), kept, tuple(segments))


def _short(backend: Backend, session: str, uid: bytes, packed: int, weight: int, most: int) -> list[Segment]:
    """The segments before these rows that are to be merged with them: `most` short ones, or fewer that fill one up."""
    found: list[Segment] = []
    for row in backend.scan(session, Kind.SEGMENT, before=packed + 1, limit=most):
        segment = open_segment(row, uid=uid) if isinstance(row, SegmentRow) else None
        if segment is None or len(segment) > MAX_ENTRIES - PACK_ROWS or segment.size_bytes > MAX_BYTES // 2:
            break
        found.insert(0, segment)
        weight += segment.size_bytes
    return found if len(found) == most or weight > MAX_BYTES else []


def with_refs(backend: Backend, rows: Sequence[CheckpointRow]) -> list[CheckpointRow]:
    """Rows with the blobs that their deltas need."""
    known: list[CheckpointRow] = []
    for row in rows:
        parts = spilled(row.delta)
        known.append(msgspec.structs.replace(row, refs=delta_refs(row.delta, backend.blobs(parts) if parts else {})))
    return known
