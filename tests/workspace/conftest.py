"""A folder to capture, and the stores that are in this process or on this disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture(params=["memory://", "sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[backstay.Store]:
    """Whatever is on the disk of it is in the folder `store`."""
    urls = {"sqlite": f"sqlite:///{tmp_path}/store/s.db", "file": f"file://{tmp_path}/store"}
    with backstay.open(urls.get(request.param, request.param)) as opened:
        yield opened
