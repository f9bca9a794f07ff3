"""A store of each kind, for each test. Another backend joins by its name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay

BACKENDS = ("memory", "sqlite", "files")


def url_of(kind: str, folder: Path) -> str:
    return {"memory": "memory://", "sqlite": f"{folder}/store.db", "files": f"file:{folder}/store"}[kind]


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[backstay.Store]:
    with backstay.open(url_of(request.param, tmp_path)) as opened:
        yield opened


@pytest.fixture
def session(store: backstay.Store) -> backstay.Session:
    return store.session("t")
