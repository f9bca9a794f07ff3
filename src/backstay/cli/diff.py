"""`backstay diff`: what differs between two checkpoints: lists side by side, other values by their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.workspace_option import folder_of, workspace_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.difference import Diff, ItemChange, PartDiff
    from backstay.face import Store
    from backstay.listing import FileDiff

_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
_ROWS = 200
_LINES_PER_ITEM = 6


@click.command(
    "diff",
    cls=Command,
    shape="diff",
    examples=["backstay diff ticket-42 main what-if", "backstay diff ticket-42 asked main --stat"],
)
@session_argument()
@ref_argument("a")
@ref_argument("b", default="")
@click.option("--stat", is_flag=True, help="Only how much of each part differs.")
@click.option("--files", is_flag=True, help="Show the lines of files that differ, too.")
@click.option("--disk", is_flag=True, help="In place of B, the files as they are on the disk now.")
@workspace_option
@json_option
@in_store
def command(
    store: Store,
    session: str,
    a: str,
    b: str,
    *,
    stat: bool,
    files: bool,
    disk: bool,
    workspace: str | None,
    as_json: bool,
) -> None:
    """Compare the states at A and B of SESSION: lists item by item side by side, everything else by its path.

    Files of the workspace that differ are listed; with --files, the lines that differ in each.
    """
    if disk == bool(b):
        raise click.UsageError("Give B, or --disk for the files as they are now.")
    from backstay.cli.screen import Screen
    from backstay.shapes.points import diff_between, point_at

    where = session_of(store, session)
    if disk:
        root = workspace or folder_of(where, "main")
        found, b = where.diff(point_at(where, a), backstay.Workspace(root)), "the disk"
    else:
        found = diff_between(where, point_at(where, a), point_at(where, b), names=(a, b))
    with Screen(paged=not as_json) as screen:
        if as_json:
            from backstay import shapes

            screen.line(shapes.dump(shapes.diff(found)))
        elif not found:
            screen.text(f"No difference between {a} and {b}.")
        elif stat:
            tell_stat(screen, found)
        else:
            for part in found.parts:
                _part(screen, found, part)
        if not as_json and found.files:
            tell_files(screen, found.files, lines=files and not stat)


def tell_files(screen: Screen, files: FileDiff, *, lines: bool) -> None:
    """The files that differ, and the lines in them."""
    from backstay.cli.text import safe
    from backstay.model import counted
    from backstay.shapes.files import spelled

    marks = [("+", "green", files.added), ("-", "red", files.removed), ("~", "yellow", files.changed)]
    marks.append(("m", "yellow", files.mode))
    rows = sorted([(path, mark, style) for mark, style, paths in marks for path in paths])
    screen.line(("files", "bold"), f": {counted(len(rows), 'path')}")
    for path, mark, style in rows:
        screen.line((f"  {mark} {safe(spelled(path))}", style))
        text = files.text(path).splitlines() if lines and mark != "m" else []
        for line in text[2:] if len(text) > 1 else [line.partition(": ")[2] for line in text]:
            color = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
            screen.line((f"      {safe(line)}", color))


def tell_stat(screen: Screen, diff: Diff) -> None:
    """How much of each part differs, a line each."""
    from backstay.cli.text import cut, pad, safe, width

    names = [cut(safe(str(stat.part)), screen.width // 2) for stat in diff.stat()]
    widest = max(map(width, names), default=0)
    for name, stat in zip(names, diff.stat(), strict=True):
        counts = [(stat.added, "added"), (stat.removed, "removed"), (stat.changed, "changed")]
        pieces = [(f"  {_MARKS[kind][0]}{number:,} {kind}", _MARKS[kind][1]) for number, kind in counts if number]
        screen.line("  ", (pad(name, widest), "bold"), *pieces)


def _part(screen: Screen, diff: Diff, part: PartDiff) -> None:
    from backstay.cli.text import cut, safe

    stat = part.stat()
    counts = [(stat.added, "added"), (stat.removed, "removed"), (stat.changed, "changed")]
    heading = ", ".join(f"{number:,} {kind}" for number, kind in counts if number)
    screen.line((cut(safe(str(part.name)), screen.width // 2), "bold"), f": {heading}")
    if len({item.kind for item in part.items}) == 1 and part.items[0].kind != "changed":
        _one_side(screen, part.items)
        return
    if part.items:
        _side_by_side(screen, diff, part.items)
        return
    from backstay.difference import Diff

    for line in str(Diff(diff.a, diff.b, (part,))).splitlines()[3:]:
        screen.line((line, dict(_MARKS.values()).get(line.lstrip()[:1], "")))


def _one_side(screen: Screen, items: tuple[ItemChange, ...]) -> None:
    """Items that all came or all went: there is nothing to put beside them, so they have the whole width."""
    from backstay.cli.conversation import one_line

    for item in items[:_ROWS]:
        mark, style = _MARKS[item.kind]
        index, message = (
            (item.index_before, item.before) if item.index_after is None else (item.index_after, item.after)
        )
        lines = _cell(f"[{index}] {one_line(message)}", screen.width - 4, full=len(items) == 1)
        for number, line in enumerate(lines):
            screen.line((f"  {mark if number == 0 else ' '} {line}", style))
    _rest(screen, items)


def _rest(screen: Screen, items: tuple[ItemChange, ...]) -> None:
    if len(items) > _ROWS:
        screen.line((f"    … and {len(items) - _ROWS:,} more (--json has all)", "dim"))


def _side_by_side(screen: Screen, diff: Diff, items: tuple[ItemChange, ...]) -> None:
    from backstay.cli.conversation import one_line
    from backstay.cli.text import cut, pad, safe, width

    half = (screen.width - 7) // 2
    titles = [cut(safe(name), half) for name in (diff.a, diff.b)]
    screen.line("    ", (pad(titles[0], half), "dim"), " | ", (titles[1], "dim"))
    for item in items[:_ROWS]:
        mark, style = _MARKS[item.kind]
        sides = []
        for index, message in ((item.index_before, item.before), (item.index_after, item.after)):
            sides.append([] if index is None else _cell(f"[{index}] {one_line(message)}", half, full=len(items) == 1))
        if item.kind == "changed":
            sides = _where_they_differ(sides, [item.index_before, item.index_after], item, half)
        for n in range(max(map(len, sides))):
            left, right = (side[n] if n < len(side) else "" for side in sides)
            middle = " " * (half - width(left)) + (" | " if right else " |")
            screen.line((f"  {mark if n == 0 else ' '} ", style), (left, style), middle, (right, style))
    _rest(screen, items)


def _cell(text: str, room: int, *, full: bool) -> list[str]:
    from backstay.cli.text import cut, wrapped

    lines = wrapped(text[: room * 20], room)
    most = _LINES_PER_ITEM if full else _LINES_PER_ITEM // 2
    return lines if len(lines) <= most else [*lines[: most - 1], cut(lines[most - 1] + " …", room)]


def _where_they_differ(
    sides: list[list[str]], indexes: list[int | None], item: ItemChange, room: int
) -> list[list[str]]:
    """Of a long item that changed, the stretch around the first difference and not its beginning."""
    from backstay.cli.conversation import one_line

    before, after = one_line(item.before), one_line(item.after)
    same = next(
        (n for n, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after))
    )
    if before == after:
        from backstay.shapes.text import brief

        texts = [f"[{n}] {brief(each)}" for n, each in zip(indexes, (item.before, item.after), strict=True)]
        return [_cell(text, room, full=True) for text in texts]
    if same < room * 2:
        return sides
    start = max(0, same - 20)
    return [_cell(f"[{n}] …{text[start:]}", room, full=True) for n, text in zip(indexes, (before, after), strict=True)]
