"""A place for a store, for each test; and the process whose children crash, which is warmed up once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.ring.nursery import Nursery


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as warm:
        yield warm
