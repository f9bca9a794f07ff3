"""From a checkpoint to the records of its state: one statement brings the shortest way, whole copy and all.

Where that way is damaged it is walked again row by row. Nothing here needs one moment for all its statements: each
record's seal names the states it lies between, so what does not belong together does not open.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from holdfast import packing
from holdfast.backend import GROUP_DELTAS, Chain, next_prefix
from holdfast.backends.postgres.reads import blobs, no_checkpoint, row_of, sid_of
from holdfast.backends.postgres.texts import pack, pack_id, unpack_id
from holdfast.backends.postgres.wire import Wire
from holdfast.delta import LOST, Record
from holdfast.errors import CorruptionError

_LINK = "c.sequence, c.link, c.place, c.state_digest, c.size, c.base"
_CHAIN = "SELECT * FROM {schema}.chain_2(%s, %s)"
_KEY = (
    "SELECT (SELECT s.id FROM {schema}.sessions s WHERE s.sid = c.sid), c.id FROM {schema}.checkpoints c "
    "WHERE c.sid = %s AND c.sequence = %s"
)
_STEP = f"SELECT {_LINK}, c.delta, c.roll, c.whole, c.id FROM {{schema}}.checkpoints c WHERE sid = %s AND sequence = %s"

SPILLED = b"holdfast:spilled"  # begins a half that is too long for its row: the digests of the blobs it was cut into


class Link(NamedTuple):
    """One row on the way from a checkpoint to its whole copy."""

    sequence: int
    link: int | None
    place: int
    state_digest: bytes
    size: int
    base: int | None
    delta: bytes | None
    roll: bytes | None
    whole: bytes | None
    id: bytes


_LINK_COLUMNS = len(Link._fields)


def chain(wire: Wire, session: str, id_: str, *, salvage: bool = False) -> Chain:
    """The records of one state, by the shortest way; where that is damaged, by any other that is left."""
    found = wire.rows(_CHAIN, pack(session), pack_id(id_))
    if not found:
        sid_of(wire, session)
        raise no_checkpoint(id_)
    links = [Link(*each[:_LINK_COLUMNS]) for each in reversed(found)]
    epoch, *parents, digest, fields = found[0][_LINK_COLUMNS:]
    last = links[-1]
    row = row_of((last.link, last.id, last.sequence, *parents, last.state_digest, digest, fields))
    try:
        opened = _open_links(wire, links)
    except CorruptionError:
        opened = _Detour(wire, sid_of(wire, session), salvage=salvage).open(row.sequence)
    return Chain(
        row=row,
        records=tuple(opened.records),
        singles=opened.singles,
        roll_base=None if opened.base is None else unpack_id(opened.base),
        whole_bytes=opened.whole_bytes,
        place=opened.place,
        prefix=opened.prefix,
        epoch=epoch,
    )


def prefix_behind(wire: Wire, sid: int, sequence: int) -> bytes:
    """The prefix for a delta behind this checkpoint."""
    try:
        found = wire.rows(_CHAIN, *wire.one(_KEY, sid, sequence))
        return _open_links(wire, [Link(*each[:_LINK_COLUMNS]) for each in reversed(found)]).prefix
    except CorruptionError:
        return _Detour(wire, sid, salvage=False).open(sequence).prefix


class Opened:
    """A chain as far as it has been read."""

    __slots__ = ("base", "lost", "place", "prefix", "records", "singles", "whole_bytes")

    def __init__(self, whole: Record, link: Link) -> None:
        self.records = [whole]
        self.whole_bytes = link.size
        self.base: bytes | None = link.id
        self.singles = 0
        self.place = 0
        self.prefix = b""
        self.lost = False  # a body of this group could not be read, so what was packed against it cannot either

    def roll(self, record: Record, link: Link) -> None:
        self.records.append(record)
        self.base, self.singles, self.place, self.prefix = link.id, 0, link.place, b""

    def single(self, wire: Wire, link: Link, before: bytes, *, salvage: bool) -> None:
        if (link.place - 1) % GROUP_DELTAS == 0:
            self.prefix, self.lost = b"", False
        record = _open_delta(wire, link, before, self.prefix, salvage=salvage, lost=self.lost)
        if record is None or record.body == LOST:
            self.lost = True
        if record is not None:
            self.records.append(record)
            self.singles += 1
            self.prefix = next_prefix(link.place, self.prefix, record.body)
        self.place = link.place
        if link.whole is not None:  # passed over on a detour: the deltas behind it begin anew
            self.place, self.prefix, self.base = 0, b"", None


def _open_links(wire: Wire, links: list[Link]) -> Opened:
    first = links[0] if links else None
    if first is None or first.whole is None:
        raise _missing("the whole copy at the beginning of a chain")
    opened = Opened(packing.open_whole(join(wire, first.whole), state=first.state_digest), first)
    before = first.state_digest
    for link in links[1:]:
        if link.roll is not None:
            opened.roll(packing.open_roll(link.roll, base=before, state=link.state_digest), link)
        else:
            opened.single(wire, link, before, salvage=False)
        before = link.state_digest
    return opened


class _Detour:
    """Reading row by row when the shortest way is damaged.

    Past a bad whole copy to an older one, past a bad roll by its single deltas. With `salvage`, what cannot be read
    at all leaves its shape, or nothing.
    """

    def __init__(self, wire: Wire, sid: int, *, salvage: bool) -> None:
        self._wire = wire
        self._sid = sid
        self._salvage = salvage

    def open(self, sequence: int) -> Opened:
        way: list[Link] = []
        at: int | None = sequence
        opened: Opened | None = None
        while at is not None and opened is None:
            found = self._wire.find(_STEP, self._sid, at)
            if found is None:
                break
            link = Link(*found)
            way.append(link)
            opened = self._whole(link)
            at = link.link
        if opened is None:
            if not self._salvage or not way:
                raise _missing("every whole copy before this checkpoint")
            opened = self._shape(way[-1])
        way.reverse()
        for before, link in pairwise(way):
            opened.single(self._wire, link, before.state_digest, salvage=self._salvage)
        opened.base = None
        return opened

    def _whole(self, link: Link) -> Opened | None:
        if link.whole is None:
            return None
        try:
            return Opened(packing.open_whole(join(self._wire, link.whole), state=link.state_digest), link)
        except CorruptionError:
            if (link.link is None or link.delta is None) and not self._salvage:  # there is no other way to this state
                raise
            return None

    def _shape(self, link: Link) -> Opened:
        try:
            shape = None if link.whole is None else packing.salvage(join(self._wire, link.whole))
        except CorruptionError:
            shape = None
        return Opened(shape or Record(b"\x90", b""), link)


def _missing(what: str) -> CorruptionError:
    return CorruptionError(f"{what} cannot be read", hint="run verify to see what is intact")


def _open_delta(wire: Wire, link: Link, before: bytes, prefix: bytes, *, salvage: bool, lost: bool) -> Record | None:
    data = link.delta
    try:
        if data is None:
            raise _missing("a delta")
        data = join(wire, data)
        if lost and packing.needs_prefix(data):
            return packing.salvage(data)
        return packing.open_delta(data, prefix=prefix, base=before, state=link.state_digest)
    except CorruptionError:
        if not salvage:
            raise
        return packing.salvage(data) if data else None


def spilled(data: bytes | None) -> list[bytes]:
    """The digests of the blobs that a half was cut into; none if it stands in its row."""
    if data is None or not data.startswith(SPILLED):
        return []
    return [data[at : at + 32] for at in range(len(SPILLED), len(data), 32)]


def join(wire: Wire, data: bytes) -> bytes:
    """A half as it was sealed."""
    parts = spilled(data)
    if not parts:
        return data
    found = blobs(wire, parts, salvage=False)
    return b"".join([found[digest] for digest in parts])


def refs_of_half(wire: Wire, data: Any) -> set[bytes]:
    """The blobs that a whole copy needs: those it was cut into, and those its record names."""
    return {*spilled(data), *packing.refs_in(join(wire, data))}
