"""`backstay prune`: forget what a retention allows, and give the space back; a preview comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import backstay
from backstay.cli.bar import Bar
from backstay.cli.command import Command, json_option
from backstay.cli.confirm import agree, dry_run_option, yes_option
from backstay.cli.lookup import session_argument, session_id
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Piece, Screen
    from backstay.face import Store
    from backstay.model import PruneReport

_LISTED = 20


@click.command(
    "prune",
    cls=Command,
    shape="pruned",
    examples=["backstay prune --keep-last 2 --dry-run", "backstay prune ticket-42 --keep-last 1 --keep-days 0 -y"],
)
@session_argument(required=False)
@click.option("--keep-last", metavar="N", type=int, help="The last N checkpoints of each branch stay.")
@click.option("--keep-days", metavar="DAYS", type=float, help="Checkpoints younger than this stay.")
@click.option("--finished", metavar="DAYS", type=float, help="Finished sessions untouched for DAYS go as a whole.")
@click.option("--files-last", metavar="N", type=int, help="Contents of files: only of the last N of each branch.")
@click.option(
    "--files-days", metavar="DAYS", type=float, help="Contents of files: only of checkpoints younger than this."
)
@click.option("--files-bytes", metavar="SIZE", help="Contents of files: as much as this, the oldest go first.")
@dry_run_option
@yes_option
@json_option
@in_store
def command(
    store: Store,
    session: str | None,
    *,
    keep_last: int | None,
    keep_days: float | None,
    finished: float | None,
    files_last: int | None,
    files_days: float | None,
    files_bytes: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget old checkpoints of all sessions, or of one SESSION. Heads, tags, labels and fork points stay.

    Contents of files may go earlier: the checkpoints, their lists of files and the conversation stay then. You are
    shown what goes and how many bytes that is, and asked. This cannot be undone.
    """
    from backstay.cli.screen import Screen

    retention = backstay.Retention(
        keep_last=keep_last,
        keep_days=keep_days,
        finished_days=finished,
        files_last=files_last,
        files_days=files_days,
        files_bytes=files_bytes,
    )
    given = None if session is None else session_id(store, session)

    def prune(*, dry_run: bool) -> PruneReport:
        with Bar("prune") as bar:
            return store.prune(retention, session=given, dry_run=dry_run, progress=bar)

    report = prune(dry_run=dry_run or not yes)
    if not (dry_run or yes):
        if report.count or report.sessions or report.files:
            _tell(Screen(aside=as_json), report)
            agree("Let them go?", yes=False)
        report = prune(dry_run=False)
        if not as_json:
            Screen().line(_gone(report))
            return
    if as_json:
        from backstay import shapes

        Screen().line(shapes.dump(_shape(report)))
    else:
        _tell(Screen(), report)


def _tell(screen: Screen, report: PruneReport) -> None:
    """A line for each session; then all of it together."""
    from backstay.cli.columns import Column, listing
    from backstay.cli.text import safe
    from backstay.model import counted

    rows: list[list[Piece]] = [[(safe(name), "bold"), "the whole session"] for name in report.sessions]
    rows += [[(safe(name), "bold"), counted(len(ids), "checkpoint")] for name, ids in report.checkpoints.items()]
    listing(
        screen,
        [Column("SESSION", least=12, is_name=True), Column("GOES" if report.dry_run else "WENT", right=True)],
        rows[:_LISTED],
    )
    if len(rows) > _LISTED:
        screen.line((f"… and {len(rows) - _LISTED:,} more (--json lists all)", "dim"))
    screen.line(_gone(report))


def _gone(report: PruneReport) -> str:
    from backstay.cli.text import size
    from backstay.model import counted

    what = [counted(report.count, "checkpoint")] if report.count else []
    what += [counted(len(report.sessions), "whole session")] if report.sessions else []
    what += [f"contents of {counted(report.files, 'file version')}"] if report.files else []
    if not what:
        return "Nothing goes: all of it is kept."
    verb = "would go" if report.dry_run else "went"
    # A file that is not smaller has free pages now, which the next checkpoints fill.
    weight = f": {size(report.freed_bytes)}" if report.freed_bytes else ""
    text = f"{' and '.join(what)} {verb}{weight}."
    return text[:1].upper() + text[1:]


def _shape(report: PruneReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "checkpoints": {name: list(ids) for name, ids in report.checkpoints.items()},
        "sessions": list(report.sessions),
        "freed_bytes": report.freed_bytes,
        "files": report.files,
    }
