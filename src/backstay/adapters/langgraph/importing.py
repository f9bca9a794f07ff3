"""A checkpoint of another saver, put again with its parent and its writes."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import CheckpointTuple


def import_tuple(saver: Any, tup: CheckpointTuple) -> None:
    """Put what another saver gave into this one."""
    asked = tup.config["configurable"]
    parent = None if tup.parent_config is None else tup.parent_config["configurable"]["checkpoint_id"]
    here = {"thread_id": asked["thread_id"], "checkpoint_ns": asked.get("checkpoint_ns", "")}
    stored = saver.put({"configurable": {**here, "checkpoint_id": parent}}, tup.checkpoint, tup.metadata, {})
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in tup.pending_writes or ():
        by_task.setdefault(task, []).append((channel, value))
    # Their paths are not to be had; where they came in another order than that of the tasks, their places are.
    in_order = list(by_task) == sorted(by_task)
    for at, (task, writes) in enumerate(by_task.items()):
        saver.put_writes(stored, writes, task, "" if in_order else f"{at:06}")
