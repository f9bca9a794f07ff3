"""Every value a state may hold, and what it means for two of them to be exactly the same."""

import struct
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

TIMES = (datetime, time)

any_text = st.text(st.characters(), max_size=12) | st.text(st.characters(categories=["Cs", "Lu", "Nd"]), max_size=3)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 2**4000])
    | st.floats()
    | any_text
    | st.binary(max_size=12)
    | st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=True)
    | st.dates()
    | st.times(timezones=st.none() | st.sampled_from([None]))
    | st.timedeltas()
    | st.decimals()
    | st.sampled_from(
        [Decimal("sNaN"), Decimal("-sNaN12"), Decimal("-0.00"), Decimal("1E+999999"), Decimal("-Infinity")]
    )
    | st.uuids()
)
# A signalling NaN cannot be hashed, so it cannot be a key or a member of a set either.
hashable_scalars = scalars.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan()))
hashables = st.recursive(
    hashable_scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
values = st.recursive(
    scalars | st.sets(hashables, max_size=3) | st.frozensets(hashables, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(any_text, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3)
    ),
    max_leaves=12,
)
# Lists that a small change turns into one another: what deltas are made of.
conversations = st.lists(
    st.sampled_from(
        [1, True, 1.0, "x", 2.0, "y", {"m": "a" * 70}, {"m": "a" * 70 + "b"}, -0.0, 0.0, [1, 2], (1, 2), {"n": [1]}]
    ),
    max_size=9,
)
states = st.dictionaries(st.sampled_from(["a", "b", "c", "d", "\ud800", ""]), values | conversations, max_size=5)


def exactly(a: object, b: object) -> bool:
    """The same value of the same type all the way down; `==` would take 1 for True and -0.0 for 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict) and isinstance(b, dict):
        return _same_dict(a, b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(exactly, a, b))
    if isinstance(a, set | frozenset) and isinstance(b, set | frozenset):
        return len(a) == len(b) and all(any(exactly(x, y) for y in b) for x in a)
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, TIMES) and isinstance(b, TIMES):
        return _clock(a) == _clock(b)
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        return a.as_tuple() == b.as_tuple()
    assert a is None or isinstance(a, bool | int | str | bytes | date | timedelta | UUID), type(a)
    return a == b


def _same_dict(a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
    if len(a) != len(b):
        return False
    if all(type(key) is str for key in (*a, *b)):
        return all(key in b and exactly(item, b[key]) for key, item in a.items())
    return all(any(exactly(key, other) and exactly(a[key], b[other]) for other in b) for key in a)


def _clock(value: datetime | time) -> tuple[object, ...]:
    return (value.replace(tzinfo=None), value.utcoffset(), value.fold)
