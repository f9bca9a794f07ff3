"""`backstay init`: make a store, here or at a URL."""

from __future__ import annotations

from pathlib import Path

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.store_option import name_of
from backstay.cli.text import safe


@click.command("init", cls=Command, shape="place", examples=["backstay init", "backstay init sqlite:///agents.db"])
@click.argument("url", metavar="[URL]", required=False, envvar="BACKSTAY_URL")
@json_option
def command(url: str | None, *, as_json: bool) -> None:
    """Make a store: at URL, or as .backstay/store.db in this folder.

    \b
    sqlite:///store.db, or a path that ends in .db   one file (SQLite)
    file:folder                                      a folder of JSON lines
    One that is there already is left as it is.
    """
    from backstay import opening

    if url is None:
        url = str(opening.make_folder(Path.cwd()) / "store.db")
    place = opening.place(url)
    known = place is not None and place.exists()
    with backstay.open(url) as store:
        backend = store.backend.name
    if as_json:
        from backstay import shapes

        click.echo(shapes.dump({"store": name_of(url), "backend": backend, "made": not known}))
        return
    click.echo(safe(f"{'There is a store' if known else 'Made a store'} ({backend}): {name_of(url)}"))
    if place is None or place.parent.name != ".backstay":
        click.echo(f"Commands find it by --store {safe(url)} or BACKSTAY_URL={safe(url)}.")
