"""Blobs as they are kept, and the bytes in a column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backstay.backends.sqlite.connections import Connection
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY

# So many at a time: a statement is prepared once for each number. What is left over is asked for twice.
_BLOBS = {count: f"SELECT digest, data FROM blobs WHERE digest IN ({', '.join('?' * count)})" for count in (1, 8, 64)}


def open_body(value: Any) -> bytes:
    """The bytes of a row's body; a column of another type is a row of another table, where pages were exchanged."""
    if type(value) is not bytes:
        raise CorruptionError("a row of the store is damaged", hint=RUN_VERIFY)
    return value


def blobs(connection: Connection, digests: Iterable[bytes]) -> dict[bytes, bytes]:
    """Blobs as they are kept; what is not here is left out."""
    if not connection.has("blobs"):
        return {}
    found: dict[bytes, bytes] = {}
    wanted = list(digests)
    for start in range(0, len(wanted), 64):
        some = wanted[start : start + 64]
        count = next(count for count in _BLOBS if count >= len(some))
        rows: Any = connection.execute(_BLOBS[count], (*some, *some[-1:] * (count - len(some))))
        found.update([(digest, open_body(data)) for digest, data in rows])
    return found
