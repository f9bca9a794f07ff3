"""How single values look to people: text made harmless, cut and padded by what a terminal shows; ages, sizes, counts.

Text from a store may hold anything. Nothing but `safe` text reaches a terminal: control characters, escapes and
marks that turn the direction of writing are spelled out, so that no message can move the cursor or hide another.
"""

from __future__ import annotations

from datetime import UTC, datetime

_JOINER = "\u200d"
_MAX_MARKS = 4  # on one letter; a heap of them would climb over the lines above
_ELLIPSIS = "…"
_UNITS = ((60, 1, "s"), (3600, 60, "m"), (86_400, 3600, "h"), (7 * 86_400, 86_400, "d"), (60 * 86_400, 604_800, "w"))
_YEAR_S = 365 * 86_400
_SHORT, _SHORT_UUID, _UUID = 8, 18, 36
_THOUSAND, _MILLION = 1000, 1_000_000


def now() -> datetime:
    """The moment that ages are counted from."""
    return datetime.now(UTC)


def safe(text: str) -> str:
    """One line that a terminal shows as it is: what it would act on is spelled out, line breaks too."""
    if text.isascii():
        return text if text.isprintable() else "".join([c if c.isprintable() else repr(c)[1:-1] for c in text])
    return _safe_letters(text)


def _safe_letters(text: str) -> str:
    import unicodedata

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


def width(text: str) -> int:
    """How many columns a harmless text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, columns: int) -> str:
    """A harmless text in at most so many columns; where it was longer, its end says so."""
    if columns <= 0:
        return ""
    if len(text) > 8 * columns:
        text = text[: 8 * columns]  # no letter is narrower than nothing, but a megabyte is not measured
    elif width(text) <= columns:
        return text
    if text.isascii():
        return text[: columns - 1] + _ELLIPSIS
    from rich.cells import set_cell_size

    return set_cell_size(text, columns - 1).rstrip(" ") + _ELLIPSIS


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """A harmless text, filled up with spaces to so many columns."""
    gap = " " * max(0, columns - width(text))
    return gap + text if right else text + gap


def wrapped(line: str, columns: int) -> list[str]:
    """A harmless line broken between words; a word that is too long is broken too."""
    if width(line) <= columns:
        return [line]
    if line.isascii():
        import textwrap

        return textwrap.wrap(line, max(1, columns), replace_whitespace=False, drop_whitespace=True) or [""]
    from rich.cells import chop_cells

    out, current = [], ""
    for word in line.split(" "):
        longer = f"{current} {word}" if current else word
        if width(longer) <= columns:
            current = longer
            continue
        if current:
            out.append(current)
        pieces = chop_cells(word, max(2, columns))
        out += pieces[:-1]
        current = pieces[-1] if pieces else ""
    return [*out, current]


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
