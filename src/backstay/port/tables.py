"""The rows of one session in dicts, and how an Ask is answered from them: for backends that keep rows in memory.

Knows keys, references of blobs and parents, and no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from backstay.codec import is_held
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.ids import sequence_of
from backstay.model import counted
from backstay.port import (
    Ask,
    CallRow,
    CheckpointRow,
    JournalKey,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    Records,
    Row,
    SessionQuery,
    SessionRow,
    TagRow,
    Unreadable,
    View,
    live_lanes,
    numbered,
)
from backstay.port.facets import facets_of
from backstay.port.row_codec import is_foreign
from backstay.port.rows import SegmentRow, kind_of
from backstay.port.segments import Segment, open_segment

Refs = dict[tuple[Kind, Key], tuple[bytes, ...]]


class Tables:
    """One session. A row that could not be read is kept as Unreadable."""

    def __init__(self, session: SessionRow) -> None:
        self.session = session
        self.names: dict[str, LaneRow | TagRow] = {}
        self.checkpoints: dict[int, CheckpointRow | Unreadable] = {}
        self.keyframes: dict[int, KeyframeRow] = {}
        self.segments: dict[int, SegmentRow | Unreadable] = {}
        self.calls: dict[JournalKey, dict[int, CallRow | Unreadable]] = {}
        self.children: dict[int, set[int]] = {}
        self.foreign: dict[str, int] = {}
        self.refs: Refs = {}
        self._sizes: dict[int, tuple[SegmentRow, int]] = {}

    # writing

    def put(self, row: Row) -> None:
        """Keep a row in the place of the one with its key."""
        if isinstance(row, SessionRow):
            self.session = row
        elif isinstance(row, LaneRow | TagRow):
            self.names[row.name] = row
        elif isinstance(row, CallRow):
            self.calls.setdefault(row.at[:2], {})[row.n] = row
        elif isinstance(row, SegmentRow):
            self._put_segment(row)
        else:
            if isinstance(row, CheckpointRow):
                self._unlink(row.sequence)
                self.checkpoints[row.sequence] = row
                if row.parent is not None:
                    self.children.setdefault(row.parent, set()).add(row.sequence)
                if is_foreign(row, self.session.uid):
                    self.foreign[row.id] = row.sequence
            else:
                self.keyframes[row.sequence] = row
            if row.refs is not None:
                self.refs[kind_of(row), row.sequence] = row.refs

    def drop(self, kind: Kind, key: Key) -> None:
        """Forget a row, or all calls under a journal."""
        if kind is Kind.NAME:
            self.names.pop(str(key), None)
        elif kind is Kind.CALL and isinstance(key, tuple):
            if len(key) == 2:  # noqa: PLR2004 - a JournalKey
                self.calls.pop(key, None)
            else:
                self.calls.get(key[:2], {}).pop(key[2], None)
        elif isinstance(key, int):
            if kind is Kind.SEGMENT:
                self._unlink_segment(key)
                self.segments.pop(key, None)
            elif kind is Kind.CHECKPOINT:
                self._unlink(key)
                self.checkpoints.pop(key, None)
            else:
                self.keyframes.pop(key, None)
            self.refs.pop((kind, key), None)

    def replaced(self, row: SegmentRow) -> list[tuple[Kind, Key]]:
        """The rows in whose place a segment comes."""
        own = [at for at in range(row.first, row.last + 1) if at in self.checkpoints]
        return [
            *[(Kind.CHECKPOINT, at) for at in own],
            *[
                (Kind.SEGMENT, first)
                for first, other in self.segments.items()
                if first <= row.last and last_of(other) >= row.first
            ],
        ]

    def _put_segment(self, row: SegmentRow) -> None:
        for kind, key in self.replaced(row):
            self.drop(kind, key)
        self.segments[row.first] = row
        for sequence, parent in self._open(row).links:
            if parent is not None:
                self.children.setdefault(parent, set()).add(sequence)
        self.foreign |= {id_: at for at, id_ in self._open(row).foreign().items()}
        if row.refs is not None:
            self.refs[Kind.SEGMENT, row.first] = row.refs

    def _unlink_segment(self, first: int) -> None:
        row = self.segments.get(first)
        if isinstance(row, SegmentRow):
            for sequence, parent in self._open(row).links:
                self.children.get(parent or 0, set()).discard(sequence)
            inside = set(self._open(row).sequences)
            self.foreign = {id_: at for id_, at in self.foreign.items() if at not in inside}

    def _open(self, row: SegmentRow) -> Segment:
        return open_segment(row, uid=self.session.uid)

    def _unlink(self, sequence: int) -> None:
        row = self.checkpoints.get(sequence)
        if row is not None and row.parent is not None:
            self.children.get(row.parent, set()).discard(sequence)
        if isinstance(row, CheckpointRow):
            self.foreign.pop(row.id, None)

    def rows(self) -> Iterator[Row]:
        """All that can be read."""
        yield self.session
        yield from self.names.values()
        yield from [row for row in self.checkpoints.values() if isinstance(row, CheckpointRow)]
        yield from self.keyframes.values()
        yield from [row for row in self.segments.values() if isinstance(row, SegmentRow)]
        yield from [call for calls in self.calls.values() for call in calls.values() if isinstance(call, CallRow)]

    # reading

    def fill(self, view: View, ask: Ask) -> None:
        """Answer an ask about this session."""
        view.session = self.session
        names = self.names if ask.names is None else {n: self.names[n] for n in ask.names if n in self.names}
        if ask.names is None or len(names) < len(set(ask.names)):
            self._count_names()
        lanes = {name: row for name, row in names.items() if isinstance(row, LaneRow)}
        view.lanes = lanes
        view.tags = {name: row for name, row in names.items() if isinstance(row, TagRow)}
        view.live = live_lanes(lanes.values(), now_us=view.now_us, wall_us=view.wall_us)
        located = list(self._located(ask))
        heads = [named_by(row) for row in names.values()] if ask.heads else []
        wanted = {*ask.sequences, *located, *[at for at in heads if at is not None]}
        view.checkpoints = {at: row for at in wanted if (row := self.checkpoint(at)) is not None}
        view.segments = {
            first: self.segments[first] for at in ask.segments if (first := self._first_of(at)) is not None
        }
        if len(view.checkpoints) < len(wanted) or len(located) < len(ask.ids):
            self._count_checkpoints()
        view.foreign = {id_: self.foreign[id_] for id_ in ask.ids if id_ in self.foreign}
        if ask.prefix:
            view.foreign |= {id_: at for id_, at in self.foreign.items() if id_.startswith(ask.prefix)}
        view.children = {at: sorted(self.children.get(at, ())) for at in ask.children_of}
        asked = lanes if ask.pending is None else [name for name in ask.pending if name in lanes]
        view.pending = {name: self.journal((lanes[name].run, lanes[name].journal)) for name in asked}
        view.counts = {
            name: 1 + max(self.calls.get((lanes[name].run, lanes[name].journal), {}), default=-1)
            for name in ask.counted
            if name in lanes
        }
        view.calls = {at: self.calls[at[:2]][at[2]] for at in ask.calls if at[2] in self.calls.get(at[:2], {})}
        view.journals = {at: self.journal(at) for at in ask.journals}

    def _count_names(self) -> None:
        """CorruptionError if names are missing; a hidden session is being filled or emptied, and not counted."""
        line = self.session
        if not line.hidden and len(self.names) != line.lanes + line.tags:
            raise self._missing(f"it has {len(self.names)} branches and tags and counts {line.lanes + line.tags}")

    def _count_checkpoints(self) -> None:
        line = self.session
        rows = [row for row in self.segments.values() if isinstance(row, SegmentRow)]
        count = len(self.checkpoints) + sum([self._size(row) for row in rows])
        if not line.hidden and count != line.checkpoints:
            raise self._missing(f"it has {counted(count, 'checkpoint')} and counts {line.checkpoints}")

    def _size(self, row: SegmentRow) -> int:
        """How many checkpoints are in a segment; it is opened once."""
        known = self._sizes.get(row.first)
        if known is None or known[0] is not row:
            known = self._sizes[row.first] = row, len(self._open(row))
        return known[1]

    def _missing(self, what: str) -> CorruptionError:
        return CorruptionError(f"session {self.session.id!r}: {what}", hint=RUN_VERIFY)

    def _located(self, ask: Ask) -> Iterable[int]:
        for id_ in ask.ids:
            at = self.foreign.get(id_)
            at = sequence_of(id_, self.session.uid) if at is None else at
            row = None if at is None else self.checkpoint(at)
            if at is not None and (isinstance(row, Unreadable) or (row is not None and row.id == id_)):
                yield at

    def checkpoint(self, sequence: int, *, delta: bool = False) -> CheckpointRow | Unreadable | None:
        """A checkpoint, packed or not; a packed one with its delta and its references where that is asked for."""
        first = self._first_of(sequence)
        if first is None:
            return self.checkpoints.get(sequence)
        row = self.segments[first]
        if isinstance(row, Unreadable):
            return Unreadable(sequence, row.why)
        segment = self._open(row)
        at = segment.place(sequence)
        return None if at is None else segment.rows((at,), delta=delta, refs=delta)[0]

    def _first_of(self, sequence: int) -> int | None:
        """The segment that a packed checkpoint lies in, if it is there."""
        if sequence > self.session.packed or not self.segments:
            return None
        first = max([at for at in self.segments if at <= sequence], default=None)
        return None if first is None or last_of(self.segments[first]) < sequence else first

    def journal(self, at: JournalKey) -> list[CallRow | Unreadable]:
        """All calls under a journal, in order."""
        return numbered([call for _, call in sorted(self.calls.get(at, {}).items())], *at)

    def state(self, ref: str | int, *, salvage: bool, without: Collection[int]) -> Records:
        """The rows down to a keyframe; their blobs are the backend's to add, see `refs_of`."""
        name = self.names.get(ref) if isinstance(ref, str) else None
        lane = name if isinstance(name, LaneRow) else None
        at = ref if isinstance(ref, int) else named_by(name)
        if isinstance(ref, str) and name is None:
            self._count_names()
        if at is not None and name is None and self.checkpoint(at) is None:
            self._count_checkpoints()
            at = None
        rows, keyframe = chain(at, lambda at: self.checkpoint(at, delta=True), self.keyframes.get, without)
        for row in rows if not salvage else ():
            if isinstance(row, Unreadable):
                raise self._missing(row.why)
        return Records(self.session, lane, tuple(rows), None if keyframe is None else keyframe.data)

    def refs_of(self, records: Records) -> set[bytes]:
        """The blobs that some records are made of; those that they only hold are not among them."""
        wanted: set[bytes] = set()
        for number, row in enumerate(records.rows):
            at = row.sequence if isinstance(row, CheckpointRow) else row.key
            if number and isinstance(row, CheckpointRow) and row.sequence <= self.session.packed:
                wanted.update(row.refs or ())
            elif number and isinstance(at, int):
                wanted.update(self.refs.get((Kind.CHECKPOINT, at), ()))
            elif isinstance(at, int):
                wanted.update(self.refs.get((Kind.KEYFRAME, at), ()))
        return {ref for ref in wanted if not is_held(ref)}

    def ancestors(self, sequence: int, limit: int) -> list[CheckpointRow | Unreadable]:
        """A checkpoint and its ancestors."""
        found: list[CheckpointRow | Unreadable] = []
        if self.checkpoint(sequence) is None:
            self._count_checkpoints()
            return found
        at: int | None = sequence
        while at is not None and len(found) < limit:
            found.append(self.checkpoint(at) or Unreadable(at, f"checkpoint #{at} is missing"))
            at = found[-1].parent
        return found

    def matches(self, query: SessionQuery) -> bool:
        """True if a query asks for this session."""
        if not is_wanted(self.session, query):
            return False
        if query.foreign is None or query.foreign in self.foreign:
            return True
        return query.foreign_start and any([id_.startswith(query.foreign) for id_ in self.foreign])

    def scan(self, kind: Kind, *, after: Any, before: Any, limit: int) -> Sequence[Row | Unreadable]:
        """A page of rows of one kind."""
        if kind is Kind.SEGMENT:
            firsts = [at for at, row in self.segments.items() if after is None or last_of(row) > after]
            firsts = sorted([at for at in firsts if before is None or at < before], reverse=before is not None)
            return [self.segments[at] for at in firsts[:limit]]
        table: dict[Any, Any] = self._table(kind)
        keys = [key for key in table if (after is None or key > after) and (before is None or key < before)]
        keys.sort(reverse=before is not None)
        if kind is Kind.CHECKPOINT:
            rows = [self.checkpoint(key, delta=True) for key in keys[:limit]]
            return [row for row in rows if row is not None]
        return [table[key] for key in keys[:limit]]

    def _table(self, kind: Kind) -> dict[Any, Any]:
        if kind is Kind.NAME:
            return dict(self.names)
        if kind is Kind.CALL:
            return {(*at, n): call for at, calls in self.calls.items() for n, call in calls.items()}
        if kind is Kind.CHECKPOINT:
            packed = {
                at: None
                for first, row in self.segments.items()
                for at in (self._open(row).sequences if isinstance(row, SegmentRow) else [first])
            }
            return {**packed, **dict.fromkeys(self.checkpoints)}
        return dict(self.keyframes) if kind is Kind.KEYFRAME else {}


Frame = TypeVar("Frame")


def chain(
    at: int | None,
    row_at: Callable[[int], CheckpointRow | Unreadable | None],
    keyframe_at: Callable[[int], Frame | None],
    without: Collection[int] = (),
) -> tuple[list[CheckpointRow | Unreadable], Frame | None]:
    """The rows from a checkpoint down to one that has a keyframe, oldest first, and that keyframe."""
    rows: list[CheckpointRow | Unreadable] = []
    keyframe = None
    while at is not None and keyframe is None:
        rows.append(row_at(at) or Unreadable(at, f"checkpoint #{at} is missing"))
        keyframe = None if at in without else keyframe_at(at)
        at = rows[-1].parent
    return rows[::-1], keyframe


def last_of(row: SegmentRow | Unreadable) -> int:
    """The sequence of the last checkpoint in a segment; of one that cannot be read, of its first."""
    return row.last if isinstance(row, SegmentRow) else int(row.key)  # type: ignore[arg-type]


def named_by(name: LaneRow | TagRow | None) -> int | None:
    """The sequence of the checkpoint that a name points at."""
    if isinstance(name, TagRow):
        return name.sequence
    return None if name is None or name.head is None else name.head.sequence


def is_wanted(row: SessionRow, query: SessionQuery) -> bool:
    """True if a session's line is one that a query asks for, whatever foreign ids it has."""
    return (
        row.hidden == query.hidden
        and (query.before is None or row.touched < query.before)
        and row.id.startswith(query.prefix)
        and (query.uid_start is None or row.uid.startswith(query.uid_start))
        and (query.since_us is None or row.updated_us >= query.since_us)
        and (not query.facets or has_facets(row, query))
    )


def has_facets(row: SessionRow, query: SessionQuery) -> bool:
    """True if a session has one of each of the facets that a query asks for."""
    found = facets_of(row)
    return all([not found.isdisjoint(some) for some in query.facets])
