"""`backstay fork`: a new branch at any checkpoint. Nothing is copied, so it takes no time and no space."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli.branches import tell_one
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import absolute_url, open_store, store_option

if TYPE_CHECKING:
    from backstay.model import Checkpoint


@click.command(
    "fork",
    cls=Command,
    shape="forked",
    examples=["backstay fork ticket-42 main~2 try-again", "backstay fork fix-bug main~2 try-b --into ../try-b"],
)
@session_argument()
@ref_argument()
@click.argument("name", metavar="NAME")
@click.option("--into", metavar="DIR", help="Write its files into a folder of its own, new or empty.")
@click.option("--partial", is_flag=True, help="Where contents were forgotten, write the other files.")
@click.option("--n", "count", metavar="N", type=click.IntRange(1, 100), help="So many branches and folders: NAME-1, …")
@json_option
@store_option
def command(
    url: str | None,
    session: str,
    ref: str,
    name: str,
    *,
    into: str | None,
    partial: bool,
    count: int | None,
    as_json: bool,
) -> None:
    """Make a branch NAME of SESSION at REF. In Python, `session.run(branch=NAME)` goes on there.

    With --into its files are written to a folder of their own, so that both can be worked on side by side; the lines
    to go on there are printed.
    """
    from backstay.shapes.points import point_at

    with open_store(url) as store:
        found = session_of(store, session)
        point = ref if ref in found.branches() else point_at(found, ref)
        for number in range(1, (count or 1) + 1):
            ending = "" if count is None else f"-{number}"
            folder = None if into is None else str(Path(into.rstrip("/") + ending).absolute())
            branch = found.fork(point, name + ending, into=folder, partial=partial)
            if as_json:
                _tell_json(name + ending, branch.head, folder)
                continue
            tell_one(found.id, name + ending, branch.head, as_json=False)
            if folder is not None:
                _tell_folder(found.id, name + ending, folder, url)


def _tell_json(name: str, head: Checkpoint, folder: str | None) -> None:
    from backstay import shapes

    shape = {"name": name, "is_tag": False, "status": head.status.value, "reason": head.reason, "run": None}
    click.echo(shapes.dump({**shape, "head": shapes.checkpoint(head), "into": folder}))


def _tell_folder(session: str, branch: str, folder: str, url: str | None) -> None:
    """Where the files are and how to go on there: the folder has no store of its own."""
    from backstay.cli.restore import quoted
    from backstay.cli.text import safe

    store = absolute_url(url)
    export = f" && export BACKSTAY_URL={quoted(store)}" if store is not None else ""
    click.echo(f"Its files are in {safe(folder)}. To go on there, at the shell and in Python:")
    click.echo(f"  cd {quoted(folder)}{export}")
    click.echo(safe(f"  backstay.open().run({session!r}, branch={branch!r}, workspace='.')"))
