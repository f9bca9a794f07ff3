"""`holdfast verify`: read everything again and say what is damaged, what that costs, and what to do."""

from __future__ import annotations

import sys

import click

import holdfast
from holdfast.cli.bar import Bar
from holdfast.cli.where import in_store, show

DAMAGED = 4


@click.command()
@click.argument("session", required=False)
@click.option("--repair", is_flag=True, help="First remove what is provably useless; never a readable checkpoint.")
@in_store
def command(store: holdfast.Store, session: str | None, *, repair: bool) -> None:
    """Read everything, or one SESSION, again and compare it with its digests."""
    with Bar("verify") as bar:
        report = store.verify(session, repair=repair, progress=bar)
    show(str(report))
    if not report.ok:
        sys.exit(DAMAGED)
