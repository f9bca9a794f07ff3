"""`backstay answer`: say yes, no or a value to what a session waits for."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from backstay.cli.command import Command, json_option
from backstay.cli.lookup import session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.text import safe

if TYPE_CHECKING:
    from backstay.face import Store
    from backstay.model import Wait

_EDITOR = "\0"


@click.command(
    "answer",
    cls=Command,
    shape="answered",
    examples=[
        "backstay answer ticket-44 --yes",
        'backstay answer ticket-44 refund --yes --edit \'{"order": 9, "euro": 20}\'',
        "backstay answer ticket-44 --no --reason 'not without a receipt'",
    ],
)
@session_argument()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--yes", is_flag=True, help="Approve it; for a question, the answer true.")
@click.option("--no", is_flag=True, help="Reject it: the run gets that as an error.")
@click.option("--result", metavar="JSON", help="This is the answer.")
@click.option(
    "--edit",
    metavar="JSON",
    is_flag=False,
    flag_value=_EDITOR,
    help="Approve with these arguments; alone: in an editor.",
)
@click.option("--reason", metavar="TEXT", default="rejected at the command line", help="Why, for --no.")
@click.option("--by", metavar="WHO", help="The name of the one who answers; it is recorded.")
@click.option("--branch", metavar="NAME", default="main", help="Which branch; main without it.")
@json_option
@in_store
def command(
    store: Store,
    session: str,
    name: str | None,
    *,
    yes: bool,
    no: bool,
    result: str | None,
    edit: str | None,
    reason: str,
    by: str | None,
    branch: str,
    as_json: bool,
) -> None:
    """Answer what SESSION waits for; NAME, or the id of a wait, says what where there are several.

    The first answer counts: a second, other one is refused and told the first.
    """
    if [yes, no, result is not None].count(True) != 1:
        raise click.UsageError("give one of --yes, --no, --result")
    if edit is not None and not yes:
        raise click.UsageError("--edit approves with other arguments: give it with --yes")
    found = session_of(store, session)
    waits = [wait for wait in found.waiting(branch) if wait.what in ("answer", "approval")]
    meant = name or _only(found.id, waits)
    shown = next((wait.name for wait in waits if wait.id == meant), meant)
    args = None if edit is None else _edited(edit, [wait for wait in waits if meant in (wait.name, wait.id)])
    if no:
        found.reject(meant, reason, branch=branch, by=by)
    else:
        found.answer(meant, True if result is None else _value(result), branch=branch, by=by, args=args)
    said = "rejected" if no else "answered"
    if as_json:
        from backstay import shapes

        click.echo(shapes.dump({"session": found.id, "branch": branch, "name": shown, "answer": said}))
    else:
        approval = any([wait.what == "approval" for wait in waits if meant in (wait.name, wait.id)])
        told = "approved" if yes and approval else said
        click.echo(
            f"{safe(shown)} of {safe(found.id)} is {told}; the next run or recover of your code goes on with it."
        )


def _only(session: str, waits: list[Wait]) -> str:
    """The one wait that can be meant without a name."""
    if len(waits) == 1:
        return waits[0].id or waits[0].name
    if not waits:
        message = f"{safe(session)} waits for no answer (`backstay waiting` lists what waits)"
        raise click.ClickException(message)
    raise click.UsageError(f"which NAME? it waits for {', '.join([safe(wait.name) for wait in waits])}")


def _edited(edit: str, waits: list[Wait]) -> dict[str, Any]:
    if edit == _EDITOR:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("--edit needs the arguments as JSON where there is no terminal for an editor")
        before = json.dumps(waits[0].args if waits else {}, indent=2)
        edit = click.edit(before, extension=".json") or before
    args = _value(edit)
    if not isinstance(args, dict):
        raise click.UsageError("--edit takes an object of arguments")
    return args


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{safe(text)} is not JSON: {error}") from None
