"""A few bytes per top-level key of a state, so that a call made with another state can say which keys differ.

A call without args is compared by the digest of the whole state. That says whether, and not where: so a short digest of
each key's value is kept beside it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

MAX_KEYS = 64  # of a state with more of them none are kept: the row of a call stays small
_DIGEST_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Hashed(Protocol):
    """A part of a state, digested."""

    @property
    def digest(self) -> bytes:
        """Its digest."""


def pack_parts(children: Mapping[str, Hashed]) -> bytes:
    """The parts of a state, or nothing if they are too many or their names cannot be written."""
    if len(children) > MAX_KEYS:
        return b""
    try:
        return _encode({key: part.digest[:_DIGEST_BYTES] for key, part in children.items()})
    except UnicodeEncodeError:
        return b""


def differing_keys(before: bytes, now: bytes) -> list[str]:
    """The keys whose values differ, or that only one of the two has; none where that is not known."""
    try:
        was, is_ = _decode(before or b"\x80"), _decode(now or b"\x80")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if not before or not now:
        return []
    return sorted([key for key in {*was, *is_} if was.get(key) != is_.get(key)])
