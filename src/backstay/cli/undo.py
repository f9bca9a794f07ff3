"""`backstay undo`: the branch as it stood before its last restore or undo; twice is redo."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.confirm import agree, yes_option
from backstay.cli.lookup import branch_option, session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.workspace_option import folder_of, workspace_option
from backstay.model import counted

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store
    from backstay.listing import KeepMine


@click.command("undo", cls=Command, shape="rewound", examples=["backstay undo ticket-42 -y"])
@session_argument()
@branch_option("The branch that was restored.")
@click.option("--talk-only", is_flag=True, help="Files stay as they are, even if the restore moved some.")
@click.option("--mine", is_flag=True, help="Where you and a call changed the same lines, keep yours.")
@click.option("--theirs", is_flag=True, help="Put back all that differs, also what you changed.")
@click.option("--partial", is_flag=True, help="Put back what can be: not what was forgotten or cannot be written.")
@workspace_option
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
@json_option
@in_store
def command(
    store: Store,
    session: str,
    *,
    branch: str,
    talk_only: bool,
    mine: bool,
    theirs: bool,
    partial: bool,
    workspace: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Take back the last restore or undo on a branch of SESSION, as a new checkpoint. A second undo is a redo.

    Files come back too, if that restore moved some; what you changed since is kept. Checkpoints that were made after
    that restore leave the head too, and you are told how many.
    """
    from backstay.cli.interrupted import finish, told
    from backstay.cli.restore import preview
    from backstay.cli.rewind import refuse, tell_json, tell_missed, tell_plan
    from backstay.cli.screen import Screen
    from backstay.cli.text import safe, short
    from backstay.listing import RestorePlan
    from backstay.shapes.going_back import made_since, refuse_moved, standing_at
    from backstay.store.overview import undo_target

    if mine and theirs:
        raise click.UsageError("--mine and --theirs contradict one another")
    keep: KeepMine = False if theirs else "always" if mine else True
    found, screen = session_of(store, session), Screen(aside=as_json)
    finish(screen, found, branch, dry_run=dry_run)
    moves_files = not talk_only and found.undo_moves_files(branch=branch)
    root = (workspace or folder_of(found, branch)) if moves_files else None
    found = store.session(found.id, workspace=root)
    head, target = standing_at(found, branch), undo_target(store.backend, found.id, branch)
    if target is None:
        message = f"branch {branch!r} has no restore to undo"
        raise backstay.NotFoundError(message, hint="`backstay restore SESSION REF` goes back to any checkpoint")
    plan = RestorePlan()
    if root is not None:
        with told(found, branch):
            plan = found.restore(target, branch=branch, files=True, keep_mine=keep, dry_run=True)
    if not (as_json and yes):
        preview(screen, found, branch, head, found.checkpoint(target))
        if root is not None:
            tell_plan(screen, plan, root)
    tell_later(screen, made_since(found, head, target), files=root is not None)
    if dry_run:
        if as_json:
            tell_json(found, branch, None, head.id, plan)
        return
    refuse(plan, "", partial=partial)
    agree(f"Bring {safe(branch)} back to {short(target)}?", yes=yes)
    refuse_moved(found, branch, head.id)
    with told(found, branch):
        made = found.undo(branch=branch, files=moves_files, keep_mine=keep, partial=partial)
    if as_json:
        tell_json(found, branch, made, head.id, plan)
        return
    tell_missed(screen, plan, made)
    screen.line(f"Undone: {safe(branch)} is at {short(made.id)}, a new checkpoint. Undo again to redo.")


def tell_later(screen: Screen, later: int, *, files: bool) -> None:
    """Say how many checkpoints were made after the restore that is taken back: they leave the head with it."""
    if later:
        leave, their = ("leaves", "its") if later == 1 else ("leave", "their")
        made = f"{counted(later, 'checkpoint')} made after that restore {leave} the head too"
        screen.line((f"{made}{f', with {their} files' if files else ''}.", "yellow"))
