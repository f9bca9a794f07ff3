"""Listings, figures and events: what is seen of a store without opening a state."""

import logging
import time
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import Checkpoint, InvalidInputError, NotFoundError, Session, Status, Store


def names(store: Store, **options: Any) -> list[str]:
    return [info.id for info in store.sessions(**options)]


def test_sessions_come_newest_first_and_a_commit_brings_one_to_the_front(store: Store) -> None:
    for name in "abc":
        store.session(name).commit({})
    assert names(store) == ["c", "b", "a"]
    store.session("a").commit({})
    assert names(store) == ["a", "c", "b"]
    assert names(store, limit=2) == ["a", "c"]
    assert names(store, limit=0) == []
    with pytest.raises(InvalidInputError):
        store.sessions(limit=-1)


def test_sessions_can_be_asked_for_by_status_and_agent(store: Store) -> None:
    for number in range(30):
        store.session(f"s{number}", agent=f"agent-{number % 3}").commit(
            {}, status=Status.COMPLETED if number % 2 else None
        )
    done = names(store, status=Status.COMPLETED, agent="agent-1")
    assert done == [f"s{number}" for number in range(29, -1, -1) if number % 2 and number % 3 == 1]
    assert names(store, status="completed", limit=2) == ["s29", "s27"]
    assert names(store, agent="nobody") == []
    with pytest.raises(InvalidInputError, match="in_progress"):
        store.sessions(status="finished")  # type: ignore[arg-type]


def test_more_sessions_than_a_page_are_all_listed_once(store: Store) -> None:
    for number in range(450):
        store.session(f"s{number}").commit({})
    assert names(store) == [f"s{number}" for number in range(449, -1, -1)]
    assert len(names(store, limit=201)) == 201


def test_a_listing_holds_nothing_open_while_others_write(store: Store) -> None:
    for number in range(210):
        store.session(f"s{number}").commit({})
    listing = store.sessions()
    next(listing)
    store.session("new").commit({})
    store.delete("s5")
    assert "s5" not in [info.id for info in listing]


def test_a_line_says_how_a_session_stands(store: Store, session: Session) -> None:
    session.commit({}, step=1, usage={"cost": 0.5})
    session.fork("main", "b")
    point = session.commit({}, step=2, usage={"cost": 0.5}, status=Status.FAILED("no"))
    (info,) = store.sessions()
    assert (info.id, info.agent, info.status, info.reason) == ("ticket-42", "support", Status.FAILED, "no")
    assert (info.branches, info.checkpoints, info.last_step, info.usage.cost) == (2, 2, 2, 1.0)
    assert info.created_at <= info.updated_at == point.created_at
    assert info.crashed is False
    session.delete_branch("b")
    (info,) = store.sessions()
    assert info.branches == 1


def test_asking_for_a_session_writes_nothing(store: Store) -> None:
    session = store.session("nobody")
    assert session.head() is None
    assert list(store.sessions()) == []
    with pytest.raises(NotFoundError):
        store.verify("nobody")


def test_the_figures_add_up(store: Store, session: Session) -> None:
    assert (store.stats().sessions, store.stats().checkpoints, store.stats().logical_bytes) == (0, 0, 0)
    for number in range(100):
        session.commit({"text": ["same text, said again and again"] * 1000, "n": number})
    stats = store.stats()
    assert (stats.sessions, stats.checkpoints) == (1, 100)
    assert stats.logical_bytes > 3_000_000
    assert stats.stored_bytes > 0
    assert stats.ratio == pytest.approx(stats.logical_bytes / stats.stored_bytes)


def test_a_listener_hears_of_every_checkpoint_and_cannot_break_a_commit(
    store: Store, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Checkpoint] = []

    def broken(_: Checkpoint) -> None:
        message = "the pager is down"
        raise RuntimeError(message)

    store.on("checkpoint", broken)
    store.on("checkpoint", heard.append)
    with caplog.at_level(logging.ERROR):
        first = session.commit({"n": 1})
        back = session.restore(first)
    assert heard == [first, back]
    assert "the pager is down" in caplog.text
    session.fork(first, "b")
    assert len(heard) == 2
    with pytest.raises(InvalidInputError, match="checkpoint"):
        store.on("checkpoints", heard.append)  # type: ignore[arg-type]


def test_a_refused_commit_is_no_event(store: Store, session: Session) -> None:
    heard: list[Checkpoint] = []
    store.on("checkpoint", heard.append)
    with pytest.raises(InvalidInputError):
        session.commit({"a": object()})
    assert heard == []


def test_a_clock_that_runs_backwards_changes_no_order(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    made = []
    for number, tick in enumerate([now, now - 5 * 10**9, now - 10**15, now - 10**15, now + 10**15, now]):
        monkeypatch.setattr(time, "time_ns", lambda tick=tick: tick)
        made.append(store.session("other").commit({}) if number == 4 else session.commit({"n": min(number, 4)}))
    *points, other, last = made
    assert [point.id for point in session.log()] == [point.id for point in (last, *points[::-1])]
    assert [point.sequence for point in (*points, last)] == [1, 2, 3, 4, 5]
    assert session.load() == {"n": 4}
    assert names(store) == ["ticket-42", "other"]
    assert points[2].created_at < points[0].created_at < other.created_at
    assert store.verify().ok


def test_a_verification_counts_what_it_read(store: Store, session: Session) -> None:
    for number in range(5):
        session.commit({"n": number})
    store.session("other").commit({})
    report = store.verify()
    assert (report.ok, report.checked, report.problems) == (True, 6, ())
    assert store.verify("other").checked == 1
    assert str(report).startswith("6 checkpoints")
    assert store.verify(repair=True).repaired == ()


def test_looking_at_a_store_leaves_its_file_as_it_is(path: Path) -> None:
    with backstay.open(path) as store:
        for number in range(20):
            store.session("s").commit({"n": number})
    before = path.read_bytes()
    with backstay.open(path) as store:
        session = store.session("s")
        session.load()
        list(session.log())
        list(store.sessions())
        store.verify()
        store.stats()
    assert path.read_bytes() == before
