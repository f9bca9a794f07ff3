"""Lists that a state holds already are kept once: a subgraph is given its caller's messages, and gives them all back.

| what holds the list again | kept as |
|---|---|
| a write to a channel that begins with what the channel holds | `{"lc": "begins", "count": n, "more": […]}` |
| the input of a subgraph that begins with what its caller holds | the channel itself, named in `lg.start` |
| a list in a `Send`, which an agent gives each tool with all its state | the same with the `channel` it begins with |

Most items are told by identity: the codec gives the same plain data for a message that it met before.
"""

from __future__ import annotations

from typing import Any

from backstay.adapters.langgraph.codec import SEND
from backstay.adapters.langgraph.rows import MINE, Entries
from backstay.bookkeeping import WRITES_PART
from backstay.codec import encode_canonical
from backstay.model import StateDict

START, SENT = "__start__", "__pregel_tasks"
_FEW = 4  # not worth a reference


def _begins(value: Any, held: Any) -> bool:
    if type(value) is not list or type(held) is not list:
        return False
    return _FEW <= len(held) <= len(value) and all(map(_is_same, held, value))


def _is_same(held: Any, item: Any) -> bool:
    # True is not 1, so that what is only equal is looked at closely.
    return held is item or (held == item and encode_canonical(held) == encode_canonical(item))


def referred(entries: Entries, state: StateDict) -> Entries:
    """Writes, with what their channels hold already left out."""
    return [_referred(entry, state) for entry in entries]


def _referred(entry: list[Any], state: StateDict) -> list[Any]:
    path, task, at, channel, value = entry
    if channel == SENT:
        return [path, task, at, channel, _packed(value, state)]
    held: Any = state.get(channel)
    if not _begins(value, held):
        return entry
    return [path, task, at, channel, {"lc": "begins", "count": len(held), "more": value[len(held) :]}]


def writes_of(state: StateDict) -> Entries:
    """The writes that a state holds, whole again."""
    return [_whole(entry, state) for entry in state.get(WRITES_PART, [])]


def _whole(entry: list[Any], state: StateDict) -> list[Any]:
    path, task, at, channel, value = entry
    if channel == SENT:
        return [path, task, at, channel, _unpacked(value, state)]
    if type(value) is not dict or value.get("lc") != "begins" or "more" not in value:
        return entry
    return [path, task, at, channel, state[channel][: value["count"]] + value["more"]]


def stray_writes_of(state: StateDict) -> Entries:
    """The writes of another checkpoint that a state holds, whole again."""
    return [_whole(entry, state) for entry in state[MINE].get("stray", [])]


def sent(inner: StateDict, state: StateDict) -> StateDict:
    """Inner channels of a checkpoint, with what its other channels hold left out of what is sent."""
    return {**inner, SENT: _packed(inner[SENT], state)} if inner.get(SENT) else inner


def unsent(inner: StateDict, state: StateDict) -> StateDict:
    """What is sent whole again."""
    return {**inner, SENT: _unpacked(inner[SENT], state)} if inner.get(SENT) else inner


def _packed(value: Any, state: StateDict) -> Any:
    if type(value) is list and len(value) >= _FEW:
        for channel, held in state.items():
            if _begins(value, held):
                return {"lc": "begins", "channel": channel, "count": len(held), "more": value[len(held) :]}
    if type(value) is list:
        return [_packed(item, state) if type(item) is dict else item for item in value]
    if type(value) is dict and value.get("lc", SEND) == SEND:
        return {key: _packed(item, state) if type(item) in (dict, list) else item for key, item in value.items()}
    return value


def _unpacked(value: Any, state: StateDict) -> Any:
    if type(value) is list:
        return [_unpacked(item, state) if type(item) is dict else item for item in value]
    if type(value) is not dict:
        return value
    if value.get("lc") == "begins" and "channel" in value:
        return state[value["channel"]][: value["count"]] + value["more"]
    if value.get("lc", SEND) != SEND:
        return value
    return {key: _unpacked(item, state) if type(item) in (dict, list) else item for key, item in value.items()}


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
