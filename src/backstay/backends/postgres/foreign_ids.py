"""Foreign ids as the server keeps them: one that begins with a UUID has that as 16 bytes, and is half as long.

0xFF comes first then, which no text has. Each form sorts as the texts do, so that ids with one beginning are a range,
or two.
"""

from __future__ import annotations

import re

from backstay.backends.postgres.protocol import text_bytes

_MARK = b"\xff"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UUID_CHARACTERS, _UUID_BYTES = 36, 16
_BEHIND = b"\xff" * 17  # no id goes on like this


def pack_id(id_: str) -> bytes:
    """An id as it is kept."""
    if _UUID.match(id_) is None:
        return text_bytes(id_)
    return _MARK + bytes.fromhex(id_[:_UUID_CHARACTERS].replace("-", "")) + text_bytes(id_[_UUID_CHARACTERS:])


def open_id(kept: bytes) -> str:
    """An id that is kept."""
    if kept[:1] != _MARK:
        return kept.decode("utf-8", "surrogatepass")
    digits = kept[1 : 1 + _UUID_BYTES].hex()
    uuid = "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
    return uuid + kept[1 + _UUID_BYTES :].decode("utf-8", "surrogatepass")


def ranges(start: str) -> list[tuple[bytes, bytes]]:
    """Where the ids lie that begin so: from the first of each up to the second."""
    text = text_bytes(start)
    found = [(text, text + _BEHIND)]
    rest = "00000000-0000-0000-0000-000000000000"[len(start) :]
    if _UUID.match(start + rest) is not None:
        low, high = pack_id(start + rest), pack_id(start + rest.replace("0", "f"))
        found.append((low, high + _BEHIND))
    return found
