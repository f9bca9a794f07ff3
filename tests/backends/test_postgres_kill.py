"""kill -9 before any message to a PostgreSQL around waiting, and readers while a branch there is pruned."""

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

import backstay
from tests.backends.conftest import Fresh
from tests.crash import test_wait_kill
from tests.crash.ring.nursery import Nursery
from tests.crash.ring.rooms import Place
from tests.hostile.test_moments import READS, watch_while_it_changes

SAMPLE = 40  # of the messages, one in so many is tried by default; `-m exhaustive` tries all


class There(Place):
    """A store in a schema of its own."""

    def clear(self) -> None:
        """Nothing is left of it."""
        super().clear()
        url, _, schema = self.url.rpartition("schema=")
        with psycopg.connect(url.rstrip("?&"), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("backstay.backends.postgres", "tests.crash.runs.waits") as warm:
        yield warm


@pytest.fixture
def url(postgres_url: str, fresh_schema: Fresh) -> str:
    return f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema={fresh_schema()}"


@pytest.fixture
def place(url: str, tmp_path: Path) -> Place:
    return There(tmp_path / "store", "postgres", url)


def test_a_wait_killed_before_any_message_loses_no_answer_and_does_nothing_twice(
    nursery: Nursery, place: Place
) -> None:
    total = test_wait_kill.undisturbed(nursery, place)
    assert total > SAMPLE
    for number in range(random.Random(16).randrange(1, SAMPLE), total + 1, SAMPLE):
        test_wait_kill.kill_at(nursery, place, number)


@pytest.mark.exhaustive
def test_no_message_at_all_can_be_found_before_which_a_kill_loses_an_answer(nursery: Nursery, place: Place) -> None:
    for number in range(1, test_wait_kill.undisturbed(nursery, place) + 1):
        test_wait_kill.kill_at(nursery, place, number)


@pytest.mark.exhaustive
def test_no_second_and_third_kill_loses_an_answer(nursery: Nursery, place: Place) -> None:
    total = test_wait_kill.undisturbed(nursery, place)
    for seed in range(60):
        chance = random.Random(seed)
        test_wait_kill.kill_at(nursery, place, *[chance.randrange(1, total) for _ in range(3)])


@pytest.mark.parametrize("reads", [12, pytest.param(READS, marks=pytest.mark.exhaustive)])
def test_no_reader_is_told_that_a_branch_does_not_exist_while_it_is_committed_to_and_pruned(
    url: str, reads: int
) -> None:
    with backstay.open(url) as store:
        watch_while_it_changes(store, reads)
