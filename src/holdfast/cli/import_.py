"""`holdfast import`: sessions from a file that `holdfast export` wrote, verified before they are there."""

from __future__ import annotations

import click

import holdfast
from holdfast.cli.bar import Bar
from holdfast.cli.where import in_store, show


@click.command(name="import")
@click.argument("file", type=click.Path())
@click.option("--rename", help="The new name, where FILE holds one session.")
@click.option(
    "--on-exists",
    type=click.Choice(["refuse", "skip", "rename"]),
    default="refuse",
    show_default=True,
    help="What to do with a session that is there already.",
)
@in_store
def command(store: holdfast.Store, file: str, *, rename: str | None, on_exists: str) -> None:
    """Take in the sessions of FILE."""
    with Bar("import") as bar:
        report = store.import_(file, rename=rename, on_exists=on_exists, progress=bar)
    show(str(report))
