"""What an adapter keeps of its framework among a user's things, so that what is shown to people can leave it out.

BackstaySaver keeps LangGraph's own data under `lg`, in the state (and beside it, under `lg:…`, what would be compared
again and again within it) and in the metadata of a checkpoint. The writes of
tasks are rows of their own with the trigger `writes`, on top of their checkpoint (`<checkpoint>+1`), or where the line
ends (`<checkpoint>!…`, early and late ones). People see checkpoints: the last row of writes says how one stands.

The hooks of Claude Code keep under `claude_code` how far its transcript was read, and the line of each message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from backstay.model import Checkpoint, StateDict

PART = "lg"
WRITES_PART, INNER_PART = PARTS = ("lg:writes", "lg:inner")
WRITES = "writes"
TRANSCRIPT_PART = "claude_code"
_TRANSCRIPT_KEYS = frozenset({"agent", "answer", "lines", "read", "reply", "transcript"})
_SUFFIX = re.compile(r"(?:\+\d+|![0-9a-f]{16})\Z")


def checkpoint_of(row_id: str) -> str:
    """The checkpoint that a row's id names."""
    return _SUFFIX.sub("", row_id)


def visible(state: Mapping[str, Any]) -> StateDict:
    """A state without what an adapter keeps in it for its framework."""
    kept, read = state.get(PART), state.get(TRANSCRIPT_PART)
    ours: set[str] = set()
    if isinstance(kept, dict) and ("cp" in kept or "stray" in kept):
        ours |= {PART, *PARTS}
    if isinstance(read, dict) and read and read.keys() <= _TRANSCRIPT_KEYS:
        ours.add(TRANSCRIPT_PART)
    return {key: value for key, value in state.items() if key not in ours}


def is_writes(point: Checkpoint) -> bool:
    """True for a row that only records writes of a framework's tasks."""
    return point.trigger == WRITES and PART in point.metadata


def owner_of(point: Checkpoint) -> str:
    """The id of the checkpoint whose state a row of writes holds."""
    return str(point.metadata[PART].get("of", checkpoint_of(point.id)))


def told(points: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
    """Rows of a line, newest first, as people are told of them: checkpoints only, each as it stood last.

    A row of writes stays where its checkpoint was pruned.
    """
    last: Checkpoint | None = None
    for point in points:
        if is_writes(point):
            if last is None or owner_of(last) != owner_of(point):
                yield from [] if last is None or not owner_of(last) else [last]
                last = point
            continue
        if last is not None and owner_of(last) != point.id:
            yield last
            last = None
        yield _as_told(point, last)
        last = None
    if last is not None and owner_of(last):
        yield last


def _as_told(point: Checkpoint, last: Checkpoint | None) -> Checkpoint:
    if last is not None:
        point = msgspec.structs.replace(point, status=last.status, reason=last.reason)
    if PART not in point.metadata or point.parent_id is None:
        return point
    return msgspec.structs.replace(point, parent_id=point.metadata[PART].get("parent", checkpoint_of(point.parent_id)))


def overtaken(heads: Mapping[str, Checkpoint]) -> set[str]:
    """Branches of invocations that another one, of the same moment, has left behind: all but the last to go on."""
    groups: dict[str, set[str]] = {}
    for name, head in heads.items():
        first = head.metadata[PART].get("beside") if PART in head.metadata else None
        if isinstance(first, str):
            groups.setdefault(first, {first}).add(name)
    behind: set[str] = set()
    for names in groups.values():
        there = [name for name in names if name in heads]
        behind.update(there)
        behind.discard(max(there, key=lambda name: heads[name].sequence))
    return behind
