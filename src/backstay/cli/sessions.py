"""`backstay sessions`: one line each, the one touched last first; states are never opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import limit_option
from backstay.cli.store_option import in_store
from backstay.cli.when import since_option

if TYPE_CHECKING:
    from backstay.cli.screen import Piece
    from backstay.face import Store
    from backstay.model import SessionInfo, Wait

STYLES = {"completed": "green", "failed": "red", "halted": "yellow", "crashed": "bold red", "in_progress": "cyan"}
STYLES |= {"waiting": "magenta", "cancelled": "yellow"}


# Name: what is compared, and whether the largest comes first.
_ORDERS: dict[str, tuple[Callable[[SessionInfo], Any], bool]] = {
    "touched": (lambda info: info.updated_at, True),
    "created": (lambda info: info.created_at, True),
    "name": (lambda info: info.id, False),
    "agent": (lambda info: (info.agent or "", info.id), False),
    "status": (lambda info: ("crashed" if info.crashed else info.status.value, info.id), False),
    "checkpoints": (lambda info: info.checkpoints, True),
    "tokens": (lambda info: info.usage.tokens_in + info.usage.tokens_out, True),
    "cost": (lambda info: info.usage.cost, True),
}


def _pairs(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> dict[str, Any] | None:
    """`KEY=VALUE` as they are compared: a value that is JSON is that, any other is text."""
    if not given:
        return None
    import json

    found: dict[str, Any] = {}
    for each in given:
        key, is_pair, text = each.partition("=")
        if not key or not is_pair:
            raise click.BadParameter(f"{each!r} is not KEY=VALUE")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


@click.command(
    "sessions",
    cls=Command,
    shape="session*",
    examples=[
        "backstay sessions",
        "backstay sessions --crashed",
        "backstay sessions --sort cost",
        "backstay sessions --agent support -n 1 --json",
    ],
)
@click.option(
    "--status",
    type=click.Choice(["in_progress", "waiting", "completed", "failed", "halted", "cancelled", "crashed"]),
    help="Only sessions with this status.",
)
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option("--owner", metavar="NAME", help="Only sessions of this owner.")
@click.option("--prefix", metavar="TEXT", help="Only sessions whose id begins so.")
@click.option(
    "--metadata", metavar="KEY=VALUE", multiple=True, callback=_pairs, help="Only sessions with this in their metadata."
)
@since_option("Only sessions touched since then: 30m, 2h, 3d, 2025-06-02 (UTC).")
@click.option("--crashed", is_flag=True, help="Only sessions whose run crashed.")
@click.option("--waiting", is_flag=True, help="Only sessions that wait for an answer, a time or a message.")
@click.option(
    "--sort",
    type=click.Choice(list(_ORDERS)),
    default="touched",
    show_default=True,
    help="The order: newest, largest or most expensive first; names from A to Z.",
)
@click.option("--reverse", is_flag=True, help="Turn the order round.")
@limit_option
@json_option
@in_store
def command(
    store: Store,
    *,
    status: str | None,
    agent: str | None,
    owner: str | None,
    prefix: str | None,
    metadata: dict[str, Any] | None,
    since: datetime | None,
    crashed: bool,
    waiting: bool,
    sort: str,
    reverse: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the sessions, the one touched last first.

    A session is crashed when a run on it ended without a word: a kill, a crash, power loss. One that waits says what
    for, and since when.
    """
    from backstay.cli.screen import Screen

    listed = store.sessions(
        status=None if status == "crashed" else status,  # type: ignore[arg-type]  # one of the choices above
        agent=agent,
        owner=owner,
        prefix=prefix,
        metadata=metadata,
        since=since,
        crashed=True if crashed or status == "crashed" else None,
        waiting=True if waiting else None,
    )
    found = islice(_sorted(listed, sort, reverse=reverse), limit)
    with Screen(paged=not as_json) as screen:
        if as_json:
            from backstay import shapes

            for info in found:
                screen.line(shapes.dump(shapes.session(info, _waits(store, info))))
            return
        from backstay.cli.columns import Column, listing

        columns = [
            Column("SESSION", least=12, is_name=True),
            Column("TITLE", least=12),
            Column("AGENT", least=6),
            Column("OWNER", least=6),
            Column("STATUS"),
            Column("WAITS", least=16),
            Column("BRANCHES", right=True, brief="BR"),
            Column("CHECKPOINTS", right=True, brief="CHECKP"),
            Column("STEP", right=True, spare=True),
            Column("TOKENS", right=True),
            Column("COST", right=True),
            Column("AGE", right=True),
        ]
        if not listing(screen, columns, (row(info, _waits(store, info)) for info in found)):
            screen.line("No sessions.")


def _sorted(found: Iterator[SessionInfo], order: str, *, reverse: bool) -> Iterator[SessionInfo]:
    """In that order; the one they come in needs no waiting for the last of them."""
    if order == "touched" and not reverse:
        return found
    key, descending = _ORDERS[order]
    infos = list(found)
    if order != "touched":
        infos.sort(key=key, reverse=descending)
    return iter(infos[::-1] if reverse else infos)


def _waits(store: Store, info: SessionInfo) -> list[Wait]:
    """The waits of all branches of a session. Only a session that waits is looked at."""
    if not info.waiting:
        return []
    session = store.session(info.id)
    return [wait for run in session.runs() if run.waiting for wait in session.waiting(run.branch)]


def row(info: SessionInfo, waits: list[Wait]) -> list[Piece]:
    """A session's line, cell by cell."""
    from backstay.cli.text import age, ago, count, money, safe

    standing = "crashed" if info.crashed else info.status.value
    return [
        (safe(info.id), "bold"),
        safe(info.title or ""),
        safe(info.agent or ""),
        safe(info.owner or ""),
        (standing, STYLES[standing]),
        ", ".join([f"{safe(wait.reason)}, since {ago(wait.since)}" for wait in waits]),
        str(info.branches) if info.branches != 1 else "",  # the column is left out where nothing was forked
        f"{info.checkpoints:,}",
        "" if info.last_step is None else str(info.last_step),
        count(info.usage.tokens_in + info.usage.tokens_out),
        money(info.usage.cost),
        (age(info.updated_at), "dim"),
    ]
