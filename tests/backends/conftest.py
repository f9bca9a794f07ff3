"""The PostgreSQL that tests share; each test has schemas of its own in it."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from tests.backends import server

Fresh = Callable[[], str]


@pytest.fixture(scope="session")
def postgres_url(testrun_uid: str) -> Iterator[str]:
    """The URL of a database; skipped if there is no server to be had."""
    with server.running(testrun_uid) as url:
        yield url


@pytest.fixture
def fresh_schema(postgres_url: str, request: pytest.FixtureRequest) -> Iterator[Fresh]:
    """Names of schemas that nobody has, gone after the test."""
    given: list[str] = []
    numbers = itertools.count()

    def fresh() -> str:
        given.append(f"t{os.getpid()}_{abs(hash(request.node.nodeid)):x}_{next(numbers)}")
        return given[-1]

    yield fresh
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        for name in given:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))
