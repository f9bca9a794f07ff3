"""Packing a segment: rows become columns, and these the four frames of a segment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from backstay.delta import ListEnd, end_behind, put_there
from backstay.errors import CorruptionError
from backstay.ids import TAIL_BYTES, id_starts, match_ours
from backstay.port.rows import CheckpointRow, SegmentRow
from backstay.port.segments import (
    HEADERS,
    LENGTH_BYTES,
    MAX_BYTES,
    MAX_ENTRIES,
    NO_SEAL,
    RAW_ID,
    SHAPES,
    TEXT_ID,
    Headers,
    Shapes,
    encode,
    join_frames,
    owner_of,
    seal_frame,
)
from backstay.sealing import DIGEST_BYTES, DeltaParts, compress, cut_delta, is_sealed

_LEVEL, _FAST_LEVEL = 6, 1  # a segment that will soon be merged is not worth more
# Parts of their length: what packs to no less is kept as it is. A decompressor costs a reader as much as hashing some
# kilobytes, and the shapes are short.
_WORTH_IT, _WORTH_IT_SHAPES = 0.95, 0.7
_RANDOM_BYTES = 80  # of an entry's headers: a tail, two digests, and some
_ENTRY_BYTES = 128  # what an entry weighs beside its fields and its delta


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


def pack_segment(rows: Sequence[CheckpointRow], *, uid: bytes, sealed: Collection[int] = ()) -> SegmentRow:
    """Rows by rising sequence as a segment; CorruptionError if they are no rows of ours. `refs` of each is known.

    `sealed`: the sequences of those whose deltas were sealed here, or whose seals were looked at before.
    """
    first, last = rows[0].sequence, rows[-1].sequence
    refs = dict.fromkeys([ref for row in rows for ref in row.refs or ()])
    frames = (_pack_headers(rows, uid), encode([row.fields for row in rows]), *_pack_deltas(rows, uid, sealed))
    level = _LEVEL if len(rows) > MAX_ENTRIES // 2 else _FAST_LEVEL
    packed: list[bytes] = []
    for number, data in enumerate(frames):
        # Most of the headers is random, and usually all but a few bytes.
        shorter = data if number == HEADERS and len(data) < _RANDOM_BYTES * len(rows) else compress(data, level)
        limit = _WORTH_IT_SHAPES if number == SHAPES else _WORTH_IT
        kept = shorter if len(shorter) < limit * len(data) else data
        content = len(data).to_bytes(LENGTH_BYTES, "big") + kept
        packed.append(seal_frame(content, uid, first, last, number, owner_of(number, packed)) + content)
    links, needs = _pack_links(rows, uid)
    return SegmentRow(first, last, needs, links, join_frames(packed), tuple(refs))


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
    data = encode(runs)
    return seal_frame(data, uid, rows[0].sequence, before, "links") + data, min(needs, default=None)


def _pack_headers(rows: Sequence[CheckpointRow], uid: bytes) -> bytes:
    places = {row.sequence: row for row in rows}
    parents: dict[int, tuple[bytes | None, bytes | None]] = {}
    ids: dict[int, str] = {}
    starts = id_starts(places, uid)
    for at, row in enumerate(rows):
        if len(row.tail) != TAIL_BYTES or not len(row.state_digest) == len(row.digest) == DIGEST_BYTES:
            raise CorruptionError(f"checkpoint #{row.sequence} has no digest")
        if row.id != starts[at] + row.tail.hex():
            ids[at] = row.id
        parent = None if row.parent is None else places.get(row.parent)
        if parent is None or (parent.id, parent.digest) != (row.parent_id, row.parent_digest):
            parents[at] = _short(row.parent_id), row.parent_digest
    return encode(
        Headers(
            b"".join([row.tail for row in rows]),
            b"".join([row.state_digest for row in rows]),
            b"".join([row.digest for row in rows]),
            [row.size_bytes for row in rows],
            [at for at, row in enumerate(rows) if row.keyframe],
            ids,
            parents,
            {at: row.took for at, row in enumerate(rows) if row.took is not None},
        )
    )


def _pack_deltas(rows: Sequence[CheckpointRow], uid: bytes, sealed: Collection[int]) -> tuple[bytes, bytes]:
    seals, counts, lengths, ops, sizes, values, grown = [], [], [], [], [], [], []
    states = {row.sequence: row.state_digest for row in rows}
    odd: list[int] = []
    unchecked: list[int] = []
    before: ListEnd | None = None
    for at, row in enumerate(rows):
        known = row.sequence in sealed
        parts = cut_delta(row.delta, as_sealed=known)
        if parts is None:
            odd.append(at)
            parts = DeltaParts(NO_SEAL, 0, b"", b"", row.delta)
        else:
            base = None if row.parent is None else states.get(row.parent)
            if base is None or not (
                known or is_sealed(row.delta, uid=uid, tail=row.tail, base=base, state=row.state_digest)
            ):
                unchecked.append(at)
        more = put_there(before, parts.ops) if before is not None and parts.count == 1 else 0
        if before is not None and more:
            before = ListEnd(before.path, before.at + more)
        else:
            before = end_behind(parts.ops) if parts.count == 1 else None
        seals.append(parts.seal)
        counts.append(parts.count)
        lengths.append(len(parts.ops))
        ops.append(b"" if more else parts.ops)
        grown.append(more)
        sizes.append(len(parts.body))
        values.append(parts.body)
    refs = {at: b"".join(row.refs) for at, row in enumerate(rows) if row.refs}
    shapes = Shapes(b"".join(seals), counts, lengths, sizes, b"".join(ops), refs, odd, unchecked, grown)
    return encode(shapes), b"".join(values)


def _short(id_: str | None) -> bytes | None:
    if id_ is None:
        return None
    return RAW_ID + bytes.fromhex(id_) if match_ours(id_) else TEXT_ID + id_.encode()
