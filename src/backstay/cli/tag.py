"""`backstay tag`: names that do not move, and that keep their checkpoint from being pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli.branches import tell, tell_one
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.text import safe

if TYPE_CHECKING:
    from backstay.face import Store


@click.command(
    "tag",
    cls=Command,
    shape="branch*",
    examples=["backstay tag ticket-42 main~1 refunded", "backstay tag ticket-42", "backstay tag ticket-42 -d asked"],
)
@session_argument()
@ref_argument(default="")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-d", "--delete", metavar="NAME", help="Remove this tag; its checkpoint stays.")
@json_option
@in_store
def command(store: Store, session: str, ref: str, name: str | None, *, delete: str | None, as_json: bool) -> None:
    """Tag the checkpoint at REF of SESSION with NAME; without REF and NAME, list the tags."""
    found = session_of(store, session)
    if delete is not None:
        if ref:
            raise click.UsageError("give --delete or REF and NAME, not both")
        tags = found.tags()
        found.untag(delete)
        if as_json:
            tell({}, {delete: tags[delete]}, {}, {}, as_json=True)
        else:
            click.echo(f"Tag {safe(delete)} is gone; its checkpoint is still there.")
    elif not ref:
        tags = found.tags()
        if not tags and not as_json:
            click.echo("No tags.")
        else:
            tell({}, tags, {}, {}, as_json=as_json)
    elif name is None:
        raise click.UsageError("give a REF and a NAME for it")
    else:
        point = found.checkpoint(ref)
        found.tag(point, name)
        tell_one(found.id, name, point, is_tag=True, as_json=as_json)
