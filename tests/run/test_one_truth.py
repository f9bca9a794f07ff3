"""A call in doubt is in every list or in none: crashed(), recover, one session's own look, what an import reports."""

import asyncio
import contextlib
from pathlib import Path

import pytest

import backstay
import backstay.aio
from backstay.face.run_status import run_statuses
from tests.run.crashes import Cut, World, leave_in_doubt


def listed(store: backstay.Store) -> tuple[list[str], list[str], list[str]]:
    """The sessions with a call in doubt, as three places tell it."""
    crashed = [str(info.id) for info in store.crashed()]
    told = sorted(map(str, backstay.recover(store, lambda _run: None).in_doubt))
    each = [str(info.id) for info in store.sessions() if info.crashed]
    return crashed, told, each


@pytest.fixture
def copy(tmp_path: Path, store: backstay.Store) -> backstay.Store:
    """A store that a session with a call in doubt was imported into."""
    leave_in_doubt(store, World())
    store.session("done").commit({})
    store.export(tmp_path / "sessions.backstay")
    there = backstay.open("memory://")
    report = there.import_(tmp_path / "sessions.backstay", rename={"t": "taken in"})
    assert report.in_doubt == {"taken in": 1}
    assert "'taken in' has 1 call in doubt" in str(report)
    return there


def test_a_call_in_doubt_that_was_imported_is_in_every_list_until_it_is_decided(copy: backstay.Store) -> None:
    session = copy.session("taken in")
    assert listed(copy) == (["taken in"], ["taken in"], ["taken in"])
    (status,) = run_statuses(copy.backend, session)
    assert [call.name for call in status.in_doubt] == ["pay"]
    session.resolve(status.in_doubt[0].id, result="paid")
    assert listed(copy) == ([], [], [])
    assert run_statuses(copy.backend, session) == []
    with copy.run("taken in") as run:
        assert run.call("pay", lambda: "twice", args={}) == "paid"


def test_an_imported_session_is_reported_and_not_gone_on_with(copy: backstay.Store) -> None:
    entered: list[str] = []
    report = backstay.recover(copy, lambda run: entered.append(run.session.id), on_doubt="retry")
    assert entered == []
    assert report.in_doubt == {"taken in": "1 call in doubt on branch 'main'"}
    assert backstay.recover(copy, lambda _run: None, agent="other").in_doubt == {}


def test_giving_up_what_was_imported_ends_the_doubt(copy: backstay.Store) -> None:
    copy.session("taken in").abandon(reason="closed by hand")
    assert listed(copy) == ([], [], [])


def test_entering_the_session_that_was_imported_is_a_run_like_any_other(copy: backstay.Store) -> None:
    with copy.run("taken in", on_doubt="skip") as run:
        assert [call.name for call in run.in_doubt] == ["pay"]
        assert copy.crashed() == []
        run.call("pay", lambda: "twice", args={})
    assert listed(copy) == ([], [], [])


def test_a_run_that_was_halted_with_calls_in_doubt_is_listed_until_the_last_is_decided(store: backstay.Store) -> None:
    world = World()
    with store.run("t") as run:
        for name in ("pay", "ship"):
            with contextlib.suppress(Cut):
                run.call(name, world.cut(name), args={})
        run.halt("a person must look")
    assert listed(store) == (["t"], ["t"], ["t"])
    session = store.session("t")
    pay, ship = session.calls(pending=True)
    session.resolve(pay.id, "skip")
    assert listed(store) == (["t"], ["t"], ["t"])
    session.resolve(ship.id, "retry")
    assert listed(store) == ([], [], [])
    assert store.verify().ok


def test_a_run_that_was_halted_without_doubt_is_not_listed(store: backstay.Store) -> None:
    with store.run("t") as run:
        run.call("pay", lambda: "paid", args={})
        run.halt("a person must look")
    assert listed(store) == ([], [], [])


def test_the_awaited_recovery_reports_the_same(tmp_path: Path) -> None:
    async def nothing(_run: backstay.aio.AsyncRun) -> None:
        raise AssertionError

    async def main() -> None:
        async with backstay.aio.open(tmp_path / "there.db") as store:
            report = await store.import_(tmp_path / "sessions.backstay")
            assert report.in_doubt == {"t": 1}
            assert [info.id for info in await store.crashed()] == ["t"]
            assert (await backstay.aio.recover(store, nothing)).in_doubt.keys() == {"t"}

    with backstay.open(tmp_path / "here.db") as store:
        leave_in_doubt(store, World())
        store.export(tmp_path / "sessions.backstay")
    asyncio.run(main())
