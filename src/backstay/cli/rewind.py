"""`backstay rewind`: conversation and files back to a step, with a preview of every path first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.confirm import agree, yes_option
from backstay.cli.lookup import branch_option, ref_argument, session_argument, session_id
from backstay.cli.store_option import in_store
from backstay.cli.workspace_option import beneath, folder_of, workspace_option
from backstay.listing import KeepMine
from backstay.store.file_export import refuse_forgotten

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session, Store
    from backstay.listing import RestorePlan
    from backstay.model import Checkpoint

_LISTED = 12


@click.command(
    "rewind",
    cls=Command,
    shape="rewound",
    examples=["backstay rewind fix-bug main~3", "backstay rewind fix-bug main~3 --files-only -y -- src/main.py"],
)
@session_argument()
@ref_argument()
@click.argument("paths", metavar="[-- PATH…]", nargs=-1)
@branch_option("The branch that goes back.")
@click.option("--files-only", is_flag=True, help="Put files back; the conversation stays.")
@click.option("--talk-only", is_flag=True, help="Bring the conversation back; files stay.")
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
    ref: str,
    paths: tuple[str, ...],
    *,
    branch: str,
    files_only: bool,
    talk_only: bool,
    mine: bool,
    theirs: bool,
    partial: bool,
    workspace: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Bring a branch of SESSION and the files of its workspace back to REF, as a new checkpoint.

    Files that calls changed since are put back, files that you changed are kept, and where both changed a file the two
    are put together line by line. You are shown every group of paths and asked. With paths behind -- only those are
    put back. The folder as it is now is kept first: `backstay undo` takes all of it back.
    """
    for both, names in (
        (mine and theirs, "--mine and --theirs"),
        (files_only and talk_only, "--files-only and --talk-only"),
        (talk_only and paths, "--talk-only and paths"),
    ):
        if both:
            raise click.UsageError(f"{names} contradict one another")
    keep: KeepMine = False if theirs else "always" if mine else True
    wish = Wishes(branch, talk=not (files_only or paths), files=not talk_only, keep_mine=keep, paths=paths)
    wish = wish._replace(partial=partial)
    rewind(store, session, ref, wish, workspace=workspace, dry_run=dry_run, yes=yes, as_json=as_json)


class Wishes(NamedTuple):
    """The parts of a branch that go back."""

    branch: str
    talk: bool = True
    files: bool = True
    keep_mine: KeepMine = True
    paths: tuple[str, ...] = ()
    partial: bool = False


def rewind(
    store: Store,
    session: str,
    ref: str,
    wish: Wishes,
    *,
    workspace: str | None = None,
    dry_run: bool = False,
    yes: bool = False,
    as_json: bool = False,
) -> None:
    """Show what goes back, ask, and do it."""
    from backstay.cli.restore import preview
    from backstay.listing import RestorePlan
    from backstay.shapes.going_back import refuse_moved, standing_at
    from backstay.shapes.points import point_at

    id_, branch = session_id(store, session), wish.branch
    root = (workspace or folder_of(store.session(id_), branch)) if wish.files else None
    found = store.session(id_, workspace=root)
    target, head = point_at(found, ref), standing_at(found, branch)
    what: dict[str, Any] = {"branch": branch}
    plan = RestorePlan()
    if root is not None:
        what |= {
            "files": True if wish.talk else "only",
            "keep_mine": wish.keep_mine,
            "paths": beneath(root, wish.paths),
            "partial": wish.partial,
        }
        plan = found.restore(target, **what, dry_run=True)
    screen = _screen(aside=as_json)
    if not (as_json and yes):
        if wish.talk:
            preview(screen, found, branch, head, target)
        if root is not None:
            tell_plan(screen, plan, root)
    if dry_run:
        if as_json:
            tell_json(found, branch, None, head.id, plan)
        return
    _refuse(plan, partial=wish.partial)
    agree(f"Rewind {_safe(branch)} to {target.id[:8]}?", yes=yes)
    refuse_moved(found, branch, head.id)
    made: Checkpoint = found.restore(target, **what)
    if as_json:
        tell_json(found, branch, made, head.id, plan)
        return
    tell_missed(screen, plan, made)
    screen.line(f"Rewound: {_safe(branch)} is at {made.id[:8]}, a new checkpoint.")
    screen.line(f"To take it back: {undo_line(found.id, branch)}")
    if wish.talk and target.resume_hint is not None:
        screen.line(f"To go on from there: {_safe(target.resume_hint)}")


def undo_line(id_: str, branch: str) -> str:
    """The line that takes a rewind back."""
    from backstay.cli.restore import quoted

    return f"backstay undo {quoted(id_)}" + ("" if branch == "main" else f" --branch {quoted(branch)}")


def _safe(text: str) -> str:
    from backstay.cli.text import safe

    return safe(text)


def _screen(*, aside: bool) -> Screen:
    from backstay.cli.screen import Screen

    return Screen(aside=aside)


def groups_of(plan: RestorePlan, made: Checkpoint | None = None) -> dict[str, list[str]]:
    """The paths of a plan by what becomes of them, as text; by what became of them, once a checkpoint was made."""
    from backstay.listing import shown

    merged, blocked = set(plan.merged), set(plan.blocked)
    missed = set() if made is None else _missed(plan, made) - blocked
    rest = blocked | missed
    return {
        "put": [shown(step.path) for step in plan.put if step.path not in merged | rest],
        "removed": [shown(step.path) for step in plan.remove if step.path not in rest],
        "kept": [shown(path) for path in plan.kept],
        "merged": [shown(path) for path in plan.merged if path not in rest],
        "missed": [shown(path) for path in sorted(missed)],
        "blocked": [shown(path) for path in plan.blocked],
        "conflicts": [shown(path) for path in plan.conflicts],
        "left": [shown(path) for path in plan.without_contents],
        "never": [shown(path) for path in plan.never_captured],
        "forgotten": [shown(path) for path in plan.forgotten],
    }


def _missed(plan: RestorePlan, made: Checkpoint) -> set[bytes]:
    """The paths of a plan that are not as it wanted them in the checkpoint that was made."""
    from backstay.listing import PERMISSIONS

    files = made.files
    if files is None:
        return set()
    found: set[bytes] = set()
    for step in plan.steps:
        path, after = os.fsdecode(step.path), step.after
        if path not in files:
            is_there = after is None or os.path.lexists(Path(files.root, path))  # it may be ignored by now
            found |= set() if is_there else {step.path}
            continue
        now = files[path]
        what = (now.kind, now.digest or "", os.fsencode(now.target or ""), now.kind == "link" or now.mode & PERMISSIONS)
        if after is None or what != (
            after.kind,
            after.digest.hex(),
            after.target,
            after.kind == "link" or after.permissions,
        ):
            found.add(step.path)
    return found


_WORDS = {
    "put": ("put back", "green"),
    "removed": ("remove", "red"),
    "kept": ("kept (yours)", "cyan"),
    "merged": ("merged, yours and theirs", "yellow"),
    "missed": ("left as they are, because they were changed meanwhile or cannot be written", "red"),
    "blocked": ("cannot be put back, because their folder cannot be written", "red"),
    "conflicts": ("conflicts, changed by you and by calls", "red"),
    "left": ("left as they are, their contents were not captured (a secret, or over max_file)", "dim"),
    "never": ("cannot come back, they are gone and their contents were never captured", "red"),
    "forgotten": ("cannot come back, their contents were forgotten", "red"),
}


def tell_plan(screen: Screen, plan: RestorePlan, root: str) -> None:
    """The paths of a folder, by what becomes of them."""
    from backstay.cli.text import safe

    is_here = os.path.realpath(root) == os.path.realpath(Path.cwd())
    screen.line("Files here:" if is_here else f"Files in {safe(root)}:")
    groups = groups_of(plan)
    if plan.git_moved is not None:
        then, now = [
            f"{safe(commit[:8]) or 'no commit'} ({safe(name) or 'no branch'})" for commit, name in plan.git_moved
        ]
        screen.line("  ", (f"git has moved since: it was at {then} and is at {now}.", "yellow"))
        screen.line("  Only files go back: git will show them as changed.")
    if not any(groups.values()):
        screen.line("  no file differs")
    for name, paths in groups.items():
        _tell_group(screen, name, paths)


def tell_missed(screen: Screen, plan: RestorePlan, made: Checkpoint) -> None:
    """The paths that were shown and that a restore has left as they are after all."""
    _tell_group(screen, "missed", groups_of(plan, made)["missed"])


def _tell_group(screen: Screen, name: str, paths: list[str]) -> None:
    from backstay.cli.text import safe

    if not paths:
        return
    words, style = _WORDS[name]
    screen.line("  ", (f"{words} ({len(paths):,})", style))
    for path in paths[:_LISTED]:
        screen.line(f"    {safe(path)}")
    if len(paths) > _LISTED:
        screen.line(f"    … and {len(paths) - _LISTED:,} more")


def _refuse(plan: RestorePlan, *, partial: bool) -> None:
    """Conflicts are for the person to decide, before anything is asked or done; what cannot be done is told then."""
    if not partial:
        from backstay.workspace.writability import NOT_WRITABLE, OR_PARTIAL, refuse_failed

        refuse_forgotten(groups_of(plan)["forgotten"], "nothing was changed")
        refuse_failed(dict.fromkeys(plan.blocked, NOT_WRITABLE), "nothing was changed", OR_PARTIAL)
    if plan.conflicts:
        names = ", ".join(groups_of(plan)["conflicts"][:_LISTED])
        message = f"nothing was changed: {names}: changed by you and by calls since"
        hint = "--mine keeps yours, --theirs puts all back; name paths behind -- to put back those alone"
        raise backstay.FilesConflictError(message, hint=hint)


def tell_json(session: Session, branch: str, made: Checkpoint | None, before: str, plan: RestorePlan) -> None:
    """Print where a branch was, where it is, and what became of the files."""
    from backstay import shapes
    from backstay.cli.screen import Screen

    head = None if made is None else shapes.checkpoint(made)
    git = None if plan.git_moved is None else [" ".join(at) for at in plan.git_moved]
    about = {"session": session.id, "branch": branch, "before": before, "head": head}
    Screen().line(shapes.dump({**about, "files": groups_of(plan, made), "git_moved": git}))
