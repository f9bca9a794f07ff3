"""Random work in a folder on real stores: nothing is lost, and every checkpoint brings back exactly its files.

PostgreSQL has the same machine in `tests/backends/test_postgres_workspace.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from tests.openers import open_files, open_memory, open_sqlite
from tests.workspace.files_machine import LONG, machine_with_files

MemoryMachine: Any = machine_with_files(open_memory, lasting=False)
SqliteMachine: Any = machine_with_files(open_sqlite)
FilesMachine: Any = machine_with_files(open_files)


class TestMemory(MemoryMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=15, max_examples=6)


class TestSqlite(SqliteMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=15, max_examples=3)


class TestFiles(FilesMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=15, max_examples=3)


@pytest.mark.exhaustive
class TestMemoryForLong(MemoryMachine.TestCase):  # type: ignore[misc]
    settings = LONG


@pytest.mark.exhaustive
class TestSqliteForLong(SqliteMachine.TestCase):  # type: ignore[misc]
    settings = LONG


@pytest.mark.exhaustive
class TestFilesForLong(FilesMachine.TestCase):  # type: ignore[misc]
    settings = LONG
