"""Lanes for a history: which column each checkpoint is drawn in, and where lines begin, run and join. Pure.

A *strand* is a straight line of one branch: checkpoints of that branch, each the parent of the one above it. It ends
at the checkpoint it was forked from, or at the lower edge where the history goes on. A lane that a strand has left is
free for the next one, so that a long history with many short branches stays narrow. Strands for which there is no lane
left are *folded*: their checkpoints share the last lane and get no line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Node(NamedTuple):
    """A checkpoint as the layout needs it."""

    id: str
    parent: str | None
    branch: str


class Strand(NamedTuple):
    """A straight line: its branch and lane, its rows from top to bottom, and the row it was forked from.

    `goes_on`: its last checkpoint has a parent that is not among the rows.
    """

    branch: str
    lane: int
    rows: tuple[int, ...]
    fork: int | None
    goes_on: bool
    folded: bool


class Layout(NamedTuple):
    """Strands, the lane of each row, how many lanes there are, and the branches that are folded."""

    strands: tuple[Strand, ...]
    lanes: tuple[int, ...]
    width: int
    folded: tuple[str, ...]


class _OpenStrand:
    """A strand while it is followed."""

    def __init__(self, branch: str, row: int, parent: str | None) -> None:
        self.branch, self.rows, self.parent = branch, [row], parent
        self.fork: int | None = None

    def bottom(self, end: int) -> int:
        if self.fork is not None:
            return self.fork
        return self.rows[-1] if self.parent is None else end


def lay_out(nodes: Sequence[Node], *, trunk: str = "main", max_lanes: int = 12) -> Layout:
    """Lanes for checkpoints, newest first. The trunk has the first lane to itself."""
    lines = _lines(nodes)
    at = {node.id: row for row, node in enumerate(nodes)}
    for line in lines:
        line.fork = at.get(line.parent) if line.parent is not None else None
    if not any(line.branch == trunk for line in lines) and lines:
        trunk = lines[-1].branch  # the one that the oldest checkpoint was made on
    free_from: list[int] = []  # by lane: the row below which it is free
    placed: list[Strand] = []
    for line in sorted(lines, key=lambda line: (line.branch != trunk, line.rows[0])):
        lane = _free_lane(free_from, line.rows[0], first=0 if line.branch == trunk else 1)
        folded = lane >= max_lanes
        lane = min(lane, max_lanes - 1)
        if not folded:
            free_from += [-1] * (lane + 1 - len(free_from))
            free_from[lane] = len(nodes) if line.branch == trunk else line.bottom(len(nodes))
        goes_on = line.fork is None and line.parent is not None
        placed.append(Strand(line.branch, lane, tuple(line.rows), line.fork, goes_on, folded))
    lanes = [0] * len(nodes)
    for strand in placed:
        for row in strand.rows:
            lanes[row] = strand.lane
    folded_names = tuple(sorted({strand.branch for strand in placed if strand.folded}))
    return Layout(tuple(placed), tuple(lanes), max(lanes, default=0) + 1, folded_names)


def _lines(nodes: Sequence[Node]) -> list[_OpenStrand]:
    lines: list[_OpenStrand] = []
    wanted: dict[tuple[str, str], _OpenStrand] = {}  # by the checkpoint and branch that the line goes on with
    for row, node in enumerate(nodes):
        line = wanted.pop((node.id, node.branch), None)
        if line is None:
            line = _OpenStrand(node.branch, row, node.parent)
            lines.append(line)
        else:
            line.rows.append(row)
            line.parent = node.parent
        if node.parent is not None:
            wanted.setdefault((node.parent, node.branch), line)
    return lines


def _free_lane(free_from: list[int], row: int, *, first: int) -> int:
    for lane in range(first, len(free_from)):
        if free_from[lane] < row:
            return lane
    return max(first, len(free_from))
