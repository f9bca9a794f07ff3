"""`backstay cancel`: stop the run of a session, wherever it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.text import safe

if TYPE_CHECKING:
    from backstay.face import Session, Store

_WAIT_S = 2.0  # for a live run to notice; that of Claude Code looks twice a second


@click.command(
    "cancel",
    cls=Command,
    shape="cancelled",
    examples=["backstay cancel ticket-42", "backstay cancel ticket-42 --reason 'asked twice'"],
)
@session_argument()
@click.option("--branch", metavar="NAME", default="main", help="The branch; main by default.")
@click.option("--reason", metavar="TEXT", default="cancelled at the command line", help="The reason, for its status.")
@json_option
@in_store
def command(store: Store, session: str, *, branch: str, reason: str, as_json: bool) -> None:
    """Stop the run of SESSION. A live one ends at its next call or boundary, any other at once."""
    found = session_of(store, session)
    cancelled = found.cancel(branch, reason=reason)
    if as_json:
        from backstay import shapes

        about = {"session": found.id, "branch": branch, "reason": reason, "cancelled": bool(cancelled)}
        click.echo(shapes.dump(about))
    elif cancelled and _is_over(store, found, branch):
        click.echo(f"{safe(found.id)} is cancelled: {safe(reason)}. Its next input begins anew.")
    elif cancelled:
        click.echo(f"{safe(found.id)} is asked to stop: {safe(reason)}. It ends at its next call or boundary.")
    else:
        click.echo(f"{safe(found.id)} has no run to stop on {safe(branch)}.")


def _is_over(store: Store, session: Session, branch: str) -> bool:
    """True once no run is alive on a branch; False if one is still, after a moment."""
    until = time.monotonic() + _WAIT_S
    while True:
        since = store.backend.changes()
        if not any(run.live and run.branch == branch for run in session.runs()):
            return True
        left_s = until - time.monotonic()
        if left_s <= 0:
            return False
        store.backend.wait(left_s, since=since)
