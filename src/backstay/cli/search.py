"""`backstay search`: the checkpoint that first said something, with the words around it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from backstay.cli.bar import Bar
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import limit_option, session_id
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Piece, Screen
    from backstay.face import Store
    from backstay.upkeep.searching import Match


@click.command(
    "search",
    cls=Command,
    shape="found*",
    examples=["backstay search voucher", "backstay search 49.90 --session ticket-42 --tool refund"],
)
@click.argument("text", metavar="TEXT")
@click.option("--session", metavar="SESSION", help="Only in this one; otherwise in all.")
@click.option("--role", metavar="ROLE", help="Only what this role said: user, assistant, tool, system.")
@click.option("--tool", metavar="NAME", help="Only calls of this tool and their results.")
@limit_option
@json_option
@in_store
def command(
    store: Store,
    text: str,
    *,
    session: str | None,
    role: str | None,
    tool: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Find where TEXT was first said: session, checkpoint, role, and the words around it.

    A message is listed once, at the first checkpoint that has it. Upper and lower case are the same.
    """
    from backstay.cli.screen import Screen

    if not text:
        raise click.UsageError("TEXT must not be empty")
    where = [session_id(store, session)] if session is not None else None
    count = 0
    with Screen(paged=not as_json) as screen, Bar("search") as bar:
        for found in islice(_everywhere(store, text, where, role=role, tool=tool, bar=bar), limit):
            count += 1
            bar.stop()
            if as_json:
                from backstay import shapes

                screen.line(shapes.dump(_shape(found)))
            else:
                _tell(screen, found, len(text), first=count == 1)
        if not count and not as_json:
            screen.text(f"Nothing says {text!r}.")
    if not count:
        raise click.exceptions.Exit(1)


def _everywhere(
    store: Store, text: str, where: list[str] | None, *, role: str | None, tool: str | None, bar: Bar
) -> Iterator[Match]:
    from backstay.upkeep.searching import search

    for id_ in where if where is not None else [info.id for info in store.sessions()]:
        yield from search(store.backend, id_, text, role=role, tool=tool, progress=bar)


def _shape(found: Match) -> dict[str, Any]:
    from backstay import shapes
    from backstay.store.fields import read_fields, to_datetime

    fields = read_fields(found.row)
    return {
        "session": found.session,
        "checkpoint": found.row.id,
        "sequence": found.row.sequence,
        "step": fields.step,
        "created_at": shapes.time(to_datetime(fields.at_us)),
        "path": [shapes.plain(step) for step in found.path],
        "role": found.role,
        "tool": found.tool,
        "text": shapes.plain(found.text),
    }


def _tell(screen: Screen, found: Match, length: int, *, first: bool) -> None:
    from backstay.cli.conversation import ROLES
    from backstay.cli.path import written
    from backstay.cli.text import age, cut, safe, short
    from backstay.store.fields import read_fields, to_datetime

    fields = read_fields(found.row)
    if not first:
        screen.line()
    step = "" if fields.step is None else f"  step {fields.step}"
    place = written(found.path)
    end = f"  {age(to_datetime(fields.at_us))}"
    name = cut(safe(found.session), max(16, screen.width // 2 - 10))
    screen.line((name, "bold"), "  ", (short(found.row.id), "yellow"), step, (end, "dim"))
    who: list[Piece] = []
    if found.role:
        who = [
            (safe(found.role[:20]), ROLES.get(found.role, "blue")),
            f" {safe(found.tool[:30])}" if found.tool else "",
            "  ",
        ]
    room = screen.width - 2 - sum(len(each if isinstance(each, str) else each[0]) for each in who)
    screen.line("  ", *who, (cut(safe(place), room), "dim"))
    screen.line("  ", *_context(found.text, found.at, length, screen.width - 2))


def _context(text: str, at: int, length: int, room: int) -> list[Piece]:
    """The words around a place, on one line, the place itself set off."""
    from backstay.cli.text import cut, safe, width

    hit = cut(safe(text[at : at + length]), room)
    left = max(0, (room - width(hit)) // 3)
    before = safe(text[max(0, at - left) : at])
    while width(before) > left:
        before = before[1:]
    if at > len(before):
        before = "…" + before[1:]
    after = cut(safe(text[at + length : at + length + room]), room - width(before) - width(hit))
    return [before, (hit, "bold yellow"), after]
