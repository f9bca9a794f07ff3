"""Values to bytes and back, without losing anything and without running anything.

Plain values (None, bool, int, float, str, bytes, list, dict with text keys) are msgpack as msgspec writes it. What
msgpack cannot tell apart (a tuple from a list, a datetime from a string, an int of 80 bits) is an extension with a
code from the table below. Decoding builds the types of that table and nothing else: no name in the data is looked up.

Two forms of the same value: the *stored* form keeps the order of dict keys; the *canonical* form sorts them and is
what digests are made of (version 1, frozen: docs/format.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from hashlib import sha256
from types import NoneType
from typing import Any, cast
from uuid import UUID

import msgspec

from backstay.errors import CorruptionError, InvalidInputError
from backstay.model import MAX_DEPTH, Damaged

Ext = msgspec.msgpack.Ext

# Extension codes. LARGE never appears in the canonical form: it stands for a value kept as blobs, see delta.
(
    LARGE,
    TUPLE,
    SET,
    FROZENSET,
    DICT,
    BIGINT,
    DATETIME,
    DATE,
    TIME,
    TIMEDELTA,
    DECIMAL,
    UUID_,
    SURROGATES,
    HELD,
    WITHHELD,
) = range(1, 16)

# A blob that a state only needs, and is not made of, has a digest that says so: no load fetches it.
HELD_MARK = b"bs-files"
_HELD_BYTES = 32

_SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
_all_scalars = _SCALARS.issuperset
all_text = frozenset({str}).issuperset  # of types
_HASHABLES = frozenset(
    {str, int, float, bool, NoneType, bytes, tuple, frozenset, datetime, date, time, timedelta, Decimal, UUID}
)
_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="deterministic")
_encode_plain = _encoder.encode
encode_tagged = _encode_plain  # of a value that `tagged` made, or that contains extensions made by the caller
_encode_sorted = _sorting_encoder.encode

Path = tuple[Any, ...]


class Root(str):
    """The first step of a path that does not lead into the state: the name of what it leads into."""

    __slots__ = ()


class HeldBlobs(msgspec.Struct, frozen=True, gc=False):
    """Blobs that a state needs and that are no part of it: their digests, joined. Zeros stand for one that is gone."""

    digests: bytes

    def each(self) -> list[bytes]:
        """The digests one by one, those that are gone as zeros."""
        return [self.digests[at : at + _HELD_BYTES] for at in range(0, len(self.digests), _HELD_BYTES)]


class Withheld(msgspec.Struct, frozen=True, gc=False):
    """Stands for an item of a list that was forgotten: its digest, and the length of its canonical form.

    A digest of a state is made of its items' digests, so that of a state with an item withheld is the same.
    """

    digest: bytes
    size: int


def held_digest(content: bytes) -> bytes:
    """The digest of a blob that states only hold."""
    return HELD_MARK + sha256(content).digest()[: _HELD_BYTES - len(HELD_MARK)]


def is_held(digest: bytes) -> bool:
    """True if it is the digest of a blob that states only hold."""
    return digest.startswith(HELD_MARK)


def held_in(value: object) -> list[bytes]:
    """The digests of all blobs that a value holds."""
    if type(value) is HeldBlobs:
        return [digest for digest in value.each() if is_held(digest)]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [digest for item in inside if type(item) not in _SCALARS for digest in held_in(item)]


# What msgspec and the builders below raise on damaged or hostile bytes.
_UNDECODABLE = (
    msgspec.DecodeError,
    RecursionError,
    ValueError,
    TypeError,
    ArithmeticError,
    AttributeError,
    LookupError,
)


def is_plain(value: object, depth: int = 0) -> bool:
    """True when msgpack alone keeps the value: exact types, text keys, not too deep."""
    if type(value) in _SCALARS:
        return True
    if depth >= MAX_DEPTH:
        return False
    if type(value) is dict:
        if not all_text(map(type, value)):
            return False
        if _all_scalars(map(type, value.values())):  # most messages are: told without a loop in Python
            return True
        for item in value.values():
            if type(item) not in _SCALARS and not is_plain(item, depth + 1):
                return False
        return True
    if type(value) is list:
        for item in value:
            if type(item) not in _SCALARS and not is_plain(item, depth + 1):
                return False
        return True
    return False


def depth_at(path: Path) -> int:
    """How deep a value stands below its part: a value that is added to an old one must not make it too deep."""
    return len(path) - 1 if path else 0


def encode_stored(value: object, path: Path = ()) -> bytes:
    """The stored form: keys in the order they were given."""
    return _encode(value, path, _encode_plain, canonical=False)


def encode_canonical(value: object, path: Path = ()) -> bytes:
    """The canonical form: equal values give equal bytes, whatever the order of their keys."""
    return _encode(value, path, _encode_sorted, canonical=True)


def _encode(value: object, path: Path, encoder: Callable[[object], bytes], *, canonical: bool) -> bytes:
    depth = depth_at(path)
    try:
        if is_plain(value, depth):
            try:
                return encoder(value)
            except (OverflowError, UnicodeEncodeError):
                pass  # an int beyond 64 bits or a lone surrogate: the tagged form has a place for both
        return encoder(tagged(value, path, canonical=canonical, depth=depth))
    except RecursionError:  # the limit was not reached, but the caller's own stack was nearly used up
        message = f"{show_path(path[:6])}…: nested too deep for what is left of the stack"
        raise InvalidInputError(message, hint="flatten it, or commit from a place that is called less deeply") from None


def settle(value: object, path: Path) -> Any:
    """The value as loading will give it back: itself if plain, otherwise its stored form read again."""
    return value if is_plain(value, depth_at(path)) else decode(encode_stored(value, path))


def encode_settled(value: object, path: Path = ()) -> tuple[Any, bytes, bytes]:
    """The value settled, its stored and its canonical form, with one look at it if it is plain."""
    if is_plain(value, len(path) - 1 if path else 0):
        try:
            return value, _encode_plain(value), _encode_sorted(value)
        except (OverflowError, UnicodeEncodeError):
            pass  # an int beyond 64 bits or a lone surrogate
    value = settle(value, path)
    return value, encode_stored(value, path), encode_canonical(value, path)


def encode_list(items: list[Any]) -> bytes | None:
    """The stored forms of all items, one after the other; None if one of them is not plain."""
    count = len(items)
    if not is_plain(items):
        return None
    try:
        data = _encode_plain(items)
    except (OverflowError, UnicodeEncodeError):
        return None  # an int beyond 64 bits or a lone surrogate
    return data[1 if count <= 0xF else 3 if count <= 0xFFFF else 5 :]  # noqa: PLR2004 - without the array's header


def decode(data: bytes | memoryview, *, large: Callable[[bytes], Any] | None = None) -> Any:
    """The value in these bytes, stored or canonical. `large` gives the content of a LARGE extension."""
    return (_decode if large is None else decoder(large))(data)


def decoder(large: Callable[[bytes], Any] | None = None) -> Callable[[bytes | memoryview], Any]:
    """A decode function; damage, wrong structure and hostile nesting are a CorruptionError."""

    def untag(code: int, data: memoryview) -> Any:
        if code == LARGE and large is not None:
            return large(bytes(data))
        build = _BUILDERS.get(code)
        if build is None:
            message = f"extension {code} is not one of this format"
            raise CorruptionError(message)
        return build(inner.decode(data))

    inner = msgspec.msgpack.Decoder(ext_hook=untag)

    def run(data: bytes | memoryview) -> Any:
        try:
            return inner.decode(data)
        except CorruptionError:
            raise
        except _UNDECODABLE as error:
            message = f"stored bytes do not decode: {error}"
            raise CorruptionError(message) from error

    return run


_decode = decoder()


def untag(code: int, data: memoryview) -> Any:
    """What an extension stands for: the hook for a decoder of one's own."""
    build = _BUILDERS.get(code)
    if build is None:
        message = f"extension {code} is not one of this format"
        raise CorruptionError(message)
    return build(_untagging.decode(data))


_untagging = msgspec.msgpack.Decoder(ext_hook=untag)


def show_path(path: Path) -> str:
    """A path as a person would type it: `state['messages'][3]['image']`."""
    root, steps = (str(path[0]), path[1:]) if path and type(path[0]) is Root else ("state", path)
    return root + "".join(f"[{step!r}]" for step in steps)


def tag_scalar(value: object) -> Any:
    """A scalar as msgpack can hold it: ints beyond 64 bits and lone surrogates become extensions."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        size = (value.bit_length() + 8) // 8
        return Ext(BIGINT, _encode_plain(value.to_bytes(size, "big", signed=True)))
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return Ext(SURROGATES, _encode_plain(value.encode("utf-8", "surrogatepass")))
    return value


def tagged(
    value: object,
    path: Path = (),
    *,
    canonical: bool = False,
    depth: int = 0,
    scalar: Callable[[object], Any] = tag_scalar,
) -> Any:
    """The value as msgpack can hold it, with extensions where plain msgpack would lose something.

    `scalar` lets a caller put something else in the place of a scalar (a reference for a large string).
    """
    kind = type(value)
    if kind in _SCALARS:
        return scalar(value)
    if depth >= MAX_DEPTH:
        message = f"{show_path(path[:6])}…: nested deeper than {MAX_DEPTH} levels, or contains itself"
        raise InvalidInputError(message, hint="flatten it, or store it as text or bytes")

    # Loops, not comprehensions, and no inner function: each would be one more frame per level, and a state nested to
    # the limit must fit on the stack of a caller who is deep himself.
    if kind is list or kind is tuple:
        items: list[Any] = []
        for index, item in enumerate(cast("list[Any] | tuple[Any, ...]", value)):
            items.append(tagged(item, (*path, index), canonical=canonical, depth=depth + 1, scalar=scalar))
        return items if kind is list else Ext(TUPLE, _encode_plain(items))
    if kind is set or kind is frozenset:
        # A set has no order of its own: its members sorted by their bytes, so that equal sets are equal bytes.
        members = sorted(_encode_plain(tagged(item, path, canonical=True, depth=depth + 1)) for item in value)  # type: ignore[attr-defined]
        return Ext(SET if kind is set else FROZENSET, array_header(len(members)) + b"".join(members))
    write = _WRITERS.get(kind)
    if write is not None:
        return write(value)
    fields = value if isinstance(value, dict) else _as_dict(value, path)
    return _tag_dict(fields, path, canonical=canonical, depth=depth + 1, scalar=scalar)


def _tag_dict(
    value: dict[Any, Any], path: Path, *, canonical: bool, depth: int, scalar: Callable[[object], Any]
) -> Any:
    if all(type(key) is str and type(tag_scalar(key)) is str for key in value):
        items = {}
        for key, item in value.items():
            items[key] = tagged(item, (*path, key), canonical=canonical, depth=depth, scalar=scalar)
        return dict(sorted(items.items())) if canonical else items
    pairs: list[bytes] = []
    for key, item in value.items():
        if type(key) not in _HASHABLES:
            message = f"{show_path(path)}: a key of type {_name(key)} cannot be stored"
            raise InvalidInputError(message, hint="use text, numbers, bytes, dates or tuples of them as keys")
        name = tagged(key, (*path, key), canonical=canonical, depth=depth)
        content = tagged(item, (*path, key), canonical=canonical, depth=depth, scalar=scalar)
        pairs.append(_encode_plain(name) + _encode_plain(content))
    if canonical:
        pairs.sort()
    return Ext(DICT, array_header(2 * len(pairs)) + b"".join(pairs))


def _as_dict(value: object, path: Path) -> dict[str, Any]:
    """Dataclasses, msgspec Structs and pydantic models go in as plain dicts of their fields; nothing else does."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Damaged):
        message = f"{show_path(path)}: what stood here was damaged and is lost"
        raise InvalidInputError(message, hint="decide what goes there, then commit")
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    fields = getattr(type(value), "model_fields", None)
    if isinstance(fields, dict) and hasattr(type(value), "model_dump"):
        extra = getattr(value, "model_extra", None) or {}
        return {**{name: getattr(value, name) for name in fields}, **extra}
    message = f"{show_path(path)}: a value of type {_name(value)} cannot be stored"
    raise InvalidInputError(message, hint="turn it into plain values (text, numbers, bytes, lists, dicts, dates)")


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def array_header(count: int) -> bytes:
    """The msgpack header of an array of `count` values, so that encoded values can be joined into one."""
    return b"\xdd" + count.to_bytes(4, "big")


# How each further type is written (always as plain values) and built again. A datetime keeps its fields, its fold and
# its offset as a duration: the name of a time zone would have to be looked up on the reading machine.


def _offset(value: datetime | time) -> list[int] | None:
    offset = value.utcoffset()
    return None if offset is None else _duration(offset)


def _duration(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _zone(offset: list[int] | None) -> timezone | None:
    if offset is None:
        return None
    duration = timedelta(*offset)
    return timezone(duration) if duration else UTC


def _write_datetime(v: datetime) -> Ext:
    clock = [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold]
    return Ext(DATETIME, _encode_plain([*clock, _offset(v)]))


def _write_time(v: time) -> Ext:
    return Ext(TIME, _encode_plain([v.hour, v.minute, v.second, v.microsecond, v.fold, _offset(v)]))


def _write_decimal(v: Decimal) -> Ext:
    sign, digits, exponent = v.as_tuple()
    return Ext(DECIMAL, _encode_plain([sign, "".join(map(str, digits)), exponent]))


_WRITERS: dict[type, Callable[[Any], Ext]] = {
    datetime: _write_datetime,
    date: lambda v: Ext(DATE, _encode_plain([v.year, v.month, v.day])),
    time: _write_time,
    timedelta: lambda v: Ext(TIMEDELTA, _encode_plain(_duration(v))),
    Decimal: _write_decimal,
    UUID: lambda v: Ext(UUID_, _encode_plain(v.bytes)),
    HeldBlobs: lambda v: Ext(HELD, _encode_plain(v.digests)),
    Withheld: lambda v: Ext(WITHHELD, _encode_plain([v.digest, v.size])),
}


def _build_dict(flat: list[Any]) -> dict[Any, Any]:
    if len(flat) % 2:
        message = "a stored dict has a key without a value"
        raise CorruptionError(message)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _build_datetime(v: list[Any]) -> datetime:
    year, month, day, hour, minute, second, micros, fold, offset = v
    return datetime(year, month, day, hour, minute, second, micros, tzinfo=_zone(offset), fold=fold)


def _build_time(v: list[Any]) -> time:
    hour, minute, second, micros, fold, offset = v
    return time(hour, minute, second, micros, tzinfo=_zone(offset), fold=fold)


def _build_held(digests: Any) -> HeldBlobs:
    if type(digests) is not bytes or len(digests) % _HELD_BYTES:
        message = "a list of held blobs is no list of digests"
        raise CorruptionError(message)
    return HeldBlobs(digests)


def _build_withheld(v: list[Any]) -> Withheld:
    digest, size = v
    if type(digest) is not bytes or len(digest) != _HELD_BYTES or type(size) is not int or size < 0:
        message = "a withheld item does not say what it was"
        raise CorruptionError(message)
    return Withheld(digest, size)


_BUILDERS: dict[int, Callable[[Any], Any]] = {
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    DICT: _build_dict,
    BIGINT: lambda v: int.from_bytes(v, "big", signed=True),
    DATETIME: _build_datetime,
    DATE: lambda v: date(*v),
    TIME: _build_time,
    TIMEDELTA: lambda v: timedelta(*v),
    DECIMAL: lambda v: Decimal((v[0], tuple(map(int, v[1])), v[2])),
    UUID_: lambda v: UUID(bytes=v),
    SURROGATES: lambda v: v.decode("utf-8", "surrogatepass"),
    HELD: _build_held,
    WITHHELD: _build_withheld,
}
