"""Graph values as plain data, and back.

What a state may hold as it is stays as it is. A message becomes a dict with role and content, so that every tool of
Backstay shows a conversation. Anything else goes through LangGraph's own serializer, whose bytes are unpacked into
readable data; the way back goes through it again, and so through its list of safe types: no name in a row is looked up
here. A dict with the key `lc` is one of these; one that had the key before is wrapped. A serializer of the user's own
has a reason, such as a cipher: nothing is kept of a graph's values but what it gives.

To encode a message costs 4 microseconds, and a chat is a thousand of them at every step. So a Memo keeps what each
object was encoded to, with a copy of its fields that shows whether it was changed in place since.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter, is_
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

import langchain_core.messages as lc
import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.event_hooks import register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send

from backstay.errors import InvalidInputError, UnsupportedError

Plain = Any

_LC = "lc"
SEND = "send"
_SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
_NATIVE = _SCALARS | {datetime, date, timedelta, Decimal, UUID}
_MANY_CHANNELS = 32
_FEW = 4
_UNPACK = ormsgpack.OPT_NON_STR_KEYS
_FIELDS = attrgetter("__dict__")
_EXTRA = attrgetter("__pydantic_extra__")
_STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)
_SEALED = -1  # in the place of an extension's code
_log = logging.getLogger("backstay.adapters.langgraph")

# Roles as the chat APIs call them; a message of another class has its class for a tag all the same.
_ROLES = {"HumanMessage": "user", "AIMessage": "assistant", "SystemMessage": "system", "ToolMessage": "tool"}


class _Shape:
    """A class of messages: its tag in the data, its role, and the values its fields have where nobody gave any."""

    __slots__ = ("beside", "cls", "defaults", "fresh", "names", "role", "tag", "were_set")

    def __init__(self, cls: Any) -> None:
        self.cls = cls
        self.tag = cls.__name__
        self.role = _ROLES.get(self.tag)
        fields = cls.model_fields
        self.names = frozenset(fields)
        self.were_set = set(fields)  # all of them, so that no assignment to a message changes it
        # What stands beside the fields in the data.
        self.beside = tuple([key for key in ("role", _LC, "extra") if key not in self.names])
        self.defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
        # Those that must not be shared between two messages.
        self.fresh = tuple([(name, type(value)) for name, value in self.defaults.items() if value in ({}, [])])


def _shapes() -> dict[str, _Shape]:
    found = {}
    for name in lc.__all__:
        cls = getattr(lc, name)  # loaded when first asked for
        if isinstance(cls, type) and (cls.__module__, cls.__name__) in SAFE_MSGPACK_TYPES:
            found[cls.__name__] = _Shape(cls)
    return found


_SHAPES = _shapes()
_SHAPE_OF: dict[type, _Shape] = {shape.cls: shape for shape in _SHAPES.values()}


def _is_hashable(value: Any) -> bool:
    """True for what a state can hold as a key, or in a set."""
    return type(value) in _NATIVE or (type(value) is tuple and all(map(_is_hashable, value)))


def _is_same(now: Any, then: Any) -> bool:
    """True if these are equal. An array does not say, and then they are not."""
    try:
        return bool(now == then)
    except Exception:  # noqa: BLE001 - whatever an artifact's own comparison raises
        return False


def _shape_in(plain: Plain) -> _Shape | None:
    tag = plain.get(_LC) if type(plain) is dict else None
    return _SHAPES.get(tag) if isinstance(tag, str) else None


class EncodedMessages(NamedTuple):
    """Messages as they stood in a channel, a copy of each one's fields, and what each was encoded to.

    Three long lists, because those are compared faster than they are gone through. Holding the messages keeps their ids
    from being given to others.
    """

    messages: list[Any]
    fields: list[Mapping[str, Any]]
    plain: list[Plain]

    def begins(self, values: list[Any]) -> bool:
        """True if a list begins with these messages, or copies of them, and none of them was changed in place."""
        count = len(self.messages)
        if len(values) < count or not all(map(is_, map(type, self.messages), map(type, values))):
            return False
        head = values if len(values) == count else values[:count]
        return _is_same(list(map(_FIELDS, head)), self.fields) and not any(map(_EXTRA, head))


Known = tuple[Any, Mapping[str, Any], Plain]


class Memo:
    """What the messages of one thread were encoded to, by identity. Not thread-safe."""

    __slots__ = ("_fallback", "_known", "_runs", "_seals")

    def __init__(self, fallback: Callable[[Any], Plain], *, seals: bool) -> None:
        self._runs: dict[tuple[str, str], list[EncodedMessages]] = {}
        self._known: dict[int, Known] = {}  # those met since the last checkpoint
        self._fallback = fallback
        self._seals = seals

    def note(self, key: tuple[str, str], run: EncodedMessages) -> None:
        """Remember the messages of a channel. The last two lists are, since a reader may come between two writes."""
        before = self._runs.pop(key, ())
        if len(self._runs) > _MANY_CHANNELS:  # subgraphs come and go
            del self._runs[next(iter(self._runs))]
        self._runs[key] = [run, *before][:2]

    def begin(self, ns: str) -> None:
        """A graph begins anew, with messages of its own: those that the graphs inside it had are not met again.

        They would not be wrong, but thousands of objects that live for some turns are what a garbage collection costs.
        """
        inside = f"{ns}|" if ns else ""
        for key in [key for key in self._runs if key[0] != ns and key[0].startswith(inside)]:
            del self._runs[key]

    def fields_of(self, key: tuple[str, str], plain: list[Plain]) -> list[Mapping[str, Any]]:
        """The fields of the messages that a list of a channel begins with, as far as they are known."""
        for run in self._runs.get(key, ()):
            if len(run.plain) <= len(plain) and all(map(is_, run.plain, plain)):
                return run.fields
        return []

    def channels(self, ns: str, values: Mapping[str, Any]) -> dict[str, Plain]:
        """All channels of a checkpoint as a state can hold them."""
        result: dict[str, Plain] = {}
        for name, value in values.items():
            is_chat = type(value) is list and value and type(value[0]) in _SHAPE_OF
            result[name] = self._chat((ns, name), value) if is_chat else self.value(value)
        self._known = {}
        return result

    def _chat(self, key: tuple[str, str], values: list[Any]) -> list[Plain]:
        runs = self._runs.get(key, [])
        outer = [] if runs else self._runs.get((key[0].rpartition("|")[0], key[1]), [])
        for at, run in enumerate([*runs, *outer]):  # a subgraph is given what the graph around it holds
            if run.begins(values):
                del runs[at : at + 1]
                break
        else:
            for messages, fields, plain in runs:  # some went, or were changed: each is looked up
                self._known |= {id(one): (one, *rest) for one, *rest in zip(messages, fields, plain, strict=True)}
            run = EncodedMessages([], [], [])
        new = values[len(run.messages) :]
        added: list[Plain] = self.value(new)
        known = [self._known.get(id(item)) for item in new]
        if None not in known:
            fields = [kept[1] for kept in known if kept is not None]
            # A copy of the list too: it is the graph's own, and nodes append to it.
            self.note(key, EncodedMessages(values.copy(), run.fields + fields, run.plain + added))
        return run.plain + added

    def value(self, value: Any) -> Plain:
        """A value of a graph as a state can hold it, and as its serializer wants it."""
        if not self._seals:
            return self.plain(value)
        # Each item for itself, so that a list that grows costs what was added.
        return [self._sealed(item) for item in value] if type(value) is list else self._sealed(value)

    def _list(self, values: list[Any]) -> list[Plain]:
        """A list that may begin with the messages of a channel: a subgraph is given them, and gives them back."""
        if len(values) >= _FEW and type(values[0]) in _SHAPE_OF:
            first = values[0].id
            alike = [
                run
                for runs in self._runs.values()
                for run in runs
                if run.messages and first is not None and run.messages[0].id == first
            ]
            longest = max(alike, key=lambda run: len(run.messages), default=None)
            for run in sorted(alike, key=lambda run: -len(run.messages)):
                if run.begins(values):
                    return run.plain + [self.plain(item) for item in values[len(run.messages) :]]
            if longest is not None:  # some went, or were changed: each is looked up
                self._known |= {id(one): (one, *rest) for one, *rest in zip(*longest, strict=True)}
        return [item if type(item) in _SCALARS else self.plain(item) for item in values]

    def _sealed(self, value: Any) -> Plain:
        if type(value) not in _SHAPE_OF or value.__pydantic_extra__:
            return self._fallback(value)
        kept = self._known.get(id(value))
        if kept is None or not _is_same(kept[1], value.__dict__):
            kept = self._known[id(value)] = value, self.fields(value), self._fallback(value)
        return kept[2]

    def fields(self, message: Any) -> Mapping[str, Any]:
        """A copy of a message's fields, that shows later whether it was changed."""
        return {
            name: value if type(value) in _SCALARS else self.plain(value) for name, value in _FIELDS(message).items()
        }

    def plain(self, value: Any) -> Plain:
        """A value as a state can hold it."""
        kind = type(value)
        if kind in _NATIVE:
            return value
        if kind is list:
            return self._list(value)
        shape = _SHAPE_OF.get(kind)
        if shape is not None:
            return self._message(value, shape)
        if kind is dict and all([type(key) is str or _is_hashable(key) for key in value]):
            items = {key: item if type(item) in _SCALARS else self.plain(item) for key, item in value.items()}
            return {_LC: "dict", "items": [[key, item] for key, item in items.items()]} if _LC in items else items
        if kind is tuple:
            return tuple([self.plain(item) for item in value])
        if (kind is set or kind is frozenset) and all(map(_is_hashable, value)):
            return kind(value)
        if kind is time and value.tzinfo is None:
            return value
        if kind is bytearray:
            return {_LC: "bytearray", "data": bytes(value)}
        if kind is Send and value.timeout is None and not self._seals:
            return {_LC: SEND, "node": value.node, "arg": self.plain(value.arg)}
        if kind is _Shown:
            return {_LC: value.code, "as": self.plain(value.content)}
        return self._fallback(value)

    def _message(self, message: Any, shape: _Shape) -> Plain:
        fields = message.__dict__
        kept = self._known.get(id(message))
        extra = message.__pydantic_extra__
        if kept is not None and not extra and _is_same(kept[1], fields):
            return kept[2]
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
            self._known[id(message)] = message, copy, plain
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
        self.seals = type(serde).dumps_typed is not JsonPlusSerializer.dumps_typed

    def memo(self) -> Memo:
        """A memo for one conversation."""

        def unpacked(value: Any) -> Plain:
            return memo.plain(self._unpacked(value))

        memo = Memo(unpacked, seals=self.seals)
        return memo

    def _unpacked(self, value: Any) -> Any:
        kind, data = self.serde.dumps_typed([value])
        if kind == "pickle":
            message = f"a value of type {type(value).__name__} can only be pickled, and that is not kept"
            raise InvalidInputError(message, hint="make it a dataclass or a pydantic model, or plain data")
        if kind == "json" and self.seals:
            message = "what a serializer calls `json` is not read again, since LangGraph's would build what it names"
            raise InvalidInputError(message, hint="give the form another name in dumps_typed and loads_typed")
        if self.seals or kind != "msgpack":
            return _Shown(_SEALED, [kind, bytes(data)])
        (shown,) = ormsgpack.unpackb(data, ext_hook=_show, option=_UNPACK)
        return shown

    def channels(self, ns: str, values: Mapping[str, Plain], memo: Memo) -> dict[str, Any]:
        """The channels of a checkpoint again."""
        result: dict[str, Any] = {}
        for name, value in values.items():
            try:
                result[name] = self._channel((ns, name), value, memo)
            except UnsupportedError as error:
                raise _in_channel(name, error) from None
        return result

    def _channel(self, key: tuple[str, str], value: Plain, memo: Memo) -> Any:
        shapes: list[Any] = [_shape_in(item) for item in value] if type(value) is list and not self.seals else []
        if not shapes or None in shapes:
            found = self.revive(value)
            if self.seals and type(value) is list and _is_sealed_chat(value, found):
                memo.note(key, EncodedMessages(found.copy(), list(map(memo.fields, found)), value))
            return found
        fields = list(memo.fields_of(key, value))
        fields += [
            _fields(item, shape) for item, shape in zip(value[len(fields) :], shapes[len(fields) :], strict=True)
        ]
        messages = list(map(self._message, value, shapes, fields))
        if not any(map(_EXTRA, messages)):
            memo.note(key, EncodedMessages(messages.copy(), fields, value))
        return messages

    def write(self, channel: str, value: Plain) -> Any:
        """A value that a task wrote to a channel again."""
        try:
            return self.revive(value)
        except UnsupportedError as error:
            raise _in_channel(channel, error) from None

    def revive(self, value: Plain) -> Any:
        """The value again."""
        kind = type(value)
        if kind in _NATIVE:
            return value
        if kind is list:
            return [item if type(item) in _SCALARS else self.revive(item) for item in value]
        if kind is dict:
            if _LC in value:
                return self._tagged(value)
            return {key: item if type(item) in _SCALARS else self.revive(item) for key, item in value.items()}
        if kind is tuple:
            return tuple([self.revive(item) for item in value])
        # A set is copied like the other containers: what is at hand of the store must not change with the reader's.
        return set(value) if kind is set else value

    def _tagged(self, value: dict[Any, Plain]) -> Any:
        tag = value[_LC]
        if type(tag) is str:
            shape = _SHAPES.get(tag)
            if shape is not None:
                return self._message(value, shape, _fields(value, shape))
            if tag == "dict":
                return {key: self.revive(item) for key, item in value["items"]}
            if tag == "bytearray":
                return bytearray(value["data"])
            if tag == SEND:
                return Send(value["node"], self.revive(value["arg"]))
        if type(tag) is int and "as" in value:
            return self._foreign(tag, value["as"])
        # Somebody's data that only looks like ours, or a kind that a later version knows.
        return {key: item if key == _LC else self.revive(item) for key, item in value.items()}

    def _message(self, plain: dict[str, Plain], shape: _Shape, known: Mapping[str, Any]) -> Any:
        names = shape.names
        fields = {**known}
        for name, kind in shape.fresh:
            fields[name] = kind()
        for name, held in plain.items():
            if type(held) not in _SCALARS and name in names:
                fields[name] = self.revive(held)
        # What model_construct does, without its walk over all fields: the values were validated before they were kept.
        message = shape.cls.__new__(shape.cls)
        extra = self.revive(plain["extra"]) if "extra" in plain and "extra" not in names else {}
        _set(message, "__dict__", fields)
        _set(message, "__pydantic_fields_set__", shape.were_set)
        _set(message, "__pydantic_extra__", extra)
        _set(message, "__pydantic_private__", None)
        return message

    def _foreign(self, code: int, content: Plain) -> Any:
        if code == _SEALED:
            kind, data = content
            if kind in ("pickle", "json"):  # what these would build is named in the row
                _log.warning("a value kept as %s was refused; it comes back as bytes", kind)
                return data
            with _no_type_refused():
                (value,) = self.serde.loads_typed((kind, data))
            return value
        packed = ormsgpack.packb([_packable(code, content)], option=_UNPACK)
        # What is not sealed was not made by a serializer that seals, so it has no say in what is built.
        with _no_type_refused():
            (value,) = (_STRICT if self.seals else self.serde).loads_typed(("msgpack", packed))
        return value


class _Refused(threading.local):
    """Types that LangGraph's serializer would not build, in this thread, while a value is read."""

    names: list[str] | None = None


_refused = _Refused()


def _note_refused(event: Any) -> None:
    if _refused.names is not None and event["kind"].endswith("blocked"):
        _refused.names.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_note_refused)


@contextlib.contextmanager
def _no_type_refused() -> Iterator[None]:
    """UnsupportedError where the serializer gives the data of a type that it does not build: nothing says so later."""
    _refused.names = []
    try:
        yield
    finally:
        names, _refused.names = _refused.names, None
    if names:
        message = f"{names[0]} is not a type that the schema of the graph names, so it is not built from stored data"
        raise UnsupportedError(message, hint=f"if it is yours: BackstaySaver(store, allow=[{names[0].split('.')[-1]}])")


def _in_channel(name: str, error: UnsupportedError) -> UnsupportedError:
    return UnsupportedError(f"channel {name!r}: {error.args[0]}", hint=error.hint)


def _is_sealed_chat(kept: list[Plain], found: list[Any]) -> bool:
    are_sealed = all([type(item) is dict and item.get(_LC) == _SEALED for item in kept])
    return are_sealed and not any([type(item) not in _SHAPE_OF or _EXTRA(item) for item in found])


def listed(value: Plain) -> Plain:
    """Plain data with lists for its tuples: metadata comes back so from every saver."""
    if type(value) is list or type(value) is tuple:
        return [listed(item) for item in value]
    return {key: listed(item) for key, item in value.items()} if type(value) is dict else value


def _fields(plain: dict[str, Plain], shape: _Shape) -> dict[str, Any]:
    """The fields of a message, as the memo compares them."""
    fields = {**shape.defaults, **plain}
    for name in shape.beside:
        fields.pop(name, None)
    if len(fields) != len(shape.names):  # a key that a later version has
        fields = {name: held for name, held in fields.items() if name in shape.names}
    return fields


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
