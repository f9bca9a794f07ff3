"""Damaged stores by the thousand: every cut and many flips of a small store, then everything a user may ask of it.

What is asked gives a true answer or an error of Backstay's; any other exception is a bug, and so is a wrong state.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import backstay
from backstay import BackstayError, Store

KINDS = ("sqlite", "sqlite with a log", "files", "export")


class Sample(NamedTuple):
    """A small store: its files by their paths, and every state that was ever committed to a session of it."""

    kind: str
    files: dict[str, bytes]
    states: dict[str, list[dict[str, Any]]]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(map(len, self.files.values()))

    def at(self, place: int) -> tuple[str, int]:
        """The file and the place in it of one of all bytes."""
        for name, content in self.files.items():
            if place < len(content):
                return name, place
            place -= len(content)
        raise IndexError(place)


class Change(NamedTuple):
    """One thing that is done to a sample: a file cut to a length, or a bit of it flipped."""

    name: str
    at: int
    bit: int | None = None

    def apply(self, content: bytes) -> bytes:
        """The file afterwards."""
        if self.bit is None:
            return content[: self.at]
        return content[: self.at] + bytes([content[self.at] ^ 1 << self.bit]) + content[self.at + 1 :]


def url_of(kind: str, folder: Path) -> str | Path:
    """How the store of a sample is opened."""
    return (
        f"file:{folder / 'store'}" if kind == "files" else folder / ("store.db" if "sqlite" in kind else "x.backstay")
    )


def fill(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Two sessions with deltas, a keyframe, a blob, a branch, a tag, calls that were taken in and one in doubt."""
    states: dict[str, list[dict[str, Any]]] = {"one": [], "two": []}
    session = store.session("one")
    messages: list[str] = []
    for turn in range(3):
        messages.append(f"turn {turn}")
        state = {"messages": list(messages), "image": bytes(range(256)) * 20}
        session.commit(state)
        states["one"].append(state)
    session.fork("main~1", "side")
    session.tag("main~2", "begin")
    run = store.run("two")
    with suppress(KeyboardInterrupt), run:
        run.call("look", lambda: "seen")
        run.state["n"] = 1
        run.checkpoint()
        states["two"].append({"n": 1})
        run.call("pay", _interrupted)
    return states


def _interrupted() -> None:
    raise KeyboardInterrupt


def make(kind: str, folder: Path) -> Sample:
    """A small store of a kind."""
    source = folder / "made"
    source.mkdir()
    place = url_of("sqlite" if kind == "export" else kind, source)
    with backstay.open(place) as store:
        states = fill(store)
        if kind == "export":
            store.export(source / "x.backstay")
    if kind == "export":
        (source / "store.db").unlink()
    found = _contents(source)
    if kind == "sqlite with a log":
        with backstay.open(place) as store:
            states["one"].append({"last": True})
            store.session("one").commit(states["one"][-1])
            found = _contents(source)
    shutil.rmtree(source)
    return Sample(kind, {name: content for name, content in found.items() if not name.endswith("-shm")}, states)


def _contents(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    # What a log was grown by is zeros: a cut there changes nothing.
    return {name: content.rstrip(b"\0") if name.endswith("-wal") else content for name, content in found.items()}


def cuts(sample: Sample, *, step: int = 1, first: int = 0) -> Iterator[Change]:
    """Every file cut at every `step`-th place; where there is a log, the store below it is as in the other sample."""
    for name, content in sample.files.items():
        if sample.kind == "sqlite with a log" and name == "store.db":
            continue
        for at in range(first % step, len(content), step):
            yield Change(name, at)


def flips(sample: Sample, rng: random.Random, count: int) -> Iterator[Change]:
    """Flipped bits; every file gets its share, however short."""
    names = list(sample.files)
    for number in range(count):
        name, at = sample.at(rng.randrange(sample.size))
        if number % 3 == 0:
            name = rng.choice(names)
            at = rng.randrange(max(len(sample.files[name]), 1))
        if sample.files[name]:
            yield Change(name, at, rng.randrange(8))


def damage(sample: Sample, change: Change, folder: Path) -> None:
    """The sample in a folder, changed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in sample.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(change.apply(content) if name == change.name else content)
    if sample.kind == "files":
        for name in ("sessions", "notes", "blobs", "tmp"):
            (folder / "store" / name).mkdir(exist_ok=True)


def ask_everything(sample: Sample, folder: Path) -> list[str]:
    """Everything a user may ask; which of it was refused. What is no error of ours comes out."""
    refused: list[str] = []

    def ask(what: str, act: Callable[[], object]) -> None:
        try:
            act()
        except BackstayError:
            refused.append(what)

    with mock.patch("backstay.backends.files.journal._SECOND_LOOKS_S", ()):  # nobody else is writing
        return _ask_everything(sample, folder, ask) or refused


def _ask_everything(sample: Sample, folder: Path, ask: Callable[[str, Callable[[], object]], None]) -> list[str]:
    try:
        store = backstay.open(url_of(sample.kind, folder))
    except BackstayError:
        return ["open"]
    with store:
        for repair in (False, True):
            ask("sessions", lambda: list(store.sessions()))
            ask("stats", store.stats)
            ask("crashed", store.crashed)
            for name in sample.states:
                _ask_session(store, sample, name, ask)
            ask("export", lambda: store.export(folder / "copy.backstay", overwrite=True))
            ask("repair" if repair else "verify", partial(store.verify, repair=repair))
    return []


def _ask_session(store: Store, sample: Sample, name: str, ask: Callable[[str, Callable[[], object]], None]) -> None:
    session = store.session(name)
    ask(f"{name}: load", lambda: _load(store, name, sample.states[name]))
    ask(f"{name}: salvage", lambda: session.load(salvage=True))
    ask(f"{name}: log", lambda: list(session.log()))
    ask(f"{name}: branches", session.branches)
    ask(f"{name}: calls", lambda: session.calls(pending=True))
    ask(f"{name}: intact", session.newest_intact)


def _load(store: Store, name: str, states: list[dict[str, Any]]) -> None:
    state = store.session(name).load()
    assert state in states, f"{name}: this state was never committed: {state!r}"
