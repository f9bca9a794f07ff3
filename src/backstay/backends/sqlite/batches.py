"""From a Batch to rows: what a rule decided is written, inside the transaction of the group commit.

The order: blobs, the session's line, its other rows, then what is dropped, then blobs that nothing refers to any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import apsw

from backstay.backends.sqlite import journals, packed, schema
from backstay.backends.sqlite.connections import NONSENSE, Connection, is_damage, translate_nonsense
from backstay.backends.sqlite.schema import (
    Entry,
    child_entries,
    facet_entries,
    key_of,
    lead,
    line_entries,
    name_entries,
    sequence_in,
)
from backstay.backends.sqlite.views import Line, find_checkpoint, look
from backstay.codec import is_held
from backstay.errors import BackstayError, CorruptionError, UnsupportedError
from backstay.ids import MAX_SEQUENCE
from backstay.port import (
    FILES,
    Ask,
    Batch,
    BlobsAbsentError,
    CallRow,
    CheckpointRow,
    Decide,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    More,
    Row,
    SegmentRow,
    SessionRow,
    TagRow,
    Unreadable,
    View,
    feature_of,
)
from backstay.port.facets import TIME_BITS, faceted
from backstay.port.row_codec import is_foreign, pack_all
from backstay.sealing import is_cut

_NEWEST_ERA = "SELECT max(value) FROM lookup WHERE what = ?"
_NEWEST_TOUCHED = (
    "SELECT max(r.marks) FROM lookup l CROSS JOIN rows r ON r.sid = l.sid AND r.kind = 0 "
    "WHERE l.what = ?1 AND l.value = ?2"
)
_LAST_SID = "SELECT max(sid) FROM rows"
_PUT_ROW = "REPLACE INTO rows(sid, kind, name, marks, body) VALUES(?, ?, ?, ?, ?)"
_DROP_ROW = "DELETE FROM rows WHERE sid = ? AND kind = ? AND name = ?"
_NAME = "SELECT marks FROM rows WHERE sid = ? AND kind = 1 AND name = ?"
_NAMES = "SELECT name FROM rows WHERE sid = ? AND kind = 1"
_DROP_CHILDREN = "DELETE FROM lookup WHERE what = ? AND value BETWEEN ? AND ?"
_DROP_ENTRIES_AT = "DELETE FROM lookup WHERE what = ? AND sid = ? AND at = ?"
_NEW_CHECKPOINT = "INSERT INTO checkpoints(key, parent, body) VALUES(?, ?, ?)"
_PUT_CHECKPOINT = "REPLACE INTO checkpoints(key, parent, body) VALUES(?, ?, ?)"
_DROP_CHECKPOINT = "DELETE FROM checkpoints WHERE key = ?"
_NEW_KEYFRAME = "INSERT INTO keyframes(key, body) VALUES(?, ?)"
_PUT_KEYFRAME = "REPLACE INTO keyframes(key, body) VALUES(?, ?)"
_DROP_KEYFRAME = "DELETE FROM keyframes WHERE key = ?"
_DROP_HOT = "DELETE FROM checkpoints WHERE key BETWEEN ? AND ?"
_KEYS = "SELECT key FROM {} WHERE key BETWEEN ? AND ?"
_BLOB_KIND = "SELECT coalesce(substr(data, 1, 1), x'') FROM blobs WHERE digest = ?"
_PUT_BLOB = "INSERT OR IGNORE INTO blobs(digest, data) VALUES(?, ?)"
_REPLACE_BLOB = "UPDATE blobs SET data = ?2 WHERE digest = ?1"
_DROP_BLOB = "DELETE FROM blobs WHERE digest = ?1 AND NOT EXISTS(SELECT 1 FROM refs WHERE digest = ?1)"
_REFS = "SELECT digest FROM refs WHERE sid = ? AND kind = ? AND number = ?"
_DROP_REFS = "DELETE FROM refs WHERE sid = ? AND kind = ? AND number = ?"
_HOT_REFS = "SELECT digest FROM refs WHERE sid = ? AND kind = ? AND number BETWEEN ? AND ?"
_DROP_HOT_REFS = "DELETE FROM refs WHERE sid = ? AND kind = ? AND number BETWEEN ? AND ?"
_ALL_REFS = "SELECT digest FROM refs WHERE sid = ?"
_DROP_ALL_REFS = "DELETE FROM refs WHERE sid = ?"
_PUT_REF = "INSERT OR IGNORE INTO refs(sid, kind, number, digest) VALUES(?, ?, ?, ?)"


_REFERRING = frozenset({CheckpointRow, KeyframeRow, SegmentRow})


class Writer:
    """Lets rules decide and writes what they say; knows the largest `touched` that was ever put.

    That number costs no page: it is kept here, and looked for among the newest sessions only when another connection
    has written. It never goes back, whatever is rolled back: a number that is skipped harms nobody.
    """

    def __init__(self) -> None:
        self._last = 0

    def settle(self, connection: Connection) -> None:
        """Another connection has written: at the begin of a transaction that nobody else can write beside."""
        try:
            schema.settle(connection, writing=True)
            self._last = max(self._last, last_touched(connection, writing=True))
        except BackstayError:
            raise
        except NONSENSE as error:
            raise translate_nonsense(error, "reading the store") from error

    def write(self, ask: Ask, decide: Decide, connection: Connection) -> View:
        """One write, inside a transaction."""
        line, view = self._look(connection, ask)
        batch = decide(view)
        if isinstance(batch, More):
            line, view = self._look(connection, batch.ask)
            batch = decide(view)
            assert isinstance(batch, Batch)  # noqa: S101 - a rule looks again once
        assert batch.lazy or not ask.lazy or not (batch.puts or batch.drops), "it would not be synced"  # noqa: S101
        if batch.puts or batch.drops:
            uid = None if line is None else line.row.uid
            for row in batch.puts:
                if type(row) is SessionRow:
                    uid = row.uid
            if uid is None:  # neither is there a session, nor does one come
                view.answer = batch.answer
                return view
            try:
                packed = pack_all(batch.puts, uid)
                work = _Work(connection, line)
                work.apply(batch, packed)
            except OverflowError as error:
                raise CorruptionError("a row has a number that no store can hold") from error
            except BackstayError:
                raise
            except NONSENSE as error:
                raise translate_nonsense(error, "writing to the store") from error
            self._last = max(self._last, work.touched)
            if work.sinks:
                connection.execute(schema.PUT_META, (schema.TOUCHED_FLOOR, self._last))
        view.answer = batch.answer
        return view

    def _look(self, connection: Connection, ask: Ask) -> tuple[Line | None, View]:
        try:
            return look(connection, ask, fresh=self._last + 1)
        except BackstayError:
            raise
        except NONSENSE as error:  # a rule's own errors are its own: only what it looks at is translated
            raise translate_nonsense(error, "reading the store") from error


def last_touched(connection: Connection, *, writing: bool = False) -> int:
    """The largest `touched` that was ever put, as of when another connection last wrote."""
    if connection.last_touched is None:
        connection.last_touched = max(_newest_touched(connection, writing=writing), connection.floor)
    return connection.last_touched


def _newest_touched(connection: Connection, *, writing: bool) -> int:
    """That of the newest session; more than that where its line is in a damaged page, which must not stop others."""
    era: Any = None
    try:
        era = connection.execute(_NEWEST_ERA, (schema.ERA,)).fetchall()[0][0]
        newest: Any = connection.execute(_NEWEST_TOUCHED, (schema.ERA, era)).fetchall()[0][0]
        return newest or 0
    except apsw.Error as error:
        if not is_damage(error) or (writing and era is None):
            raise
    return 0 if era is None else (era + 1 << schema.ERA_BITS) - 1


class _Work:
    """One batch on its way into the tables of one session."""

    def __init__(self, connection: Connection, line: Line | None) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._sid = 0 if line is None else line.sid
        self._row = None if line is None else line.row
        self._name = None if line is None or line.name is None else line.name.name  # looked at in this transaction
        self._marks = 0 if line is None else line.marks
        self._released: set[bytes] = set()
        self._come: set[Entry] = set()  # what leads to checkpoints that a segment brings, and to those that it took
        self._gone: set[Entry] = set()
        self.touched = 0
        self.sinks = False  # the largest `touched` may now be smaller than it was

    def apply(self, batch: Batch, packed: list[tuple[Row, bytes, int]]) -> None:
        """Write it, with its rows as they are kept: all, or the caller takes back what an error left half done."""
        refs: set[bytes] = set()
        for row in batch.puts:
            if type(row) in _REFERRING and row.refs:  # type: ignore[union-attr]
                refs.update(row.refs)  # type: ignore[union-attr]
        if refs or batch.whole:
            self._put_blobs(refs, batch)
        for row, body, _ in packed:
            if type(row) is SessionRow:
                self._put_line(row, body)
        for row, body, index in packed:
            _PUT[type(row)](self, row, body, index)
        for kind, key in batch.drops:
            self._drop(kind, key)
        if self._come or self._gone:
            lead(self._connection, drop=self._gone - self._come, put=self._come - self._gone)
        if self._released:
            self._connection.executemany(_DROP_BLOB, [(digest,) for digest in self._released])
        if batch.cuts and self._connection.has("blobs"):
            self._connection.executemany(_REPLACE_BLOB, list(batch.cuts.items()))
        if batch.cuts or batch.erases:  # what was forgotten is to be nowhere in the file
            self._execute(schema.PUT_META, (schema.SCRUB, 1))

    # putting

    def _put_blobs(self, refs: set[bytes], batch: Batch) -> None:
        unknown = refs - batch.blobs.keys()
        wholes = [digest for digest in batch.whole if digest not in batch.blobs]
        if unknown or wholes:
            absent = {digest for digest in unknown if _kind(self._connection, digest) is None}
            absent.update(find_absent(self._connection, wholes))
            if absent:
                raise BlobsAbsentError(absent)
        if any(map(is_held, refs)):
            schema.need(self._connection, FILES)
        put_blobs(self._connection, {ref: batch.blobs[ref] for ref in refs - unknown})

    def _put_line(self, row: SessionRow, body: bytes) -> None:
        before = self._row
        if before is None:
            self._sid = _new_sid(self._connection)
        elif before.hidden is not row.hidden or before.id != row.id:
            self._execute(_DROP_ROW, (self._sid, 0, before.id))
        self._execute(_PUT_ROW, (self._sid, 0, row.id, row.touched, body))
        if (
            before is None
            or before.touched >> schema.ERA_BITS != row.touched >> schema.ERA_BITS
            or (before.hidden, before.id, before.uid) != (row.hidden, row.id, row.uid)
        ):
            self._lead(set() if before is None else line_entries(before, self._sid), line_entries(row, self._sid))
        if (
            before is None
            or before.updated_us >> TIME_BITS != row.updated_us >> TIME_BITS
            or before.hidden is not row.hidden
            or faceted(before) != faceted(row)
        ):
            self._lead(set() if before is None else facet_entries(before, self._sid), facet_entries(row, self._sid))
        self.touched = max(self.touched, row.touched)
        self.sinks |= before is not None and row.touched < before.touched
        self._row = row

    def put_nothing(self, row: SessionRow, body: bytes, index: int) -> None:
        """The line: it is put before all others."""

    def put_keyframe(self, row: KeyframeRow, _body: bytes, _index: int) -> None:
        """A keyframe and what it refers to."""
        columns = key_of(self._sid, _checked(row.sequence)), row.data
        new = self._insert(_NEW_KEYFRAME, columns)
        if not new:
            self._execute(_PUT_KEYFRAME, columns)
        if row.refs or not new:
            self._refer(Kind.KEYFRAME, row, new=new)

    def put_call(self, row: CallRow, body: bytes, _index: int) -> None:
        """A call."""
        if not self._connection.tables.get("calls"):
            make_on_demand(self._connection, "calls")
        if feature := feature_of(row):
            schema.need(self._connection, feature)
        journals.put(self._connection, self._sid, row, body)

    def put_name(self, row: LaneRow | TagRow, body: bytes, marks: int) -> None:
        """A branch or a tag."""
        if row.name == self._name:
            before: Any = (self._marks,)
            self._name = None  # the next one by this name in the batch is no longer as it was looked at
        else:
            before = self._execute(_NAME, (self._sid, row.name)).fetchone()
        self._execute(_PUT_ROW, (self._sid, 1, row.name, marks, body))
        if before is None:
            self._count_names(1)
        if before != (marks,):
            old = {(schema.MARKS, before[0], self._sid, row.name)} if before is not None and before[0] else set()
            self._lead(old, name_entries(row, self._sid))

    def _count_names(self, more: int) -> None:
        """One more, or fewer, of the names that were counted."""
        counted = self._connection.names
        if counted is not None and counted[0] == self._sid:
            self._connection.names = self._sid, counted[1] + more

    def put_checkpoint(self, row: CheckpointRow, body: bytes, foreign: int) -> None:
        """A checkpoint, what leads to it and what it refers to."""
        sequence = row.sequence
        if not 0 < sequence <= MAX_SEQUENCE:
            _checked(sequence)
        columns = self._sid << schema.SEQUENCE_BITS | sequence, row.parent, body
        new = True
        try:  # found out by trying, because most rows are new
            self._execute(_NEW_CHECKPOINT, columns)
        except apsw.ConstraintError:
            new = False
        if foreign or not new or row.parent != sequence - 1:
            after = child_entries(sequence, row.parent, self._sid)
            if foreign:
                after.add((schema.FOREIGN, row.id, self._sid, sequence))
            self._lead(set() if new else self._entries_at(sequence), after)
        if not new:
            self._execute(_PUT_CHECKPOINT, columns)
        if row.refs or not new:
            self._refer(Kind.CHECKPOINT, row, new=new)

    def put_segment(self, row: SegmentRow, _body: bytes, _index: int) -> None:
        """A segment in the place of the rows and segments between its first and its last."""
        sid, bounds = self._sid, (_checked(row.first), _checked(row.last))
        if not self._connection.tables.get("segments"):
            make_on_demand(self._connection, "segments")
            schema.need(self._connection, feature_of(row))
        for old in packed.reaching(self._connection, sid, *bounds):
            self._drop_segment(old)
        if self._connection.has("refs"):
            place = sid, Kind.CHECKPOINT, *bounds
            found: Any = self._execute(_HOT_REFS, place).fetchall()
            self._released.update([digest for (digest,) in found])
            self._execute(_DROP_HOT_REFS, place)
        self._execute(_DROP_HOT, (key_of(sid, bounds[0]), key_of(sid, bounds[1])))
        packed.put(self._connection, sid, row)
        self._come |= packed.entries(row, sid, self._row.uid)  # type: ignore[union-attr]
        for ref in set(row.refs or ()):
            self._execute(_PUT_REF, (sid, Kind.SEGMENT, row.first, ref))
            self._released.discard(ref)

    def _drop_segment(self, old: SegmentRow | Unreadable | None) -> None:
        if old is not None:
            first: Any = old.key if isinstance(old, Unreadable) else old.first
            self._gone |= packed.entries(old, self._sid, self._row.uid)  # type: ignore[union-attr]
            packed.drop(self._connection, self._sid, first)
            self._release(Kind.SEGMENT, first)

    def _insert(self, sql: str, columns: tuple[Any, ...]) -> bool:
        """True if there was no such row. Found out by trying, because most rows are new."""
        try:
            self._execute(sql, columns)
        except apsw.ConstraintError:
            return False
        return True

    def _entries_at(self, sequence: int) -> set[Entry]:
        """What leads to a checkpoint now."""
        assert self._row is not None  # noqa: S101 - it has rows
        row = find_checkpoint(self._connection, Line(self._sid, self._row), sequence, packed_too=False)
        if row is None:
            return set()
        entries = child_entries(sequence, row.parent, self._sid)
        if not isinstance(row, CheckpointRow):  # its id cannot be read: looked for along the index
            self._execute(_DROP_ENTRIES_AT, (schema.FOREIGN, self._sid, sequence))
        elif is_foreign(row, self._row.uid):
            entries.add((schema.FOREIGN, row.id, self._sid, sequence))
        return entries

    def _lead(self, before: set[Entry], after: set[Entry]) -> None:
        if before != after:
            lead(self._connection, drop=before - after, put=after - before)

    def _refer(self, kind: Kind, row: CheckpointRow | KeyframeRow, *, new: bool) -> None:
        if row.refs is None:
            return
        refs = set(row.refs)
        if not new:
            self._release(kind, row.sequence, keep=refs)
        for ref in refs:
            self._execute(_PUT_REF, (self._sid, kind, row.sequence, ref))

    # dropping

    def _release(self, kind: Kind, number: int, keep: Iterable[bytes] = ()) -> None:
        if self._connection.has("refs"):
            place = self._sid, kind, number
            rows: Any = self._execute(_REFS, place).fetchall()
            self._released.update([digest for (digest,) in rows])
            self._released.difference_update(keep)
            self._execute(_DROP_REFS, place)

    def _drop(self, kind: Kind, key: Key) -> None:
        if kind is Kind.SESSION:
            self._drop_session()
        elif kind is Kind.NAME and isinstance(key, str):
            marks: Any = self._execute(_NAME, (self._sid, key)).fetchone()
            self._count_names(-1 if marks is not None else 0)
            if marks is not None and marks[0]:
                self._lead({(schema.MARKS, marks[0], self._sid, key)}, set())
            self._execute(_DROP_ROW, (self._sid, Kind.NAME, key))
        elif kind is Kind.CALL and isinstance(key, tuple):
            journals.drop(self._connection, self._sid, key)
        elif kind is Kind.SEGMENT and isinstance(key, int):
            old = packed.find_row(self._connection, self._sid, _checked(key))
            if old is not None and key == (old.key if isinstance(old, Unreadable) else old.first):
                self._drop_segment(old)
        elif kind is Kind.CHECKPOINT and isinstance(key, int):
            self._lead(self._entries_at(key), set())
            self._execute(_DROP_CHECKPOINT, (key_of(self._sid, _checked(key)),))
            self._release(kind, key)
        elif kind is Kind.KEYFRAME and isinstance(key, int):
            self._execute(_DROP_KEYFRAME, (key_of(self._sid, _checked(key)),))
            self._release(kind, key)

    def _drop_session(self) -> None:
        """The line, and anything that still hangs on it."""
        assert self._row is not None  # noqa: S101 - there is a line
        bounds = key_of(self._sid, 0), key_of(self._sid, MAX_SEQUENCE)
        tables = [(Kind.KEYFRAME, "keyframes"), (Kind.CHECKPOINT, "checkpoints"), (Kind.SEGMENT, "segments")]
        for kind, table in tables if self._connection.has("segments") else tables[:2]:
            keys: Any = self._execute(_KEYS.format(table), bounds).fetchall()
            for (key,) in keys:
                self._drop(kind, sequence_in(key))
        names: Any = self._execute(_NAMES, (self._sid,)).fetchall()
        for (name,) in names:
            self._drop(Kind.NAME, name)
        journals.drop_all(self._connection, self._sid)
        if self._connection.has("refs"):  # of rows that were lost
            left: Any = self._execute(_ALL_REFS, (self._sid,)).fetchall()
            self._released.update([digest for (digest,) in left])
            self._execute(_DROP_ALL_REFS, (self._sid,))
        self._execute(_DROP_CHILDREN, (schema.CHILD, *bounds))
        self._execute(_DROP_ROW, (self._sid, Kind.SESSION, self._row.id))
        self._lead(line_entries(self._row, self._sid) | facet_entries(self._row, self._sid), set())
        # Counters stay above what it had, and what it said is to be nowhere in the file: see upkeep.scrub.
        self._execute(schema.PUT_META, (schema.SID_FLOOR, self._sid))
        self._execute(schema.PUT_META, (schema.SCRUB, 1))
        self.sinks = True


_PUT: dict[type, Callable[[_Work, Any, bytes, int], None]] = {
    SessionRow: _Work.put_nothing,
    LaneRow: _Work.put_name,
    TagRow: _Work.put_name,
    CheckpointRow: _Work.put_checkpoint,
    KeyframeRow: _Work.put_keyframe,
    SegmentRow: _Work.put_segment,
    CallRow: _Work.put_call,
}


def _checked(sequence: int) -> int:
    if not 0 < sequence <= MAX_SEQUENCE:
        raise CorruptionError(f"a checkpoint cannot have the sequence {sequence}")
    return sequence


def _new_sid(connection: Connection) -> int:
    last: Any = connection.execute(_LAST_SID).fetchall()[0][0]
    sid: int = max(last or 0, schema.meta(connection).get(schema.SID_FLOOR, 0)) + 1
    if sid > schema.MAX_SID:
        raise UnsupportedError("this store has had as many sessions as it can number", hint="begin another store")
    return sid


def make_on_demand(connection: Connection, group: str) -> None:
    """Make tables that are not there before they are first used."""
    if not connection.has(group):
        connection.forget()
        for sql in schema.ON_DEMAND[group].values():
            connection.execute(sql)


def find_absent(connection: Connection, digests: Iterable[bytes]) -> list[bytes]:
    """Which blobs are not here, or not whole."""
    if not connection.has("blobs"):
        return list(digests)
    return [digest for digest in digests if (kind := _kind(connection, digest)) is None or is_cut(digest, kind)]


def _kind(connection: Connection, digest: bytes) -> bytes | None:
    """The first byte of a blob; None if it is not here."""
    found: Any = connection.execute(_BLOB_KIND, (digest,)).fetchone() if connection.has("blobs") else None
    return None if found is None else found[0]


def put_blobs(connection: Connection, blobs: Mapping[bytes, bytes]) -> None:
    """Keep blobs that are not here yet, or not whole."""
    if not blobs:
        return
    make_on_demand(connection, "blobs")
    connection.executemany(_PUT_BLOB, list(blobs.items()))
    for digest, data in blobs.items():
        if is_held(digest) and not is_cut(digest, data) and is_cut(digest, _kind(connection, digest) or b""):
            connection.execute(_REPLACE_BLOB, (digest, data))
