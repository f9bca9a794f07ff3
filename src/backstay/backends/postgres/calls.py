"""A journaled call as the bytes of its row, and again as a call.

Its result stands apart from the rest, and so does its place in a state: a boundary that takes in a call whose result is
in the state drops the one and puts down the other without having read either. Each is sealed with the run and the call
it belongs to; the body says which of them there were, so that a missing one shows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from backstay import packing
from backstay.backend import CallRow, Journaled
from backstay.backends.postgres.texts import pack
from backstay.errors import CorruptionError


class _Body(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A call without its result and its place."""

    id: bytes
    parent: bytes | None
    name: bytes
    key: bytes | None
    nth: int
    kind: bytes
    args: bytes | None
    args_digest: bytes
    status: str
    token: int
    started_us: int
    ended_us: int | None
    error: tuple[bytes, bytes] | None
    has_result: bool
    has_place: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode


class Sealed(NamedTuple):
    """The columns of a call."""

    body: bytes
    result: bytes | None
    place: bytes | None


def seal(call: CallRow, run: int) -> Sealed:
    """A call as it is kept."""
    body = _Body(
        _short(call.id),
        None if call.parent is None else _short(call.parent),
        pack(call.name),
        None if call.key is None else pack(call.key),
        call.nth,
        pack(call.kind),
        call.args,
        call.args_digest,
        call.status,
        call.token,
        call.started_us,
        call.ended_us,
        None if call.error is None else (pack(call.error[0]), pack(call.error[1])),
        call.result is not None,
        call.place is not None,
    )
    result = None if call.result is None else _attach(b"r", call.id, call.result, run)
    place = None if call.place is None else seal_place(call.id, call.place, run)
    return Sealed(packing.seal_call(_encode(body), run=run), result, place)


def seal_place(call_id: str, place: bytes, run: int) -> bytes:
    """Where in the state a call's result stands."""
    return _attach(b"p", call_id, place, run)


def open_journaled(found: Any) -> Journaled:
    """A call in its place, from the columns run, stood, slot, body, result and place; or a CorruptionError."""
    run, stood, slot, kept, result, place = found
    try:
        body = _decode(packing.open_call(kept, run=run))
        id_ = _long(body.id)
        # A boundary may have put the place where the result was; anything else that is missing is lost.
        moved = body.has_result and result is None and place is not None
        if (result is not None) + moved != body.has_result or (place is not None) < body.has_place:
            raise _damaged()
        call = CallRow(
            id_,
            None if body.parent is None else _long(body.parent),
            _text(body.name),
            None if body.key is None else _text(body.key),
            body.nth,
            _text(body.kind),
            body.args,
            body.args_digest,
            body.status,
            body.token,
            body.started_us,
            body.ended_us,
            None if result is None else _detach(b"r", id_, result, run),
            None if place is None else _detach(b"p", id_, place, run),
            None if body.error is None else (_text(body.error[0]), _text(body.error[1])),
        )
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
        raise _damaged() from error
    return Journaled(run, stood, slot, call)


def _attach(kind: bytes, call_id: str, content: bytes, run: int) -> bytes:
    return packing.seal_call(_about(kind, call_id) + content, run=run)


def _detach(kind: bytes, call_id: str, kept: bytes, run: int) -> bytes:
    about = _about(kind, call_id)
    content = packing.open_call(kept, run=run)
    if not content.startswith(about):
        raise _damaged()
    return content[len(about) :]


def _about(kind: bytes, call_id: str) -> bytes:
    short = _short(call_id)
    return kind + len(short).to_bytes(4, "big") + short


def _damaged() -> CorruptionError:
    message = "a journaled call is damaged, or a part of it is missing"
    return CorruptionError(message, hint="run verify to see what is intact")


def _short(id_: str) -> bytes:
    """An id as it is kept: what is hexadecimal in half as many bytes."""
    try:
        packed = bytes.fromhex(id_)
    except ValueError:
        packed = b""
    return b"\0" + packed if packed.hex() == id_ else b"\1" + pack(id_)


def _long(kept: bytes) -> str:
    return _text(kept[1:]) if kept[:1] == b"\1" else kept[1:].hex()


def _text(kept: bytes) -> str:
    return kept.decode("utf-8", "surrogatepass")
