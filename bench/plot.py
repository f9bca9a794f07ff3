"""`python -m bench.plot [FILE]`: the picture in the README: bytes on disk over the turns of a LangGraph chat.

The same graph as in the scenario `graph`, with the adapter and with LangGraph's own SqliteSaver; sizes are taken while
it runs. Written as SVG by hand: two lines and two axes need no library.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.conversations import generated
from bench.scenarios.graph import TURNS, chat, ours, theirs

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY = 10
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 360, 70, 40, 150, 45
LOWEST, HIGHEST = 4, 9  # powers of ten of the bytes
LINES = (("Backstay", ours, "#1a7f37"), ("SqliteSaver", theirs, "#b35900"))

Points = list[tuple[int, int]]


def measured(folder: Path) -> dict[str, Points]:
    texts = [str(one["content"]) for one in generated(4 * TURNS) if one["role"] != "system" and one["content"]]
    found: dict[str, Points] = {}
    for name, opened, _ in LINES:
        points: Points = []
        path = folder / f"{name}.db"

        def look(turn: int, path: Path = path, points: Points = points) -> None:
            if turn % EVERY == 0:
                points.append((turn, sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))))

        chat(opened, path, TURNS, texts, look)
        found[name] = points
    return found


def picture(found: dict[str, Points]) -> str:
    def x(turn: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * turn / TURNS

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (math.log10(size) - LOWEST) / (HIGHEST - LOWEST)

    shape = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shape}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">On disk, over the turns of a chat of one node (logarithmic)</text>',
    ]
    for power, label in enumerate(("10 kB", "100 kB", "1 MB", "10 MB", "100 MB", "1 GB"), LOWEST):
        at = f'y1="{y(10**power):.1f}" y2="{y(10**power):.1f}"'
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" {at} stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{label}</text>')
    foot = HEIGHT - BOTTOM + 20
    turns = range(0, TURNS + 1, 100)
    parts += [f'<text x="{x(turn):.1f}" y="{foot}" text-anchor="middle">{turn}</text>' for turn in turns]
    for name, _, colour in LINES:
        points = found[name]
        way = " ".join(f"{x(turn):.1f},{y(size):.1f}" for turn, size in points)
        turn, size = points[-1]
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        label = f"{name}: {size / 1e6:,.1f} MB"
        parts.append(f'<text x="{x(turn) + 6:.1f}" y="{y(size) + 4:.1f}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main(argv: Sequence[str]) -> int:
    target = Path(argv[0] if argv else "docs/graph.svg")
    root = Path(".bench")
    root.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=root) as folder:
        target.write_text(picture(measured(Path(folder))), "utf-8")
    sys.stdout.write(f"written: {target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
