"""What one round trip carries: the batches of one or several writes to one session, and what they rest on.

Later batches were decided on what the earlier ones leave, so of each row only the last state is sent. Every row is
expected as it was before the first of them. Puts come before drops; so nothing is added behind a batch that drops.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from backstay.backends.postgres.protocol import (
    BOOL,
    BYTES,
    BYTES_LIST,
    INT,
    INT_LIST,
    Sent,
    all_text_bytes,
    pack_bool,
    pack_int,
    pack_ints,
    pack_texts,
    text_bytes,
)
from backstay.backends.postgres.views import LOOK_TYPES, KnownSession, Watched, look_values, name_columns
from backstay.ids import sequence_of
from backstay.port import (
    KNOWN,
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
)
from backstay.port.row_codec import is_foreign, pack
from backstay.port.rows import kind_of

MOST_WRITES = 64
MOST_BYTES = 4 * 1024 * 1024

_TYPES = (
    *LOOK_TYPES,
    *(BOOL, INT, INT, INT, INT, INT, INT, BYTES_LIST, BOOL, BOOL),
    *(BOOL, BYTES, BYTES, INT, INT, BYTES, BYTES, BYTES, INT, INT),
    *(INT_LIST, INT_LIST, INT_LIST),
    *(BYTES_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST, BYTES_LIST),
    *(INT_LIST, INT_LIST, INT_LIST, INT_LIST, BYTES_LIST),
    *(INT_LIST, INT_LIST, BYTES_LIST, INT_LIST, BYTES_LIST, INT_LIST, BYTES_LIST),
    *(INT_LIST, INT_LIST, INT_LIST, INT_LIST, BYTES_LIST, BYTES_LIST, BYTES_LIST),
    *(BOOL, BYTES_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST),
)
WRITE = "SELECT {schema}.write_2(" + ", ".join(["%s"] * len(_TYPES)) + ")"
WRITE_TYPES = _TYPES

_NO_COLUMNS = (0, None, None, None)


class Shipment:
    """See the module's text."""

    def __init__(self, known: KnownSession) -> None:
        self.revision = secrets.randbits(62) + 1
        self.asks: list[Ask] = []
        self.full = False
        self.line: SessionRow | None = None
        self._known = known
        self._sid, self._session, self._expect = known.sid, known.session, known.revision
        self._last = known.last
        self._lazy = True
        self.light = True  # neither rests on the session's row nor changes what its revision stands for; see `schema`
        self._wakes = False
        # What is expected: revisions of names and calls, how many calls there are, foreign ids that nobody has.
        self._seen_names: dict[str, int | None] = {}
        self._seen_calls: dict[CallKey, int | None] = {}
        self._counts: dict[JournalKey, int] = {}
        self._absent: set[str] = set()
        self._names: dict[str, LaneRow | TagRow] = {}
        self._calls: dict[CallKey, CallRow] = {}
        self._rows: dict[int, CheckpointRow] = {}
        self._keyframes: dict[int, KeyframeRow] = {}
        self._refs: dict[tuple[Kind, int], tuple[bytes, ...]] = {}
        self._blobs: dict[bytes, bytes] = {}
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
        self._rest_on(ask, view)
        light = not batch.drops
        for row in batch.puts:
            light &= isinstance(row, CallRow) or (isinstance(row, LaneRow) and known.has_name(row.name))
            self._put(row)
        self.light &= light
        self._drops = batch.drops
        self._blobs |= batch.blobs
        self._wakes |= batch.wakes
        self._lazy &= batch.lazy
        self.asks.append(ask)
        known.apply(batch, self.revision)
        many = self._bytes > MOST_BYTES or len(self.asks) == MOST_WRITES
        self.full = bool(batch.drops) or many or self.ends or known.reserved

    def _rest_on(self, ask: Ask, view: Watched) -> None:
        known = self._known
        history = ask.sequences or ask.ids or ask.prefix or ask.children_of
        self.light &= not (view.looked or ask.names is None or history or ask.beside is not None)
        for name in known.names if ask.names is None else ask.names:
            self._see(self._seen_names, name, known.names.get(name, (None, None))[1])
        for journal in [*ask.journals, *[(view.lanes[name].run, view.lanes[name].journal) for name in view.pending]]:
            self._counts.setdefault(journal, known.counts[journal])
            for n in range(known.counts[journal]):
                self._see(self._seen_calls, (*journal, n), known.calls[*journal, n][1])
        for name in view.counts:
            journal = view.lanes[name].run, view.lanes[name].journal
            self._counts.setdefault(journal, known.counts[journal])
        for at in ask.calls:
            self._see(self._seen_calls, at, known.calls[at][1])
        if ask.ids and known.uid is not None:
            uid = known.uid
            self._absent |= {id_ for id_ in ask.ids if id_ not in known.foreign and sequence_of(id_, uid) is None}

    def _see(self, seen: dict[Any, int | None], key: Any, revision: int | None) -> None:
        if revision != self.revision:  # otherwise an earlier batch of this shipment puts it
            seen.setdefault(key, revision)

    def _put(self, row: Row) -> None:
        if isinstance(row, SessionRow):
            self.line = row
        elif isinstance(row, LaneRow | TagRow):
            self._names[row.name] = row
        elif isinstance(row, CallRow):
            self._calls[row.at] = row
            self._bytes += len(row.args or b"") + len(row.result or b"")
            if row.at[:2] in self._known.counts:
                self._counts.setdefault(row.at[:2], self._known.counts[row.at[:2]])
        else:
            if isinstance(row, CheckpointRow):
                self._rows[row.sequence] = row
                self._bytes += len(row.delta)
            elif isinstance(row, KeyframeRow):
                self._keyframes[row.sequence] = row
                self._bytes += len(row.data)
            if row.refs is not None:
                self._refs[kind_of(row), row.first if isinstance(row, SegmentRow) else row.sequence] = row.refs

    # as it is sent

    def values(self, ask: Ask, uid: bytes | None, *, relaxed: bool) -> list[Sent]:
        """What `write_2` is given; `ask` is what it answers if something is not as expected."""
        line = self.line
        uid = line.uid if line is not None else uid or b""
        beside = self._known.beside_revision
        return [
            *look_values(ask, uid),
            pack_bool(relaxed or self._lazy),
            pack_int(KNOWN.read),
            pack_int(KNOWN.write),
            pack_int(self.revision),
            None if self._sid is None else pack_int(self._sid),
            None if self._expect is None else pack_int(self._expect),
            None if beside is None else pack_int(beside),
            pack_texts(all_text_bytes(self._absent)) if self._absent else None,
            pack_bool(self.light),
            pack_bool(self._wakes),
            *_session_values(line),
            *self._number_values(line),
            *_columns([(*journal, count) for journal, count in self._counts.items()], 3),
            *self._name_values(uid),
            *self._call_values(uid),
            *_history_values(list(self._rows.values()), list(self._keyframes.values()), uid),
            *self._ref_values(),
            *self._drop_values(),
        ]

    def _number_values(self, line: SessionRow | None) -> list[Sent]:
        """The number to touch the session with, if that is another; and the next one, if it must be that: for a run."""
        if line is None or (self._session is not None and line.touched == self._session.touched):
            return [None, None]
        given = any([isinstance(row, LaneRow) and row.run > self._last for row in self._names.values()])
        return [pack_int(line.touched), pack_int(self._last + 1) if given and not self._known.reserved else None]

    def _name_values(self, uid: bytes) -> list[Sent]:
        puts = self._names
        names = sorted({*self._seen_names, *puts})  # the order in which they are locked
        return [
            pack_texts(all_text_bytes(names)),
            pack_ints([self._seen_names.get(name, 0) for name in names]),
            *_columns([name_columns(puts[name]) if name in puts else _NO_COLUMNS for name in names], 4),
            pack_texts([pack(puts[name], uid) if name in puts else None for name in names]),
        ]

    def _call_values(self, uid: bytes) -> list[Sent]:
        puts = self._calls
        keys = sorted({*self._seen_calls, *puts})
        return [
            *_columns(keys, 3),
            pack_ints([self._expected_call(at) for at in keys]),
            pack_texts([pack(puts[at], uid) if at in puts else None for at in keys]),
        ]

    def _expected_call(self, at: CallKey) -> int | None:
        if at in self._seen_calls:
            return self._seen_calls[at]
        count = self._counts.get(at[:2])
        return 0 if count is None or at[2] < count else None

    def _ref_values(self) -> list[Sent]:
        last = 0 if self._session is None else self._session.sequence
        # A checkpoint behind the last one is new: it had no references before.
        gone = [at for at in self._refs if at[1] <= last]
        gone += [(kind, key) for kind, key in self._drops if isinstance(key, int)]
        new = [(*at, digest) for at, refs in self._refs.items() for digest in dict.fromkeys(refs)]
        needed = sorted({digest for _, _, digest in new})
        return [
            *_columns(gone, 2),
            *_columns(new, 2),
            pack_texts([digest for _, _, digest in new]),
            pack_texts(needed),
            pack_texts([self._blobs.get(digest) for digest in needed]),
        ]

    def _drop_values(self) -> list[Sent]:
        if not self._drops:
            return [b"\0", None, None, None, None, None, None]
        keys: dict[Kind, list[Any]] = {kind: [key for each, key in self._drops if each is kind] for kind in Kind}
        return [
            pack_bool(bool(keys[Kind.SESSION])),
            pack_texts(all_text_bytes(keys[Kind.NAME])),
            *_columns([(*at, None)[:3] for at in keys[Kind.CALL]], 3),
            pack_ints(keys[Kind.KEYFRAME]),
            pack_ints(keys[Kind.CHECKPOINT]),
        ]


def _session_values(line: SessionRow | None) -> list[Sent]:
    if line is None:
        return [None] * 8
    return [
        pack_bool(line.hidden),
        text_bytes(line.id),
        line.uid,
        pack_int(line.checkpoints),
        pack_int(line.logical_bytes),
        text_bytes(line.status),
        None if line.agent is None else text_bytes(line.agent),
        pack(line, line.uid),
    ]


def _history_values(rows: list[CheckpointRow], keyframes: list[KeyframeRow], uid: bytes) -> list[Sent]:
    foreign = [row for row in rows if is_foreign(row, uid)]
    return [
        pack_ints([row.sequence for row in rows]),
        pack_ints([row.parent for row in rows]),
        pack_texts([pack(row, uid) for row in rows]),
        pack_ints([row.sequence for row in keyframes]),
        pack_texts([row.data for row in keyframes]),
        pack_ints([row.sequence for row in foreign]),
        pack_texts(all_text_bytes([row.id for row in foreign])),
    ]


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[Sent]:
    return [pack_ints([row[at] for row in rows]) for at in range(count)] if rows else [None] * count
