"""The unit tests of ARES's checkpoint manager (0.7.5), written down once more: same name, same steps, Backstay's calls.

`CheckpointManager::new(path)` keeps files in a folder, and so does the store here. docs/predecessors.md has their calls
beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstay

STATE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there"}],
    "tool_calls": [{"tool_name": "search", "arguments": "query", "result": "found it", "success": True}],
    "partial_results": ["partial output"],
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[backstay.Store]:
    with backstay.open(f"file://{tmp_path}/checkpoints") as opened:
        yield opened


def save(store: backstay.Store, session: str, step: int, status: Any = None) -> backstay.Checkpoint:
    return store.session(session, agent="test-agent").commit(STATE, step=step, status=status)


def test_save_and_load(store: backstay.Store) -> None:
    save(store, "sess1", 0)
    loaded = store.session("sess1").head()
    assert loaded is not None
    assert loaded.session_id == "sess1"
    assert loaded.step == 0
    assert len(loaded.state["messages"]) == 2
    assert len(loaded.state["tool_calls"]) == 1


def test_load_nonexistent(store: backstay.Store) -> None:
    assert store.session("nonexistent").head() is None


def test_multiple_steps(store: backstay.Store) -> None:
    for step in range(3):
        save(store, "sess1", step)
    assert store.session("sess1").checkpoint().step == 2
    steps = [point.step for point in store.session("sess1").log()]
    assert steps == [2, 1, 0]


def test_cleanup(store: backstay.Store) -> None:
    save(store, "sess1", 0)
    save(store, "sess1", 1)
    assert store.session("sess1").head() is not None
    assert store.delete("sess1") >= 2
    assert store.session("sess1").head() is None


def test_separate_sessions(store: backstay.Store) -> None:
    save(store, "sess1", 0)
    save(store, "sess2", 0)
    store.delete("sess1")
    assert store.session("sess1").head() is None
    assert store.session("sess2").head() is not None


def test_checkpoint_status_serialization(store: backstay.Store) -> None:
    save(store, "sess1", 0, backstay.Status.FAILED("OOM"))
    loaded = store.session("sess1").checkpoint()
    assert (loaded.status, loaded.reason) == (backstay.Status.FAILED, "OOM")
