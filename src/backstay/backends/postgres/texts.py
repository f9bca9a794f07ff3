"""Texts and ids as the bytes they are kept as, and again as themselves."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

_NATIVE_CHARS = 24
_FOREIGN = b"\xff" * 13  # no native id is that long, and no text begins with such a byte
_UUID_CHARS, _UUID_BYTES = 36, 16
_LOWEST, _HIGHEST = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"


def pack(text: str) -> bytes:
    """A text as it is kept; in the order of their bytes texts stand as Python orders them."""
    return text.encode("utf-8", "surrogatepass")


def pack_or_none(text: str | None) -> bytes | None:
    """A text that may be missing."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def unpack(kept: bytes) -> str:
    """The text again."""
    return kept.decode("utf-8", "surrogatepass")


def unpack_or_none(kept: bytes | None) -> str | None:
    """A text that may be missing."""
    return None if kept is None else kept.decode("utf-8", "surrogatepass")


def pack_id(id_: str) -> bytes:
    """An id as it is kept: those Backstay makes (24 hexadecimal digits) as 12 bytes.

    One that begins with a UUID, as LangGraph's do, is the UUID's 16 bytes and the rest of its text; any other is a
    mark and its text.
    """
    if len(id_) == _NATIVE_CHARS:
        try:
            packed = bytes.fromhex(id_)
        except ValueError:
            return _FOREIGN + pack(id_)
        if packed.hex() == id_:  # fromhex also takes capitals and spaces
            return packed
    elif len(id_) >= _UUID_CHARS:
        uuid = _pack_uuid(id_[:_UUID_CHARS])
        if uuid is not None and not uuid.startswith(_FOREIGN):
            return uuid + pack(id_[_UUID_CHARS:])
    return _FOREIGN + pack(id_)


def unpack_id(kept: bytes) -> str:
    """The id again."""
    if kept.startswith(_FOREIGN):
        return unpack(kept[len(_FOREIGN) :])
    if len(kept) < _UUID_BYTES:
        return kept.hex()
    return _dashed(kept[:_UUID_BYTES].hex()) + unpack(kept[_UUID_BYTES:])


def _pack_uuid(text: str) -> bytes | None:
    """The bytes of a UUID that is written as most write it; None for any other text."""
    try:
        packed = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return packed if _dashed(packed.hex()) == text else None


def _dashed(digits: str) -> str:
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Range(NamedTuple):
    """Where ids lie that begin alike: from `low` to before `high`, those of 12 bytes or (not `native`) all others."""

    low: bytes
    high: bytes
    native: bool


def ids_from(prefix: str) -> list[Range]:
    """The ranges in which ids lie that begin like this."""
    begins = _FOREIGN + pack(prefix)
    ranges = [Range(begins, begins + b"\xff", native=False)]
    if prefix.isascii() and all([char in "0123456789abcdef" for char in prefix]) and len(prefix) <= _NATIVE_CHARS:
        highest = bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "f"))
        ranges.append(Range(bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "0")), highest + b"\0", native=True))
    head, rest = prefix[:_UUID_CHARS], pack(prefix[_UUID_CHARS:])
    low, high = _pack_uuid(head + _LOWEST[len(head) :]), _pack_uuid(head + _HIGHEST[len(head) :])
    if low is not None and high is not None:
        # Those that would begin like the mark are kept as their text, and have been found there.
        ranges.append(Range(low + rest, min(high + rest + b"\xff", _FOREIGN), native=False))
    return ranges


def mark_of(call_id: str) -> int:
    """A number by which a call is found among those of its run."""
    return int.from_bytes(sha256(pack(call_id)).digest()[:8], "big", signed=True)
