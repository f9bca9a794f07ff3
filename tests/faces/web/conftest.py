"""The store of the demo, made once, with a copy for each test; a server; and one browser for the whole run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import backstay
from backstay.web import make_demo
from tests.faces.web.serving import Visitor, served


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("demo") / "demo.db"
    make_demo(file)
    return file


@pytest.fixture
def file(made: Path, tmp_path: Path) -> Path:
    """A copy of the demo's store."""
    for each in made.parent.glob("demo.db*"):
        shutil.copy2(each, tmp_path / each.name)
    return tmp_path / "demo.db"


@pytest.fixture
def store(file: Path) -> Iterator[backstay.Store]:
    with backstay.open(file) as opened:
        yield opened


@pytest.fixture
def visitor(store: backstay.Store) -> Iterator[Visitor]:
    with served(store) as port:
        yield Visitor(port)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for what a thread of the server will have done."""

    def wait(holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.05)

    return wait
