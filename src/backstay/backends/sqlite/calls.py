"""A journaled call as the bytes of its row, and again as a call."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay import packing
from backstay.backend import ABANDONED, DONE, FAILED, IN_DOUBT, RETRY, SKIPPED, STARTED, CallRow, Journaled
from backstay.errors import CorruptionError

_STATUSES = (STARTED, IN_DOUBT, DONE, FAILED, SKIPPED, RETRY, ABANDONED)
_KINDS = ("tool", "llm")


class _Body(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A call as it is kept: four rows with results of a kilobyte are to fit a page."""

    id: bytes
    parent: bytes | None
    name: str
    key: str | None
    nth: int
    kind: int | str
    args: bytes | None
    args_digest: bytes
    status: int | str
    token: int
    started_us: int
    took_us: int | None
    result: bytes | None
    place: bytes | None
    error: tuple[str, str] | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode


def seal(call: CallRow, run: int) -> bytes:
    """The row's body."""
    took_us = None if call.ended_us is None else call.ended_us - call.started_us
    body = _Body(
        _short(call.id),
        None if call.parent is None else _short(call.parent),
        call.name,
        call.key,
        call.nth,
        _KINDS.index(call.kind) if call.kind in _KINDS else call.kind,
        call.args,
        call.args_digest,
        _STATUSES.index(call.status) if call.status in _STATUSES else call.status,
        call.token,
        call.started_us,
        took_us,
        call.result,
        call.place,
        call.error,
    )
    return packing.seal_call(_encode(body), run=run)


def _opened(body: _Body) -> CallRow:
    return CallRow(
        _long(body.id),
        None if body.parent is None else _long(body.parent),
        body.name,
        body.key,
        body.nth,
        _KINDS[body.kind] if isinstance(body.kind, int) else body.kind,
        body.args,
        body.args_digest,
        _STATUSES[body.status] if isinstance(body.status, int) else body.status,
        body.token,
        body.started_us,
        None if body.took_us is None else body.started_us + body.took_us,
        body.result,
        body.place,
        body.error,
    )


def _short(id_: str) -> bytes:
    """An id as it is kept: what is hexadecimal in half as many bytes."""
    try:
        packed = bytes.fromhex(id_)
    except ValueError:
        packed = b""
    return b"\0" + packed if packed.hex() == id_ else b"\1" + id_.encode()


def _long(kept: bytes) -> str:
    return kept[1:].decode() if kept[:1] == b"\1" else kept[1:].hex()


def open_journaled(found: Any) -> Journaled:
    """A call in its place, from the columns run, stood, call, body and n; or a CorruptionError."""
    run, stood, slot, body, _ = found
    try:
        return Journaled(run, stood, slot, _opened(_decode(packing.open_call(body, run=run))))
    except (msgspec.DecodeError, IndexError) as error:
        message = "a journaled call is sealed but does not decode"
        raise CorruptionError(message, hint="run verify to see what is intact") from error
