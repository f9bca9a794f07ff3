"""The shapes of `--json`: each a dict with the same keys every time, listed and explained in `SHAPES`.

A command that lists prints one object a line (JSON Lines), one that shows prints one object. Everything is ASCII, so
that no text in it can act on a terminal. A value that JSON has no form for is an object with one key that
begins with `$`. docs/cli.md is made from `SHAPES`, and tests hold what the commands print against it.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from backstay.model import Damaged, Usage
from backstay.shapes.files import spelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backstay.difference import Change, Diff, ItemChange
    from backstay.face.run_status import RunStatus
    from backstay.listing import FileDiff
    from backstay.model import Call, Checkpoint, SessionInfo, Wait

_USAGE = {
    "tokens_in": "number",
    "tokens_out": "number",
    "cost": "number",
    "tasks_completed": "number",
    "extra": "object",
}
_CHECKPOINT = {
    "session": "text",
    "id": "text",
    "branch": "text",
    "parent": "text or null",
    "sequence": "number",
    "step": "number or null",
    "label": "text or null",
    "trigger": "text",
    "status": "text",
    "reason": "text or null",
    "agent": "text or null",
    "created_at": "time",
    "usage": "usage",
    "total_usage": "usage",
    "metadata": "object",
    "resume_hint": "text or null",
    "restored_from": "text or null",
    "digest": "text",
    "size_bytes": "number",
    "summary": "text",
}
_CALL = {
    "id": "text",
    "name": "text",
    "key": "text or null",
    "kind": "text",
    "args": "any",
    "status": "text",
    "result": "any",
    "error": "text or null",
    "started_at": "time",
    "ended_at": "time or null",
    "parent": "text or null",
}
_BRANCH = {
    "name": "text",
    "is_tag": "true or false",
    "status": "text or null",
    "reason": "text or null",
    "run": "text or null",
    "head": "checkpoint",
}
_CHANGE = {"path": "list", "kind": "text", "before": "any", "after": "any"}

# Name of a shape: its keys and what stands there. A word that is itself a name of a shape stands for it.
SHAPES: dict[str, dict[str, str]] = {
    "usage": _USAGE,
    "session": {
        "id": "text",
        "title": "text or null",
        "agent": "text or null",
        "owner": "text or null",
        "status": "text",
        "reason": "text or null",
        "crashed": "true or false",
        "waiting": "true or false",
        "waits": "list of wait",
        "branches": "number",
        "checkpoints": "number",
        "last_step": "number or null",
        "usage": "usage",
        "metadata": "object",
        "created_at": "time",
        "updated_at": "time",
    },
    "checkpoint": _CHECKPOINT,
    "logged": {**_CHECKPOINT, "refs": "list of text", "calls": "list of made", "diff": "diff or null"},
    "made": {"id": "text", "name": "text", "kind": "text", "status": "text"},
    "shown": {**_CHECKPOINT, "refs": "list of text", "state": "object", "calls": "list of call"},
    "call": _CALL,
    "branch": _BRANCH,
    "forked": {**_BRANCH, "into": "text or null"},
    "standing": {
        "session": "text",
        "branch": "text",
        "run": "text",
        "crashes": "number",
        "head": "checkpoint or null",
        "calls": "list of call",
        "in_doubt": "list of text",
    },
    "change": _CHANGE,
    "item": {"index_before": "number or null", "index_after": "number or null", **_CHANGE, "changes": "list of change"},
    "part": {
        "part": "text",
        "kind": "text",
        "added": "number",
        "removed": "number",
        "changed": "number",
        "items": "list of item",
        "changes": "list of change",
    },
    "diff": {"a": "text", "b": "text", "parts": "list of part", "files": "list of changed_file or null"},
    "changed_file": {"path": "text", "change": "text"},
    "file": {
        "path": "text",
        "kind": "text",
        "size": "number",
        "mode": "text",
        "digest": "text or null",
        "target": "text or null",
        "author": "text",
        "mark": "text",
    },
    "du": {
        "session": "text",
        "checkpoints": "number",
        "versions": "number",
        "forgotten": "number",
        "logical_bytes": "number",
        "stored_bytes": "number",
        "largest": "list of object",
    },
    "found": {
        "session": "text",
        "checkpoint": "text",
        "sequence": "number",
        "step": "number or null",
        "created_at": "time",
        "path": "list",
        "role": "text or null",
        "tool": "text or null",
        "text": "text",
    },
    "status": {
        "store": "text",
        "backend": "text",
        "sessions": "number",
        "checkpoints": "number",
        "logical_bytes": "number",
        "stored_bytes": "number",
        "crashed": "list of text",
        "in_doubt": "number",
        "waiting": "list of wait",
        "problems": "list of unrecorded",
    },
    "unrecorded": {"at": "number", "session": "text", "what": "text"},
    "stats": {
        "sessions": "number",
        "checkpoints": "number",
        "logical_bytes": "number",
        "stored_bytes": "number",
        "ratio": "number",
        "file_stored_bytes": "number",
        "largest": "list of weight",
    },
    "weight": {"session": "text", "checkpoints": "number", "logical_bytes": "number", "written_bytes": "number"},
    "verified": {
        "ok": "true or false",
        "checked": "number",
        "problems": "list of problem",
        "repaired": "list of text",
        "forgotten": "number",
    },
    "problem": {
        "what": "text",
        "session": "text or null",
        "checkpoints": "list of text",
        "cost": "text",
        "remedy": "text",
    },
    "pruned": {
        "dry_run": "true or false",
        "checkpoints": "object",
        "sessions": "list of text",
        "freed_bytes": "number",
        "files": "number",
    },
    "forgotten": {
        "session": "text",
        "dry_run": "true or false",
        "files": "list of object",
        "elsewhere": "list of text",
        "freed_bytes": "number",
    },
    "wait": {
        "session": "text",
        "branch": "text",
        "agent": "text or null",
        "owner": "text or null",
        "id": "text or null",
        "name": "text",
        "key": "text or null",
        "what": "text",
        "args": "any",
        "since": "time",
        "until": "time or null",
        "reason": "text",
    },
    "answered": {"session": "text", "branch": "text", "name": "text", "answer": "text"},
    "sent": {"session": "text", "branch": "text", "name": "text"},
    "cancelled": {"session": "text", "branch": "text", "reason": "text", "cancelled": "true or false"},
    "restored": {"session": "text", "branch": "text", "before": "text", "head": "checkpoint"},
    "bisected": {
        "session": "text",
        "first_bad": "checkpoint",
        "calls": "list of text",
        "prompt": "text or null",
        "paths": "list of text",
    },
    "blamed": {
        "line": "number",
        "text": "text",
        "checkpoint": "text",
        "step": "number or null",
        "author": "text",
        "call": "text or null",
        "prompt": "text or null",
    },
    "rewound": {
        "session": "text",
        "branch": "text",
        "before": "text",
        "head": "checkpoint or null",
        "files": "object",
        "git_moved": "list of text or null",
    },
    "deleted": {
        "dry_run": "true or false",
        "session": "text",
        "what": "text",
        "name": "text",
        "checkpoints": "number",
        "freed_bytes": "number",
    },
    "exported": {
        "path": "text",
        "system": "text or null",
        "sessions": "list of text",
        "files": "list of text",
        "notes": "list of text",
    },
    "imported": {
        "dry_run": "true or false",
        "system": "text or null",
        "sessions": "list of text",
        "checkpoints": "number",
        "extended": "object",
        "renamed": "object",
        "skipped": "list of text",
        "in_doubt": "list of text",
        "not_taken": "list of trouble",
        "notes": "list of trouble",
    },
    "trouble": {"where": "text", "why": "text"},
    "place": {"store": "text", "backend": "text", "made": "true or false", "hooks": "text or null"},
    "watched": {"session": "text", "exit_code": "number", "checkpoints": "number", "problem": "text or null"},
    "served": {"url": "text", "store": "text", "read_only": "true or false"},
    "script": {"shell": "text", "script": "text"},
    "told": {"chapter": "number", "title": "text", "holds": "text"},
    "finding": {"check": "text", "verdict": "text", "detail": "text"},
    "topic": {"topic": "text", "text": "text"},
}


def dump(value: Any) -> str:
    """One line of JSON."""
    import json  # noqa: PLC0415 - only what prints JSON waits for it

    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def usage(value: Usage) -> dict[str, Any]:
    """A usage."""
    return {
        "tokens_in": value.tokens_in,
        "tokens_out": value.tokens_out,
        "cost": plain(value.cost),
        "tasks_completed": value.tasks_completed,
        "extra": plain(dict(value.extra)),
    }


def session(info: SessionInfo, waits: Sequence[Wait] = ()) -> dict[str, Any]:
    """A session's line."""
    return {
        "id": info.id,
        "title": info.title,
        "agent": info.agent,
        "owner": info.owner,
        "status": info.status.value,
        "reason": info.reason,
        "crashed": info.crashed,
        "waiting": info.waiting,
        "waits": [wait(each) for each in waits],
        "branches": info.branches,
        "checkpoints": info.checkpoints,
        "last_step": info.last_step,
        "usage": usage(info.usage),
        "metadata": plain(dict(info.metadata)),
        "created_at": time(info.created_at),
        "updated_at": time(info.updated_at),
    }


def checkpoint(point: Checkpoint) -> dict[str, Any]:
    """A checkpoint without its state."""
    return {
        "session": point.session_id,
        "id": point.id,
        "branch": point.branch,
        "parent": point.parent_id,
        "sequence": point.sequence,
        "step": point.step,
        "label": point.label,
        "trigger": point.trigger,
        "status": point.status.value,
        "reason": point.reason,
        "agent": point.agent,
        "created_at": time(point.created_at),
        "usage": usage(point.usage),
        "total_usage": usage(point.total_usage),
        "metadata": plain(dict(point.metadata)),
        "resume_hint": point.resume_hint,
        "restored_from": point.restored_from,
        "digest": point.digest,
        "size_bytes": point.size_bytes,
        "summary": point.summary,
    }


def call(made: Call) -> dict[str, Any]:
    """A journaled call."""
    return {
        "id": made.id,
        "name": made.name,
        "key": made.key,
        "kind": made.kind,
        "args": plain(made.args),
        "status": made.status,
        "result": plain(made.result),
        "error": made.error,
        "started_at": time(made.started_at),
        "ended_at": None if made.ended_at is None else time(made.ended_at),
        "parent": made.parent,
    }


def standing(session_id: str, found: RunStatus) -> dict[str, Any]:
    """A branch whose run has not ended."""
    return {
        "session": session_id,
        "branch": found.branch,
        "run": "live" if found.live else "crashed",
        "crashes": found.crashes,
        "head": None if found.head is None else checkpoint(found.head),
        "calls": [call(each) for each in found.calls],
        "in_doubt": [each.id for each in found.in_doubt],
    }


def wait(found: Wait) -> dict[str, Any]:
    """One thing that a session waits for."""
    return {
        "session": found.session_id,
        "branch": found.branch,
        "agent": found.agent,
        "owner": found.owner,
        "id": found.id,
        "name": found.name,
        "key": found.key,
        "what": found.what,
        "args": plain(found.args),
        "since": time(found.since),
        "until": None if found.until is None else time(found.until),
        "reason": found.reason,
    }


def diff(found: Diff) -> dict[str, Any]:
    """A difference, part by part."""
    return {
        "a": found.a,
        "b": found.b,
        "parts": [
            {
                "part": str(part.name),
                "kind": part.kind,
                "added": part.stat().added,
                "removed": part.stat().removed,
                "changed": part.stat().changed,
                "items": [_item(item) for item in part.items],
                "changes": [_change(change) for change in part.changes],
            }
            for part in found.parts
        ],
        "files": None if found.files is None else _changed_files(found.files),
    }


def _changed_files(found: FileDiff) -> list[dict[str, Any]]:
    kinds = [("added", found.added), ("removed", found.removed), ("changed", found.changed), ("mode", found.mode)]
    rows = sorted([(path, kind) for kind, paths in kinds for path in paths])
    return [{"path": spelled(path), "change": kind} for path, kind in rows]


def _item(item: ItemChange) -> dict[str, Any]:
    index = item.index_before if item.index_after is None else item.index_after
    return {
        "index_before": item.index_before,
        "index_after": item.index_after,
        "path": [index],
        "kind": item.kind,
        "before": plain(item.before),
        "after": plain(item.after),
        "changes": [_change(change) for change in item.changes],
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "path": [plain(step) for step in change.path],
        "kind": change.kind,
        "before": plain(change.before),
        "after": plain(change.after),
    }


def time(at: dt.datetime) -> str:
    """A time in UTC, as RFC 3339 writes it."""
    return at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """Any value that a state can hold, in what JSON has."""
    if value is None or isinstance(value, bool | str):
        return _text(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else {"$int": hex(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {_text(key): plain(each) for key, each in value.items()}
        return {"$dict": [[plain(key), plain(each)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return {"$set": sorted([plain(each) for each in value], key=dump)}
    return {f"${_kind(value)}": _words(value)}


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair is nothing that JSON could carry


def _kind(value: Any) -> str:
    return "damaged" if isinstance(value, Damaged) else type(value).__name__.lower()


def _words(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return f"{value.total_seconds()!r} s"
    if isinstance(value, Damaged):
        return value.what
    return str(value) if isinstance(value, Decimal | UUID) else repr(value)
