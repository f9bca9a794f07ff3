"""Results as a type of the caller's: converted from the recorded value, live and replayed alike.

The recorded form is plain values, so a dataclass may gain a field with a default and still fit what an older version of
the code recorded. Nothing in the data names a type: the caller does.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from backstay.codec import Root, decode, encode_stored
from backstay.errors import InvalidInputError, MismatchError
from backstay.hints import Hint
from backstay.port import CallRow

_FIT = Hint(
    "change the type so that it fits what is recorded (a new field needs a default); or session.resolve / "
    "session.abandon()",
    "change the type so that it fits what is recorded; or decide with `backstay recover`",
)


def typed(row: CallRow, value: Any, kind: Any) -> Any:
    """A recorded value as the type that the caller asked for; MismatchError if it does not fit."""
    if kind is None:
        return value
    try:
        return _converted(value, kind)
    except _misfits() as error:
        name = getattr(kind, "__qualname__", None) or repr(kind)
        message = f"the result of call {row.name!r} ({row.id}) does not fit {name}: {error}"
        raise MismatchError(message, hint=_FIT) from error


def plain(value: Any) -> Any:
    """A value as it will be recorded."""
    return decode(encode_stored(value, (Root("result"),)))


def _converted(value: Any, kind: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return _model(kind, value)
    try:
        return msgspec.convert(value, kind, strict=True, dec_hook=_model)
    except TypeError as error:  # a type that msgspec does not know: pydantic may, if the caller uses it
        pydantic: Any = sys.modules.get("pydantic")
        if pydantic is None:
            message = f"returns={kind!r} is no type that a recorded value can be converted to: {error}"
            raise InvalidInputError(
                message, hint="a dataclass, a msgspec Struct, a pydantic model, or list[…]"
            ) from error
        return pydantic.TypeAdapter(kind).validate_python(value)


def _model(kind: Any, value: Any) -> Any:
    """A pydantic model, alone or inside a type that msgspec knows; it says itself what does not fit."""
    if not hasattr(kind, "model_validate"):
        raise TypeError(f"{kind!r} is no dataclass, Struct or pydantic model")
    return kind.model_validate(value)


def _misfits() -> tuple[type[Exception], ...]:
    """What converters raise for a value that does not fit."""
    pydantic: Any = sys.modules.get("pydantic")
    return (msgspec.ValidationError,) if pydantic is None else (msgspec.ValidationError, pydantic.ValidationError)
