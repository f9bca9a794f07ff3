"""Stores that are broken on purpose, so that the rings can show that they would notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from backstay import packing
from backstay.backend import Commit, Row
from backstay.backends import sqlite
from backstay.backends.sqlite import SqliteBackend, schema, wal, writes
from backstay.testing.faults import Faults
from tests.crash.ring.children import work
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place

_MOVE_TOO_EARLY = "UPDATE names SET cid = 1 + (SELECT max(cid) FROM checkpoints) WHERE name = 'main'"


def move_heads_first(self: SqliteBackend, commit: Commit) -> Row:
    """The head is moved in one transaction, and what it points at is written in the next."""
    before = self._read(lambda found: found.execute("SELECT sid, name, cid FROM names").fetchall())
    self._write(lambda found: found.execute(_MOVE_TOO_EARLY))

    def write(connection: apsw.Connection) -> Row:
        for sid, name, cid in before:
            connection.execute("UPDATE names SET cid = ? WHERE sid = ? AND name = ?", (cid, sid, name))
        return writes.commit(connection, commit)

    return self._write(write)


def work_head_first(say: Say, place: Place, faults: Faults, durability: str) -> None:
    """The day of a store whose heads move too early."""
    SqliteBackend.commit = move_heads_first  # type: ignore[method-assign]
    work(say, place, faults, durability)


class _Agreeable:
    """A digest that equals every other."""

    def __getitem__(self, _: object) -> _Agreeable:
        return self

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def digest(self) -> _Agreeable:
        """Itself."""
        return self


def believe_everything(patch: pytest.MonkeyPatch) -> None:
    """Neither the seals of records nor the checksums of pages are compared any more."""
    connect = schema.connect

    def careless(path: Path, **named: Any) -> apsw.Connection:
        connection = connect(path, **named)
        connection.pragma("checksum_verification", 0)
        return connection

    patch.setattr(packing, "sha256", lambda _: _Agreeable())
    patch.setattr(schema, "connect", careless)
    patch.setattr(sqlite, "connect", careless)


def ignore_notes(patch: pytest.MonkeyPatch) -> None:
    """Nobody compares the log with the note about it."""
    patch.setattr(wal, "refuse_lost_commits", lambda *_: None)
