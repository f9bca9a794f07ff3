"""A session's rows page by page, as many at a time as weigh little together: for upkeep that reads all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backstay.errors import CorruptionError
from backstay.port import Backend, CallRow, CheckpointRow, Key, KeyframeRow, Kind, Row, SegmentRow, Unreadable
from backstay.port.rows import key_of

_FIRST_ROWS = 16
_MAX_ROWS = 1000
_MAX_BYTES = 8 * 1024 * 1024


def pages(
    backend: Backend, session: str, kind: Kind, *, after: Key | None = None, hidden: bool = False
) -> Iterator[Sequence[Row | Unreadable]]:
    """The rows of one kind in order. Where that is an error, all that come before it come before the error."""
    limit = _FIRST_ROWS
    while True:
        try:
            page = backend.scan(session, kind, after=after, limit=limit, hidden=hidden)
        except CorruptionError:
            if limit == 1:
                raise
            limit = max(1, limit // 8)
            continue
        if not page:
            return
        yield page
        after = page[-1].last if isinstance(page[-1], SegmentRow) else row_key(page[-1])
        limit = _next_limit(limit, page)


def row_key(row: Row | Unreadable) -> Key:
    """The key of a row, of one that cannot be read too."""
    return row.key if isinstance(row, Unreadable) else key_of(row)


def weigh(row: Row | Unreadable) -> int:
    """Roughly how many bytes a row takes."""
    if isinstance(row, CheckpointRow):
        return len(row.delta) + len(row.fields)
    if isinstance(row, KeyframeRow):
        return len(row.data)
    if isinstance(row, SegmentRow):
        return len(row.body)
    if isinstance(row, CallRow):
        return sum([len(part) for part in (row.args, row.result, row.place) if part is not None])
    return 0


def _next_limit(limit: int, page: Sequence[Row | Unreadable]) -> int:
    mean = sum([weigh(row) for row in page]) // len(page) + 1
    return max(1, min(8 * limit, _MAX_ROWS, _MAX_BYTES // mean))


class Keyframes:
    """The keyframes of a session, asked for in order: read in pages, each forgotten once it was given."""

    def __init__(self, backend: Backend, session: str) -> None:
        self._backend = backend
        self._session = session
        self._data: dict[int, bytes] = {}
        self._limit = 1
        self._read_to = 0

    def find(self, sequence: int) -> bytes | None:
        """The keyframe of a checkpoint as it is kept."""
        if sequence > self._read_to:
            page = self._backend.scan(self._session, Kind.KEYFRAME, after=sequence - 1, limit=self._limit)
            self._data = {row.sequence: row.data for row in page if isinstance(row, KeyframeRow)}
            self._read_to = max(self._data, default=sequence)
            self._limit = _next_limit(self._limit, page) if page else self._limit
        return self._data.pop(sequence, None)
