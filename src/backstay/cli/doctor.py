"""`backstay doctor`: whether this machine is fit for a store, whether the store is, and what is not covered.

Most of it is tried, not asked: a small store is made beside the real one, written to, read again and removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.exit_codes import DAMAGED, FAILED, words_of
from backstay.cli.store_option import name_of, open_store, store_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen

_OK, _WARN, _BAD, _OPEN = "ok", "warning", "bad", "not covered"
_STYLES = {_OK: "green", _WARN: "yellow", _BAD: "bold red", _OPEN: "dim"}
_PLENTY_BYTES, _LITTLE_BYTES = 1_000_000_000, 100_000_000
_SYNCS = 10
_QUICK_US, _SLOW_US = 15, 50_000
_IN_MEMORY = ("tmpfs", "ramfs")
_RESERVED_AT, _CHECKSUM_BYTES = 20, 8  # of the header of a SQLite file: what is kept free at the end of each page
_OTHERS = 0o077

NOT_COVERED = (
    ("secrets", "nothing is encrypted: a reader of the file can read the states"),
    ("forgery", "digests find damage, not an enemy who can write the file"),
    ("lying disks", "a disk that says `written` before it has, and then loses power, can lose the newest"),
    ("copies by hand", "copy a store that is in use with `backstay export`, not with cp; never delete its -wal"),
    ("the outside world", "a tool in flight at a crash may or may not have happened: `backstay recover` asks you"),
)


class Finding(NamedTuple):
    """A check, how it came out, and why."""

    check: str
    verdict: str
    detail: str


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
        if found.verdict == _BAD:
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
    from backstay import opening

    yield Finding(
        "versions", _OK, f"backstay {backstay.__version__}, Python {'.'.join(map(str, sys.version_info[:3]))}"
    )
    place = opening.place(url)
    known = place is not None and place.exists()
    folder = _folder(place)
    if place is not None or url is None:
        yield from _ground(folder)
        files = place is not None and (place.is_dir() or (url or "").startswith("file:"))
        yield from _probe(folder, files=files)
    if known or (url is not None and place is None):
        yield from _store(url, place)
    else:
        where = f"at {place}" if place is not None else "here or in a folder above"
        yield Finding("store", _OK, f"there is none {where}; `backstay init` makes one")
    for check, detail in NOT_COVERED:
        yield Finding(check, _OPEN, detail)


def _folder(place: Path | None) -> Path:
    """The nearest folder that is there."""
    start = Path.cwd() if place is None else place.absolute().parent
    return next(folder for folder in (start, *start.parents) if folder.is_dir())


def _ground(folder: Path) -> Iterator[Finding]:
    from backstay import opening
    from backstay.cli.text import size

    kind, is_network = opening.file_system(folder)
    if is_network:
        yield Finding("file system", _BAD, f"{kind}, a network file system: SQLite cannot lock there truly")
    elif kind in _IN_MEMORY:
        yield Finding("file system", _WARN, f"{kind}: it is in memory, and gone at power loss")
    else:
        yield Finding("file system", _OK, f"{kind or 'of an unknown kind'}, not a network one")
    free = shutil.disk_usage(folder).free
    verdict = _OK if free >= _PLENTY_BYTES else _WARN if free >= _LITTLE_BYTES else _BAD
    yield Finding("disk space", verdict, f"{size(free)} free at {folder}")


def _probe(folder: Path, *, files: bool) -> Iterator[Finding]:
    """Make a store beside the real one, write, read, and remove it."""
    trial = folder / f".backstay-doctor-{secrets.token_hex(4)}"
    try:
        trial.mkdir(mode=0o700)
    except OSError as error:
        yield Finding("writing", _BAD, f"{folder} cannot be written: {error.strerror}")
        return
    try:
        yield from _tried(trial, files=files)
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _tried(trial: Path, *, files: bool) -> Iterator[Finding]:
    file = trial / "store.db"
    try:
        with backstay.open(f"file:{trial / 'store'}" if files else file) as store:
            made = store.session("doctor").commit({"n": 1})
            sound = store.session("doctor").load(made) == {"n": 1} and store.verify().ok
    except backstay.BackstayError as error:
        yield Finding("sqlite" if isinstance(error, backstay.UnsupportedError) else "writing", _BAD, words_of(error))
        return
    if not files:
        import apsw

        yield Finding("sqlite", _OK, f"SQLite {apsw.sqlite_lib_version()}, free of the WAL-reset race")
        yield _checksums(file)
    detail = "a checkpoint was written, read again and verified" if sound else "what was written was not read again"
    yield Finding("writing", _OK if sound else _BAD, detail)
    yield _syncing(trial)


def _checksums(file: Path) -> Finding:
    with file.open("rb") as opened:
        on = opened.read(_RESERVED_AT + 1)[_RESERVED_AT] == _CHECKSUM_BYTES
    return Finding("checksums", _OK if on else _BAD, f"every page carries one{'' if on else '? This one has none'}")


def _syncing(folder: Path) -> Finding:
    """How long the disk takes to say that it has something."""
    taken = []
    handle = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(_SYNCS):
            os.pwrite(handle, secrets.token_bytes(16_384), 0)
            begun = time.perf_counter_ns()
            os.fsync(handle)
            taken.append((time.perf_counter_ns() - begun) / 1000)
    finally:
        os.close(handle)
    median = sorted(taken)[_SYNCS // 2]
    took = f"{median / 1000:.2f} ms"
    if median < _QUICK_US:
        return Finding("syncing", _WARN, f"{took} a sync: so quick that nothing may reach a disk (memory, or a fake)")
    if median > _SLOW_US:
        return Finding("syncing", _WARN, f"{took} a sync: every commit waits for one")
    return Finding("syncing", _OK, f"{took} a sync; every commit waits for one")


def _store(url: str | None, place: Path | None) -> Iterator[Finding]:
    from backstay.cli.text import size
    from backstay.model import counted

    try:
        with open_store(url) as store:
            stats, crashed = store.stats(), store.crashed()
            yield Finding(
                "store", _OK, f"{name_of(url)}: {counted(stats.sessions, 'session')}, {size(stats.stored_bytes)}"
            )
            if store.backend.name == "sqlite" and place is not None and (pages := _checksums(place)).verdict != _OK:
                yield pages
    except backstay.CorruptionError as error:
        yield Finding("damage", _BAD, f"{error.message}; run `backstay verify`")
        return
    except (backstay.BackstayError, OSError) as error:
        said = words_of(error) if isinstance(error, backstay.BackstayError) else str(error)
        yield Finding("store", _BAD, said)
        return
    if crashed:
        yield Finding("crashed", _WARN, f"{counted(len(crashed), 'session')}: `backstay recover`")
    with contextlib.suppress(OSError):
        if place is not None and place.stat().st_mode & _OTHERS:
            yield Finding("privacy", _WARN, f"others on this machine may read {place}")
