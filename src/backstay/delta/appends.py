"""Ops that put items behind one list, delta after delta: of all but the first their number of items says everything.

That is what most steps of an agent do. So a segment keeps such an op as that number, and a reader of a state does many
of them as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import not_
from typing import Any, NamedTuple

import msgspec

from backstay.delta.record import SPLICE
from backstay.errors import CorruptionError

_START = b"\x95" + bytes([SPLICE])  # an array of five, and the first of them
_PLAIN = frozenset({str, int})
_FEW = 128  # numbers below that are one byte
_MOST = 1 << 60  # no list is as long, and what is added to it can still be written

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class ListEnd(NamedTuple):
    """The end of a list: the path that leads to it, encoded, and how many items come before."""

    path: bytes
    at: int


def end_behind(op: bytes) -> ListEnd | None:
    """The end of the items that an op puts into a list; None if it is another op, or written in another way."""
    if not op.startswith(_START):
        return None
    try:
        _, path, start, drop, count = _decode(op)
        numbers = {type(start), type(drop), type(count)}
        if type(path) is not list or numbers != {int} or not _PLAIN.issuperset(map(type, path)):
            return None
        if min(start, drop, count) < 0 or max(start, count) > _MOST:
            return None
        written = b"".join([_START, _encode(path), _encode(start), _encode(drop), _encode(count)])
    except (msgspec.DecodeError, ValueError):
        return None
    return ListEnd(_encode(path), start + count) if written == op else None


def append_op(end: ListEnd, count: int) -> bytes:
    """The op that puts so many items there."""
    return b"".join([_START, end.path, _encode(end.at), b"\0", _encode(count)])


def put_there(end: ListEnd, op: bytes) -> int:
    """How many items an op puts there; 0 if it is another op. Most put in a few, which is told without decoding."""
    start = b"".join([_START, end.path, _encode(end.at), b"\0"])
    if not op.startswith(start) or end.at > _MOST:
        return 0
    if len(op) == len(start) + 1 and 0 < op[-1] < _FEW:
        return op[-1]
    after = end_behind(op)
    return 0 if after is None else max(after.at - end.at, 0)


def each_op(ops: bytes, lengths: Sequence[int], grown: Sequence[int]) -> list[bytes]:
    """The ops of each delta, where `ops` has none for those that go on: `grown` says how many items they put in."""
    found: list[bytes] = []
    op, end, stop = b"", None, 0
    for length, more in zip(lengths, grown, strict=True):
        if more:
            end = end or _end(op)
            op, end = append_op(end, more), ListEnd(end.path, end.at + more)
        else:
            op, end, stop = ops[stop : stop + length], None, stop + length
        found.append(op)
    return found


def merged_ops(
    ops: bytes, counts: Sequence[int], lengths: Sequence[int], grown: list[int], span: range
) -> tuple[int, bytes]:
    """The ops of deltas that follow one another, those that go on done as one: how many they are, and these joined."""
    at, stop = span.start, span.stop
    begin = sum(compress(lengths[:at], map(not_, grown)))
    if not any(grown[at:stop]):
        return sum(counts[at:stop]), ops[begin : begin + sum(lengths[at:stop])]
    count, parts = 0, []
    if grown[at]:  # the op that it goes on from is before the span
        first = _next(grown, at, stop)
        base = max([place for place in range(at) if not grown[place]], default=0)
        end = _end(ops[begin - lengths[base] : begin])
        start = ListEnd(end.path, end.at + sum(grown[base + 1 : at]))
        count, parts, at = 1, [append_op(start, sum(grown[at:first]))], first
    while at < stop:
        after = _next(grown, at + 1, stop)
        op = ops[begin : begin + lengths[at]]
        if after > at + 1:
            _end(op)
            *rest, items = _decode(op)
            op = _encode([*rest, items + sum(grown[at + 1 : after])])
        parts.append(op)
        count += counts[at]
        begin += lengths[at]
        at = after
    return count, b"".join(parts)


def _next(grown: list[int], at: int, stop: int) -> int:
    """The next place that does not go on."""
    try:
        return grown.index(0, at, stop)
    except ValueError:
        return stop


def _end(op: bytes) -> ListEnd:
    end = end_behind(op)
    if end is None:
        message = "a packed op goes on from one that it cannot go on from"
        raise CorruptionError(message)
    return end
