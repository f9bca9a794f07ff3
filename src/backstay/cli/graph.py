r"""A history as lanes, newest first, drawn like git draws it: `*` a checkpoint, `|` a lane, `/` where a branch left.

A checkpoint has one parent, so lanes only ever join downwards. A restore has a second edge, to the checkpoint whose
state it brought back: `\` leaves to the right and joins there again, if that lies below. Lanes are read as they are
drawn, a page at a time; nothing is read before its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from backstay.model import Checkpoint


class _Drawable(Protocol):
    """A session, as far as it is drawn."""

    def log(self, head: Checkpoint, /) -> Iterator[Checkpoint]:
        """A checkpoint and those before it."""

    def checkpoint(self, ref: str, /) -> Checkpoint:
        """The checkpoint at a ref."""


class Drawn(NamedTuple):
    """A checkpoint in its place: rows that come before it, what stands beside it, beside its further lines, and after.

    `begins` says that nothing was drawn above it in its lane.
    """

    point: Checkpoint
    before: list[str]
    mark: str
    beside: str
    after: list[str]
    begins: bool


class _Walk:
    """A lane along parents."""

    __slots__ = ("_rest", "point")

    def __init__(self, rest: Iterator[Checkpoint]) -> None:
        self._rest = rest
        self.point: Checkpoint = next(rest)

    def go_on(self) -> bool:
        found = next(self._rest, None)
        if found is not None:
            self.point = found
        return found is not None


class _Edge(NamedTuple):
    """A lane without checkpoints, to one that was brought back."""

    id: str
    sequence: int


_Lane = _Walk | _Edge | None  # None: the lane has ended and others stand to its right


def draw(session: _Drawable, heads: list[Checkpoint], *, restores: bool = True) -> Iterator[Drawn]:
    """Every checkpoint that can be reached from the heads, the latest first."""
    lanes: list[_Lane] = []
    waiting = sorted({head.id: head for head in heads}.values(), key=lambda head: head.sequence)
    while waiting or any(isinstance(lane, _Walk) for lane in lanes):
        walks = [lane for lane in lanes if isinstance(lane, _Walk)]
        highest = max([walk.point.sequence for walk in walks], default=-1)
        point = waiting[-1] if waiting and waiting[-1].sequence >= highest else None
        if point is None:
            point = next(walk.point for walk in walks if walk.point.sequence == highest)
        else:
            waiting.pop()
        yield _place(session, lanes, point, restores=restores)


def _place(session: _Drawable, lanes: list[_Lane], point: Checkpoint, *, restores: bool) -> Drawn:
    before: list[str] = []
    for n, lane in enumerate(lanes):
        if isinstance(lane, _Edge) and lane.sequence > point.sequence:
            lanes[n] = None  # what it led to is not shown here
    here = [n for n, lane in enumerate(lanes) if _leads_to(lane, point.id)]
    walks = [n for n in here if isinstance(lanes[n], _Walk)]
    begins = not walks
    if not here:
        here = [lanes.index(None)] if None in lanes else [len(lanes)]
        lanes[here[0] : here[0] + 1] = [_Walk(session.log(point))]
    elif begins:
        lanes[here[0]] = _Walk(session.log(point))
    else:
        lanes[here[0]] = lanes[walks[0]]
    at = here[0]
    for n in reversed(here[1:]):
        before.append(_row(lanes, joins=(at, n)))
        del lanes[n]
    _trim(lanes)
    mark = _row(lanes, star=at)
    walk = lanes[at]
    going_on = isinstance(walk, _Walk) and walk.go_on()
    if not going_on:
        lanes[at] = None
    after: list[str] = []
    beside = _row(lanes)
    target = _brought_back(session, point) if restores else None
    if target is not None and going_on and isinstance(walk, _Walk) and target.id != walk.point.id:
        lanes.insert(at + 1, None)
        after.append(_row(lanes, leaves=at))
        lanes[at + 1] = _Edge(target.id, target.sequence)
    _trim(lanes)
    return Drawn(point, before, mark, beside, after, begins)


def _leads_to(lane: _Lane, id_: str) -> bool:
    return lane is not None and (lane.point.id if isinstance(lane, _Walk) else lane.id) == id_


def _brought_back(session: _Drawable, point: Checkpoint) -> Checkpoint | None:
    from backstay.errors import BackstayError

    if point.restored_from is None:
        return None
    try:
        return session.checkpoint(point.restored_from)
    except BackstayError:
        return None  # pruned since


def _trim(lanes: list[_Lane]) -> None:
    while lanes and lanes[-1] is None:
        lanes.pop()


def _row(
    lanes: list[_Lane], *, star: int | None = None, joins: tuple[int, int] | None = None, leaves: int | None = None
) -> str:
    """One row: a column for each lane, with a gap before it that may hold a slanted line.

    `joins`: the second lane runs into the first here, and those behind it move to the left; `leaves`: a lane leaves
    this one to the right, and those behind it make room.
    """
    out: list[str] = []
    for n, lane in enumerate(lanes):
        gap, column = " ", " " if lane is None else "|"
        if joins is not None and n > joins[0]:
            if n < joins[1]:
                gap = "_"
            else:
                gap, column = "/" if lane is not None else " ", " "
        elif leaves is not None and n > leaves:
            gap, column = "\\" if lane is not None or n == leaves + 1 else " ", " "
        out.append((gap if n else "") + ("*" if n == star else column))
    return "".join(out).rstrip()
