"""Lists that a state holds already are kept once: a subgraph is given its caller's messages, and gives them all back.

| what holds the list again | kept as |
|---|---|
| a write to a channel that begins with what the channel holds | `{"lc": "begins", "count": n, "more": […]}` |
| the input of a subgraph that begins with what its caller holds | the channel itself, named in `lg.start` |

Items are told by identity: the codec gives the same plain data for a message that it met before.
"""

from __future__ import annotations

from operator import is_
from typing import Any

from backstay.adapters.langgraph.rows import Entries
from backstay.bookkeeping import WRITES_PART
from backstay.model import StateDict

START = "__start__"
_FEW = 4  # not worth a reference


def _begins(value: Any, held: Any) -> bool:
    if type(value) is not list or type(held) is not list:
        return False
    return _FEW <= len(held) <= len(value) and all(map(is_, held, value))


def referred(entries: Entries, state: StateDict) -> Entries:
    """Writes, with what their channels hold already left out."""
    return [_referred(entry, state.get(entry[3])) for entry in entries]


def _referred(entry: list[Any], held: Any) -> list[Any]:
    path, task, at, channel, value = entry
    if not _begins(value, held):
        return entry
    return [path, task, at, channel, {"lc": "begins", "count": len(held), "more": value[len(held) :]}]


def writes_of(state: StateDict) -> Entries:
    """The writes that a state holds, whole again."""
    return [_whole(entry, state) for entry in state.get(WRITES_PART, [])]


def _whole(entry: list[Any], state: StateDict) -> list[Any]:
    path, task, at, channel, value = entry
    if type(value) is not dict or value.get("lc") != "begins" or "more" not in value:
        return entry
    return [path, task, at, channel, state[channel][: value["count"]] + value["more"]]


def hoisted(inner: StateDict, given: StateDict, base: StateDict) -> tuple[StateDict, StateDict]:
    """The input of a subgraph apart: what stays in it, and the lists that its caller's state begins."""
    start = inner.get(START)
    if type(start) is not dict or "lc" in start:
        return inner, {}
    shared = {name: value for name, value in start.items() if name not in given and _begins(value, base.get(name))}
    if not shared:
        return inner, {}
    return {**inner, START: {name: value for name, value in start.items() if name not in shared}}, shared


def unhoisted(inner: StateDict, names: list[str], state: StateDict) -> StateDict:
    """The input of a subgraph whole again."""
    return {**inner, START: {**inner[START], **{name: state[name] for name in names}}} if names else inner
