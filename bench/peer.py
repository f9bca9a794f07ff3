"""The peer: LangGraph's SqliteSaver, given the same states.

Only `put` is called, once a step, with the state as channel values: less than a
LangGraph run does (that also writes each node's output), so the comparison errs
in the peer's favour. Optional: `installed()` says whether it is there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def installed() -> bool:
    """Whether the extra `bench` is there."""
    try:
        return importlib.util.find_spec("langgraph.checkpoint.sqlite") is not None
    except ModuleNotFoundError:
        return False


class Peer:
    """One SqliteSaver over its own file: WAL (the saver sets it), synchronous=FULL (sqlite3's default)."""

    name = "peer"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "peer.db"
        self._connection: sqlite3.Connection | None = None
        self._heads: dict[str, dict[str, Any]] = {}
        self._steps: dict[str, int] = {}
        # Imported by name at run time: the extra may be absent, for the type checker too.
        self._saver_type: Any = importlib.import_module("langgraph.checkpoint.sqlite").SqliteSaver
        self._empty_checkpoint: Any = importlib.import_module("langgraph.checkpoint.base").empty_checkpoint
        self._saver: Any = None

    def open(self) -> None:
        self._connection = sqlite3.connect(self.path, check_same_thread=False)
        self._saver = self._saver_type(self._connection)
        self._saver.setup()

    def save(self, session: str, state: dict[str, Any], new: bytes) -> None:  # noqa: ARG002 - the peer finds no delta
        config = self._heads.get(session) or {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        step = self._steps.get(session, -1) + 1
        checkpoint = self._empty_checkpoint()
        checkpoint["channel_values"] = state
        checkpoint["channel_versions"] = versions = dict.fromkeys(state, step + 1)
        self._heads[session] = self._saver.put(
            config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions
        )
        self._steps[session] = step

    def load(self, session: str) -> dict[str, Any]:
        found = self._saver.get_tuple({"configurable": {"thread_id": session, "checkpoint_ns": ""}})
        values: dict[str, Any] = found.checkpoint["channel_values"]
        return values

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._saver = None
