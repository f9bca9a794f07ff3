"""Segments as the server keeps them, and the way along them.

The server follows parents without opening anything: `starts` and `parents` repeat what `links` says, as the first
checkpoint of each run and what that rests on. Here the sealed links count.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from backstay.backends.postgres.functions import BEYOND, RING
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.port import CheckpointRow, SegmentRow, Unreadable
from backstay.port.packed_line import PackedLine
from backstay.port.segments import Segment, open_segment

_HEAD = struct.Struct("!4q")


def slot_of(sequence: int, packed: int) -> int:
    """The row that a new checkpoint takes: one of the ring, if all that may have had it before are packed."""
    return sequence & (RING - 1) if sequence - packed <= RING else sequence | BEYOND


def slots_of(sequences: Iterable[int]) -> list[int]:
    """The rows that checkpoints may have."""
    return [slot for at in sequences for slot in (at & (RING - 1), at | BEYOND)]


def segment_of(data: bytes) -> SegmentRow:
    """A segment as functions of the server give it."""
    first, last, needs, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    return SegmentRow(first, last, None if needs == -1 else needs, data[_HEAD.size : end], data[end:])


def covering(segments: Mapping[int, SegmentRow], sequence: int) -> SegmentRow | None:
    """The segment that a checkpoint lies in, if it is packed."""
    first = max([at for at in segments if at <= sequence], default=None)
    return None if first is None or segments[first].last < sequence else segments[first]


def runs_of(segment: Segment) -> tuple[list[int], list[int | None]]:
    """The first checkpoints of all runs, and what each rests on."""
    before: int | None = None
    starts: list[int] = []
    parents: list[int | None] = []
    for sequence, parent in segment.links:
        if before is None or sequence != before + 1 or parent != before:
            starts.append(sequence)
            parents.append(parent)
        before = sequence
    return starts, parents


def index_of(segment: Segment) -> list[Any]:
    """What the server knows of a segment's links: how many checkpoints there are, and their runs."""
    return [len(segment), *runs_of(segment)]


def children(segments: Iterable[SegmentRow], parents: Collection[int], uid: bytes) -> dict[int, list[int]]:
    """The packed checkpoints that rest on some others."""
    found: dict[int, set[int]] = {at: set() for at in parents}
    for kept in segments if found else ():
        segment = Segment(kept, uid)
        if segment.broken:
            raise CorruptionError(f"{segment.broken}", hint=RUN_VERIFY)
        for sequence, parent in segment.links:
            if parent in found:
                found[parent].add(sequence)
    return {at: sorted(each) for at, each in found.items()}


def straight(
    at: int,
    rows: Mapping[int, CheckpointRow | Unreadable],
    segments: Mapping[int, SegmentRow],
    *,
    uid: bytes,
    stop: int | None,
) -> PackedLine | None:
    """The same from the one with a keyframe on, without a row for any that is packed; None if anything is amiss.

    Then they are looked at one by one, and what is wrong is said. None also where none is packed.
    """
    own: list[CheckpointRow | Unreadable] = []
    before: int | None = at
    while before is not None and (row := rows.get(before)) is not None:
        if not isinstance(row, CheckpointRow) or row.keyframe:
            return None
        own.append(row)
        before = row.parent
    parts: list[tuple[Segment, list[int]]] = []
    while before is not None and (kept := covering(segments, before)) is not None:
        segment = open_segment(kept, uid=uid)
        places = segment.line(before)[::-1] if segment.is_readable else []
        if not places:
            return None
        parts.append((segment, places))
        if segment.sequences[places[0]] == stop:
            return PackedLine(parts[::-1], own[::-1])
        parent = segment.parent(places[0])
        before = parent if parent is not None and parent < kept.first else None
    return None


def walk(
    at: int | None,
    rows: Mapping[int, CheckpointRow | Unreadable],
    segments: Mapping[int, SegmentRow],
    *,
    uid: bytes,
    delta: bool,
) -> Iterator[CheckpointRow | Unreadable]:
    """A checkpoint and its ancestors, newest first; Unreadable where one is missing."""
    while at is not None:
        row = rows.get(at)
        kept = covering(segments, at) if row is None else None
        if row is not None:
            found = [row]
        elif kept is not None:
            segment = open_segment(kept, uid=uid)
            found = segment.rows(segment.line(at), delta=delta, refs=delta)
        else:
            found = []
        yield from found or [Unreadable(at, f"checkpoint #{at} is missing")]
        parent = found[-1].parent if found else None
        at = parent if parent is not None and parent < at else None
