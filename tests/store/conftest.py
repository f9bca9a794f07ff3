"""A store in a file of its own, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(path) as opened:
        yield opened


@pytest.fixture
def session(store: holdfast.Store) -> holdfast.Session:
    return store.session("ticket-42", agent="support")
