"""Drawings as SVG: the branch graph, call bars, the cost plot, the columns of a list. Pure text.

Geometry attributes and classes only: no `style`, no colour, no script, so that the strictest policy lets them be. The
graph lies behind the rows and is stretched to their height; dots are lines of no length with round ends, and stay
round. Text in a drawing is made harmless and escaped here, because a template prints these as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10, sqrt
from typing import NamedTuple

from backstay.shapes.text import safe

ROW = 30  # the height of a row in the drawing; the page may stretch it
_LANE, _FIRST_X, _GUTTERS = 15, 28, (16, 8)
_BAR_ROOM = 111
_FEW_CALLS = 4
_COLUMNS = 14
_PLOT_W, _PLOT_H, _PLOT_TOP, _PLOT_BASE = 254, 132, 100, 112


def colour(tint: int) -> str:
    """The class that colours a branch; 0 is the trunk's, and the seventh is like the second."""
    return f"l{tint if tint == 0 else (tint - 1) % 5 + 1}"


class GraphRow(NamedTuple):
    """A row as the graph shows it. `kind` is point, tip, moved (a restore), pending, idle or crash.

    `back_to` is the row whose state a restore brought back; `tone` is that of a pending call: bad, wait or run.
    """

    kind: str
    lane: int
    tint: int
    back_to: int | None = None
    tone: str = "bad"


class GraphLine(NamedTuple):
    """A straight run in a lane: its first and last row, where it was forked from, whether it goes on below."""

    lane: int
    tint: int
    top: int
    bottom: int
    fork: int | None
    fork_lane: int
    goes_on: bool


def _x(lane: int) -> int:
    return _FIRST_X + _LANE * lane


def _y(row: float) -> int:
    return int(row * ROW + ROW // 2)


def lanes_class(lanes: int) -> str:
    """The class that makes the graph's column wide enough."""
    return next((f"lanes-{width}" for width in (4, 6, 9) if lanes <= width), "lanes-12")


def graph_width(lanes: int) -> int:
    """The width of the drawing."""
    return next((_x(width - 1) + 11 for width in (4, 6, 9) if lanes <= width), _x(11) + 11)


def graph(rows: Sequence[GraphRow], lines: Sequence[GraphLine], lanes: int) -> str:
    """The branch graph behind the rows."""
    out = [_line(line, len(rows)) for line in lines]
    for at, row in enumerate(rows):
        if row.kind in ("idle", "crash"):
            through = [line for line in lines if line.top < at < _reach(line, len(rows))]
            out += [_break(row.kind, _x(line.lane), _y(at), colour(line.tint)) for line in through]
            if row.kind == "crash":
                out.append(f'<path class="died" d="M0 {_y(at)}H{graph_width(lanes)}"/>')
    moves = [(at, row) for at, row in enumerate(rows) if row.back_to is not None]
    for n, (at, row) in enumerate(moves):
        out.append(_arrow(_x(row.lane), _GUTTERS[n % 2], _y(at), _y(row.back_to or 0)))
    out += [_dot(row, _y(at)) for at, row in enumerate(rows) if row.kind not in ("idle", "crash")]
    box = f'viewBox="0 0 {graph_width(lanes)} {ROW * len(rows)}"'
    return f'<svg class="graph" {box} preserveAspectRatio="none" aria-hidden="true">{"".join(out)}</svg>'


def _reach(line: GraphLine, end: int) -> int:
    if line.fork is not None:
        return line.fork
    return end if line.goes_on else line.bottom


def _line(line: GraphLine, end: int) -> str:
    x, of = _x(line.lane), colour(line.tint)
    bottom = ROW * end if line.goes_on else _y(line.bottom)
    path = f'<path class="run {of}" d="M{x} {_y(line.top)}V{bottom}"/>' if bottom > _y(line.top) else ""
    if line.fork is not None:
        px, py = _x(line.fork_lane), _y(line.fork)
        bend = 10 if px < x else -10
        path += (
            f'<path class="fork {of}" d="M{x} {_y(line.bottom)}V{max(_y(line.bottom), py - 20)}'
            f'C{x} {py - 6} {px + bend} {py} {px} {py}"/>'
        )
    return path


def _break(kind: str, x: int, y: int, of: str) -> str:
    if kind == "crash":
        return f'<path class="mask" d="M{x} {y - 9}V{y + 9}"/>'
    return f'<path class="mask" d="M{x} {y - 13}V{y + 13}"/><path class="gap {of}" d="M{x} {y - 11}V{y + 11}"/>'


def _arrow(x: int, gutter: int, y: int, to: int) -> str:
    """From a restore, by the gutter, to where its state came from."""
    return (
        f'<path class="back" d="M{x - 6} {y}H{gutter + 5}Q{gutter} {y} {gutter} {y + 6}V{to - 6}'
        f'Q{gutter} {to} {gutter + 5} {to}H{x - 7}"/><path class="arrow" d="M{x - 11} {to - 3.5}l4 3.5l-4 3.5"/>'
    )


def _dot(row: GraphRow, y: int) -> str:
    at, of = f'd="M{_x(row.lane)} {y}h.01"', colour(row.tint)
    if row.kind == "pending":
        line = f'<path class="pend pend-{row.tone}" d="M{_x(row.lane)} {y}V{y + ROW}"/>'
        return f'{line}<path class="node pend-node pend-{row.tone}" {at}/><path class="hole" {at}/>'
    if row.kind == "moved":
        return f'<path class="node {of}" {at}/><path class="hole" {at}/>'
    if row.kind == "tip":
        return f'<path class="tip {of}" {at}/><path class="tip-hole" {at}/>'
    return f'<path class="node {of}" {at}/>'


def bars(calls: Sequence[tuple[str, float]]) -> str:
    """The calls of a step as bars, (kind, seconds) each; the width is the square root of the time."""
    scale = 15.0 if len(calls) < _FEW_CALLS else 9.5
    widths = [max(2.5, sqrt(seconds) * scale) for _, seconds in calls]
    room = _BAR_ROOM - 2 * len(widths)
    if sum(widths) > room:
        shrink = max(room, 10) / sum(widths)
        widths = [max(1, width * shrink) for width in widths]
    x, out = 0.5, ""
    for (kind, _), width in zip(calls, widths, strict=True):
        if x + width > _BAR_ROOM + 1:
            break
        out += f'<rect class="b-{kind}" x="{x:.1f}" width="{width:.1f}"/>'  # the sheet knows its height
        x += width + 2
    return f'<svg class="bars" viewBox="0 0 112 14" preserveAspectRatio="none">{out}</svg>'


def spark(costs: Sequence[float]) -> str:
    """The cost of each of the last steps, as columns on a scale of their own."""
    costs = list(costs)[-_COLUMNS:]
    top = max(costs, default=0)
    if not top:
        return '<svg class="spark" viewBox="0 0 60 18" aria-hidden="true"></svg>'
    first = _COLUMNS - len(costs)
    cols = "".join(
        [
            f'<rect{" class=end" if n == len(costs) - 1 else ""} x="{(first + n) * 4.3:.1f}"'
            f' y="{16.5 - 15 * cost / top:.1f}"'
            f' width="3" height="{15 * cost / top + 0.5:.1f}"/>'
            for n, cost in enumerate(costs)
        ]
    )
    return f'<svg class="spark" viewBox="0 0 60 18" aria-hidden="true">{cols}</svg>'


class PlotLine(NamedTuple):
    """What a branch had used by each step, (step, so far) each; the first is where it was forked from."""

    name: str
    tint: int
    points: list[tuple[int, float]]
    forked: bool


def plot(lines: Sequence[PlotLine], label: str, *, unit: str = "$", first: str = "", last: str = "") -> str:
    """Use so far by step, a line for each branch; shared steps are drawn once."""
    steps = [step for line in lines for step, _ in line.points]
    low, high = min(steps), max(steps)
    top = max([used for line in lines for _, used in line.points])
    ticks = _ticks(top)

    def x(step: int) -> str:
        return f"{2 + (step - low) / max(1, high - low) * (_PLOT_W - 4):.1f}"

    def y(used: float) -> str:
        return f"{_PLOT_BASE - used / max(top, ticks[-1]) * _PLOT_TOP:.1f}"

    out = "".join(
        [
            f'<path class="axis" d="M0 {y(tick)}H256"/>'
            f'<text x="262" y="{float(y(tick)) + 3.5:.1f}">{_figure(tick, unit)}</text>'
            for tick in ticks
        ]
    )
    for line in sorted(lines, key=lambda line: -line.tint):
        points = " ".join([f"{x(step)},{y(used)}" for step, used in line.points])
        (begin, began), (end, ended) = line.points[0], line.points[-1]
        of = colour(line.tint)
        out += f'<polyline class="ln {of}" points="{points}"/>'
        out += f'<circle class="pt {of}" cx="{x(end)}" cy="{y(ended)}" r="3"/>'
        if line.forked:
            out += f'<circle class="fk {of}" cx="{x(begin)}" cy="{y(began)}" r="2.5"/>'
    out += f'<text x="0" y="128">{escape(first)}</text><text x="254" y="128" text-anchor="end">{escape(last)}</text>'
    said = escape(safe(label), quote=True)
    return f'<svg class="plot" viewBox="0 0 308 {_PLOT_H}" role="img" aria-label="{said}">{out}</svg>'


def _ticks(top: float) -> list[float]:
    """Zero and up to four round figures that reach the top."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / 3
    magnitude = 10.0 ** floor(log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= rough)
    return [step * n for n in range(ceil(top / step) + 1)]


def _figure(value: float, unit: str) -> str:
    if unit != "$":
        return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"  # noqa: PLR2004
    return f"${value:.4f}".rstrip("0").rstrip(".") if value else "$0"
