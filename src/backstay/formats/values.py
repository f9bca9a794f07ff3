"""States of systems that keep any JSON value, and perhaps opaque bytes beside it, where Backstay keeps an object."""

from __future__ import annotations

from typing import Any

from backstay.model import StateDict


def to_state(state: Any, context: bytes | None) -> StateDict:
    """A value and the bytes beside it as one state: an object is taken as it is where that can be told apart again."""
    beside = {} if context is None else {"context": context}
    return {"state": state, **beside} if _needs_a_name(state, context) else {**state, **beside}


def from_state(state: StateDict) -> tuple[Any, bytes | None]:
    """The same the other way round."""
    context = state.get("context")
    if not isinstance(context, bytes):
        context = None
    rest = state if context is None else {key: value for key, value in state.items() if key != "context"}
    named = set(rest) == {"state"} and _needs_a_name(rest["state"], context)
    return (rest["state"] if named else rest), context


def _needs_a_name(state: Any, context: bytes | None) -> bool:
    """True where the state cannot be the whole: it is no object, or one that would be taken for something else."""
    while type(state) is dict:
        if context is not None and "context" in state:
            return True
        if set(state) != {"state"}:
            return False
        state = state["state"]
    return True
