"""The unit tests of smooth's checkpoint stores, written down once more: same name, same steps, Backstay's calls.

Its memory store is `memory://` here, its file store a store of files, its SQLite store a SQLite store. An agent there
is a session here. docs/predecessors.md has their calls beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay

TALK: dict[str, Any] = {"messages": [{"role": "system", "content": "test"}]}


@pytest.fixture
def memory() -> Iterator[backstay.Store]:
    with backstay.open("memory://") as store:
        yield store


@pytest.fixture
def files(tmp_path: Path) -> Iterator[backstay.Store]:
    with backstay.open(f"file://{tmp_path}/store") as store:
        yield store


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[backstay.Store]:
    with backstay.open(f"sqlite:///{tmp_path}/store.db") as store:
        yield store


def save(store: backstay.Store, agent: str, iteration: int, **more: Any) -> backstay.Checkpoint:
    return store.session(agent).commit(TALK, step=iteration, **more)


def count(store: backstay.Store, agent: str) -> int:
    return len(list(store.session(agent).log()))


def prune(store: backstay.Store, agent: str, keep: int) -> int:
    return sum(map(len, store.session(agent).prune(backstay.Retention(keep_last=keep)).checkpoints.values()))


def refuses(store: backstay.Store) -> None:
    assert store.session("nonexistent").head() is None
    with pytest.raises(backstay.NotFoundError):
        store.find("bad-id")


# checkpoints


def test_checkpoint_creation(memory: backstay.Store) -> None:
    point = save(memory, "agent-1", 5)
    assert point.session_id == "agent-1"
    assert point.step == 5
    assert point.id


def test_checkpoint_with_metadata(memory: backstay.Store) -> None:
    point = save(memory, "agent-1", 1, metadata={"phase": "execute", "bead_id": "smooth-abc"})
    assert point.metadata["phase"] == "execute"
    assert point.metadata["bead_id"] == "smooth-abc"


def test_checkpoint_serialization(memory: backstay.Store, tmp_path: Path) -> None:
    save(memory, "agent-1", 3)
    memory.export(tmp_path / "bytes")
    with backstay.open("memory://") as other:
        other.import_(tmp_path / "bytes")
        restored = other.session("agent-1").checkpoint()
    assert restored.session_id == "agent-1"
    assert restored.step == 3


# memory


def test_memory_store_save_and_load(memory: backstay.Store) -> None:
    save(memory, "agent-1", 1)
    latest = memory.session("agent-1").head()
    assert latest is not None
    assert latest.session_id == "agent-1"


def test_memory_store_load_by_id(memory: backstay.Store) -> None:
    id_ = save(memory, "agent-1", 1).id
    assert memory.find(id_).id == id_


def test_memory_store_load_nonexistent(memory: backstay.Store) -> None:
    refuses(memory)


def test_memory_store_list_ordered(memory: backstay.Store) -> None:
    for iteration in range(5):
        save(memory, "agent-1", iteration)
    save(memory, "agent-2", 0)
    assert [point.step for point in memory.session("agent-1").log()] == [4, 3, 2, 1, 0]


def test_memory_store_prune(memory: backstay.Store) -> None:
    for iteration in range(10):
        save(memory, "agent-1", iteration)
    assert prune(memory, "agent-1", 3) == 7
    assert count(memory, "agent-1") == 3


def test_memory_store_prune_different_agents(memory: backstay.Store) -> None:
    for iteration in range(5):
        save(memory, "agent-1", iteration)
        save(memory, "agent-2", iteration)
    prune(memory, "agent-1", 2)
    assert (count(memory, "agent-1"), count(memory, "agent-2")) == (2, 5)


# strategies


def recorded(store: backstay.Store, strategy: backstay.Strategy, *, tool: bool, iterations: int = 6) -> list[int]:
    """The iterations that a run of this strategy records on the way, its end left out."""
    found: list[int] = []
    with store.run("agent-1", strategy=strategy) as run:
        for iteration in range(1, iterations + 1):
            kind = backstay.Event.TOOL_CALL_COMPLETE if tool else backstay.Event.LLM_RESPONSE
            run.call("called", lambda: "x", kind="tool" if tool else "llm", args=iteration)
            run.state["n"] = iteration
            if run.event(kind) is not None or run.step() is not None:
                found.append(iteration)
    return found


def test_strategy_every_n(memory: backstay.Store) -> None:
    with memory.run("agent-1", strategy=backstay.EveryN(3)) as run:
        made = []
        for iteration in range(1, 7):
            run.state["n"] = iteration
            made += [iteration] if run.step() is not None else []
    assert made == [3, 6]


def test_strategy_after_tool_call(memory: backstay.Store) -> None:
    assert recorded(memory, backstay.AfterToolCall(), tool=True) == [1, 2, 3, 4, 5, 6]
    with backstay.open("memory://") as other:
        assert recorded(other, backstay.AfterToolCall(), tool=False) == []


def test_strategy_never(memory: backstay.Store) -> None:
    assert recorded(memory, backstay.Never(), tool=True) == []
    with backstay.open("memory://") as other:
        assert recorded(other, backstay.Never(), tool=False) == []


# files


def test_file_store_save_creates_file(files: backstay.Store, tmp_path: Path) -> None:
    before = {path: path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file()}
    save(files, "agent-1", 1)
    after = {path: path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert after != before


def test_file_store_load_roundtrip(files: backstay.Store) -> None:
    id_ = save(files, "agent-1", 42).id
    loaded = files.find(id_)
    assert loaded.id == id_
    assert loaded.session_id == "agent-1"
    assert loaded.step == 42


def test_file_store_list_scans_directory(files: backstay.Store) -> None:
    for iteration in range(5):
        save(files, "agent-1", iteration)
    save(files, "agent-2", 0)
    assert count(files, "agent-1") == 5


def test_file_store_prune_deletes_old(files: backstay.Store) -> None:
    for iteration in range(10):
        save(files, "agent-1", iteration)
    assert prune(files, "agent-1", 3) == 7
    assert count(files, "agent-1") == 3


def test_file_store_nested_agent_dirs(files: backstay.Store, tmp_path: Path) -> None:
    save(files, "agent-a", 1)
    save(files, "agent-b", 1)
    with backstay.open(f"file://{tmp_path}/store") as again:
        assert {info.id for info in again.sessions()} == {"agent-a", "agent-b"}


def test_file_store_missing_dir_created(tmp_path: Path) -> None:
    nested = tmp_path / "deep" / "nested" / "store"
    with backstay.open(f"file://{nested}") as store:
        save(store, "agent-1", 1)
        assert nested.is_dir()
        assert count(store, "agent-1") == 1


# SQLite


def test_sqlite_open_creates_schema(tmp_path: Path) -> None:
    with backstay.open(f"sqlite:///{tmp_path}/test.db") as store:
        save(store, "agent-1", 1)


def test_sqlite_save_load_latest_roundtrip(sqlite: backstay.Store) -> None:
    save(sqlite, "agent-1", 5)
    latest = sqlite.session("agent-1").head()
    assert latest is not None
    assert latest.session_id == "agent-1"
    assert latest.step == 5


def test_sqlite_load_by_id(sqlite: backstay.Store) -> None:
    id_ = save(sqlite, "agent-1", 1).id
    loaded = sqlite.find(id_)
    assert loaded.id == id_
    assert loaded.session_id == "agent-1"


def test_sqlite_list_newest_first(sqlite: backstay.Store) -> None:
    for iteration in range(5):
        save(sqlite, "agent-1", iteration)
    save(sqlite, "agent-2", 0)
    points = list(sqlite.session("agent-1").log())
    assert len(points) == 5
    assert points[0].created_at >= points[1].created_at
    assert [point.step for point in points] == [4, 3, 2, 1, 0]


def test_sqlite_prune_keeps_n(sqlite: backstay.Store) -> None:
    for iteration in range(10):
        save(sqlite, "agent-1", iteration)
    assert prune(sqlite, "agent-1", 3) == 7
    assert count(sqlite, "agent-1") == 3


def test_sqlite_prune_isolates_agents(sqlite: backstay.Store) -> None:
    for iteration in range(5):
        save(sqlite, "agent-1", iteration)
        save(sqlite, "agent-2", iteration)
    prune(sqlite, "agent-1", 2)
    assert (count(sqlite, "agent-1"), count(sqlite, "agent-2")) == (2, 5)


def test_sqlite_nonexistent_returns_none(sqlite: backstay.Store) -> None:
    refuses(sqlite)


def test_sqlite_in_memory_works() -> None:
    with backstay.open("sqlite:///:memory:") as store:
        save(store, "mem-agent", 7)
        assert store.session("mem-agent").checkpoint().step == 7


def test_sqlite_concurrent_saves(sqlite: backstay.Store) -> None:
    for iteration in range(50):
        save(sqlite, "agent-1", iteration)
    assert count(sqlite, "agent-1") == 50
