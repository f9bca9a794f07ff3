"""The timeline as SVG: a lane for each branch, a bar for each call, idle time cut out. Pure text, like `drawing`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from backstay.shapes.text import safe
from backstay.web.words import length

WIDTH = 1352  # what fits beside nothing else; longer ones scroll sideways
LANE, TOP = 84, 24
_MAX_WIDTH = 9000
_BAR_Y, _NESTED_Y, _MAX_NESTED = 38, 61, 2
_CUT, _NAMED_CUT_S = 22, 60.0
_SMALLEST, _LEGIBLE = 3.0, 9.0
_CHAR, _EDGE = 5.9, 6
_TICK_ROOM, _LABEL = 92, 54
_MAX_CUTS = 40
_NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


class TimeBar(NamedTuple):
    """A call: when (in seconds), what kind of bar, its words, where it leads, and how deep it is nested."""

    start: float
    end: float
    kind: str
    name: str
    href: str
    title: str
    depth: int = 0
    selected: bool = False


class TimeLane(NamedTuple):
    """A branch, or a child session: its calls, and moments with a word (a restore, say)."""

    bars: list[TimeBar]
    marks: list[tuple[float, str]]
    is_child: bool = False


class Scale:
    """From a moment to a place: linear where something happens, cut where nothing does."""

    def __init__(self, spans: list[tuple[float, float]], marks: list[tuple[float, float]]) -> None:
        busy = _merged(spans + marks)
        total = sum(end - start for start, end in busy) or 1.0
        gaps = sorted([after[0] - before[1] for before, after in pairwise(busy)], reverse=True)
        least = max(total / 30, gaps[_MAX_CUTS] if len(gaps) > _MAX_CUTS else 0.0)
        self.parts = _merged([(start, end + least) for start, end in busy])
        self.parts = [(start, max(start, end - least)) for start, end in self.parts]
        self.cuts = [(before[1], after[0]) for before, after in pairwise(self.parts)]
        self._cut_widths = [_cut_width(end - start) for start, end in self.cuts]
        seconds = sum(end - start for start, end in self.parts) or 1.0
        room = WIDTH - 16 - sum(self._cut_widths)
        lengths = sorted([end - start for start, end in spans if end > start])
        median = lengths[len(lengths) // 2] if lengths else 1.0
        wanted = min(_LEGIBLE / max(median, 1e-6), (_MAX_WIDTH - sum(self._cut_widths)) / seconds)
        self.per_s = max(room / seconds, wanted)
        self.width = max(WIDTH, int(16 + sum(self._cut_widths) + seconds * self.per_s))

    def x(self, at: float) -> float:
        """The place of a moment."""
        x = 8.0
        for n, (start, end) in enumerate(self.parts):
            if at <= end or n == len(self.parts) - 1:
                return x + max(0.0, min(at, end) - start) * self.per_s
            x += (end - start) * self.per_s
            if at < self.cuts[n][1]:
                return x + self._cut_widths[n] / 2
            x += self._cut_widths[n]
        return x

    def cut_places(self) -> list[tuple[float, int, float]]:
        """Where idle time is cut: place, width, and how many seconds."""
        return [
            (self.x(start), width, end - start) for (start, end), width in zip(self.cuts, self._cut_widths, strict=True)
        ]


def _cut_width(seconds: float) -> int:
    """Wide enough for its words, if it has any."""
    return _CUT if seconds < _NAMED_CUT_S else int(2 * _EDGE + 12 + _CHAR * len(_idle(seconds)))


def _idle(seconds: float) -> str:
    """How long nothing happened: seconds do not matter there."""
    return length(round(seconds / 60) * 60)


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def timeline(lanes: Sequence[TimeLane], died: Sequence[tuple[float, str]], clock: Sequence[str], scale: Scale) -> str:
    """All lanes. `clock` are the words for the ticks that `ticks` gives; `died` says when a process died, and where."""
    height = TOP + LANE * len(lanes) + 8
    out: list[str] = []
    for (_, x), word in zip(ticks(scale), clock, strict=True):
        out.append(
            f'<path class="tick" d="M{x:.1f} 24V{height}"/>'
            f'<text class="ax" x="{x + 4:.1f}" y="16">{escape(word)}</text>'
        )
    for n, lane in enumerate(lanes):
        if lane.is_child:
            out.append(f'<rect class="band" x="0" y="{TOP + LANE * n}" width="{scale.width}" height="{LANE}"/>')
        if n:
            out.append(f'<path class="sep" d="M0 {TOP + LANE * n}H{scale.width}"/>')
    for n, lane in enumerate(lanes):
        out += [_bar(bar, TOP + LANE * n, scale) for bar in lane.bars]
        for at, word in lane.marks:
            x, y = scale.x(at), TOP + LANE * n + _BAR_Y + 10
            out.append(
                f'<circle class="mv" cx="{x:.1f}" cy="{y}" r="4"/>'
                f'<text x="{x + 8:.1f}" y="{y + 4}">{escape(safe(word))}</text>'
            )
    out += [_cut(x, width, seconds, height) for x, width, seconds in scale.cut_places()]
    for at, why in died:
        x = scale.x(at)
        anchor, dx = ("end", -6) if x > scale.width / 2 else ("start", 6)
        out.append(
            f'<path class="crash" d="M{x:.1f} 20V{height}"/><path class="crash-flag" d="M{x:.1f} 20h8l-3 4 3 4h-8z"/>'
            f'<text class="t-bad" x="{x:.1f}" y="48" dx="{dx}" text-anchor="{anchor}">{escape(safe(why))}</text>'
        )
    label = f"{sum(len(lane.bars) for lane in lanes)} calls in {len(lanes)} lanes"
    return (
        f'<svg viewBox="0 0 {scale.width} {height}" width="{scale.width}" height="{height}" role="group" '
        f'aria-label="{label}">{"".join(out)}</svg>'
    )


def ticks(scale: Scale) -> list[tuple[float, float]]:
    """Moments for the axis and their places: where each part begins, and round ones inside, where there is room."""
    step = next((nice for nice in _NICE_S if nice * scale.per_s >= _TICK_ROOM), _NICE_S[-1])
    found: list[tuple[float, float]] = []
    cuts = [x for x, _, _ in scale.cut_places()]
    for n, (start, end) in enumerate(scale.parts):
        edge = cuts[n] if n < len(cuts) else float(scale.width)
        moments = [start]
        at = (start // step + 1) * step
        while at < end and len(moments) < 100:  # noqa: PLR2004
            moments.append(at)
            at += step
        for moment in moments:
            x = scale.x(moment)
            if x + _LABEL <= edge and (not found or x - found[-1][1] >= _TICK_ROOM * 0.75):
                found.append((moment, x))
    return found


def _bar(bar: TimeBar, top: int, scale: Scale) -> str:
    x, nested = scale.x(bar.start), min(bar.depth, 1)
    width = max(_SMALLEST, scale.x(bar.end) - x - 1)
    y, height = (top + _NESTED_Y, 15) if nested else (top + _BAR_Y, 20)
    out = (
        f'<a href="{escape(bar.href, quote=True)}"><title>{escape(safe(bar.title))}</title>'
        f'<rect class="b-{bar.kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2"/>'
    )
    room = int((width - 9) / (_CHAR if not nested else 5.3))
    name = safe(bar.name)
    if room > 3:  # noqa: PLR2004 - fewer letters say nothing
        name = name if len(name) <= room else name[: room - 1].rstrip() + "…"
        kind = {"model": "on-bar", "tool": "on-bar", "bad": "on-bar", "wait": "t-wait", "doubt": "t-bad"}.get(
            bar.kind, "name"
        )
        out += (
            f'<svg x="{x:.1f}" y="{y}" width="{width - 2:.1f}" height="{height}">'
            f'<text class="{kind}{" sm" if nested else ""}" x="{4 if nested else 6}" y="{height / 2 + 4:g}">'
            f"{escape(name)}</text></svg>"
        )
    if bar.selected:
        out += f'<rect class="sel" x="{x - 3:.1f}" y="{y - 3}" width="{width + 6:.1f}" height="{height + 6}" rx="4"/>'
    return out + "</a>"


def _cut(x: float, width: int, seconds: float, height: int) -> str:
    zigzag = "".join([f"l{4 if n % 2 == 0 else -4} 8" for n in range((height - 24) // 8 + 1)])
    left, right = x + 2, x + width - _EDGE - 4
    name = ""
    if seconds >= _NAMED_CUT_S:
        name = f'<text class="cut-t" x="{(left + right) / 2 + 2:.1f}" y="16">{_idle(seconds)}</text>'
    return (
        f'<path class="cut" d="M{left:.1f} 24{zigzag}H{right:.1f}V24z"/>'
        f'<path class="cut-edge" d="M{left:.1f} 24{zigzag}"/>'
        f'<path class="cut-edge" d="M{right:.1f} 24{zigzag}"/>{name}'
    )


def overview(times: Sequence[tuple[float, float]], died: Sequence[float], window: Sequence[tuple[float, float]]) -> str:
    """The whole time at its true scale: where something happened, where a process died, what is shown below."""
    spans = _merged(list(times))
    first = min([start for start, _ in spans] + list(died))
    last = max([end for _, end in spans] + list(died))
    per_s = (WIDTH - 8) / max(last - first, 1e-6)
    marks = "".join(
        [
            f'<rect class="r-m" x="{4 + (start - first) * per_s:.1f}" y="14"'
            f' width="{max(1.5, (end - start) * per_s):.1f}" height="8"/>'
            for start, end in spans
        ]
    )
    crashes = "".join(
        [f'<rect class="r-x" x="{4 + (at - first) * per_s - 1:.1f}" y="8" width="2" height="20"/>' for at in died]
    )
    left, right = 0.5, WIDTH - 0.5
    if window:
        left = max(left, (min(window)[0] - first) * per_s)
        right = min(right, max(8 + (max(end for _, end in window) - first) * per_s, left + 8))
    return (
        f'<svg class="range" viewBox="0 0 {WIDTH} 36" preserveAspectRatio="none" role="img" '
        f'aria-label="The whole time at its true scale">'
        f'<rect class="r-bg" x="0" y="8" width="{WIDTH}" height="20" rx="3"/>'
        f"{marks}{crashes}"
        f'<rect class="r-win" x="{left:.1f}" y="4.5" width="{right - left:.1f}" height="27" rx="3"/></svg>'
    )
