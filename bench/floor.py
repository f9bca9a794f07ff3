"""The floor: what a durable commit costs when nothing at all is done besides.

One plain table, one row a step holding the new bytes and nothing else, each
insert its own transaction: the same SQLite as Backstay's, WAL, synchronous=FULL,
everything else at its default. No digest, no parent, no compare-and-set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from pathlib import Path

INSERT = "INSERT INTO floor(bytes) VALUES (?)"


class Floor:
    """One bare SQLite file."""

    name = "floor"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "floor.db"
        self._connection: apsw.Connection | None = None

    def open(self) -> None:
        connection = apsw.Connection(str(self.path))
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS floor(id INTEGER PRIMARY KEY, bytes BLOB)")
        self._connection = connection

    def save(self, session: str, state: object, new: bytes) -> None:  # noqa: ARG002 - the floor keeps only the new bytes
        assert self._connection is not None
        self._connection.execute(INSERT, (new,))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
