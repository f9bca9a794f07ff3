"""A state as a tree: keys, kinds and values, as deep and as wide as anyone reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backstay.cli.text import brief, cut, pad, safe, width

if TYPE_CHECKING:
    from backstay.cli.screen import Screen

_DEPTH = 4
_ITEMS = 20
_COLUMN = 16  # up to which names are lined up
_TEXT_CHARS = 2000


def tree(screen: Screen, state: Mapping[Any, Any], *, full: bool) -> None:
    """Print a state; with `full`, all of it."""
    _below(screen, list(state.items()), 0, full=full)


def _below(screen: Screen, entries: list[tuple[Any, Any]], depth: int, *, full: bool) -> None:
    shown = entries if full else entries[:_ITEMS]
    indent = "  " * depth
    names = [
        cut(safe(key if isinstance(key, str) else f"[{brief(key)}]"), max(12, screen.width // 3)) for key, _ in shown
    ]
    column = min(_COLUMN, max(map(width, names), default=0))
    for name, (_, each) in zip((pad(name, column) for name in names), shown, strict=True):
        inner = _entries(each)
        room = screen.width - len(indent) - width(name) - 2
        deeper = bool(inner) and (full or depth + 1 < _DEPTH) and not _fits(each, room)
        if deeper:
            screen.line(indent, (name, "cyan"), "  ", (_kind(each), "dim"))
            _below(screen, inner, depth + 1, full=full)
        else:
            text = brief(each, chars=_TEXT_CHARS * 500) if full else cut(brief(each), max(12, room))
            screen.line(indent, (name, "cyan"), "  ", text)
    if len(shown) < len(entries):
        screen.line(indent, (f"… {len(entries) - len(shown):,} more (--full)", "dim"))


def _fits(value: Any, room: int) -> bool:
    """True for a small container that reads better on one line."""
    if any(_entries(each) for _, each in _entries(value)[:5]):
        return False
    text = brief(value)
    return not text.endswith("…") and width(text) <= room and len(_entries(value)) <= _ITEMS // 2


def _entries(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    return []


def _kind(value: Any) -> str:
    noun = "keys" if isinstance(value, Mapping) else "items"
    return f"{type(value).__name__} of {len(value):,} {noun if len(value) != 1 else noun[:-1]}"
