"""smooth's branchable sessions: a line that says where the head is, then a tree of messages, one entry a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backstay.formats.dialect import DamagedError, nanoseconds, parse_object
from backstay.formats.model import FoundPoint, GivenFields, Reading, arrange
from backstay.formats.smooth.conversation import NAME
from backstay.formats.source import Entry, Source
from backstay.model import StateDict


def recognise(source: Source, entry: Entry) -> bool:
    """True for a file that begins as such a session does."""
    first = source.peek(entry.parts, 4096).partition(b"\n")[0]
    # Codex has lines of that type, too, with all they say in a payload.
    return entry.name.endswith(".jsonl") and b'"session_meta"' in first and b'"payload"' not in first


class _Tree:
    """The entries of one session; a state is what was said on the way to an entry."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[str, Any]] = {}
        self.parents: dict[str, str | None] = {}

    def loader(self, id_: str) -> Callable[[], StateDict]:
        return lambda: {"messages": self._way_to(id_)}

    def _way_to(self, id_: str) -> list[dict[str, Any]]:
        way: list[dict[str, Any]] = []
        seen: set[str] = set()
        at: str | None = id_
        while at is not None and at in self.messages and at not in seen:
            seen.add(at)
            way.append(self.messages[at])
            at = self.parents[at]
        return way[::-1]


def read(source: Source, entry: Entry, reading: Reading) -> None:
    """A session, every entry a checkpoint."""
    try:
        first, *lines = source.read(entry.parts).split(b"\n")
        told = GivenFields(parse_object(first))
        if told.text("type") != "session_meta":
            raise DamagedError("its first line is not that of a session")
        session, head = told.text("id"), told.maybe_text("current_head")
    except DamagedError as damage:
        reading.trouble(entry.shown, damage)
        return
    tree = _Tree()
    points: list[FoundPoint] = []
    for number, line in enumerate(lines, 2):
        if line.strip():
            where = f"{entry.shown}:{number}"
            try:
                points.append(_point(tree, line, where, number))
            except DamagedError as damage:
                reading.trouble(where, damage)
    if head is not None and head not in tree.messages:
        reading.note(entry.shown, f"its head {head[:80]!r} is not there; the newest entry was taken")
        head = None
    found = arrange(session, points, reading, head=head)
    if found is not None:
        for point in found.points:  # an entry whose parent is lost goes on with the one before it, and says so
            if point.parent is not None:
                tree.parents[point.metadata[NAME]["id"]] = point.parent
        reading.sessions.append(found)
    else:
        reading.note(entry.shown, "it holds no entry")


def _point(tree: _Tree, line: bytes, where: str, number: int) -> FoundPoint:
    given = GivenFields(parse_object(line))
    id_, parent, at = given.text("id"), given.maybe_text("parent_id"), given.text("timestamp")
    message = given.object("message")
    told = GivenFields(message, "message.")
    told.text("role")
    told.text("content")
    if id_ in tree.messages:
        raise DamagedError(f"there is already an entry {id_[:80]!r}")
    at_ns = nanoseconds(at)
    tree.messages[id_], tree.parents[id_] = message, parent
    kept: dict[str, Any] = {"id": id_, "entry": {"parent_id": parent, "timestamp": at}}
    if given.rest():
        kept["more"] = given.rest()
    # A line stands behind all that it could refer to: that is the order, whatever the clock said.
    return FoundPoint(
        id=id_,
        order=(number,),
        at_us=at_ns // 1000,
        load=tree.loader(id_),
        where=where,
        parent=parent,
        metadata={NAME: kept},
    )
