"""The changes of a checkpoint, below its line in `log -p`: `+` came, `-` went, `~` is another now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.difference import Diff, ItemChange
    from backstay.face import Session
    from backstay.model import Checkpoint

_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
_ROWS = 12  # of a part, before the rest is only counted
_LINES = 3  # of an item


def diff_of(session: Session, point: Checkpoint) -> Diff:
    """The difference between a checkpoint and the one before it; all of it for the first one."""
    from itertools import islice

    from backstay.bookkeeping import told
    from backstay.shapes.points import diff_between

    before = next(islice(told(session.log(point)), 1, None), None)
    name = point.id[:8]
    return diff_between(session, before, point, names=("nothing" if before is None else f"{name}~1", name))


def tell_patch(screen: Screen, diff: Diff, indent: str) -> None:
    """Print what changed, part by part."""
    from backstay.cli.text import cut, safe
    from backstay.difference import Diff

    room = screen.width - len(indent) - 4
    for part in diff.parts:
        if not part.items:
            for line in str(Diff(diff.a, diff.b, (part,))).splitlines()[3:][:_ROWS]:
                mark = line.lstrip()[:1]
                screen.line(indent, (cut(safe(line.strip()), room + 4), dict(_MARKS.values()).get(mark, "")))
            continue
        name = cut(safe(str(part.name)), 30)
        shown = part.items if len(part.items) <= _ROWS else part.items[-_ROWS:]
        if len(shown) < len(part.items):
            screen.line(indent, (f"… {len(part.items) - len(shown):,} more in {name} before these (--json)", "dim"))
        for item in shown:
            _item(screen, name, item, indent, room)


def _item(screen: Screen, name: str, item: ItemChange, indent: str, room: int) -> None:
    from backstay.cli.conversation import one_line
    from backstay.cli.text import cut, wrapped

    sides = [(item.kind, item.index_after, item.after)]
    if item.kind == "removed":
        sides = [("removed", item.index_before, item.before)]
    elif item.kind == "changed":
        sides = [("removed", item.index_before, item.before), ("added", item.index_after, item.after)]
    for kind, index, value in sides:
        mark, style = _MARKS[kind]
        lines = wrapped(f"{name}[{index}] {one_line(value)}"[: room * (_LINES + 1)], room)
        if len(lines) > _LINES:
            lines = [*lines[: _LINES - 1], cut(lines[_LINES - 1] + " …", room)]
        for number, line in enumerate(lines):
            screen.line(indent, (f"{mark if number == 0 else ' '} {line}", style))
