"""Rows: packed and opened again, sealed so that damage shows, and never larger in memory than they may be."""

import contextlib
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay import packing
from backstay.delta import Record
from backstay.errors import CorruptionError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

A, B, C = b"\1" * 32, b"\2" * 32, b"\3" * 32
MEGABYTE = 1024 * 1024

bodies = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(max_size=40), st.integers(0, 500)
)
records = st.builds(
    Record, st.binary(max_size=40), bodies, st.lists(st.binary(min_size=32, max_size=32), max_size=3).map(tuple)
)
Seal = Callable[[Record], bytes]
Open = Callable[[bytes], Record]
KINDS: dict[str, tuple[Seal, Open]] = {
    "delta": (
        lambda record: packing.seal_delta(record, prefix=b"said before " * 50, base=A, state=B),
        lambda data: packing.open_delta(data, prefix=b"said before " * 50, base=A, state=B),
    ),
    "whole": (
        lambda record: packing.seal_whole(record, state=B),
        lambda data: packing.open_whole(data, state=B),
    ),
    "roll": (
        lambda record: packing.seal_roll(record, base=A, state=B),
        lambda data: packing.open_roll(data, base=A, state=B),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@given(record=records)
def test_a_record_comes_back_as_it_was(kind: str, record: Record) -> None:
    seal, open_ = KINDS[kind]
    assert open_(seal(record)) == record
    assert packing.refs_in(seal(record)) == record.refs


@given(bodies)
def test_a_blob_comes_back_as_it_was(content: bytes) -> None:
    assert packing.open_blob(packing.seal_blob(content), sha256(content).digest()) == content


@pytest.mark.parametrize("kind", KINDS)
@given(record=records, data=st.data())
def test_a_record_with_one_bit_flipped_does_not_open(kind: str, record: Record, data: st.DataObject) -> None:
    seal, open_ = KINDS[kind]
    damaged = bytearray(seal(record))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptionError):
        open_(bytes(damaged))


@pytest.mark.parametrize("kind", KINDS)
@given(record=records, data=st.data())
def test_a_record_cut_off_or_with_something_behind_it_does_not_open(
    kind: str, record: Record, data: st.DataObject
) -> None:
    seal, open_ = KINDS[kind]
    whole = seal(record)
    for wrong in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\0", b""):
        with pytest.raises(CorruptionError):
            open_(wrong)


@given(bodies, st.data())
def test_a_damaged_blob_does_not_open(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(packing.seal_blob(content))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptionError):
        assert packing.open_blob(bytes(damaged), sha256(content).digest()) == content
    with pytest.raises(CorruptionError):
        packing.open_blob(b"", sha256(content).digest())


def test_a_row_in_the_place_of_another_does_not_open() -> None:
    record = Record(b"ops", b"body")
    delta, whole, roll = (seal(record) for seal, _ in KINDS.values())
    prefix = b"said before " * 50
    for base, state in ((A, C), (C, B), (B, A)):
        with pytest.raises(CorruptionError):
            packing.open_delta(delta, prefix=prefix, base=base, state=state)
        with pytest.raises(CorruptionError):
            packing.open_roll(roll, base=base, state=state)
    with pytest.raises(CorruptionError):
        packing.open_whole(whole, state=A)
    for other in (whole, roll):
        with pytest.raises(CorruptionError):
            packing.open_delta(other, prefix=prefix, base=A, state=B)
    with pytest.raises(CorruptionError):
        packing.open_whole(delta, state=B)


def test_a_delta_that_says_what_was_said_before_is_small() -> None:
    body = b"".join(b"a tool result that comes again and again, number %d; " % number for number in range(40))
    alone = packing.seal_delta(Record(b"", body), prefix=b"", base=A, state=B)
    after = packing.seal_delta(Record(b"", body), prefix=body, base=A, state=B)
    assert len(after) < len(alone) / 3
    assert packing.needs_prefix(after)
    with pytest.raises(CorruptionError):
        packing.open_delta(after, prefix=b"something else", base=A, state=B)


def test_the_shape_of_a_damaged_record_is_trusted_only_if_it_is_whole() -> None:
    sealed = bytearray(packing.seal_whole(Record(b"the ops", b"body" * 100, (A,)), state=B))
    sealed[-1] ^= 1
    found = packing.salvage(bytes(sealed))
    assert found is not None
    assert (found.ops, found.refs) == (b"the ops", (A,))
    assert found.body != b"body" * 100
    sealed[sealed.index(b"the ops")] ^= 1
    assert packing.salvage(bytes(sealed)) is None
    assert packing.salvage(b"") is None
    assert packing.salvage(b"\xff" * 50) is None


def sealed_by_hand(mode: int, size: int, packed: bytes) -> bytes:
    """A whole copy with a valid seal, as somebody who knows the recipe would make it."""
    check = zlib.crc32(b"\x90") & 0xFFFF
    data = msgspec.msgpack.encode((check, b"\x90", b"", mode, size, packed))
    return sha256(b"whole\0" + B + data).digest()[: packing.SEAL_BYTES] + data


def bomb(mode: int, size: int) -> bytes:
    """A few kilobytes that unpack to `size` zeros."""
    if mode == 1:
        press = zlib.compressobj(9, zlib.DEFLATED, -15)
        return b"".join([press.compress(bytes(MEGABYTE)) for _ in range(size // MEGABYTE)]) + press.flush()
    return bytes(zstd.compress(bytes(size), 1))


def peak_of(work: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", [1, 2])
def test_a_small_row_that_would_unpack_to_a_gigabyte_is_damage_and_costs_little_memory(mode: int) -> None:
    packed = bomb(mode, 64 * MEGABYTE)
    for size in (0, 100, 10_000, 2**32, 2**62, -1):
        data = sealed_by_hand(mode, size, packed)

        def work(data: bytes = data) -> None:
            with pytest.raises(CorruptionError):
                packing.open_whole(data, state=B)

        assert peak_of(work) < MEGABYTE


@pytest.mark.parametrize("mode", [1, 2])
def test_a_blob_that_would_unpack_beyond_a_row_is_damage_before_it_is_made(mode: int) -> None:
    packed = bytes([mode]) + bomb(mode, 256 * MEGABYTE)
    assert len(packed) < MEGABYTE

    def work() -> None:
        with pytest.raises(CorruptionError):
            packing.open_blob(packed, A)

    assert peak_of(work) < 64 * MEGABYTE


@pytest.mark.parametrize("mode", [3, 99, -1])
def test_an_unknown_way_of_packing_is_damage(mode: int) -> None:
    with pytest.raises(CorruptionError):
        packing.open_whole(sealed_by_hand(mode, 5, b"12345"), state=B)
    with pytest.raises(CorruptionError):
        packing.open_blob(bytes([mode % 256]) + b"12345", A)


@given(st.binary(max_size=200))
def test_random_bytes_with_a_valid_seal_are_damage_or_a_record(data: bytes) -> None:
    sealed = sha256(b"whole\0" + B + data).digest()[: packing.SEAL_BYTES] + data
    for mode in (0, 1, 2):
        for wrong in (sealed, sealed_by_hand(mode, 100, data)):
            with contextlib.suppress(CorruptionError):
                packing.open_whole(wrong, state=B)
    packing.needs_prefix(sealed)
    packing.salvage(sealed)
