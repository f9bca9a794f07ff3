"""Which rows of a thread: those to list, those to keep, those that a run made. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from backstay.adapters.langgraph.lines import Thread
from backstay.adapters.langgraph.rows import Entries, Held, held
from backstay.adapters.langgraph.sharing import stray_writes_of
from backstay.bookkeeping import checkpoint_of
from backstay.port import CheckpointRow


def checkpoints(thread: Thread, asked: dict[str, Any], before: str | None) -> Iterator[tuple[Held, list[str]]]:
    """The checkpoints of a thread, newest first: the last row that holds each, and its writes that lie elsewhere."""
    is_early_enough = _earlier_than(thread, before)

    def is_wanted(own: Held) -> bool:
        return bool(own.of) and asked.get("checkpoint_id") in (None, own.of) and is_early_enough(own)

    last: dict[str, Held] = {}
    strays: dict[str, list[str]] = {}
    for row in thread.rows(asked.get("checkpoint_ns")):
        if row.is_stray:
            strays.setdefault(checkpoint_of(row.id), []).append(row.id)
        last.setdefault(row.of, row)
        if row.id == row.of:
            newest = last.pop(row.of)
            if is_wanted(row):
                yield newest, strays.pop(row.of, [])
    # Of these only writes are left, after a prune.
    for row in last.values():
        if is_wanted(row):
            yield row, []


def _earlier_than(thread: Thread, before: str | None) -> Callable[[Held], bool]:
    """Which checkpoints came before this one, in the order of the store."""
    if before is None:
        return lambda _: True
    cursor = thread.trace(before)[0]
    if cursor is None:  # no longer there; its id still says roughly when it was
        return lambda own: own.of < before
    born: dict[str, int | None] = {}

    def when(row: Held, ns: str | None) -> int | None:
        """When the step was put that this one was made in, of a graph around or inside its own."""
        parents = row.metadata.get("parents")
        step = parents.get(ns) if isinstance(parents, dict) else None
        if not isinstance(step, str):
            return None
        if step not in born:
            found = thread.trace(step)[0]
            born[step] = None if found is None else found.born
        return born[step]

    around = thread.about(cursor)

    def is_earlier(own: Held) -> bool:
        if own.ns != cursor.ns:
            # Graphs write in the background, so that a step inside another may be on disk before that one. What is
            # earlier is then said by the steps that they belong to.
            inside, outside = when(own, cursor.ns), when(around, own.ns)
            if inside is not None:
                return inside < cursor.born
            if outside is not None:
                return own.born <= outside
        return own.born < cursor.born

    return is_earlier


def made_by(runs: Collection[str], rows: Mapping[str, CheckpointRow]) -> list[str]:
    """The rows of the checkpoints that these runs made."""
    found = [row for kept in rows.values() if (row := held(kept)) is not None]
    gone = {row.of for row in found if str(row.metadata.get("run_id")) in runs}
    return [row.id for row in found if row.of in gone]


def outdated(thread: Thread, _: Mapping[str, CheckpointRow]) -> list[str]:
    """The rows that `keep_latest` does not keep."""
    rows = list(thread.rows(None))
    newest: dict[str, Held] = {}
    for row in rows:
        ns = row.ns or ""
        if row.of and (ns not in newest or row.born > newest[ns].born):
            newest[ns] = row
    kept = {row.of for row in newest.values()}
    return [row.id for row in rows if row.of not in kept and checkpoint_of(row.id) not in kept]


def stranded(thread: Thread, runs: Collection[str]) -> list[tuple[str, str, Entries]]:
    """Writes of other checkpoints that lie on top of what these runs made: namespace, checkpoint and writes."""
    rows = list(thread.rows(None))
    gone = {row.of for row in rows if str(row.metadata.get("run_id")) in runs}
    return [
        (row.ns or "", checkpoint_of(row.id), stray_writes_of(thread.state(row.id)))
        for row in reversed(rows)
        if row.is_stray and row.of in gone and checkpoint_of(row.id) not in gone
    ]
