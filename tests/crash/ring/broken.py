"""Stores that are broken on purpose, so that the rings can show that they would notice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from backstay import sealing
from backstay.backends import sqlite
from backstay.backends.sqlite import SqliteBackend, connections, store_file, wal
from backstay.port import Ask, Batch, CheckpointRow, Decide, LaneRow, More, View
from tests.crash.ring.children import work
from tests.crash.ring.nursery import Say
from tests.crash.ring.rooms import Place
from tests.faults import Faults

_write = SqliteBackend.write


def move_heads_first(self: SqliteBackend, ask: Ask, decide: Decide) -> View:
    """The head is moved in one transaction, and what it points at is written in the next."""
    rest: list[Batch] = []

    def early(view: View) -> Batch | More:
        batch = decide(view)
        if isinstance(batch, More) or not any(isinstance(row, CheckpointRow) for row in batch.puts):
            return batch
        rest.append(Batch(tuple([row for row in batch.puts if not isinstance(row, LaneRow)]), batch.drops, batch.blobs))
        return Batch(tuple([row for row in batch.puts if isinstance(row, LaneRow)]), answer=batch.answer)

    view = _write(self, ask, early)
    for batch in rest:
        _write(self, ask, lambda _, batch=batch: batch)  # type: ignore[misc]
    return view


def work_head_first(say: Say, place: Place, faults: Faults, durability: str) -> None:
    """The day of a store whose heads move too early."""
    SqliteBackend.write = move_heads_first  # type: ignore[method-assign]
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

    def update(self, _: object) -> None:
        """Whatever is hashed, the answer is the same."""

    def digest(self) -> _Agreeable:
        """Itself."""
        return self


def believe_everything(patch: pytest.MonkeyPatch) -> None:
    """Neither the seals of records nor the checksums of pages are compared any more."""
    connect = connections.connect

    def careless(path: Path, **named: Any) -> apsw.Connection:
        connection = connect(path, **named)
        connection.pragma("checksum_verification", 0)
        return connection

    patch.setattr(sealing, "sha256", lambda *_: _Agreeable())
    for module in (connections, store_file, sqlite):
        patch.setattr(module, "connect", careless, raising=False)


def ignore_notes(patch: pytest.MonkeyPatch) -> None:
    """Nobody compares the log with the note about it."""
    patch.setattr(wal, "refuse_lost_commits", lambda *_: None)
