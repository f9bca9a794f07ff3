"""Stores to do to what was done to the predecessors: in memory, and where theirs were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay


@pytest.fixture
def store() -> Iterator[backstay.Store]:
    with backstay.open("memory://") as opened:
        yield opened


@pytest.fixture(params=["sqlite:///{}/deep/er/store.db", "file://{}/deep/er/store"], ids=["sqlite", "files"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store on the disk that can be opened again, and by another process."""
    template: str = request.param
    return template.format(tmp_path.as_posix())
