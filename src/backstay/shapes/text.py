"""How values look to people: text made harmless, and ages, sizes, counts and costs in a few characters.

Text from a store may hold anything. Nothing but `safe` text reaches a terminal or a page: control characters, escapes
and marks that turn the direction of writing are spelled out, so that no message can move the cursor or hide another.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from backstay.model import counted

_JOINER = "\u200d"
_MAX_MARKS = 4  # on one letter; a heap of them would climb over the lines above
_UNITS = ((60, 1, "s"), (3600, 60, "m"), (86_400, 3600, "h"), (7 * 86_400, 86_400, "d"), (60 * 86_400, 604_800, "w"))
_YEAR_S = 365 * 86_400
_SHORT, _SHORT_UUID, _UUID = 8, 18, 36
_THOUSAND, _MILLION = 1000, 1_000_000
_ITEMS = 20  # of a container that are written out
_TEXT_CHARS = 2000
_INT_BITS = 300


def now() -> datetime:
    """The moment that ages are counted from."""
    return datetime.now(UTC)


def safe(text: str) -> str:
    """One line that a terminal shows as it is: what it would act on is spelled out, line breaks too."""
    if text.isascii():
        return text if text.isprintable() else "".join([c if c.isprintable() else repr(c)[1:-1] for c in text])
    return _safe_letters(text)


def _safe_letters(text: str) -> str:
    import unicodedata  # noqa: PLC0415 - a command that shows plain letters need not wait for it

    out: list[str] = []
    marks = 0
    for index, char in enumerate(text):
        if unicodedata.combining(char):
            marks += 1
            if marks > _MAX_MARKS:
                continue
        else:
            marks = 0
        joins = (
            char == _JOINER and 0 < index < len(text) - 1 and text[index + 1] > "\u2190" and text[index - 1] > "\u2190"
        )
        out.append(char if char.isprintable() or joins else repr(char)[1:-1])
    return "".join(out)


def short(id_: str) -> str:
    """The beginning of a checkpoint's id, to be typed again.

    A UUID begins with the time, in ticks of 100 ns, so all of that is told. An id that is a UUID and more is one of
    several that begin alike, and is told as a whole.
    """
    if len(id_) < _UUID or not id_[_SHORT] == id_[_SHORT_UUID] == "-":
        return safe(id_[:_SHORT])
    return safe(id_ if len(id_) > _UUID else id_[:_SHORT_UUID])


def lines_of(text: str) -> list[str]:
    """A text as harmless lines: its own line breaks are kept, tabs become spaces."""
    return [safe(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n")]


def age(at: datetime) -> str:
    """How long ago, in one short word; a clock that is ahead counts as now."""
    seconds = (now() - at).total_seconds()
    if seconds < 1:
        return "now"
    for below, unit, letter in _UNITS:
        if seconds < below:
            return f"{int(seconds // unit)}{letter}"
    return f"{int(seconds // (30 * 86_400))}mo" if seconds < _YEAR_S else f"{seconds / _YEAR_S:.1f}y"


def ago(at: datetime) -> str:
    """How long ago, in words that end a sentence."""
    word = age(at)
    return "just now" if word == "now" else f"{word} ago"


def moment(at: datetime) -> str:
    """A time as it is written out: in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count(number: int) -> str:
    """A count in at most six columns; nothing where there is none."""
    if number < 10 * _THOUSAND:
        return f"{number:,}" if number else ""
    if number < _MILLION:
        return f"{number / _THOUSAND:.1f}k"
    return f"{number / _MILLION:.1f}M" if number < _THOUSAND * _MILLION else f"{number / _MILLION:,.0f}M"


def money(cost: float) -> str:
    """A cost, in whatever currency it was recorded; nothing where there is none."""
    if not cost:
        return ""
    return f"{cost:.4f}" if abs(cost) < 1 else f"{cost:,.2f}"


def size(count_bytes: int) -> str:
    """A number of bytes."""
    if count_bytes < _THOUSAND:
        return f"{count_bytes} B"
    value = float(count_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= _THOUSAND
        if value < _THOUSAND or unit == "TB":
            break
    return f"{value:.1f} {unit}"


def brief(value: Any, *, chars: int = _TEXT_CHARS) -> str:
    """A value on one harmless line, in Python's notation; what is long is cut before it is written out."""
    if isinstance(value, str):
        return safe(repr(value[:chars])) + ("…" if len(value) > chars else "")
    if isinstance(value, bytes):
        return f"<{counted(len(value), 'byte')}>"
    if isinstance(value, int) and value.bit_length() > _INT_BITS:
        return f"<int of {value.bit_length():,} bits>"
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        inner = [f"{brief(k, chars=chars)}: {brief(v, chars=chars)}" for k, v in list(value.items())[:_ITEMS]]
        return "{" + ", ".join(inner) + (", …" if len(value) > _ITEMS else "") + "}"
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)[:_ITEMS] if isinstance(value, list | tuple) else sorted(value, key=repr)[:_ITEMS]
        inner = [brief(each, chars=chars) for each in items]
        brackets = {list: "[]", tuple: "()"}.get(type(value), "{}")
        return (", ".join(inner) + (", …" if len(value) > _ITEMS else "")).join([brackets[0], brackets[1]])
    return safe(repr(value))
