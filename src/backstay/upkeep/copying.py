"""A session from one store to another, row by row through the port: what export, import and copies are made of.

A copy is filled in portions under a hidden name and shown at once, complete. A kill leaves a hidden session, which
`deletion.sweep` removes. Bodies are sealed to the session's uid, which travels: checkpoints, segments and keyframes go
as they are, each opened on the way, so that damage is told now. Leases are not copied.

A copy is of one moment although writers go on: that of the first look at the session's line, its names and the calls
that are pending or parked. Later checkpoints are left out. Earlier ones change only by a deletion, which shows: the
difference between the last sequence and the number of checkpoints grows. The session is then copied again.

The uid travels with every copy. A session that is copied twice into one store has it twice there, and so have its
checkpoint ids: they name a checkpoint within a session, whose name is then needed too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from backstay.delta import Record
from backstay.errors import BackstayError, ConflictError, CorruptionError, NotFoundError
from backstay.hints import RUN_VERIFY
from backstay.model import counted
from backstay.port import (
    EVERY,
    Ask,
    Backend,
    CallRow,
    CheckpointRow,
    JournalKey,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    Row,
    SegmentRow,
    SessionRow,
    TagRow,
    Unreadable,
)
from backstay.port.rows import INBOX
from backstay.port.segment_packing import pack_segment, portions
from backstay.port.segments import open_segment
from backstay.rules import refusals
from backstay.rules.refusals import in_doubt
from backstay.sealing import MAX_BLOB_BYTES, open_delta, open_keyframe, spilled, unspill
from backstay.store.fields import read_fields
from backstay.upkeep.arrival import PORTION_BYTES, Arrival, Portions, SourceBlobs
from backstay.upkeep.pages import row_key, weigh

_TRIES = 5  # of one session, before its deletions win
_LOOKS = 100  # at a session whose parked calls change with every look
_FIRST_ROWS = 16
_PAGE_ROWS = 200
_ROW_BYTES = 256  # what a row weighs beside its bodies
_RECENT = 4096
_TELL_EVERY = 32


class SessionMoment(msgspec.Struct, frozen=True):
    """A session as it was when it was looked at. Of a session that no process writes to, only the line is read."""

    line: SessionRow
    names: tuple[LaneRow | TagRow, ...] | None = None
    journals: Mapping[JournalKey, tuple[CallRow | Unreadable, ...]] = {}


class Link(msgspec.Struct, frozen=True, gc=False):
    """Facts about a checkpoint that those resting on it need."""

    id: str
    digest: bytes
    state_digest: bytes


class Inspector(Protocol):
    """Looks at what is copied, row by row in the order of the copy, and raises what speaks against it."""

    def name(self, row: LaneRow | TagRow) -> None:
        """A branch or a tag."""

    def checkpoint(
        self, row: CheckpointRow, parent: Link | None, delta: Record | None, keyframe: Record | None
    ) -> None:
        """A checkpoint; the calls that it took come next."""

    def call(self, row: CallRow) -> None:
        """A call of the journal that `journal_ends` will name."""

    def journal_ends(self, at: JournalKey, count: int) -> None:
        """All calls of a journal have come."""

    def names_journals(self) -> None:
        """No more checkpoints come: the journals that follow belong to branches."""

    def finish(self) -> None:
        """All of it has come."""

    def limit_bytes(self, row: CheckpointRow) -> int:
        """How long a record of this checkpoint may be."""


def copy_session(backend: Backend, session: str, name: str) -> None:
    """Copy a session within its store under another name, with its branches, tags and journal."""
    arrival = bring(backend, backend, session)
    if arrival is None:
        raise refusals.no_session(session)[1]
    try:
        arrival.show(name)
    except BaseException:
        with contextlib.suppress(BackstayError):
            arrival.discard()
        raise


def bring(
    source: Backend, target: Backend, session: str, *, tell: Callable[[int], None] | None = None
) -> Arrival | None:
    """Copy a session that others may write to, as of one moment; None if there is none. `tell`: how many came."""
    for _ in range(_TRIES):
        moment = _look(source, session)
        if moment is None:
            return None
        copy = Copy(source, Portions(target), moment, tell=tell)
        try:
            arrival = copy.run()
        except (ConflictError, CorruptionError, NotFoundError):
            if not _is_torn(source, moment.line):
                raise  # no checkpoint was deleted meanwhile: it is damage
            continue
        if not _is_torn(source, moment.line):
            return arrival
        arrival.discard()
    message = f"session {session!r}: checkpoints were deleted while it was copied, {_TRIES} times"
    raise ConflictError(message, hint="try again when no prune is running")


def _look(source: Backend, session: str) -> SessionMoment | None:
    asked: frozenset[JournalKey] = frozenset()
    for _ in range(_LOOKS):
        view = source.read(Ask(session, names=EVERY, pending=EVERY, journals=tuple(sorted(asked))))
        if view.session is None:
            return None
        lanes = view.lanes.values()
        parked = {(lane.run, lane.undo_journal) for lane in lanes if lane.undo_calls and lane.undo_journal is not None}
        parked |= {(lane.run, INBOX) for lane in lanes if lane.inbox}
        if parked <= asked:
            journals = {at: tuple(view.journals.get(at, ())) for at in parked}
            journals |= {(lane.run, lane.journal): tuple(view.pending.get(lane.name, ())) for lane in lanes if lane.run}
            return SessionMoment(view.session, (*lanes, *view.tags.values()), journals)
        asked = frozenset(parked)
    raise refusals.changed(session, "its branches do not rest")[1]


def _is_torn(source: Backend, line: SessionRow) -> bool:
    """True if checkpoints of a session were deleted since its line was read, or all of it was."""
    now = source.read(Ask(line.id)).session
    if now is None or now.uid != line.uid:
        return True
    return now.sequence - now.checkpoints != line.sequence - line.checkpoints


class Repacking:
    """Packed checkpoints on their way, up to `edge`: each segment goes as it is kept, once all in it have come.

    A source that goes on packing may have merged a segment meanwhile: then what has come is packed here. A target that
    keeps no segments gets rows.
    """

    def __init__(self, source: Backend, out: Portions, line: SessionRow) -> None:
        self._source = source
        self._out = out
        self._line = line
        self._came: list[CheckpointRow] = []
        self._segment: SegmentRow | None = None
        self.edge = line.packed if out.packs else 0

    def add(self, row: CheckpointRow) -> None:
        """The next checkpoint, with its references, whose blobs are there."""
        if self._segment is None or row.sequence > self._segment.last:
            self.finish()
            page = self._source.scan(self._line.id, Kind.SEGMENT, after=row.sequence - 1, limit=1)
            self._segment = page[0] if page and isinstance(page[0], SegmentRow) else None
        self._came.append(row)

    def finish(self) -> None:
        """No more checkpoints of this segment come."""
        came, kept, self._came = self._came, self._segment, []
        if not came:
            return
        uid = self._line.uid
        refs = tuple(dict.fromkeys([ref for row in came for ref in row.refs or ()]))
        if kept is not None and open_segment(kept, uid=uid).rows(delta=True, refs=True) == came:
            segments = [msgspec.structs.replace(kept, refs=refs)]
        else:
            segments = [pack_segment(portion, uid=uid) for portion in portions(came)]
        for segment in segments:
            self._out.put(segment, _weight(segment))


class Copy:
    """One session on its way. With an inspector no process writes to the source, and names are read in pages too."""

    def __init__(
        self,
        source: Backend,
        portions: Portions,
        moment: SessionMoment,
        *,
        inspector: Inspector | None = None,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        self._source = source
        self._line = moment.line
        self._moment = moment
        self._out = portions
        self._blobs = SourceBlobs(source)
        self._inspector = inspector
        self._tell = tell
        self._recent: dict[int, Link] = {}
        self._packed = Repacking(source, portions, moment.line)
        self._lane_of: dict[JournalKey, LaneRow] = {}
        self.doubts = 0
        self._lanes = self._tags = self._checkpoints = self._logical_bytes = self._last_run = self._call_count = 0

    def run(self) -> Arrival:
        """Copy it to where it can be shown; what was copied is removed again if that fails."""
        self._out.begin(msgspec.structs.replace(self._line, packed=self._packed.edge))
        try:
            self._copy()
            self._out.flush()
        except BaseException:
            with contextlib.suppress(BackstayError):
                self._out.discard()
            raise
        row = msgspec.structs.replace(
            self._line,
            checkpoints=self._checkpoints,
            lanes=self._lanes,
            tags=self._tags,
            logical_bytes=self._logical_bytes,
            packed=self._packed.edge,
        )
        return self._out.arrival(row, self._last_run, self.doubts)

    def _copy(self) -> None:
        waiting: list[tuple[JournalKey, int | None]] = []
        for name in self._names():
            waiting += self._name(name)
        for row in self._rows(Kind.CHECKPOINT):
            if not isinstance(row, CheckpointRow) or row.sequence > self._line.sequence:
                break
            self._checkpoint(row)
        self._packed.finish()
        if (self._checkpoints, self._lanes, self._tags) != (self._line.checkpoints, self._line.lanes, self._line.tags):
            raise self._damaged("it counts other checkpoints or names than it has")
        if self._tell is not None and self._checkpoints % _TELL_EVERY:
            self._tell(self._checkpoints)
        if self._inspector is not None:
            self._inspector.names_journals()
        for at, count in waiting:
            self._journal(at, count)
        if self._inspector is not None:
            self._inspector.finish()
            # An export holds no others: if there are, what leads to them is not what it was.
            if sum([1 for _ in self._rows(Kind.CALL)]) != self._call_count:
                raise self._damaged("it has calls that belong to no checkpoint and no branch")

    # names

    def _names(self) -> Iterator[LaneRow | TagRow]:
        if self._moment.names is not None:
            yield from self._moment.names
            return
        for row in self._rows(Kind.NAME):
            if isinstance(row, LaneRow | TagRow):
                yield row

    def _name(self, row: LaneRow | TagRow) -> list[tuple[JournalKey, int | None]]:
        """The row goes; the journals that hang on it are for later: how many calls each has, if that is known."""
        if self._inspector is not None:
            self._inspector.name(row)
        if isinstance(row, TagRow):
            self._tags += 1
            self._out.put(row, _weight(row))
            return []
        self._lanes += 1
        self._last_run = max(self._last_run, row.run)
        row = msgspec.structs.replace(row, doubts=0)  # counted again by the calls themselves, which come later
        self._out.put(row, _weight(row))
        if row.run:
            self._lane_of[row.run, row.journal] = row
        found: list[tuple[JournalKey, int | None]] = [((row.run, row.journal), None)] if row.run else []
        if row.undo_calls and row.undo_journal is not None:
            found.append(((row.run, row.undo_journal), row.undo_calls))
        if row.inbox:
            found.append(((row.run, INBOX), row.inbox))
        return found

    # checkpoints

    def _checkpoint(self, row: CheckpointRow) -> None:
        read_fields(row)  # its digest
        parent = None if row.parent is None else self._link(row.parent)
        delta = self._delta(row, parent)
        keyframe = self._keyframe(row)
        if delta is None and keyframe is None:
            raise self._damaged(f"checkpoint {row.id[:12]} has neither a delta nor a keyframe")
        opened = None if keyframe is None else keyframe[1]
        if self._inspector is not None:
            self._inspector.checkpoint(row, parent, delta, opened)
        refs = () if delta is None else (*delta.refs, *spilled(row.delta))
        sent = msgspec.structs.replace(row, refs=refs)
        if row.sequence <= self._packed.edge:
            if refs:
                self._out.carry(refs, self._blobs)
            self._packed.add(sent)
        else:
            self._send(sent)
        if keyframe is not None and opened is not None:
            data = keyframe[0].data
            self._send(KeyframeRow(row.sequence, data, (*opened.refs, *spilled(data))))
        for took in () if row.took is None else row.took.each:
            self._last_run = max(self._last_run, took.run)
            self._journal((took.run, took.journal), took.count)
        self._remember(row)
        self._checkpoints += 1
        self._logical_bytes += row.size_bytes
        if self._tell is not None and self._checkpoints % _TELL_EVERY == 0:
            self._tell(self._checkpoints)

    def _delta(self, row: CheckpointRow, parent: Link | None) -> Record | None:
        if not row.delta:
            return None
        if parent is None:
            raise self._damaged(f"checkpoint {row.id[:12]} is a delta on nothing")
        data = self._whole(row, row.delta)
        base, uid = parent.state_digest, self._line.uid
        return open_delta(data, uid=uid, tail=row.tail, base=base, state=row.state_digest, limit=self._limit(row))

    def _keyframe(self, row: CheckpointRow) -> tuple[KeyframeRow, Record] | None:
        if not row.keyframe:
            return None
        page = self._source.scan(self._line.id, Kind.KEYFRAME, after=row.sequence - 1, limit=1)
        if not page or not isinstance(page[0], KeyframeRow) or page[0].sequence != row.sequence:
            raise self._damaged(f"the keyframe of checkpoint {row.id[:12]} is missing")
        data = self._whole(row, page[0].data)
        uid = self._line.uid
        return page[0], open_keyframe(data, uid=uid, tail=row.tail, state=row.state_digest, limit=self._limit(row))

    def _whole(self, row: CheckpointRow, data: bytes) -> bytes:
        """A record's bytes, from the blobs that it was cut into if need be."""
        parts, limit = spilled(data), self._limit(row)
        if limit is not None and MAX_BLOB_BYTES * (len(parts) - 1) > limit:
            raise self._damaged(f"checkpoint {row.id[:12]}: a record is longer than its state allows")
        return unspill(data, self._blobs.packed(parts) if parts else {})

    def _limit(self, row: CheckpointRow) -> int | None:
        return None if self._inspector is None else self._inspector.limit_bytes(row)

    def _link(self, sequence: int) -> Link:
        found = self._recent.get(sequence)
        if found is None:
            row = self._source.read(Ask(self._line.id, sequences=(sequence,))).checkpoints.get(sequence)
            if not isinstance(row, CheckpointRow):
                raise self._damaged(f"checkpoint #{sequence}, which others rest on, is missing")
            found = Link(row.id, row.digest, row.state_digest)
        return found

    def _remember(self, row: CheckpointRow) -> None:
        self._recent[row.sequence] = Link(row.id, row.digest, row.state_digest)
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]

    def _send(self, row: CheckpointRow | KeyframeRow) -> None:
        """A row, with those of its blobs ahead of it that are not there yet."""
        if row.refs:
            self._out.carry(row.refs, self._blobs)
        self._out.put(row, _weight(row))

    # calls

    def _journal(self, at: JournalKey, count: int | None) -> None:
        came = doubts = 0
        for call in self._calls(at, count):
            if isinstance(call, Unreadable):
                raise self._damaged(f"a call is damaged: {call.why}")
            if call.n != came and at[1] != INBOX:  # messages that were received are gone
                raise self._damaged("a journaled call is missing")
            if self._inspector is not None:
                self._inspector.call(call)
            self._out.put(call, _weight(call))
            came += 1
            doubts += in_doubt(call, None)
        self._call_count += came
        if count is not None and came != count:
            raise self._damaged(f"{counted(count, 'call')} must be there, and {came} came")
        if self._inspector is not None:
            self._inspector.journal_ends(at, came)
        lane = self._lane_of.get(at)
        if doubts and lane is not None:
            self.doubts += doubts
            self._out.put(msgspec.structs.replace(lane, doubts=doubts), _weight(lane))

    def _calls(self, at: JournalKey, count: int | None) -> Iterator[CallRow | Unreadable]:
        if at in self._moment.journals:
            yield from self._moment.journals[at]
            return
        first = _FIRST_ROWS if count is None else max(1, min(_FIRST_ROWS, count))
        for row in self._rows(Kind.CALL, after=(*at, -1), first=first):
            if row_key(row)[:2] != at:  # type: ignore[index]
                return
            yield row  # type: ignore[misc]

    # pages

    def _rows(self, kind: Kind, after: Key | None = None, first: int = _FIRST_ROWS) -> Iterator[Row | Unreadable]:
        """All rows of a kind, in pages that weigh about a portion; what cannot be read is an error, calls excepted."""
        limit = first
        while page := self._source.scan(self._line.id, kind, after=after, limit=limit):
            for row in page:
                if isinstance(row, Unreadable) and kind is not Kind.CALL:
                    raise self._damaged(row.why)
                yield row
            after = row_key(page[-1])
            weight = sum([_weight(row) for row in page])
            limit = max(1, min(_PAGE_ROWS, 4 * limit, len(page) * PORTION_BYTES // weight))

    def _damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"session {self._line.id!r}: {what}", hint=RUN_VERIFY)


def _weight(row: Row | Unreadable) -> int:
    return _ROW_BYTES + weigh(row) + (len(row.input or b"") if isinstance(row, LaneRow) else 0)
