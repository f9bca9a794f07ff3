"""The rows of one session: the mutable ones in memory, of the others only where their lines stand in the journal.

A row on the disk is read and verified when it is asked for. After lines were lost (`hole` is where the last of them
stood), a mutable row that was last written before them is unknown, and asking for it is a CorruptionError; a checkpoint
or call that stood in a lost line is Unreadable in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import msgspec

from backstay.backends.files.folder import place
from backstay.backends.files.lines import KIND_NAMES, KINDS, JournalLine, Put, body_of
from backstay.backends.files.places import Journals, Places
from backstay.errors import CorruptionError
from backstay.port import (
    Ask,
    CallRow,
    CheckpointRow,
    KeyframeRow,
    Kind,
    LaneRow,
    Records,
    Row,
    SessionRow,
    TagRow,
    Unreadable,
    View,
)
from backstay.port.row_codec import joined, marks_of, open_call, open_checkpoint, open_name, open_session
from backstay.port.tables import Tables

_LOST = 0  # where a row stands that was in a lost line: the place of the journal's first line
_MOST_LOST = 10_000
_UNNAMED = SessionRow("", b"", 0, 0)


class Rows(Tables):
    """See the module's text. `load` gives the line at a place, or None if it cannot be read any more."""

    def __init__(self, load: Callable[[int], JournalLine | None]) -> None:
        super().__init__(_UNNAMED)
        self._load = load
        openers: dict[Kind, Any] = {
            Kind.CHECKPOINT: self._checkpoint,
            Kind.KEYFRAME: self._keyframe,
            Kind.CALL: self._call,
        }
        self.places = {kind: Places(3 if kind is Kind.CALL else 1, opener) for kind, opener in openers.items()}
        self.checkpoints = cast("Any", self.places[Kind.CHECKPOINT])
        self.keyframes = cast("Any", self.places[Kind.KEYFRAME])
        self.calls = cast("Any", Journals(self.places[Kind.CALL]))
        self.refs = cast("Any", _Refs(self))
        self.uses: Counter[bytes] = Counter()
        self.released: set[bytes] = set()  # blobs that no row here needs any more and that nobody has looked at yet
        self.marked: dict[str, int] = {}
        self.session_put: Put | None = None
        self.written = 0  # rows and drops in the journal
        self.packed_at: dict[int, int] = {}  # how many rows stand in each packed line
        self.forgotten = False  # the journal holds a row that was dropped or replaced
        self.damage: list[str] = []
        self.hole = 0
        self._lost_after: int | None = None
        self._session_at = -1
        self.name_at: dict[str, int] = {}
        self._new: dict[str, Put] = {}
        self._opened: tuple[JournalLine | None, dict[Any, Put]] = (None, {})  # the line that was asked for last

    # taking in lines

    def take(self, line: JournalLine, at: int) -> None:
        """What the line at a place says; `settle` comes after the last one for now."""
        self.written += len(line.rows) + len(line.drops)
        if line.packed:
            self.packed_at[at] = len(line.rows)
        if self._lost_after is not None:
            added = [put.key for put in line.rows if put.kind == "checkpoint" and isinstance(put.key, int)]
            above = [key for key in added if key > self._lost_after]
            if above:
                self._mark_lost(min(above) - 1)
        for put in line.rows:
            kind = KINDS[put.kind]
            if kind is Kind.SESSION:
                self.session_put, self._session_at = put, at
            elif kind is Kind.NAME:
                self._new[str(put.key)] = put
                self.name_at[str(put.key)] = at
            else:
                self._place(kind, put, at)
        for name, key in line.drops:
            self._forget(KINDS[name], key)

    def _place(self, kind: Kind, put: Put, at: int) -> None:
        if kind is not Kind.CALL:
            self._release(kind, put.key)
            if put.refs:
                digests = _digests(put)
                self.uses.update(digests)
                self.released.difference_update(digests)
        if kind is Kind.CHECKPOINT and self.foreign and put.key in self.places[kind]:
            self.foreign = {id_: at for id_, at in self.foreign.items() if at != put.key}
        if put.foreign and put.id is not None and isinstance(put.key, int):
            self.foreign[put.id] = put.key
        self.places[kind].put(put.key, at, put.parent)

    def _forget(self, kind: Kind, key: Any) -> None:
        if kind is Kind.NAME:
            for table in (self._new, self.names, self.name_at, self.marked):
                table.pop(key, None)
        elif kind in self.places:
            self.forgotten = True
            if kind is not Kind.CALL:
                self._release(kind, key)
            if kind is Kind.CHECKPOINT and self.foreign:
                self.foreign = {id_: at for id_, at in self.foreign.items() if at != key}
            self.places[kind].discard(key)

    def _release(self, kind: Kind, key: Any) -> None:
        if key in self.places[kind]:
            self.forgotten = True
            for ref in self.refs.get((kind, key), ()) if self.uses else ():
                self.uses[ref] -= 1
                if self.uses[ref] <= 0:
                    del self.uses[ref]
                    self.released.add(ref)

    def settle(self, name: str, known: Sequence[Row] = ()) -> None:
        """Open the mutable rows that came last, in the journal of this name, but for those that are `known` already."""
        given = {row.name: row for row in known if isinstance(row, LaneRow | TagRow)}
        sessions = [row for row in known if isinstance(row, SessionRow)]
        put = self.session_put
        try:
            if sessions:
                self.session = sessions[-1]
            elif put is not None and self._session_at >= 0:
                row = open_session(body_of(put.body), id_=str(put.key), hidden=None)
                if place(row.id, hidden=row.hidden) != name:
                    raise self.corrupt("its journal has the name of another")
                self.session = row
        except (CorruptionError, msgspec.DecodeError):
            self._session_at = -1
            self.damage.append("the session's own row is damaged, or of another session")
        for branch, new in self._new.items():
            try:
                row_ = given.get(branch) or open_name(body_of(new.body), uid=self.session.uid, name=branch)
            except (CorruptionError, msgspec.DecodeError):
                self.name_at[branch] = -1
                self.names.pop(branch, None)
                self.damage.append(f"the row of {branch!r} is damaged")
                continue
            self.names[branch] = row_
            self.marked.pop(branch, None)
            if isinstance(row_, LaneRow) and (marks := marks_of(row_)):
                self.marked[branch] = marks
        self._new = {}

    # lost lines

    def lose(self, why: str, at: int) -> None:
        """Lines are lost that stood behind this place."""
        self.damage.append(why)
        self.hole = at
        self._lost_after = self.places[Kind.CHECKPOINT].last()

    def restore(self, put: Put, at: int) -> None:
        """The session's row from its note, which knows the last line that was acknowledged."""
        self.session_put, self._session_at = put, at

    def account(self) -> None:
        """After all lines were read: mark what the lost ones must or may have held."""
        if not self.hole:
            return
        if self._lost_after is not None:
            self._mark_lost(self.session.sequence if self._known() else self._lost_after + 1)
        calls, checkpoints = self.places[Kind.CALL], self.places[Kind.CHECKPOINT]
        for name, lane in self.names.items():
            if isinstance(lane, LaneRow) and lane.run and self.name_at[name] >= self.hole:
                under = calls.under((lane.run, lane.journal))
                last = calls.at(under[-1]) if under else checkpoints.at(lane.journal)
                if last is None or last < self.hole:  # one more may have stood in a lost line
                    calls.put((lane.run, lane.journal, under[-1][2] + 1 if under else 0), _LOST)

    def _mark_lost(self, last: int) -> None:
        first = self._lost_after or 0
        for sequence in range(first + 1, min(last, first + _MOST_LOST) + 1):
            if sequence not in self.places[Kind.CHECKPOINT]:
                self.places[Kind.CHECKPOINT].put(sequence, _LOST)
        self._lost_after = None

    def _known(self) -> bool:
        return self._session_at >= self.hole

    @property
    def marks(self) -> int:
        """All marks that branches of this session have."""
        return joined(self.marked.values())

    def unsure_names(self) -> list[str]:
        """Names whose rows are damaged, or were last written before lines were lost."""
        return [name for name, at in self.name_at.items() if at < self.hole] if self.damage else []

    # opening rows

    def put_at(self, kind: Kind, key: Any, at: int | None = None) -> Put | None:
        """A row as it stands in its line."""
        at = self.places[kind].at(key) if at is None else at
        line = self._load(at) if at else None
        if line is None:
            return None
        if self._opened[0] is not line:
            self._opened = line, {(put.kind, put.key): put for put in line.rows}
        return self._opened[1].get((KIND_NAMES[kind], key))

    def _checkpoint(self, key: int, at: int, parent: int | None) -> CheckpointRow | Unreadable:
        put = self.put_at(Kind.CHECKPOINT, key, at)
        if put is None:
            return Unreadable(key, f"checkpoint #{key} stood in a line of the journal that is damaged", parent)
        row = open_checkpoint(body_of(put.body), uid=self.session.uid, sequence=key, parent=parent)
        if isinstance(row, Unreadable):
            return row
        if put.id is not None and row.id != put.id:
            return Unreadable(key, f"checkpoint #{key} does not agree with its index", parent)
        return msgspec.structs.replace(row, refs=_digests(put))

    def _keyframe(self, key: int, at: int, _: int | None) -> KeyframeRow | None:
        put = self.put_at(Kind.KEYFRAME, key, at)
        return None if put is None else KeyframeRow(key, body_of(put.body), _digests(put))

    def _call(self, key: tuple[int, int, int], at: int, _: int | None) -> CallRow | Unreadable:
        put = self.put_at(Kind.CALL, key, at) if at >= self.hole else None
        if put is None:
            return Unreadable(key, "what became of a journaled call stood in a line that is damaged")
        return open_call(body_of(put.body), uid=self.session.uid, at=key)

    # reading, with absence verified

    def known_session(self) -> SessionRow:
        """The session's row."""
        if not self._known():
            raise self.corrupt("the session's own row is lost")
        return self.session

    def fill(self, view: View, ask: Ask) -> None:
        """Answer an ask; what is missing and ought to be there is a CorruptionError."""
        self.known_session()
        self._check_names(ask.names)
        if ask.children_of and self.hole:
            raise self.corrupt("a checkpoint that is lost may rest on another")
        self.children = cast("Any", self.places[Kind.CHECKPOINT].children() if ask.children_of else {})
        super().fill(view, ask)
        self.children = {}

    def _check_names(self, names: Collection[str] | None) -> None:
        """A CorruptionError unless these names, or EVERY, are known or known to be absent."""
        if not self.damage or (names is not None and all([self.name_at.get(name, -1) >= self.hole for name in names])):
            return
        unsure = self.unsure_names()
        if len(self.name_at) - len(unsure) != self.session.lanes + self.session.tags:
            raise self.corrupt("branches or tags are damaged")
        for name in unsure:  # all that there are were written since: these were dropped in a lost line
            self._forget(Kind.NAME, name)

    def knows_names(self) -> bool:
        """False if a branch or tag may have stood in a lost line."""
        try:
            self._check_names(None)
        except CorruptionError:
            return False
        return True

    def state(self, ref: str | int, *, salvage: bool, without: Collection[int]) -> Records:
        """The rows down to a keyframe."""
        if isinstance(ref, str):
            self._check_names((ref,))
        return super().state(ref, salvage=salvage, without=without)

    def scan(self, kind: Kind, *, after: Any, before: Any, limit: int) -> Sequence[Row | Unreadable]:
        """A page of rows of one kind."""
        if kind is Kind.NAME:
            return super().scan(kind, after=after, before=before, limit=limit)
        found = self.places[kind].page(after, before, limit) if kind in self.places else ()
        return [self.places[kind][key] or Unreadable(key, f"the keyframe of #{key} is damaged") for key in found]

    def _table(self, kind: Kind) -> dict[Any, Any]:
        """Names, for `scan`; those that are not known in their places."""
        unsure = {name: Unreadable(name, f"the row of {name!r} is damaged") for name in self.unsure_names()}
        return super()._table(kind) | unsure

    def corrupt(self, why: str) -> CorruptionError:
        """The error that names this session, what is damaged and what to do."""
        damage = f" ({self.damage[0]})" if self.damage else ""
        name = str(self.session_put.key) if self.session_put is not None else "of unknown name"
        hint = "other sessions are not touched; run verify to see what is intact"
        return CorruptionError(f"session {name!r}: {why}{damage}", hint=hint)


class _Refs:
    """The blobs that rows refer to, read from their lines."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def get(self, place: tuple[Kind, Any], default: Any) -> Any:
        put = self._rows.put_at(*place)
        return default if put is None else _digests(put)


def _digests(put: Put) -> tuple[bytes, ...]:
    return tuple([bytes.fromhex(ref) for ref in put.refs])
