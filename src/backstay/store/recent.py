"""Heads that were read before, kept as plain bytes: reading one again costs its row and one decoding.

A head is kept once it has been read twice, and follows the commits of its Store, delta by delta. What is kept is used
only where the row that the branch leads to is still the one it was read at: that row is read and verified every time.
All heads of a Store together take at most BUDGET_BYTES; those read least recently go first, and those of a session go
when it is deleted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from backstay.delta import Record, rebuild, unshared
from backstay.model import StateDict
from backstay.port import CheckpointRow, LaneRow, SessionRow
from backstay.store.reading import Loaded

BUDGET_BYTES = 16 * 1024 * 1024

_MOST_DELTAS = 64  # then the next load begins again with one record
_ENTRY_BYTES = 1024  # of a head itself


class RecentHead:
    """The head of a branch, or a tag: where it was read and, from the second time on, `records` that give its state."""

    __slots__ = ("_pieces", "loaded", "records", "size_bytes")

    def __init__(self, loaded: Loaded, *, again: bool) -> None:
        self.loaded = msgspec.structs.replace(loaded, state={})
        self.records = [unshared(loaded.state)] if again else []
        self._pieces: dict[bytes, bytes] = {}
        self.size_bytes = _ENTRY_BYTES + sum([record.size_bytes for record in self.records])

    def is_at(self, session: SessionRow, row: CheckpointRow) -> bool:
        """True if this is the head that was read."""
        return row.digest == self.loaded.row.digest and session.uid == self.loaded.session.uid

    def read(self, session: SessionRow, lane: LaneRow | None, row: CheckpointRow) -> Loaded:
        """The state again, with the rows as they are now."""
        state: StateDict = rebuild(self.records, self._pieces).state
        return msgspec.structs.replace(self.loaded, session=session, lane=lane, row=row, state=state)

    def followed(self, loaded: Loaded, delta: Record, pieces: Mapping[bytes, bytes]) -> RecentHead | None:
        """The head after a commit on it; None if it has become too long."""
        if len(self.records) > _MOST_DELTAS:
            return None
        after = RecentHead(loaded, again=False)
        after.records = [*self.records, delta]
        needed = {ref: pieces[ref] for ref in delta.refs if ref in pieces}
        after._pieces = self._pieces | needed
        after.size_bytes = self.size_bytes + delta.size_bytes + sum(map(len, needed.values()))
        return after


class RecentHeads:
    """The heads of one Store. Threads may share it. `heads` is by session and name, for those who look and go."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget = budget_bytes
        self.heads: OrderedDict[tuple[str, str], RecentHead] = OrderedDict()
        self._mutex = threading.Lock()
        self.size_bytes = 0

    def saw(self, name: str, loaded: Loaded) -> None:
        """A head was read in full."""
        key = loaded.session.id, name
        known = self.heads.get(key)
        again = known is not None and known.is_at(loaded.session, loaded.row)
        if again and loaded.row.size_bytes > self._budget:
            return
        self._keep(key, RecentHead(loaded, again=again))

    def moved(
        self, name: str, head: RecentHead, delta: Record | None, pieces: Mapping[bytes, bytes], loaded: Loaded | None
    ) -> None:
        """A commit of this Store went on from a head, or from another where `loaded` is None."""
        key = head.loaded.session.id, name
        after = None if delta is None or loaded is None else head.followed(loaded, delta, pieces)
        if after is None:
            self._drop(key)
        else:
            self._keep(key, after)

    def drop(self, session: str) -> None:
        """The session was deleted, or something in it."""
        for key in [key for key in list(self.heads) if key[0] == session]:
            self._drop(key)

    def _keep(self, key: tuple[str, str], head: RecentHead) -> None:
        with self._mutex:
            before = self.heads.pop(key, None)
            self.heads[key] = head
            self.size_bytes += head.size_bytes - (0 if before is None else before.size_bytes)
            while self.size_bytes > self._budget:
                self.size_bytes -= self.heads.popitem(last=False)[1].size_bytes

    def _drop(self, key: tuple[str, str]) -> None:
        with self._mutex:
            head = self.heads.pop(key, None)
            self.size_bytes -= 0 if head is None else head.size_bytes
