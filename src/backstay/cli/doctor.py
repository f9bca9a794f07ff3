"""`backstay doctor`: whether this machine is fit for a store, whether the store is, and what is not covered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.exit_codes import DAMAGED, FAILED, words_of
from backstay.cli.store_option import name_of, open_store, store_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.fitness import Finding

_STYLES = {"ok": "green", "warning": "yellow", "bad": "bold red", "not covered": "dim"}


@click.command("doctor", cls=Command, shape="finding*", examples=["backstay doctor"])
@json_option
@store_option
def command(*, url: str | None, as_json: bool) -> None:
    """Check the machine, the disk and the store: versions, checksums, space, writing, syncing; say what is not covered.

    Without a store, this folder is checked. `backstay verify` reads every checkpoint again; this does not.
    """
    from backstay.cli.screen import Screen

    screen = Screen()
    worst = 0
    for found in _findings(url):
        if found.verdict == "bad":
            worst = max(worst, DAMAGED if found.check == "damage" else FAILED)
        if as_json:
            from backstay import shapes

            screen.line(shapes.dump(found._asdict()))
        else:
            _tell(screen, found)
    if worst:
        raise click.exceptions.Exit(worst)


def _tell(screen: Screen, found: Finding) -> None:
    from backstay.cli.text import safe, wrapped

    first, *rest = wrapped(safe(found.detail), screen.width - 33)
    screen.line((f"{found.verdict:<11}", _STYLES[found.verdict]), f"  {found.check:<18}  {first}")
    for line in rest:
        screen.line(" " * 33, line)


def _findings(url: str | None) -> Iterator[Finding]:
    from backstay import fitness, opening

    yield fitness.versions(backstay.__version__)
    place = opening.place(url)
    known = place is not None and place.exists()
    if place is not None or url is None:
        files = place is not None and (place.is_dir() or (url or "").startswith("file:"))
        yield from fitness.of_folder(_folder(place), files=files)
    if known or (url is not None and place is None):
        yield from _store(url, place)
    else:
        where = f"at {place}" if place is not None else "here or in a folder above"
        yield fitness.Finding("store", fitness.OK, f"there is none {where}; `backstay init` makes one")
    yield from fitness.not_covered()


def _folder(place: Path | None) -> Path:
    """The nearest folder that is there."""
    start = Path.cwd() if place is None else place.absolute().parent
    return next(folder for folder in (start, *start.parents) if folder.is_dir())


def _store(url: str | None, place: Path | None) -> Iterator[Finding]:
    from backstay import fitness

    try:
        with open_store(url) as store:
            found = list(fitness.of_store(store, name_of(url), place))
    except backstay.CorruptionError as error:
        yield fitness.Finding("damage", fitness.BAD, f"{error.message}; run `backstay verify`")
        return
    except (backstay.BackstayError, OSError) as error:
        said = words_of(error) if isinstance(error, backstay.BackstayError) else str(error)
        yield fitness.Finding("store", fitness.BAD, said)
        return
    yield from found
