"""The store of the story, made once, and a folder with a copy of it for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faces.cli import story


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("story") / "store.db"
    story.make(file)
    return file


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A folder with a `.backstay/` in it."""
    (tmp_path / ".backstay").mkdir(mode=0o700)
    story.copy(made, tmp_path / ".backstay" / "store.db")
    return tmp_path
