"""Folders that mean harm: a store in `here`, where commands are run, and in `outside` what must stay as it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import backstay
from backstay import Store

SQLITE, FILES = "sqlite", "files"


class Place:
    """A folder to attack from: `here` and `outside`, and how the store in `here` is named."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.here, self.outside, self.kind = folder / "here", folder / "outside", kind
        self.here.mkdir()
        self.outside.mkdir()
        self.url = None if kind == SQLITE else "file:store"
        self.store = self.here / (".backstay/store.db" if kind == SQLITE else "store")

    def make(self) -> None:
        """A store with a session `s`, and an export of it to import."""
        self.store.parent.mkdir(exist_ok=True)
        with self.open() as store:
            fill(store)
            store.export(self.here / "in.backstay")

    def open(self) -> Store:
        """The store, by its full name."""
        return backstay.open(f"file:{self.store}" if self.kind == FILES else self.store)


def fill(store: Store) -> None:
    """A session with a branch, a tag, a large value, calls, and a run that was cut off."""
    session = store.session("s")
    for turn in range(3):
        state = {"messages": [{"role": "user", "content": f"turn {at}"} for at in range(turn + 1)], "i": "i" * 9000}
        session.commit(state)
    session.fork("main~1", "side")
    session.tag("main~2", "begin")
    session.restore("main~1")
    with contextlib.suppress(KeyboardInterrupt), session.run(branch="side") as run:
        run.call("look", lambda: "seen")
        run.checkpoint()
        run.call("pay", _interrupted)


def _interrupted() -> None:
    raise KeyboardInterrupt


# something else in the place of a file or folder


def link(path: Path, outside: Path) -> None:
    """A link to a copy of what was there, or to a text, outside."""
    target = outside / path.name
    if path.is_dir():
        shutil.copytree(path, target)
        shutil.rmtree(path)
    elif path.exists():
        shutil.copy2(path, target)
        path.unlink()
    else:
        target.write_bytes(b"the user's own words\n" * 10)
    path.symlink_to(target)


def link_to_nothing(path: Path, outside: Path) -> None:
    """A link to where nothing is yet: whatever is made there was made outside."""
    _clear(path)
    path.symlink_to(outside / "made by a command")


def link_to_endless(path: Path, _outside: Path) -> None:
    """A link to a device that never ends."""
    _clear(path)
    path.symlink_to("/dev/zero")


def pipe(path: Path, _outside: Path) -> None:
    """A pipe that nobody writes to."""
    _clear(path)
    os.mkfifo(path)


def sock(path: Path, _outside: Path) -> None:
    """A socket that nobody listens at."""
    _clear(path)
    with contextlib.chdir(path.parent), contextlib.closing(socket.socket(socket.AF_UNIX)) as found:
        found.bind(path.name)  # its full path may be longer than a socket's may be


def folder_or_file(path: Path, _outside: Path) -> None:
    """A folder with something in it for a file, and a file for a folder."""
    was_folder = path.is_dir()
    _clear(path)
    if was_folder:
        path.write_bytes(b"not a folder")
    else:
        path.mkdir()
        (path / "results.csv").write_bytes(b"1,2,3\n")


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


ODD = (link, link_to_nothing, link_to_endless, pipe, sock, folder_or_file)

IN_SQLITE = (".backstay", *[f".backstay/store.db{ending}" for ending in ("", "-wal", "-shm", "-journal", "-tail")])
IN_FILES = (
    *[f"store{name}" for name in ("", "/backstay.json", "/lock", "/counter", "/sessions", "/notes", "/blobs", "/tmp")],
    *[f"store/{name}" for name in ("sessions/*", "notes/*", "blobs/*", "blobs/*/*")],
)


def odd_places() -> Iterator[tuple[str, str, Callable[[Path, Path], None]]]:
    """The kind of a store, a path in `here`, and what to put there."""
    for kind, names in ((SQLITE, IN_SQLITE), (FILES, IN_FILES)):
        for name in names:
            for odd in ODD:
                yield kind, name, odd


def plant(place: Place, name: str, odd: Callable[[Path, Path], None]) -> None:
    """Put something odd in a place."""
    path = next(place.here.glob(name)) if "*" in name else place.here / name
    odd(path, place.outside)


def lay_traps(place: Place) -> None:
    """Files of the user's in the folders of a store, with names that a careless sweep would take for its own."""
    for name in ("results.csv", "0123456789abcdef.txt", "notes.bak"):
        (place.outside / name).write_bytes(b"the user's own words\n")
        if place.kind == FILES:
            for folder in ("tmp", "sessions", "notes", "blobs"):
                shutil.copy2(place.outside / name, place.store / folder / name)
