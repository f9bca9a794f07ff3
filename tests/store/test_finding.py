"""What a session and a store have, found without opening a state: checkpoints by their id, histories, runs."""

import asyncio
import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
import backstay.aio
from backstay import InvalidInputError, NotFoundError, Status, Store, Usage
from tests.run.conftest import BACKENDS, url_of
from tests.run.crashes import Cut


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with backstay.open(url) as opened:
        yield opened


# a checkpoint by its id alone


def test_a_checkpoint_is_found_by_its_id_or_a_start_of_it_whatever_its_session(store: Store) -> None:
    points = [store.session(f"s{number % 7}").commit({"n": number}) for number in range(50)]
    for number, point in enumerate(points):
        for id_ in (point.id, point.id[:12]):
            found = store.find(id_)
            assert found == point
            assert found.session_id == f"s{number % 7}"
            assert found.state == {"n": number}


def test_an_id_of_the_callers_own_is_found_too(store: Store) -> None:
    mine = store.session("a").commit({"n": 1}, id="ticket 7, asked")
    hexadecimal = store.session("b").commit({"n": 2}, id="00ff" * 8)
    assert store.find("ticket 7, asked") == mine
    assert store.find("ticket") == mine
    assert store.find("00ff" * 8) == hexadecimal
    assert store.find("00ff00") == hexadecimal


def test_an_id_that_no_session_has_is_not_found_and_an_ambiguous_start_lists_what_it_could_be(store: Store) -> None:
    for name in "ab":
        store.session(name).commit({}, id="same id")
        store.session(name).commit({}, id=f"same {name}")
    for id_ in ("0" * 32, "nope", "same x", "abc"):
        with pytest.raises(NotFoundError):
            store.find(id_)
    for id_ in ("same id", "same"):
        with pytest.raises(InvalidInputError, match=r"of 'a'.*of 'b'|of 'b'.*of 'a'"):
            store.find(id_)
    assert store.find("same b").session_id == "b"
    for wrong in ("", 5, "a\0"):
        with pytest.raises(InvalidInputError):
            store.find(wrong)  # type: ignore[arg-type]


def test_a_deleted_checkpoint_is_found_no_more(store: Store) -> None:
    session = store.session("s")
    first, _ = session.commit({"n": 1}), session.commit({"n": 2})
    assert session.delete(first) == 1
    with pytest.raises(NotFoundError):
        store.find(first.id)


# all checkpoints of a session


def test_a_history_has_all_branches_newest_first_and_is_read_in_pages(store: Store) -> None:
    session = store.session("s")
    points = [session.commit({"n": number}) for number in range(3)]
    session.fork(points[0], "b")
    points += [session.commit({"n": number}, branch="b") for number in range(3)]
    session.delete_branch("b")
    assert list(session.history()) == points[::-1]
    assert list(session.history(limit=2)) == [points[5], points[4]]
    assert list(session.history(before=points[4])) == points[3::-1]
    assert list(session.history(before="main~", limit=1)) == [points[0]]
    assert list(session.history(limit=0)) == []
    points += [session.commit({"n": number}) for number in range(250)]
    assert list(session.history()) == points[::-1]
    with pytest.raises(InvalidInputError):
        session.history(limit=-1)
    with pytest.raises(NotFoundError):
        session.history(before="nope")


def test_a_checkpoint_says_how_large_its_state_is(store: Store) -> None:
    session = store.session("s")
    small = session.commit({"text": "a"})
    large = session.commit({"text": "a" * 100_000})
    assert 0 < small.size_bytes < 100
    assert 100_000 < large.size_bytes < 100_100
    assert [point.size_bytes for point in session.log()] == [large.size_bytes, small.size_bytes]


def test_a_deletion_says_how_much_went(store: Store) -> None:
    session = store.session("s")
    for number in range(7):
        session.commit({"n": number})
    assert session.delete("main~3") == 1
    assert store.delete("s") == 6
    with store.run("t") as run:
        assert store.session("t").head() is None
        run.state["n"] = 1
    assert store.delete("t") == 1


# a session that has nothing


def test_a_session_that_has_nothing_says_so_in_the_call_itself(store: Store) -> None:
    session = store.session("s")
    for look in (session.load, session.log, session.checkpoint, session.newest_intact):
        if look == session.newest_intact:
            assert look() is None
            continue
        with pytest.raises(NotFoundError, match="no checkpoints yet"):
            look()
    assert session.head() is None
    assert session.branches() == {}
    assert session.tags() == {}
    assert list(session.history()) == []
    assert session.calls() == []
    assert session.calls(pending=True) == []
    assert session.runs() == []
    assert list(store.sessions()) == []


def test_a_session_that_was_only_entered_has_nothing_either(store: Store) -> None:
    with contextlib.suppress(Cut), store.run("s"):
        raise Cut
    session = store.session("s")
    for look in (session.load, session.log, session.checkpoint):
        with pytest.raises(NotFoundError):
            look()
    assert session.head() is None
    assert session.calls() == []
    assert list(session.history()) == []
    assert [run.crashed for run in session.runs()] == [True]


def test_the_awaited_session_says_the_same(url: str) -> None:
    async def main() -> None:
        async with backstay.aio.open(url) as store:
            session = store.session("s")
            for look in (session.load, session.checkpoint):
                with pytest.raises(NotFoundError):
                    await look()
            with pytest.raises(NotFoundError):
                await anext(session.log())
            assert [await session.head(), await session.calls(), await session.runs()] == [None, [], []]
            assert [point async for point in session.history()] == []
            point = await session.commit({"n": 1})
            assert [found async for found in session.history()] == [point]
            assert await store.find(point.id) == point
            async with store.run("t"):
                (run,) = await store.session("t").runs()
                assert run.live
            assert await session.checkpoint("main^0") == point
            assert await store.delete("s") == 1

    asyncio.run(main())


# runs


def test_runs_that_have_not_come_to_their_end_are_listed_by_branch(store: Store) -> None:
    session = store.session("s")
    session.commit({})
    for branch in ("crashed", "done", "failed", "paused", "live"):
        session.fork("main", branch)
    with contextlib.suppress(Cut), session.run(branch="crashed"):
        raise Cut
    with session.run(branch="done"):
        pass
    with session.run(branch="failed") as run:
        run.fail("no money")
    with session.run(branch="paused") as run:
        run.pause("over night")
    with session.run(branch="live"):
        crashed, failed, live, paused = session.runs()
    assert [run.branch for run in (crashed, failed, live, paused)] == ["crashed", "failed", "live", "paused"]
    assert [run.crashed for run in (crashed, failed, live, paused)] == [True, False, False, False]
    assert [run.live for run in (crashed, failed, live, paused)] == [False, False, True, False]
    assert (failed.status, failed.reason, paused.reason) == (Status.FAILED, "no money", "over night")
    assert str(os.getpid()) in (live.holder or "")
    assert failed.holder is None
    times = [run.since for run in (crashed, failed, paused, live) if run.since is not None]
    assert times == sorted(times)
    assert len(times) == 4
    assert "live" not in [run.branch for run in session.runs()]  # it is over now
    with session.run() as waits:
        waits.wait("approval")
    assert [run.branch for run in session.runs() if run.waiting] == ["main"]


# usage

BAD: list[dict[str, Any]] = [
    {"cost": math.nan},
    {"cost": math.inf},
    {"cost": -0.01},
    {"cost": 10**400},
    {"tokens_in": -1},
    {"tokens_out": -1},
    {"tasks_completed": -1},
    {"extra": {"images": math.nan}},
    {"extra": {"images": -math.inf}},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_usage_that_would_spoil_every_later_total_is_refused(store: Store, bad: dict[str, Any]) -> None:
    session = store.session("s")
    session.commit({}, usage=Usage(10, 5, 0.5))
    for usage in (bad, Usage(**bad)):
        with pytest.raises(InvalidInputError, match="usage"):
            session.commit({}, usage=usage)
    with store.run("s") as run:
        with pytest.raises(InvalidInputError, match="usage"):
            run.use(**bad)
        run.use(tokens_in=1, cost=0.5)
    assert session.checkpoint().total_usage == Usage(11, 5, 1.0)


def test_a_total_that_was_spoilt_elsewhere_spoils_no_later_one() -> None:
    spoilt = Usage(1, 1, math.nan, 0, {"images": math.inf})
    total = Usage(1, 1, 1.0, 0, {"images": 1}) + spoilt + Usage(1, 0, 1.0, 0, {"images": 1})
    assert (total.tokens_in, total.cost, total.extra) == (3, 2.0, {"images": 2})
    assert (spoilt + Usage(0, 0, 2.0)).cost == 2.0
    assert (Usage(cost=1.5e308) + Usage(cost=1.5e308)).cost == 1.5e308
    assert (Usage(extra={"n": 10**400}) + Usage(extra={"n": 0.5})).extra == {"n": 10**400}
