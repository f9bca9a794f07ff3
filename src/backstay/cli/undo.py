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

if TYPE_CHECKING:
    from backstay.face import Store


@click.command("undo", cls=Command, shape="rewound", examples=["backstay undo ticket-42 -y"])
@session_argument()
@branch_option("The branch that was restored.")
@click.option("--talk-only", is_flag=True, help="Files stay as they are, even if the restore moved some.")
@click.option("--partial", is_flag=True, help="Where contents were forgotten, put back the other files.")
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
    partial: bool,
    workspace: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Take back the last restore or undo on a branch of SESSION, as a new checkpoint. A second undo is a redo.

    Files come back too, if that restore moved some; what you changed since is kept.
    """
    from backstay.cli.interrupted import finish, told
    from backstay.cli.restore import preview
    from backstay.cli.rewind import tell_json, tell_plan
    from backstay.cli.screen import Screen
    from backstay.cli.text import safe, short
    from backstay.listing import RestorePlan
    from backstay.shapes.going_back import refuse_moved, standing_at
    from backstay.store.overview import undo_target

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
            plan = found.restore(target, branch=branch, files=True, keep_mine=True, dry_run=True)
    if not (as_json and yes):
        preview(screen, found, branch, head, found.checkpoint(target))
        if root is not None:
            tell_plan(screen, plan, root)
    if dry_run:
        if as_json:
            tell_json(found, branch, None, head.id, plan)
        return
    agree(f"Bring {safe(branch)} back to {short(target)}?", yes=yes)
    refuse_moved(found, branch, head.id)
    with told(found, branch):
        made = found.undo(branch=branch, files=moves_files, partial=partial)
    if as_json:
        tell_json(found, branch, made, head.id, plan)
        return
    screen.line(f"Undone: {safe(branch)} is at {short(made.id)}, a new checkpoint. Undo again to redo.")
