"""The rows that a state is read from, where the older ones lie in segments: none of these is opened by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from operator import add
from typing import overload

import msgspec

from backstay.delta import Stretch, each_op, merged_ops
from backstay.ids import TAIL_BYTES
from backstay.port.rows import CheckpointRow, Unreadable
from backstay.port.segments import HEADERS, SHAPES, VALUES, Headers, Segment, Shapes
from backstay.sealing import DIGEST_BYTES, SEAL_BYTES, DeltaParts, check_deltas

_ARRAY = b"\xdd"  # the header of a msgpack array, whose length follows in four bytes

Found = CheckpointRow | Unreadable


class Joined(msgspec.Struct, frozen=True):
    """Deltas that lead to the state with the digest `state`, as one record.

    `sizes` says how long each of them is, `refs` by their number what some of them refer to.
    """

    record: Stretch
    sizes: list[int]
    refs: dict[int, tuple[bytes, ...]]
    state: bytes


class PackedLine(Sequence[Found]):
    """Checkpoints from one with a keyframe on, each resting on the one before: places in segments, then rows.

    As a sequence it has all of them as rows. A reader of the state needs but the oldest, the newest and `deltas`.
    """

    __slots__ = ("_all", "parts", "rows")

    def __init__(self, parts: Sequence[tuple[Segment, Sequence[int]]], rows: Sequence[Found]) -> None:
        self.parts = parts
        self.rows = rows
        self._all: list[Found] = []

    def __len__(self) -> int:
        return sum([len(places) for _, places in self.parts]) + len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Found: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Found]: ...
    def __getitem__(self, index: int | slice) -> Found | Sequence[Found]:
        if index == 0:
            segment, places = self.parts[0]
            return segment.rows(places[:1], delta=True, refs=True)[0]
        if index == -1:
            segment, places = self.parts[-1]
            return self.rows[-1] if self.rows else segment.rows(places[-1:], delta=True, refs=True)[0]
        if not self._all:
            packed = [segment.rows(places, delta=True, refs=True) for segment, places in self.parts]
            self._all = [*chain.from_iterable(packed), *self.rows]
        return self._all[index]

    @property
    def refs(self) -> list[bytes]:
        """The blobs that the packed deltas need."""
        found: list[bytes] = []
        for number, (segment, places) in enumerate(self.parts):
            refs = segment.refs
            if refs:
                behind = frozenset(places if number else places[1:])
                found += chain.from_iterable([_split(joined) for at, joined in refs.items() if at in behind])
        return found

    @property
    def oldest(self) -> Found:
        """The oldest without its fields and its delta: its keyframe stands for these."""
        segment, places = self.parts[0]
        return segment.bare_row(places[0])

    def deltas(self, state: bytes) -> list[Joined] | None:
        """The packed deltas, joined as far as they lie together; `state` is the digest of the oldest one's state.

        None if one of them is not such that it can be joined. CorruptionError if they are damaged; damaged values are
        noticed when they are unpacked.
        """
        found: list[Joined] = []
        for number, (segment, places) in enumerate(self.parts):
            behind = places if number else places[1:]
            if behind:
                shapes: Shapes = segment.open(SHAPES)
                if shapes.odd and not frozenset(shapes.odd).isdisjoint(behind):
                    return None
                found.append(_joined(segment, shapes, behind, state))
                state = found[-1].state
        return found


def _joined(segment: Segment, shapes: Shapes, places: Sequence[int], before: bytes) -> Joined:
    lengths, sizes = [_picked(numbers, places) for numbers in (shapes.lengths, shapes.sizes)]
    refs: dict[int, tuple[bytes, ...]] = {}
    if shapes.refs:
        refs = {n: _split(shapes.refs[at]) for n, at in enumerate(places) if at in shapes.refs}
    if _lie_together(places):
        span = range(places[0], places[-1] + 1)
        count, ops = merged_ops(shapes.ops, shapes.counts, shapes.lengths, shapes.grown, span)
    else:
        every = each_op(shapes.ops, shapes.lengths, shapes.grown)
        count, ops = sum([shapes.counts[at] for at in places]), b"".join([every[at] for at in places])

    def unpack(header: bytes) -> bytes:
        values: bytes = segment.open(VALUES, keep=segment.used)
        check_deltas(_unchecked(segment, shapes, values, places, before), uid=segment.uid)
        return b"".join([header, *_cut(values, shapes.sizes, places)])

    named = tuple(chain.from_iterable(refs.values()))
    record = Stretch(_ARRAY + count.to_bytes(4, "big") + ops, named, len(places), unpack)
    state = _digest(segment.open(HEADERS).states, places[-1])
    return Joined(record, list(map(add, lengths, sizes)), refs, state)


def _unchecked(
    segment: Segment, shapes: Shapes, values: bytes, places: Sequence[int], before: bytes
) -> Iterator[tuple[DeltaParts, bytes, bytes, bytes]]:
    """The deltas whose own seals are to be looked at, each with its tail and the states that it leads from and to."""
    headers: Headers = segment.open(HEADERS)
    for at in shapes.unchecked:
        if at in places:
            above = places.index(at)
            parts = DeltaParts(
                shapes.seals[SEAL_BYTES * at : SEAL_BYTES * (at + 1)],
                shapes.counts[at],
                each_op(shapes.ops, shapes.lengths[: at + 1], shapes.grown[: at + 1])[-1],
                shapes.refs.get(at, b""),
                b"".join(_cut(values, shapes.sizes, (at,))),
            )
            base = before if above == 0 else _digest(headers.states, places[above - 1])
            yield parts, headers.tails[TAIL_BYTES * at : TAIL_BYTES * (at + 1)], base, _digest(headers.states, at)


def _digest(joined: bytes, at: int) -> bytes:
    return joined[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)]


def _split(refs: bytes) -> tuple[bytes, ...]:
    return tuple([_digest(refs, at) for at in range(len(refs) // DIGEST_BYTES)])


def _lie_together(places: Sequence[int]) -> bool:
    """True if no entry of another branch lies between them, as is usual."""
    return places[-1] - places[0] + 1 == len(places)


def _picked(numbers: list[int], places: Sequence[int]) -> list[int]:
    if _lie_together(places):
        return numbers[places[0] : places[-1] + 1]
    return [numbers[at] for at in places]


def _cut(data: bytes, sizes: list[int], places: Sequence[int]) -> list[memoryview]:
    """Some of the parts that were joined."""
    whole = memoryview(data)
    if _lie_together(places):
        start = sum(sizes[: places[0]])
        return [whole[start : start + sum(sizes[places[0] : places[-1] + 1])]]
    ends = list(accumulate(sizes))
    return [whole[ends[at] - sizes[at] : ends[at]] for at in places]
