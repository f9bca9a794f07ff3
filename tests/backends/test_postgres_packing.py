"""Packed history in PostgreSQL: rows that go round, few round trips, and a kill while packing loses nothing."""

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings

import backstay
from backstay.backends.postgres import PostgresBackend
from backstay.backends.postgres.functions import RING
from backstay.face import Store
from backstay.port import CheckpointRow, KeyframeRow, Kind, SegmentRow, Unreadable
from backstay.port.packed_line import PackedLine
from backstay.port.segments import Segment
from backstay.store.packing import PACK_ROWS
from backstay.testing import machine_for
from backstay.testing.author import SESSION, Author, check_states, every_row
from backstay.testing.contract.packing import line_of, pack
from backstay.upkeep.deletion import delete_some
from tests.backends.conftest import Fresh
from tests.backends.proxy import Moment, eventually
from tests.backends.round_trips import Pair, Trips, pair, trips, warm
from tests.backends.test_postgres_faults import MOMENTS, Setting, setting

__all__ = ["pair", "setting", "trips"]


def rows_in(url: str, schema: str, where: str = "true") -> int:
    """How many rows there are for checkpoints, whether they hold one or not."""
    with contextlib.closing(psycopg.connect(url)) as connection:
        found = connection.execute(f'SELECT count(*) FROM "{schema}".checkpoints WHERE {where}'.encode()).fetchone()
    return 0 if found is None else int(found[0])


def test_packing_is_one_more_round_trip_and_the_next_commit_is_one(pair: Pair, trips: Trips) -> None:
    one, _ = pair
    warm(one)
    session = Store(one).session("s")
    taken = [trips.of(lambda number=number: session.commit({"n": number})) for number in range(2 * PACK_ROWS + 9)]  # type: ignore[misc]
    assert line_of(one, "s").packed == 2 * PACK_ROWS
    assert taken[PACK_ROWS - 1 :: PACK_ROWS] == [2, 2]
    assert taken[PACK_ROWS::PACK_ROWS] == [1, 1]


def test_a_load_of_packed_history_is_one_round_trip_and_makes_no_row_of_what_is_packed(
    pair: Pair, trips: Trips, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    session = Store(one).session("s")
    states = [{"all": [f"step {at}" for at in range(number)]} for number in range(1, 2 * PACK_ROWS + 1)]
    points = [session.commit(state) for state in states]
    session.fork(points[PACK_ROWS].id, "other")
    elsewhere = {"all": ["elsewhere"]}
    session.commit(elsewhere, branch="other")
    packed = line_of(one, "s").packed
    assert packed == len(states)
    assert {row.sequence for row in one.scan("s", Kind.KEYFRAME, limit=99) if isinstance(row, KeyframeRow)} < {
        *range(packed + 1)
    }
    made: list[int] = []
    whole = Segment.rows

    def counting(
        segment: Segment, places: Sequence[int] | None = None, **more: bool
    ) -> list[CheckpointRow | Unreadable]:
        found = whole(segment, places, **more)
        made.append(len(found))
        return found

    monkeypatch.setattr(Segment, "rows", counting)
    reader = Store(two).session("s")
    for ref, state in (("main", states[-1]), ("other", elsewhere), (points[20].id, states[20])):
        made.clear()
        assert isinstance(two.state("s", ref if ref in ("main", "other") else 21).rows, PackedLine)
        assert reader.load(ref) == state
        assert sum(made) <= 4, "the oldest and the newest alone, for each of two looks"
    assert trips.of(lambda: two.state("s", "main")) == 1


def test_the_rows_of_packed_checkpoints_are_taken_by_new_ones(pair: Pair, postgres_url: str) -> None:
    one, two = pair
    session = Store(one).session("s")
    states = []
    for number in range(3 * RING):
        states.append({"n": number, "text": f"step {number} " * 60})
        session.commit(states[-1])
    assert rows_in(postgres_url, one.schema) == RING
    assert rows_in(postgres_url, one.schema, "sequence > 0") == len(states) - line_of(one, "s").packed
    points = list(session.log())
    assert len(points) == len(states)
    assert [session.load(point.id) for point in points[::7]] == states[::-7]
    one.close()
    counted = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'checkpoints'"
    )
    with contextlib.closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        assert eventually(lambda: (connection.execute(counted, (two.schema,)).fetchone() or (0,))[0] > 3 * RING)
        changed, in_place = connection.execute(counted, (two.schema,)).fetchone() or (1, 0)
    assert in_place > 0.8 * changed


def test_checkpoints_that_are_not_packed_for_long_have_rows_of_their_own(pair: Pair, postgres_url: str) -> None:
    one, two = pair
    author = Author(one)
    author.grow(RING + 40)  # none of these is packed
    assert rows_in(postgres_url, one.schema) == RING + 40
    gone = {2, RING + 1, RING + 2, RING + 5}
    assert delete_some(one, SESSION, gone) == len(gone)
    left = {at: state for at, state in author.states.items() if at not in gone}
    while line_of(one).packed < RING:
        assert pack(one, rows=50)
    check_states(two, SESSION, left)
    assert rows_in(postgres_url, one.schema, f"slot >= {RING}") == len([at for at in left if at > line_of(one).packed])
    later = Author(two).stand_on_head()
    later.grow(RING)
    check_states(one, SESSION, left | later.states)
    assert not list(one.check())


@pytest.mark.parametrize("moment", MOMENTS)
def test_packing_cut_at_any_moment_loses_nothing_and_is_done_by_the_next(setting: Setting, moment: Moment) -> None:
    proxy, far, near = setting
    author = Author(far)
    author.grow(24)
    for number in range(1, 6):
        proxy.cut(b"pack_2", moment)
        pack(far, rows=4, merged=2)
        assert proxy.cuts == number
        check_states(near, SESSION, author.states)
        assert not list(near.check())
    assert line_of(near).packed == 20


def test_two_processes_that_pack_at_once_do_it_once(pair: Pair) -> None:
    one, two = pair
    author = Author(one)
    author.grow(12)
    write, uid = one.write, line_of(one).uid
    seen: list[bool] = []

    def beaten(*args: Any) -> Any:
        one.write = write  # type: ignore[method-assign]
        seen.append(pack(two, rows=4))
        return write(*args)

    one.write = beaten  # type: ignore[assignment, method-assign]
    assert not pack(one, rows=4), "the next commit tries again"
    assert seen == [True]
    kept = [row for row in every_row(two, SESSION, Kind.SEGMENT) if isinstance(row, SegmentRow)]
    assert [(row.first, row.last) for row in kept] == [(1, 4)]
    assert line_of(two).uid == uid
    check_states(two, SESSION, author.states)


WRITER = """
import sys, backstay
from backstay.backends.postgres import PostgresBackend
from backstay.store import packing
packing.PACK_ROWS, packing.MERGED = 4, 2
store = backstay.Store(PostgresBackend(sys.argv[1], schema=sys.argv[2]))
session = store.session("s")
number = session.load()["n"] if session.head() else -1
while True:
    number += 1
    session.commit({"n": number, "text": f"step {number} " * 40, "blob": str(number % 7) * 9_000})
    print(number, flush=True)
    if number % 9 == 0:
        session.prune(backstay.Retention(keep_last=40))
"""


def killed(url: str, schema: str, seed: int) -> int:
    """The last commit that a writer was sure of before it, or its connection, was killed somewhere."""
    chance = random.Random(seed)
    words = [sys.executable, "-c", WRITER, url, schema]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acked = -1
    with contextlib.closing(psycopg.connect(url, autocommit=True)) as connection:
        for _ in range(chance.randrange(6, 30)):
            acked = int(process.stdout.readline())
            if chance.random() < 0.2:  # the writer goes on with another connection
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'backstay' "
                    "AND position(%s IN query) > 0 AND pid <> pg_backend_pid()",
                    (schema,),
                )
    process.send_signal(signal.SIGKILL)
    said, trouble = process.communicate()
    assert not trouble, trouble
    return max([acked, *[int(word) for word in said.split()]])


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(100, 160), marks=pytest.mark.exhaustive)])
def test_a_writer_killed_while_it_packs_merges_and_prunes_loses_nothing(
    postgres_url: str, fresh_schema: Fresh, seeds: range
) -> None:
    schema = fresh_schema()
    for seed in seeds:
        acked = killed(postgres_url, schema, seed)
        with Store(PostgresBackend(postgres_url, schema=schema)) as store:
            numbers = [point.state["n"] for point in store.session("s").log()]
            assert numbers[0] in (acked, acked + 1)
            assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1))
            assert store.verify().ok
            assert line_of(store.backend, "s").packed > 0


@pytest.fixture
def machine_opener(postgres_url: str, fresh_schema: Fresh) -> Callable[[Path], Store]:
    schemas: dict[Path, str] = {}

    def opened(folder: Path) -> Store:
        schema = schemas.setdefault(folder, fresh_schema())
        mark = "&" if "?" in postgres_url else "?"
        return backstay.open(f"{postgres_url}{mark}schema={schema}", durability="relaxed")

    return opened


@pytest.mark.parametrize(("examples", "steps"), [(2, 12), pytest.param(40, 40, marks=pytest.mark.exhaustive)])
def test_random_histories_packed_here_are_those_of_a_plain_dict(machine_opener: Any, examples: int, steps: int) -> None:
    machine: Any = machine_for(machine_opener, packs=True)
    case = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    case("runTest").runTest()
