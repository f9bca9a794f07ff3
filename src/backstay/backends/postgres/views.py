"""What is known of one session: asked of the server in one round trip, kept after a write, and seen by rules as a View.

Whatever a rule was shown is a dependency of its write, which names the revisions of the rows it saw; so it does no harm
if what is kept is old, and something may even be guessed: that a foreign id which is to be given is free. Only a
session's own row is a dependency when a rule has looked at it and not otherwise, so that the calls of a run do not miss
because somebody commits on another branch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from backstay.backends.postgres import foreign_ids, packed
from backstay.backends.postgres.protocol import Sent, all_text_bytes, pack_bool, pack_ints, pack_texts, text_bytes
from backstay.errors import CorruptionError
from backstay.hints import RUN_VERIFY
from backstay.ids import sequence_of
from backstay.model import counted
from backstay.port import (
    EVERY,
    Ask,
    Batch,
    CallKey,
    CallRow,
    CheckpointRow,
    Features,
    JournalKey,
    Kind,
    LaneRow,
    SegmentRow,
    SessionRow,
    TagRow,
    Unreadable,
    View,
    live_lanes,
    numbered,
    refuse_unknown,
)
from backstay.port.facets import facets_of, time_era
from backstay.port.lease import clock_us
from backstay.port.row_codec import is_foreign, marks_of, open_call, open_checkpoint, open_name, open_session
from backstay.port.segments import open_segment
from backstay.port.tables import named_by

LOOK = "SELECT {schema}.look_2(" + ", ".join(["%s"] * 17) + ")"
HOLD = "SELECT {schema}.hold_2(" + ", ".join(["%s"] * 18) + ")"
LOOK_TYPES = (16, 17, 1001, 16, 1016, 1001, 1001, 1001, 1016, 1001, 1001, 1016, 1016, 1016, 17, 16, 1016)
HOLD_TYPES = (*LOOK_TYPES, 17)

_EMPTY_LIST = struct.pack("!iii", 0, 0, 17)
_ONE, _TWO, _THREE, _FOUR, _SIX = [struct.Struct(f"!{count}q") for count in (1, 2, 3, 4, 6)]
_MOST_NAMES = 256
_MOST_CALLS = 1024
_MOST_BYTES = 1 << 20


class Watched(View, kw_only=True):
    """A view that remembers whether the session's row was looked at. Of the ids in `guessed` nothing is known."""

    looked: bool = False
    guessed: tuple[str, ...] = ()

    @property  # type: ignore[misc]
    def session(self) -> SessionRow | None:
        self.looked = True
        row: SessionRow | None = _kept_session(self)
        return row

    @session.setter
    def session(self, row: SessionRow | None) -> None:
        _keep_session(self, row)


_kept_session, _keep_session = View.session.__get__, View.session.__set__  # type: ignore[union-attr]


def joined(asks: Iterable[Ask]) -> Ask:
    """One ask for what several want to know of one session. A prefix and a session beside it are those of the first."""
    first, *others = asks
    for ask in others:
        names = None if first.names is None or ask.names is None else _both(first.names, ask.names)
        pending = None if first.pending is None or ask.pending is None else _both(first.pending, ask.pending)
        first = msgspec.structs.replace(
            first,
            names=names,
            heads=first.heads or ask.heads,
            sequences=_both(first.sequences, ask.sequences),
            ids=_both(first.ids, ask.ids),
            children_of=_both(first.children_of, ask.children_of),
            pending=pending,
            counted=_both(first.counted, ask.counted),
            calls=_both(first.calls, ask.calls),
            journals=_both(first.journals, ask.journals),
            segments=_both(first.segments, ask.segments),
        )
    return first


def _both(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(one + other)) if one and other else one or other


def look_values(ask: Ask, uid: bytes | None) -> list[Sent]:
    """What the server is asked. Where the ids of a session with this `uid` lead, only we can tell."""
    pending = ask.names if ask.pending is None else ask.pending
    keys: list[tuple[int, int, int | None]] = [*ask.calls, *[(*at, None) for at in ask.journals]]
    located = [] if uid is None else [sequence_of(id_, uid) for id_ in ask.ids]
    sequences = [*ask.sequences, *[at for at in located if at is not None]]
    within = foreign_ids.ranges(ask.prefix) if ask.prefix else []
    return [
        pack_bool(ask.hidden),
        text_bytes(ask.session),
        pack_texts(all_text_bytes(ask.names or ())),
        pack_bool(ask.names is None),
        pack_ints(list(dict.fromkeys(sequences))),
        pack_texts([foreign_ids.pack_id(id_) for id_ in ask.ids]) if ask.ids else None,
        pack_texts([low for low, _ in within]),
        pack_texts([high for _, high in within]),
        pack_ints(ask.children_of),
        _EMPTY_LIST if pending is None else pack_texts(all_text_bytes(pending)),
        pack_texts(all_text_bytes(ask.counted)),
        pack_ints([key[0] for key in keys]),
        pack_ints([key[1] for key in keys]),
        pack_ints([key[2] for key in keys]),
        None if ask.beside is None else text_bytes(ask.beside),
        pack_bool(ask.heads),
        pack_ints(ask.segments),
    ]


Named = tuple[LaneRow | TagRow | None, int | None]  # with its revision
Called = CallRow | Unreadable | None
_ABSENT: tuple[None, None] = (None, None)


class KnownSession:
    """See the module's text. What is said of checkpoints, foreign ids and other sessions holds as it was read only."""

    def __init__(self, ask: Ask) -> None:
        self.place = ask.hidden, ask.session
        self.read = ask  # what was asked of the server, as long as nothing was written since
        self._nothing = Ask(ask.session)
        self.pristine = True  # read within this very call, and nothing decided since
        self.sid: int | None = None
        self.session: SessionRow | None = None
        self.revision: int | None = None
        self.found: int | None = None  # the revision when it was read
        self.names: dict[str, Named] = {}
        self.every = ask.names is None
        self.counts: dict[JournalKey, int] = {}
        self.calls: dict[CallKey, Called] = {}
        self.checkpoints: dict[int, CheckpointRow | Unreadable] = {}
        self.foreign: dict[str, int] = {}
        self.children: dict[int, list[int]] = {}
        self.segments: dict[int, SegmentRow] = {}
        self.beside: SessionRow | None = None
        self.beside_revision: int | None = None
        self.last = 0  # of the numbers that were given
        self.reserved = False  # the next one is for this view alone
        self.losses = 0
        self.ahead_us = 0  # of this process's clock
        self._held_bytes = 0  # by calls that were put, roughly

    @classmethod
    def of_nothing(cls, session: str, *, ahead_us: int) -> KnownSession:
        """A session of which a reader has just seen that it is not there."""
        known = cls(Ask(session, names=EVERY))
        known.ahead_us, known.pristine = ahead_us, False
        return known

    @property
    def uid(self) -> bytes | None:
        """The session's uid."""
        return None if self.session is None else self.session.uid

    def has_name(self, name: str) -> bool:
        """True if a branch or tag of this name is known to be there."""
        return self.names.get(name, _ABSENT)[0] is not None

    def heard(self, now_us: int, last: int) -> None:
        """Set the clock by the server's."""
        self.ahead_us = now_us - clock_us()
        self.last = last

    # what a rule sees

    def view(self, ask: Ask, *, again: bool = False) -> Watched | None:
        """The answer to an ask; None if it is not known here."""
        now_us = clock_us() + self.ahead_us
        view = Watched(now_us=now_us, wall_us=now_us, fresh=self.last + 1, again=again)
        if not self._covers(ask):
            return None
        view.beside = self.beside
        if self.session is None:
            return view
        names = self.names if ask.names is None else {name: self.names.get(name, _ABSENT) for name in ask.names}
        rows = [row for row, _ in names.values()]
        lanes = {row.name: row for row in rows if isinstance(row, LaneRow)}
        view.session = self.session
        view.lanes = lanes
        view.tags = {row.name: row for row in rows if isinstance(row, TagRow)}
        view.live = live_lanes(lanes.values(), now_us=now_us, wall_us=now_us, server_clock=True)
        for name in lanes if ask.pending is None else ask.pending:
            if name in lanes:
                journal = self._journal((lanes[name].run, lanes[name].journal))
                if journal is None:
                    return None
                view.pending = {**view.pending, name: journal}
        for at in ask.journals:
            journal = self._journal(at)
            if journal is None:
                return None
            view.journals = {**view.journals, at: journal}
        counted = {
            name: self.counts.get((lanes[name].run, lanes[name].journal)) for name in ask.counted if name in lanes
        }
        if None in counted.values() or not all([at in self.calls for at in ask.calls]):
            return None
        view.counts = {name: count or 0 for name, count in counted.items()}
        view.calls = {at: row for at in ask.calls if (row := self.calls[at]) is not None}
        if ask.sequences or ask.ids or ask.prefix or ask.children_of or ask.heads or ask.segments:
            self._show_history(view, ask)
            view.guessed = tuple([id_ for id_ in ask.ids if id_ not in self.read.ids])
        return view

    def _covers(self, ask: Ask) -> bool:
        if not self.every and (ask.names is None or not all([name in self.names for name in ask.names])):
            return False
        read, uid = self.read, self.uid
        history = ask.sequences or ask.segments or ask.ids or ask.children_of or ask.heads
        return not (history or ask.prefix or ask.beside) or (
            all([at in read.sequences for at in ask.sequences])
            and all([at in read.segments for at in ask.segments])
            and all([id_ in read.ids or (uid is not None and sequence_of(id_, uid) is None) for id_ in ask.ids])
            and all([at in read.children_of for at in ask.children_of])
            and (read.heads or not ask.heads)
            and ask.prefix in ("", read.prefix)
            and ask.beside in (None, read.beside)
        )

    def _journal(self, at: JournalKey) -> list[CallRow | Unreadable] | None:
        """All calls under a journal; None if not all are known."""
        count = self.counts.get(at)
        if count is None:
            return None
        keys = [(*at, n) for n in range(count)]
        if not all([key in self.calls for key in keys]):
            return None
        return numbered([call for key in keys if (call := self.calls[key]) is not None], *at)

    def _show_history(self, view: View, ask: Ask) -> None:
        uid = self.uid or b""
        wanted = list(ask.sequences)
        if ask.heads:
            wanted += [lane.head.sequence for lane in view.lanes.values() if lane.head is not None]
            wanted += [tag.sequence for tag in view.tags.values()]
        for id_ in ask.ids:
            at = self.foreign.get(id_)
            at = sequence_of(id_, uid) if at is None else at
            row = None if at is None else self.checkpoints.get(at)
            if at is not None and (isinstance(row, Unreadable) or (row is not None and row.id == id_)):
                wanted.append(at)
        view.checkpoints = {at: self.checkpoints[at] for at in wanted if at in self.checkpoints}
        view.foreign = {
            id_: at for id_, at in self.foreign.items() if id_ in ask.ids or (ask.prefix and id_.startswith(ask.prefix))
        }
        view.children = {at: sorted(self.children.get(at, ())) for at in ask.children_of}
        kept = [packed.covering(self.segments, at) for at in ask.segments]
        view.segments = {row.first: row for row in kept if row is not None}

    # what a write made of it

    def apply(self, batch: Batch, revision: int) -> None:
        """Take in what a rule decided, as it will be once it is written."""
        last, behind = self.last, 0 if self.session is None else self.session.sequence
        for row in batch.puts:
            if isinstance(row, SessionRow):  # first of all: it has the uid
                self.session, self.revision = row, revision
                self.last = max(self.last, row.touched)
        for row in batch.puts:
            if isinstance(row, LaneRow | TagRow):
                self.names[row.name] = row, revision
                # Nothing was ever recorded under a run or on a head that is only just there, or without a run.
                if isinstance(row, LaneRow) and (not row.run or row.run > last or row.journal > behind):
                    self.counts.setdefault((row.run, row.journal), 0)
            elif isinstance(row, CallRow):
                self.calls[row.at] = row
                self._held_bytes += len(row.args or b"") + len(row.result or b"")
                if row.at[:2] in self.counts:
                    self.counts[row.at[:2]] = max(self.counts[row.at[:2]], row.n + 1)
            elif isinstance(row, CheckpointRow):
                self.checkpoints[row.sequence] = row
                if is_foreign(row, self.uid or b""):
                    self.foreign[row.id] = row.sequence
        for kind, key in batch.drops:
            if kind is Kind.NAME:
                self.names[str(key)] = _ABSENT
            elif kind is Kind.CALL and isinstance(key, tuple):
                self.counts.pop(key[:2], None)
                self.calls = {at: call for at, call in self.calls.items() if at[: len(key)] != key}
        if batch.puts or batch.drops:
            self.read, self.pristine, self.beside = self._nothing, False, None

    def raised(self, names: Iterable[str], revision: int) -> None:
        """Take in that names have another revision."""
        for name in names:
            self.names[name] = self.names[name][0], revision

    def written(self, answer: bytes) -> None:
        """Take in what the server says of a write."""
        now_us, last, self.sid, touched = _FOUR.unpack(answer)
        if touched and self.session is not None and self.session.touched != touched:
            self.session = msgspec.structs.replace(self.session, touched=touched)
        self.heard(now_us, last)

    def remember(self, past: KnownSession) -> None:
        """Take in what was known of other names, if nobody has written to the session since."""
        if past.sid == self.sid and past.revision == self.found is not None:
            self.names = past.names | self.names
            self.counts = past.counts | self.counts
            self.calls = past.calls | self.calls
            self.every |= past.every

    def trimmed(self) -> KnownSession | None:
        """What is worth keeping after a write."""
        if self.session is None:
            return None
        if len(self.names) > _MOST_NAMES:
            self.names, self.every = {}, False
        if len(self.calls) > _MOST_CALLS or self._held_bytes > _MOST_BYTES:
            self.calls, self._held_bytes = {}, 0
        if len(self.counts) > _MOST_NAMES:
            self.counts = {}
        self.checkpoints, self.foreign, self.children, self.segments = {}, {}, {}, {}
        self.read, self.pristine, self.reserved = self._nothing, False, False
        return self


def known_of(answer: list[bytes], ask: Ask, *, writing: bool) -> KnownSession:
    """What the server's answer to an ask says; CorruptionError where a row does not open, or is missing."""
    known = KnownSession(ask)
    now_us, last, *features = _FOUR.unpack_from(answer[0], 1)
    refuse_unknown(Features(*features), writing=writing)
    known.heard(now_us, last)
    uid, totals, links = b"", None, list[SegmentRow]()
    if len(answer[-1]) == _ONE.size:
        known.last, known.reserved = _ONE.unpack(answer.pop())[0] - 1, True
    for part in answer[1:]:
        kind, rest = part[:1], memoryview(part)[1:]
        if kind == b"s":
            known.sid, known.revision, touched = _THREE.unpack_from(rest)
            known.found = known.revision
            known.session = session_of(bytes(rest[24:]), ask.session, touched, hidden=ask.hidden)
            uid = known.session.uid
        elif kind == b"b" and ask.beside is not None:
            _, known.beside_revision, touched = _THREE.unpack_from(rest)
            known.beside = session_of(bytes(rest[24:]), ask.beside, touched)
        elif kind == b"n":
            revision, *columns, size = _SIX.unpack_from(rest)
            name = bytes(rest[48 : 48 + size]).decode("utf-8", "surrogatepass")
            known.names[name] = name_of(bytes(rest[48 + size :]), uid, name, columns), revision
        elif kind == b"k":
            at = _THREE.unpack_from(rest)
            known.calls[at] = open_call(bytes(rest[24:]), uid=uid, at=at)
        elif kind == b"m":
            run, journal, count = _THREE.unpack_from(rest)
            known.counts[run, journal] = count
        elif kind == b"c":
            sequence, parent = _TWO.unpack_from(rest)
            known.checkpoints[sequence] = checkpoint_of(bytes(rest[16:]), uid, sequence, parent)
        elif kind in (b"g", b"l"):
            row = packed.segment_of(part[1:])
            links.append(row)
            if kind == b"g":
                known.segments[row.first] = row
        elif kind == b"p":
            parent, sequence = _TWO.unpack_from(rest)
            known.children.setdefault(parent, []).append(sequence)
        elif kind == b"f":
            known.foreign[foreign_ids.open_id(part[9:])] = _ONE.unpack_from(rest)[0]
        else:
            totals = _TWO.unpack_from(rest)
    _complete(known, ask)
    if known.session is not None:
        whole = _open_packed(known, ask, links)
        if totals is not None:  # something is not there; -1: not of this kind
            if totals[0] >= 0:
                count_names(known.session, totals[0])
            if totals[1] >= 0 and not whole:
                count_checkpoints(known.session, totals[1])
    return known


def _open_packed(known: KnownSession, ask: Ask, links: Iterable[SegmentRow]) -> bool:
    """Find the checkpoints that are packed, and the children in segments; False if a checkpoint is not there."""
    uid = known.uid or b""
    wanted = {*ask.sequences, *[at for id_ in ask.ids if (at := sequence_of(id_, uid)) is not None]}
    wanted |= {known.foreign[id_] for id_ in ask.ids if id_ in known.foreign}
    if ask.heads:
        wanted |= {at for row, _ in known.names.values() if (at := named_by(row)) is not None}
    for at in wanted - set(known.checkpoints):
        kept = packed.covering(known.segments, at)
        row = None if kept is None else open_segment(kept, uid=uid).row(at)
        if row is not None:
            known.checkpoints[at] = row
    children = packed.children(links, ask.children_of, uid)
    for parent in ask.children_of:
        known.children.setdefault(parent, []).extend(children[parent])
    return wanted <= set(known.checkpoints)


def _complete(known: KnownSession, ask: Ask) -> None:
    """Note what is absent, and which journals have come whole."""
    for name in ask.names or ():
        known.names.setdefault(name, _ABSENT)
    for at in ask.calls:
        known.calls.setdefault(at, None)
    lanes = {name: row for name, (row, _) in known.names.items() if isinstance(row, LaneRow)}
    pending = lanes if ask.pending is None else [name for name in ask.pending if name in lanes]
    for journal in [*ask.journals, *[(lanes[name].run, lanes[name].journal) for name in pending]]:
        ns = [at[2] for at, row in known.calls.items() if at[:2] == journal and row is not None]
        known.counts[journal] = max(ns, default=-1) + 1
        for n in range(known.counts[journal]):  # a gap is seen as such
            known.calls.setdefault((*journal, n), None)


def count_names(line: SessionRow, here: int) -> None:
    """CorruptionError if names are missing; a hidden session is being filled or emptied, and not counted."""
    if not line.hidden and here != line.lanes + line.tags:
        message = f"session {line.id!r}: it has {here} branches and tags and counts {line.lanes + line.tags}"
        raise CorruptionError(message, hint=RUN_VERIFY)


def count_checkpoints(line: SessionRow, here: int) -> None:
    """The same for checkpoints."""
    if not line.hidden and here != line.checkpoints:
        message = f"session {line.id!r}: it has {counted(here, 'checkpoint')} and counts {line.checkpoints}"
        raise CorruptionError(message, hint=RUN_VERIFY)


def session_of(body: bytes, id_: str, touched: int, *, hidden: bool = False) -> SessionRow:
    """A session's line with the server's own number in it; see `schema`."""
    return msgspec.structs.replace(open_session(body, id_=id_, hidden=hidden), touched=touched)


def line_columns(row: SessionRow) -> list[Any]:
    """What the server knows of a session's line."""
    return [row.uid, row.checkpoints, row.logical_bytes, time_era(row.updated_us), sorted(facets_of(row))]


def name_columns(row: LaneRow | TagRow) -> list[int | None]:
    """What the server knows of a name: marks, run, journal, and the sequence it leads to."""
    if isinstance(row, TagRow):
        return [0, None, None, row.sequence]
    return [marks_of(row), row.run, row.journal, None if row.head is None else row.head.sequence]


def name_of(body: bytes, uid: bytes, name: str, columns: list[int]) -> LaneRow | TagRow:
    """A branch or tag; CorruptionError if it is damaged, or its columns say otherwise."""
    row = open_name(body, uid=uid, name=name)
    if [-1 if column is None else column for column in name_columns(row)] != columns:
        raise CorruptionError(f"the row of {name!r} does not agree with its index", hint=RUN_VERIFY)
    return row


def checkpoint_of(body: bytes, uid: bytes, sequence: int, parent: int | None) -> CheckpointRow | Unreadable:
    """A checkpoint; -1 is no parent."""
    return open_checkpoint(body, uid=uid, sequence=sequence, parent=None if parent == -1 else parent)
