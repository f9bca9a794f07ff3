"""smooth: `<agent>/<checkpoint>.json`, its SQLite store, and its branchable sessions (`*.jsonl`).

A session here is an agent there. What was saved as a file and as a row is one checkpoint; the file, whose time is
exact, wins. Times come first, then iterations, then how much was said: saves within one second stay in order.
"""

from __future__ import annotations

from backstay.formats.exporter import Exporter
from backstay.formats.model import MAIN, FoundPoint, FoundSession, Reading, arrange
from backstay.formats.smooth import branchable, database, files
from backstay.formats.smooth.conversation import find_pending
from backstay.formats.source import Parts, Source
from backstay.formats.target import Target

NAME = "smooth"


def recognise(source: Source) -> bool:
    """True if this looks like something of smooth's."""
    return bool(_homes(source))


def _homes(source: Source) -> list[Parts]:
    """Where there is something of smooth's: at the top, or else in the folders there."""
    if _is_ours(source, ()):
        return [()]
    return [one.parts for one in source.entries() if one.kind == "folder" and _is_ours(source, one.parts)]


def _is_ours(source: Source, home: Parts) -> bool:
    for entry in source.entries(*home):
        if entry.kind == "file" and (database.recognise(source, entry) or branchable.recognise(source, entry)):
            return True
        if entry.kind == "folder" and files.recognise(source, entry, len(home)):
            return True
    return False


def read(source: Source, reading: Reading) -> None:
    """Every checkpoint that is intact."""
    agents: dict[str, dict[str, FoundPoint]] = {}
    for home in _homes(source) or [()]:
        for entry in source.entries(*home):
            if entry.kind == "file" and database.is_sqlite(source, entry):
                _merge(agents, database.read(source, entry, reading))
            elif entry.kind == "file" and entry.name.endswith(".jsonl"):
                branchable.read(source, entry, reading)
            elif entry.kind == "link":
                reading.trouble(entry.shown, "it is a link, which is not followed")
            elif entry.kind == "folder":
                _merge(agents, files.read(source, entry, len(home), reading))
            elif not entry.name.endswith(("-wal", "-shm", "-journal")):
                reading.note(entry.shown, "it is not a checkpoint")
    for agent, points in agents.items():
        found = arrange(agent, list(points.values()), reading)
        if found is not None:
            _note_pending(found)
            reading.sessions.append(found)


def _merge(agents: dict[str, dict[str, FoundPoint]], more: list[tuple[str, FoundPoint]]) -> None:
    for agent, point in more:
        points = agents.setdefault(agent, {})
        there = points.get(point.id)
        if there is None or "created_at" not in there.metadata[NAME]:
            points[point.id] = point


def _note_pending(found: FoundSession) -> None:
    head = next(point for point in found.points if point.id == found.heads[MAIN])
    found.pending = find_pending(head.load()["messages"])


def write(exporter: Exporter, target: Target) -> None:
    """The checkpoints of a branch, one file each."""
    files.write(exporter, target)


def write_file(exporter: Exporter, target: Target, name: str) -> None:
    """The same as a SQLite store of that name."""
    database.write(exporter, target, name)
