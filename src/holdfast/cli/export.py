"""`holdfast export`: sessions into one file that can be checked, carried and imported; or as another system's files."""

from __future__ import annotations

import click

import holdfast
from holdfast.cli.bar import Bar
from holdfast.cli.where import in_store, show

_ASKED = len(("SYSTEM", "SESSION", "DIR"))


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="FILE | SYSTEM SESSION DIR")
@click.option("--session", help="Only this one, into FILE; otherwise all.")
@click.option("--branch", default="main", show_default=True, help="The branch for a SYSTEM that has none.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@in_store
def command(store: holdfast.Store, what: tuple[str, ...], *, session: str | None, branch: str, overwrite: bool) -> None:
    """Write sessions with their whole history into FILE; or one SESSION into DIR, as files of another SYSTEM.

    SYSTEM is ccswarm, ares, continuum or smooth (for which DIR may be a new SQLite store, FILE.db).
    """
    with Bar("export") as bar:
        if len(what) == 1 and what[0] not in holdfast.formats.SYSTEMS:
            store.export(what[0], session=session, overwrite=overwrite, progress=bar)
            report = f"written: {what[0]}"
        elif len(what) == _ASKED and what[0] in holdfast.formats.SYSTEMS and session is None:
            system, name, path = what
            report = str(
                holdfast.formats.export(
                    store, name, path, system=system, branch=branch, overwrite=overwrite, progress=bar
                )
            )
        else:
            systems = ", ".join(holdfast.formats.SYSTEMS)
            raise click.UsageError(f"give a FILE; or one of {systems}, then a SESSION and a folder")
    show(report)
