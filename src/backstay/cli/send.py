"""`backstay send`: send a message to a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from backstay.cli.command import Command, json_option
from backstay.cli.store_option import in_store
from backstay.cli.text import safe

if TYPE_CHECKING:
    from backstay.face import Store


@click.command("send", cls=Command, shape="sent", examples=["backstay send ticket-42 inbox '\"the lamp came back\"'"])
@click.argument("session", metavar="SESSION")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="JSON")
@click.option("--branch", metavar="NAME", default="main", help="Which branch; main without it.")
@json_option
@in_store
def command(store: Store, session: str, name: str, value: str, *, branch: str, as_json: bool) -> None:
    """Send a message to SESSION, for `run.receive(NAME)` of its code; the whole id, and made if there is none.

    Each message is received once, in order.
    """
    try:
        message = json.loads(value)
    except ValueError as error:
        raise click.UsageError(f"{safe(value)} is not JSON: {error}") from None
    store.session(session).send(name, message, branch=branch)
    if as_json:
        from backstay import shapes

        click.echo(shapes.dump({"session": session, "branch": branch, "name": name}))
    else:
        click.echo(f"Sent to {safe(name)} of {safe(session)}.")
