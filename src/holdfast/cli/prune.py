"""`holdfast prune`: forget what a retention allows, and give the space back."""

from __future__ import annotations

import click

import holdfast
from holdfast.cli.bar import Bar
from holdfast.cli.where import in_store, show


@click.command()
@click.argument("session", required=False)
@click.option("--keep-last", type=int, help="So many checkpoints of each branch stay.")
@click.option("--keep-days", type=float, help="What is younger stays.")
@click.option("--finished", type=float, help="Finished sessions untouched for so many days go as a whole.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@in_store
def command(
    store: holdfast.Store,
    session: str | None,
    *,
    keep_last: int | None,
    keep_days: float | None,
    finished: float | None,
    dry_run: bool,
) -> None:
    """Forget old checkpoints of all sessions, or of one SESSION. Heads, tags, labels and fork points stay."""
    retention = holdfast.Retention(keep_last=keep_last, keep_days=keep_days, finished_days=finished)
    with Bar("prune") as bar:
        report = store.prune(retention, session=session, dry_run=dry_run, progress=bar)
    for name, ids in report.checkpoints.items():
        show(f"{name}: {len(ids)} checkpoints")
    for name in report.sessions:
        show(f"{name}: the whole session")
    show(str(report))
