"""Graph values as plain data, and back.

What a state may hold as it is stays as it is. A message becomes a dict with role and content, so that every tool of
Holdfast shows a conversation. Anything else goes through LangGraph's own serializer, whose bytes are unpacked into
readable data; the way back goes through it again, and so through its list of safe types: no name in a row is looked up
here. A dict with the key `lc` is one of these; one that had the key before is wrapped.

To encode a message costs 4 microseconds, and a chat is a thousand of them at every step. So a Memo keeps what each
object was encoded to, with a copy of its fields that shows whether it was changed in place since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

import langchain_core.messages as lc
import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES

from holdfast.errors import InvalidInputError

Plain = Any

_LC = "lc"
_SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
_NATIVE = _SCALARS | {datetime, date, timedelta, Decimal, UUID}
_KEYS = frozenset({str, int, float, bool, NoneType, bytes, datetime, date, Decimal, UUID})
_UNPACK = ormsgpack.OPT_NON_STR_KEYS
_log = logging.getLogger("holdfast.adapters.langgraph")

# Roles as the chat APIs call them; a message of another class has its class for a tag all the same.
_ROLES = {"HumanMessage": "user", "AIMessage": "assistant", "SystemMessage": "system", "ToolMessage": "tool"}


class _Shape:
    """A class of messages: its tag in the data, its role, and the values its fields have where nobody gave any."""

    __slots__ = ("cls", "defaults", "fresh", "names", "role", "tag")

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.tag = cls.__name__
        self.role = _ROLES.get(self.tag)
        fields = cls.model_fields
        self.names = frozenset(fields)
        self.defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
        # Those that must not be shared between two messages.
        self.fresh = tuple([(name, type(value)) for name, value in self.defaults.items() if value in ({}, [])])


def _shapes() -> dict[str, _Shape]:
    found = {}
    for cls in map(lc.__dict__.get, lc.__all__):
        if isinstance(cls, type) and (cls.__module__, cls.__name__) in SAFE_MSGPACK_TYPES:
            found[cls.__name__] = _Shape(cls)
    return found


_SHAPES = _shapes()
_SHAPE_OF: dict[type, _Shape] = {shape.cls: shape for shape in _SHAPES.values()}


class Known:
    """An object and what it was encoded to; `fields` is how it stood then."""

    __slots__ = ("fields", "plain", "value")

    def __init__(self, value: Any, fields: Mapping[str, Any], plain: Plain) -> None:
        self.value = value
        self.fields = fields
        self.plain = plain


class Memo:
    """What the messages of one conversation were encoded to, by identity. Not thread-safe."""

    __slots__ = ("_fallback", "_known", "_limit")

    def __init__(self, fallback: Callable[[Any], Plain]) -> None:
        self._known: dict[int, Known] = {}
        self._limit = 256
        self._fallback = fallback

    def note(self, value: Any, fields: Mapping[str, Any], plain: Plain) -> None:
        """Remember an object; holding it keeps its id from being given to another."""
        self._known[id(value)] = Known(value, fields, plain)

    def trim(self, values: Mapping[str, Plain]) -> None:
        """Forget what is no longer in use, once that is more than what is."""
        if len(self._known) <= self._limit:
            return
        used = {id(item) for value in values.values() if type(value) is list for item in value}
        self._known = {key: known for key, known in self._known.items() if id(known.plain) in used}
        self._limit = 2 * len(self._known) + 256

    def plain(self, value: Any) -> Plain:
        """A value as a state can hold it."""
        kind = type(value)
        if kind in _NATIVE:
            return value
        if kind is list:
            return self._items(value)
        shape = _SHAPE_OF.get(kind)
        if shape is not None:
            return self._message(value, shape)
        if kind is dict and all([type(key) in _KEYS for key in value]):
            items = {key: item if type(item) in _SCALARS else self.plain(item) for key, item in value.items()}
            return {_LC: "dict", "items": [[key, item] for key, item in items.items()]} if _LC in items else items
        if kind is tuple:
            return tuple([self.plain(item) for item in value])
        if (kind is set or kind is frozenset) and all([type(item) in _NATIVE for item in value]):
            return kind(value)
        if kind is time and value.tzinfo is None:
            return value
        if kind is bytearray:
            return {_LC: "bytearray", "data": bytes(value)}
        if kind is _Shown:
            return {_LC: value.code, "as": self.plain(value.content)}
        return self._fallback(value)

    def _items(self, values: list[Any]) -> list[Plain]:
        known, plain = self._known.get, self.plain
        result = []
        for value in values:
            kept = known(id(value))
            if kept is not None and kept.fields == value.__dict__ and not value.__pydantic_extra__:
                result.append(kept.plain)
            else:
                result.append(plain(value))
        return result

    def _message(self, message: Any, shape: _Shape) -> Plain:
        fields = message.__dict__
        kept = self._known.get(id(message))
        extra = message.__pydantic_extra__
        if kept is not None and not extra and kept.fields == fields:
            return kept.plain
        defaults, copy = shape.defaults, {}
        plain: dict[str, Plain] = {} if shape.role is None else {"role": shape.role}
        for name, value in fields.items():
            copy[name] = held = value if type(value) in _SCALARS else self.plain(value)
            default = defaults.get(name, _SCALARS)
            if type(value) is not type(default) or value != default:
                plain[name] = held
        plain.pop("type", None)
        plain.setdefault("content", "")
        if extra:
            plain["extra"] = self.plain(extra)
        plain[_LC] = shape.tag
        if not extra and len(fields) == len(defaults):
            self.note(message, copy, plain)
        return plain


class _Shown:
    """An extension of LangGraph's msgpack, unpacked: what it stands for, as data."""

    __slots__ = ("code", "content")

    def __init__(self, code: int, content: Any) -> None:
        self.code = code
        self.content = content


def _show(code: int, data: bytes) -> _Shown:
    return _Shown(code, ormsgpack.unpackb(data, ext_hook=_show, option=_UNPACK))


class Codec:
    """Values to plain data and back with one serializer. The plain data does not depend on what it allows."""

    def __init__(self, serde: Any) -> None:
        self.serde = serde

    def memo(self) -> Memo:
        """A memo for one conversation."""
        memo = Memo(lambda value: memo.plain(self._unpacked(value)))
        return memo

    def _unpacked(self, value: Any) -> Any:
        kind, data = self.serde.dumps_typed([value])
        if kind != "msgpack":
            if kind == "pickle":
                message = f"a value of type {type(value).__name__} can only be pickled, and that is not kept"
                raise InvalidInputError(message, hint="make it a dataclass or a pydantic model, or plain data")
            return _Shown(-1, [kind, bytes(data)])  # a serializer of the user's own: sealed, as it wants to be
        (shown,) = ormsgpack.unpackb(data, ext_hook=_show, option=_UNPACK)
        return shown

    def revive(self, value: Plain, memo: Memo) -> Any:
        """The value again."""
        kind = type(value)
        if kind in _NATIVE:
            return value
        if kind is list:
            return [item if type(item) in _SCALARS else self.revive(item, memo) for item in value]
        if kind is dict:
            if _LC in value:
                return self._tagged(value, memo)
            return {key: item if type(item) in _SCALARS else self.revive(item, memo) for key, item in value.items()}
        return tuple([self.revive(item, memo) for item in value]) if kind is tuple else value

    def _tagged(self, value: dict[Any, Plain], memo: Memo) -> Any:
        tag = value[_LC]
        if type(tag) is str:
            shape = _SHAPES.get(tag)
            if shape is not None:
                return self._revive_message(value, shape, memo)
            if tag == "dict":
                return {key: self.revive(item, memo) for key, item in value["items"]}
            if tag == "bytearray":
                return bytearray(value["data"])
        if type(tag) is int and "as" in value:
            return self._revive_foreign(tag, value["as"])
        # Somebody's data that only looks like ours, or a kind that a later version knows.
        return {key: item if key == _LC else self.revive(item, memo) for key, item in value.items()}

    def _revive_message(self, plain: dict[str, Plain], shape: _Shape, memo: Memo) -> Any:
        copy = shape.defaults.copy()
        for name, held in plain.items():
            if name in shape.names:
                copy[name] = held
        fields = copy.copy()
        for name, kind in shape.fresh:
            fields[name] = kind()
        for name, held in plain.items():
            if type(held) not in _SCALARS and name in shape.names:
                fields[name] = self.revive(held, memo)
        # What model_construct does, without its walk over all fields: the values were validated before they were kept.
        message = shape.cls.__new__(shape.cls)
        extra = self.revive(plain["extra"], memo) if "extra" in plain and "extra" not in shape.names else {}
        _set(message, "__dict__", fields)
        _set(message, "__pydantic_fields_set__", set(fields))
        _set(message, "__pydantic_extra__", extra)
        _set(message, "__pydantic_private__", None)
        if not extra:
            memo.note(message, copy, plain)
        return message

    def _revive_foreign(self, code: int, content: Plain) -> Any:
        if code == -1:
            kind, data = content
            if kind in ("pickle", "json"):  # what these would build is named in the row
                _log.warning("a value kept as %s was refused; it comes back as bytes", kind)
                return data
            (value,) = self.serde.loads_typed((kind, data))
            return value
        packed = ormsgpack.packb([_packable(code, content)], option=_UNPACK)
        (value,) = self.serde.loads_typed(("msgpack", packed))
        return value


_set = object.__setattr__


def _packable(code: int, content: Plain) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(_repack(content), option=_UNPACK))


def _repack(value: Plain) -> Any:
    if type(value) is dict:
        if _LC in value:
            if value[_LC] == "dict" and "items" in value:
                return {key: _repack(item) for key, item in value["items"]}
            if type(value[_LC]) is int and "as" in value:
                return _packable(value[_LC], value["as"])
        return {key: _repack(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return [_repack(item) for item in value]
    return value
