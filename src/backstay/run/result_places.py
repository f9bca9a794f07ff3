"""Results that stand in the state are kept once: found there at a boundary, they need not stay in the journal too.

A result is looked for where loops put it: in the items that were added last to a list of the state, a few levels deep.
What is not found stays in the journal; nothing is lost by not finding it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from backstay.codec import encode_stored
from backstay.errors import BackstayError, CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.model import StateDict

MIN_BYTES = 256  # below that a place is hardly shorter than the result
_DEPTH = 4
_ITEMS = 64
_MAX_STEP = 2**63  # a place is written as msgpack, which has no room for more, nor for a lone surrogate

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[str | int]).decode

Results = Mapping[str, tuple[Any, bytes]]  # by the call's id: the result, and as it is stored


def places(state: StateDict, results: Results) -> dict[str, bytes]:
    """The places of these results in the state, for those that are in it."""
    texts: dict[str | bytes, list[str]] = {}
    for id_, (value, _) in results.items():
        if type(value) in (str, bytes):
            texts.setdefault(value, []).append(id_)
    others = [(id_, value, data) for id_, (value, data) in results.items() if type(value) in (dict, list)]
    found: dict[str, bytes] = {}
    for path, value in _recent(state):
        if type(value) in (str, bytes):
            same = texts.get(value, [])
        else:
            # Equal is not the same (1, True and 1.0 are equal): what it is stored as decides.
            same = [id_ for id_, wanted, data in others if value == wanted and _stored(value) == data]
        for id_ in same:
            found.setdefault(id_, _encode(path))
    return found


def _stored(value: object) -> bytes | None:
    try:
        return encode_stored(value)
    except BackstayError:
        return None


def _recent(state: StateDict) -> Iterator[tuple[list[str | int], Any]]:
    for key, value in state.items():
        if not key.isprintable():
            continue
        if type(value) is list:
            for at in range(max(0, len(value) - _ITEMS), len(value)):
                yield from _below([key, at], value[at], _DEPTH)
        else:
            yield from _below([key], value, 2)


def _below(path: list[str | int], value: Any, depth: int) -> Iterator[tuple[list[str | int], Any]]:
    if type(value) in (str, bytes):
        if len(value) >= MIN_BYTES // 4:
            yield path, value
        return
    if type(value) not in (dict, list):
        return
    yield path, value
    if depth == 0 or len(value) > _ITEMS:
        return
    steps = value.items() if type(value) is dict else enumerate(value)
    for step, below in steps:
        if (type(step) is str and step.isprintable()) or (type(step) is int and abs(step) < _MAX_STEP):
            yield from _below([*path, step], below, depth - 1)


def at_place(state: StateDict, place: bytes) -> Any:
    """The value at a place."""
    value: Any = state
    try:
        for step in _decode(place):
            value = _below_it(value, step)
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError) as error:
        message = "a journaled result is said to stand in the state, and does not"
        raise CorruptionError(message, hint=RUN_VERIFY) from error
    return value


def _below_it(value: Any, step: str | int) -> Any:
    if type(value) is dict:
        return value[step]
    if type(value) is list and isinstance(step, int) and step >= 0:
        return value[step]
    raise LookupError(step)
