"""A checkpoint's id and its digest, which tell it from all others. Pure: random bytes come from the caller.

An id is 16 bytes as 32 hex digits that say where its row is:

    5 bytes   the sequence, mixed and XORed with a pad made of the session's uid
    4 bytes   the first of the session's uid (of the uid, which travels, not of the id, which may be renamed)
    7 bytes   random: the tail

The mixing multiplies by an odd number, so that the first n bytes depend on the low n bytes of the sequence alone:
neighbours differ in their first byte, and the start of an id gives the few sequences it can belong to. An id that
somebody else made (an adapter's, a predecessor's) is *foreign*: a backend keeps an index of those.

A digest (version 1, frozen: docs/format.md) covers the digests of the parent and of the state, and every field.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from hashlib import sha256

TAIL_BYTES = 7
UID_BYTES = 16
MAX_SEQUENCE = 2**32 - 1

_SEQUENCE_BYTES = 5
_NO_PARENT = bytes(32)
_UID_START_BYTES = 4
_SPACE = 1 << (8 * _SEQUENCE_BYTES)
_FACTOR = 0x9E3779B97D | 1
_INVERSE = pow(_FACTOR, -1, _SPACE)
match_ours = re.compile(r"[0-9a-f]{32}").fullmatch
_START = re.compile(r"[0-9a-f]{2,32}")


@functools.lru_cache(maxsize=64)  # a commit asks for one id three times: its rule, its body, its index
def make_id(sequence: int, uid: bytes, tail: bytes) -> str:
    """The id of a checkpoint."""
    mixed = sequence * _FACTOR % _SPACE ^ _pad(uid)
    return (mixed.to_bytes(_SEQUENCE_BYTES, "little") + uid[:_UID_START_BYTES] + tail).hex()


def checkpoint_digest(*, id_: str, parent: bytes | None, state: bytes, sequence: int, fields: bytes) -> bytes:
    """A checkpoint's digest: its parent's, its state's, and every field of its own."""
    raw = id_.encode("utf-8", "surrogatepass")
    head = b"checkpoint\0" + len(raw).to_bytes(4, "big") + raw + sequence.to_bytes(8, "big")
    return sha256(head + (parent or _NO_PARENT) + state + fields).digest()


def id_starts(sequences: Iterable[int], uid: bytes) -> list[str]:
    """The ids of many checkpoints of one session, but for their tails."""
    pad, start = _pad(uid), uid[:_UID_START_BYTES].hex()
    return [
        (sequence * _FACTOR % _SPACE ^ pad).to_bytes(_SEQUENCE_BYTES, "little").hex() + start for sequence in sequences
    ]


def sequence_of(id_: str, uid: bytes) -> int | None:
    """The sequence that an id of this session names; None for a foreign id, or one of another session."""
    if not is_ours(id_):
        return None
    raw = bytes.fromhex(id_)
    if raw[_SEQUENCE_BYTES : _SEQUENCE_BYTES + _UID_START_BYTES] != uid[:_UID_START_BYTES]:
        return None
    sequence = (int.from_bytes(raw[:_SEQUENCE_BYTES], "little") ^ _pad(uid)) * _INVERSE % _SPACE
    return sequence if 0 < sequence <= MAX_SEQUENCE else None


def uid_start(id_: str) -> bytes | None:
    """The first bytes of the uid of the session that an id belongs to; None if it is not of our making."""
    return bytes.fromhex(id_)[_SEQUENCE_BYTES : _SEQUENCE_BYTES + _UID_START_BYTES] if is_ours(id_) else None


def sequences_starting(start: str, uid: bytes, *, last: int) -> list[int]:
    """The sequences up to `last` whose ids may begin like this: their rows must be compared with it."""
    if not _START.fullmatch(start):
        return []
    known = min(len(start) // 2, _SEQUENCE_BYTES)
    space = 1 << (8 * known)
    mixed = int.from_bytes(bytes.fromhex(start[: 2 * known]), "little") ^ _pad(uid) % space
    low = mixed * _INVERSE % space
    shown = start[: 2 * (_SEQUENCE_BYTES + _UID_START_BYTES)]
    found = range(low or space, last + 1, space)
    return [sequence for sequence in found if make_id(sequence, uid, b"").startswith(shown)]


def is_ours(id_: str) -> bool:
    """True if an id has the form of those made here; whether it names a row, only its session can tell."""
    return match_ours(id_) is not None


@functools.lru_cache(maxsize=1024)
def _pad(uid: bytes) -> int:
    return int.from_bytes(sha256(b"id\0" + uid).digest()[:_SEQUENCE_BYTES], "little")
