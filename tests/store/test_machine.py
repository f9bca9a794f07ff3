"""Random histories on real stores, against a plain dict: nothing is lost, nothing is mixed up, everything verifies."""

from typing import Any

import pytest
from hypothesis import settings

from backstay.testing import machine_for
from tests.openers import open_files, open_memory, open_sqlite

MemoryMachine: Any = machine_for(open_memory, lasting=False)
SqliteMachine: Any = machine_for(open_sqlite)
FilesMachine: Any = machine_for(open_files)
PackedMemoryMachine: Any = machine_for(open_memory, lasting=False, packs=True)
PackedSqliteMachine: Any = machine_for(open_sqlite, packs=True)


class TestMemoryMachine(MemoryMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=25)


class TestSqliteMachine(SqliteMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=25, max_examples=30)


class TestFilesMachine(FilesMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=25, max_examples=30)


class TestPackedMemoryMachine(PackedMemoryMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=25, max_examples=30)


class TestPackedSqliteMachine(PackedSqliteMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=25, max_examples=30)


@pytest.mark.exhaustive
class TestPackedSqliteMachineForLong(PackedSqliteMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=60, max_examples=300)


@pytest.mark.exhaustive
class TestSqliteMachineForLong(SqliteMachine.TestCase):  # type: ignore[misc]
    settings = settings(stateful_step_count=60)
