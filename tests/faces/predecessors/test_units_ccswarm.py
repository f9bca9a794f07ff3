"""The unit tests of ccswarm's checkpoint store, written down once more: same name, same steps, Backstay's calls.

`CheckpointStore::new(path)` keeps files in a folder, and so does the store here. docs/predecessors.md has their calls
beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import backstay


@pytest.fixture
def store(tmp_path: Path) -> Iterator[backstay.Store]:
    with backstay.open(f"file://{tmp_path}/checkpoints") as opened:
        yield opened


def test_checkpoint_creation(store: backstay.Store) -> None:
    checkpoint = store.session("session-1").commit({"key": "value"}, label="test checkpoint")
    assert checkpoint.session_id == "session-1"
    assert checkpoint.label is not None


def test_checkpoint_store_save_load(store: backstay.Store) -> None:
    id_ = store.session("session-1").commit({"state": "active"}).id
    loaded = store.find(id_)
    assert loaded.session_id == "session-1"
    assert loaded.state["state"] == "active"


def test_checkpoint_store_list(store: backstay.Store) -> None:
    store.session("session-1").commit({})
    store.session("session-1").commit({})
    store.session("session-2").commit({})
    assert len(list(store.session("session-1").log())) == 2
    assert sum(info.checkpoints for info in store.sessions()) == 3
