"""`backstay import`: sessions from a file that `backstay export` wrote, or from the files of another system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.bar import Bar
from backstay.cli.command import Command
from backstay.cli.store_option import in_any_store

if TYPE_CHECKING:
    from backstay.face import Store


@click.command("import", cls=Command, examples=["backstay import ./checkpoints"])
@click.argument("what", nargs=-1, required=True, metavar="[SYSTEM] PATH")
@click.option("--rename", metavar="NAME", help="The new name, where PATH holds one session.")
@click.option(
    "--on-exists",
    type=click.Choice(["refuse", "skip", "rename"]),
    help="What to do with a session that is there already; a file is then refused, a folder skips it.",
)
@click.option("--strict", is_flag=True, help="Take nothing from another system unless all of it is intact.")
@in_any_store
def command(store: Store, what: tuple[str, ...], *, rename: str | None, on_exists: str | None, strict: bool) -> None:
    """Take in the sessions of PATH: an export of Backstay, or what ccswarm, ares, continuum or smooth wrote.

    Which SYSTEM it is, is seen. All of it is verified first. Of another system, what is damaged is listed and the rest
    is taken; a second time adds only what is new there.
    """
    forgotten = len(what) == 1 and what[0] in backstay.formats.SYSTEMS and not Path(what[0]).exists()
    if forgotten or len(what) > len(("SYSTEM", "PATH")):
        raise click.UsageError("give one PATH, with the name of the system before it or without")
    path = what[-1]
    system = _system(what[0]) if len(what) > 1 else None
    with Bar("import") as bar:
        if system is None and not _is_foreign(path):
            report: object = store.import_(path, rename=rename, on_exists=on_exists or "refuse", progress=bar)
        else:
            report = backstay.formats.import_(
                store, path, system=system, strict=strict, on_exists=on_exists or "skip", rename=rename, progress=bar
            )
    from backstay.cli.screen import Screen

    Screen().text(str(report))


def _system(name: str) -> str:
    if name not in backstay.formats.SYSTEMS:
        raise click.UsageError(f"{name!r} is not one of {', '.join(backstay.formats.SYSTEMS)}")
    return name


def _is_foreign(path: str) -> bool:
    """True for a folder, and for a file of another system."""
    from backstay import opening

    try:
        if Path(path).is_dir():
            return True
        if opening.is_export(path):
            return False
        backstay.formats.recognise(path)
    except (OSError, ValueError, backstay.BackstayError):
        return False
    return True
