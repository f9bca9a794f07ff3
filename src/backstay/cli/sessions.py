"""`backstay sessions`: one line each, the one touched last first; states are never opened."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import limit_option
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Piece
    from backstay.face import Store
    from backstay.model import SessionInfo

STYLES = {"completed": "green", "failed": "red", "halted": "yellow", "crashed": "bold red", "in_progress": "cyan"}
STYLES |= {"waiting": "magenta", "cancelled": "yellow"}


@click.command(
    "sessions",
    cls=Command,
    shape="session*",
    examples=["backstay sessions", "backstay sessions --crashed", "backstay sessions --agent support -n 1 --json"],
)
@click.option(
    "--status",
    type=click.Choice(["in_progress", "waiting", "completed", "failed", "halted", "cancelled", "crashed"]),
    help="Only those that stand like this.",
)
@click.option("--agent", metavar="NAME", help="Only those of this agent.")
@click.option("--crashed", is_flag=True, help="Only those whose run ended without a word.")
@limit_option
@json_option
@in_store
def command(
    store: Store, *, status: str | None, agent: str | None, crashed: bool, limit: int | None, as_json: bool
) -> None:
    """List the sessions, the one touched last first.

    A session whose run ended without a word (a kill, a crash, power loss) is shown as crashed.
    """
    from backstay.cli.screen import Screen

    found = islice(wanted(store, status, agent, crashed=crashed), limit)
    with Screen(paged=not as_json) as screen:
        if as_json:
            from backstay.cli import shapes

            for info in found:
                screen.line(shapes.dump(shapes.session(info)))
            return
        from backstay.cli.columns import Column, listing

        columns = [
            Column("SESSION", least=12, is_name=True),
            Column("AGENT", least=6),
            Column("STATUS"),
            Column("BRANCHES", right=True),
            Column("CHECKPOINTS", right=True),
            Column("STEP", right=True),
            Column("TOKENS", right=True),
            Column("COST", right=True),
            Column("AGE", right=True),
        ]
        narrow = {"BRANCHES": "BR", "CHECKPOINTS": "CHECKP"}
        wide = 100
        if screen.width < wide:
            columns = [column._replace(title=narrow.get(column.title, column.title)) for column in columns]
        if not listing(screen, columns, (row(info) for info in found)):
            screen.line("No sessions.")


def wanted(store: Store, status: str | None, agent: str | None, *, crashed: bool) -> Iterator[SessionInfo]:
    """The sessions that were asked for."""
    if crashed or status == "crashed":
        both = status not in (None, "crashed")
        for info in store.crashed():
            if (agent is None or info.agent == agent) and (not both or info.status == status):
                yield info
        return
    yield from store.sessions(status=status, agent=agent)


def row(info: SessionInfo) -> list[Piece]:
    """A session's line, cell by cell."""
    from backstay.cli.text import age, count, money, safe

    standing = "crashed" if info.crashed else info.status.value
    return [
        (safe(info.id), "bold"),
        safe(info.agent or ""),
        (standing, STYLES[standing]),
        str(info.branches),
        f"{info.checkpoints:,}",
        "" if info.last_step is None else str(info.last_step),
        count(info.usage.tokens_in + info.usage.tokens_out),
        money(info.usage.cost),
        (age(info.updated_at), "dim"),
    ]
