"""Listings: rows under headings, in columns that fit the screen.

Widths are settled by the first rows, so that a list of any length starts at once. Missing room is taken from the
columns that may be cut, the widest first; a later row that is wider is cut to its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

from backstay.cli.screen import Piece, Screen
from backstay.cli.text import cut, pad, width

_GAP = "  "
_MEASURED_ROWS = 60


class Column(NamedTuple):
    """A heading and how its column behaves. `least`: how narrow it may be made; 0 is never cut.

    `brief` is the heading where the whole one does not fit; a `spare` column goes before any other is cut.
    """

    title: str
    right: bool = False
    least: int = 0
    is_name: bool = False
    brief: str = ""
    spare: bool = False


def listing(screen: Screen, columns: Sequence[Column], rows: Iterable[Sequence[Piece]]) -> int:
    """Print the rows and give their number. Columns that are empty in the first rows are left out."""
    coming = iter(rows)
    first = list(islice(coming, _MEASURED_ROWS))
    if not first:
        return 0
    used = [n for n in range(len(columns)) if any(_text(row[n]) for row in first)]
    if not _fits(screen, columns, used, first):
        columns = [column._replace(title=column.brief or column.title) for column in columns]
    if not _fits(screen, columns, used, first):
        used = [n for n in used if not columns[n].spare]
    while True:
        widths = _fit(screen, [columns[n] for n in used], [[_text(row[n]) for n in used] for row in first])
        firm = [n for n in used if not columns[n].least]
        if sum(widths) + len(_GAP) * (len(widths) - 1) <= screen.width or len(firm) <= 1:
            break
        # A narrow terminal: the widest of what cannot be cut goes, so that every line is still one.
        used.remove(max(firm, key=lambda n: widths[used.index(n)]))
    titles = [pad(columns[n].title, w, right=columns[n].right) for n, w in zip(used, widths, strict=True)]
    screen.line((_GAP.join(titles).rstrip(), "dim"))
    total = 0
    for row in chain(first, coming):
        _line(screen, [columns[n] for n in used], widths, [row[n] for n in used])
        total += 1
    return total


def _fits(screen: Screen, columns: Sequence[Column], used: Sequence[int], rows: Sequence[Sequence[Piece]]) -> bool:
    """True if the rows fit with nothing cut."""
    widths = [max([width(columns[n].title), *[width(_text(row[n])) for row in rows]]) for n in used]
    return sum(widths) + len(_GAP) * (len(widths) - 1) <= screen.width


def _line(screen: Screen, columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Piece]) -> None:
    pieces: list[Piece] = []
    last = len(cells) - 1
    for place, (column, room, cell) in enumerate(zip(columns, widths, cells, strict=True)):
        text, style = (cell, "") if isinstance(cell, str) else cell
        if text.isascii() and len(text) <= room:
            text = text.rjust(room) if column.right else text.ljust(room)  # nearly always, and there may be many
        else:
            if not column.is_name or screen.cuts_names:
                text = cut(text, room)
            text = pad(text, room, right=column.right)
        if place == last:
            text = text.rstrip()
        pieces += [(text, style), _GAP] if place != last else [(text, style)]
    screen.line(*pieces)


def _fit(screen: Screen, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    widths = [max([width(column.title), *[width(row[n]) for row in rows]]) for n, column in enumerate(columns)]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - screen.width
    while over > 0:
        able = [n for n, column in enumerate(columns) if column.least and widths[n] > column.least]
        if not able:
            break
        widest = max(able, key=lambda n: (not columns[n].is_name, widths[n] - columns[n].least))
        taken = min(over, widths[widest] - columns[widest].least)
        widths[widest] -= taken
        over -= taken
    return widths


def _text(cell: Piece) -> str:
    return cell if isinstance(cell, str) else cell[0]
