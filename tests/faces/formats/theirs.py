"""How the predecessors read what is written for them: their structs field by field, their SQL, their choice of latest.

Written from what is known of them, without Backstay's own readers: a file that both of ours agree on may still be one
that they refuse.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_CHRONO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_LATEST = """SELECT id, agent_id, iteration, conversation, metadata, created_at
             FROM checkpoints WHERE agent_id = ?1 ORDER BY created_at DESC LIMIT 1"""
_PRUNE = """DELETE FROM checkpoints WHERE agent_id = ?1 AND id NOT IN
            (SELECT id FROM checkpoints WHERE agent_id = ?1 ORDER BY created_at DESC LIMIT ?2)"""


def _is(value: Any, *kinds: type) -> None:
    assert type(value) in kinds, value


def _time(value: Any) -> str:
    _is(value, str)
    assert _CHRONO.fullmatch(value), value
    text: str = value
    return text


def _texts(value: Any) -> None:
    assert all(type(key) is str and type(text) is str for key, text in value.items()), value


def smooth_message(message: dict[str, Any]) -> None:
    _is(message["id"], str)
    assert message["role"] in ("system", "user", "assistant", "tool")
    _is(message["content"], str)
    _time(message["timestamp"])
    for name in ("tool_call_id", "tool_name", "reasoning_content"):
        _is(message.get(name), str, type(None))
    for call in message.get("tool_calls", []):
        _is(call["id"], str)
        _is(call["name"], str)
        assert "arguments" in call
    for image in message.get("images", []):
        _is(image["url"], str)
        _is(image.get("detail"), str, type(None))


def smooth_conversation(data: bytes) -> list[dict[str, Any]]:
    conversation = json.loads(data)
    _is(conversation["id"], str)
    _is(conversation["max_context_tokens"], int)
    for message in conversation["messages"]:
        smooth_message(message)
    messages: list[dict[str, Any]] = conversation["messages"]
    return messages


def smooth_file(path: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = json.loads(path.read_bytes())
    _is(checkpoint["id"], str)
    assert (path.parent.name, path.stem) == (checkpoint["agent_id"], checkpoint["id"])
    smooth_conversation(json.dumps(checkpoint["conversation"]).encode())
    assert 0 <= checkpoint["iteration"] < 2**32
    _texts(checkpoint["metadata"])
    _time(checkpoint["created_at"])
    return checkpoint


def smooth_latest_file(folder: Path) -> dict[str, Any]:
    found = [smooth_file(path) for path in folder.glob("*.json")]
    newest = max(found, key=lambda one: one["created_at"].rstrip("Z").ljust(30, "0"))
    assert sum(1 for one in found if one["created_at"] == newest["created_at"]) == 1
    return newest


def smooth_latest_row(path: Path, agent: str) -> dict[str, Any] | None:
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(_LATEST, (agent,)).fetchone()
        if row is None:
            return None
        _is(row[0], str)
        _is(row[3], bytes)
        _is(row[5], int)
        metadata = json.loads(row[4])
        _texts(metadata)
        return {"id": row[0], "iteration": row[2], "messages": smooth_conversation(row[3]), "metadata": metadata}


def smooth_prune_rows(path: Path, agent: str, keep: int) -> list[str]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(_PRUNE, (agent, keep))
        return [row[0] for row in connection.execute("SELECT id FROM checkpoints WHERE agent_id = ?", (agent,))]


def ccswarm_checkpoints(base: Path) -> dict[str, dict[str, Any]]:
    """All that its index lists, each loaded by the path in the index; every parent and fork among them."""
    found: dict[str, dict[str, Any]] = {}
    for id_, entry in json.loads((base / "index.json").read_bytes()).items():
        data = (base / entry["path"]).read_bytes()
        checkpoint = json.loads(data)
        assert (checkpoint["id"], checkpoint["session_id"]) == (id_, entry["session_id"])
        assert entry["size_bytes"] == len(data)
        assert _time(entry["created_at"]) == checkpoint["created_at"]
        told = checkpoint["metadata"]
        _is(told["tasks_completed"], int)
        _is(told["token_count"], int, type(None))
        _is(told["context_compressed"], bool)
        _is(told["extra"], dict)
        found[id_] = checkpoint
    for checkpoint in found.values():
        assert checkpoint["metadata"]["parent_checkpoint_id"] in (None, *found)
    if (base / "forks.json").exists():
        registry = json.loads((base / "forks.json").read_bytes())
        for fork_id, fork in registry["forks"].items():
            assert fork["fork_id"] == fork_id
            assert fork["checkpoint_id"] in found
            assert fork["status"] in ("Creating", "Active", "Merged", "Abandoned", "Archived")
            assert fork_id in registry["children"][fork["parent_session_id"]]
            _time(fork["created_at"])
    return found


def ccswarm_latest(base: Path, session: str) -> dict[str, Any]:
    found = [one for one in ccswarm_checkpoints(base).values() if one["session_id"] == session]
    return max(found, key=lambda one: one["created_at"].rstrip("Z").ljust(30, "0"))
