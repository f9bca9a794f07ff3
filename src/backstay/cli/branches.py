"""`backstay branches`: the branches of a session and where they stand; its tags too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Piece
    from backstay.face import Session, Store
    from backstay.model import Checkpoint


@click.command("branches", cls=Command, shape="branch*", examples=["backstay branches ticket-42"])
@session_argument()
@json_option
@in_store
def command(store: Store, session: str, *, as_json: bool) -> None:
    """List the branches and tags of SESSION, and where each stands. `backstay fork` makes a branch."""
    from backstay.bookkeeping import overtaken
    from backstay.shapes.points import told_as
    from backstay.store.overview import branch_statuses

    found = session_of(store, session)
    heads = found.branches()
    statuses = branch_statuses(store.backend, found.id)
    statuses |= dict.fromkeys(overtaken(heads), ("overtaken", "by another invocation at once"))
    branches = {name: told_as(found, head) for name, head in heads.items()}
    tell(branches, found.tags(), _runs(store, found), statuses, as_json=as_json)


def tell(
    branches: dict[str, Checkpoint],
    tags: dict[str, Checkpoint],
    runs: dict[str, str],
    statuses: dict[str, tuple[str, str | None]],
    *,
    as_json: bool,
) -> None:
    """Print names and where they stand."""
    from backstay import shapes
    from backstay.cli.columns import Column, listing
    from backstay.cli.screen import Screen

    with Screen(paged=not as_json) as screen:
        if as_json:
            for names, is_tag in ((branches, False), (tags, True)):
                for name, point in names.items():
                    run = None if is_tag else runs.get(name)
                    status, reason = (None, None) if is_tag else statuses.get(name, (point.status.value, point.reason))
                    shape = {"name": name, "is_tag": is_tag, "status": status, "reason": reason, "run": run}
                    screen.line(shapes.dump({**shape, "head": shapes.checkpoint(point)}))
            return
        columns = [
            Column("NAME", least=12, is_name=True),
            Column("AT"),
            Column("STEP", right=True),
            Column("STATUS"),
            Column("AGE", right=True),
            Column("LAST MESSAGE", least=16),
        ]
        known = {name: status for name, (status, _) in statuses.items()} | runs
        rows = [_row(name, point, known.get(name)) for name, point in branches.items()]
        rows += [_row(name, point, "tag") for name, point in tags.items()]
        if not listing(screen, columns, rows):
            screen.line("No checkpoints yet, so no branches.")


def tell_one(session: str, name: str, point: Checkpoint, *, is_tag: bool = False, as_json: bool) -> None:
    """Print a name that was just made, and where it stands."""
    from backstay.cli.screen import Screen
    from backstay.cli.text import cut, safe, short

    if as_json:
        names = {name: point}
        tell({} if is_tag else names, names if is_tag else {}, {}, {}, as_json=True)
        return
    screen = Screen()
    screen.line(f"{'Tag' if is_tag else 'Branch'} {safe(name)} of {safe(session)} stands at")
    room = screen.width - len(short(point.id)) - 4
    screen.line("  ", (short(point.id), "yellow"), f"  {cut(safe(point.summary), room)}".rstrip())


def _row(name: str, point: Checkpoint, run: str | None) -> list[Piece]:
    from backstay.cli.sessions import STYLES
    from backstay.cli.text import age, safe, short

    status = run or point.status.value
    return [
        (safe(name), "bold"),
        (short(point.id), "yellow"),
        "" if point.step is None else str(point.step),
        (status, STYLES.get(status, "magenta")),
        (age(point.created_at), "dim"),
        safe(point.summary),
    ]


def _runs(store: Store, session: Session) -> dict[str, str]:
    from backstay.face.run_status import run_statuses

    return {each.branch: "live" if each.live else "crashed" for each in run_statuses(store.backend, session)}
