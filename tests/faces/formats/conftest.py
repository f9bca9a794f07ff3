"""A store for what is imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay


@pytest.fixture
def store() -> Iterator[backstay.Store]:
    with backstay.open("memory://") as opened:
        yield opened


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "from"
