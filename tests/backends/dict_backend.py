"""A fifth backend: one dict of bytes, written with what docs/backends.md says and nothing else.

A Disk, which several backends may share, holds the dict. A write changes a copy and puts it in place, so a reader that
keeps hold of the dict sees one moment, without a lock. Look-ups that a real store has an index for are loops here.

    i hidden id        -> sid      the number that a session's rows hang on
    r sid kind key     -> Kept     a row: its sealed body, and beside it what is looked for
    b digest           -> a blob
    last, sids         -> a number: the largest `touched` ever put, the largest sid ever given
"""

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from backstay import port
from backstay.codec import HELD_MARK
from backstay.errors import ClosedError, CorruptionError
from backstay.ids import sequence_of
from backstay.model import Problem
from backstay.port import Ask, Batch, CheckpointRow, Kind, LaneRow, Records, SessionRow, TagRow, Unreadable, View
from backstay.port import row_codec as codec
from backstay.port.lease import clock_us
from backstay.port.rows import key_of, kind_of
from backstay.port.tables import chain, is_wanted, named_by
from backstay.sealing import is_cut


class Kept(msgspec.Struct, array_like=True):
    key: Any
    body: bytes
    parent: int | None = None
    foreign: str | None = None
    refs: tuple[bytes, ...] = ()


kept_in = msgspec.msgpack.Decoder(Kept).decode


def number(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def place(sid: bytes, kind: Kind, key: Any = ()) -> bytes:
    parts = key.encode() if isinstance(key, str) else b"".join(map(number, (key,) if isinstance(key, int) else key))
    return b"r" + sid + bytes([kind]) + (b"" if kind is Kind.SESSION else parts)


def name_of(hidden: bool, id_: str) -> bytes:
    return b"i" + bytes([hidden]) + id_.encode()


class Moment:
    """All that was kept at one moment."""

    def __init__(self, kept: dict[bytes, bytes]) -> None:
        self.kept = kept

    def under(self, prefix: bytes) -> list[Kept]:
        return [kept_in(self.kept[key]) for key in sorted([key for key in self.kept if key.startswith(prefix)])]

    def blobs(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        return {digest: self.kept[b"b" + digest] for digest in digests if b"b" + digest in self.kept}

    def whole(self, digests: Collection[bytes]) -> set[bytes]:
        return {digest for digest, data in self.blobs(digests).items() if not is_cut(digest, data)}

    def keep(self, blobs: Mapping[bytes, bytes]) -> None:
        there, whole = self.blobs(blobs), self.whole(blobs)
        for digest, data in blobs.items():
            if digest not in there or (digest not in whole and not is_cut(digest, data)):
                self.kept[b"b" + digest] = data

    def used(self) -> set[bytes]:
        return {ref for kept in self.under(b"r") for ref in kept.refs}

    def swept(self, among: Collection[bytes]) -> dict[bytes, bytes]:
        gone = {b"b" + ref for ref in among} - {b"b" + ref for ref in self.used()} if among else ()
        return {key: data for key, data in self.kept.items() if key not in gone}

    def session(self, id_: str, *, hidden: bool = False) -> "One | None":
        sid = self.kept.get(name_of(hidden, id_))
        if sid is None:
            return None
        found = self.kept.get(place(sid, Kind.SESSION))
        if found is None:
            raise CorruptionError(f"the line of session {id_!r} is missing", hint="run verify")
        return One(self, sid, codec.open_session(kept_in(found).body, id_=id_, hidden=hidden))

    def sessions(self, *, hidden: bool = False) -> "list[One]":
        ids = [key[2:].decode() for key in self.kept if key.startswith(name_of(hidden, ""))]
        return sorted([one for id_ in ids if (one := self.session(id_, hidden=hidden))], key=lambda x: -x.line.touched)


class One:
    """One session at one moment."""

    def __init__(self, moment: Moment, sid: bytes, line: SessionRow) -> None:
        self.moment, self.sid, self.line = moment, sid, line

    def kept(self, kind: Kind, key: port.Key) -> Kept | None:
        found = self.moment.kept.get(place(self.sid, kind, key))
        return None if found is None else kept_in(found)

    def all(self, kind: Kind, under: Any = ()) -> list[Kept]:
        return self.moment.under(place(self.sid, kind, under))

    def row(self, kind: Kind, kept: Kept | None) -> Any:
        key = None if kept is None else tuple(kept.key) if kind is Kind.CALL else kept.key
        return None if kept is None else codec.open_row(kind, key, kept.body, uid=self.line.uid, parent=kept.parent)

    def expect(self, kind: Kind) -> None:
        """For what was asked for and is not there: an error if rows are missing that the session counts."""
        count = self.line.checkpoints if kind is Kind.CHECKPOINT else self.line.lanes + self.line.tags
        if not self.line.hidden and len(self.all(kind)) != count:
            raise CorruptionError(f"session {self.line.id!r}: rows are missing that it counts", hint="run verify")

    def some(self, kind: Kind, keys: Sequence[port.Key] | None) -> list[Any]:
        found = self.all(kind) if keys is None else [self.kept(kind, key) for key in dict.fromkeys(keys)]
        if (keys is None or None in found) and kind is not Kind.CALL:
            self.expect(kind)
        return [self.row(kind, kept) for kept in found if kept is not None]

    def fill(self, view: View, ask: Ask) -> None:
        """Answer an ask."""
        view.session = self.line
        names = self.some(Kind.NAME, ask.names)
        view.lanes = lanes = {row.name: row for row in names if isinstance(row, LaneRow)}
        view.tags = {row.name: row for row in names if isinstance(row, TagRow)}
        view.live = port.live_lanes(lanes.values(), now_us=view.now_us, wall_us=view.wall_us)
        index = self.all(Kind.CHECKPOINT) if ask.ids or ask.prefix or ask.children_of else []
        view.children = {at: [kept.key for kept in index if kept.parent == at] for at in ask.children_of}
        foreign = {kept.foreign: kept.key for kept in index if kept.foreign is not None}
        view.foreign = {i: foreign[i] for i in foreign if i in ask.ids or (ask.prefix and i.startswith(ask.prefix))}
        located = {foreign.get(id_) or sequence_of(id_, self.line.uid) or 0: id_ for id_ in ask.ids}
        named = [*ask.sequences, *[at for row in names if ask.heads and (at := named_by(row))]]
        rows = {key_at(row): row for row in self.some(Kind.CHECKPOINT, [*named, *located])}
        right = {at for at, id_ in located.items() if at in rows and getattr(rows[at], "id", id_) == id_}
        view.checkpoints = {at: row for at, row in rows.items() if at in right or at in named}
        pending = {name: self.journal(lane.run, lane.journal) for name, lane in lanes.items()}
        view.pending = {name: calls for name, calls in pending.items() if ask.pending is None or name in ask.pending}
        view.counts = {name: len(calls) for name, calls in pending.items() if name in ask.counted}
        view.calls = {key_at(row): row for row in self.some(Kind.CALL, ask.calls)}
        view.journals = {at: self.journal(*at) for at in ask.journals}

    def journal(self, run: int, journal: int) -> list[Any]:
        return port.numbered([self.row(Kind.CALL, k) for k in self.all(Kind.CALL, (run, journal))], run, journal)

    def checkpoint(self, at: int) -> Any:
        return self.row(Kind.CHECKPOINT, self.kept(Kind.CHECKPOINT, at))


def key_at(row: Any) -> Any:
    return row.key if isinstance(row, Unreadable) else key_of(row)


class Disk:
    def __init__(self) -> None:
        self.kept, self.changes, self.lock = dict[bytes, bytes](), 0, threading.Lock()
        self.news = threading.Condition(self.lock)


class DictBackend:
    name, packs = "dict", False

    def __init__(self, disk: Disk) -> None:
        self.disk, self._pid, self._closed = disk, os.getpid(), False

    def _now(self) -> Moment:
        if self._closed or self._pid != os.getpid():
            raise ClosedError("this store is closed, or another process opened it", hint="open it again")
        return Moment(self.disk.kept)

    def read(self, ask: Ask) -> View:
        moment = self._now()
        last = int.from_bytes(moment.kept.get(b"last", b""))
        view = View(now_us=clock_us(), wall_us=time.time_ns() // 1000, fresh=last + 1)
        if session := moment.session(ask.session, hidden=ask.hidden):
            session.fill(view, ask)
        view.beside = one.line if ask.beside is not None and (one := moment.session(ask.beside)) else None
        return view

    def write(self, ask: Ask, decide: port.Decide) -> View:
        self._now()
        with self.disk.lock:
            view, batch = port.decided(self.read, ask, decide)
            if batch.puts or batch.drops:
                draft = Moment(dict(self.disk.kept))
                self.disk.kept = draft.swept(self._apply(draft, ask, batch))
                self.disk.changes += not batch.lazy
                self.disk.news.notify_all()
            return view

    def _apply(self, draft: Moment, ask: Ask, batch: Batch) -> set[bytes]:
        """Put and drop in a copy. The blobs that may have lost their last reference."""
        needed = {ref for row in batch.puts for ref in getattr(row, "refs", None) or ()}
        absent = needed - draft.blobs(needed).keys() - batch.blobs.keys()
        absent |= {*batch.whole} - draft.whole(batch.whole) - batch.blobs.keys()
        if absent:
            raise port.BlobsAbsentError(absent)
        draft.keep({ref: batch.blobs[ref] for ref in needed & batch.blobs.keys()})
        draft.kept.update({b"b" + digest: data for digest, data in batch.cuts.items() if b"b" + digest in draft.kept})
        session = draft.session(ask.session, hidden=ask.hidden)
        sid, uid = (b"", b"") if session is None else (session.sid, session.line.uid)
        name, released = name_of(ask.hidden, ask.session), set[bytes]()
        for row in sorted(batch.puts, key=lambda row: not isinstance(row, SessionRow)):  # its line comes first
            if isinstance(row, SessionRow):
                if not sid:
                    sid = draft.kept[b"sids"] = number(int.from_bytes(draft.kept.get(b"sids", b"")) + 1)
                draft.kept.pop(name, None)
                name, uid = name_of(row.hidden, row.id), row.uid
                draft.kept[name] = sid
                draft.kept[b"last"] = max(number(row.touched), draft.kept.get(b"last", b""))
            at, refs = place(sid, kind_of(row), key_of(row)), getattr(row, "refs", ())
            before = kept_in(draft.kept[at]).refs if at in draft.kept else ()
            kept = Kept(key_of(row), codec.pack(row, uid), refs=before if refs is None else refs)
            if isinstance(row, CheckpointRow):
                kept.parent, kept.foreign = row.parent, row.id if codec.is_foreign(row, uid) else None
            draft.kept[at] = msgspec.msgpack.encode(kept)
            released.update(before)
        for kind, key in batch.drops if sid else ():
            gone = [place(sid, kind, key)]
            if kind is Kind.SESSION:
                gone = [at for at in draft.kept if at.startswith(b"r" + sid)]
                draft.kept.pop(name, None)
            elif kind is Kind.CALL:  # a JournalKey is how the keys of its calls begin
                gone = [at for at in draft.kept if at.startswith(gone[0])]
            for at in gone:
                released.update(kept_in(draft.kept.pop(at)).refs if at in draft.kept else ())
        return released

    def state(self, session: str, ref: Any, *, salvage: bool = False, without: Collection[int] = ()) -> Records:
        one = self._now().session(session)
        if one is None:
            return Records(None)
        (name,) = one.some(Kind.NAME, [ref]) or [None] if isinstance(ref, str) else [None]
        lane = name if isinstance(name, LaneRow) else None
        at = ref if isinstance(ref, int) else named_by(name)
        at = at if name is not None or at is None or one.some(Kind.CHECKPOINT, [at]) else None
        rows, frame = chain(at, one.checkpoint, lambda at: one.kept(Kind.KEYFRAME, at), without)
        bad = [] if salvage else [row.why for row in rows if isinstance(row, Unreadable)]
        if bad:
            raise CorruptionError(f"session {session!r}: {bad[0]}", hint="run verify")
        needed = [one.kept(Kind.CHECKPOINT, key_at(row)) for row in rows[1:]] + [frame]
        blobs = one.moment.blobs([ref for kept in needed if kept is not None for ref in kept.refs])
        return Records(one.line, lane, tuple(rows), None if frame is None else frame.body, blobs)

    def ancestors(self, session: str, sequence: int, *, limit: int) -> Sequence[CheckpointRow | Unreadable]:
        one = self._now().session(session)
        found = one.some(Kind.CHECKPOINT, [sequence]) if one else []
        return chain(sequence, one.checkpoint, lambda _: None)[0][::-1][:limit] if one and found else []

    def scan(
        self, session: str, kind: Kind, *, after: Any = None, before: Any = None, limit: int, hidden: bool = False
    ) -> Sequence[Any]:
        one = self._now().session(session, hidden=hidden)
        rows = [one.row(kind, kept) for kept in one.all(kind)[:: 1 if before is None else -1]] if one else []
        page = [r for r in rows if (after is None or key_at(r) > after) and (before is None or key_at(r) < before)]
        return page[:limit]

    def sessions(self, query: port.SessionQuery) -> Sequence[SessionRow]:
        found = [one for one in self._now().sessions(hidden=query.hidden) if is_wanted(one.line, query)]
        id_, end = query.foreign, len(query.foreign or "") if query.foreign_start else None
        found = [x for x in found if id_ in (None, *[(k.foreign or "")[:end] for k in x.all(Kind.CHECKPOINT)])]
        return [one.line for one in found[: query.limit]]

    def lanes(self, query: port.LaneQuery) -> Sequence[port.FoundLane]:
        now_us, wall_us = clock_us(), time.time_ns() // 1000
        return [
            port.FoundLane(one.line, lane, bool(port.live_lanes([lane], now_us=now_us, wall_us=wall_us)))
            for one in self._now().sessions()
            for lane in one.some(Kind.NAME, None)
            if isinstance(lane, LaneRow) and codec.are_wanted(codec.marks_of(lane), query, wall_us)
        ]

    def absent(self, digests: Collection[bytes]) -> Collection[bytes]:
        return set(digests) - self._now().whole(digests)

    def put_blobs(self, blobs: Mapping[bytes, bytes]) -> None:
        with self.disk.lock:
            moment = Moment(dict(self._now().kept))
            moment.keep(blobs)
            self.disk.kept = moment.kept

    def blobs(self, digests: Collection[bytes]) -> Mapping[bytes, bytes]:
        return self._now().blobs(digests)

    def changes(self) -> int:
        self._now()
        return self.disk.changes

    def wait(self, seconds: float, *, since: int) -> None:
        self._now()
        with self.disk.lock:
            self.disk.news.wait_for(lambda: self.disk.changes != since, max(0.0, min(seconds, port.LOOK_S)))

    def sizes(self) -> port.Sizes:
        rows = [one.line for one in self._now().sessions()]
        checkpoints, logical = sum([row.checkpoints for row in rows]), sum([row.logical_bytes for row in rows])
        held = sum([len(data) for key, data in self.disk.kept.items() if key.startswith(b"b" + HELD_MARK)])
        return port.Sizes(len(rows), checkpoints, logical, sum(map(len, self.disk.kept.values())), held)

    def check(self) -> Iterator[Problem]:
        used, there = self._now().used(), self._now().blobs(self._now().used())
        return iter([Problem(what=f"blob {ref.hex()[:12]} is missing") for ref in used - there.keys()])

    def tend(self, *, repair: bool = False) -> Sequence[str]:
        with self.disk.lock:
            self.disk.kept = self._now().swept([key[1:] for key in self.disk.kept if key[:1] == b"b"])
        return []

    def close(self) -> None:
        self._closed = True
