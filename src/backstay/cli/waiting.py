"""`backstay waiting`: what sessions wait for: people, times, messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli.command import Command, json_option
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Piece
    from backstay.face import Store
    from backstay.model import Wait

_ASKED_CHARS = 200


@click.command(
    "waiting", cls=Command, shape="wait*", examples=["backstay waiting", "backstay waiting --agent support --json"]
)
@click.option("--agent", metavar="NAME", help="Only those of this agent.")
@json_option
@in_store
def command(store: Store, *, agent: str | None, as_json: bool) -> None:
    """List what sessions wait for, the one touched last first: an answer, an approval, a time, a message.

    `backstay answer` answers one. A session whose time has come, or whose message is there, goes on with `recover` of
    your own code.
    """
    from backstay import shapes
    from backstay.cli.screen import Screen

    waits = store.waiting(agent)
    with Screen(paged=not as_json) as screen:
        if as_json:
            for wait in waits:
                screen.line(shapes.dump(shapes.wait(wait)))
            return
        from backstay.cli.columns import Column, listing

        columns = [
            Column("SESSION", least=12, is_name=True),
            Column("OWNER", least=6),
            Column("WAITS", least=16),
            Column("SINCE", right=True),
            Column("ASKED", least=8),
        ]
        if not listing(screen, columns, (row(wait) for wait in waits)):
            screen.line("Nothing waits.")


def row(wait: Wait) -> list[Piece]:
    """A wait's line, cell by cell."""
    from backstay.cli.text import age, safe

    where = wait.session_id if wait.branch == "main" else f"{wait.session_id} ({wait.branch})"
    asked = "" if wait.args is None else safe(repr(wait.args)[:_ASKED_CHARS])
    return [
        (safe(where), "bold"),
        safe(wait.owner or ""),
        (safe(wait.reason), "magenta"),
        (age(wait.since), "dim"),
        asked,
    ]
