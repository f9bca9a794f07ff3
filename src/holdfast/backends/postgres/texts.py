"""Texts and ids as the bytes they are kept as, and again as themselves."""

from __future__ import annotations

from hashlib import sha256

_NATIVE_CHARS = 24
_FOREIGN = b"\xff" * 13  # no native id is that long, and no text begins with such a byte


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
    """An id as it is kept: those Holdfast makes (24 hexadecimal digits) as 12 bytes, others marked, as their text."""
    if len(id_) == _NATIVE_CHARS:
        try:
            packed = bytes.fromhex(id_)
        except ValueError:
            return _FOREIGN + pack(id_)
        if packed.hex() == id_:  # fromhex also takes capitals and spaces
            return packed
    return _FOREIGN + pack(id_)


def unpack_id(kept: bytes) -> str:
    """The id again."""
    return unpack(kept[len(_FOREIGN) :]) if kept.startswith(_FOREIGN) else kept.hex()


def ids_from(prefix: str) -> list[tuple[bytes, bytes]]:
    """The ranges, both ends included, in which ids lie that begin like this."""
    begins = _FOREIGN + pack(prefix)
    ranges = [(begins, begins + b"\xff")]
    if prefix.isascii() and all([char in "0123456789abcdef" for char in prefix]) and len(prefix) <= _NATIVE_CHARS:
        ranges.append(
            (bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "0")), bytes.fromhex(prefix.ljust(_NATIVE_CHARS, "f")))
        )
    return ranges


def mark_of(call_id: str) -> int:
    """A number by which a call is found among those of its run."""
    return int.from_bytes(sha256(pack(call_id)).digest()[:8], "big", signed=True)
