"""JSON as the predecessors write it (serde_json, chrono), to the byte: numbers, escapes, indents and times.

Reading is strict: UTF-8 only, no NaN, no number that no double can hold, no half of a surrogate pair; whatever the
original would refuse is a `DamagedError`. Python's own float text differs from serde_json's, so numbers are
written here. No files are touched.

Values are counted before any is decoded: a megabyte of `[],[],` would be fifty of them in memory.
"""

from __future__ import annotations

import json
import re
from datetime import date
from hashlib import sha256
from typing import Any

_escape = json.encoder.encode_basestring

_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_PLUS = re.compile(rb"\de\+\d")
_DECIMAL_FROM, _DECIMAL_TO = -5, 16  # where the decimal point may stand before an exponent is written
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):?(\d\d))", re.ASCII
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_S = 86_400
# So many values are read from any text, and from a long one as many as there is room for where most say something.
_SPARE_VALUES = 100_000
_VALUE_BYTES = 16
_DENSE = 20  # so many bytes for each mark, or less: it may be made of marks
# One that is not closed goes to the end: whoever begins again at every mark in it is at it for hours.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_FIRST_SECOND = (date.min.toordinal() - _EPOCH_DAY) * _DAY_S
AFTER_LAST_SECOND = (date.max.toordinal() + 1 - _EPOCH_DAY) * _DAY_S
_MAX_SECOND = 60  # a leap second


class DamagedError(Exception):
    """Why a file, a row or a line cannot be taken; one sentence without its name."""


class Literal(str):
    """A number exactly as it stood in the text."""

    __slots__ = ()


def parse(data: bytes) -> Any:
    """The value in these bytes, or DamagedError; not decoded if there may be too many values in it."""
    most = _SPARE_VALUES + len(data) // _VALUE_BYTES
    if count_values(data) > most:
        raise DamagedError(f"it holds more than the {most:,} values that are read from {len(data):,} bytes")
    text = _decoded(data)
    value = _parsed(text, _float, _int)
    if _SURROGATE.search(data):
        _refuse_surrogates(value)
    return value


def parse_object(data: bytes) -> dict[str, Any]:
    """The same where only an object will do."""
    value = parse(data)
    if type(value) is not dict:
        raise DamagedError("it holds no JSON object")
    return value


def count_values(data: bytes) -> int:
    """At least as many as there are values, without decoding. Marks inside texts count only where they are few."""
    marks = _marks(data)
    return marks if marks * _DENSE < len(data) else _marks(_TEXT.sub(b"", data))


def _marks(data: bytes) -> int:
    return sum([data.count(mark) for mark in (b"[", b"{", b",", b":")])


def _decoded(data: bytes) -> str:
    if not data.strip():
        raise DamagedError("it is empty")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedError(f"it is not UTF-8 (byte {error.start})") from error


def _parsed(text: str, to_float: Any, to_int: Any) -> Any:
    try:
        return json.loads(text, parse_float=to_float, parse_int=to_int, parse_constant=_constant)
    except json.JSONDecodeError as error:
        torn = error.pos >= len(text.rstrip()) or "Unterminated" in error.msg
        what = "it is torn: it ends in the middle" if torn else f"it is not JSON: {error.msg.lower()}"
        raise DamagedError(f"{what} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise DamagedError("it is nested too deep") from error
    except ValueError as error:  # a whole number with thousands of digits
        raise DamagedError(f"it has a number that cannot be read: {str(error)[:80]}") from error


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise DamagedError(f"the number {text[:40]} is out of range")
    return value


def _int(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)


def _constant(name: str) -> Any:
    raise DamagedError(f"{name} is not JSON")


def _refuse_surrogates(value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) is dict:
            waiting += one.keys()
            waiting += one.values()
        elif type(one) is list:
            waiting += one
        elif type(one) is str:
            try:
                one.encode()
            except UnicodeEncodeError as error:
                raise DamagedError("a text holds half of a surrogate pair") from error


def has_plus(data: bytes) -> bool:
    """True when large numbers are written `1e+16`, as serde_json does since 1.0.147, and not `1e16`."""
    if _PLUS.search(data) is None:
        return False
    found: list[str] = []

    def note(text: str) -> float:
        found.append(text)
        return 0.0

    _parsed(_decoded(data), note, int)  # the same letters may stand inside a text
    return any("e+" in text for text in found)


# writing


def float_text(value: float, *, plus: bool = False) -> str:
    """A float as serde_json writes it; with `plus`, as it does since 1.0.147. NaN and infinities become null."""
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - a NaN
        return "null"
    sign = "-" if str(value).startswith("-") else ""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, rest = mantissa.partition(".")
    digits = (whole + rest).lstrip("0")
    leading = len(whole + rest) - len(digits)
    digits = digits.rstrip("0")
    if not digits:
        return f"{sign}0.0"
    point = len(whole) - leading + int(power or 0)  # so many digits stand before it
    if _DECIMAL_FROM < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point <= _DECIMAL_TO:
        return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"
    exponent = point - 1
    mark = "+" if plus and exponent > 0 else ""
    return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{mark}{exponent}"


class JsonWriter:
    """Values to text. `plus` as in `float_text`; objects keep their order unless they are `Sorted`."""

    def __init__(self, *, plus: bool = False) -> None:
        self._plus = plus

    def pretty(self, value: Any) -> bytes:
        """Two spaces a level, no newline at the end."""
        out: list[str] = []
        self._write(value, out, "\n", ordered=False)
        return "".join(out).encode()

    def compact(self, value: Any) -> bytes:
        """No spaces at all."""
        out: list[str] = []
        self._write(value, out, None, ordered=False)
        return "".join(out).encode()

    def _write(self, value: Any, out: list[str], indent: str | None, *, ordered: bool) -> None:
        kind = type(value)
        if kind is str:
            out.append(_escape(value))
        elif value is None:
            out.append("null")
        elif kind is bool:
            out.append("true" if value else "false")
        elif kind is int:
            out.append(str(value))
        elif kind is float:
            out.append(float_text(value, plus=self._plus))
        elif kind is Literal:
            out.append(str(value))
        elif kind is Sorted:
            self._write(value.value, out, indent, ordered=True)
        elif kind is dict:
            self._write_dict(value, out, indent, ordered=ordered)
        else:
            self._write_list(value, out, indent, ordered=ordered)

    def _write_dict(self, value: dict[str, Any], out: list[str], indent: str | None, *, ordered: bool) -> None:
        if not value:
            out.append("{}")
            return
        inner = None if indent is None else f"{indent}  "
        before, colon = ("{", ":") if inner is None else ("{" + inner, ": ")
        for key in sorted(value) if ordered else value:
            out += (before, _escape(key), colon)
            self._write(value[key], out, inner, ordered=ordered)
            before = "," if inner is None else "," + inner
        out.append("}" if indent is None else indent + "}")

    def _write_list(self, value: list[Any], out: list[str], indent: str | None, *, ordered: bool) -> None:
        if not value:
            out.append("[]")
            return
        inner = None if indent is None else f"{indent}  "
        before = "[" if inner is None else "[" + inner
        for item in value:
            out.append(before)
            self._write(item, out, inner, ordered=ordered)
            before = "," if inner is None else "," + inner
        out.append("]" if indent is None else indent + "]")


class Sorted:
    """A value in which the keys of all objects are written by code point (a `serde_json::Value`)."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def literal_digest(data: bytes, without: tuple[str, ...]) -> str:
    """The sha256 of an object without some of its keys: sorted, compact, every number as it stands in the text.

    Numbers that were parsed and written again may come out otherwise, and a sound file would seem damaged.
    """
    value = _parsed(_decoded(data), Literal, Literal)
    if type(value) is not dict:
        raise DamagedError("it holds no JSON object")
    kept = {key: item for key, item in value.items() if key not in without}
    return sha256(JsonWriter().compact(Sorted(kept))).hexdigest()


# times


def nanoseconds(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time, or DamagedError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise DamagedError(f"{text[:60]!r} is not a time")
    year, month, day, hour, minute, second = (int(found[at]) for at in range(1, 7))
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise DamagedError(f"{text[:60]!r} is not a time") from error
    if hour > 23 or minute > 59 or second > _MAX_SECOND:  # noqa: PLR2004 - a clock
        raise DamagedError(f"{text[:60]!r} is not a time")
    seconds = days * _DAY_S + hour * 3600 + minute * 60 + second
    if found[8] is not None:
        offset = int(found[9]) * 3600 + int(found[10]) * 60
        seconds -= offset if found[8] == "+" else -offset
    if not _FIRST_SECOND <= seconds < AFTER_LAST_SECOND:  # an offset may lead out of the calendar
        raise DamagedError(f"{text[:60]!r} is not a time")
    return seconds * 10**9 + int((found[7] or "").ljust(9, "0"))


def time_text(at_us: int) -> str:
    """A time as chrono writes it: UTC, with the fewest of 0, 3 or 6 digits that lose nothing."""
    seconds, micros = divmod(at_us, 10**6)
    days, rest = divmod(seconds, _DAY_S)
    day = date.fromordinal(days + _EPOCH_DAY)
    fraction = "" if not micros else f".{micros // 1000:03}" if micros % 1000 == 0 else f".{micros:06}"
    return f"{day.isoformat()}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}{fraction}Z"
