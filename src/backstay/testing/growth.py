"""How the states of an agent change from step to step, as Hypothesis strategies that shrink to something readable.

A change is a small tuple (what, and with what); `apply` does it to a state in place. Most changes are ones that a
delta must get right and could get almost right: a list that becomes a tuple, 1 that becomes True, 0.0 that becomes
-0.0, a text that grows in its middle, an item edited where it stands.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from backstay.model import StateDict

Change = tuple[str, Any, Any]

_SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, False, True, 0, 1, -1, 2**70, 0.0, -0.0, 1.0, float("nan")),
        *("", "text", "\0", "\ud800", b"", b"\xff", datetime(2024, 2, 29, tzinfo=UTC)),
        *((), (1, [2]), {1: "a", "1": "b"}, {(1, 2): 3.5}, {1, "1"}, frozenset({"x"})),
    ]
)
_VALUES = st.one_of(
    _SCALARS,
    st.builds(
        lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "tool"]), st.text(max_size=6)
    ),
    st.lists(_SCALARS, max_size=3),
    st.dictionaries(st.sampled_from(["k", "l", ""]), _SCALARS, max_size=2),
    # Large enough to be kept apart, and the same again and again.
    st.builds(
        lambda letter, length: letter * length, st.sampled_from(["p", "q", "ü"]), st.sampled_from([64, 5_000, 40_000])
    ),
)
_KEYS = st.sampled_from(["messages", "scratch", "plan", "x/y", ""])
_AT = st.integers(0, 7)

CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.tuples(st.just("append"), st.lists(_VALUES, min_size=1, max_size=3), st.none()),
    st.tuples(st.just("append many"), st.sampled_from([1, 5, 66]), _SCALARS),
    st.tuples(st.just("trim"), _AT, st.none()),
    st.tuples(st.just("summarise"), _AT, st.text(max_size=6)),
    st.tuples(st.just("replace"), _AT, _VALUES),
    st.tuples(st.just("edit"), _AT, _VALUES),
    st.tuples(st.just("insert"), _AT, _VALUES),
    st.tuples(st.just("grow text"), st.sampled_from([1, 70, 6_000]), st.sampled_from("zé")),
    st.tuples(st.just("retype"), _AT, st.none()),
    st.tuples(st.just("set"), _KEYS, _VALUES),
    st.tuples(st.just("unset"), _KEYS, st.none()),
    st.tuples(st.just("nothing"), st.none(), st.none()),
)


def apply(change: Change, state: StateDict) -> None:
    """Do a change to a state; where there is nothing to change, nothing happens."""
    what, where, value = copy.deepcopy(change)  # a strategy may give the same list twice
    if what == "set":
        state[where] = value
    elif what == "unset":
        state.pop(where, None)
    elif what == "grow text":
        old = state.get("scratch")
        text = old if isinstance(old, str) else ""
        state["scratch"] = text[: len(text) // 2] + value * where + text[len(text) // 2 :]
    elif what == "append":
        _messages(state).extend(where)
    elif what == "append many":
        _messages(state).extend({"at": at, "is": value} for at in range(where))
    else:
        _change_item(what, _messages(state), where, value)


def _messages(state: StateDict) -> list[Any]:
    found = state.get("messages")
    if not isinstance(found, list):
        found = state["messages"] = []
    return found


def _change_item(what: str, items: list[Any], where: int | None, value: Any) -> None:
    if not items or where is None:
        return
    at = where % len(items)
    if what == "trim":
        del items[: at + 1]
    elif what == "summarise":
        items[: at + 1] = [{"role": "system", "content": value}]
    elif what == "replace":
        items[at] = value
    elif what == "insert":
        items.insert(at, value)
    elif what == "edit":
        if isinstance(items[at], dict):
            items[at]["content"] = value
        else:
            items[at] = {"was": items[at], "content": value}
    elif what == "retype":
        items[at] = _retyped(items[at])


def _retyped(value: Any) -> Any:
    """Something that Python calls equal, or nearly, and that is not the same."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return bool(value) if value in (0, 1) else float(value % 2**50)
    if isinstance(value, float):
        return -value
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, dict):
        return {key: _retyped(item) for key, item in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value
