"""Many records as one that does the same, without what they undo among themselves.

A value that is set at every step (a counter, a version) is kept as it was set last; items that were put into a list
and taken out again are not kept at all; appends to one list become one append. Ops that touch different places commute,
so a later one may take the place of an earlier one if nothing between them touched what it touches. It takes the
*earlier* place: a dict keeps the order in which its keys came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backstay.delta.advance import encode_ops
from backstay.delta.record import LIST, MANY, PATCH, SET, SPLICE, Record, decode_ops

_Path = tuple[Any, ...]


class _Step:
    """An op and its values, still encoded."""

    __slots__ = ("op", "values")

    def __init__(self, op: list[Any], values: list[bytes]) -> None:
        self.op = op
        self.values = values


def merge(records: Sequence[Record]) -> Record:
    """One record that does what these do one after the other."""
    steps: list[_Step | None] = []
    latest: dict[_Path, int] = {}  # what an op may still be merged into, by the place it touched
    for record in records:
        for step in _steps(record):
            touched, merges = _touched(step.op)
            earlier = latest.get(touched) if merges else None
            for other in [other for other in latest if _overlap(other, touched) and other != touched]:
                del latest[other]
            if earlier is not None and _absorb(steps, earlier, step):
                if steps[earlier] is None:
                    del latest[touched]
                continue
            latest.pop(touched, None)
            if merges:
                latest[touched] = len(steps)
            steps.append(step)
    kept = [step for step in steps if step is not None]
    body = b"".join([value for step in kept for value in step.values])
    refs = tuple(dict.fromkeys([ref for record in records for ref in record.refs]))
    return Record(encode_ops([step.op for step in kept]), body, refs)


def _touched(op: list[Any]) -> tuple[_Path, bool]:
    """The place an op touches, and whether it can be merged. Inside a list places move: there it is the whole list."""
    path: list[Any] = op[1]
    for at, step in enumerate(path):
        if type(step) is not str:
            return tuple(path[:at]), False
    if op[0] in (SPLICE, MANY):
        return tuple(path), op[0] == SPLICE
    return (*path, op[2]), op[0] == SET and type(op[2]) is str


def _overlap(a: _Path, b: _Path) -> bool:
    return a[: len(b)] == b[: len(a)]


def _absorb(steps: list[_Step | None], at: int, later: _Step) -> bool:
    """Let an earlier step do what the later one does too; False if it cannot."""
    earlier = steps[at]
    if earlier is None or earlier.op[0] != later.op[0]:
        return False
    if later.op[0] == SET:
        steps[at] = _Step(earlier.op, later.values)
        return True
    _, path, start, drop, count = earlier.op
    _, _, from_, out, _ = later.op
    head = from_ - start
    if head < 0 or head + out > count:
        return False  # it reaches items that the earlier one did not put there
    values = earlier.values[:head] + later.values + earlier.values[head + out :]
    steps[at] = _Step([SPLICE, path, start, drop, len(values)], values) if drop or values else None
    return True


def _steps(record: Record) -> list[_Step]:
    steps: list[_Step] = []
    at = 0
    for op in decode_ops(record.ops):
        values: list[bytes] = []
        for _ in range(count_of(op)):
            end = _end(record.body, at)
            values.append(record.body[at:end])
            at = end
        steps.append(_Step(op, values))
    return steps


def count_of(op: list[Any]) -> int:
    """How many values an op takes from the body."""
    code = op[0]
    return 1 if code in (SET, PATCH) else 2 * op[2] if code == MANY else op[-1] if code in (SPLICE, LIST) else 0


# msgpack: how long a value is, by its first byte: so many bytes; or the length stands in so many bytes, with so many
# more behind it (the type of an extension); or so many values follow; or their count does, for one or two values each.
_FIXED = dict.fromkeys([*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3], 1)
_FIXED |= {0xA0 + length: 1 + length for length in range(32)}
_FIXED |= {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_FIXED |= {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
_LENGTH = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_LENGTH |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_INSIDE = {0x80 + count: 2 * count for count in range(16)} | {0x90 + count: count for count in range(16)}
_COUNT = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def _end(data: bytes, at: int) -> int:
    """Where the value ends that begins here."""
    left = 1
    while left:
        left -= 1
        first = data[at]
        fixed = _FIXED.get(first)
        if fixed is not None:
            at += fixed
        elif first in _INSIDE:
            at, left = at + 1, left + _INSIDE[first]
        elif first in _LENGTH:
            size, more = _LENGTH[first]
            at += 1 + size + more + int.from_bytes(data[at + 1 : at + 1 + size], "big")
        elif first in _COUNT:
            size, each = _COUNT[first]
            left += each * int.from_bytes(data[at + 1 : at + 1 + size], "big")
            at += 1 + size
        else:
            message = f"{first:#x} begins no value"
            raise msgspec.DecodeError(message)
    return at
