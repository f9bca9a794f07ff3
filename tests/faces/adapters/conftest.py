"""Stores of every kind for the adapters; those in PostgreSQL have a schema each, gone after the test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash.ring.nursery import Nursery

KINDS = ["memory", "sqlite", "files", "postgres"]


@pytest.fixture(scope="session")
def postgres_url(testrun_uid: str) -> Iterator[str]:
    """The URL of a database; skipped if there is no server to be had."""
    pytest.importorskip("psycopg", reason="the extra `postgres`")
    from tests.backends import server

    with server.running(testrun_uid) as url:
        yield url


@pytest.fixture(params=KINDS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """URLs of stores that nobody has used."""
    numbers = itertools.count()
    if request.param != "postgres":
        shape = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/{{}}.db", "files": f"file://{tmp_path}/{{}}"}
        yield lambda: shape[request.param].format(next(numbers))
        return
    base: str = request.getfixturevalue("postgres_url")
    given: list[str] = []

    def fresh() -> str:
        given.append(f"a{os.getpid()}_{abs(hash(request.node.nodeid)):x}_{next(numbers)}")
        return f"{base}{'&' if '?' in base else '?'}schema={given[-1]}"

    yield fresh
    import psycopg
    from psycopg import sql

    with closing(psycopg.connect(base, autocommit=True)) as connection:
        for name in given:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()


@pytest.fixture
def saver(url: str) -> Iterator[Any]:
    from backstay.adapters.langgraph import BackstaySaver

    with BackstaySaver.open(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """A process whose children have the OpenAI SDK: it takes longer to import than a turn takes to die."""
    with Nursery("tests.faces.adapters.killed") as warm:
        yield warm
