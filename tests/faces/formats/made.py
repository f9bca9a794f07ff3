"""Folders as the four systems leave them, made from what is known of their formats and not with Backstay's own writers.

Python's JSON is theirs but for floats: `raw("1e16")` puts a number into the text exactly as it stands.
"""

from __future__ import annotations

import json
import re
import sqlite3
from hashlib import sha256
from pathlib import Path
from typing import Any

MARK = "\ue000"
T0 = 1_775_000_000
CALL = {"id": "tc_1", "name": "bash", "arguments": '{"command":"ls"}'}


def raw(number: str) -> str:
    return f"{MARK}{number}{MARK}"


def text(value: Any, *, compact: bool = False, sort: bool = False) -> str:
    style: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    written = json.dumps(value, ensure_ascii=False, sort_keys=sort, **style)
    return re.sub(f'"{MARK}(.*?){MARK}"', r"\1", written)


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, and what links say."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = b"-> " + bytes(path.readlink())
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


# ccswarm


def uuid(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


def ccswarm_checkpoint(number: int, session: str = "s", **changes: Any) -> dict[str, Any]:
    state = changes.pop("state", {"agent": "backend", "cost": raw("0.00001"), "tasks": [number]})
    told = {
        "tasks_completed": number,
        "token_count": None if number == 0 else 100 * number,
        "state_size_bytes": len(text(state, compact=True).encode()),
        "context_compressed": False,
        "parent_checkpoint_id": changes.pop("parent", None),
        "extra": changes.pop("extra", {}),
    }
    return {
        "id": uuid(number),
        "session_id": session,
        "label": None,
        "created_at": f"2026-01-28T02:{number:02d}:07.123456789Z",
        "state": state,
        "context": None,
        "metadata": told,
    } | changes


def ccswarm(base: Path, checkpoints: list[dict[str, Any]], *, index: bool = True) -> Path:
    entries: dict[str, Any] = {}
    for one in checkpoints:
        path = f"sessions/{one['session_id']}/{one['id']}.json"
        size = put(base / path, text(one)).stat().st_size
        entries[one["id"]] = {key: one[key] for key in ("id", "session_id", "label", "created_at")}
        entries[one["id"]] |= {"path": path, "size_bytes": size}
    if index:
        put(base / "index.json", text(entries))
    return base


def fork(checkpoint: str, name: str | None, session: str = "s", **changes: Any) -> dict[str, Any]:
    return {
        "fork_id": uuid(900),
        "parent_session_id": session,
        "checkpoint_id": checkpoint,
        "branch_name": name,
        "created_at": "2026-01-28T02:31:59.000001Z",
        "status": "Active",
        "metadata": {},
    } | changes


# ARES


def ares_step(step: int, session: str = "s", **changes: Any) -> dict[str, Any]:
    ttl = {"ttl_secs": changes.pop("ttl_secs")} if "ttl_secs" in changes else {}
    status = changes.pop("status", "InProgress")
    return (
        {
            "id": f"{session}-{step}",
            "agent_name": "researcher",
            "session_id": session,
            "step": step,
            "messages": [{"role": "user", "content": f"naïve {number} — 日本 \u0001"} for number in range(step + 1)],
            "tool_calls": [],
            "partial_results": [],
            "timestamp": T0 + step,
        }
        | changes
        | ttl
        | {"status": status}
    )


def ares(base: Path, steps: list[dict[str, Any]], *, compact: bool = False, pointer: bool = True) -> Path:
    for one in steps:
        put(base / f"{one['session_id']}_{one['step']}.json", text(one, compact=compact))
        if pointer:
            put(base / f"{one['session_id']}_latest.json", f"{one['session_id']}_{one['step']}.json")
    return base


# Continuum


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    digest = sha256(text(record, compact=True, sort=True).encode()).hexdigest()
    return record | {"_checksum": digest, "_version": "1.0"}


def continuum_checkpoint(number: int, session: str = "s", **changes: Any) -> dict[str, Any]:
    record = {
        "checkpoint_id": f"{number:08x}",
        "session_id": session,
        "created_at": f"2026-05-14T10:15:00.{number:09d}Z",
        "trigger": "manual",
        "iteration": number,
        "messages": [{"content": f"said {at} 😀", "role": "user"} for at in range(number)],
        "tool_calls_pending": [],
        "tool_results": None,
        "tokens_used": 100 * number,
        "cost_estimate": raw("0.00001"),
        "resume_hint": None,
    } | changes
    return sealed(record)


def continuum_file(base: Path, one: dict[str, Any], saved: str = "20260514_101500") -> Path:
    folder = base / str(one["session_id"]) / "checkpoints"
    return put(folder / f"cp_{saved}_{one['checkpoint_id']}.json", text(one, sort=True))


def continuum(base: Path, checkpoints: list[dict[str, Any]]) -> Path:
    before: Path | None = None
    for one in checkpoints:
        path = continuum_file(base, one)
        latest = path.parent / "latest.json"
        if before is not None:
            put(path.parent / "latest.json.backup", before.read_bytes())
        latest.unlink(missing_ok=True)
        latest.symlink_to(path.name)
        before = path
    return base


# smooth


def said(number: int, role: str = "user", **more: Any) -> dict[str, Any]:
    return {
        "id": uuid(500 + number),
        "role": role,
        "content": f"said {number}: ✓",
        **more,
        "timestamp": f"2026-04-03T18:00:{number:02d}.000000100Z",
    }


def smooth_checkpoint(number: int, agent: str = "agent-1", **changes: Any) -> dict[str, Any]:
    messages = changes.pop("messages", [said(at) for at in range(number)])
    return {
        "id": uuid(number),
        "agent_id": agent,
        "conversation": {"id": uuid(700), "messages": messages, "max_context_tokens": 100000},
        "iteration": number,
        "metadata": {"phase": "execute"},
        "created_at": f"2026-04-03T18:{number:02d}:01.300Z",
    } | changes


def smooth(base: Path, checkpoints: list[dict[str, Any]]) -> Path:
    for one in checkpoints:
        put(base / one["agent_id"] / f"{one['id']}.json", text(one))
    return base


SCHEMA = """CREATE TABLE checkpoints (
            id TEXT PRIMARY KEY,
            agent_id TEXT NOT NULL,
            iteration INTEGER NOT NULL,
            conversation BLOB NOT NULL,
            metadata TEXT DEFAULT '{}',
            created_at INTEGER NOT NULL
        )"""


def smooth_rows(checkpoints: list[dict[str, Any]], seconds: int | None = None) -> list[tuple[Any, ...]]:
    return [
        (
            one["id"],
            one["agent_id"],
            one["iteration"],
            text(one["conversation"], compact=True).encode(),
            text(one["metadata"], compact=True),
            T0 + one["iteration"] if seconds is None else seconds,
        )
        for one in checkpoints
    ]


def smooth_database(path: Path, rows: list[tuple[Any, ...]], *, wal: bool = False) -> sqlite3.Connection:
    """The connection is left open: closing it would tidy the log away."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    if wal:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(SCHEMA)
    connection.execute("CREATE INDEX idx_checkpoints_agent ON checkpoints(agent_id, created_at DESC)")
    connection.executemany("INSERT OR REPLACE INTO checkpoints VALUES(?, ?, ?, ?, ?, ?)", rows)
    return connection
