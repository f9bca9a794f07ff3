"""Transcripts: one file a session, one line a message. How lines become checkpoints whose states are conversations.

A reader says of each line what it adds (a Turn) and behind which turn it stands. Most turns become checkpoints; one
that shows nothing (a thought, a reminder) is part of the state of the next. `base` is the turn whose conversation it
continues, `parent` the turn it comes after in the history: they differ where a conversation was compacted and where a
sub-agent begins with nothing. The first pass over a file keeps no messages; they are read again when the session is
taken in, and dropped when the next one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from backstay.errors import InvalidInputError
from backstay.formats.model import MAIN, FoundPoint, FoundSession, PendingCall, Reading, arrange
from backstay.formats.source import Source
from backstay.model import StateDict, Status, Usage
from backstay.names import check_name

_SLOT = ("a transcript whose messages are at hand",)
_RECENT = 8  # conversations kept at hand: one for each line that is being written


class Turn(msgspec.Struct):
    """A line as far as it matters. `line` finds its messages; `group` joins lines that are one message.

    `shown` turns become checkpoints. `branch` is the name for the line that ends here, if it is not the main one.
    """

    id: str
    line: tuple[int, int]  # file, line
    at_us: int
    base: str | None
    parent: str | None
    shown: bool = True
    group: str | None = None
    branch: str | None = None
    trigger: str = "import"
    total: Usage = Usage()
    agent: str | None = None
    metadata: dict[str, Any] = {}


class Conversations:
    """The state at each turn. `load` reads all messages of a session: by line, a list each."""

    def __init__(self, source: Source, load: Callable[[], dict[tuple[int, int], list[Any]]]) -> None:
        self._source = source
        self._load = load
        self._turns: dict[str, Turn] = {}
        self._messages: dict[tuple[int, int], list[Any]] | None = None
        self._recent: dict[str, list[Any]] = {}

    def use(self, turns: dict[str, Turn]) -> None:
        """The turns, once all are known."""
        self._turns = turns

    def at(self, id_: str) -> list[Any]:
        """The messages up to and with a turn."""
        messages = self._all()
        way: list[Turn] = []
        at: str | None = id_
        while at is not None and at not in self._recent:
            turn = self._turns[at]
            way.append(turn)
            at = turn.base
        built = [] if at is None else self._recent[at]
        for turn in reversed(way):
            built = _joined(built, messages.get(turn.line, []), turn, self._turns)
        if way:
            self._recent[id_] = built
            if len(self._recent) > _RECENT:
                del self._recent[next(iter(self._recent))]
        return built

    def _all(self) -> dict[tuple[int, int], list[Any]]:
        if self._messages is None:
            before = self._source.kept.get(_SLOT)
            if isinstance(before, Conversations):
                before.forget()
            self._source.kept[_SLOT] = self
            self._messages = self._load()
        return self._messages

    def forget(self) -> None:
        """The messages are not at hand any more."""
        self._messages = None
        self._recent.clear()


def _joined(before: list[Any], more: list[Any], turn: Turn, turns: dict[str, Turn]) -> list[Any]:
    """A conversation with one more turn: lines of one message become one, and so do the results that follow it."""
    if turn.group is None or turn.base is None or turns[turn.base].group != turn.group or not before or not more:
        return [*before, *more]
    (new,) = more
    results = _is_results(before[-1])
    # A result may stand before the last line of the message that asked for it.
    at = -2 if new["role"] == "assistant" and results and len(before) > 1 else -1
    if before[at]["role"] != new["role"] or (new["role"] == "user" and not results):
        return [*before, new]
    together = {**before[at], "content": [*_blocks(before[at]), *_blocks(new)]}
    return [*before[:at], together, *(before[-1:] if at < -1 else [])]


def _is_results(message: dict[str, Any]) -> bool:
    content = message["content"]
    return message["role"] == "user" and any(
        isinstance(block, dict) and block.get("type") == "tool_result"
        for block in (content if isinstance(content, list) else ())
    )


def _blocks(message: dict[str, Any]) -> list[Any]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def session_of(
    name: str,
    turns: dict[str, Turn],
    conversations: Conversations,
    reading: Reading,
    *,
    where: Callable[[Turn], str],
    head: str | None,
    pending: Iterable[PendingCall],
    ended: bool,
) -> FoundSession | None:
    """The session that these turns make; None if there is nothing to show, or it cannot have that name."""
    conversations.use(turns)
    points: list[FoundPoint] = []
    latest_us = 0
    for turn in turns.values():
        latest_us = max(latest_us, turn.at_us)  # a clock that went back does not change the order of lines
        if turn.shown:
            points.append(_point(turn, turns, conversations, latest_us, where(turn)))
    found = arrange(name, points, reading, head=head)
    if found is None:
        return None
    last = next(point for point in found.points if point.id == found.heads[MAIN])
    found.pending = list(pending)
    last.status = (Status.COMPLETED if ended and not found.pending else Status.IN_PROGRESS).value
    return found


def _point(turn: Turn, turns: dict[str, Turn], conversations: Conversations, latest_us: int, where: str) -> FoundPoint:
    id_ = turn.id

    def load() -> StateDict:
        return {"messages": conversations.at(id_)}

    return FoundPoint(
        id=id_,
        order=(latest_us, *turn.line),
        at_us=turn.at_us,
        load=load,
        where=where,
        parent=shown_before(turn.parent, turns),
        trigger=turn.trigger,
        total=turn.total,
        agent=turn.agent,
        metadata=turn.metadata,
        leaf_name=turn.branch,
    )


def shown_before(id_: str | None, turns: dict[str, Turn]) -> str | None:
    """The nearest turn at or above this one that is a checkpoint."""
    seen: set[str] = set()
    while id_ is not None and id_ not in seen:
        turn = turns[id_]
        if turn.shown:
            return id_
        seen.add(id_)
        id_ = turn.parent
    return None


def usable_name(name: Any) -> str | None:
    """The name, if a session can have it."""
    try:
        return check_name(name, "a session id")
    except InvalidInputError:
        return None


def count_of(value: Any) -> int:
    """A count of tokens; 0 for whatever is none."""
    return value if type(value) is int and 0 <= value < 2**53 else 0
