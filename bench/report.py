"""Figures and how they are shown: one row each, as text or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEADINGS = ("scenario", "figure", "measured", "must", "ok?")
KIB = 1024


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number beside the mark it has to reach; without a mark it is only told."""

    scenario: str
    name: str
    measured: float
    unit: str = "x"
    must: float | None = None
    sense: Literal["at most", "at least"] = "at most"
    # What the number was made from, for whoever doubts it. In the JSON only.
    detail: dict[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        if self.must is None:
            return None
        return self.measured <= self.must if self.sense == "at most" else self.measured >= self.must

    def row(self) -> tuple[str, str, str, str, str]:
        sign = "<=" if self.sense == "at most" else ">="
        must = "" if self.must is None else f"{sign} {shown(self.must, self.unit)}"
        verdict = {True: "ok", False: "MISSED", None: ""}[self.ok]
        return self.scenario, self.name, shown(self.measured, self.unit), must, verdict


def shown(value: float, unit: str) -> str:
    """A number with its unit, as short as it can be read."""
    if unit == "B":
        return f"{value:.0f} B" if value < 10 * KIB else f"{value / KIB:.1f} KiB"
    if unit == "x" and value >= 100:
        return f"{value:.0f}x"
    return f"{value:.2f}{unit}" if unit == "x" else f"{value:.4g} {unit}".strip()


def table(figures: Sequence[Figure]) -> str:
    """Plain text, under 100 columns; a scenario's name only in its first row."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    previous = ""
    for figure in figures:
        scenario, *rest = figure.row()
        rows.append(("" if scenario == previous else scenario, *rest))
        previous = scenario
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _aligned(row: Iterable[str], widths: Sequence[int]) -> list[str]:
    # Numbers to the right, words to the left.
    numbers = {2, 3}
    return [
        text.rjust(width) if place in numbers else text.ljust(width)
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    ]


def as_json(figures: Sequence[Figure], about: dict[str, object]) -> str:
    found = [{**asdict(figure), "ok": figure.ok} for figure in figures]
    return json.dumps({"about": about, "figures": found}, indent=2)
