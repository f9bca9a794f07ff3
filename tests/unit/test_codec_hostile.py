"""Bytes that somebody else wrote: damaged, cut off, or made to do harm. All they may cost is a CorruptionError."""

import contextlib
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.codec import array_header, decode, encode_stored, encode_tagged
from backstay.delta import Record, rebuild
from backstay.errors import CorruptionError
from tests.unit.values import values

MEGABYTE = 1024 * 1024
FOUR_GB = b"\xff\xff\xff\xff"


def ext(code: int, data: bytes) -> bytes:
    return b"\xc9" + struct.pack(">Ib", len(data), code) + data


@given(st.binary(max_size=300))
def test_random_bytes_are_damage_or_a_value_and_never_anything_else(data: bytes) -> None:
    with contextlib.suppress(CorruptionError):
        encode_stored(decode(data))


@given(st.integers(0, 255), st.binary(max_size=60))
def test_random_bytes_behind_an_extension_are_damage_or_a_value(code: int, data: bytes) -> None:
    with contextlib.suppress(CorruptionError):
        encode_stored(decode(ext(code - 128, data)))


@given(values, st.data())
def test_a_value_cut_off_anywhere_is_damage(value: Any, data: st.DataObject) -> None:
    whole = encode_stored(value)
    with pytest.raises(CorruptionError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(values)
def test_a_value_with_something_behind_it_is_damage(value: Any) -> None:
    with pytest.raises(CorruptionError):
        decode(encode_stored(value) + b"\xc0")


@pytest.mark.parametrize(
    "data",
    [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9", b"\xdc", b"\xde"],
    ids=["array32", "map32", "str32", "bin32", "ext32", "array16", "map16"],
)
def test_a_length_of_four_gigabytes_in_forty_bytes_costs_no_memory(data: bytes) -> None:
    hostile = (data + FOUR_GB).ljust(40, b"\x02")
    inside = [hostile, b"\x91" + hostile, ext(2, hostile), ext(5, hostile), ext(2, ext(3, hostile))]
    tracemalloc.start()
    try:
        for each in inside:
            with pytest.raises(CorruptionError):
                decode(each)
        assert tracemalloc.get_traced_memory()[1] < MEGABYTE
    finally:
        tracemalloc.stop()


def deep_ext(levels: int) -> bytes:
    data = b"\xc0"
    for _ in range(levels):
        data = ext(2, b"\x91" + data)
    return data


@pytest.mark.parametrize(
    "data",
    [b"\x91" * 100_000 + b"\xc0", b"\x81\xa1a" * 100_000 + b"\xc0", deep_ext(5_000), b"\x91" * 100_000],
    ids=["lists", "dicts", "tuples", "cut off"],
)
def test_bytes_nested_100000_deep_are_damage_and_not_a_crash(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode(data)


@pytest.mark.parametrize("code", [0, 1, 14, 15, 99, 127, -2, -128])
def test_an_extension_of_another_format_is_damage_and_looks_nothing_up(code: int) -> None:
    with pytest.raises(CorruptionError):
        decode(ext(code, encode_tagged("os.system")))


@pytest.mark.parametrize(
    ("code", "content"),
    [
        (2, 5),
        (3, [[1]]),
        (4, [{}]),
        (5, [1]),
        (5, [[], 1]),
        (6, None),
        (7, [2026, 13, 1, 0, 0, 0, 0, 0, None]),
        (7, [1] * 200),
        (7, []),
        (7, [2026, 1, 1, 0, 0, 0, 0, 0, [5, 0, 0]]),
        (8, [0, 0, 0]),
        (8, "2026-01-01"),
        (9, [25, 0, 0, 0, 0, None]),
        (10, [10**10, 0, 0]),
        (10, ["x"]),
        (11, [0, "12x", 0]),
        (11, [7, "1", 0]),
        (11, [0]),
        (12, b"short"),
        (12, 5),
        (13, b"\xff\xff"),
        (13, 5),
    ],
)
def test_an_extension_with_the_wrong_content_is_damage(code: int, content: Any) -> None:
    with pytest.raises(CorruptionError):
        decode(ext(code, encode_tagged(content)))


@given(st.binary(max_size=40), st.binary(max_size=60))
def test_a_random_record_is_damage_or_a_state(ops: bytes, body: bytes) -> None:
    with contextlib.suppress(CorruptionError):
        rebuild([Record(ops, body)], {})


odd = (
    st.integers(-5, 5)
    | st.sampled_from([2**31, 2**40, -(2**40), 2**63])
    | st.text(max_size=2)
    | st.none()
    | st.floats()
)
paths = st.lists(st.sampled_from(["a", "b", 0, -1, 2**40, None]), max_size=3)
ops = st.lists(
    st.tuples(st.integers(-1, 7), paths | odd, odd, odd, odd).map(list) | st.lists(odd, max_size=3), max_size=4
)


@given(ops, st.lists(st.integers(0, 3) | st.just("text") | st.just([1]), max_size=6))
def test_a_record_with_hostile_counts_and_places_is_damage_or_a_state(steps: list[Any], items: list[Any]) -> None:
    start = Record(encode_tagged([[4, [], 2]]), b"".join(map(encode_tagged, ["a", [1, 2], "b", {"c": "text"}])))
    body = b"".join(map(encode_tagged, items))
    for salvage in (False, True):
        with contextlib.suppress(CorruptionError):
            rebuild([start, Record(encode_tagged(steps), body)], {}, salvage=salvage)


def test_a_count_of_four_billion_values_in_a_record_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        for op in ([4, [], 2**31], [5, [], "a", 2**32], [2, ["a"], 0, 0, 2**60], [4, [], -3]):
            with pytest.raises(CorruptionError):
                rebuild([Record(encode_tagged([op]), b"\xc0" * 30)], {})
        assert tracemalloc.get_traced_memory()[1] < MEGABYTE
    finally:
        tracemalloc.stop()


def test_a_large_value_whose_piece_is_gone_is_damage_that_names_it() -> None:
    body = encode_tagged("a") + ext(1, b"\0" + b"\x12" * 32)
    with pytest.raises(CorruptionError, match="121212"):
        rebuild([Record(encode_tagged([[4, [], 1]]), body)], {})
    with pytest.raises(CorruptionError):
        rebuild([Record(encode_tagged([[4, [], 1]]), encode_tagged("a") + ext(1, b""))], {})
    assert array_header(3) == b"\xdd\0\0\0\x03"
