"""Results that stand in the state are kept once: found there at a boundary, they need not stay in the journal too.

A result is looked for where loops put it: in the items that were added last to a list of the state, a few levels deep.
An answer with a list of items, such as a model's, may stand there item by item: then its place says what was beside the
list, too. What is not found stays in the journal; nothing is lost by not finding it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from backstay.codec import decode, encode_stored
from backstay.errors import BackstayError, CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.model import StateDict

MIN_BYTES = 256  # below that a place is hardly shorter than the result
_DEPTH = 4
_ITEMS = 64
_BESIDE_BYTES = 512  # of what is beside a list: more is better packed with it
_MAX_STEP = 2**63  # a place is written as msgpack, which has no room for more, nor for a lone surrogate


class ItemsPlace(msgspec.Struct, frozen=True, gc=False):
    """The place of a dict whose list stands in the state item by item: in the list at `path`, from `first` on."""

    path: list[str | int]
    first: int
    count: int
    key: str
    rest: bytes  # the dict with an empty list, as it is stored


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[str | int] | ItemsPlace).decode

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
    for id_, value, data in others:
        place = _place_of_items(state, value, data) if id_ not in found and type(value) is dict else None
        if place is not None:
            found[id_] = place
    return found


def _place_of_items(state: StateDict, result: dict[Any, Any], data: bytes) -> bytes | None:
    """Where the items of a list in a result stand one behind the other, among the last of a list of the state."""
    for key, items in result.items():
        if type(key) is not str or not key.isprintable() or type(items) is not list or not items:
            continue
        for name, held in state.items():
            if type(held) is not list or not name.isprintable():
                continue
            for at in range(max(0, len(held) - _ITEMS), len(held) - len(items) + 1):
                if held[at] == items[0] and held[at : at + len(items)] == items:
                    rest = _stored({**result, key: []}) or b""
                    place = _encode(ItemsPlace([name], at, len(items), key, rest))
                    if 0 < len(rest) <= _BESIDE_BYTES and len(place) < len(data):
                        return place if _stored(at_place(state, place)) == data else None
    return None


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
    try:
        found = _decode(place)
        if isinstance(found, ItemsPlace):
            items, last = _at(state, found.path), found.first + found.count
            if type(items) is not list or not 0 <= found.first < last <= len(items):
                raise LookupError(found.first)
            return {**decode(found.rest), found.key: items[found.first : last]}
        return _at(state, found)
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError) as error:
        message = "a journaled result is said to stand in the state, and does not"
        raise CorruptionError(message, hint=RUN_VERIFY) from error


def _at(value: Any, path: list[str | int]) -> Any:
    for step in path:
        value = _below_it(value, step)
    return value


def _below_it(value: Any, step: str | int) -> Any:
    if type(value) is dict:
        return value[step]
    if type(value) is list and isinstance(step, int) and step >= 0:
        return value[step]
    raise LookupError(step)
