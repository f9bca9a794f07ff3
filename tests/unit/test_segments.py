"""Packed checkpoints come out as they went in, and damage in a segment never becomes another row."""

from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.delta import ListEnd, Record, put_there, rebuild
from backstay.delta.record import SPLICE, decode_ops
from backstay.errors import CorruptionError
from backstay.ids import checkpoint_digest, make_id
from backstay.port import CheckpointRow, SegmentRow, Unreadable
from backstay.port import segments as codec
from backstay.port.packed_line import PackedLine
from backstay.port.rows import Took
from backstay.port.segment_packing import pack_segment, portions
from backstay.port.segments import MAX_BYTES, MAX_ENTRIES, NOT_READ, cut_frames, join_frames, open_segment
from backstay.sealing import open_delta, salvage, seal_delta, spill, unspill
from backstay.store.fields import Fields, encode_fields, read_fields

UID = bytes(range(16))
START = sha256(b"nothing").digest()


def a_row(
    sequence: int,
    parent: CheckpointRow | None,
    *,
    value: bytes,
    foreign: str = "",
    odd: bytes = b"",
    ops: bytes = b"\x91\x93\x00\x90\x00",
) -> CheckpointRow:
    """A checkpoint that holds `value`, resting on another."""
    tail = sha256(b"%d" % sequence).digest()[:7]
    id_ = foreign or make_id(sequence, UID, tail)
    state, base = sha256(value).digest(), START if parent is None else parent.state_digest
    refs = (sha256(b"large" + value).digest(),) if len(value) % 5 == 4 else ()
    record = Record(ops, value, refs)
    fields = encode_fields(Fields(at_us=sequence, label=value[:9].hex(), summary="said"))
    return CheckpointRow(
        sequence,
        id_,
        tail,
        None if parent is None else parent.sequence,
        None if parent is None else parent.id,
        None if parent is None else parent.digest,
        state,
        checkpoint_digest(
            id_=id_, parent=None if parent is None else parent.digest, state=state, sequence=sequence, fields=fields
        ),
        len(value),
        len(value) % 7 == 0,
        Took(3, sequence, 2, None if sequence % 2 else 1) if len(value) % 3 == 0 else None,
        fields,
        odd or spill(seal_delta(record, uid=UID, tail=tail, base=base, state=state))[0],
        refs,
    )


# Ops of a delta: another value, items behind a list, and what is neither.
OPS: st.SearchStrategy[list[Any]] = st.one_of(
    st.just([[0, [], 0]]),
    st.integers(1, 200).map(lambda count: [[2, ["messages"], 0, 0, count]]),
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)).map(lambda n: [[2, ["messages"], *n]]),
    st.just([[2, ["messages"], 1, 0, 1], [2, ["messages"], 2, 0, 1]]),
    st.just([[2, ["messages"], -1, 0, 1]]),
    st.just([[2, ["others", 0], 5, 0, 1]]),
    st.just([[2, "messages", 5, 0, 1]]),
    st.just([[1, ["a"], "b"]]),
)


def at_length(ops: list[Any]) -> bytes:
    """The same ops in other bytes than we write them: an op that is kept as a number would not give these."""
    return msgspec.msgpack.encode(ops).replace(b"\x95", b"\xdc\x00\x05")


@st.composite
def histories(draw: st.DrawFn, *, most: int = 40) -> list[CheckpointRow]:
    """Checkpoints by rising sequence, of several branches, with gaps where some were deleted."""
    rows: list[CheckpointRow] = []
    outside = a_row(3, None, value=b"before")
    sequence, end = 9, draw(st.sampled_from([0, 5, 120, 2**16 - 3]))
    for _ in range(draw(st.integers(1, most))):
        sequence += draw(st.sampled_from([1, 1, 1, 1, 2, 90]))
        parent = draw(st.sampled_from([rows[-1] if rows else outside, outside, None, *rows[-3:]]))
        value = draw(st.binary(max_size=60))
        foreign = draw(st.sampled_from(["", "", "", f"theirs-{sequence}"]))
        odd = draw(st.sampled_from([b"", b"", b"", b"\1" + START * 2, b"\0nonsense"]))
        ops = draw(OPS)
        if ops[0][0] == 2 and draw(st.integers(0, 3)):  # items behind those of the row before, as is usual
            ops, end = [[2, ["messages"], end, 0, ops[0][4]]], end + ops[0][4]
        encoded = draw(st.sampled_from([msgspec.msgpack.encode(ops), msgspec.msgpack.encode(ops), at_length(ops)]))
        rows.append(a_row(sequence, parent, value=value, foreign=foreign, odd=odd, ops=encoded))
    return rows


@given(histories())
def test_every_checkpoint_comes_out_of_a_segment_as_it_went_in(rows: list[CheckpointRow]) -> None:
    kept = pack_segment(rows, uid=UID)
    segment = open_segment(kept, uid=UID)
    assert segment.rows(delta=True, refs=True) == rows
    assert [segment.row(row.sequence, delta=True) for row in rows] == [
        msgspec.structs.replace(row, refs=None) for row in rows
    ]
    assert set(kept.refs or ()) == {ref for row in rows for ref in row.refs or ()}
    inside = {row.sequence for row in rows}
    needed = [row.parent for row in rows if row.parent is not None and row.parent not in inside]
    assert (kept.first, kept.last, kept.needs) == (rows[0].sequence, rows[-1].sequence, min(needed, default=None))
    assert segment.foreign() == {row.sequence: row.id for row in rows if row.id.startswith("theirs")}
    assert segment.row(rows[-1].sequence + 1) is None


@given(histories())
def test_deltas_that_are_joined_are_those_that_are_opened_one_by_one(rows: list[CheckpointRow]) -> None:
    segment = codec.Segment(pack_segment(rows, uid=UID), UID)
    by_sequence = {row.sequence: row for row in rows}
    for newest in rows:
        places = segment.line(newest.sequence)[::-1]
        assert [segment.sequences[at] for at in places] == line_of(newest, by_sequence)
        line = PackedLine([(segment, places)], ())
        assert list(line) == [by_sequence[segment.sequences[at]] for at in places]
        every = list(line)
        assert (line[0], line[-1]) == (every[0], every[-1])
        behind = [by_sequence[segment.sequences[at]] for at in places[1:]]
        joined = line.deltas(line[0].state_digest)  # type: ignore[union-attr]
        if joined is None:
            assert any([delta.delta[:1] == b"\1" or b"nonsense" in delta.delta for delta in behind])
            continue
        records = [
            open_delta(unspill(row.delta, {}), uid=UID, tail=row.tail, base=base.state_digest, state=row.state_digest)
            for base, row in pairwise([by_sequence[segment.sequences[places[0]]], *behind])
        ]
        assert b"".join([one.record.unpack(b"") for one in joined]) == b"".join([record.body for record in records])
        ops = [op for one in joined for op in decode_ops(one.record.ops)]
        assert merged(ops) == merged([op for record in records for op in decode_ops(record.ops)])
        assert [size for one in joined for size in one.sizes] == [record.size_bytes - 1 for record in records]
        assert line.refs == [ref for record in records for ref in record.refs]


def merged(ops: list[Any]) -> list[Any]:
    """Ops of which each that puts items behind those of the op before it is one with that."""
    found: list[Any] = []
    for op in ops:
        before = found[-1] if found else [0]
        if op[0] == before[0] == 2 and op[1] == before[1] and op[2] == before[2] + before[4] and op[3] == 0:
            found[-1] = [*before[:4], before[4] + op[4]]
        else:
            found.append(op)
    return found


def line_of(row: CheckpointRow, rows: dict[int, CheckpointRow]) -> list[int]:
    """A checkpoint and its ancestors, oldest first, down to one with a keyframe or the first that is here."""
    found = [row.sequence]
    while not row.keyframe and row.parent in rows:
        row = rows[row.parent or 0]
        found.insert(0, row.sequence)
    return found


@given(histories(), st.data())
def test_frames_of_two_versions_of_a_segment_do_not_open_together(
    rows: list[CheckpointRow], data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(rows) - 1))
    others = [
        msgspec.structs.replace(row, size_bytes=row.size_bytes + 1) if at == changed else row
        for at, row in enumerate(rows)
    ]
    now, before = (cut_frames(pack_segment(some, uid=UID).body) for some in (rows, others))
    frame = data.draw(st.sampled_from([codec.FIELDS, codec.SHAPES, codec.VALUES]))
    mixed = join_frames([*now[:frame], before[frame], *now[frame + 1 :]])
    segment = codec.Segment(msgspec.structs.replace(pack_segment(rows, uid=UID), body=mixed), UID)
    with pytest.raises(CorruptionError):
        segment.open(frame)


@given(histories())
def test_a_log_needs_neither_shapes_nor_values(rows: list[CheckpointRow]) -> None:
    segment = codec.Segment(pack_segment(rows, uid=UID), UID)
    bare = [msgspec.structs.replace(row, delta=NOT_READ, refs=None) for row in rows]
    assert segment.rows() == bare
    assert segment.opened == {codec.HEADERS, codec.FIELDS}
    for row in segment.rows():
        assert isinstance(row, CheckpointRow)
        read_fields(row)
        with pytest.raises(CorruptionError):  # a delta that was not read is not taken for none
            unspill(row.delta, {})


@given(histories(), st.data())
def test_segments_are_merged_and_thinned_without_another_byte(rows: list[CheckpointRow], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(rows)))
    parts = [pack_segment(part, uid=UID) for part in (rows[:cut], rows[cut:]) if part]
    merged = [row for part in parts for row in open_segment(part, uid=UID).rows(delta=True, refs=True)]
    assert merged == rows
    gone = data.draw(st.sets(st.sampled_from([row.sequence for row in rows]), max_size=len(rows) - 1))
    left = [row for row in rows if row.sequence not in gone]
    assert open_segment(pack_segment(left, uid=UID), uid=UID).rows(delta=True, refs=True) == left


@given(histories(most=8), st.data())
def test_a_flipped_bit_in_a_segment_is_found(rows: list[CheckpointRow], data: st.DataObject) -> None:
    kept = pack_segment(rows, uid=UID)
    part = data.draw(st.sampled_from(["links", "body"]))
    damaged = bytearray(getattr(kept, part))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    check_damaged(rows, msgspec.structs.replace(kept, **{part: bytes(damaged)}))


@given(histories(most=8), st.sampled_from(["first", "last", "needs"]), st.integers(1, 99))
def test_a_segment_in_the_place_of_another_does_not_open(rows: list[CheckpointRow], column: str, number: int) -> None:
    kept = pack_segment(rows, uid=UID)
    if getattr(kept, column) != number:
        moved = msgspec.structs.replace(kept, **{column: number})
        assert all([isinstance(row, Unreadable) for row in codec.Segment(moved, UID).rows(delta=True)])
    strange = codec.Segment(kept, bytes(16))
    assert all([isinstance(row, Unreadable) for row in strange.rows(delta=True)])


def check_damaged(rows: list[CheckpointRow], kept: SegmentRow) -> None:
    """Each row is as it was, or does not verify; and at least one does not."""
    segment = codec.Segment(kept, UID)
    found = {row.key if isinstance(row, Unreadable) else row.sequence: row for row in segment.rows(delta=True)}
    bad = 0
    for row in rows:
        seen = found.get(row.sequence)
        if not isinstance(seen, CheckpointRow):
            assert segment.broken or isinstance(seen, Unreadable)
            bad += 1
            continue
        whole = msgspec.structs.replace(seen, fields=row.fields, delta=row.delta, refs=row.refs)
        assert whole == row
        if seen.fields != row.fields:
            bad += 1
            with pytest.raises(CorruptionError):
                read_fields(seen)
        if seen.delta != row.delta:
            bad += 1
            with pytest.raises(CorruptionError):
                open_delta(unspill(seen.delta, {}), uid=UID, tail=seen.tail, base=START, state=seen.state_digest)
    assert bad or not any([row.delta for row in rows])


def test_without_its_values_the_shape_of_a_delta_can_be_salvaged() -> None:
    rows = [a_row(1, None, value=b"one value")]
    rows.append(a_row(2, rows[0], value=b"another"))
    kept = pack_segment(rows, uid=UID)
    body = kept.body[:-1] + bytes([kept.body[-1] ^ 1])  # the values are the last frame
    segment = codec.Segment(msgspec.structs.replace(kept, body=body), UID)
    for row in segment.rows(delta=True):
        assert isinstance(row, CheckpointRow)
        read_fields(row)
        record = salvage(unspill(row.delta, {}))
        assert record is not None
        assert record.ops == b"\x91\x93\x00\x90\x00"


def test_a_segment_holds_128_checkpoints_or_256_kib_and_a_longer_one_is_alone() -> None:
    many = [a_row(number, None, value=b"v") for number in range(1, 300)]
    assert [len(portion) for portion in portions(many)] == [MAX_ENTRIES, MAX_ENTRIES, 43]
    long = [a_row(number, None, value=bytes(100_000)) for number in range(1, 5)]
    long.insert(2, a_row(9, None, value=bytes(2 * MAX_BYTES)))
    assert [len(portion) for portion in portions(long)] == [2, 1, 2]
    lone = pack_segment([long[2]], uid=UID)
    assert open_segment(lone, uid=UID).rows(delta=True, refs=True) == [long[2]]


def with_shapes(kept: SegmentRow, **changes: Any) -> codec.Segment:
    """A segment whose shapes are others, sealed as if we had packed them: a file from outside may hold such."""
    frames = cut_frames(kept.body)
    shapes = msgspec.structs.replace(codec.Segment(kept, UID).open(codec.SHAPES), **changes)
    contents = {codec.SHAPES: codec.encode(shapes), codec.VALUES: codec.Segment(kept, UID).open(codec.VALUES)}
    for frame, content in contents.items():
        data = len(content).to_bytes(codec.LENGTH_BYTES, "big") + content
        owner = codec.owner_of(frame, frames)
        frames[frame] = codec.seal_frame(data, UID, kept.first, kept.last, frame, owner) + data
    return codec.Segment(msgspec.structs.replace(kept, body=join_frames(frames)), UID)


def appends(count: int) -> list[CheckpointRow]:
    """Checkpoints that each put an item behind the same list."""
    rows: list[CheckpointRow] = []
    for number in range(1, count + 1):
        ops = msgspec.msgpack.encode([[2, ["messages"], number - 1, 0, 1]])
        rows.append(a_row(number, rows[-1] if rows else None, value=b"\xa3%03d" % number, ops=ops))
    return rows


def read_state(segment: codec.Segment, places: list[int]) -> None:
    """The state at the last of some places, on one with a list of one item."""
    joined = PackedLine([(segment, places)], ()).deltas(START)
    assert joined
    rebuild([Record(msgspec.msgpack.encode([[5, [], "messages", 1]]), b"\xc0"), *[one.record for one in joined]], {})


def test_of_deltas_that_go_on_one_op_is_kept_and_one_is_done() -> None:
    rows = appends(6)
    segment = codec.Segment(pack_segment(rows, uid=UID), UID)
    shapes = segment.open(codec.SHAPES)
    assert (shapes.grown, len(shapes.ops)) == ([0, 1, 1, 1, 1, 1], shapes.lengths[0])
    assert segment.rows(delta=True, refs=True) == rows
    (joined,) = PackedLine([(segment, [1, 2, 3, 4, 5])], ()).deltas(rows[1].state_digest) or []
    assert decode_ops(joined.record.ops) == [[2, ["messages"], 2, 0, 4]]


@pytest.mark.parametrize(
    "changes",
    [
        {"grown": [1, 1, 1]},  # the first goes on from nothing
        {"grown": [0, 1, 2**63 - 1]},
        {"grown": [0, 1]},
        {"grown": [0, -1, 1]},
        {"ops": b"\x95\x02\x91\xa8messages\x00\x00\xc0"},  # no number of items
        {"ops": b"\x95\x02\x90\xcf" + b"\xff" * 8 + b"\x00\x01"},  # more items than can be counted
        {"ops": b"\x95\x02\xa8messages\x00\x00\x01\xc0"},  # no path
        {"ops": b"\x93\x00\x90\x00" + bytes(11)},  # another op
    ],
)
def test_ops_that_go_on_from_none_are_damage(changes: dict[str, Any]) -> None:
    rows = appends(3)
    segment = with_shapes(pack_segment(rows, uid=UID), **changes)
    for row, was in zip(segment.rows(delta=True), rows, strict=True):
        assert isinstance(row, CheckpointRow)
        if row.delta != was.delta:
            with pytest.raises(CorruptionError):
                open_delta(unspill(row.delta, {}), uid=UID, tail=row.tail, base=START, state=row.state_digest)
    for places in ([0, 1, 2], [1, 2], [0, 2]):
        with pytest.raises(CorruptionError):
            read_state(segment, places)


@pytest.mark.parametrize("count", [1, 127, 128, 255, 70_000, 2**40])
def test_items_put_behind_a_list_are_told_by_their_number_and_nothing_else_is_taken_for_that(count: int) -> None:
    path, at = ["messages", 3, "parts"], 500
    end = ListEnd(codec.encode(path), at)

    def op(*members: Any) -> bytes:
        return codec.encode([SPLICE, *members])

    assert put_there(end, op(path, at, 0, count)) == count
    others = [
        op(path, at + 1, 0, count),
        op(path, at, 1, count),
        op(["messages", 3], at, 0, count),
        op(path, at, 0, 0),
        op(path, at, 0, -count),
        op(path, at, 0, count) + b"\1",
        codec.encode([SPLICE + 1, path, at, 0, count]),
        op(path, at, 0, count)[:-1],
        op(path, at, 0, b"x"),
    ]
    assert [put_there(end, other) for other in others] == [0] * len(others)
