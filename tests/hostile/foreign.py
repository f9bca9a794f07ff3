"""Short files in the forms of other systems that would take the memory or the time of a machine, if they were let."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.faces.formats import made, told

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_BYTES = 1 << 20  # of each bomb on the disk

# What stands in a text where a value should be, and how often.
_EMPTY = "[" + ",".join(["[]"] * 300_000) + "]"
_FULL = "[" + ",".join(["{}"] * 50_000) + "]"  # as many as are let in
_DEEP = "[" * 400_000 + "]" * 400_000
_DIGITS = "1" * 900_000
_NAMES = "{" + ",".join([f'"{number}":0' for number in range(50_000)]) + "}"
_OPEN = '"' + '\\"' * 400_000
_VALUES = {"empty": _EMPTY, "full": _FULL, "deep": _DEEP, "digits": _DIGITS, "names": _NAMES, "never closed": _OPEN}


MARK = "the place of a bomb"


def _planted(write: Callable[[Path], object], value: str) -> Callable[[Path], None]:
    """The files that this writes, with a value in the place of the mark."""

    def plant(base: Path) -> None:
        write(base)
        for path in [path for path in base.rglob("*") if path.is_file()]:
            path.write_bytes(path.read_bytes().replace(f'"{MARK}"'.encode(), value.encode()))

    return plant


_MESSAGE = {"role": "user", "content": "x", "more": MARK}
_SYSTEMS: dict[str, Callable[[Path], object]] = {
    "ares": lambda base: made.ares(base, [made.ares_step(0, messages=[_MESSAGE])], compact=True),
    "ccswarm": lambda base: made.ccswarm(base, [made.ccswarm_checkpoint(1, state={"x": MARK})]),
    "continuum": lambda base: made.continuum_file(base, made.continuum_checkpoint(1, tool_results=[{"x": MARK}])),
    "smooth": lambda base: made.smooth(base, [made.smooth_checkpoint(1, metadata={"x": MARK})]),
    "messages": lambda base: made.put(base / "talk.json", made.text([_MESSAGE], compact=True)),
    "claude": lambda base: told.claude(base, [*told.claude_talk(), told.user("u9", "a5", 20, MARK)]),
    "codex": lambda base: told.codex(
        base, [*told.codex_talk(), told.item(9, type="message", role="user", content=MARK)]
    ),
}


def _packed(line: bytes, count: int) -> Callable[[Path], None]:
    """A rollout that unpacks to very many lines."""

    def write(base: Path) -> None:
        path = told.codex(base, told.codex_talk())
        path.write_bytes(zstd.compress(path.read_bytes() + line * count, level=19))

    return write


def _lines(records: Iterable[Any]) -> Callable[[Path], object]:
    return lambda base: told.claude(base, records)


def _many_messages(base: Path) -> None:
    made.put(base / "talk.jsonl", '{"role":"user","content":""}\n' * 5_000)


def _many_conversations(base: Path) -> None:
    made.put(base / "talks.jsonl", '{"messages":[{"role":"user","content":"x"}]}\n' * 300)


def _rewinds() -> list[dict[str, Any]]:
    """Twelve lines of talk that take turns: whoever holds eight of them at hand begins each anew."""
    ways = 12
    return [
        told.user(f"u{n}", "u0" if 0 < n <= ways else f"u{n - ways}" if n else None, n, f"said {n}")
        for n in range(1_200)
    ]


def _endless_database(base: Path) -> None:
    """A database whose column is worked out as it is read."""
    base.mkdir(parents=True, exist_ok=True)
    connection = made.smooth_database(base / "smooth.db", made.smooth_rows([made.smooth_checkpoint(1)]))
    connection.close()
    with sqlite3.connect(base / "smooth.db") as connection:
        (words,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'checkpoints'").fetchone()
        columns = [row[1] for row in connection.execute("PRAGMA table_info(checkpoints)")]
        huge = ", ".join(
            [f"{name} AS (hex(zeroblob(400000000)))" if name == "conversation" else f"{name}" for name in columns]
        )
        connection.execute("DROP TABLE checkpoints")
        connection.execute(f"CREATE TABLE checkpoints ({huge}) -- {words[:20]} conversation")
        others = [name for name in columns if name != "conversation"]
        marks = ", ".join("?" * len(others))
        connection.execute(f"INSERT INTO checkpoints({', '.join(others)}) VALUES ({marks})", [1] * len(others))
    connection.close()


BOMBS: dict[str, Callable[[Path], object]] = {
    **{
        f"{system} {kind}": _planted(write, value)
        for system, write in _SYSTEMS.items()
        for kind, value in _VALUES.items()
    },
    "codex packed lines": _packed(b"\n", 50_000_000),
    "codex packed text": _packed(b"x" * 1_000_000, 250),
    "codex packed objects": _packed(b"{}\n", 900_000),
    "codex packed values": _packed(b'{"type":[' + b"[]," * 300_000 + b"0]}\n", 40),
    "claude rewinds": _lines(_rewinds()),
    "claude roots": _lines([told.user(f"u{n}", None, n, "x") for n in range(1_000)]),
    "claude circle": _lines([told.user(f"u{n}", f"u{(n + 1) % 500}", n, "x") for n in range(500)]),
    "messages many": _many_messages,
    "messages several": _many_conversations,
    "smooth database": _endless_database,
}
