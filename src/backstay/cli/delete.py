"""`backstay delete`: a session, a branch or one checkpoint; the only thing here that cannot be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.command import Command
from backstay.cli.confirm import agree, yes_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session, Store


@click.command(
    "delete",
    cls=Command,
    examples=[
        "backstay delete ticket-42 --branch what-if -y",
        "backstay delete ticket-42 main~1 -y",
        "backstay delete ticket-43 -y",
    ],
)
@session_argument()
@ref_argument(default="")
@click.option("--branch", metavar="NAME", help="Only forget this branch; its checkpoints stay, by their ids.")
@yes_option
@in_store
def command(store: Store, session: str, ref: str, *, branch: str | None, yes: bool) -> None:
    """Delete SESSION with all that is in it; or one checkpoint at REF; or, with --branch, only a name.

    What goes is shown first. A deleted checkpoint's descendants stay readable. This cannot be undone.
    """
    from backstay.cli.screen import Screen

    found = session_of(store, session)
    screen = Screen()
    if ref and branch:
        raise click.UsageError("give REF or --branch, not both")
    if branch is not None:
        _branch(screen, found, branch, yes=yes)
    elif ref:
        _checkpoint(screen, store, found, ref, yes=yes)
    else:
        _session(screen, store, found, yes=yes)


def _session(screen: Screen, store: Store, session: Session, *, yes: bool) -> None:
    from backstay.cli.text import age, cut, safe
    from backstay.face.run_status import run_statuses
    from backstay.model import counted
    from backstay.store.fields import to_info
    from backstay.store.overview import session_row

    line = session_row(store.backend, session.id)
    if line is None:
        message = f"there is no session {session.id!r}"
        raise backstay.NotFoundError(message)
    info = to_info(line)
    branches, tags = list(session.branches()), list(session.tags())
    screen.line("The whole session goes, for good:")
    screen.line("  ", (safe(info.id), "bold"), f"  {info.status.value}, last touched {age(info.updated_at)} ago")
    screen.line(
        f"  {counted(info.checkpoints, 'checkpoint')} on {counted(len(branches), 'branch')}: ", _names(screen, branches)
    )
    if tags:
        screen.line(f"  {counted(len(tags), 'tag')}: ", _names(screen, tags))
    for run in run_statuses(store.backend, session):
        if run.calls:
            calls = ", ".join(f"{call.name} {call.status}" for call in run.calls)
            screen.line(("  pending: ", "red"), cut(safe(calls), screen.width - 12))
    agree(f"Delete session {safe(session.id)}?", yes=yes)
    store.delete(session.id)
    screen.line(f"Deleted: {safe(session.id)} and {counted(info.checkpoints, 'checkpoint')}.")


def _names(screen: Screen, names: list[str]) -> str:
    from backstay.cli.text import cut, safe

    return cut(safe(", ".join(names)), screen.width - 40)


def _branch(screen: Screen, session: Session, branch: str, *, yes: bool) -> None:
    from backstay.cli.restore import standing_at
    from backstay.cli.text import cut, safe, short

    head = standing_at(session, branch)
    screen.line(f"The name {safe(branch)} goes; its checkpoints stay, by their ids. It stands at:")
    screen.line(
        "  ", (short(head.id), "yellow"), f"  {cut(safe(head.summary), screen.width - 6 - len(short(head.id)))}"
    )
    agree(f"Delete branch {safe(branch)}?", yes=yes)
    session.delete_branch(branch)
    screen.line(f"Deleted branch {safe(branch)} (was {short(head.id)}).")


def _checkpoint(screen: Screen, store: Store, session: Session, ref: str, *, yes: bool) -> None:
    from backstay.cli.text import cut, safe, short
    from backstay.model import counted
    from backstay.store.overview import children_of

    point = session.checkpoint(ref)
    for name, at in session.tags().items():
        if at.id == point.id:
            message = f"checkpoint {short(point.id)} is tagged {name!r}"
            raise backstay.InvalidInputError(message, hint="take the tag away first: backstay tag SESSION -d NAME")
    branches = [name for name, head in session.branches().items() if head.id == point.id]
    children = children_of(store.backend, session.id, point.sequence)
    screen.line("This checkpoint goes, for good:")
    step = "" if point.step is None else f"step {point.step}  "
    room = screen.width - 6 - len(step) - len(short(point.id))
    screen.line("  ", (short(point.id), "yellow"), f"  {step}{cut(safe(point.summary), room)}")
    if children:
        follow = "follows it and stays" if children == 1 else "follow it and stay"
        screen.line(f"  {counted(children, 'checkpoint')} {follow} readable")
    if branches:
        back = short(point.parent_id) if point.parent_id else "nothing"
        screen.line(f"  {_names(screen, branches)} moves back to {back}")
    agree(f"Delete checkpoint {short(point.id)}?", yes=yes)
    session.delete(point)
    screen.line(f"Deleted {short(point.id)}.")
