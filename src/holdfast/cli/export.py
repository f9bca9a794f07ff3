"""`holdfast export`: sessions into one file that can be checked, carried and imported."""

from __future__ import annotations

import click

import holdfast
from holdfast.cli.bar import Bar
from holdfast.cli.where import in_store, show


@click.command()
@click.argument("file", type=click.Path())
@click.option("--session", help="Only this one; otherwise all.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@in_store
def command(store: holdfast.Store, file: str, *, session: str | None, overwrite: bool) -> None:
    """Write sessions with their whole history into FILE."""
    with Bar("export") as bar:
        store.export(file, session=session, overwrite=overwrite, progress=bar)
    show(f"written: {file}")
