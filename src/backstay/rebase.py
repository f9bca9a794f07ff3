"""Changes made again on a newer state: what one writer did to a part that the other left alone. Pure.

Two writers began with `base`; one made `mine` of it, the other `theirs`. What only one of them changed is as that one
left it; lists that both only added to have both additions, theirs first. What both changed is a conflict even where
both say the same: two writers who each count from 3 to 4 have counted once too little.
"""

from __future__ import annotations

from typing import Any

from backstay.codec import encode_canonical, show_path
from backstay.model import StateDict

Path = tuple[Any, ...]


class _Absent:
    """The mark for a key that is not there."""


_ABSENT = _Absent()


def rebase(base: StateDict, mine: StateDict, theirs: StateDict) -> tuple[StateDict, list[str]]:
    """My changes on top of theirs; and the places that both changed, which then are as theirs."""
    conflicts: list[str] = []
    merged: StateDict = _dicts(base, mine, theirs, (), conflicts)
    return merged, conflicts


def _values(base: Any, mine: Any, theirs: Any, path: Path, conflicts: list[str]) -> Any:
    if _same(base, mine):
        return theirs
    if _same(base, theirs):
        return mine
    begun = {} if base is _ABSENT else base
    if type(begun) is type(mine) is type(theirs) is dict:
        return _dicts(begun, mine, theirs, path, conflicts)
    begun = [] if base is _ABSENT else base
    if type(begun) is type(mine) is type(theirs) is list:
        count = len(begun)
        if _same(mine[:count], begun) and _same(theirs[:count], begun):
            return [*theirs, *mine[count:]]
    conflicts.append(show_path(path))
    return theirs


def _dicts(
    base: dict[Any, Any], mine: dict[Any, Any], theirs: dict[Any, Any], path: Path, conflicts: list[str]
) -> dict[Any, Any]:
    merged: dict[Any, Any] = {}
    for key in dict.fromkeys([*theirs, *mine]):
        sides = (base.get(key, _ABSENT), mine.get(key, _ABSENT), theirs.get(key, _ABSENT))
        value = _values(*sides, (*path, key), conflicts)
        if value is not _ABSENT:
            merged[key] = value
    return merged


def _same(a: Any, b: Any) -> bool:
    """True if two values would be stored alike: 1, 1.0 and True are three values."""
    if a is b:
        return True
    if a is _ABSENT or b is _ABSENT:
        return False
    return encode_canonical(a) == encode_canonical(b)
