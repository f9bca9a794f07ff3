"""Segments: older checkpoints of a session packed together, and opened again one by one, byte for byte as they were.

A segment has four frames, because different readers need different parts of it:

    headers   tails, digests, sizes, foreign ids, the calls that were taken in
    fields    the fields of each checkpoint: a log needs these two and no more
    shapes    of each delta all but its values, with its own seal
    values    the values

Each frame is compressed by itself and has a seal of its own that names the session's uid, `first`, `last` and the
frame. A delta keeps the seal it was made with: what was damaged before it was packed is found damaged behind it.
`links` says which sequences there are and what each rests on, as runs in which each rests on the one before.

A frame that does not open costs what is in it. Without headers all checkpoints of the segment are Unreadable; without
fields or shapes they are rows that do not verify; without values `salvage` still finds the shape of each delta.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from backstay.errors import CorruptionError
from backstay.ids import MAX_SEQUENCE, TAIL_BYTES, id_starts, make_id, match_ours
from backstay.port.rows import CheckpointRow, SegmentRow, Took, Unreadable
from backstay.sealing import DIGEST_BYTES, MAX_ROW_BYTES, SEAL_BYTES, body_bytes, compress

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_ENTRIES = 128
MAX_BYTES = 256 * 1024  # of all entries before they are compressed; one that is longer is a segment by itself

NOT_READ = b"\2"  # for the delta of a packed checkpoint where nobody asked for it: it does not open as one

_LEVEL, _FAST_LEVEL = 6, 3  # a segment that will soon be merged is not worth more
_ENTRY_BYTES = 128  # what an entry weighs beside its fields and its delta
_MAX_FRAME_BYTES = 4 * MAX_BYTES
_MAX_LONE_BYTES = 4 * MAX_ROW_BYTES
_LENGTH_BYTES = 4
_FRAMES = HEADERS, FIELDS, SHAPES, VALUES = range(4)
_TABLE_BYTES = len(_FRAMES) * _LENGTH_BYTES
_INLINE = b"\0"
_NO_SEAL = bytes(SEAL_BYTES)
_RAW, _TEXT = b"R", b"T"

_encode = msgspec.msgpack.Encoder().encode


class _Run(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Checkpoints whose sequences follow one another, each resting on the one before, the first on `parent`."""

    start: int
    count: int
    parent: int | None


class _Headers(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One value for each entry; in dicts, by place, what few entries have.

    `parents`: id and digest of the checkpoint that an entry was committed on, where that is not the entry it rests on.
    """

    tails: bytes
    states: bytes
    digests: bytes
    sizes: list[int]
    keyframes: list[int]
    ids: dict[int, str]
    parents: dict[int, tuple[bytes | None, bytes | None]]
    took: dict[int, Took]


class _Shapes(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of each delta its seal, what follows that up to its values, and how long these are; `refs` are by place.

    A delta that is not such a record (it was cut into blobs, or is none) stands among the values as it was: `odd`.
    """

    seals: bytes
    heads: list[bytes]
    sizes: list[int]
    refs: dict[int, bytes]
    odd: list[int]


_runs = msgspec.msgpack.Decoder(list[_Run]).decode
_headers = msgspec.msgpack.Decoder(_Headers).decode
_fields = msgspec.msgpack.Decoder(list[bytes]).decode
_shapes = msgspec.msgpack.Decoder(_Shapes).decode


# packing


def weigh_entry(row: CheckpointRow) -> int:
    """What a checkpoint adds to a segment before it is compressed."""
    return _ENTRY_BYTES + len(row.fields) + len(row.delta)


def portions(rows: Iterable[CheckpointRow], *, most: int = MAX_ENTRIES) -> Iterator[list[CheckpointRow]]:
    """Rows in order, as many together as a segment may hold."""
    portion: list[CheckpointRow] = []
    weight = 0
    for row in rows:
        more = weigh_entry(row)
        if portion and (len(portion) >= most or weight + more > MAX_BYTES):
            yield portion
            portion, weight = [], 0
        portion.append(row)
        weight += more
    if portion:
        yield portion


def pack_segment(rows: Sequence[CheckpointRow], *, uid: bytes) -> SegmentRow:
    """Rows by rising sequence as a segment; CorruptionError if they are no rows of ours. `refs` of each is known."""
    first, last = rows[0].sequence, rows[-1].sequence
    refs = dict.fromkeys([ref for row in rows for ref in row.refs or ()])
    headers, fields, (shapes, values) = _pack_headers(rows, uid), [row.fields for row in rows], _pack_deltas(rows)
    frames = _encode(headers), _encode(fields), _encode(shapes), values
    level = _LEVEL if len(rows) > MAX_ENTRIES // 2 else _FAST_LEVEL
    packed = [
        _frame(compress(data, level), len(data), uid, (first, last, number)) for number, data in enumerate(frames)
    ]
    table = b"".join([len(frame).to_bytes(_LENGTH_BYTES, "big") for frame in packed])
    links, needs = _pack_links(rows, uid)
    made = SegmentRow(first, last, needs, links, b"".join([table, *packed]), tuple(refs))
    segment = Segment(made, uid)
    segment.know(headers, fields, shapes, values)
    _remember(segment)  # the write that puts it looks into it, and so do the next reads
    return made


def _pack_links(rows: Sequence[CheckpointRow], uid: bytes) -> tuple[bytes, int | None]:
    runs: list[list[Any]] = []
    before = 0
    inside = {row.sequence for row in rows}
    needs = [row.parent for row in rows if row.parent is not None and row.parent not in inside]
    for row in rows:
        if row.sequence <= before or (row.parent is not None and row.parent >= row.sequence):
            raise CorruptionError(f"checkpoint #{row.sequence} is out of order")
        if runs and row.sequence == before + 1 and row.parent == before:
            runs[-1][1] += 1
        else:
            runs.append([row.sequence, 1, row.parent])
        before = row.sequence
    data = _encode(runs)
    return _seal(data, uid, rows[0].sequence, before, "links") + data, min(needs, default=None)


def _pack_headers(rows: Sequence[CheckpointRow], uid: bytes) -> _Headers:
    places = {row.sequence: row for row in rows}
    parents: dict[int, tuple[bytes | None, bytes | None]] = {}
    ids: dict[int, str] = {}
    for at, row in enumerate(rows):
        if [len(row.tail), len(row.state_digest), len(row.digest)] != [TAIL_BYTES, DIGEST_BYTES, DIGEST_BYTES]:
            raise CorruptionError(f"checkpoint #{row.sequence} has no digest")
        if row.id != make_id(row.sequence, uid, row.tail):
            ids[at] = row.id
        parent = None if row.parent is None else places.get(row.parent)
        if parent is None or (parent.id, parent.digest) != (row.parent_id, row.parent_digest):
            parents[at] = _short(row.parent_id), row.parent_digest
    return _Headers(
        b"".join([row.tail for row in rows]),
        b"".join([row.state_digest for row in rows]),
        b"".join([row.digest for row in rows]),
        [row.size_bytes for row in rows],
        [at for at, row in enumerate(rows) if row.keyframe],
        ids,
        parents,
        {at: row.took for at, row in enumerate(rows) if row.took is not None},
    )


def _pack_deltas(rows: Sequence[CheckpointRow]) -> tuple[_Shapes, bytes]:
    seals, heads, sizes, values = [], [], [], []
    odd: list[int] = []
    for at, row in enumerate(rows):
        delta = row.delta
        size = body_bytes(delta)
        if size is None:
            odd.append(at)
            size, cut = len(delta), 0
            seals.append(_NO_SEAL)
            heads.append(b"")
        else:
            cut = len(delta) - size
            seals.append(delta[1 : 1 + SEAL_BYTES])
            heads.append(delta[1 + SEAL_BYTES : cut])
        sizes.append(size)
        values.append(delta[cut:])
    refs = {at: b"".join(row.refs) for at, row in enumerate(rows) if row.refs}
    return _Shapes(b"".join(seals), heads, sizes, refs, odd), b"".join(values)


def _frame(packed: bytes, size: int, uid: bytes, place: tuple[int, int, int]) -> bytes:
    data = size.to_bytes(_LENGTH_BYTES, "big") + packed
    return _seal(data, uid, *place) + data


def _seal(data: bytes, uid: bytes, first: int, last: int, frame: int | str) -> bytes:
    return sha256(_encode(("segment", uid, first, last, frame)) + data).digest()[:SEAL_BYTES]


def _short(id_: str | None) -> bytes | None:
    if id_ is None:
        return None
    return _RAW + bytes.fromhex(id_) if match_ours(id_) else _TEXT + id_.encode()


# opening


class Segment:
    """A segment that was read. Frames are opened when they are needed, and then stay so."""

    __slots__ = ("_frames", "_limit", "_opened", "broken", "kept", "parents", "places", "sequences", "uid")

    def __init__(self, kept: SegmentRow, uid: bytes) -> None:
        self.kept = kept
        self.uid = uid
        self.broken = ""  # why nothing of it can be read
        self._opened: dict[int, Any] = {}
        self._frames = _cut(kept.body)
        self._limit = _MAX_LONE_BYTES
        self.sequences: list[int] = []
        self.parents: list[int | None] = []
        try:
            self._open_links()
        except CorruptionError as error:
            # Which there were cannot be told: each that may have been is unreadable in its place.
            self.broken = f"{error.args[0]}"
            self.sequences = list(range(kept.first, min(kept.last, kept.first + MAX_ENTRIES - 1) + 1))
            self.parents = [None] * len(self.sequences)
        self.places = {sequence: at for at, sequence in enumerate(self.sequences)}
        if len(self.sequences) > 1:
            self._limit = _MAX_FRAME_BYTES

    def _open_links(self) -> None:
        kept = self.kept
        data = kept.links[SEAL_BYTES:]
        if _seal(data, self.uid, kept.first, kept.last, "links") != kept.links[:SEAL_BYTES]:
            raise self._damaged("is damaged, or stands in the place of another")
        try:
            runs = _runs(data)
        except msgspec.DecodeError as error:
            raise self._damaged("is sealed but does not decode") from error
        before = 0
        for run in runs:
            end = run.start + run.count
            if not before < run.start < end <= MAX_SEQUENCE + 1 or len(self.sequences) + run.count > MAX_ENTRIES:
                raise self._damaged("has links that cannot be")
            if run.parent is not None and not 0 <= run.parent < run.start:
                raise self._damaged("has links that cannot be")
            self.sequences += range(run.start, end)
            self.parents.append(run.parent)
            self.parents += range(run.start, end - 1)
            before = end - 1
        inside = set(self.sequences)
        needs = min([at for at in self.parents if at is not None and at not in inside], default=None)
        if not runs or (self.sequences[0], before, needs) != (kept.first, kept.last, kept.needs):
            raise self._damaged("does not agree with its index")

    def know(self, *frames: object) -> None:
        """It was packed here a moment ago, of these frames."""
        self._opened = dict(enumerate(frames))

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def size_bytes(self) -> int:
        """What its frames announce to have before they are compressed."""
        return sum([int.from_bytes(frame[SEAL_BYTES : SEAL_BYTES + _LENGTH_BYTES], "big") for frame in self._frames])

    @property
    def links(self) -> Iterator[tuple[int, int | None]]:
        """Each checkpoint and what it rests on."""
        return zip(self.sequences, self.parents, strict=True)

    @property
    def is_readable(self) -> bool:
        """True if its checkpoints can be told, whatever became of their fields and deltas."""
        return not self.broken and self._try(HEADERS) is not None

    @property
    def opened(self) -> set[int]:
        """The frames that were opened so far."""
        return set(self._opened)

    def foreign(self) -> dict[int, str]:
        """By sequence, the ids that do not say where their row is; CorruptionError if that cannot be read."""
        if self.broken:
            raise CorruptionError(self.broken)
        return {self.sequences[at]: id_ for at, id_ in self._open(HEADERS).ids.items()}

    def row(self, sequence: int, *, delta: bool = False) -> CheckpointRow | Unreadable | None:
        """One checkpoint; None if it is not in this segment. Without its delta unless that is asked for."""
        at = self.places.get(sequence)
        return None if at is None else self.rows((at,), delta=delta)[0]

    def line(self, sequence: int) -> list[int]:
        """The places of a checkpoint and of its ancestors in this segment, down to one with a keyframe."""
        found: list[int] = []
        at = self.places.get(sequence)
        headers = None if self.broken else self._try(HEADERS)
        keyframes = frozenset[int]() if headers is None else frozenset(headers.keyframes)
        while at is not None:
            found.append(at)
            parent = self.parents[at]
            at = None if parent is None or at in keyframes else self.places.get(parent)
        return found

    def rows(
        self, places: Sequence[int] | None = None, *, delta: bool = False, refs: bool = False
    ) -> list[CheckpointRow | Unreadable]:
        """The checkpoints at some places, in that order; all of them if none are named.

        With their deltas if that is asked for; and with `refs` only then: otherwise these stay as they are kept.
        """
        places = range(len(self.sequences)) if places is None else places
        if self.broken:
            return [Unreadable(self.sequences[at], self.broken) for at in places]
        try:
            headers: _Headers = self._open(HEADERS)
        except CorruptionError as error:
            why = str(error.args[0])
            return [Unreadable(self.sequences[at], why, self.parents[at]) for at in places]
        deltas: list[tuple[bytes, tuple[bytes, ...] | None]] = [(NOT_READ, None)] * len(places)
        if delta:
            deltas = self._deltas(places)
        return self._rows(headers, places, deltas if refs else [(data, None) for data, _ in deltas])

    def _rows(
        self, headers: _Headers, places: Sequence[int], deltas: Sequence[tuple[bytes, tuple[bytes, ...] | None]]
    ) -> list[CheckpointRow | Unreadable]:
        fields = self._try(FIELDS)
        tails, states, digests, sizes = headers.tails, headers.states, headers.digests, headers.sizes
        keyframes = frozenset(headers.keyframes)
        found: list[CheckpointRow | Unreadable] = []
        starts = id_starts([self.sequences[at] for at in places], self.uid)
        for at, start, (delta, refs) in zip(places, starts, deltas, strict=True):
            parent = self.parents[at]
            tail = tails[TAIL_BYTES * at : TAIL_BYTES * (at + 1)]
            span = slice(DIGEST_BYTES * at, DIGEST_BYTES * (at + 1))
            parent_id, parent_digest = self._parent(headers, at, parent)
            found.append(
                CheckpointRow(
                    self.sequences[at],
                    headers.ids.get(at) or start + tail.hex(),
                    tail,
                    parent,
                    parent_id,
                    parent_digest,
                    states[span],
                    digests[span],
                    sizes[at],
                    at in keyframes,
                    headers.took.get(at),
                    b"" if fields is None else fields[at],
                    delta,
                    refs,
                )
            )
        return found

    def _parent(self, headers: _Headers, at: int, parent: int | None) -> tuple[str | None, bytes | None]:
        given = headers.parents.get(at)
        if given is not None:
            short, digest = given
            if short is None:
                return None, digest
            return short[1:].hex() if short[:1] == _RAW else short[1:].decode(errors="replace"), digest
        place = self.places[parent or 0]
        id_ = headers.ids.get(place)
        if id_ is None:
            id_ = make_id(parent or 0, self.uid, headers.tails[TAIL_BYTES * place : TAIL_BYTES * (place + 1)])
        return id_, headers.digests[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]

    def _deltas(self, places: Sequence[int]) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
        """Deltas as they were, with what they refer to."""
        shapes: _Shapes | None = self._try(SHAPES)
        values: bytes | None = self._try(VALUES)
        if shapes is None:  # one that does not open, and has no shape
            return [(_INLINE + _NO_SEAL, ())] * len(places)
        ends = list(itertools.accumulate(shapes.sizes))
        if values is not None and len(values) != ends[-1]:
            values = None
        odd = frozenset(shapes.odd)
        found: list[tuple[bytes, tuple[bytes, ...] | None]] = []
        for at in places:
            size, end = shapes.sizes[at], ends[at]
            # Without its values the seal of a delta is broken, and its shape still decodes: that is salvaged.
            delta = bytes(size) if values is None else values[end - size : end]
            if at not in odd:
                seal = _NO_SEAL if values is None else shapes.seals[SEAL_BYTES * at : SEAL_BYTES * (at + 1)]
                delta = b"".join([_INLINE, seal, shapes.heads[at], delta])
            refs = shapes.refs.get(at, b"") if shapes.refs else b""
            found.append((delta, tuple([refs[i : i + DIGEST_BYTES] for i in range(0, len(refs), DIGEST_BYTES)])))
        return found

    def _try(self, frame: int) -> Any:
        try:
            return self._open(frame)
        except CorruptionError:
            return None

    def _open(self, frame: int) -> Any:
        """A frame, decoded and of the right length; CorruptionError if it is damaged."""
        opened = self._opened.get(frame)
        if opened is None:
            try:
                opened = self._opened[frame] = self._checked(frame, self._unpack(frame))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self._damaged("is sealed but does not decode") from error
        return opened

    def _unpack(self, frame: int) -> bytes:
        kept, data = self.kept, self._frames[frame]
        rest = data[SEAL_BYTES:]
        if _seal(rest, self.uid, kept.first, kept.last, frame) != data[:SEAL_BYTES]:
            raise self._damaged("is damaged, or stands in the place of another")
        size = int.from_bytes(rest[:_LENGTH_BYTES], "big")
        if size > self._limit:
            raise self._damaged("announces more than it may have")
        try:
            press: Any = zstd.ZstdDecompressor()
            found = bytes(press.decompress(rest[_LENGTH_BYTES:], size + 1))
        except zstd.ZstdError as error:
            raise self._damaged("does not unpack") from error
        if len(found) != size or not press.eof:
            raise self._damaged("does not unpack to what it announces")
        return found

    def _checked(self, frame: int, data: bytes) -> Any:
        count = len(self.sequences)
        if frame == VALUES:
            return data
        if frame == FIELDS:
            fields = _fields(data)
            if len(fields) == count:
                return fields
        elif frame == SHAPES:
            shapes = _shapes(data)
            fits = [len(shapes.seals), len(shapes.heads), len(shapes.sizes)] == [SEAL_BYTES * count, count, count]
            if fits and min(shapes.sizes) >= 0 and sum(shapes.sizes) <= self._limit:
                return shapes
        else:
            headers = _headers(data)
            lengths = [len(headers.tails), len(headers.states), len(headers.digests), len(headers.sizes)]
            if lengths == [TAIL_BYTES * count, DIGEST_BYTES * count, DIGEST_BYTES * count, count]:
                rests = [at for at, parent in enumerate(self.parents) if parent is None or parent not in self.places]
                if all([at in headers.parents for at in rests]):
                    return headers
        raise self._damaged("has other checkpoints than it says")

    def _damaged(self, what: str) -> CorruptionError:
        span = f"#{self.kept.first} to #{self.kept.last}"
        return CorruptionError(f"the segment of checkpoints {span} {what}")


def _cut(body: bytes) -> list[bytes]:
    frames = []
    at = _TABLE_BYTES
    for number in _FRAMES:
        size = int.from_bytes(body[_LENGTH_BYTES * number : _LENGTH_BYTES * (number + 1)], "big")
        frames.append(body[at : at + size])
        at += size
    if at != len(body):
        frames = [b""] * len(_FRAMES)
    return frames


# Segments that were opened here last, by their key and their very bytes: what is the same in every byte need not be
# unsealed and unpacked again for the next checkpoint in it.
_recent: dict[tuple[bytes, int], Segment] = {}
_recent_lock = threading.Lock()
_MOST_RECENT = 8


def open_segment(kept: SegmentRow, *, uid: bytes) -> Segment:
    """A segment as it was kept. Nothing is raised: what is damaged shows in the rows."""
    known = _recent.get((uid, kept.first))
    if known is not None and msgspec.structs.replace(known.kept, refs=kept.refs) == kept:
        return known
    opened = Segment(kept, uid)
    _remember(opened)
    return opened


def _remember(opened: Segment) -> None:
    key = opened.uid, opened.kept.first
    with _recent_lock:
        _recent.pop(key, None)
        while len(_recent) >= _MOST_RECENT:
            _recent.pop(next(iter(_recent)))
        _recent[key] = opened
