"""A state as a tree for a page: keys, values in short, and what is below them; as deep and wide as anyone reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backstay.model import counted
from backstay.shapes.text import brief, safe

_DEPTH, _ITEMS, _CHARS = 6, 60, 200
_ALL = 500  # nodes of one page


class TreeNode(NamedTuple):
    """A key, its value in short, and what is below it."""

    key: str
    text: str
    below: list[TreeNode]
    more: int = 0
    is_open: bool = False


def tree_of(state: Mapping[Any, Any]) -> list[TreeNode]:
    """The nodes of a state."""
    return _below(list(state.items()), 0, [_ALL])[0]


def _below(entries: list[tuple[Any, Any]], depth: int, left: list[int]) -> tuple[list[TreeNode], int]:
    found = []
    for key, value in entries[:_ITEMS]:
        if left[0] <= 0:
            break
        left[0] -= 1
        name = safe(key) if isinstance(key, str) else f"[{brief(key)}]"
        inner = _entries(value)
        if inner and depth < _DEPTH:
            noun = "key" if isinstance(value, Mapping) else "item"
            below, more = _below(inner, depth + 1, left)
            is_open = depth == 0 and len(inner) <= 8  # noqa: PLR2004 - a few are seen at once
            found.append(TreeNode(name, counted(len(inner), noun), below, more, is_open))
        else:
            found.append(TreeNode(name, brief(value, chars=_CHARS), []))
    return found, len(entries) - len(found)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []
