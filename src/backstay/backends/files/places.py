"""Where the rows of one kind stand in a journal: sorted keys in arrays, a few bytes a row instead of the row."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backstay.port import JournalKey

_NO_PARENT = -1


class Places(Mapping[Any, Any]):
    """Where the rows of one kind stand, by sorted keys of one or several numbers; opens a row when it is asked for."""

    def __init__(self, width: int, open_row: Callable[[Any, int, int | None], Any]) -> None:
        self._keys = [array("Q") for _ in range(width)]
        self._at = array("Q")
        self._parents = array("q")
        self._open = open_row

    def _key(self, index: int) -> Any:
        keys = self._keys
        return keys[0][index] if len(keys) == 1 else tuple([column[index] for column in keys])

    def _find(self, key: Any) -> tuple[int, bool]:
        size = len(self._at)
        if not size or self._key(size - 1) < key:
            return size, False
        if len(self._keys) == 1:
            column = self._keys[0]
            index = bisect_left(column, key)
            return index, column[index] == key
        index = bisect_left(range(size), key, key=self._key)
        return index, self._key(index) == key

    def put(self, key: Any, at: int, parent: int | None = None) -> None:
        """A row stands there now."""
        index, there = self._find(key)
        if there:
            self._at[index], self._parents[index] = at, _NO_PARENT if parent is None else parent
            return
        for column, part in zip(self._keys, key if isinstance(key, tuple) else (key,), strict=True):
            column.insert(index, part)
        self._at.insert(index, at)
        self._parents.insert(index, _NO_PARENT if parent is None else parent)

    def discard(self, key: Any) -> None:
        """Forget a row, or all calls under a journal."""
        if len(self._keys) > 1 and len(key) < len(self._keys):
            gone = self._under(key)
        else:
            index, there = self._find(key)
            gone = range(index, index + there)
        for column in (*self._keys, self._at, self._parents):
            del column[gone.start : gone.stop]

    def at(self, key: Any) -> int | None:
        """Where a row stands."""
        index, there = self._find(key)
        return self._at[index] if there else None

    def under(self, at: JournalKey) -> list[Any]:
        """The keys of all calls under a journal."""
        return [self._key(index) for index in self._under(at)]

    def _under(self, at: JournalKey) -> range:
        return range(self._find((*at, 0))[0], self._find((at[0], at[1] + 1, 0))[0])

    def page(self, after: Any, before: Any, limit: int) -> list[Any]:
        """Keys upwards from behind one, or downwards from before another."""
        low = 0 if after is None else sum(self._find(after))
        high = len(self._at) if before is None else self._find(before)[0]
        found = (
            range(low, min(high, low + limit)) if before is None else range(high - 1, max(low, high - limit) - 1, -1)
        )
        return [self._key(index) for index in found]

    def last(self) -> int:
        """The largest key of one number; 0 if there is none."""
        return self._keys[0][-1] if self._at else 0

    def children(self) -> dict[int, list[int]]:
        """Who rests on whom."""
        found: dict[int, list[int]] = {}
        for key, parent in zip(self._keys[0], self._parents, strict=True):
            found.setdefault(parent, []).append(key)
        return found

    def __getitem__(self, key: Any) -> Any:
        index, there = self._find(key)
        if not there:
            raise KeyError(key)
        parent = self._parents[index]
        return self._open(key, self._at[index], None if parent == _NO_PARENT else parent)

    def __contains__(self, key: object) -> bool:
        return self._find(key)[1]

    def __iter__(self) -> Iterator[Any]:
        return map(self._key, range(len(self._at)))

    def __len__(self) -> int:
        return len(self._at)


class Journals(Mapping[JournalKey, Mapping[int, Any]]):
    """Calls by their journal."""

    def __init__(self, calls: Places) -> None:
        self._calls = calls

    def __getitem__(self, at: JournalKey) -> Mapping[int, Any]:
        return _Calls(self._calls, at)

    def __iter__(self) -> Iterator[JournalKey]:
        return iter(dict.fromkeys([key[:2] for key in self._calls]))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Calls(Mapping[int, Any]):
    """The calls under one journal by their number."""

    def __init__(self, calls: Places, at: JournalKey) -> None:
        self._calls, self._under = calls, at

    def __getitem__(self, n: int) -> Any:
        return self._calls[*self._under, n]

    def __iter__(self) -> Iterator[int]:
        return iter([key[2] for key in self._calls.under(self._under)])

    def __len__(self) -> int:
        return len(self._calls.under(self._under))
