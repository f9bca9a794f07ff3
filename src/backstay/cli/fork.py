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


@click.command("fork", cls=Command, shape="branch", examples=["backstay fork ticket-42 main~2 try-again"])
@session_argument()
@ref_argument()
@click.argument("name", metavar="NAME")
@json_option
@in_store
def command(store: Store, session: str, ref: str, name: str, *, as_json: bool) -> None:
    """Make a branch NAME of SESSION at REF. In Python, `session.run(branch=NAME)` goes on there."""
    from backstay.shapes.points import point_at

    found = session_of(store, session)
    branch = found.fork(ref if ref in found.branches() else point_at(found, ref), name)
    tell_one(found.id, name, branch.head, as_json=as_json)
