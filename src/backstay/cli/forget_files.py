"""`backstay forget-files`: contents of files out of a session's history; a preview comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backstay.cli.command import Command, json_option
from backstay.cli.confirm import agree, dry_run_option, yes_option
from backstay.cli.lookup import session_argument, session_of
from backstay.cli.store_option import in_store

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store
    from backstay.model import ForgetReport

_LISTED = 20


@click.command(
    "forget-files",
    cls=Command,
    shape="forgotten",
    examples=[
        "backstay forget-files fix-bug notes.txt --dry-run",
        "backstay forget-files fix-bug 'secrets/*.txt' -y",
        "backstay forget-files fix-bug --before main~2 --dry-run",
    ],
)
@session_argument()
@click.argument("paths", metavar="[PATH…]", nargs=-1)
@click.option("--before", metavar="REF", help="Only from checkpoints before this one.")
@dry_run_option
@yes_option
@json_option
@in_store
def command(
    store: Store,
    session: str,
    paths: tuple[str, ...],
    *,
    before: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget what was in files of SESSION: those at each PATH, or all files of checkpoints before REF.

    A PATH is a file, a folder, or a pattern with * and ?. Its contents go from every checkpoint, heads too, and from
    the bytes of the store. Lists, digests and the conversation stay: search for what a message may quote. The file
    in your folder is not touched. You are shown what goes and asked. This cannot be undone.
    """
    from backstay.cli.screen import Screen

    found = session_of(store, session)
    screen = Screen(aside=as_json)
    report = found.forget_files(*paths, before=before, dry_run=True)
    if not (as_json and (yes or dry_run)):
        _tell(screen, report)
    if not dry_run and report.files:
        agree("Forget them?", yes=yes)
        report = found.forget_files(*paths, before=before)
        if not as_json:
            screen.line(_gone(report))
    if as_json:
        from backstay import shapes

        Screen().line(shapes.dump(_shape(report, dry_run=dry_run)))


def _tell(screen: Screen, report: ForgetReport) -> None:
    from backstay.cli.columns import Column, listing
    from backstay.cli.text import safe, size

    rows = [[safe(file.path), f"{file.versions:,}", size(file.size_bytes)] for file in report.files]
    listing(
        screen,
        [Column("PATH", least=16, is_name=True), Column("VERSIONS", right=True), Column("BYTES", right=True)],
        rows[:_LISTED],
    )
    if len(rows) > _LISTED:
        screen.line((f"… and {len(rows) - _LISTED:,} more paths (--json lists all)", "dim"))
    if report.elsewhere:
        names = ", ".join(map(safe, report.elsewhere[:_LISTED]))
        screen.line((f"The same contents stay at another path, checkpoint or session: {names}", "yellow"))
    screen.line(_gone(report))


def _gone(report: ForgetReport) -> str:
    from backstay.cli.text import size
    from backstay.model import counted

    if not report.files:
        return "Nothing goes: there are no such contents."
    verb = "would be forgotten" if report.dry_run else "are forgotten"
    weight = f": {size(report.freed_bytes)}" if report.freed_bytes else ""
    return f"Contents of {counted(report.versions, 'file version')} {verb}{weight}."


def _shape(report: ForgetReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "session": report.session_id,
        "dry_run": dry_run,
        "files": [{"path": file.path, "versions": file.versions, "bytes": file.size_bytes} for file in report.files],
        "elsewhere": list(report.elsewhere),
        "freed_bytes": report.freed_bytes,
    }
