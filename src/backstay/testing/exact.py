"""When two values are the same for somebody who gets one back in place of the other: types, signs and NaN included.

Written apart from the codec on purpose: what judges it must not share its mistakes. The order of a dict's keys is not
looked at, as Python's own `==` does not.
"""

from __future__ import annotations

import math
from typing import Any


def exactly_equal(a: Any, b: Any) -> bool:
    """True when both have the same types all the way down, and the same values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(exactly_equal, a, b))
    if isinstance(a, dict):
        theirs = {_typed(key): value for key, value in b.items()}
        return len(a) == len(b) and all(
            _typed(key) in theirs and exactly_equal(value, theirs[_typed(key)]) for key, value in a.items()
        )
    if isinstance(a, set | frozenset):
        return {_typed(item) for item in a} == {_typed(item) for item in b}
    return bool(a == b)


def _typed(key: object) -> tuple[type, str]:
    return type(key), repr(key)
