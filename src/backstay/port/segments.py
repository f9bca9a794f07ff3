"""Segments: older checkpoints of a session packed together, and here opened again, byte for byte as they were.

A segment has four frames, because different readers need different parts of it:

    headers   tails, digests, sizes, foreign ids, the calls that were taken in
    fields    the fields of each checkpoint: a log needs these two and no more
    shapes    of each delta all but its values, with its own seal
    values    the values

Each is compressed by itself and has a seal of its own that names the session's uid, `first`, `last`, the frame and the
seal of the frame that it belongs to: frames of two versions of a segment do not open together. A delta keeps the seal
it was made with. Packing looks at it, and the seal of the frame stands for it from then on. Where it does not hold, or
the delta rests on another segment, the delta is *unchecked*, and a reader looks at its own seal: what was damaged
before it was packed is found damaged behind it.

`links` says which sequences there are and what each rests on, as runs in which each rests on the one before.

A frame that does not open costs what is in it. Without headers all checkpoints of the segment are Unreadable; without
fields or shapes they are rows that do not verify; without values `salvage` still finds the shape of each delta.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import accumulate, chain, compress
from operator import not_
from typing import Any

import msgspec

from backstay.delta import each_op
from backstay.errors import CorruptionError
from backstay.ids import MAX_SEQUENCE, TAIL_BYTES, id_starts, make_id
from backstay.port.rows import CheckpointRow, SegmentRow, Took, Unreadable
from backstay.sealing import DIGEST_BYTES, MAX_ROW_BYTES, SEAL_BYTES, DeltaParts, join_delta, split_digests

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_ENTRIES = 128
MAX_BYTES = 256 * 1024  # of all entries before they are compressed; one that is longer is a segment by itself

NOT_READ = b"\2"  # for the delta of a packed checkpoint where nobody asked for it: it does not open as one

_MAX_FRAME_BYTES = 4 * MAX_BYTES
_MAX_LONE_BYTES = 4 * MAX_ROW_BYTES
_INLINE = b"\0"
NO_SEAL = bytes(SEAL_BYTES)
RAW_ID, TEXT_ID = b"R", b"T"  # an id in few bytes: one of our making as its raw bytes, any other as its text
LENGTH_BYTES = 4


FRAMES = HEADERS, FIELDS, SHAPES, VALUES = range(4)

encode = msgspec.msgpack.Encoder().encode


class LinkRun(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Checkpoints whose sequences follow one another, each resting on the one before, the first on `parent`."""

    start: int
    count: int
    parent: int | None


class Headers(msgspec.Struct, frozen=True, gc=False, array_like=True):
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


class Shapes(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Of each delta its seal, how many ops it has, how long these and its values are; `refs` are by place.

    A delta that is not such a record (it was cut into blobs, or is none) stands among the values as it was: `odd`.
    `unchecked` are the places whose seal does not hold, or could not be looked at. A delta that puts items where the
    one at the place before it has put its own is kept without its op, as how many they are: `grown`, 0 for all others.
    `lengths` has how long that op was.
    """

    seals: bytes
    counts: list[int]
    lengths: list[int]
    sizes: list[int]
    ops: bytes
    refs: dict[int, bytes]
    odd: list[int]
    unchecked: list[int]
    grown: list[int]


decode_runs = msgspec.msgpack.Decoder(list[LinkRun]).decode
decode_headers = msgspec.msgpack.Decoder(Headers).decode
decode_fields = msgspec.msgpack.Decoder(list[bytes]).decode
decode_shapes = msgspec.msgpack.Decoder(Shapes).decode


class Segment:
    """A segment that was read. Frames are opened when they are needed, and then stay so."""

    __slots__ = (
        "_firsts",
        "_frames",
        "_limit",
        "_opened",
        "_parents",
        "_runs",
        "_starts",
        "broken",
        "kept",
        "sequences",
        "uid",
        "used",
    )

    def __init__(self, kept: SegmentRow, uid: bytes) -> None:
        self.kept = kept
        self.uid = uid
        self.broken = ""  # why nothing of it can be read
        self.used = False  # True once it was asked for again: then it is worth keeping what is long
        self._opened: dict[int, Any] = {}
        self._frames = cut_frames(kept.body)
        self._limit = _MAX_LONE_BYTES
        self.sequences: Sequence[int] = ()
        self._runs: list[LinkRun] = []
        self._parents: list[int | None] = []  # made when many are asked for
        self._firsts: list[int] = []  # the sequences with which runs begin
        self._starts: list[int] = []  # and their places
        try:
            self._open_links()
        except CorruptionError as error:
            # Which there were cannot be told: each that may have been is unreadable in its place.
            self.broken = f"{error.args[0]}"
            self.sequences = range(kept.first, min(kept.last, kept.first + MAX_ENTRIES - 1) + 1)
            self._runs = [LinkRun(at, 1, None) for at in self.sequences]
            self._firsts, self._starts = list(self.sequences), list(range(len(self.sequences)))
        if len(self.sequences) > 1:
            self._limit = _MAX_FRAME_BYTES

    def _open_links(self) -> None:
        kept = self.kept
        data = kept.links[SEAL_BYTES:]
        if seal_frame(data, self.uid, kept.first, kept.last, "links") != kept.links[:SEAL_BYTES]:
            raise self._damaged("is damaged, or stands in the place of another")
        try:
            runs = self._runs = decode_runs(data)
        except msgspec.DecodeError as error:
            raise self._damaged("is sealed but does not decode") from error
        before = count = 0
        for run in runs:
            end = run.start + run.count
            if not before < run.start < end <= MAX_SEQUENCE + 1 or count + run.count > MAX_ENTRIES:
                raise self._damaged("has links that cannot be")
            if run.parent is not None and not 0 <= run.parent < run.start:
                raise self._damaged("has links that cannot be")
            self._firsts.append(run.start)
            self._starts.append(count)
            count += run.count
            before = end - 1
        self.sequences = list(chain.from_iterable([range(run.start, run.start + run.count) for run in runs]))
        outside = [run.parent for run in runs if run.parent is not None and self.place(run.parent) is None]
        needs = min(outside, default=None)
        if not runs or (runs[0].start, before, needs) != (kept.first, kept.last, kept.needs):
            raise self._damaged("does not agree with its index")

    def place(self, sequence: int) -> int | None:
        """The place of a checkpoint; None if it is not in this segment."""
        number = bisect_right(self._firsts, sequence) - 1
        behind = sequence - self._firsts[number]
        return self._starts[number] + behind if number >= 0 and behind < self._runs[number].count else None

    def parent(self, at: int) -> int | None:
        """What the checkpoint at a place rests on."""
        number = bisect_right(self._starts, at) - 1
        return self._runs[number].parent if self._starts[number] == at else self.sequences[at] - 1

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def size_bytes(self) -> int:
        """What its frames announce to have before they are compressed."""
        return sum([int.from_bytes(frame[SEAL_BYTES : SEAL_BYTES + LENGTH_BYTES], "big") for frame in self._frames])

    @property
    def links(self) -> Iterator[tuple[int, int | None]]:
        """Each checkpoint and what it rests on."""
        return zip(self.sequences, self._all_parents(), strict=True)

    def _all_parents(self) -> list[int | None]:
        parents = self._parents
        if not parents:
            runs = [(run.parent, *range(run.start, run.start + run.count - 1)) for run in self._runs]
            parents = self._parents = list(chain.from_iterable(runs))  # at once: threads share a segment
        return parents

    @property
    def is_readable(self) -> bool:
        """True if its checkpoints can be told, whatever became of their fields and deltas."""
        return not self.broken and self._try(HEADERS) is not None

    @property
    def opened(self) -> set[int]:
        """The frames that were opened so far."""
        return set(self._opened)

    @property
    def refs(self) -> dict[int, bytes]:
        """By place, the blobs that some deltas need, joined; none if that cannot be read."""
        shapes = self._try(SHAPES)
        return {} if shapes is None else shapes.refs

    @property
    def sealed(self) -> set[int]:
        """The sequences whose deltas are as their own seals say: packing has looked at these."""
        shapes, values = self._try(SHAPES), self._try(VALUES)
        if shapes is None or values is None or len(values) != sum(shapes.sizes):
            return set()
        doubtful = {*shapes.odd, *shapes.unchecked}
        return {sequence for at, sequence in enumerate(self.sequences) if at not in doubtful}

    def foreign(self) -> dict[int, str]:
        """By sequence, the ids that do not say where their row is; CorruptionError if that cannot be read."""
        if self.broken:
            raise CorruptionError(self.broken)
        return {self.sequences[at]: id_ for at, id_ in self.open(HEADERS).ids.items()}

    def keyframes(self) -> set[int]:
        """The sequences of those that have a keyframe; CorruptionError if that cannot be read."""
        if self.broken:
            raise CorruptionError(self.broken)
        return {self.sequences[at] for at in self.open(HEADERS).keyframes}

    def row(self, sequence: int, *, delta: bool = False) -> CheckpointRow | Unreadable | None:
        """One checkpoint; None if it is not in this segment. Without its delta unless that is asked for."""
        at = self.place(sequence)
        return None if at is None else self.rows((at,), delta=delta)[0]

    def line(self, sequence: int) -> list[int]:
        """The places of a checkpoint and of its ancestors in this segment, down to one with a keyframe."""
        found: list[int] = []
        at = self.place(sequence)
        headers = None if self.broken else self._try(HEADERS)
        keyframes = [] if headers is None else sorted(headers.keyframes)
        while at is not None:
            run = bisect_right(self._starts, at) - 1
            first = self._starts[run]  # each of a run rests on the one before
            last = bisect_right(keyframes, at)
            keyframe = keyframes[last - 1] if last else -1
            found += range(at, max(first, keyframe) - 1, -1)
            parent = self._runs[run].parent
            at = None if parent is None or keyframe >= first else self.place(parent)
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
            headers: Headers = self.open(HEADERS)
        except CorruptionError as error:
            why = str(error.args[0])
            return [Unreadable(self.sequences[at], why, self.parent(at)) for at in places]
        deltas: list[tuple[bytes, tuple[bytes, ...] | None]] = [(NOT_READ, None)] * len(places)
        if delta:
            deltas = self._deltas(places)
        return self._rows(headers, places, deltas if refs else [(data, None) for data, _ in deltas])

    def _rows(
        self,
        headers: Headers,
        places: Sequence[int],
        deltas: Sequence[tuple[bytes, tuple[bytes, ...] | None]],
        *,
        fields: bool = True,
    ) -> list[CheckpointRow | Unreadable]:
        opened_fields = self._try(FIELDS) if fields else None
        tails, states, digests, sizes = headers.tails, headers.states, headers.digests, headers.sizes
        keyframes = frozenset(headers.keyframes)
        parents = self._all_parents() if len(places) > 1 else {at: self.parent(at) for at in places}
        found: list[CheckpointRow | Unreadable] = []
        starts = id_starts([self.sequences[at] for at in places], self.uid)
        for at, start, (delta, refs) in zip(places, starts, deltas, strict=True):
            parent = parents[at]
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
                    b"" if opened_fields is None else opened_fields[at],
                    delta,
                    refs,
                )
            )
        return found

    def _parent(self, headers: Headers, at: int, parent: int | None) -> tuple[str | None, bytes | None]:
        given = headers.parents.get(at)
        if given is not None:
            short, digest = given
            if short is None:
                return None, digest
            return short[1:].hex() if short[:1] == RAW_ID else short[1:].decode(errors="replace"), digest
        place = at - 1 if at and self.sequences[at - 1] == parent else self.place(parent or 0) or 0
        id_ = headers.ids.get(place)
        if id_ is None:
            id_ = make_id(parent or 0, self.uid, headers.tails[TAIL_BYTES * place : TAIL_BYTES * (place + 1)])
        return id_, headers.digests[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]

    def bare_row(self, at: int) -> CheckpointRow | Unreadable:
        """The checkpoint at a place without its fields and its delta: what a reader of another state needs of it."""
        if not self.is_readable:
            return self.rows((at,))[0]
        return self._rows(self.open(HEADERS), (at,), [(NOT_READ, None)], fields=False)[0]

    def _deltas(self, places: Sequence[int]) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
        """Deltas as they were, with what they refer to."""
        shapes: Shapes | None = self._try(SHAPES)
        values: bytes | None = self._try(VALUES)
        try:
            every = [] if shapes is None else each_op(shapes.ops, shapes.lengths, shapes.grown)
        except CorruptionError:
            shapes = None
        if shapes is None:  # one that does not open, and has no shape
            return [(_INLINE + NO_SEAL, ())] * len(places)
        ends = list(accumulate(shapes.sizes))
        if values is not None and len(values) != ends[-1]:
            values = None
        odd = frozenset(shapes.odd)
        found: list[tuple[bytes, tuple[bytes, ...] | None]] = []
        for at in places:
            size, end, refs = shapes.sizes[at], ends[at], shapes.refs.get(at, b"")
            # Without its values the seal of a delta is broken, and its shape still decodes: that is salvaged.
            delta = bytes(size) if values is None else values[end - size : end]
            if at not in odd:
                seal = NO_SEAL if values is None else shapes.seals[SEAL_BYTES * at : SEAL_BYTES * (at + 1)]
                delta = join_delta(DeltaParts(seal, shapes.counts[at], every[at], refs, delta))
            found.append((delta, split_digests(refs)))
        return found

    def _try(self, frame: int) -> Any:
        try:
            return self.open(frame)
        except CorruptionError:
            return None

    def open(self, frame: int, *, keep: bool = True) -> Any:
        """A frame, decoded and of the right length; CorruptionError if it is damaged. Kept for the next time."""
        opened = self._opened.get(frame)
        if opened is None:
            try:
                opened = self._checked(frame, self._unpack(frame))
                if keep:
                    self._opened[frame] = opened
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self._damaged("is sealed but does not decode") from error
        return opened

    def _unpack(self, frame: int) -> bytes | memoryview:
        kept, data = self.kept, self._frames[frame]
        seal, rest = data[:SEAL_BYTES], data[SEAL_BYTES:]
        if seal_frame(rest, self.uid, kept.first, kept.last, frame, owner_of(frame, self._frames)) != seal:
            raise self._damaged("is damaged, or stands in the place of another")
        size = int.from_bytes(rest[:LENGTH_BYTES], "big")
        if size > self._limit:
            raise self._damaged("announces more than it may have")
        if size == len(rest) - LENGTH_BYTES:
            return rest[LENGTH_BYTES:]
        try:
            press: Any = zstd.ZstdDecompressor()
            found = bytes(press.decompress(rest[LENGTH_BYTES:], size + 1))
        except zstd.ZstdError as error:
            raise self._damaged("does not unpack") from error
        if len(found) != size or not press.eof:
            raise self._damaged("does not unpack to what it announces")
        return found

    def _checked(self, frame: int, data: bytes | memoryview) -> Any:
        count = len(self.sequences)
        if frame == VALUES:
            return bytes(data)
        if frame == FIELDS:
            fields = decode_fields(data)
            if len(fields) == count:
                return fields
        elif frame == SHAPES:
            shapes = decode_shapes(data)
            numbers = shapes.counts, shapes.lengths, shapes.sizes, shapes.grown
            fits = [len(shapes.seals), *map(len, numbers)] == [SEAL_BYTES * count, *[count] * len(numbers)]
            fits = fits and min(map(min, numbers)) >= 0 and max(map(max, numbers)) < 1 << 32
            ops = sum(compress(shapes.lengths, map(not_, shapes.grown)))
            if fits and sum(shapes.sizes) <= self._limit and ops == len(shapes.ops):
                return shapes
        else:
            headers = decode_headers(data)
            lengths = [len(headers.tails), len(headers.states), len(headers.digests), len(headers.sizes)]
            if lengths == [TAIL_BYTES * count, DIGEST_BYTES * count, DIGEST_BYTES * count, count]:
                # Those that rest on an entry of this segment take its id and digest from there.
                rests = [
                    at
                    for at, run in zip(self._starts, self._runs, strict=True)
                    if run.parent is None or self.place(run.parent) is None
                ]
                if all([at in headers.parents for at in rests]):
                    return headers
        raise self._damaged("has other checkpoints than it says")

    def _damaged(self, what: str) -> CorruptionError:
        span = f"#{self.kept.first} to #{self.kept.last}"
        return CorruptionError(f"the segment of checkpoints {span} {what}")


# frames


def seal_frame(
    data: bytes | memoryview, uid: bytes, first: int, last: int, frame: int | str, owner: bytes = b""
) -> bytes:
    """The seal of a frame, or of the links; `owner` as below."""
    hashed = sha256(encode(("segment", uid, first, last, frame, owner)))
    hashed.update(data)
    return hashed.digest()[:SEAL_BYTES]


def owner_of(frame: int, frames: Sequence[bytes | memoryview]) -> bytes:
    """The seal of the frame that one belongs to: the shapes for the values, the headers for the others."""
    return b"" if frame == HEADERS else bytes(frames[SHAPES if frame == VALUES else HEADERS][:SEAL_BYTES])


def join_frames(frames: Sequence[bytes | memoryview]) -> bytes:
    """The body of a segment."""
    return b"".join([*[len(frame).to_bytes(LENGTH_BYTES, "big") for frame in frames], *frames])


def cut_frames(body: bytes) -> list[memoryview]:
    """The frames of a body, not copied; empty ones where their lengths do not add up."""
    frames = []
    whole = memoryview(body)
    at = len(FRAMES) * LENGTH_BYTES
    for number in FRAMES:
        size = int.from_bytes(body[LENGTH_BYTES * number : LENGTH_BYTES * (number + 1)], "big")
        frames.append(whole[at : at + size])
        at += size
    return frames if at == len(body) else [memoryview(b"")] * len(FRAMES)


# Segments that were opened here last, by their key and their very bytes: what is the same in every byte need not be
# unsealed and unpacked again for the next checkpoint in it.
_recent: dict[tuple[bytes, int], Segment] = {}
_recent_lock = threading.Lock()
_MOST_RECENT = 8


def open_segment(kept: SegmentRow, *, uid: bytes) -> Segment:
    """A segment as it was kept. Nothing is raised: what is damaged shows in the rows."""
    key = uid, kept.first
    known = _recent.get(key)
    if known is not None and msgspec.structs.replace(known.kept, refs=kept.refs) == kept:
        known.used = True
        return known
    opened = Segment(kept, uid)
    with _recent_lock:
        _recent.pop(key, None)
        while len(_recent) >= _MOST_RECENT:
            _recent.pop(next(iter(_recent)))
        _recent[key] = opened
    return opened
