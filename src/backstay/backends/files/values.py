"""Values as JSON that a person can read and that gives back the very same bytes.

A record's ops and values are msgpack. Here they become JSON, and only if turning that JSON back gives the same bytes,
bit for bit; otherwise what JSON cannot hold is tagged (`{"$bytes": …}`, `{"$ext": …}`, `{"$blobs": …}`,
`{"$float": …}`), and what cannot even be tagged stays base64. Pure.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from typing import Any

import msgspec

from backstay.codec import LARGE, Ext, array_header
from backstay.delta.record import LIST, MANY, PATCH, SET, SPLICE
from backstay.errors import CorruptionError

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode

# What decoding, encoding and building raise on values that this form cannot hold.
_UNFIT = (msgspec.MsgspecError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
# The first bytes of floats, bytes and extensions in msgpack. Inside a text they begin letters of some alphabets: then
# the closer look finds nothing wrong.
_DOUBTFUL = bytes([*range(0xC4, 0xCC), *range(0xD4, 0xD9)])
_SHORT, _MEDIUM = 16, 65_536  # up to which counts the header of an array has one byte, and three


def write_ops(ops: bytes, *, ours: bool) -> tuple[bytes, int]:
    """Ops as JSON, and how many values they take from the body (-1 if that cannot be told)."""
    try:
        value = _unpack(ops)
        count = _count(value)
        try:
            text = _to_json(value)
            if (ours and _is_plain(ops)) or _pack(_from_json(text)) == ops:
                return text, count
        except _UNFIT:
            pass
        text = _to_json({"tagged": _tag(value)})
        if read_ops(text) == ops:
            return text, count
    except (*_UNFIT, CorruptionError):
        pass
    return _to_json({"base64": ops}), -1


def read_ops(text: bytes) -> bytes:
    """The ops again."""
    try:
        value = _from_json(text)
        if isinstance(value, list):
            return _pack(value)
        return _pack(_untag(value["tagged"])) if "tagged" in value else b64decode(value["base64"], validate=True)
    except _UNFIT as error:
        message = "a line of the journal is whole, but its ops do not decode"
        raise CorruptionError(message) from error


def write_values(body: bytes, count: int, *, ours: bool) -> bytes:
    """The values of a body as one member of a JSON object: `"values"`, `"tagged"` or `"base64"`.

    In a body that our own encoder wrote, only what has a byte of `_DOUBTFUL` can come back as something else.
    """
    try:
        values = _unpack(array_header(count) + body)
        try:
            text = _to_json(values)
            if ours and _is_plain(body):
                return b'"values":' + text
            if _body(_pack(_from_json(text)), count) == body:
                return b'"values":' + text
        except _UNFIT:
            pass
        text = _to_json(_tag(values))
        if _body(_pack(_untag(_from_json(text))), count) == body:
            return b'"tagged":' + text
    except _UNFIT:
        pass
    return b'"base64":' + _to_json(body)


def read_values(values: bytes, tagged: bytes, base64: bytes) -> bytes:
    """The body again, from whichever member there was."""
    try:
        if values:
            found = _from_json(values)
            return _body(_pack(found), len(found))
        if tagged:
            found = _untag(_from_json(tagged))
            return _body(_pack(found), len(found))
        return b64decode(_from_json(base64), validate=True)
    except _UNFIT as error:
        message = "a line of the journal is whole, but its values do not decode"
        raise CorruptionError(message) from error


def write_value(data: bytes | None) -> bytes:
    """One value as JSON: null, or an object with the one member `value`, `tagged` or `base64`."""
    if data is None:
        return b"null"
    name, _, text = write_values(data, 1, ours=False).partition(b":")
    # A list of one, but for base64.
    return b'{"base64":%b}' % text if name == b'"base64"' else b"{%b:%b}" % (_ONE[name], text[1:-1])


_ONE = {b'"values"': b'"value"', b'"tagged"': b'"tagged"'}


def read_value(text: bytes) -> bytes | None:
    """The value again."""
    try:
        found = _from_json(text)
        if found is None:
            return None
        ((name, held),) = found.items()
        if name == "base64":
            return b64decode(held, validate=True)
        return _pack(_untag(held) if name == "tagged" else held)
    except _UNFIT as error:
        message = "a line of the journal is whole, but its value does not decode"
        raise CorruptionError(message) from error


def _is_plain(data: bytes) -> bool:
    return len(data.translate(None, _DOUBTFUL)) == len(data)  # five times faster than looking with `re`


def _count(ops: list[Any]) -> int:
    """How many values these ops take; the same sum that reading a record makes."""
    total = 0
    for op in ops:
        code = op[0]
        total += 1 if code in (SET, PATCH) else 2 * op[2] if code == MANY else op[-1] if code in (SPLICE, LIST) else 0
    return total


def _body(packed: bytes, count: int) -> bytes:
    return packed[1 if count < _SHORT else 3 if count < _MEDIUM else 5 :]


def _tag(value: Any) -> Any:
    if isinstance(value, list):
        return [_tag(item) for item in value]
    if isinstance(value, dict):
        if any([key[:1] == "$" for key in value]):
            return {"$dict": [[key, _tag(item)] for key, item in value.items()]}
        return {key: _tag(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, Ext):
        if value.code == LARGE:
            kind, digests = bytes(value.data)[0], bytes(value.data)[1:]
            return {"$blobs": [kind, *[digests[at : at + 32].hex() for at in range(0, len(digests), 32)]]}
        return {"$ext": [value.code, b64encode(value.data).decode()]}
    return value


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, held),) = value.items()
        if name == "$dict":
            return {key: _untag(item) for key, item in held}
        if name == "$bytes":
            return b64decode(held, validate=True)
        if name == "$float":
            return float(held)
        if name == "$blobs":
            return Ext(LARGE, bytes([held[0]]) + b"".join([bytes.fromhex(digest) for digest in held[1:]]))
        if name == "$ext":
            return Ext(held[0], b64decode(held[1], validate=True))
    return {key: _untag(item) for key, item in value.items()}
