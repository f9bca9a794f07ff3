"""The everyday conversation on the files backend, against the least that a durable append can cost."""

from __future__ import annotations

import os
import statistics
from typing import TYPE_CHECKING, Any

import backstay
from bench.measuring import Settings, interleave
from bench.report import Figure
from bench.scenarios.append import of_rounds, steps

if TYPE_CHECKING:
    from pathlib import Path


class Files:
    """One Backstay store of files, in the default durability."""

    name = "backstay"

    def __init__(self, folder: Path) -> None:
        self.folder = self.path = folder / "store"
        self._store: backstay.Store | None = None
        self._sessions: dict[str, backstay.Session] = {}

    def open(self) -> None:
        self._store = backstay.open(f"file:{self.folder}")

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:  # noqa: ARG002 - Backstay finds the delta
        assert self._store is not None
        if session not in self._sessions:
            self._sessions[session] = self._store.session(session)
        self._sessions[session].commit(state)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            (self.path,) = (self.folder / "sessions").iterdir()  # there is one session, and its journal is weighed


class Append:
    """The new bytes at the end of a file, and fdatasync: no digest, no line, no lock."""

    name = "floor"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "floor"
        self._file = -1

    def open(self) -> None:
        self._file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def save(self, session: str, state: object, new: bytes) -> None:  # noqa: ARG002 - the floor keeps only the new bytes
        os.write(self._file, new)
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def files(settings: Settings) -> list[Figure]:
    found = []
    for seed in range(settings.rounds):
        with settings.folder() as folder:
            found.append(interleave([Files(folder), Append(folder)], steps(settings), seed=seed))
    medians = {name: [one[name].median_us() for one in found] for name in found[0]}
    cost = of_rounds(found, lambda one: one["backstay"].median_us() / one["floor"].median_us())
    sizes = {name: found[0][name].stored_bytes for name in found[0]}
    return [
        Figure("files", "median commit / bare append", cost, must=1.5, detail={"median_us": medians}),
        Figure("files", "median commit", statistics.median(medians["backstay"]), unit="us"),
        Figure("files", "median bare append", statistics.median(medians["floor"]), unit="us"),
        Figure("files", "journal / new bytes", sizes["backstay"] / sizes["floor"], detail={"stored_bytes": sizes}),
    ]
