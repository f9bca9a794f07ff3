"""`python -m bench`: run the scenarios, print the table, exit with 1 if a mark was missed."""

from __future__ import annotations

import argparse
import platform
import sys
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import apsw

from bench import peer
from bench.measuring import IN_MEMORY, Settings, file_system, prepare_root
from bench.report import Figure, as_json, table
from bench.scenarios import SCENARIOS


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Backstay.")
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"which ones (all): {', '.join(SCENARIOS)}")
    parser.add_argument(
        "--data", type=Path, help="conversations to use (JSON Lines, gzip or plain) instead of generated ones"
    )
    parser.add_argument("--quick", action="store_true", help="smaller and shorter; for a look, not for the record")
    parser.add_argument("--rounds", type=int, help="how often timed scenarios are run (5; quick: 2)")
    parser.add_argument("--no-peer", action="store_true", help="leave SqliteSaver out even where it is installed")
    parser.add_argument("--dir", type=Path, default=Path(".bench"), help="where the files go; a real disk (.bench)")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the figures there too; - for standard output instead of the table",
    )
    found = parser.parse_args(argv)
    if unknown := [name for name in found.scenarios if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)} (there are {', '.join(SCENARIOS)})")
    if found.rounds is not None and found.rounds < 1:
        parser.error("--rounds must be at least 1")
    return found


def main(argv: list[str] | None = None) -> int:
    asked = _arguments(argv)
    root = prepare_root(asked.dir)
    kind = file_system(root)
    if kind in IN_MEMORY:
        sys.stderr.write(f"bench: {root} is on {kind}, where a sync costs nothing; name a disk with --dir\n")
        return 2
    figures: list[Figure] = []
    with ExitStack() as stack:
        settings = Settings(
            root=root,
            data=asked.data,
            quick=asked.quick,
            rounds=asked.rounds or (2 if asked.quick else 5),
            with_peer=peer.installed() and not asked.no_peer,
            memo={"stack": stack},
        )
        for name in asked.scenarios or SCENARIOS:
            begun = perf_counter()
            figures += SCENARIOS[name](settings)
            sys.stderr.write(f"{name}: {perf_counter() - begun:.1f} s\n")
    about: dict[str, object] = {
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "file_system": kind,
        "conversations": "file" if asked.data else "generated",
        "quick": asked.quick,
        "rounds": settings.rounds,
        "peer": settings.with_peer,
    }
    if asked.json == "-":
        sys.stdout.write(as_json(figures, about) + "\n")
    else:
        sys.stdout.write(table(figures) + "\n")
        if asked.json:
            Path(asked.json).write_text(as_json(figures, about) + "\n")
    return 1 if any(figure.ok is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
