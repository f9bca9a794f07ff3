"""Items that go behind a list of a branch's state, whatever that state is: nothing else in it is looked at.

What is known of the head (its digests, and a private copy that only grows) is enough to write the next one. The state
itself is read where nothing is known yet, and where a keyframe is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backstay.delta import Known, Record, extend, item_key
from backstay.model import StateDict


class Appended:
    """What a caller appends: `items` to the list at `part`; of those with the same value at `unique`, one."""

    def __init__(self, part: str, items: list[Any], unique: str | None) -> None:
        self.part, self.items, self.unique = part, items, unique
        self._keys: set[object] = set()

    def fresh(self, known: Known | None, keys: KnownKeys) -> list[Any]:
        """The items that are not there yet."""
        if self.unique is None:
            return list(self.items)
        self._keys = keys.of(known, self.part, self.unique)
        found = []
        for item in self.items:
            key = item_key(item, self.unique)
            if key is None or key not in self._keys:
                found.append(item)
                if key is not None:
                    self._keys.add(key)
        return found

    def written(self, known: Known | None, keys: KnownKeys) -> None:
        """They are there now."""
        if self.unique is not None and known is not None:
            keys.keep(known, self.part, self.unique, self._keys)


class KnownKeys:
    """The values at a key of a list's items, for the state they were last looked up in: the next append needs them."""

    def __init__(self) -> None:
        # At most one. Who takes it out has it alone: a set that two appends fill would have items of neither's state.
        self._last: list[tuple[bytes, str, str, set[object]]] = []

    def of(self, known: Known | None, part: str, unique: str) -> set[object]:
        """A set of one's own."""
        try:
            last = self._last.pop()
        except IndexError:
            last = None
        if known is None:
            return set()
        if last is not None and last[:3] == (known.digest, part, unique):
            return last[3]
        items = known.shadow.get(part)
        found = [item_key(item, unique) for item in items] if isinstance(items, list) else []
        return {key for key in found if key is not None}

    def keep(self, known: Known, part: str, unique: str, keys: set[object]) -> None:
        """For the next one."""
        self._last[:] = [(known.digest, part, unique, keys)]


class Extension:
    """Items for the list of a state that is known; `load` reads it, if it is needed after all."""

    def __init__(self, part: str, items: list[Any], load: Callable[[], StateDict]) -> None:
        self.part, self.items, self._load = part, items, load

    def advance(self, known: Known) -> tuple[Record, dict[bytes, bytes], Known]:
        """As `delta.advance` gives it."""
        return extend(known, self.part, self.items)

    def whole(self) -> StateDict:
        """The state with these items."""
        state = self._load()
        return {**state, self.part: [*state.get(self.part, []), *self.items]}
