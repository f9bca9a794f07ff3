"""The half of a Session that knows its relatives: the session whose child it is, and its own children."""

from __future__ import annotations

from backstay.model import SessionId, SessionInfo
from backstay.port import Ask, Backend
from backstay.store.fields import to_info
from backstay.store.overview import children_of


class Family:
    """The relatives of a session: see `run.child`."""

    id: SessionId
    _backend: Backend

    def children(self) -> list[SessionInfo]:
        """The sessions of its children, the one touched last first."""
        return [to_info(row) for row in children_of(self._backend, self.id)]

    @property
    def parent(self) -> SessionId | None:
        """The session whose child this one is."""
        line = self._backend.read(Ask(self.id)).session
        return None if line is None or line.parent is None else SessionId(line.parent)
