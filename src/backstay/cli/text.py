"""Text at a terminal: cut, padded and wrapped by what it shows. The words it shows are those of `shapes.text`."""

from __future__ import annotations

from backstay.shapes.text import age, ago, brief, count, lines_of, moment, money, safe, short, size

__all__ = [
    "age",
    "ago",
    "brief",
    "count",
    "cut",
    "lines_of",
    "moment",
    "money",
    "pad",
    "safe",
    "short",
    "size",
    "times_smaller",
    "width",
    "wrapped",
]

_ELLIPSIS = "…"


def times_smaller(ratio: float) -> str:
    """The words behind a number of bytes that plain copies would exceed so many times."""
    return f", {ratio:.1f}x smaller than plain copies" if ratio > 1 else ""


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
