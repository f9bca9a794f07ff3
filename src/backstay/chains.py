"""From rows to the records of a state: by the shortest way, and where that is damaged by any other that is left.

For backends whose rows hold a delta, a roll over several, a whole copy. What differs between them is where rows and
bytes come from, and how that fails: a Source says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from backstay import packing
from backstay.backend import GROUP_DELTAS, next_prefix
from backstay.delta import LOST, Record
from backstay.errors import CorruptionError
from backstay.model import Problem, SessionId

SPILLED = b"backstay:spilled"  # begins a half that is too long for its row: the digests of the blobs it was cut into
_DIGEST_BYTES = 32
_EMPTY_SHAPE = Record(b"\x90", b"")


class Link(NamedTuple):
    """One row on the way from a checkpoint to its whole copy. `number` is what its backend calls the row.

    `whole` is None where the whole copy is read apart from the row: `complete` says if there is one.
    """

    number: int
    link: int | None
    place: int
    state_digest: bytes
    size: int
    complete: bool
    delta: bytes | None
    roll: bytes | None
    whole: bytes | None = None


class Source(Protocol):
    """Where the rows of one session come from."""

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """What is raised for rows and bytes that are damaged."""

    def step(self, number: int) -> Link | None:
        """A row with its delta; None if it is not there."""

    def whole(self, link: Link) -> bytes:
        """The whole copy of a row, joined."""

    def blobs(self, digests: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Blobs, verified."""


class Opened:
    """A chain as far as it has been read."""

    __slots__ = ("base", "lost", "place", "prefix", "records", "singles", "whole_bytes")

    def __init__(self, whole: Record, link: Link) -> None:
        self.records = [whole]
        self.whole_bytes = link.size
        self.base: Link | None = link
        self.singles = 0
        self.place = 0
        self.prefix = b""
        self.lost = False  # a body of this group could not be read, so what was packed against it cannot either

    def roll(self, record: Record, link: Link) -> None:
        """Go on by a roll."""
        self.records.append(record)
        self.base, self.singles, self.place, self.prefix = link, 0, link.place, b""

    def single(self, source: Source, link: Link, before: bytes, *, salvage: bool) -> None:
        """Go on by a single delta."""
        if (link.place - 1) % GROUP_DELTAS == 0:
            self.prefix, self.lost = b"", False
        record = _open_delta(source, link, before, self.prefix, salvage=salvage, lost=self.lost)
        if record is None or record.body == LOST:
            self.lost = True
        if record is not None:
            self.records.append(record)
            self.singles += 1
            self.prefix = next_prefix(link.place, self.prefix, record.body)
        self.place = link.place
        if link.complete:  # passed over on a detour: the deltas behind it begin anew
            self.place, self.prefix, self.base = 0, b"", None


def open_links(source: Source, links: Sequence[Link]) -> Opened:
    """The shortest way: a whole copy, then rolls and deltas up to a checkpoint."""
    if not links or not links[0].complete:
        raise missing("the whole copy at the beginning of a chain")
    first = links[0]
    opened = Opened(packing.open_whole(source.whole(first), state=first.state_digest), first)
    before = first.state_digest
    for link in links[1:]:
        if link.roll is not None:
            opened.roll(packing.open_roll(link.roll, base=before, state=link.state_digest), link)
        else:
            opened.single(source, link, before, salvage=False)
        before = link.state_digest
    return opened


def detour(source: Source, number: int, *, salvage: bool) -> Opened:
    """Row by row, where the shortest way is damaged: past a bad whole copy to an older one, past a bad roll.

    With `salvage`, what cannot be read at all leaves its shape, or nothing.
    """
    way: list[Link] = []
    at: int | None = number
    opened: Opened | None = None
    while at is not None and opened is None:
        link = _step(source, at, salvage=salvage)
        if link is None:
            break
        way.append(link)
        opened = _whole(source, link, salvage=salvage)
        at = link.link
    if opened is None:
        if not salvage or not way:
            raise missing("every whole copy before this checkpoint")
        opened = _shape(source, way[-1])
    way.reverse()
    for before, link in pairwise(way):
        opened.single(source, link, before.state_digest, salvage=salvage)
    opened.base = None
    return opened


def _step(source: Source, number: int, *, salvage: bool) -> Link | None:
    try:
        return source.step(number)
    except source.faults:
        if not salvage:
            raise
        return None


def _whole(source: Source, link: Link, *, salvage: bool) -> Opened | None:
    if not link.complete:
        return None
    try:
        return Opened(packing.open_whole(source.whole(link), state=link.state_digest), link)
    except source.faults:
        if (link.link is None or link.delta is None) and not salvage:  # there is no other way to this state
            raise
        return None


def _shape(source: Source, link: Link) -> Opened:
    try:
        shape = packing.salvage(source.whole(link)) if link.complete else None
    except source.faults:
        shape = None
    return Opened(shape or _EMPTY_SHAPE, link)


def _open_delta(
    source: Source, link: Link, before: bytes, prefix: bytes, *, salvage: bool, lost: bool
) -> Record | None:
    data = link.delta
    try:
        if data is None:
            raise missing("a delta")
        data = join(source, data) if data.startswith(SPILLED) else data
        if lost and packing.needs_prefix(data):
            return packing.salvage(data)
        return packing.open_delta(data, prefix=prefix, base=before, state=link.state_digest)
    except source.faults:
        if not salvage:
            raise
        return packing.salvage(data) if data else None


def missing(what: str) -> CorruptionError:
    """The error for what must be there."""
    return CorruptionError(f"{what} cannot be read", hint="run verify to see what is intact")


def spilled(data: bytes | None) -> list[bytes]:
    """The digests of the blobs that a half was cut into; none if it stands in its row."""
    if data is None or not data.startswith(SPILLED):
        return []
    return [data[at : at + _DIGEST_BYTES] for at in range(len(SPILLED), len(data), _DIGEST_BYTES)]


def join(source: Source, data: bytes) -> bytes:
    """A half as it was sealed."""
    parts = spilled(data)
    if not parts:
        return data
    found = source.blobs(parts)
    return b"".join([found[digest] for digest in parts])


def broken_roll(session: str | None, id_: str, roll: bytes, base: bytes | None, state: bytes) -> Problem | None:
    """What is wrong with a merged delta, if it does not open. Each delta is also kept by itself."""
    try:
        if base is None:
            raise CorruptionError("its beginning is missing")
        packing.open_roll(roll, base=base, state=state)
    except CorruptionError as error:
        return Problem(
            what=f"checkpoint {id_[:12]}: its merged deltas cannot be read: {error.args[0]}",
            session_id=None if session is None else SessionId(session),
            cost="nothing is lost: the single deltas are read instead",
            remedy="copy the session with export while it is whole",
        )
    return None
