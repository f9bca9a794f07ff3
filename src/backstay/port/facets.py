"""What a listing can be narrowed down to, beside names: its facets, short numbers that a backend keeps in an index.

A facet stands for one thing that a session's line says: its status, its agent, its owner, or one scalar of its
metadata. Facets change when these do, and never with a commit that leaves them as they are. Two things may have the
same facet, though hardly ever: a caller compares what it gets. `time_era` does the same for the time of a line.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from typing import Any

from backstay.codec import decode, encode_canonical
from backstay.port.rows import SessionRow

# What a line says that facets are made of: where it is the same, they are.
faceted = attrgetter("status", "agent", "owner", "metadata")

MAX_SCALARS = 16  # of a session's metadata that have facets

_SHORT_BYTES = 1024  # metadata whose facets are remembered
_SCALARS = frozenset({str, int, float, bool, type(None), bytes})
TIME_BITS = 29  # nine minutes, in microseconds


def facet(what: str, value: Any) -> int:
    """The facet of a session of which this is said."""
    # 0.0 and -0.0 are one key to a cache, and are not the same.
    return _make(what, value) if type(value) is float else _remembered(what, value)


def _make(what: str, value: object) -> int:
    return int.from_bytes(sha256(encode_canonical([what, value])).digest()[:8], "big") >> 2


_remembered = lru_cache(maxsize=4096, typed=True)(_make)


def scalar_facets(key: str, value: object) -> tuple[int, ...]:
    """The facets of which a session has one if its metadata says this; none if that cannot be told from them.

    A session with more scalars than have facets has one that says so, and may have any.
    """
    return (facet(f"metadata {key}", value), _MORE) if type(value) in _SCALARS else ()


def facets_of(row: SessionRow) -> frozenset[int]:
    """All facets of a session."""
    said = faceted(row)
    return _all_of(*said) if len(row.metadata) > _SHORT_BYTES else _remembered_of(*said)


def _all_of(status: str, agent: str | None, owner: str | None, packed: bytes) -> frozenset[int]:
    found = {facet("status", status)}
    if agent is not None:
        found.add(facet("agent", agent))
    if owner is not None:
        found.add(facet("owner", owner))
    if packed:
        decoded = decode(packed)
        metadata: dict[Any, Any] = (
            decoded if isinstance(decoded, dict) else {}
        )  # a reader is told of what is no mapping
        scalars = sorted([key for key, value in metadata.items() if type(key) is str and type(value) in _SCALARS])
        found |= {facet(f"metadata {key}", metadata[key]) for key in scalars[:MAX_SCALARS]}
        if len(scalars) > MAX_SCALARS:
            found.add(_MORE)
    return frozenset(found)


_remembered_of = lru_cache(maxsize=1024)(_all_of)


def time_era(updated_us: int) -> int:
    """The nine minutes in which a session was updated last: that changes seldom, and leads to few."""
    return updated_us >> TIME_BITS


_MORE = facet("more", None)
