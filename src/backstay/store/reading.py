"""From a ref to a state: the rows down to a keyframe, as of one moment, opened and verified.

A keyframe that is damaged costs nothing where its checkpoint has a delta too: it is passed over, and the state is read
from the one before. With `salvage` a record that does not open gives its shape, and its values are marked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from backstay.codec import is_held
from backstay.delta import Rebuilt, Record, Stretch, rebuild, refs_of
from backstay.errors import CorruptionError
from backstay.model import StateDict
from backstay.port import Backend, CheckpointRow, LaneRow, Records, SessionRow, Unreadable
from backstay.port.packed_line import Joined, PackedLine
from backstay.sealing import open_blob, open_delta, open_deltas, open_keyframe, salvage, unspill

_EMPTY_SHAPE = Record(b"\x90", b"")


class Loaded(msgspec.Struct, frozen=True):
    """A state with where it was read: `lane` if the ref was a branch. `rows` are those it was read from, oldest first.

    `weight_bytes` is what the deltas since the keyframe weigh, `keyframe_bytes` how large the state was there.
    """

    session: SessionRow
    lane: LaneRow | None
    row: CheckpointRow
    state: StateDict
    touched: frozenset[str]
    deltas: tuple[int, ...]
    keyframe_bytes: int
    blobs: frozenset[bytes]
    files: Any = None  # the list of files as it stands in the state, where it was taken out of it (store.files)


def load(backend: Backend, session: str, ref: str | int, *, salvage: bool = False) -> Loaded | Records:
    """The state at a branch, a tag or a sequence; the Records as they are if there is nothing by that ref."""
    if salvage:
        with contextlib.suppress(CorruptionError):  # a way around the damage loses nothing
            return load(backend, session, ref)
    without: set[int] = set()
    while True:
        records = backend.state(session, ref, salvage=salvage, without=without)
        if records.session is None or not records.rows:
            return records
        try:
            return _opened(records, records.session, salvage=salvage)
        except _KeyframeDamagedError as error:
            if not error.delta or error.sequence in without or salvage:
                raise
            without.add(error.sequence)


class _KeyframeDamagedError(CorruptionError):
    """A keyframe does not open; another may."""

    def __init__(self, row: CheckpointRow, why: str) -> None:
        super().__init__(why)
        self.sequence, self.delta = row.sequence, bool(row.delta)


def _opened(records: Records, session: SessionRow, *, salvage: bool) -> Loaded:
    rows = records.rows
    row, oldest = rows[-1], rows.oldest if isinstance(rows, PackedLine) else rows[0]
    if not isinstance(row, CheckpointRow):
        raise CorruptionError(row.why)
    joined, deltas = ([], []) if salvage else _deltas(records, oldest)
    keyframe = _keyframe(records, oldest, session.uid, salvaging=salvage)
    if salvage:
        behind = _salvaged(records, session.uid)
    else:
        base = joined[-1].state if joined else oldest.state_digest if isinstance(oldest, CheckpointRow) else b""
        behind = open_deltas(deltas, records.blobs, uid=session.uid, base=base) if deltas else []
    sizes = _sizes(joined, behind, records.blobs)
    chain: list[Record | Stretch] = [keyframe, *[each.record for each in joined], *behind]
    wanted = refs_of(chain)
    pieces = _pieces(wanted, records.blobs, salvaging=salvage) if wanted else {}
    rebuilt: Rebuilt = rebuild(chain, pieces, salvage=salvage)
    return Loaded(
        session,
        records.lane,
        row,
        rebuilt.state,
        rebuilt.touched,
        sizes,
        oldest.size_bytes if isinstance(oldest, CheckpointRow) else row.size_bytes,
        frozenset(wanted),
    )


def _deltas(
    records: Records, oldest: CheckpointRow | Unreadable
) -> tuple[list[Joined], list[tuple[bytes, bytes, bytes]]]:
    """The deltas of a state: those that lie together in segments joined, then those of rows, with tail and state."""
    rows = records.rows
    joined = None
    if isinstance(rows, PackedLine) and isinstance(oldest, CheckpointRow):
        joined = rows.deltas(oldest.state_digest)
    behind = rows[1:] if joined is None or not isinstance(rows, PackedLine) else rows.rows
    deltas: list[tuple[bytes, bytes, bytes]] = []
    for row in behind:
        if not isinstance(row, CheckpointRow):
            raise CorruptionError(row.why)
        deltas.append((row.delta, row.tail, row.state_digest))
    return joined or [], deltas


def _sizes(joined: Iterable[Joined], records: Iterable[Record], blobs: Mapping[bytes, bytes]) -> tuple[int, ...]:
    """How long each delta is; large values are read with their delta."""
    found: list[int] = []
    for each in joined:
        sizes = each.sizes
        for number, refs in each.refs.items():
            sizes[number] += sum([len(blobs.get(ref, b"")) for ref in refs])
        found += sizes
    for record in records:
        more = sum([len(blobs.get(ref, b"")) for ref in record.refs]) if record.refs else 0
        found.append(len(record.ops) + len(record.body) + more)
    return tuple(found)


def _salvaged(records: Records, uid: bytes) -> list[Record]:
    """The deltas of a state; the shape of one that does not open."""
    before, *rest = records.rows
    chain: list[Record] = []
    for row in rest:
        try:
            if not isinstance(row, CheckpointRow):
                raise CorruptionError(row.why)
            data = unspill(row.delta, records.blobs)
            base = before.state_digest if isinstance(before, CheckpointRow) else b""
            record = open_delta(data, uid=uid, tail=row.tail, base=base, state=row.state_digest)
        except CorruptionError:
            record = _shape(row.delta if isinstance(row, CheckpointRow) else b"", records.blobs)
        chain.append(record)
        before = row
    return chain


def _keyframe(records: Records, row: CheckpointRow | Unreadable, uid: bytes, *, salvaging: bool) -> Record:
    try:
        if not isinstance(row, CheckpointRow):
            raise CorruptionError(row.why)
        if records.keyframe is None:
            raise CorruptionError(f"the keyframe of checkpoint {row.id[:12]} is missing")
        data = unspill(records.keyframe, records.blobs)
        return open_keyframe(data, uid=uid, tail=row.tail, state=row.state_digest)
    except CorruptionError as error:
        if salvaging:
            return _shape(records.keyframe or b"", records.blobs)
        if isinstance(row, CheckpointRow):
            whole = records.rows[0]
            raise _KeyframeDamagedError(
                whole if isinstance(whole, CheckpointRow) else row, str(error.args[0])
            ) from error
        raise


def _shape(data: bytes, blobs: Mapping[bytes, bytes]) -> Record:
    try:
        return salvage(unspill(data, blobs)) or _EMPTY_SHAPE
    except CorruptionError:
        return _EMPTY_SHAPE


def _pieces(wanted: set[bytes], blobs: Mapping[bytes, bytes], *, salvaging: bool) -> dict[bytes, bytes]:
    pieces: dict[bytes, bytes] = {}
    for digest in wanted:
        try:
            if digest in blobs and not is_held(digest):
                pieces[digest] = open_blob(blobs[digest], digest)
        except CorruptionError:
            if not salvaging:
                raise
    return pieces
