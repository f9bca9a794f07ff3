"""Which rows of a thread: those to list, those to keep, those that a run made. Nothing is written here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from holdfast.adapters.langgraph.lines import Held, Thread, checkpoint_of, held
from holdfast.backend import Row


def checkpoints(thread: Thread, asked: dict[str, Any], before: str | None) -> Iterator[tuple[Held, list[str]]]:
    """The checkpoints of a thread, newest first: the last row that holds each, and its writes that lie elsewhere."""
    cursor = None if before is None else thread.trace(before)[0]

    def is_wanted(row: Held) -> bool:
        if not row.of or asked.get("checkpoint_id") not in (None, row.of):
            return False
        # Where the cursor is no longer there, its id still says roughly when it was.
        return before is None or (row.of < before if cursor is None else row.born < cursor.born)

    last: dict[str, Held] = {}
    strays: dict[str, list[str]] = {}
    for row in thread.rows(asked.get("checkpoint_ns")):
        if row.is_stray:
            strays.setdefault(checkpoint_of(row.id), []).append(row.id)
        last.setdefault(row.of, row)
        if row.id == row.of:
            newest = last.pop(row.of)
            if is_wanted(newest):
                yield newest, strays.pop(row.of, [])
    # Of these only writes are left, after a prune.
    for row in last.values():
        if is_wanted(row):
            yield row, []


def made_by(runs: Collection[str], rows: Mapping[str, Row]) -> list[str]:
    """The rows of the checkpoints that these runs made."""
    found = [row for kept in rows.values() if (row := held(kept)) is not None]
    gone = {row.of for row in found if str(row.metadata.get("run_id")) in runs}
    return [row.id for row in found if row.of in gone]


def outdated(thread: Thread, _: Mapping[str, Row]) -> list[str]:
    """The rows that `keep_latest` does not keep."""
    rows = list(thread.rows(None))
    newest: dict[str, Held] = {}
    for row in rows:
        ns = row.ns or ""
        if row.of and (ns not in newest or row.born > newest[ns].born):
            newest[ns] = row
    kept = {row.of for row in newest.values()}
    parents = {row.of: row.parent for row in rows if row.id == row.of}
    for row in newest.values():
        kept |= _delta_ancestors(thread, row, parents)
    return [row.id for row in rows if row.of not in kept and checkpoint_of(row.id) not in kept]


def _delta_ancestors(thread: Thread, row: Held, parents: Mapping[str, str | None]) -> set[str]:
    """What the delta channels of a checkpoint are rebuilt from: its ancestors, back to one that holds the value."""
    row = thread.about(row)
    channels = set(row.metadata.get("counters_since_delta_snapshot") or ()) - set(thread.state(row.id))
    kept: set[str] = set()
    parent = row.parent
    while channels and parent is not None and parent in parents and parent not in kept:
        kept.add(parent)
        found = thread.trace(parent)[0]
        channels -= set() if found is None else set(thread.state(found.id))
        parent = parents[parent]
    return kept
