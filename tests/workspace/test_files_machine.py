"""Random work in a folder on real stores: nothing is lost, and every checkpoint brings back exactly its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import backstay
from tests.workspace.files_machine import machine_with_files


def open_memory(_folder: Path) -> backstay.Store:
    return backstay.open("memory://")


def open_sqlite(folder: Path) -> backstay.Store:
    return backstay.open(folder / "store.db", durability="relaxed")


def open_files(folder: Path) -> backstay.Store:
    return backstay.open(f"file:{folder / 'store'}", durability="relaxed")


MemoryMachine: Any = machine_with_files(open_memory)
SqliteMachine: Any = machine_with_files(open_sqlite)
FilesMachine: Any = machine_with_files(open_files)


class TestMemory(MemoryMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=15, max_examples=8)


class TestSqlite(SqliteMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=15, max_examples=4)


@pytest.mark.exhaustive
class TestMemoryForLong(MemoryMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=50, max_examples=200)


@pytest.mark.exhaustive
class TestSqliteForLong(SqliteMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=50, max_examples=200)


@pytest.mark.exhaustive
class TestFilesForLong(FilesMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=50, max_examples=200)
