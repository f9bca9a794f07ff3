"""What one round trip carries: the batches of one or several writes to one session, and what they rest on.

Later batches were decided on what the earlier ones leave, so of each row only the last state is sent. Every row is
expected as it was before the first of them. Puts come before drops; so nothing is added behind a batch that drops.

The session, one branch, one call and one checkpoint go as values of `write_2`: most writes have no more. Whatever
there is besides follows in statements of its own, in the same transaction and the same round trip.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from backstay.backends.postgres.foreign_ids import pack_id
from backstay.backends.postgres.packed import index_of, slot_of, slots_of
from backstay.backends.postgres.protocol import (
    BOOL,
    BYTES,
    BYTES_LIST,
    INT,
    INT_LIST,
    Sent,
    Step,
    all_text_bytes,
    pack_bool,
    pack_int,
    pack_ints,
    pack_texts,
    step,
    text_bytes,
)
from backstay.backends.postgres.views import KnownSession, Watched, name_columns
from backstay.codec import is_held
from backstay.port import (
    FILES,
    KNOWN,
    SEGMENTS,
    Ask,
    Batch,
    CallKey,
    CallRow,
    CheckpointRow,
    JournalKey,
    Key,
    KeyframeRow,
    Kind,
    LaneRow,
    Row,
    SegmentRow,
    SessionRow,
    TagRow,
    feature_of,
)
from backstay.port.facets import faceted, facets_of, time_era
from backstay.port.row_codec import is_foreign, pack
from backstay.port.rows import kind_of
from backstay.port.segments import open_segment

MOST_WRITES = 64
MOST_BYTES = 4 * 1024 * 1024

_WRITE_TYPES = (
    *(BOOL, INT, INT, BOOL, BOOL, BYTES, INT, INT, INT, INT, INT),
    *(BOOL, BYTES, BYTES, INT, INT, INT, INT_LIST, BYTES),
    *(BYTES, INT, INT, INT, INT, INT, INT, BYTES),
    *(INT, INT, INT, BYTES),
    *(INT, INT, INT, BYTES, BYTES),
)
_WRITE = "SELECT {schema}.write_2(" + ", ".join(["%s"] * len(_WRITE_TYPES)) + ")"

# A session that the same transaction has just made has a number that only the server knows.
_SID = "coalesce(%s, currval('{schema_text}.sessions_sid_seq'))"
_NAME = f"SELECT {{schema}}.name_2({_SID}, %s, %s, %s, %s, %s, %s, %s, %s)"
_NAME_TYPES = (INT, BYTES, INT, INT, INT, INT, INT, INT, BYTES)
_BESIDE = (
    "SELECT {schema}.same_2((SELECT revision FROM {schema}.sessions "
    f"WHERE NOT hidden AND id = %s AND sid <> {_SID}), %s)"
)
_RAISE = "UPDATE {schema}.names SET revision = %s WHERE sid = %s AND run = %s AND journal = %s"
_REFER = f"SELECT {{schema}}.refer_2({_SID}, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_WHOLE = "SELECT {schema}.whole_2(%s)"
_CUT = "SELECT {schema}.cut_2(%s, %s, %s)"
_PACK = f"SELECT {{schema}}.pack_2({_SID}, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
_PACK_TYPES = (INT, INT, INT, INT, INT, INT, INT_LIST, INT_LIST, BYTES, BYTES, INT_LIST, BYTES_LIST)
_NEED = (
    "UPDATE {schema}.meta SET read_features = read_features | %s, write_features = write_features | %s "
    "WHERE read_features & %s = 0"
)
_FREE_ROWS = "DELETE FROM {schema}.checkpoints WHERE sid = %s AND slot = ANY(%s) AND sequence = ANY(%s)"
_DROP_SEGMENTS = (
    "WITH gone AS (DELETE FROM {schema}.segments WHERE sid = %s AND first = ANY(%s) RETURNING sid, first, last) "
    "DELETE FROM {schema}.foreign_ids f USING gone g WHERE f.sid = g.sid "
    "AND f.sequence >> 7 BETWEEN g.first >> 7 AND g.last >> 7 AND f.sequence BETWEEN g.first AND g.last"
)
_DROP_IDS = "DELETE FROM {schema}.foreign_ids WHERE sid = %s AND sequence >> 7 = ANY(%s) AND sequence = ANY(%s)"

_DROP_CALLS = (
    "DELETE FROM {schema}.calls c USING unnest(%s, %s, %s) AS d(run, journal, n) "
    "WHERE c.sid = %s AND c.run = d.run AND c.journal = d.journal AND (d.n IS NULL OR c.n = d.n)"
)
# Names first: a write that has just locked one is waited for, so that its calls go too.
_OF_A_SESSION = ("names", "calls", "keyframes", "foreign_ids", "checkpoints", "segments", "sessions")
_KEYED = {
    Kind.NAME: ("names", "name"),
    Kind.KEYFRAME: ("keyframes", "sequence"),
}
_TELL = "SELECT pg_notify('{channel}', '')"


def _many(table: str, keys: str, *rest: str) -> str:
    """A statement that puts any number of rows, whether they are there or not."""
    columns = [*keys.split(", "), *rest]
    changes = ", ".join([f"{column} = excluded.{column}" for column in rest])
    return (
        f"INSERT INTO {{schema}}.{table}(sid, {', '.join(columns)}) SELECT {_SID}, r.* "
        f"FROM unnest({', '.join(['%s'] * len(columns))}) AS r ON CONFLICT (sid, {keys}) DO UPDATE SET {changes}"
    )


_CALLS = _many("calls", "run, journal, n", "body")
_CHECKPOINTS = _many("checkpoints", "slot", "sequence", "parent", "body")
_KEYFRAMES = _many("keyframes", "sequence", "body")
_FOREIGN = f"INSERT INTO {{schema}}.foreign_ids(sid, sequence, id) SELECT {_SID}, r.* FROM unnest(%s, %s) AS r"

_FEATURES = (pack_int(KNOWN.read), pack_int(KNOWN.write))
_ABSENT = (None, None)
_ANY = 0  # a revision that is expected, where any will do
_NOTHING: list[Sent] = [None] * 8


class Shipment:
    """See the module's text."""

    def __init__(self, known: KnownSession) -> None:
        self.revision = (int.from_bytes(os.urandom(8), "big") >> 2) + 1
        self.full = False
        self.line: SessionRow | None = None
        self.light = True  # neither rests on the session's row nor changes what its revision stands for; see `schema`
        self.count = 0
        self._known = known
        self._sid, self._session, self._expect = known.sid, known.session, known.revision
        self._last = known.last
        self._lazy = True
        self._wakes = False
        self._beside: tuple[str, int | None] | None = None
        self._seen: dict[str, int | None] = {}  # the revisions of names
        self._raised: set[str] = set()  # names whose calls change
        self._journals: set[JournalKey] = set()  # that change and may be those of any name
        self._names: dict[str, LaneRow | TagRow] = {}
        self._calls: dict[CallKey, CallRow] = {}
        self._rows: dict[int, CheckpointRow] = {}
        self._keyframes: dict[int, KeyframeRow] = {}
        self._segments: dict[int, SegmentRow] = {}
        self._refs: dict[tuple[Kind, int], tuple[bytes, ...]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._whole: set[bytes] = set()
        self._cuts: dict[bytes, bytes] = {}
        self._drops: tuple[tuple[Kind, Key], ...] = ()
        self._bytes = 0

    @property
    def ends(self) -> bool:
        """True if the session goes, or gets another name."""
        moved = self.line is not None and (self.line.hidden, self.line.id) != self._known.place
        return moved or any([kind is Kind.SESSION for kind, _ in self._drops])

    def add(self, ask: Ask, view: Watched, batch: Batch) -> None:
        """A batch that was decided on a view of what is known, which takes it in."""
        known = self._known
        journals = {(lane.run, lane.journal): name for name, lane in view.lanes.items()}
        self._rest_on(ask, view, journals)
        for row in batch.puts:
            self._put(row, journals)
        for kind, key in batch.drops:
            self.light = False
            if kind is Kind.CALL and isinstance(key, tuple):
                self._change(key[:2], journals)
        self._drops = batch.drops
        self._blobs |= batch.blobs
        self._whole.update(batch.whole)
        self._cuts |= batch.cuts
        self._wakes |= batch.wakes
        self._lazy &= batch.lazy
        self.count += 1
        known.apply(batch, self.revision)
        known.raised(self._raised, self.revision)
        many = self._bytes > MOST_BYTES or self.count == MOST_WRITES
        self.full = bool(batch.drops or batch.cuts) or many or self.ends or known.reserved

    def _rest_on(self, ask: Ask, view: Watched, journals: dict[JournalKey, str]) -> None:
        """What a rule was shown: branches stand for their calls, the session's row for all else."""
        known = self._known
        names = known.names if ask.names is None else ask.names
        for name in names:
            revision = known.names.get(name, _ABSENT)[1]
            self.light &= revision is not None
            if revision != self.revision:  # otherwise an earlier batch of this shipment puts it
                self._seen.setdefault(name, revision)
        apart = ask.sequences or ask.segments or ask.ids or ask.prefix or ask.children_of or ask.beside is not None
        if self.light and (view.looked or apart or ask.names is None or not names):
            self.light = False
        if self.light and (ask.calls or ask.journals):
            self.light = all([at in journals for at in (*ask.journals, *[at[:2] for at in ask.calls])])
        if ask.beside is not None:
            self._beside = ask.beside, known.beside_revision

    def _put(self, row: Row, journals: dict[JournalKey, str]) -> None:
        if isinstance(row, CallRow):
            self._calls[row.at] = row
            self._bytes += len(row.args or b"") + len(row.result or b"")
            self._change((row.run, row.journal), journals)
        elif isinstance(row, LaneRow | TagRow):
            self.light &= isinstance(row, LaneRow) and row.name in self._seen
            self._names[row.name] = row
        elif isinstance(row, SessionRow):
            self.light = False
            self.line = row
        else:
            self.light = False
            if isinstance(row, CheckpointRow):
                self._rows[row.sequence] = row
                self._bytes += len(row.delta)
            elif isinstance(row, KeyframeRow):
                self._keyframes[row.sequence] = row
                self._bytes += len(row.data)
            else:
                self._segments[row.first] = row
                self._bytes += len(row.body)
            if row.refs is not None and not isinstance(row, SegmentRow):
                self._refs[kind_of(row), row.sequence] = row.refs

    def _change(self, journal: JournalKey, journals: dict[JournalKey, str]) -> None:
        """Calls under a journal change: so does the revision of the branch whose journal it is."""
        name = journals.get(journal)
        if name is None:
            self.light = False
            self._journals.add(journal)
        else:
            self._raised.add(name)

    # as it is sent

    def steps(self, uid: bytes | None, *, relaxed: bool) -> list[Step]:
        """The statements; the first one answers."""
        uid = self.line.uid if self.line is not None else uid or b""
        sid = None if self._sid is None else pack_int(self._sid)
        first, *names = self._name_values(uid) or [_NOTHING]
        rows, calls = list(self._rows.values()), list(self._calls.values())
        values = [
            pack_bool(relaxed or self._lazy),
            *_FEATURES,
            pack_bool(self.light),
            pack_bool(self._known.place[0]),
            text_bytes(self._known.place[1]),
            sid,
            None if self._expect is None else pack_int(self._expect),
            pack_int(self.revision),
            *self._number_values(),
            *self._session_values(),
            *first,
            *(_call_values(calls.pop(), uid) if len(calls) == 1 else _NOTHING[:4]),
            *(self._row_values(rows.pop(), uid) if len(rows) == 1 and self._is_new(rows[0]) else _NOTHING[:5]),
        ]
        found = [Step(_WRITE, values, _WRITE_TYPES)]
        if self._beside is not None:
            id_, revision = self._beside
            found.append(step(_BESIDE, text_bytes(id_), self._sid, revision))
        found += [Step(_NAME, [sid, *each], _NAME_TYPES) for each in names]
        found += [step(_RAISE, self.revision, self._sid, *journal) for journal in sorted(self._journals)]
        needs = {feature_of(call) for call in self._calls.values()} - {0}
        if any([is_held(ref) for refs in self._refs.values() for ref in refs]):
            needs.add(FILES)
        found += [step(_NEED, each, each, each) for each in needs]
        if rows or calls or self._keyframes or self._segments or self._drops or any(self._refs.values()):
            found += self._more_steps(rows, calls, uid)
        wholes = sorted(self._whole - self._blobs.keys())
        found += [step(_WHOLE, wholes)] if wholes else []
        if self._drops:
            found += self._drop_steps()
        if self._cuts and self.line is not None:
            found.append(step(_CUT, self.line.touched, list(self._cuts), list(self._cuts.values())))
        if self._wakes:
            found.append(step(_TELL))
        return found

    def _number_values(self) -> list[Sent]:
        """The number to touch the session with, if that is another; and the next one, if it must be that: for a run."""
        line = self.line
        if line is None or (self._session is not None and line.touched == self._session.touched):
            return [None, None]
        given = any([isinstance(row, LaneRow) and row.run > self._last for row in self._names.values()])
        given |= bool(self._cuts)
        return [pack_int(line.touched), pack_int(self._last + 1) if given and not self._known.reserved else None]

    def _session_values(self) -> list[Sent]:
        line = self.line
        if line is None:
            return _NOTHING
        named = self._expect is None or (line.hidden, line.id) != self._known.place
        return [
            *([pack_bool(line.hidden), text_bytes(line.id), line.uid] if named else _NOTHING[:3]),
            pack_int(line.checkpoints),
            pack_int(line.logical_bytes),
            pack_int(time_era(line.updated_us)),
            None if self._has_facets_of(line) else pack_ints(sorted(facets_of(line))),
            pack(line, line.uid),
        ]

    def _has_facets_of(self, line: SessionRow) -> bool:
        """True if the server has the facets of a line already."""
        return self._expect is not None and self._session is not None and faceted(line) == faceted(self._session)

    def _name_values(self, uid: bytes) -> list[list[Sent]]:
        """Names as `name_2` has them, in the order in which they are locked."""
        found: list[list[Sent]] = []
        for name in sorted({*self._seen, *self._names}):
            expect = self._seen.get(name, _ANY)
            values: list[Sent] = [text_bytes(name), None if expect is None else pack_int(expect)]
            row = self._names.get(name)
            if row is not None:
                columns = [None if column is None else pack_int(column) for column in name_columns(row)]
                values += [pack_int(self.revision), *columns, pack(row, uid)]
            else:
                raised = name in self._raised and expect is not None
                values += [pack_int(self.revision) if raised else None, *_NOTHING[:5]]
            found.append(values)
        return found

    def _more_steps(self, rows: list[CheckpointRow], calls: list[CallRow], uid: bytes) -> list[Step]:
        """Rows that `write_2` has no room for, and references."""
        sid = self._sid
        sid_ = None if sid is None else pack_int(sid)
        found: list[Step] = []
        if calls:
            found.append(
                step(_CALLS, sid, *_columns([call.at for call in calls], 3), [pack(call, uid) for call in calls])
            )
        if rows:
            old = [row.sequence for row in rows if not self._is_new(row)]
            if old and sid is not None:
                found += _free_steps(sid, old)
            keys = _columns([(self._slot(row), row.sequence, row.parent) for row in rows], 3)
            found.append(step(_CHECKPOINTS, sid, *keys, [pack(row, uid) for row in rows]))
        if self._keyframes:
            bodies = [row.data for row in self._keyframes.values()]
            found.append(step(_KEYFRAMES, sid, list(self._keyframes), bodies))
        foreign = [row for row in rows if is_foreign(row, uid)]
        if foreign:
            ids = [pack_id(row.id) for row in foreign]
            found.append(step(_FOREIGN, sid, [row.sequence for row in foreign], ids))
        found += self._ref_steps(uid)
        # Behind the references: these look at the segments that go.
        found += [Step(_PACK, [sid_, *_segment_values(row, uid)], _PACK_TYPES) for row in self._segments.values()]
        return found

    def _ref_steps(self, uid: bytes) -> list[Step]:
        """The references of all rows; those of packed checkpoints are kept by the checkpoint too."""
        gone = [(kind, number, number) for kind, number in self._refs if number <= self._last_sequence]
        gone += [(kind, key, key) for kind, key in self._drops if isinstance(key, int)]
        new = [(*at, digest) for at, refs in self._refs.items() for digest in dict.fromkeys(refs)]
        for segment in self._segments.values():
            if segment.refs is not None:
                gone.append((Kind.SEGMENT, segment.first, segment.last))
                new += [(Kind.CHECKPOINT, *each) for each in _segment_refs(segment, uid)]
        every = any([kind is Kind.SESSION for kind, _ in self._drops])
        if not (gone or new or every):
            return []
        needed = sorted({digest for _, _, digest in new})
        blobs = [self._blobs.get(digest) for digest in needed]
        contents = blobs if any(blobs) else []
        return [step(_REFER, self._sid, every, *_columns(gone, 3), *_columns(new, 3), needed, contents)]

    @property
    def _last_sequence(self) -> int:
        return 0 if self._session is None else self._session.sequence

    def _is_new(self, row: CheckpointRow) -> bool:
        """A checkpoint behind the last one is new: neither had it a row before, nor references."""
        return row.sequence > self._last_sequence

    def _slot(self, row: CheckpointRow) -> int:
        return slot_of(row.sequence, 0 if self._session is None else self._session.packed)

    def _row_values(self, row: CheckpointRow, uid: bytes) -> list[Sent]:
        parent = None if row.parent is None else pack_int(row.parent)
        foreign = pack_id(row.id) if is_foreign(row, uid) else None
        return [pack_int(self._slot(row)), pack_int(row.sequence), parent, pack(row, uid), foreign]

    def _drop_steps(self) -> list[Step]:
        sid = self._sid
        keys: dict[Kind, list[Any]] = {kind: [key for each, key in self._drops if each is kind] for kind in Kind}
        if keys[Kind.SESSION]:
            return [step(f"DELETE FROM {{schema}}.{table} WHERE sid = %s", sid) for table in _OF_A_SESSION]
        found: list[Step] = []
        if keys[Kind.CALL]:
            found.append(step(_DROP_CALLS, *_columns([(*at, None)[:3] for at in keys[Kind.CALL]], 3), sid))
        for kind, (table, column) in _KEYED.items():
            gone = all_text_bytes(keys[kind]) if kind is Kind.NAME else keys[kind]
            if gone:
                found.append(step(f"DELETE FROM {{schema}}.{table} WHERE sid = %s AND {column} = ANY(%s)", sid, gone))
        if keys[Kind.CHECKPOINT]:
            found += _free_steps(sid, keys[Kind.CHECKPOINT])
        if keys[Kind.SEGMENT]:
            found.append(step(_DROP_SEGMENTS, sid, keys[Kind.SEGMENT]))
        return found


def _free_steps(sid: int | None, sequences: list[int]) -> list[Step]:
    """Checkpoints that have rows of their own, and are not to have them any more."""
    return [
        step(_FREE_ROWS, sid, slots_of(sequences), sequences),
        step(_DROP_IDS, sid, sorted({at >> 7 for at in sequences}), sequences),
    ]


def _call_values(call: CallRow, uid: bytes) -> list[Sent]:
    return [pack_int(call.run), pack_int(call.journal), pack_int(call.n), pack(call, uid)]


def _segment_values(row: SegmentRow, uid: bytes) -> list[Sent]:
    segment = open_segment(row, uid=uid)
    entries, starts, parents = index_of(segment)
    foreign = segment.foreign()
    return [
        pack_int(SEGMENTS),
        pack_int(row.first),
        pack_int(row.last),
        None if row.needs is None else pack_int(row.needs),
        pack_int(entries),
        pack_ints(starts),
        pack_ints(parents),
        row.links,
        row.body,
        pack_ints(list(foreign)),
        pack_texts([pack_id(id_) for id_ in foreign.values()]),
    ]


def _segment_refs(row: SegmentRow, uid: bytes) -> list[tuple[int, bytes]]:
    """Each blob that a segment needs with the checkpoint that needs it."""
    if not row.refs:
        return []
    entries = open_segment(row, uid=uid).rows(delta=True, refs=True)
    rows = [each for each in entries if isinstance(each, CheckpointRow)]
    found = [(each.sequence, ref) for each in rows for ref in each.refs or () if ref in row.refs]
    said = {ref for _, ref in found}
    return list(dict.fromkeys([*found, *[(row.first, ref) for ref in row.refs if ref not in said]]))


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    return [[row[at] for row in rows] for at in range(count)]
