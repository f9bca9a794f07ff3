"""Pruning: what retention keeps stays readable, what goes frees its space, and a dry run says the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import Checkpoint, InvalidInputError, NotFoundError, Retention, Session, Status, Store
from backstay.upkeep.weighing import Weighing, session_bytes
from tests.store.rows import ids_of
from tests.store.travel import KINDS, open_kind


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with open_kind(request.param, tmp_path) as opened:
        yield opened


def grow(session: Session, steps: int) -> list[Checkpoint]:
    head = session.head()
    messages = [] if head is None else list(head.state["messages"])
    made = []
    for _ in range(steps):
        number = len(messages)
        messages.append({"role": "user", "content": f"{number}: " + " ".join(str(number * n) for n in range(60))})
        made.append(session.commit({"messages": messages}))
    return made


def readable(session: Session, points: list[Checkpoint]) -> bool:
    return all(len(session.load(point)["messages"]) == point.sequence for point in points)


def test_the_newest_stay_and_can_be_read(store: Store) -> None:
    session = store.session("s")
    made = grow(session, 90)
    report = store.prune(Retention(keep_last=10))
    assert report.checkpoints == {"s": tuple(point.id for point in made[:-10])}
    assert list(session.log()) == made[:-11:-1]
    assert readable(session, made[-10:])
    assert session.checkpoint().parent_id == made[-2].id
    oldest = list(session.log())[-1]
    assert (oldest.parent_id, oldest.parent_digest) == (made[-11].id, made[-11].digest)
    assert store.verify().ok
    grow(session, 40)
    assert store.verify().ok
    with pytest.raises(NotFoundError):
        session.load(made[0].id)


def test_labels_tags_forks_heads_and_an_open_undo_stay(store: Store) -> None:
    session = store.session("s")
    made = grow(session, 50)
    labelled = session.commit(session.load(), label="keep me")
    later = grow(session, 20)
    session.tag(made[7], "tagged")
    session.fork(made[20], "what-if")
    session.commit({"messages": made[20].state["messages"]}, branch="what-if")
    session.restore(made[30])
    store.prune(Retention(keep_last=1))
    left = {point.id for point in (made[7], made[20], labelled, later[-1])}
    assert left <= set(ids_of(store))
    assert len(session.load("tagged")["messages"]) == 8
    session.undo()
    assert len(session.load()["messages"]) == 70
    assert store.verify().ok
    store.prune(Retention(keep_last=1, keep_labelled=False))
    assert labelled.id not in ids_of(store)
    assert store.verify().ok


def test_a_dry_run_says_exactly_what_a_real_run_does_and_changes_nothing(store: Store) -> None:
    session = store.session("s")
    grow(session, 30)
    retention = Retention(keep_last=4)
    said = store.prune(retention, dry_run=True)
    assert said.dry_run
    assert len(list(session.log())) == 30
    done = session.prune(retention)
    assert done.checkpoints == said.checkpoints
    assert done.count == 26
    assert "26 checkpoints" in str(done)
    assert store.prune(retention).count == 0


def test_a_dry_run_says_how_much_would_go(store: Store) -> None:
    session = store.session("s")
    for number in range(300):
        session.commit({"noise": random.Random(number).randbytes(2000)}, status="completed")
    thinned = store.prune(Retention(keep_last=10), dry_run=True).freed_bytes
    ended = store.prune(Retention(finished_days=0), dry_run=True)
    assert 290 * 2000 < thinned < ended.freed_bytes < 1_500_000
    assert ended.sessions == ("s",)
    assert store.prune(Retention(keep_last=300), dry_run=True).freed_bytes == 0
    assert len(list(session.log())) == 300


@pytest.mark.parametrize("shared", [False, True])
def test_a_dry_run_counts_the_large_values_that_go_and_no_others(store: Store, shared: bool) -> None:
    session, other = store.session("s"), store.session("other")
    large = [random.Random(number).randbytes(1_000_000) for number in range(4)]
    for value in large:
        session.commit({"page": value})
    session.commit({"page": large[-1], "n": 1})
    other.commit({"page": large[0] if shared else b""})
    before = store.stats().stored_bytes
    said = store.prune(Retention(keep_last=1), dry_run=True)
    assert said.count == 4
    expected = 2_000_000 if shared else 3_000_000
    assert expected < said.freed_bytes < expected + 50_000
    assert store.prune(Retention(keep_last=1)).count == 4
    if store.backend.name != "memory":
        freed = before - store.stats().stored_bytes
        assert abs(freed - said.freed_bytes) < 200_000
    assert 1_000_000 < session_bytes(store.backend, "s") < 1_050_000


def test_what_a_checkpoint_weighs_less_what_its_child_will_weigh_is_what_goes(store: Store) -> None:
    session = store.session("s")
    made = grow(session, 40)
    for point in (made[20], made[30], made[0]):
        weighing = Weighing(store.backend)
        weighing.add_checkpoints("s", {point.sequence})
        before = session_bytes(store.backend, "s")
        session.delete(point)
        assert max(0, before - session_bytes(store.backend, "s")) == weighing.total_bytes


def test_a_tag_that_is_set_between_two_portions_stays_and_the_report_says_what_went(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("s")
    made = [session.commit({"n": number}) for number in range(500)]
    write, written = store.backend.write, 0

    def and_then_somebody_tags(*args: Any) -> Any:
        nonlocal written
        found = write(*args)
        written += 1
        if written == 1:
            session.tag(made[300], "kept")
        return found

    monkeypatch.setattr(store.backend, "write", and_then_somebody_tags)
    report = store.prune(Retention(keep_last=1))
    left = [made[300].id, made[-1].id]
    assert ids_of(store) == left
    assert report.checkpoints == {"s": tuple(point.id for point in made if point.id not in left)}
    assert session.load("kept") == {"n": 300}
    assert store.verify().ok


def test_what_is_young_stays_whatever_a_clock_that_was_behind_says(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session("s")
    day = 86_400 * 10**9
    now = 20_000 * day
    clock = [now - 40 * day]
    monkeypatch.setattr("time.time_ns", lambda: clock[0])
    old = grow(session, 10)
    clock[0] = now - 2 * day
    young = grow(session, 5)
    clock[0] = now - 300 * day  # a writer whose clock is far behind
    behind = grow(session, 5)
    clock[0] = now
    store.prune(Retention(keep_days=30))
    assert set(ids_of(store)) == {point.id for point in young + behind}
    assert readable(session, young + behind)
    assert old[0].id not in ids_of(store)


def test_finished_sessions_go_as_a_whole_unless_somebody_tagged_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = 86_400 * 10**9
    clock = [20_000 * day]
    monkeypatch.setattr("time.time_ns", lambda: clock[0])
    for name in ("done", "tagged", "open"):
        grow(store.session(name), 2)
        store.session(name).commit({"messages": []}, status=Status.IN_PROGRESS if name == "open" else Status.COMPLETED)
    store.session("tagged").tag("main", "evidence")
    clock[0] += 40 * day
    grow(store.session("fresh"), 1)
    store.session("fresh").commit({"messages": []}, status=Status.FAILED("no"))
    report = store.prune(Retention(finished_days=30))
    assert report.sessions == ("done",)
    assert {info.id for info in store.sessions()} == {"tagged", "open", "fresh"}


@pytest.mark.parametrize(
    "wrong",
    [{}, {"keep_last": 0}, {"keep_last": -1}, {"keep_last": 1.5}, {"keep_days": -1}, {"keep_days": float("nan")}],
)
def test_a_retention_that_would_forget_everything_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Retention(**wrong)


def test_a_session_that_is_not_there_is_not_pruned(store: Store) -> None:
    with pytest.raises(NotFoundError):
        store.prune(Retention(keep_last=1), session="nobody")


def test_the_disk_gets_its_space_back(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        made = grow(store.session("s"), 300)
        states = [point.state for point in made[-10:]]
        store.prune(Retention(keep_last=10))
    with backstay.open(tmp_path / "fresh.db") as fresh:
        for state in states:
            fresh.session("s").commit(state)
    assert (tmp_path / "store.db").stat().st_size <= 2 * (tmp_path / "fresh.db").stat().st_size


@pytest.mark.parametrize("verb", ["scan", "read", "state", "write"])
def test_what_is_committed_while_a_prune_plans_is_not_pruned(
    store: Store, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    writer = store.session("s")
    made = grow(writer, 10)
    look = getattr(store.backend, verb)

    def and_then_somebody_commits(*args: Any, **kwargs: Any) -> Any:
        seen = look(*args, **kwargs)
        monkeypatch.setattr(store.backend, verb, look)
        made.extend(grow(writer, 5))
        return seen

    monkeypatch.setattr(store.backend, verb, and_then_somebody_commits)
    store.prune(Retention(keep_last=8))
    assert len(made) == 15
    assert writer.head() == made[-1]
    assert readable(writer, made[-8:])
    assert grow(writer, 1)[0].sequence == 16
    assert store.verify().ok


def test_writers_go_on_while_a_store_is_pruned(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db", durability="relaxed") as store:
        grow(store.session("s"), 100)
        stop = threading.Event()
        made: list[Checkpoint] = []

        def write() -> None:
            session = store.session("s")
            while not stop.is_set():
                made.extend(grow(session, 1))

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(10):
            store.prune(Retention(keep_last=3))
        stop.set()
        writer.join()
        assert made
        session = store.session("s")
        assert session.head() == made[-1]
        assert len(session.load()["messages"]) == made[-1].sequence
        assert store.verify().ok


def test_large_values_that_nobody_needs_any_more_go_too(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        session = store.session("s")
        session.commit({"picture": bytes(range(256)) * 2000})
        for number in range(5):
            session.commit({"picture": b"small", "n": number})
        store.prune(Retention(keep_last=1))
        assert store.stats().stored_bytes < 100_000
        assert store.verify().ok
