"""A store in a file of its own, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[backstay.Store]:
    with backstay.open(path) as opened:
        yield opened


@pytest.fixture
def session(store: backstay.Store) -> backstay.Session:
    return store.session("ticket-42", agent="support")
