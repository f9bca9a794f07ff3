"""The unit tests of sh_layer2's checkpoint writer (Continuum), written down once more: same name, same steps.

`CheckpointWriter::new(path)` keeps files in a folder, and so does the store here. docs/predecessors.md has their calls
beside ours.
"""

from __future__ import annotations

from pathlib import Path

import backstay


def test_checkpoint_writer_creation(tmp_path: Path) -> None:
    with backstay.open(f"file://{tmp_path}/store"):
        assert (tmp_path / "store").exists()


def test_save_and_load_checkpoint(tmp_path: Path) -> None:
    with backstay.open(f"file://{tmp_path}/store") as store:
        session = store.session("a1b2c3d4")
        state = {"messages": [{"role": "user", "content": "test"}], "tool_calls_pending": [], "tool_results": None}
        used = backstay.Usage(tokens_in=100, cost=0.01)
        saved = session.commit(state, trigger="manual", step=1, usage=used)
        loaded = store.session("a1b2c3d4").head()
        assert loaded is not None
        assert loaded.id == saved.id
        assert loaded.step == 1
        assert loaded.state == state
