"""Delta channels: each checkpoint holds the whole of what LangGraph would gather from its ancestors.

LangGraph keeps the value of a DeltaChannel at its snapshots only; in between it walks the parents of a checkpoint and
replays their writes. Here the seed and the writes since are part of every checkpoint's state, so that retention,
restore, fork and export move them with it, and people see them. A list that only grows costs what was added.

| the channel holds | its key in the state | `lg.delta` says of it |
|---|---|---|
| a list | seed and writes in one list | `seed`: its items' count; `writes`: task and count of each (None: one item) |
| anything else | a dict merged as most reducers do, to look at | `base`: the seed; `raw`: task, value of each write |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from backstay.adapters.langgraph.placement import is_inner
from backstay.adapters.langgraph.rows import MINE, in_order
from backstay.adapters.langgraph.sharing import writes_of
from backstay.model import StateDict

Notes = dict[str, dict[str, Any]]
Write = tuple[str, Any]  # task, value
_COUNTERS = "counters_since_delta_snapshot"


def notes_of(state: StateDict) -> Notes:
    """What a state says of its delta channels."""
    found: Notes = state.get(MINE, {}).get("delta", {})
    return found


def gathered(
    parent: StateDict, versions: Mapping[str, Any], given: Collection[str], metadata: Mapping[str, Any]
) -> tuple[StateDict, Notes]:
    """The delta channels of a checkpoint that is given without them: those of its parent, and the parent's writes."""
    known, counters = notes_of(parent), metadata.get(_COUNTERS) or {}
    names = [
        name for name in versions if name not in given and (name in counters or name in known) and not is_inner(name)
    ]
    if not names:
        return {}, {}
    writes: dict[str, list[Write]] = {name: [] for name in names}
    for _, task, _, channel, value in in_order(writes_of(parent)):
        if channel in writes:
            writes[channel].append((task, value))
    values: StateDict = {}
    notes: Notes = {}
    for name in names:
        note = known.get(name)
        if note is None and name not in parent and not writes[name]:
            continue  # never written
        values[name], notes[name] = _extended(parent.get(name), note, writes[name], has_seed=name in parent)
    return values, notes


def _extended(
    value: Any, note: dict[str, Any] | None, new: list[Write], *, has_seed: bool
) -> tuple[Any, dict[str, Any]]:
    if note is None:
        note = _first_note(value, new, has_seed=has_seed)
        value = value if has_seed else [] if "writes" in note else None
    if not new:
        return value, note
    if "writes" in note:
        counts = [[task, len(item) if isinstance(item, list) else None] for task, item in new]
        items = [one for _, item in new for one in (item if isinstance(item, list) else [item])]
        return value + items, {**note, "writes": note["writes"] + counts}
    return _merged(value, [item for _, item in new]), {**note, "raw": note["raw"] + list(map(list, new))}


def _first_note(value: Any, new: list[Write], *, has_seed: bool) -> dict[str, Any]:
    if has_seed:
        return {"seed": len(value), "writes": []} if type(value) is list else {"base": value, "raw": []}
    first = new[0][1]
    is_item = type(first) is dict and ("role" in first or "lc" in first)  # a message by itself
    return {"seed": None, "writes": []} if type(first) is list or is_item else {"raw": []}


def _merged(value: Any, new: Iterable[Any]) -> Any:
    """A dict as most reducers leave it: later keys win, None removes one. It is shown; nothing is built from it."""
    for item in new:
        if type(item) is dict and type(value) in (dict, type(None)):
            both = {**(value or {}), **item}
            value = {key: held for key, held in both.items() if held is not None}
        else:
            value = item
    return value


def history(state: StateDict, channel: str, revive: Callable[[str, Any], Any]) -> tuple[list[Any], list[Write]] | None:
    """The seed of a channel (no item if it has none) and its writes, oldest first; None if the state does not say."""
    note = notes_of(state).get(channel)
    if note is None:
        return None
    if "raw" in note:
        seed = [revive(channel, note["base"])] if "base" in note else []
        return seed, [(task, revive(channel, value)) for task, value in note["raw"]]
    items, at = revive(channel, state[channel]), note["seed"] or 0
    seed = [] if note["seed"] is None else [items[:at]]
    writes: list[Write] = []
    for task, count in note["writes"]:
        writes.append((task, items[at] if count is None else items[at : at + count]))
        at += 1 if count is None else count
    return seed, writes
