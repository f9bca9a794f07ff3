"""Records, blobs and values as bytes: sealed so that damage shows, and never larger in memory than they may be."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay import sealing
from backstay.delta import LOST, Record
from backstay.errors import CorruptionError, InvalidInputError
from backstay.model import MAX_STATE_BYTES
from backstay.port import row_codec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UID, OTHER_UID = bytes(range(16)), bytes(range(1, 17))
TAIL, OTHER_TAIL = b"tail..7", b"tail..8"
A, B, C = b"\1" * 32, b"\2" * 32, b"\3" * 32
MEGABYTE = 1024 * 1024
RAW, ZSTD = 0, 1

bodies = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(max_size=40), st.integers(0, 500)
)
digests = st.lists(st.binary(min_size=32, max_size=32), max_size=3).map(tuple)
records = st.builds(Record, st.binary(max_size=40), bodies, digests)

Seal = Callable[[Record], bytes]
Open = Callable[[bytes], Record]
KINDS: dict[str, tuple[Seal, Open]] = {
    "delta": (
        lambda record: sealing.seal_delta(record, uid=UID, tail=TAIL, base=A, state=B),
        lambda data: sealing.open_delta(data, uid=UID, tail=TAIL, base=A, state=B),
    ),
    "keyframe": (
        lambda record: sealing.seal_keyframe(record, uid=UID, tail=TAIL, state=B),
        lambda data: sealing.open_keyframe(data, uid=UID, tail=TAIL, state=B),
    ),
}
RECORD = Record(b"ops of a record", b"what it says, " * 80, (A, C))

each_kind = pytest.mark.parametrize("kind", KINDS)


# records


@each_kind
@given(record=records)
def test_a_record_comes_back_as_it_was(kind: str, record: Record) -> None:
    seal, open_ = KINDS[kind]
    assert open_(seal(record)) == record


@each_kind
def test_a_record_with_any_byte_changed_does_not_open(kind: str) -> None:
    seal, open_ = KINDS[kind]
    sealed = seal(RECORD)
    for at in range(len(sealed)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(sealed)
            damaged[at] ^= flip
            with pytest.raises(CorruptionError):
                open_(bytes(damaged))


@each_kind
@given(record=records, data=st.data())
def test_a_record_cut_off_or_with_something_behind_it_does_not_open(
    kind: str, record: Record, data: st.DataObject
) -> None:
    seal, open_ = KINDS[kind]
    sealed = seal(record)
    for wrong in (sealed[: data.draw(st.integers(0, len(sealed) - 1))], sealed + b"\0", b"", sealed[1:]):
        with pytest.raises(CorruptionError):
            open_(wrong)


def test_a_record_in_the_place_of_another_does_not_open() -> None:
    delta, keyframe = KINDS["delta"][0](RECORD), KINDS["keyframe"][0](RECORD)
    there: dict[str, Any] = {"uid": UID, "tail": TAIL, "base": A, "state": B}
    for other in ({"uid": OTHER_UID}, {"tail": OTHER_TAIL}, {"base": C}, {"state": C}, {"base": B, "state": A}):
        with pytest.raises(CorruptionError, match="stands in the place of another"):
            sealing.open_delta(delta, **(there | other))
    del there["base"]
    for other in ({"uid": OTHER_UID}, {"tail": OTHER_TAIL}, {"state": C}):
        with pytest.raises(CorruptionError, match="stands in the place of another"):
            sealing.open_keyframe(keyframe, **(there | other))
    with pytest.raises(CorruptionError):
        sealing.open_keyframe(delta, **there)
    with pytest.raises(CorruptionError):
        sealing.open_delta(keyframe, base=A, **there)


def test_a_keyframe_is_packed_where_that_pays_and_a_delta_never() -> None:
    assert len(KINDS["keyframe"][0](RECORD)) < len(RECORD.body) < len(KINDS["delta"][0](RECORD))
    short, noise = Record(b"", b"x" * 100), Record(b"", sha256(b"noise").digest() * 8)
    assert short.body in KINDS["keyframe"][0](short)
    assert KINDS["keyframe"][1](KINDS["keyframe"][0](noise)) == noise


# what can be saved of a damaged one


@each_kind
@given(record=records, data=st.data())
def test_where_values_are_damaged_the_shape_can_be_saved(kind: str, record: Record, data: st.DataObject) -> None:
    sealed = KINDS[kind][0](record)
    if not record.body:
        return
    damaged = bytearray(sealed)
    damaged[len(sealed) - 1 - data.draw(st.integers(0, 0 if kind == "keyframe" else len(record.body) - 1))] ^= 0x10
    with pytest.raises(CorruptionError):
        KINDS[kind][1](bytes(damaged))
    assert sealing.salvage(bytes(damaged)) == Record(record.ops, LOST, record.refs)


@each_kind
def test_a_damaged_shape_is_never_used(kind: str) -> None:
    sealed = KINDS[kind][0](RECORD)
    shape = Record(RECORD.ops, LOST, RECORD.refs)
    for at in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[at] ^= 0x04
        assert sealing.salvage(bytes(damaged)) in (shape, None)
    for length in range(len(sealed)):
        assert sealing.salvage(sealed[:length]) in (shape, None)
    at = sealed.index(RECORD.ops)
    assert sealing.salvage(sealed[:at] + b"OPS" + sealed[at + 3 :]) is None
    assert sealing.salvage(sealed.replace(C, B)) is None


@given(st.binary(max_size=200))
def test_noise_is_not_saved(data: bytes) -> None:
    assert sealing.salvage(data) in (None, Record(b"", LOST))  # of nothing at all the check is 0


# blobs and values


@given(bodies)
def test_a_blob_comes_back_as_it_was(content: bytes) -> None:
    assert sealing.open_blob(sealing.pack_blob(content), sha256(content).digest()) == content


@given(bodies)
def test_a_journaled_value_comes_back_as_it_was(data: bytes) -> None:
    assert sealing.open_value(sealing.pack_value(data)) == data
    assert sealing.open_value(b"") == b""


@given(bodies, st.data())
def test_a_damaged_blob_gives_what_it_was_or_nothing(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(sealing.pack_blob(content))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptionError):
        assert sealing.open_blob(bytes(damaged), sha256(content).digest()) == content


def test_a_blob_that_is_another_or_empty_does_not_open() -> None:
    digest = sha256(b"content").digest()
    for data in (b"", sealing.pack_blob(b"another"), b"\7content", b"\1content"):
        with pytest.raises(CorruptionError):
            sealing.open_blob(data, digest)


def test_a_value_in_an_unknown_form_does_not_open() -> None:
    for data in (b"\7value", b"\1value", bytes([ZSTD]) + zstd.compress(b"x" * 1000)[:-4]):
        with pytest.raises(CorruptionError):
            sealing.open_value(data)


def test_a_value_that_could_not_be_read_again_is_not_packed() -> None:
    limit = sealing.MAX_ROW_BYTES
    assert len(sealing.open_value(sealing.pack_value(b"x" * limit))) == limit
    with pytest.raises(InvalidInputError, match="more than the limit"):
        sealing.pack_value(b"x" * (limit + 1))


# long records


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(sealing, "MAX_BLOB_BYTES", 700)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 1400, 1401, 5000])
def test_a_record_beyond_the_limit_of_a_row_is_cut_into_blobs_and_comes_back(size: int) -> None:
    data = (b"abcdefghij" * (size // 10 + 1))[:size]
    row, blobs = sealing.spill(data)
    assert sealing.unspill(row, blobs) == data
    assert sealing.spilled(row) == (() if size < 1000 else tuple([sha256(p).digest() for p in parts_of(data)]))
    assert set(blobs) == set(sealing.spilled(row))
    assert len(row) <= 1000


def parts_of(data: bytes) -> list[bytes]:
    return [data[at : at + 700] for at in range(0, len(data), 700)]


@pytest.mark.usefixtures("small")
def test_a_long_record_whose_parts_are_not_as_they_were_is_damaged() -> None:
    sealed = KINDS["delta"][0](Record(b"ops", bytes(range(256)) * 10))
    row, blobs = sealing.spill(sealed)
    first, second, *rest = sealing.spilled(row)
    assert KINDS["delta"][1](sealing.unspill(row, blobs)).body == bytes(range(256)) * 10
    with pytest.raises(CorruptionError, match=f"a part of a long record is missing: {second.hex()[:12]}"):
        sealing.unspill(row, {digest: data for digest, data in blobs.items() if digest != second})
    with pytest.raises(CorruptionError, match="is damaged"):
        sealing.unspill(row, {**blobs, first: blobs[second]})
    with pytest.raises(CorruptionError):
        KINDS["delta"][1](sealing.unspill(row[:1] + second + first + b"".join(rest), blobs))
    with pytest.raises(CorruptionError):
        sealing.unspill(row[:-1], blobs)
    with pytest.raises(CorruptionError):
        KINDS["delta"][1](sealing.unspill(row[:-32], blobs))


@pytest.mark.parametrize("row", [b"", b"\2", b"\xff rest"])
def test_a_row_that_does_not_say_where_its_record_is_is_damaged(row: bytes) -> None:
    with pytest.raises(CorruptionError, match="does not say where it is"):
        sealing.unspill(row, {})
    assert sealing.spilled(row) == ()


# bombs


def memory_of(act: Callable[[], object]) -> int:
    """The most that was taken while something was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError):
            act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bomb(megabytes: int) -> bytes:
    press = zstd.ZstdCompressor(level=1)
    zeros = bytes(MEGABYTE)
    return b"".join([*[press.compress(zeros) for _ in range(megabytes)], press.flush()])


def forged(mode: int, size: int, packed: bytes, *, ops: bytes = b"\x90", refs: bytes = b"") -> bytes:
    """A keyframe by somebody who knows how they are sealed."""
    data = msgspec.msgpack.encode((0, ops, refs, mode, size, packed))
    return sha256(b"keyframe\0" + UID + TAIL + B + data).digest()[: sealing.SEAL_BYTES] + data


def test_a_bomb_is_never_larger_in_memory_than_what_it_stands_for_may_be() -> None:
    packed = bomb(300)
    assert len(packed) < MEGABYTE
    blob = bytes([ZSTD]) + packed
    assert memory_of(lambda: sealing.open_blob(blob, A)) < 40 * MEGABYTE
    assert memory_of(lambda: sealing.open_value(blob)) < 40 * MEGABYTE
    announced_less = forged(ZSTD, 1000, packed)
    assert memory_of(lambda: KINDS["keyframe"][1](announced_less)) < 8 * MEGABYTE


def test_what_announces_more_than_a_state_may_have_is_refused_before_it_is_unpacked() -> None:
    for size in (2 * MAX_STATE_BYTES + 1, 2**40, -1):
        lies = forged(ZSTD, size, b"whatever")
        with pytest.raises(CorruptionError, match="announces more than its state may have"):
            KINDS["keyframe"][1](lies)


@each_kind
def test_a_reader_that_knows_how_large_a_state_is_unpacks_no_more(kind: str) -> None:
    names: dict[str, Any] = {"uid": UID, "tail": TAIL, "state": B} | ({"base": A} if kind == "delta" else {})
    open_: Any = sealing.open_delta if kind == "delta" else sealing.open_keyframe
    sealed = KINDS[kind][0](RECORD)
    assert open_(sealed, **names, limit=len(RECORD.body)) == RECORD
    with pytest.raises(CorruptionError, match="announces more than its state may have"):
        open_(sealed, **names, limit=len(RECORD.body) - 1)


@each_kind
@given(record=records)
def test_a_look_into_a_record_gives_what_is_in_it_or_nothing(kind: str, record: Record) -> None:
    sealed = KINDS[kind][0](record)
    assert sealing.peek(sealed) == record
    assert sealing.peek(b"another seal"[: sealing.SEAL_BYTES] + sealed[sealing.SEAL_BYTES :]) == record
    for damaged in (b"", sealed[: sealing.SEAL_BYTES], b"noise" * 5, forged(ZSTD, 3, b"body"), forged(7, 3, b"body")):
        assert sealing.peek(damaged) is None


def test_a_look_into_a_bomb_is_a_short_one() -> None:
    tracemalloc.start()
    try:
        assert sealing.peek(forged(ZSTD, 1000, bomb(100))) is None
        assert tracemalloc.get_traced_memory()[1] < 8 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_a_sealed_record_that_is_not_one_is_damage_all_the_same() -> None:
    assert KINDS["keyframe"][1](forged(RAW, 4, b"body")) == Record(b"\x90", b"body")
    for wrong in (forged(7, 4, b"body"), forged(ZSTD, 4, b"body"), forged(ZSTD, 3, zstd.compress(b"body"))):
        with pytest.raises(CorruptionError):
            KINDS["keyframe"][1](wrong)
    for data in (b"\xc1", msgspec.msgpack.encode(["not", "a", "record"]), b""):
        seal = sha256(b"keyframe\0" + UID + TAIL + B + data).digest()[: sealing.SEAL_BYTES]
        with pytest.raises(CorruptionError, match="does not decode"):
            KINDS["keyframe"][1](seal + data)


def test_a_small_seal_tells_names_apart_however_they_are_cut() -> None:
    seals = {
        row_codec.seal(b"data", "ab", "c"),
        row_codec.seal(b"data", "a", "bc"),
        row_codec.seal(b"data", "abc"),
        row_codec.seal(b"data", b"ab", "c"),
        row_codec.seal(b"data", "1"),
        row_codec.seal(b"data", 1),
        row_codec.seal(b"cdata", "ab"),
        row_codec.seal(b""),
    }
    assert len(seals) == 8
    assert {len(seal) for seal in seals} == {sealing.SEAL_BYTES}
