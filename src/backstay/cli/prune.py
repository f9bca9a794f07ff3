"""`backstay prune`: forget what a retention allows, and give the space back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.bar import Bar
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_id
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.face import Store


@click.command(
    "prune",
    cls=Command,
    shape="pruned",
    examples=["backstay prune --keep-last 2 --dry-run", "backstay prune ticket-42 --keep-last 1 --keep-days 0"],
)
@session_argument(required=False)
@click.option("--keep-last", metavar="N", type=int, help="So many checkpoints of each branch stay.")
@click.option("--keep-days", metavar="DAYS", type=float, help="What is younger stays.")
@click.option(
    "--finished", metavar="DAYS", type=float, help="Finished sessions untouched for so many days go as a whole."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
@in_store
def command(
    store: Store,
    session: str | None,
    *,
    keep_last: int | None,
    keep_days: float | None,
    finished: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Forget old checkpoints of all sessions, or of one SESSION. Heads, tags, labels and fork points stay."""
    from backstay.cli.screen import Screen
    from backstay.model import counted

    retention = backstay.Retention(keep_last=keep_last, keep_days=keep_days, finished_days=finished)
    given = None if session is None else session_id(store, session)
    with Bar("prune") as bar:
        report = store.prune(retention, session=given, dry_run=dry_run, progress=bar)
    screen = Screen()
    if as_json:
        from backstay.cli import shapes

        about = {
            "dry_run": report.dry_run,
            "checkpoints": {name: list(ids) for name, ids in report.checkpoints.items()},
            "sessions": list(report.sessions),
            "freed_bytes": report.freed_bytes,
        }
        screen.line(shapes.dump(about))
        return
    for name, ids in report.checkpoints.items():
        screen.text(f"{name}: {counted(len(ids), 'checkpoint')}")
    for name in report.sessions:
        screen.text(f"{name}: the whole session")
    screen.text(str(report))
