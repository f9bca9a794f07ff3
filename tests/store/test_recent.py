"""Heads that are read again: kept as bytes, used only while the row they belong to is the head, within a budget."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import Session, Store
from backstay.errors import CorruptionError, NotFoundError
from backstay.store.recent import BUDGET_BYTES, RecentHeads
from tests.store.rows import spoil


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with backstay.open(tmp_path / "store.db") as store:
        yield store


@pytest.fixture
def full_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The reads of a whole chain from now on."""
    found: list[Any] = []
    state = store.backend.state

    def noted(*arguments: Any, **options: Any) -> Any:
        found.append(arguments)
        return state(*arguments, **options)

    monkeypatch.setattr(store.backend, "state", noted)
    return found


def messages(count: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"message {at} " * 9} for at in range(count)], "n": count}


def warm(session: Session, ref: str = "main") -> Any:
    """Read until it is kept."""
    session.load(ref)
    return session.load(ref)


def test_a_head_that_is_read_again_costs_its_row_alone(store: Store, full_reads: list[Any]) -> None:
    session = store.session("s")
    for count in range(1, 30):
        session.commit(messages(count))
    warm(session)
    before = len(full_reads)
    assert [store.session("s").load() for _ in range(3)] == [messages(29)] * 3
    assert len(full_reads) == before


def test_each_load_is_a_state_of_its_own(store: Store) -> None:
    session = store.session("s")
    session.commit(messages(3))
    for _ in range(4):
        state = session.load()
        assert state == messages(3)
        state["messages"][0]["content"] = "changed by its reader"
        state["messages"].append("more")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_kept_follows_every_commit(store: Store, full_reads: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    session = store.session("s")
    state = messages(20) | {"image": b"\0\1" * 4000, "when": (1, 2.5, None)}
    session.commit(state)
    warm(session)
    before = len(full_reads)
    for step in range(80):
        change = chance.choice(["append", "append", "append", "edit", "trim", "set", "large", "drop"])
        if change == "append":
            state["messages"].append({"role": "tool", "content": f"{step} " * chance.randrange(1, 40)})
        elif change == "edit" and state["messages"]:
            state["messages"][chance.randrange(len(state["messages"]))] = {"role": "user", "content": f"edited {step}"}
        elif change == "trim":
            del state["messages"][: chance.randrange(1, 4)]
        elif change == "large":
            state["text"] = f"{step} is a long text " * 500
        elif change == "drop":
            state.pop("text", None)
        else:
            state["n"] = step
        session.commit(state)
        assert session.load() == state
        assert store.session("s").load() == state
    assert len(full_reads) - before < 80, "hardly anything was kept"


def test_a_commit_by_another_store_is_seen(store: Store, tmp_path: Path) -> None:
    session = store.session("s")
    session.commit(messages(3))
    warm(session)
    with backstay.open(tmp_path / "store.db") as other:
        other.session("s").commit(messages(5))
    assert session.load() == messages(5)
    assert session.checkpoint().state == messages(5)


def test_restores_tags_and_branches_are_read_as_they_are(store: Store) -> None:
    session = store.session("s")
    first = session.commit(messages(1))
    session.commit(messages(2))
    session.tag(first, "kept")
    session.fork("main", "side")
    for ref, count in (("main", 2), ("kept", 1), ("side", 2)):
        warm(session, ref)
        assert session.load(ref) == messages(count)
    session.restore(first)
    assert session.load() == messages(1)
    session.commit(messages(4), branch="side")
    assert session.load("side") == messages(4)
    session.delete_branch("side")
    with pytest.raises(NotFoundError):
        session.load("side")
    session.untag("kept")
    session.tag("main", "kept")
    session.commit(messages(7))
    assert session.load("kept") == messages(1)


def test_a_session_that_is_deleted_is_forgotten(store: Store) -> None:
    session = store.session("s")
    session.commit(messages(3))
    warm(session)
    recent: RecentHeads = store._recent
    assert ("s", "main") in recent.heads
    store.delete("s")
    assert ("s", "main") not in recent.heads
    assert recent.size_bytes == 0
    store.session("s").commit({"new": True})
    assert store.session("s").load() == {"new": True}


def test_a_session_that_another_store_deleted_and_made_again_is_another(store: Store, tmp_path: Path) -> None:
    session = store.session("s")
    session.commit(messages(3))
    warm(session)
    with backstay.open(tmp_path / "store.db") as other:
        other.delete("s")
        with pytest.raises(NotFoundError):
            session.load()
        other.session("s").commit({"new": True})
    assert session.load() == {"new": True}


def test_a_head_whose_row_is_damaged_is_not_read_from_memory(store: Store) -> None:
    session = store.session("s")
    session.commit(messages(2))
    head = session.commit(messages(3))
    warm(session)
    spoil(store, "fields", head)
    with pytest.raises(CorruptionError):
        session.load()


def test_what_is_kept_stays_within_its_budget() -> None:
    assert BUDGET_BYTES == 16 * 1024 * 1024
    with backstay.open("memory://") as store:
        store._recent = RecentHeads(40_000)
        for number in range(12):
            session = store.session(f"s{number}")
            session.commit({"text": "x" * 9_000})
            assert warm(session) == session.load()
            assert 9_000 < store._recent.size_bytes <= 40_000
        large = store.session("large")
        large.commit({"text": "y" * 90_000})
        assert warm(large) == large.load() == {"text": "y" * 90_000}
        assert store._recent.size_bytes <= 40_000
        assert ("s11", "main") in store._recent.heads, "one that cannot be kept pushed out another"
