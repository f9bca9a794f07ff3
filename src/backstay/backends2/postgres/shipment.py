"""What one round trip carries: the batches of one or several writes to one session, and what they rest on.

Later batches were decided on what the earlier ones leave, so of each row only the last state is sent. Every row is
expected as it was before the first of them. Puts come before drops; so nothing is added behind a batch that drops.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from backstay.backends2.postgres.protocol import (
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
from backstay.backends2.postgres.views import LOOK_TYPES, Known, Watched, look_values, name_columns
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
    SessionRow,
    TagRow,
)
from backstay.port.row_codec import is_foreign, pack

MOST_WRITES = 64  # as many as a block has numbers
MOST_BYTES = 4 * 1024 * 1024

_TYPES = (
    *LOOK_TYPES,
    *(BOOL, INT, INT, INT, INT, INT, INT, BYTES_LIST, BOOL, BOOL),
    *(BOOL, BYTES, BYTES, INT, INT, BYTES, BYTES, BYTES),
    *(INT_LIST, INT_LIST, INT_LIST),
    *(BYTES_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST, BYTES_LIST),
    *(INT_LIST, INT_LIST, INT_LIST, INT_LIST, BYTES_LIST),
    *(INT_LIST, INT_LIST, BYTES_LIST, INT_LIST, BYTES_LIST, INT_LIST, BYTES_LIST),
    *(INT_LIST, INT_LIST, INT_LIST, INT_LIST, BYTES_LIST, BYTES_LIST, BYTES_LIST),
    *(BOOL, BYTES_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST, INT_LIST),
)
WRITE = "SELECT {schema}.write_2(" + ", ".join(["%s"] * len(_TYPES)) + ")"
WRITE_TYPES = _TYPES


class Shipment:
    """See the module's text."""

    def __init__(self, known: Known) -> None:
        self.revision = secrets.randbits(62) + 1
        self.asks: list[Ask] = []
        self.lazy = True
        self.full = False
        self.refs: dict[tuple[Kind, int], tuple[bytes, ...]] = {}
        self._sid, self._session, self._expect = known.sid, known.session, known.revision
        self._fresh = known.fresh
        self._beside = known.beside_revision
        self._needs_session = self._bump = self._wakes = False
        self._names: dict[str, int | None] = {}
        self._counts: dict[JournalKey, int] = {}
        self._calls: dict[CallKey, int | None] = {}
        self._absent: set[str] = set()
        self._puts: dict[tuple[Kind, Key], Row] = {}
        self._drops: tuple[tuple[Kind, Key], ...] = ()
        self._blobs: dict[bytes, bytes] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._puts or self._drops)

    @property
    def line(self) -> SessionRow | None:
        """The session's line that is put."""
        row = self._puts.get((Kind.SESSION, ""))
        return row if isinstance(row, SessionRow) else None

    @property
    def jumps(self) -> int:
        """A number that a rule chose beyond those it was given: an import brings runs along. Otherwise 0."""
        line = self.line
        return line.touched if line is not None and line.touched >= self._fresh + MOST_WRITES else 0

    @property
    def ends(self) -> bool:
        """True if the session goes, or gets another name."""
        line = self.line
        moved = line is not None and self._session is not None
        moved = moved and (line.hidden, line.id) != (self._session.hidden, self._session.id)  # type: ignore[union-attr]
        return moved or any([kind is Kind.SESSION for kind, _ in self._drops])

    def add(self, ask: Ask, view: Watched, batch: Batch, known: Known) -> None:
        """A batch that was decided on a view of what is `known`, which takes it in."""
        self._rest_on(ask, view, known)
        for row in batch.puts:
            self._put(row, known)
        light = not batch.drops and all([_is_light(row, known) for row in batch.puts])
        self._bump |= not light
        self._needs_session |= not light
        self._drops = batch.drops
        self._blobs |= batch.blobs
        self._wakes |= batch.wakes
        self.lazy &= batch.lazy
        self.asks.append(ask)
        known.apply(batch, self.revision)
        self.full = bool(batch.drops) or self._bytes > MOST_BYTES or len(self.asks) == MOST_WRITES or self.ends

    def _rest_on(self, ask: Ask, view: Watched, known: Known) -> None:
        history = ask.sequences or ask.ids or ask.prefix or ask.children_of
        self._needs_session |= view.looked or ask.names is None or bool(history)
        for name in known.names if ask.names is None else ask.names:
            self._expect_row(self._names, name, known.names[name][1])
        for journal in [*ask.journals, *[(view.lanes[name].run, view.lanes[name].journal) for name in view.pending]]:
            self._counts.setdefault(journal, known.counts[journal])
            for n in range(known.counts[journal]):
                self._expect_row(self._calls, (*journal, n), known.calls[*journal, n][1])
        for name in view.counts:
            journal = view.lanes[name].run, view.lanes[name].journal
            self._counts.setdefault(journal, known.counts[journal])
        for at in ask.calls:
            self._expect_row(self._calls, at, known.calls[at][1])
        uid = known.uid
        if uid is not None:
            self._absent |= {id_ for id_ in ask.ids if id_ not in known.foreign and sequence_of(id_, uid) is None}

    def _expect_row(self, expected: dict[Any, int | None], key: Any, revision: int | None) -> None:
        if revision != self.revision:  # otherwise an earlier batch of this shipment puts it
            expected.setdefault(key, revision)

    def _put(self, row: Row, known: Known) -> None:
        if isinstance(row, SessionRow):
            self._puts[Kind.SESSION, ""] = row
        elif isinstance(row, LaneRow | TagRow):
            self._puts[Kind.NAME, row.name] = row
        elif isinstance(row, CallRow):
            self._puts[Kind.CALL, row.at] = row
            self._bytes += len(row.args or b"") + len(row.result or b"")
            if row.at[:2] in known.counts:
                self._counts.setdefault(row.at[:2], known.counts[row.at[:2]])
        else:
            kind = Kind.CHECKPOINT if isinstance(row, CheckpointRow) else Kind.KEYFRAME
            self._puts[kind, row.sequence] = row
            self._bytes += len(row.delta if isinstance(row, CheckpointRow) else row.data)
            if row.refs is not None:
                self.refs[kind, row.sequence] = row.refs

    # as it is sent

    def values(self, ask: Ask, uid: bytes | None, *, relaxed: bool) -> list[Sent]:
        """What `write_2` is given; `ask` is what it answers if something is not as expected."""
        line = self.line
        by_kind: dict[Kind, list[Any]] = {kind: [] for kind in Kind}
        for (kind, _), row in self._puts.items():
            by_kind[kind].append(row)
        uid = line.uid if line is not None else uid or b""
        expect = self._expect if line is not None or self._needs_session else 0
        return [
            *look_values(ask, uid),
            pack_bool(relaxed or self.lazy),
            pack_int(KNOWN.read),
            pack_int(KNOWN.write),
            pack_int(self.revision),
            None if self._sid is None else pack_int(self._sid),
            None if expect is None else pack_int(expect),
            None if self._beside is None else pack_int(self._beside),
            pack_texts(all_text_bytes(self._absent)),
            pack_bool(self._bump),
            pack_bool(self._wakes),
            *_session_values(line),
            *_columns([(run, journal, count) for (run, journal), count in self._counts.items()], 3),
            *self._name_values(uid),
            *self._call_values(uid),
            *_history_values(by_kind[Kind.CHECKPOINT], by_kind[Kind.KEYFRAME], uid),
            *self._ref_values(),
            *self._drop_values(),
        ]

    def _name_values(self, uid: bytes) -> list[Sent]:
        puts = {key: row for (kind, key), row in self._puts.items() if kind is Kind.NAME}
        only_seen = [name for name in self._names if name not in puts]
        names = [*only_seen, *puts]
        columns = [[0, None, None, None] if name not in puts else name_columns(puts[name]) for name in names]
        return [
            pack_texts(all_text_bytes(names)),
            pack_ints([self._names.get(name, 0) for name in names]),
            *_columns(columns, 4),
            pack_texts([pack(puts[name], uid) if name in puts else None for name in names]),
        ]

    def _call_values(self, uid: bytes) -> list[Sent]:
        puts = {key: row for (kind, key), row in self._puts.items() if kind is Kind.CALL}
        keys = [*[at for at in self._calls if at not in puts], *puts]
        return [
            *_columns(keys, 3),
            pack_ints([self._expected_call(at) for at in keys]),
            pack_texts([pack(puts[at], uid) if at in puts else None for at in keys]),
        ]

    def _expected_call(self, at: CallKey) -> int | None:
        if at in self._calls:
            return self._calls[at]
        count = self._counts.get(at[:2])
        return 0 if count is None or at[2] < count else None

    def _ref_values(self) -> list[Sent]:
        last = 0 if self._session is None else self._session.sequence
        # A checkpoint behind the last one is new: it had no references before.
        gone = [(kind, number) for kind, number in self.refs if number <= last]
        gone += [(kind, key) for kind, key in self._drops if kind in (Kind.CHECKPOINT, Kind.KEYFRAME)]
        new = [(kind, number, digest) for (kind, number), refs in self.refs.items() for digest in dict.fromkeys(refs)]
        needed = sorted({digest for _, _, digest in new})
        return [
            *_columns(gone, 2),
            *_columns([(kind, number) for kind, number, _ in new], 2),
            pack_texts([digest for _, _, digest in new]),
            pack_texts(needed),
            pack_texts([self._blobs.get(digest) for digest in needed]),
        ]

    def _drop_values(self) -> list[Sent]:
        keys: dict[Kind, list[Any]] = {kind: [key for each, key in self._drops if each is kind] for kind in Kind}
        return [
            pack_bool(bool(keys[Kind.SESSION])),
            pack_texts(all_text_bytes(keys[Kind.NAME])),
            *_columns([(*at, None)[:3] for at in keys[Kind.CALL]], 3),
            pack_ints(keys[Kind.KEYFRAME]),
            pack_ints(keys[Kind.CHECKPOINT]),
        ]


def _is_light(row: Row, known: Known) -> bool:
    """True if putting a row changes nothing that a session's revision stands for."""
    return isinstance(row, CallRow) or (isinstance(row, LaneRow) and known.names.get(row.name, (None,))[0] is not None)


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
        pack_texts([pack(row, uid) for row in keyframes]),
        pack_ints([row.sequence for row in foreign]),
        pack_texts(all_text_bytes([row.id for row in foreign])),
    ]


def _columns(rows: Sequence[Sequence[int | None]], count: int) -> list[Sent]:
    return [pack_ints([row[at] for row in rows]) for at in range(count)]
