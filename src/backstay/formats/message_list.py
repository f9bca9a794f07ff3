"""Message lists as people keep them: JSON or JSON lines, in the shapes of OpenAI (chat and Responses) and Anthropic.

    [{"role": "user", "content": "hi"}, …]            one conversation
    {"messages": […], "system": …, "model": …}        one, with what stands beside it
    [{"messages": […]}, …]                            several
    a line each of any of these                       lines of messages are one conversation, lines of lists several

Every message is a checkpoint. Its id is made of all that was said up to it, so that a longer list of the same
conversation is recognised, and a changed one is another. Keys beside the messages are parts of the state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Any

from backstay.formats.chat import arguments_of, flatten, moment_us
from backstay.formats.dialect import DamagedError, JsonWriter, parse
from backstay.formats.jsonl import MAX_FILE_BYTES, JsonLines
from backstay.formats.model import MAIN, FoundPoint, PendingCall, Reading, arrange
from backstay.formats.source import Entry, Source
from backstay.formats.transcript import count_of, usable_name
from backstay.model import StateDict, Status, Usage

NAME = "messages"
_TAILS = (".json", ".jsonl", ".ndjson")
_LOOKS = 100  # at files of a folder, to see what it is
_PEEK_BYTES = 1 << 16
_SAID = re.compile(rb'"role"\s*:\s*"|"type"\s*:\s*"function_call"')
_LISTS = ("messages", "input", "items", "conversation")
_NAMES = ("session", "session_id", "conversation_id", "thread_id", "id", "name", "title")
_TIMES = ("timestamp", "created_at", "created", "time", "date")
_SLOT = ("a file whose conversations are at hand",)
_MAX_COST = 10**9
_USED_IN, _USED_OUT = ("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")


def recognise(source: Source) -> bool:
    """True if there are messages here. Other systems keep some too: they are asked first."""
    return any(_is_ours(source, entry) for entry in islice(_files(source), _LOOKS))


def _files(source: Source) -> Iterator[Entry]:
    for entry in source.entries():
        if entry.kind == "file" and entry.name.endswith(_TAILS):
            yield entry


def _is_ours(source: Source, entry: Entry) -> bool:
    start = source.peek(entry.parts, _PEEK_BYTES).lstrip()
    return start[:1] in (b"[", b"{") and _SAID.search(start) is not None


def read(source: Source, reading: Reading) -> None:
    """Every conversation that has a message."""
    for entry in _files(source):
        if source.alone is None and not _is_ours(source, entry):
            reading.note(entry.shown, "it is not a list of messages")
            continue
        try:
            _read_file(source, entry, reading)
        except DamagedError as damage:
            reading.trouble(entry.shown, damage)


class _File:
    """The conversations of one file: read twice, once to see what there is and once when they are taken in."""

    def __init__(self, source: Source, entry: Entry) -> None:
        self._source = source
        self.entry = entry
        self._lines = None if entry.name.endswith(".json") else JsonLines(source, entry)
        self._digest: bytes | None = None

    def talks(self, reading: Reading | None = None) -> list[dict[str, Any]]:
        """All of them; those of one file are at hand at a time."""
        at_hand = self._source.kept.get(_SLOT)
        if at_hand is None or at_hand[0] is not self:
            at_hand = self._source.kept[_SLOT] = self, self._read(Reading() if reading is None else reading)
        found: list[dict[str, Any]] = at_hand[1]
        return found

    def _read(self, reading: Reading) -> list[dict[str, Any]]:
        said: list[Any] = []
        found: list[dict[str, Any]] = []
        if self._lines is None:
            data = self._source.read(self.entry.parts, limit=MAX_FILE_BYTES)
            digest = sha256(data).digest()
            if self._digest not in (None, digest):
                raise DamagedError("it has changed while it was read")
            self._digest = digest
            value = parse(data)
            for one in value if isinstance(value, list) else [value]:
                _sort(one, said, found, self.entry.shown, reading)
        else:
            for number, value in self._lines.read(reading):
                _sort(value, said, found, f"{self.entry.shown}:{number}", reading)
        return [{"messages": said}, *found] if said else found


def _read_file(source: Source, entry: Entry, reading: Reading) -> None:
    file = _File(source, entry)
    stem = entry.name.rpartition(".")[0]
    talks = file.talks(reading)
    file_us = source.changed_us(entry.parts)
    taken: set[str] = set()
    for number, talk in enumerate(talks):
        name = _name_of(talk) or (stem if len(talks) == 1 else f"{stem}-{number + 1}")
        if name in taken:
            name = f"{name}-{number + 1}"
        taken.add(name)
        _take(name, file, number, file_us, reading)
    if not talks:
        raise DamagedError("there is no message in it")


def _sort(value: Any, said: list[Any], found: list[dict[str, Any]], where: str, reading: Reading) -> None:
    """A message goes to the one conversation, an object with a list of messages is a conversation of its own."""
    if isinstance(value, dict) and (key := _list_in(value)) is not None:
        found.append({"messages": value[key], **{name: one for name, one in value.items() if name != key}})
    elif isinstance(value, list) and value and all([_is_message(one) for one in value]):
        found.append({"messages": value})
    elif _is_message(value):
        said.append(value)
    else:
        reading.trouble(where, "it is neither a message nor a list of messages")


def _list_in(value: dict[str, Any]) -> str | None:
    for key in _LISTS:
        one = value.get(key)
        if isinstance(one, list) and one and all([_is_message(message) for message in one]):
            return key
    return None


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("role"), str):
        return "content" in value or "tool_calls" in value or "parts" in value
    kind = value.get("type")
    return isinstance(kind, str) and (kind.endswith(("_call", "_output")) or kind == "reasoning")


def _name_of(talk: dict[str, Any]) -> str | None:
    for key in _NAMES:
        value = talk.get(key)
        if isinstance(value, str) and value.strip() and (name := usable_name(value.strip())) is not None:
            return name
    return None


def _take(name: str, file: _File, number: int, file_us: int, reading: Reading) -> None:
    beside = dict(file.talks()[number])
    messages = beside.pop("messages")
    digest = sha256(b"\0".join([NAME.encode(), name.encode()])).digest()
    start_us = next((at for key in _TIMES if (at := moment_us(beside.get(key))) is not None), None)
    at_us, timed = (file_us, False) if start_us is None else (start_us, True)
    total = Usage()
    points: list[FoundPoint] = []
    for count, message in enumerate(messages, 1):
        digest = sha256(digest + JsonWriter().compact(message)).digest()
        told = next((at for key in _TIMES if (at := moment_us(message.get(key))) is not None), None)
        at_us, timed = (at_us, timed) if told is None else (told, True)
        total += _used(message)
        points.append(
            FoundPoint(
                id=digest.hex()[:32],
                order=(count,),
                at_us=at_us,
                load=_loader(file, number, count),
                where=f"{file.entry.shown}: message {count}",
                total=total,
                timed=timed,
            )
        )
    found = arrange(name, points, reading)
    if found is None:
        return
    found.pending = _pending(messages)
    last = next(point for point in found.points if point.id == found.heads[MAIN])
    if not found.pending and _speaker(messages[-1]) == "assistant":
        last.status = Status.COMPLETED.value
    reading.sessions.append(found)


def _loader(file: _File, number: int, count: int) -> Callable[[], StateDict]:
    def load() -> StateDict:
        talk = file.talks()[number]
        return {**talk, "messages": talk["messages"][:count]}

    return load


def _speaker(message: Any) -> str:
    return flatten(message, 0)[-1].role


def _used(message: dict[str, Any]) -> Usage:
    used = message.get("usage")
    if not isinstance(used, dict):
        return Usage()
    cost = message.get("cost", used.get("cost"))
    return Usage(
        sum([count_of(used.get(key)) for key in _USED_IN]),
        sum([count_of(used.get(key)) for key in _USED_OUT]),
        float(cost) if isinstance(cost, int | float) and 0 <= cost < _MAX_COST else 0.0,
    )


def _pending(messages: list[Any]) -> list[PendingCall]:
    """The calls of the last reply that no result follows."""
    answered: set[str] = set()
    found: list[PendingCall] = []
    for at in range(len(messages) - 1, -1, -1):
        said = flatten(messages[at], at)
        if any(one.role not in ("tool", "assistant") for one in said):
            break
        answered |= {one.answers for one in said if one.role == "tool" and one.answers is not None}
        calls = [call for one in said for call in one.calls]
        left = [call for call in calls if call.id not in answered]
        found = [PendingCall(call.id, call.name or "tool", _args(call.arguments)) for call in left] + found
        if any(one.role == "assistant" and one.text for one in said) and not calls:
            break
    return found


def _args(given: Any) -> Any:
    return arguments_of(given) if isinstance(given, str) else given
