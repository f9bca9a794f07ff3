"""Backstay as it is measured: through its public face, as a user would call it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import backstay

if TYPE_CHECKING:
    from pathlib import Path


class Subject:
    """One Backstay store on SQLite, in the default durability unless it is only being filled."""

    name = "backstay"

    def __init__(self, folder: Path, *, file: str = "backstay.db") -> None:
        self.path = folder / file
        self._store: backstay.Store | None = None
        self._sessions: dict[str, backstay.Session] = {}

    @property
    def store(self) -> backstay.Store:
        assert self._store is not None
        return self._store

    def open(self, *, durable: bool = True) -> None:
        self._store = backstay.open(self.path, durability="full" if durable else "relaxed")

    def session(self, name: str) -> backstay.Session:
        if name not in self._sessions:
            self._sessions[name] = self.store.session(name)
        return self._sessions[name]

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:  # noqa: ARG002 - Backstay finds the delta
        self.session(session).commit(state)

    def load(self, session: str) -> dict[str, Any]:
        return self.store.session(session).load()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            self._sessions.clear()
