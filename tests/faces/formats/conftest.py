"""A store for what is imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as opened:
        yield opened


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "from"
