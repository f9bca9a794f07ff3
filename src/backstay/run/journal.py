"""The journal of one run as it is held in memory: which recorded call is being asked for, and which are still unasked.

A call is told by the call it is made in, its name, its key, and how often that was asked since the last recorded
boundary. Nothing is written here; the run writes, and tells the journal. The caller holds the run's lock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import sha256

from backstay.errors import InvalidInputError
from backstay.port import CallRow
from backstay.port.rows import CUT_OFF, wait_slot
from backstay.rules.refusals import in_doubt

Slot = tuple[str | None, str, str | None]  # the call it is made in, its name, its key
Ident = tuple[str | None, str, str | None, int]


class Journal:
    """Recorded calls since the last recorded boundary, those asked for, and those in flight."""

    def __init__(self, calls: Iterable[CallRow], *, token: int) -> None:
        self._token = token
        self._doubtful: dict[str, CallRow] = {}
        self._recorded: dict[Ident, CallRow] = {}
        self._by_id: dict[str, Ident] = {}
        self._counts: dict[Slot, int] = {}
        self._asked: set[str] = set()
        self._in_flight: dict[Slot, str] = {}
        for call in calls:
            self.note(call)

    def note(self, call: CallRow) -> None:
        """A call as it is recorded now."""
        ident = call.ident
        self._recorded[ident] = call
        self._by_id[call.id] = ident
        if in_doubt(call, self._token):
            self._doubtful[call.id] = call
        elif self._doubtful:
            self._doubtful.pop(call.id, None)

    def begin(self, slot: Slot) -> tuple[int, CallRow | None]:
        """How often this was asked before, and the call that is recorded for it, if any.

        InvalidInputError if it could not be told from one in flight.
        """
        if slot in self._in_flight:
            _, name, key = slot
            name = name.removeprefix(wait_slot(""))
            which = f"call {name!r} without a key" if key is None else f"call {name!r} with key {key!r}"
            message = f"{which} is in flight already, and the two could not be told apart"
            raise InvalidInputError(message, hint="give each of the parallel calls a key of its own")
        nth = self._counts.get(slot, 0)
        return nth, self._recorded.get((*slot, nth))

    def start(self, slot: Slot, id_: str) -> None:
        """A call is being made."""
        self._in_flight[slot] = id_

    def flying(self, slot: Slot) -> str | None:
        """The id of the call that is being made there."""
        return self._in_flight.get(slot)

    def stop(self, slot: Slot) -> None:
        """It is no longer, whatever became of it."""
        self._in_flight.pop(slot, None)

    def answered(self, slot: Slot, id_: str) -> None:
        """The loop was given the outcome of a call: from now on it has been asked for."""
        self._asked.add(id_)
        self._counts[slot] = self._counts.get(slot, 0) + 1

    def id_of_model_call(self, ident: Ident) -> str:
        """An id for a model call, of which nothing is recorded before its answer.

        If it was cut off after calls were made inside it they are recorded as belonging to some id: when it is asked
        again it is that one, and those calls are not made twice. So the id begins with what tells the call.
        """
        begins = sha256(repr(ident).encode("utf-8", "surrogatepass")).hexdigest()[:8]
        orphaned = [call.parent for call in self._recorded.values()]
        found = [id_ for id_ in orphaned if id_ is not None and id_.startswith(begins) and id_ not in self._by_id]
        return found[0] if found else begins + secrets.token_hex(4)

    def is_empty(self) -> bool:
        """True if nothing is recorded since the last boundary."""
        return not self._recorded

    def is_busy(self) -> bool:
        """True if a call is being made."""
        return bool(self._in_flight)

    def in_flight(self, *, waits: bool = True) -> list[str]:
        """The names of the calls being made; without `waits`, of those that do something."""
        names = [name for _, name, _ in self._in_flight]
        return names if waits else [name for name in names if name != wait_slot(name[1:])]

    def row(self, id_: str) -> CallRow | None:
        """A recorded call by its id."""
        ident = self._by_id.get(id_)
        return None if ident is None else self._recorded[ident]

    def encloses(self, id_: str) -> bool:
        """True if a call with an outcome was made inside this one."""
        return any([call.parent == id_ and call.id not in self._doubtful for call in self._recorded.values()])

    def unasked(self) -> list[CallRow]:
        """Recorded calls that the loop has not asked for. A call made inside another belongs to that one.

        A stream that was cut off has no outcome that could be lost.
        """
        return [call for call in self._recorded.values() if call.status != CUT_OFF and not self._is_asked(call)]

    def _is_asked(self, call: CallRow) -> bool:
        at: CallRow | None = call
        while at is not None and at.id not in self._asked:
            outer = None if at.parent is None else self._by_id.get(at.parent)
            at = None if outer is None else self._recorded[outer]
        return at is not None

    def doubtful(self) -> list[CallRow]:
        """Recorded calls of which it is not known whether they happened."""
        return list(self._doubtful.values())

    def taken_in(self) -> None:
        """A boundary was recorded: what was asked for is history."""
        self._recorded.clear()
        self._doubtful.clear()
        self._by_id.clear()
        self._counts.clear()
        self._asked.clear()
