"""`backstay restore`, and what `undo` shares with it: a preview first, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.confirm import agree, yes_option
from backstay.cli.lookup import branch_option, ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.shapes.going_back import aside, leaving, refuse_moved, standing_at

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session, Store
    from backstay.model import Checkpoint

_LISTED = 8


@click.command("restore", cls=Command, shape="restored", examples=["backstay restore ticket-42 asked -y"])
@session_argument()
@ref_argument()
@branch_option("The branch that goes back.")
@click.option("--files", is_flag=True, help="Put the files of the workspace back too, as `backstay rewind` does.")
@yes_option
@json_option
@in_store
def command(store: Store, session: str, ref: str, *, branch: str, files: bool, yes: bool, as_json: bool) -> None:
    """Bring a branch of SESSION back to the state at REF, as a new checkpoint; nothing is removed.

    You are shown what changes and which checkpoints leave the head, and asked. `backstay undo` takes it back.
    """
    if files:
        from backstay.cli.rewind import Wishes, rewind

        rewind(store, session, ref, Wishes(branch), yes=yes, as_json=as_json)
        return
    from backstay.cli.screen import Screen
    from backstay.cli.text import safe, short
    from backstay.shapes.points import point_at

    found = session_of(store, session)
    target, head = point_at(found, ref), standing_at(found, branch)
    screen = Screen(aside=as_json)
    if not (as_json and yes):
        preview(screen, found, branch, head, target)
    agree(f"Restore {safe(branch)} to {short(target.id)}?", yes=yes)
    refuse_moved(found, branch, head.id)
    made = found.restore(target, branch=branch)
    if as_json:
        tell_json(branch, head, made)
        return
    screen.line(f"Restored: {safe(branch)} is at {short(made.id)}, a new checkpoint.")
    screen.line(f"To take it back: backstay undo {quoted(found.id)}{_for_branch(branch)}")


def tell_json(branch: str, before: Checkpoint, made: Checkpoint) -> None:
    """Print where a branch was and where it is."""
    from backstay import shapes
    from backstay.cli.screen import Screen

    shape = {"session": made.session_id, "branch": branch, "before": before.id, "head": shapes.checkpoint(made)}
    Screen().line(shapes.dump(shape))


def preview(screen: Screen, session: Session, branch: str, head: Checkpoint, target: Checkpoint) -> None:
    """The branch as it is and as it would be: the steps that leave the head, and how much differs."""
    from backstay.cli.diff import tell_stat
    from backstay.cli.text import age, cut, pad, safe, short, width
    from backstay.shapes.points import diff_between, told_as

    points = (told_as(session, head), target)
    steps = ["" if point.step is None else f"step {point.step}  " for point in points]
    room = max(20, screen.width - 50)
    told = [step + cut(safe(point.summary), room) for step, point in zip(steps, points, strict=True)]
    widest = max(map(width, told))
    for word, point, text in zip(("now ", "then"), points, told, strict=True):
        screen.line(
            f"{cut(safe(branch), 20)} {word}  ",
            (short(point.id), "yellow"),
            f"  {pad(text, widest)}",
            (f"  {age(point.created_at)}", "dim"),
        )
    _leaving(screen, session, head, target)
    try:
        diff = diff_between(session, head, target, names=("now", "then"))
    except backstay.CorruptionError:
        target.state  # noqa: B018 - where this one is damaged too there is nothing to go back to
        screen.line(("The state of the head is damaged, and gives way to one that is whole.", "red"))
        return
    screen.line("The state changes in:" if diff.parts else "The state does not change.")
    if diff.parts:
        tell_stat(screen, diff)


def _leaving(screen: Screen, session: Session, head: Checkpoint, target: Checkpoint) -> None:
    from backstay.cli.text import cut, safe, short

    found = leaving(session, head, target)
    if found is None:
        screen.line(aside(head))
        return
    if not found:
        return
    one = len(found) == 1
    these = (
        "This checkpoint leaves the head and stays"
        if one
        else f"These {len(found):,} checkpoints leave the head and stay"
    )
    screen.line(f"{these} in the history:")
    for point in found[:_LISTED]:
        step = "" if point.step is None else f"step {point.step}  "
        room = screen.width - 4 - len(step) - len(short(point.id))
        screen.line("  ", (short(point.id), "yellow"), f"  {step}{cut(safe(point.summary), room)}")
    if len(found) > _LISTED:
        screen.line(f"  … and {len(found) - _LISTED:,} more")


def quoted(name: str) -> str:
    """A name as it can be typed at a shell."""
    import shlex

    from backstay.cli.text import safe

    return safe(("-- " if name.startswith("-") else "") + shlex.quote(name))


def _for_branch(branch: str) -> str:
    return "" if branch == "main" else f" --branch {quoted(branch)}"
