"""Random histories on real stores, against a plain dict."""

from pathlib import Path

from hypothesis import settings

import holdfast
from holdfast.store import Store
from holdfast.testing import machine_for


def open_memory(_folder: Path) -> Store:
    return holdfast.open("memory://")


def open_sqlite(folder: Path) -> Store:
    return holdfast.open(folder / "store.db", durability="relaxed")


STEPS = 25

TestMemoryMachine = machine_for(open_memory, lasting=False).TestCase
TestMemoryMachine.settings = settings(stateful_step_count=STEPS)

TestSqliteMachine = machine_for(open_sqlite).TestCase
TestSqliteMachine.settings = settings(stateful_step_count=STEPS)
