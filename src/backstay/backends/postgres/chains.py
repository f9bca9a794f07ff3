"""From a checkpoint to the records of its state: one statement brings the shortest way, whole copy and all.

Where that way is damaged it is walked again row by row. Nothing here needs one moment for all its statements: each
record's seal names the states it lies between, so what does not belong together does not open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay import packing
from backstay.backend import Chain
from backstay.backends.postgres.reads import blobs, no_checkpoint, row_of, sid_of
from backstay.backends.postgres.texts import pack, pack_id, unpack_id
from backstay.backends.postgres.wire import Wire
from backstay.chains import Link, detour, join, open_links, spilled
from backstay.errors import CorruptionError

_LINK = "c.sequence, c.link, c.place, c.state_digest, c.size, c.base"
_CHAIN = "SELECT * FROM {schema}.chain_1(%s, %s)"
_KEY = (
    "SELECT (SELECT s.id FROM {schema}.sessions s WHERE s.sid = c.sid), c.id FROM {schema}.checkpoints c "
    "WHERE c.sid = %s AND c.sequence = %s"
)
_STEP = f"SELECT {_LINK}, c.delta, c.roll, c.whole, c.id FROM {{schema}}.checkpoints c WHERE sid = %s AND sequence = %s"
_DELTA = "SELECT delta FROM {schema}.checkpoints WHERE sid = %s AND sequence = %s"
_SEQUENCE, _ID, _LINK_COLUMNS = 0, 9, 10


def chain(wire: Wire, session: str, id_: str, *, salvage: bool = False) -> Chain:
    """The records of one state, by the shortest way; where that is damaged, by any other that is left."""
    found = wire.rows(_CHAIN, pack(session), pack_id(id_))
    if not found:
        sid_of(wire, session)
        raise no_checkpoint(id_)
    links = _links(found)
    epoch, *parents, digest, fields = found[0][_LINK_COLUMNS:]
    last = links[-1]
    row = row_of((last.link, found[0][_ID], last.number, *parents, last.state_digest, digest, fields))
    try:
        opened = open_links(Rows(wire), links)
    except CorruptionError:
        opened = detour(Rows(wire, sid_of(wire, session)), row.sequence, salvage=salvage)
    ids = {each[_SEQUENCE]: each[_ID] for each in found}
    return Chain(
        row=row,
        records=tuple(opened.records),
        singles=opened.singles,
        roll_base=None if opened.base is None else unpack_id(ids[opened.base.number]),
        whole_bytes=opened.whole_bytes,
        place=opened.place,
        prefix=opened.prefix,
        epoch=epoch,
    )


def prefix_behind(wire: Wire, sid: int, sequence: int) -> bytes:
    """The prefix for a delta behind this checkpoint."""
    rows = Rows(wire, sid)
    try:
        return open_links(rows, _links(wire.rows(_CHAIN, *wire.one(_KEY, sid, sequence)))).prefix
    except CorruptionError:
        return detour(rows, sequence, salvage=False).prefix


def _links(found: Sequence[Any]) -> list[Link]:
    """The rows of a chain, the oldest first."""
    return [_link(each) for each in reversed(found)]


def _link(found: Any) -> Link:
    sequence, link, place, state_digest, size, _, delta, roll, whole, _ = found[:_LINK_COLUMNS]
    return Link(sequence, link, place, state_digest, size, whole is not None, delta, roll, whole)


class Rows:
    """The rows of one session as chains are read from them. Without the session no step can be made."""

    faults = (CorruptionError,)

    def __init__(self, wire: Wire, sid: int | None = None) -> None:
        self._wire = wire
        self._sid = sid

    def step(self, number: int) -> Link | None:
        found = self._wire.find(_STEP, self._sid, number)
        return None if found is None else _link(found)

    def whole(self, link: Link) -> bytes:
        return join(self, link.whole or b"")

    def blobs(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return blobs(self._wire, digests, salvage=False)

    def delta(self, number: int) -> bytes:
        return join(self, self._wire.one(_DELTA, self._sid, number)[0])

    def prefix_behind(self, number: int) -> bytes:
        return prefix_behind(self._wire, self._sid or 0, number)


def refs_of_half(wire: Wire, data: Any) -> set[bytes]:
    """The blobs that a whole copy needs: those it was cut into, and those its record names."""
    return {*spilled(data), *packing.refs_in(join(Rows(wire), data))}
