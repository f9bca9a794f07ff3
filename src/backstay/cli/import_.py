"""`backstay import`: sessions from a file that `backstay export` wrote, or from the files of another system."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

import backstay
from backstay.cli.bar import Bar
from backstay.cli.command import Command, alike, json_option
from backstay.cli.exit_codes import FAILED
from backstay.cli.store_option import open_store, store_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Store
    from backstay.model import ImportReport, OnExists


_SQLITE = b"SQLite format 3\0"


class _Wish(NamedTuple):
    """How something is to be imported."""

    rename: str | None
    on_exists: OnExists | None
    strict: bool
    dry_run: bool


@click.command(
    "import",
    cls=Command,
    shape="imported*",
    examples=["backstay import ./checkpoints --dry-run", "backstay import ./checkpoints"],
)
@click.argument("what", nargs=-1, required=True, metavar="[SYSTEM] [PATH]")
@click.option("--rename", metavar="NAME", help="The new name, where PATH holds one session.")
@click.option(
    "--on-exists",
    type=click.Choice(["refuse", "skip", "rename"]),
    help="For a session that is here already; by default an export is refused, and a folder skips it.",
)
@click.option("--strict", is_flag=True, help="Import nothing from another system unless all of it is intact.")
@click.option("--dry-run", is_flag=True, help="Read and check all of it, and import nothing.")
@json_option
@store_option
def command(
    what: tuple[str, ...],
    *,
    url: str | None,
    rename: str | None,
    on_exists: OnExists | None,
    strict: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the sessions of PATH: an export of Backstay, transcripts, lists of messages, or another system's files.

    SYSTEM is one of claude-code, codex, messages, ccswarm, ares, continuum and smooth. The files show which SYSTEM it
    is; SYSTEM alone imports from the folder where that keeps its sessions. Everything is verified first. Damaged files
    of another system are listed and the rest is imported; a second import adds only what is new there. The exit code is
    1 if something was not taken.
    """
    from backstay.cli.screen import Screen

    system, places = _places(what)
    wish = _Wish(rename, on_exists, strict, dry_run)
    screen = Screen()
    taken = True
    with _store(url, dry_run=dry_run) as store:
        for place in places:
            shape = _import(store, system, place, wish)
            taken = taken and not shape["not_taken"]
            if as_json:
                from backstay import shapes

                screen.line(shapes.dump(shape))
            else:
                _tell(screen, shape)
    if not taken:
        raise click.exceptions.Exit(FAILED)


def _store(url: str | None, *, dry_run: bool) -> Store:
    """The store, made if there is none; a dry run makes none and looks into an empty one."""
    try:
        return open_store(url, makes=not dry_run)
    except backstay.NotFoundError:
        if not dry_run:
            raise
        return backstay.open("memory://")


def _places(what: tuple[str, ...]) -> tuple[str | None, list[Path]]:
    """Which system, if that was said, and where to look."""
    systems, also = backstay.formats.SYSTEMS, backstay.formats.ALSO_CALLED
    if len(what) > len(("SYSTEM", "PATH")):
        raise click.UsageError("give one PATH, with the name of the system before it or without")
    named = also.get(what[0], what[0])
    if len(what) > 1 and named not in systems:
        meant = alike(named, [*systems, *also])
        rest = f"did you mean {meant[0]}?" if meant else f"there are {', '.join(systems)}"
        raise click.UsageError(f"{what[0]!r} is no system; {rest}")
    path = Path(os.path.expanduser(what[-1]))  # noqa: PTH111 - Path.expanduser raises where there is no such home
    if len(what) > 1 or path.exists() or named not in systems:
        if not path.exists():
            raise backstay.NotFoundError(f"there is no file or folder {what[-1]!r}", hint=_advice(what[-1]))
        return (named if len(what) > 1 else None), [path]
    folders = backstay.formats.default_folders(named)
    if not folders:
        message = f"{what[0]} has no folder of its own"
        raise backstay.NotFoundError(message, hint=f"say where it is: backstay import {what[0]} PATH")
    found = {folder.resolve(): folder for folder in folders if folder.is_dir()}
    if not found:
        message = f"{what[0]} keeps its sessions in {' or '.join(map(str, folders))}, and there is no such folder"
        raise backstay.NotFoundError(message, hint=f"say where it is: backstay import {what[0]} PATH")
    return named, list(found.values())


def _advice(typed: str) -> str:
    meant = alike(typed, backstay.formats.SYSTEMS)
    return f"did you mean {meant[0]}? With its name alone, its own folder is imported" if meant else ""


def _import(store: Store, system: str | None, place: Path, wish: _Wish) -> dict[str, Any]:
    """Import from one place; what came of it."""
    with Bar("import") as bar:
        if system is None and not _is_foreign(place):
            _refuse_store(place)
            how = wish.on_exists or "refuse"
            ours = store.import_(place, rename=wish.rename, on_exists=how, dry_run=wish.dry_run, progress=bar)
            return _of_ours(ours)
        theirs = backstay.formats.import_(
            store,
            place,
            system=system,
            strict=wish.strict,
            on_exists=wish.on_exists or "skip",
            rename=wish.rename,
            dry_run=wish.dry_run,
            progress=bar,
        )
        return _of_theirs(theirs)


def _of_ours(report: ImportReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "system": None,
        "sessions": list(report.sessions),
        "checkpoints": report.checkpoints,
        "extended": {},
        "renamed": dict(report.renamed),
        "skipped": list(report.skipped),
        "in_doubt": list(report.in_doubt),
        "not_taken": [],
        "notes": [],
    }


def _of_theirs(report: backstay.formats.FormatReport) -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "system": report.system,
        "sessions": list(report.sessions),
        "checkpoints": report.checkpoints,
        "extended": dict(report.extended),
        "renamed": dict(report.renamed),
        "skipped": list(report.skipped),
        "in_doubt": list(report.doubts),
        "not_taken": [{"where": each.where, "why": each.why} for each in report.problems],
        "notes": [{"where": each.where, "why": each.why} for each in report.notes],
    }


def _tell(screen: Screen, shape: dict[str, Any]) -> None:
    """The count, then a line for each thing to know."""
    from backstay.cli.restore import quoted
    from backstay.model import counted

    verb = "would be imported" if shape["dry_run"] else "imported"
    what = f"{counted(len(shape['sessions']), 'session')} with {counted(shape['checkpoints'], 'checkpoint')} {verb}"
    screen.text(what + (f" from {shape['system']}" if shape["system"] else ""))
    lines = [f"{old!r} {'would be' if shape['dry_run'] else 'is now'} {new!r}" for old, new in shape["renamed"].items()]
    lines += [
        f"{name!r} was here already and {'would get' if shape['dry_run'] else 'got'} {counted(count, 'checkpoint')}"
        for name, count in shape["extended"].items()
    ]
    lines += [f"{name!r} was here already and is as it was" for name in shape["skipped"]]
    lines += [f"in doubt: {name!r}: `backstay recover {quoted(name)}` shows its calls" for name in shape["in_doubt"]]
    lines += [f"not taken: {each['where']}: {each['why']}" for each in shape["not_taken"]]
    lines += [f"note: {each['where']}: {each['why']}" for each in shape["notes"]]
    for line in lines:
        screen.text(line)


def _refuse_store(place: Path) -> None:
    """InvalidInputError for a store, which is opened and not imported."""
    from backstay import opening
    from backstay.cli.restore import quoted

    with contextlib.suppress(OSError), place.open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE and not opening.is_export(str(place)):
            hint = f"`backstay export FILE --store {quoted(str(place))}` makes an export of it"
            raise backstay.InvalidInputError(f"{place} is a store and no export", hint=hint)


def _is_foreign(path: Path) -> bool:
    """True for a folder, and for a file of another system."""
    from backstay import opening

    try:
        if path.is_dir():
            return True
        if opening.is_export(str(path)):
            return False
        backstay.formats.recognise(path)
    except (OSError, ValueError, backstay.BackstayError):
        return False
    return True
