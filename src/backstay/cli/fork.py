"""`backstay fork`: a new branch at any checkpoint. Nothing is copied, so it takes no time and no space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli.branches import tell_one
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.face import Store


@click.command(
    "fork",
    cls=Command,
    shape="branch",
    examples=["backstay fork ticket-42 main~2 try-again", "backstay fork fix-bug main~2 try-b --into ../try-b"],
)
@session_argument()
@ref_argument()
@click.argument("name", metavar="NAME")
@click.option("--into", metavar="DIR", help="Write its files into a folder of its own, new or empty.")
@click.option("--partial", is_flag=True, help="Where contents were forgotten, write the other files.")
@click.option("--n", "count", metavar="N", type=click.IntRange(1, 100), help="So many branches and folders: NAME-1, …")
@json_option
@in_store
def command(
    store: Store,
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

    With --into its files are written to a folder of their own, so that both can be worked on side by side.
    """
    from backstay.shapes.points import point_at

    found = session_of(store, session)
    point = ref if ref in found.branches() else point_at(found, ref)
    for number in range(1, (count or 1) + 1):
        ending = "" if count is None else f"-{number}"
        folder = None if into is None else into.rstrip("/") + ending
        branch = found.fork(point, name + ending, into=folder, partial=partial)
        tell_one(found.id, name + ending, branch.head, as_json=as_json)
