"""Holdfast as it is measured: through its public face, as a user would call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import holdfast

if TYPE_CHECKING:
    from pathlib import Path


class Subject:
    """One Holdfast store on SQLite, in the default durability unless it is only being filled."""

    name = "holdfast"

    def __init__(self, folder: Path, *, file: str = "holdfast.db") -> None:
        self.path = folder / file
        self._store: holdfast.Store | None = None
        self._sessions: dict[str, holdfast.Session] = {}

    @property
    def store(self) -> holdfast.Store:
        assert self._store is not None
        return self._store

    def open(self, *, durable: bool = True) -> None:
        self._store = holdfast.open(self.path, durability="full" if durable else "relaxed")

    def session(self, name: str) -> holdfast.Session:
        if name not in self._sessions:
            self._sessions[name] = self.store.session(name)
        return self._sessions[name]

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:  # noqa: ARG002 - Holdfast finds the delta
        self.session(session).commit(state)

    def load(self, session: str) -> dict[str, Any]:
        return self.store.session(session).load()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            self._sessions.clear()
