"""Whether a folder and a store in it can be relied on: file system, space, writing, syncing, checksums.

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

from backstay import opening
from backstay.errors import BackstayError, UnsupportedError
from backstay.hints import in_shell
from backstay.model import counted
from backstay.shapes.text import size

if TYPE_CHECKING:
    from backstay.face import Store

OK, WARN, BAD, OPEN = "ok", "warning", "bad", "not covered"
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


def versions(version: str) -> Finding:
    """What runs here."""
    return Finding("versions", OK, f"backstay {version}, Python {'.'.join(map(str, sys.version_info[:3]))}")


def not_covered() -> Iterator[Finding]:
    """What no check can promise."""
    for check, detail in NOT_COVERED:
        yield Finding(check, OPEN, detail)


def of_folder(folder: Path, *, files: bool) -> Iterator[Finding]:
    """The folder of a store: what it lies on, and whether a store of this kind can be written there."""
    yield from _ground(folder)
    yield from _probe(folder, files=files)


def _ground(folder: Path) -> Iterator[Finding]:
    kind, is_network = opening.file_system(folder)
    if is_network:
        yield Finding("file system", BAD, f"{kind}, a network file system: SQLite cannot lock there truly")
    elif kind in _IN_MEMORY:
        yield Finding("file system", WARN, f"{kind}: it is in memory, and gone at power loss")
    else:
        yield Finding("file system", OK, f"{kind or 'of an unknown kind'}, not a network one")
    free = shutil.disk_usage(folder).free
    verdict = OK if free >= _PLENTY_BYTES else WARN if free >= _LITTLE_BYTES else BAD
    yield Finding("disk space", verdict, f"{size(free)} free at {folder}")


def _probe(folder: Path, *, files: bool) -> Iterator[Finding]:
    """Make a store beside the real one, write, read, and remove it."""
    trial = folder / f".backstay-doctor-{secrets.token_hex(4)}"
    try:
        trial.mkdir(mode=0o700)
    except OSError as error:
        yield Finding("writing", BAD, f"{folder} cannot be written: {error.strerror}")
        return
    try:
        yield from _tried(trial, files=files)
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def _tried(trial: Path, *, files: bool) -> Iterator[Finding]:
    file = trial / "store.db"
    try:
        with opening.open(f"file:{trial / 'store'}" if files else file) as store:
            made = store.session("doctor").commit({"n": 1})
            sound = store.session("doctor").load(made) == {"n": 1} and store.verify().ok
    except BackstayError as error:
        yield Finding("sqlite" if isinstance(error, UnsupportedError) else "writing", BAD, _words(error))
        return
    if not files:
        import apsw  # noqa: PLC0415 - the driver of one backend

        yield Finding("sqlite", OK, f"SQLite {apsw.sqlite_lib_version()}, free of the WAL-reset race")
        yield _checksums(file)
    detail = "a checkpoint was written, read again and verified" if sound else "what was written was not read again"
    yield Finding("writing", OK if sound else BAD, detail)
    yield _syncing(trial)


def _checksums(file: Path) -> Finding:
    with file.open("rb") as opened:
        on = opened.read(_RESERVED_AT + 1)[_RESERVED_AT] == _CHECKSUM_BYTES
    return Finding("checksums", OK if on else BAD, f"every page carries one{'' if on else '? This one has none'}")


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
        return Finding("syncing", WARN, f"{took} a sync: so quick that nothing may reach a disk (memory, or a fake)")
    if median > _SLOW_US:
        return Finding("syncing", WARN, f"{took} a sync: every commit waits for one")
    return Finding("syncing", OK, f"{took} a sync; every commit waits for one")


def of_store(store: Store, name: str, place: Path | None) -> Iterator[Finding]:
    """An open store: its size, runs that crashed, and who else can read its file."""
    stats, crashed = store.stats(), store.crashed()
    yield Finding("store", OK, f"{name}: {counted(stats.sessions, 'session')}, {size(stats.stored_bytes)}")
    if store.backend.name == "sqlite" and place is not None and (pages := _checksums(place)).verdict != OK:
        yield pages
    if crashed:
        yield Finding("crashed", WARN, f"{counted(len(crashed), 'session')}: `backstay recover`")
    with contextlib.suppress(OSError):
        if place is not None and place.stat().st_mode & _OTHERS:
            yield Finding("privacy", WARN, f"others on this machine may read {place}")


def _words(error: BackstayError) -> str:
    hint = in_shell(error.hint)
    return f"{error.message} ({hint})" if hint else error.message
