"""`backstay fork`: a new branch at any checkpoint. Nothing is copied, so it takes no time and no space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli.command import Command
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.text import safe, short

if TYPE_CHECKING:
    from backstay.face import Store


@click.command("fork", cls=Command, examples=["backstay fork ticket-42 main~2 try-again"])
@session_argument()
@ref_argument()
@click.argument("name", metavar="NAME")
@in_store
def command(store: Store, session: str, ref: str, name: str) -> None:
    """Make a branch NAME of SESSION at REF. A run goes on there with session.run(branch=NAME)."""
    found = session_of(store, session)
    branch = found.fork(ref, name)
    click.echo(f"Branch {safe(name)} of {safe(found.id)} stands at")
    click.echo(f"  {short(branch.head.id)}  {safe(branch.head.summary)}".rstrip())
