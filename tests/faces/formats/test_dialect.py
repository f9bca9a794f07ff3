"""The JSON of the predecessors to the byte: a number written otherwise is a checksum that no longer matches."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.formats.dialect import (
    DamagedError,
    JsonWriter,
    Sorted,
    float_text,
    has_plus,
    literal_digest,
    nanoseconds,
    parse,
    time_text,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.00001, "0.00001"),
        (1.23e-5, "0.0000123"),
        (1e-6, "1e-6"),
        (1e-7, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (1e15, "1000000000000000.0"),
        (9999999999999998.0, "9999999999999998.0"),
        (1e16, "1e16"),
        (1.25e300, "1.25e300"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.0, "0.0"),
        (-2.5, "-2.5"),
        (0.9856906946328695, "0.9856906946328695"),
        (5e-324, "5e-324"),
        (float("nan"), "null"),
        (float("-inf"), "null"),
    ],
)
def test_a_float_is_written_as_the_original_writes_it(value: float, written: str) -> None:
    assert float_text(value) == written
    assert JsonWriter().compact([value]) == f"[{written}]".encode()


def test_a_large_float_is_written_as_the_newer_library_writes_it_where_that_was_used() -> None:
    assert float_text(1e16, plus=True) == "1e+16"
    assert float_text(1e-7, plus=True) == "1e-7"
    assert has_plus(b'{"a": 1e+16}')
    assert not has_plus(b'{"a": 1e16, "b": "1e+16"}')


@given(st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_no_float_loses_a_bit_on_its_way_out_and_back(value: float, plus: bool) -> None:
    again = parse(float_text(value, plus=plus).encode())
    assert (again, str(again)) == (value, str(value))


plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_everything_but_floats_is_written_as_everyone_writes_it(value: Any) -> None:
    assert JsonWriter().pretty(value) == json.dumps(value, indent=2, ensure_ascii=False).encode()
    assert JsonWriter().compact(value) == json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    ordered = json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    assert JsonWriter().compact(Sorted(value)) == ordered.encode()
    assert parse(JsonWriter().pretty(value)) == value


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b'{"a": [1, 2', "torn"),
        (b'{"a": "x', "torn"),
        (b'{"a": }', "not JSON"),
        (b"\xff\xfe{}", "UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        (b"\xef\xbb\xbf{}", "JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "deep"),
        (b"1" * 10_000, "number"),
    ],
)
def test_what_the_original_would_refuse_is_not_taken_for_a_value(data: bytes, why: str) -> None:
    with pytest.raises(DamagedError, match=why):
        parse(data)


def test_a_minus_zero_stays_what_it_is() -> None:
    assert str(parse(b"-0")) == "-0.0"


@pytest.mark.parametrize(
    "number", ["0.9856906946328695", "1e16", "1e+16", "1E5", "1.50", "18446744073709551615", "-0.0"]
)
def test_a_checksum_is_compared_over_the_number_as_it_stands(number: str) -> None:
    written = f'{{ "b": {{"y": [{number}], "x": 1}},\n "a": "é", "_checksum": "?" }}'
    expected = sha256(f'{{"a":"é","b":{{"x":1,"y":[{number}]}}}}'.encode()).hexdigest()
    assert literal_digest(written.encode(), ("_checksum",)) == expected


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)))
def test_a_time_comes_back_to_the_microsecond(moment: datetime) -> None:
    at_us = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert nanoseconds(time_text(at_us)) == at_us * 1000


def test_a_time_has_the_fewest_digits_that_lose_nothing() -> None:
    assert time_text(7_000_000) == "1970-01-01T00:00:07Z"
    assert time_text(7_500_000) == "1970-01-01T00:00:07.500Z"
    assert time_text(7_000_001) == "1970-01-01T00:00:07.000001Z"
    assert nanoseconds("1970-01-01T00:00:07.123456789Z") == 7_123_456_789
    assert nanoseconds("1970-01-01T01:00:07+01:00") == 7_000_000_000


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T25:00:00Z", "2026-01-01T00:00:00"]
)
def test_what_is_no_time_is_not_guessed_at(text: str) -> None:
    with pytest.raises(DamagedError, match="not a time"):
        nanoseconds(text)
