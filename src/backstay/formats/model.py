"""What the readers find, in the words they share: points, sessions, troubles; and how points become a tree.

A reader says what it knows of each checkpoint and in which order they were made as far as that can be told. `arrange`
turns that into branches: parents before children, whatever the clocks say; a point whose parent was not recorded comes
after the one made before it; the line that ends in the newest is `main`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from backstay.errors import InvalidInputError
from backstay.formats.dialect import DamagedError
from backstay.model import StateDict, Usage
from backstay.names import check_name

MAIN = "main"
_INT_BITS = 63


class Trouble(msgspec.Struct, frozen=True):
    """A file that was not taken in, or not all of it, and why."""

    where: str
    why: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.where}: {self.why}"


class PendingCall(msgspec.Struct, frozen=True):
    """A tool call that was asked for, and of which no outcome is known."""

    key: str | None
    name: str
    args: Any


class FoundPoint(msgspec.Struct, kw_only=True):
    """A checkpoint as it was found. `load` reads its state; `parent` is None where it was not recorded.

    `order` sorts points by when they were made. `total` is what had been used up to it. `leaf_name` names the branch
    that ends here. `timed` is False where the time was not told and is only a guess.
    """

    id: str
    order: tuple[Any, ...]
    at_us: int
    load: Callable[[], StateDict]
    where: str
    parent: str | None = None
    step: int | None = None
    label: str | None = None
    trigger: str = "import"
    status: str = "in_progress"
    reason: str | None = None
    agent: str | None = None
    total: Usage = Usage()
    resume_hint: str | None = None
    metadata: dict[str, Any] = {}
    branch: str = MAIN
    leaf_name: str | None = None
    timed: bool = True


class FoundSession(msgspec.Struct, kw_only=True):
    """A session ready to be taken in: points, parents first; branches; what was pending at the head of `main`."""

    id: str
    points: list[FoundPoint]
    heads: dict[str, str]
    pending: list[PendingCall] = []
    title: str | None = None


class Reading(msgspec.Struct):
    """All that a place holds. `notes` are what a person should know although nothing is missing."""

    sessions: list[FoundSession] = []
    troubles: list[Trouble] = []
    notes: list[Trouble] = []

    def trouble(self, where: str, why: object) -> None:
        """Something was not taken."""
        self.troubles.append(Trouble(where, str(why)))

    def note(self, where: str, why: str) -> None:
        """Something is worth knowing."""
        self.notes.append(Trouble(where, why))


class GivenFields:
    """The fields of an object, asked for by name and kind: what is missing or another thing is DamagedError."""

    def __init__(self, value: Mapping[str, Any], what: str = "") -> None:
        self._value = value
        self._what = what
        self._asked: set[str] = set()

    def text(self, name: str) -> str:
        """A text."""
        found: str = self._of(name, (str,), "a text")
        return found

    def maybe_text(self, name: str) -> str | None:
        """A text, null, or nothing at all."""
        return None if self._value.get(name) is None and self._note(name) else self.text(name)

    def whole(self, name: str, *, low: int = -(2**_INT_BITS), high: int = 2**64) -> int:
        """A whole number."""
        found: int = self._of(name, (int,), "a whole number")
        if not low <= found < high:
            raise DamagedError(f"{self._what}{name} is {str(found)[:40]}, which cannot be")
        return found

    def maybe_whole(self, name: str) -> int | None:
        """A whole number, null, or nothing at all."""
        return None if self._value.get(name) is None and self._note(name) else self.whole(name)

    def flag(self, name: str) -> bool:
        """True or false."""
        found: bool = self._of(name, (bool,), "true or false")
        return found

    def items(self, name: str) -> list[Any]:
        """A list."""
        found: list[Any] = self._of(name, (list,), "a list")
        return found

    def object(self, name: str) -> dict[str, Any]:
        """An object."""
        found: dict[str, Any] = self._of(name, (dict,), "an object")
        return found

    def maybe(self, name: str) -> Any:
        """Anything; None where it is not there."""
        self._note(name)
        return self._value.get(name)

    def value(self, name: str) -> Any:
        """Anything, but it must be there."""
        return self._of(name, (), "")

    def rest(self) -> dict[str, Any]:
        """The fields that were not asked for."""
        return {name: value for name, value in self._value.items() if name not in self._asked}

    def _note(self, name: str) -> bool:
        self._asked.add(name)
        return True

    def _of(self, name: str, kinds: tuple[type, ...], said: str) -> Any:
        self._note(name)
        if name not in self._value:
            raise DamagedError(f"{self._what}{name} is missing")
        found = self._value[name]
        if kinds and type(found) not in kinds:
            raise DamagedError(f"{self._what}{name} is not {said}")
        return found


def arrange(
    session: str, points: list[FoundPoint], reading: Reading, *, head: str | None = None
) -> FoundSession | None:
    """Points of one session as a tree; None if there are none, or the session cannot have that name."""
    try:
        check_name(session, "a session id")
    except InvalidInputError as error:
        for point in points:
            reading.trouble(point.where, error)
        return None
    if not points:
        return None
    points = _unique(sorted(points, key=lambda point: point.order), reading)
    placed = _in_order(points, reading)
    main = head if head is not None and any(point.id == head for point in placed) else placed[-1].id
    return FoundSession(id=session, points=placed, heads=_branches(placed, main))


def _unique(points: list[FoundPoint], reading: Reading) -> list[FoundPoint]:
    """Ids are names here: what cannot be one, or is there twice, gets another."""
    seen: set[str] = set()
    for point in points:
        wanted = point.id
        try:
            check_name(wanted, "a checkpoint id")
            name = wanted
        except InvalidInputError:
            name = wanted = f"imported-{len(seen) + 1}"
        number = 2
        while name in seen:
            name = f"{wanted[:240]}.{number}"
            number += 1
        if name != point.id:
            reading.note(point.where, f"its id {point.id[:80]!r} is called {name!r} here")
        point.id = name
        seen.add(name)
    return points


def _in_order(points: list[FoundPoint], reading: Reading) -> list[FoundPoint]:
    """Parents before children, otherwise by time; every point but the first gets a parent."""
    ids = {point.id for point in points}
    waiting: dict[str, list[FoundPoint]] = {}
    placed: list[FoundPoint] = []
    done: set[str] = set()

    def place(first: FoundPoint) -> None:
        ready = [first]
        while ready:
            point = ready.pop(0)
            if point.parent is None and placed:
                point.parent = placed[-1].id
            placed.append(point)
            done.add(point.id)
            ready += waiting.pop(point.id, [])

    for point in points:
        if point.parent is not None and point.parent not in ids:
            reading.note(point.where, f"its parent {point.parent[:80]!r} is not there any more")
            point.parent = None
        if point.parent is None or point.parent in done:
            place(point)
        else:
            waiting.setdefault(point.parent, []).append(point)
    for point in points:  # what is left waits for itself
        if point.id not in done:
            reading.note(point.where, "it is its own ancestor; it comes after the one made before it")
            waiting[point.parent or ""].remove(point)
            point.parent = None
            place(point)
    return placed


def _branches(points: list[FoundPoint], main: str) -> dict[str, str]:
    parents = {point.id for point in points} & {point.parent for point in points}
    by_id = {point.id: point for point in points}
    heads = {MAIN: main}
    for point in reversed(points):
        if point.id not in parents and point.id != main:
            heads[free_name(point.leaf_name or point.label or point.id, heads)] = point.id
    taken: set[str] = set()
    for branch, head in heads.items():
        at: str | None = head
        while at is not None and at not in taken:
            taken.add(at)
            by_id[at].branch = branch
            at = by_id[at].parent
    return heads


def free_name(wanted: str, taken: Mapping[str, str]) -> str:
    """A branch name like the one wanted that is not taken."""
    try:
        check_name(wanted, "a branch name")
    except InvalidInputError:
        wanted = "imported"
    name, number = wanted, 2
    while name in taken:
        name = f"{wanted[:240]} ({number})"
        number += 1
    return name
