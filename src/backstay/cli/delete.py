"""`backstay delete`: a session, a branch or one checkpoint. A preview comes first; it cannot be taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.confirm import agree, dry_run_option, yes_option
from backstay.cli.lookup import ref_argument, session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from backstay.cli.screen import Piece
    from backstay.face import Session, Store


class _Deletion(NamedTuple):
    """Something to be deleted: its kind and name, what goes with it, and how it is done."""

    what: str
    name: str
    called: str
    checkpoints: int
    size_bytes: int
    shown: list[tuple[Piece, ...]]
    done: Callable[[], object]


@click.command(
    "delete",
    cls=Command,
    shape="deleted",
    examples=[
        "backstay delete ticket-42 --branch what-if -y",
        "backstay delete ticket-42 main~1 -y",
        "backstay delete ticket-43 --dry-run",
        "backstay delete ticket-43 -y",
    ],
)
@session_argument()
@ref_argument(default="")
@click.option("--branch", metavar="NAME", help="Only forget this branch; its checkpoints stay, by their ids.")
@dry_run_option
@yes_option
@json_option
@in_store
def command(
    store: Store, session: str, ref: str, *, branch: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete SESSION with all that is in it; or one checkpoint at REF; or, with --branch, only a name.

    You are shown what goes and how many bytes that is, and asked. A deleted checkpoint's descendants stay readable.
    This cannot be undone.
    """
    from backstay.cli.screen import Screen
    from backstay.cli.text import size

    if ref and branch is not None:
        raise click.UsageError("give REF or --branch, not both")
    found = session_of(store, session)
    screen = Screen(aside=as_json)
    if branch is not None:
        plan = _branch(found, branch, screen.width)
    elif ref:
        plan = _checkpoint(store, found, ref, screen.width)
    else:
        plan = _session(store, found, screen.width)
    if not as_json or not (yes or dry_run):
        for pieces in plan.shown:
            screen.line(*pieces)
    if not dry_run:
        agree(f"Delete {plan.what} {plan.called}?", yes=yes)
        plan.done()
    if as_json:
        from backstay import shapes

        Screen().line(shapes.dump(_shape(found, plan, dry_run=dry_run)))
    elif dry_run:
        screen.line(f"Nothing was deleted: this was a dry run of {plan.what} {plan.called}.")
    else:
        freed = f": {size(plan.size_bytes)}" if plan.size_bytes else ""
        screen.line(f"Deleted {plan.what} {plan.called}{freed}.")


def _shape(session: Session, plan: _Deletion, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "session": session.id,
        "what": plan.what,
        "name": plan.name,
        "checkpoints": plan.checkpoints,
        "freed_bytes": plan.size_bytes,
    }


def _session(store: Store, session: Session, columns: int) -> _Deletion:
    from backstay.cli.text import ago, cut, safe, size
    from backstay.face.run_status import run_statuses
    from backstay.model import counted
    from backstay.store.fields import to_info
    from backstay.store.overview import session_row
    from backstay.upkeep.weighing import session_bytes

    line = session_row(store.backend, session.id)
    if line is None:
        message = f"there is no session {session.id!r}"
        raise backstay.NotFoundError(message)
    info = to_info(line)
    branches, tags = list(session.branches()), list(session.tags())
    weight = session_bytes(store.backend, session.id)
    shown: list[tuple[Piece, ...]] = [("The whole session goes, for good:",)]
    shown.append(
        (
            "  ",
            (safe(info.id), "bold"),
            f"  {info.status.value}, last touched {ago(info.updated_at)}",
        )
    )
    where = f" on {counted(len(branches), 'branch')}: {_names(branches, columns)}" if branches else ""
    shown.append((f"  {counted(info.checkpoints, 'checkpoint')}{where}",))
    if tags:
        shown.append(
            (
                f"  {counted(len(tags), 'tag')}: ",
                _names(tags, columns),
            )
        )
    for run in run_statuses(store.backend, session):
        if run.calls:
            calls = ", ".join(f"{call.name} {call.status.replace('_', ' ')}" for call in run.calls)
            shown.append(
                (
                    ("  pending: ", "red"),
                    cut(safe(calls), columns - 12),
                )
            )
    shown.append((f"  {size(weight)}",))
    return _Deletion(
        "session", session.id, safe(session.id), info.checkpoints, weight, shown, lambda: store.delete(session.id)
    )


def _names(names: list[str], columns: int) -> str:
    from backstay.cli.text import cut, safe

    return cut(safe(", ".join(names)), columns - 40)


def _branch(session: Session, branch: str, columns: int) -> _Deletion:
    from backstay.cli.text import cut, safe, short
    from backstay.shapes.going_back import standing_at

    head = standing_at(session, branch)
    shown: list[tuple[Piece, ...]] = [(f"The name {safe(branch)} goes; its checkpoints stay, by their ids. Head:",)]
    room = columns - 6 - len(short(head.id))
    shown.append(("  ", (short(head.id), "yellow"), f"  {cut(safe(head.summary), room)}"))
    called = f"{safe(branch)} (was {short(head.id)})"
    return _Deletion("branch", branch, called, 0, 0, shown, lambda: session.delete_branch(branch))


def _checkpoint(store: Store, session: Session, ref: str, columns: int) -> _Deletion:
    from backstay.cli.text import cut, safe, short, size
    from backstay.model import counted
    from backstay.store.overview import resting_on
    from backstay.upkeep.weighing import Weighing

    point = session.checkpoint(ref)
    for name, at in session.tags().items():
        if at.id == point.id:
            message = f"checkpoint {short(point.id)} is tagged {name!r}"
            raise backstay.InvalidInputError(message, hint="take the tag away first: backstay tag SESSION -d NAME")
    branches = [name for name, head in session.branches().items() if head.id == point.id]
    children = resting_on(store.backend, session.id, point.sequence)
    weighing = Weighing(store.backend)
    weighing.add_checkpoints(session.id, {point.sequence})
    shown: list[tuple[Piece, ...]] = [("This checkpoint goes, for good:",)]
    step = "" if point.step is None else f"step {point.step}  "
    room = columns - 6 - len(step) - len(short(point.id))
    shown.append(
        (
            "  ",
            (short(point.id), "yellow"),
            f"  {step}{cut(safe(point.summary), room)}",
        )
    )
    if children:
        follow = "follows it and stays" if children == 1 else "follow it and stay"
        shown.append((f"  {counted(children, 'checkpoint')} {follow} readable",))
    if branches:
        back = short(point.parent_id) if point.parent_id else "nothing"
        verb = "moves" if len(branches) == 1 else "move"
        shown.append((f"  {_names(branches, columns)} {verb} back to {back}",))
    shown.append((f"  {size(weighing.total_bytes)}",))
    return _Deletion(
        "checkpoint", point.id, short(point.id), 1, weighing.total_bytes, shown, lambda: session.delete(point)
    )
