"""A private copy of a state that compares exactly.

Python's own `==` walks lists and dicts in C and stops at once where both sides hold the same string, so a shadow of
1000 messages is compared in some 50 microseconds. But `==` also says that 1, 1.0 and True are equal, and 0.0 and
-0.0: where a value is not text, bytes or None, the shadow holds an `Exact` that compares encoded bytes instead.
Containers are copied, so a state that is changed in place no longer equals its shadow.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from backstay.codec import HeldBlobs, Withheld, all_text, decode, encode_canonical
from backstay.errors import InvalidInputError

_NUMBERS = frozenset({int, float, bool})
_ITSELF = frozenset({str, bytes, type(None), HeldBlobs, Withheld})
_KEYS = frozenset({str, bytes, int, float, bool})
all_themselves = _ITSELF.issuperset  # of types: values that are their own shadow


class Exact:
    """Equal to what has the same type and the same canonical bytes, and to nothing else."""

    __slots__ = ("encoded", "kind")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: object) -> None:
        self.kind = type(value)
        self.encoded = encode_canonical(value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not self.kind:
            return False
        try:
            return encode_canonical(other) == self.encoded
        except InvalidInputError:
            return False


class Number:
    """An int, float or bool, equal to the same number of the same type; told apart without encoding it."""

    __slots__ = ("kind", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: float) -> None:
        self.kind = type(value)
        self.value = value

    def __eq__(self, other: object) -> bool:
        if type(other) is not self.kind:
            return False
        if other == self.value:
            return bool(other) or repr(other) == repr(self.value)  # 0.0 is not -0.0
        return other != other and encode_canonical(other) == encode_canonical(self.value)  # noqa: PLR0124 - a NaN


class Vector(Exact):
    """A list of numbers only: its bytes are compared in C, where its members would be one Python call each."""

    __slots__ = ("count",)

    def __init__(self, value: list[Any]) -> None:
        super().__init__(value)
        self.count = len(value)

    def __len__(self) -> int:
        return self.count

    def begins(self, value: list[Any]) -> bool:
        """True when the list begins with exactly these numbers."""
        if len(value) < self.count or not all([type(item) in _NUMBERS for item in value[: self.count]]):
            return False
        return encode_canonical(value[: self.count]) == self.encoded

    def members(self) -> list[Number]:
        """The numbers one by one."""
        return [Number(item) for item in decode(self.encoded)]


def is_text_dict(value: object) -> TypeGuard[dict[str, Any]]:
    """True for a dict, or a subclass of one, with text keys only."""
    return isinstance(value, dict) and all([type(key) is str for key in value])


def shadow_of(value: object) -> Any:
    """The shadow of a settled value."""
    kind = type(value)
    if kind in _ITSELF:
        return value
    if kind is dict:
        if all_text(map(type, value)):  # type: ignore[call-overload]
            if all_themselves(map(type, value.values())):  # type: ignore[attr-defined]
                return value.copy()  # type: ignore[attr-defined]
            return {
                key: item if type(item) in _ITSELF else shadow_of(item)
                for key, item in value.items()  # type: ignore[attr-defined]
            }
        return Exact(value)
    if kind is list:
        if value and all([type(item) in _NUMBERS for item in value]):  # type: ignore[attr-defined]
            return Vector(value)  # type: ignore[arg-type]
        return [item if type(item) in _ITSELF else shadow_of(item) for item in value]  # type: ignore[attr-defined]
    if kind in _NUMBERS:
        return Number(value)  # type: ignore[arg-type]
    if kind is tuple:
        return tuple([shadow_of(item) for item in value])  # type: ignore[attr-defined]
    return Exact(value)


def item_key(item: object, name: str) -> object:
    """What tells an item, or the shadow of one, from others by its value at a key; None if it has none there.

    Only text, bytes and numbers tell items apart; numbers of two types are two keys, as in a state.
    """
    value = item.get(name) if isinstance(item, dict) else None
    if isinstance(value, Number):
        value = value.value
    return (type(value), value) if type(value) in _KEYS else None


def same(shadow: object, value: object) -> bool:
    """True when the value is exactly what the shadow was made of. The shadow stands on the left: its Exacts decide."""
    try:
        return bool(shadow == value)
    except Exception:  # noqa: BLE001 - a foreign __eq__ may do anything (arrays raise); then a closer look decides
        return False
