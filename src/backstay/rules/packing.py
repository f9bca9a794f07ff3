"""The rule of packing: checkpoints that are rows of their own become a segment, if they are still as they were read.

Packing changes where checkpoints lie and nothing else. So it refuses nothing: where anything is not as it was read
(another process packed them, or deleted one), it writes nothing and says so.
"""

from __future__ import annotations

import msgspec

from backstay.port import Ask, Batch, CheckpointRow, Decide, SegmentRow, Unreadable, View


class Packing(msgspec.Struct, frozen=True, gc=False):
    """Rows to be packed, the oldest that are not, with the segments before them that are merged with them, as read.

    `segments` hold exactly these, prepared: compressing takes time, and a rule has none. `packed` is up to where the
    session was packed. With `touched` they are not read again: every write that changes a checkpoint gives the
    session's line another number, so as long as it has this one, they are as they were.
    """

    session: str
    uid: bytes
    packed: int
    rows: tuple[CheckpointRow, ...]
    merged: tuple[SegmentRow, ...]
    segments: tuple[SegmentRow, ...]
    touched: int | None = None

    @property
    def ask(self) -> Ask:
        """The rows that the rule reads."""
        if self.touched is not None:
            return Ask(self.session, lazy=True)
        return Ask(
            self.session,
            sequences=tuple([row.sequence for row in self.rows]),
            segments=tuple([segment.first for segment in self.merged]),
            lazy=True,
        )


def pack(packing: Packing) -> Decide:
    """The rule; its answer is whether they are packed now."""

    def decide(view: View) -> Batch:
        line = view.session
        if line is None or (line.uid, line.packed) != (packing.uid, packing.packed):
            return Batch(answer=False)
        if packing.touched is not None:
            same = line.touched == packing.touched
        else:
            rows = [is_same(view.checkpoints.get(row.sequence), row) for row in packing.rows]
            segments = [is_same(view.segments.get(segment.first), segment) for segment in packing.merged]
            same = all(rows) and all(segments)
        if not same:
            return Batch(answer=False)
        # Not `touched`: no listing shows it, and a process that looks for writes to this session need not notice.
        packed = msgspec.structs.replace(line, packed=packing.rows[-1].sequence)
        # Lazy: without it the same checkpoints lie where they lay, and they are durable there.
        return Batch((packed, *packing.segments), lazy=True, answer=True)

    return decide


def is_same(found: CheckpointRow | SegmentRow | Unreadable | None, expected: CheckpointRow | SegmentRow) -> bool:
    """True if a row is there as it was read, whatever is known of what it refers to."""
    if found == expected:
        return True
    return type(found) is type(expected) and msgspec.structs.replace(found, refs=None) == msgspec.structs.replace(
        expected, refs=None
    )
