"""`backstay blame`: which step wrote each line of a file, by which call, after which prompt; or you."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_id
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.face import Store
    from backstay.run.blaming import BlamedLine

_WIDE = 24


@click.command("blame", cls=Command, shape="blamed*", examples=["backstay blame fix-bug src/main.py"])
@session_argument()
@click.argument("file", metavar="FILE[:LINE]")
@click.option("--ref", metavar="REF", default="main", show_default=True, help="The checkpoint whose file it is.")
@json_option
@in_store
def command(store: Store, session: str, file: str, *, ref: str, as_json: bool) -> None:
    """Say of each line of FILE, as SESSION has it at REF, which step wrote it; FILE:LINE asks for one line.

    FILE is named as in the workspace, whose folder need not be here.
    """
    from backstay import shapes
    from backstay.cli.screen import Screen
    from backstay.cli.text import cut, pad, safe
    from backstay.shapes.points import point_at

    path, line = _asked(file)
    found = store.session(session_id(store, session))
    lines = found.blame(path, point_at(found, ref))
    if line is not None:
        if line > len(lines):
            raise backstay.NotFoundError(f"{path} has {len(lines)} lines, and no line {line}")
        lines = [lines[line - 1]]
    with Screen(paged=not as_json) as screen:
        for each in lines:
            if as_json:
                screen.line(shapes.dump(_shape(each)))
                continue
            who = pad(cut(safe(_who(each)), _WIDE), _WIDE)
            screen.line((each.checkpoint.id[:8], "yellow"), f" {who} {each.number:>4} ", safe(each.text))
            if line is not None and each.prompt:
                screen.line(f"  prompt: {cut(safe(each.prompt), screen.width - 12)}")


def _asked(file: str) -> tuple[str, int | None]:
    path, colon, number = file.rpartition(":")
    return (path, int(number)) if colon and number.isdigit() and int(number) else (file, None)


def _who(line: BlamedLine) -> str:
    if line.is_yours:
        return "you"
    step = "" if line.checkpoint.step is None else f"step {line.checkpoint.step} "
    return f"{step}{line.call or line.author}"


def _shape(line: BlamedLine) -> dict[str, Any]:
    return {
        "line": line.number,
        "text": line.text,
        "checkpoint": line.checkpoint.id,
        "step": line.checkpoint.step,
        "author": line.author,
        "call": line.call,
        "prompt": line.prompt,
    }
