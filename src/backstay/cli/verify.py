"""`backstay verify`: read everything again and say what is damaged, what that costs, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backstay.cli.bar import Bar
from backstay.cli.command import Command, json_option
from backstay.cli.exit_codes import DAMAGED
from backstay.cli.lookup import session_argument, session_id
from backstay.cli.store_option import in_store
from backstay.hints import in_shell

if TYPE_CHECKING:
    from backstay.face import Store
    from backstay.model import VerifyReport


@click.command(
    "verify", cls=Command, shape="verified", examples=["backstay verify", "backstay verify ticket-42 --json"]
)
@session_argument(required=False)
@click.option("--repair", is_flag=True, help="First remove provably useless rows; never a readable checkpoint.")
@json_option
@in_store
def command(store: Store, session: str | None, *, repair: bool, as_json: bool) -> None:
    """Read everything, or one SESSION, again and compare it with its digests. Damage is exit code 4."""
    from backstay.cli.screen import Screen

    given = None if session is None else _named(store, session)
    with Bar("verify") as bar:
        report = store.verify(given, repair=repair, progress=bar)
    screen = Screen()
    if as_json:
        from backstay import shapes

        screen.line(shapes.dump(_shape(report)))
    else:
        screen.text(str(_in_shell(report)))
    if not report.ok:
        raise click.exceptions.Exit(DAMAGED)


def _named(store: Store, given: str) -> str:
    import backstay

    try:
        return session_id(store, given)
    except backstay.CorruptionError:
        return given  # the list cannot be read; the one that was named may be


def _in_shell(report: VerifyReport) -> VerifyReport:
    """The report with its remedies as commands and flags."""
    from msgspec.structs import replace

    return replace(report, problems=tuple([replace(each, remedy=in_shell(each.remedy)) for each in report.problems]))


def _shape(report: VerifyReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "checked": report.checked,
        "problems": [
            {
                "what": problem.what,
                "session": problem.session_id,
                "checkpoints": list(problem.checkpoints),
                "cost": problem.cost,
                "remedy": in_shell(problem.remedy),
            }
            for problem in report.problems
        ],
        "repaired": list(report.repaired),
        "forgotten": report.forgotten,
    }
