"""Codex: `sessions/YYYY/MM/DD/rollout-<time>-<thread>.jsonl`, packed with zstd or not, and `archived_sessions/`.

A line is `{timestamp, type, payload}`; the items of the conversation are those of OpenAI's Responses. A rollback of so
many turns and a compaction are lines too: the first leaves a branch behind, the second replaces the conversation. In
older files the items stand without an envelope. A line has no id of its own; files only grow, so its number serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from backstay.formats.chat import arguments_of, moment_us
from backstay.formats.dialect import DamagedError
from backstay.formats.exporter import made_uuid
from backstay.formats.jsonl import JsonLines
from backstay.formats.model import PendingCall, Reading
from backstay.formats.source import Entry, Source
from backstay.formats.transcript import Conversations, Turn, count_of, session_of, shown_before, usable_name
from backstay.model import Usage

NAME = "codex"
_LOOKS = 100  # at files of a folder, to see what it is
_PEEK_BYTES = 1 << 16
_TAILS = (".jsonl", ".jsonl.zst")
_MAGIC = b"\x28\xb5\x2f\xfd"
# What Codex itself puts into the conversation before the user has said anything.
_CONTEXT = ("<environment_context>", "<user_instructions>", "<permissions", "# AGENTS.md", "<INSTRUCTIONS>", "<skills")
_KEPT = ("cwd", "cli_version", "originator", "model_provider", "forked_from_id", "parent_thread_id", "agent_nickname")
_EXTRA = ("cached_input_tokens", "reasoning_output_tokens")


def recognise(source: Source) -> bool:
    """True if this looks like something of Codex's."""
    return any(_is_ours(source, entry) for entry in islice(_files(source), _LOOKS))


def _files(source: Source) -> Iterator[Entry]:
    names = set()
    for entry in source.walk():
        if entry.kind == "file" and entry.name.endswith(_TAILS):
            # Of a file that is there both ways, the one that is not packed is the one that grows.
            if entry.name.endswith(".zst") and (*entry.parts[:-1], entry.name[:-4]) in names:
                continue
            names.add(entry.parts)
            yield entry


def _is_ours(source: Source, entry: Entry) -> bool:
    start = source.peek(entry.parts, _PEEK_BYTES)
    if start.startswith(_MAGIC):
        return entry.name.startswith("rollout-")
    first = start.partition(b"\n")[0]
    if b'"session_meta"' in first and b'"payload"' in first:
        return True
    return entry.name.startswith("rollout-") and b'"timestamp"' in first and b'"id"' in first


def read(source: Source, reading: Reading) -> None:
    """Every session that has something said in it."""
    for entry in _files(source):
        if _is_ours(source, entry):
            _read_session(source, entry, reading)
        elif entry.name not in ("history.jsonl", "session_index.jsonl"):
            reading.note(entry.shown, "it is not a transcript")


def _read_session(source: Source, entry: Entry, reading: Reading) -> None:
    file = JsonLines(source, entry)
    scan = _RolloutScan(entry)
    try:
        for line, record in file.read(reading):
            scan.take(line, record)
    except DamagedError as damage:
        reading.trouble(entry.shown, damage)
        return
    if scan.inherits is not None:
        reading.note(entry.shown, f"it goes on from session {scan.inherits[:80]!r}, whose messages are not in it")
    head = shown_before(scan.tail, scan.turns)
    found = session_of(
        scan.name,
        scan.turns,
        Conversations(source, lambda: _messages(file)),
        reading,
        where=lambda turn: f"{entry.shown}:{turn.line[1]}",
        head=head,
        pending=scan.pending(),
        ended=scan.ended,
    )
    if found is not None:
        reading.sessions.append(found)
    else:
        reading.note(entry.shown, "nothing is said in it")


def _messages(file: JsonLines) -> dict[tuple[int, int], list[Any]]:
    return {(0, line): found for line, record in file.read() if (found := _items(record))}


def _items(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The items that a line adds to the conversation, or replaces it with."""
    kind, payload = record.get("type"), record.get("payload")
    if not isinstance(payload, dict):
        return [record] if "payload" not in record and _is_item(record) else []
    if kind == "compacted":
        replaced = payload.get("replacement_history")
        if isinstance(replaced, list):
            return [item for item in replaced if isinstance(item, dict)]
        text = payload.get("message")
        content = [{"type": "output_text", "text": text if isinstance(text, str) else ""}]
        return [{"type": "message", "role": "assistant", "content": content}]
    if kind == "event_msg" and payload.get("type") == "user_message" and isinstance(payload.get("message"), str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": payload["message"]}]}]
    return [payload] if kind == "response_item" and _is_item(payload) else []


def _is_item(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    if kind == "message":
        return isinstance(item.get("role"), str) and isinstance(item.get("content"), str | list)
    return isinstance(kind, str) and (kind.endswith(("_call", "_output")) or kind == "reasoning")


class _RolloutScan:
    """One session, line by line."""

    def __init__(self, entry: Entry) -> None:
        stem = entry.name.removesuffix(".zst").removesuffix(".jsonl")
        self.name = usable_name(stem.removeprefix("rollout-")) or stem
        self.turns: dict[str, Turn] = {}
        self.tail: str | None = None
        self.ended = False
        self.inherits: str | None = None
        self._begun = False
        self._last_us = 0
        self._asked: list[str | None] = []  # before each turn of the user: the turn to go back to
        self._total = Usage()
        self._told: dict[str, Any] = {NAME: {}}
        self._open: dict[str, PendingCall] = {}
        self._said_by_user = False

    def take(self, line: int, record: dict[str, Any]) -> None:
        """A line."""
        self._last_us = moment_us(record.get("timestamp")) or self._last_us
        kind, payload = record.get("type"), record.get("payload")
        given: dict[str, Any] = payload if isinstance(payload, dict) else {}
        if not self._begun and (kind == "session_meta" or (kind is None and "id" in record)):
            self._begin(given or record)
        elif kind == "turn_context" and isinstance(given.get("model"), str):
            self._tell({"model": given["model"]})
        elif kind == "event_msg" and given.get("type") == "token_count":
            self._count(given.get("info"))
        elif kind == "event_msg" and given.get("type") == "thread_rolled_back":
            self._roll_back(count_of(given.get("num_turns")))
        elif kind == "compacted":
            self._add(line, record, anew=True)
        elif kind == "event_msg" and given.get("type") == "user_message":
            if not self._said_by_user:  # where the items lack what the user said, the event has it
                self._add(line, record, anew=False)
        elif _items(record):
            self._add(line, record, anew=False)

    def _begin(self, given: dict[str, Any]) -> None:
        self._begun = True
        self.name = usable_name(given.get("id")) or self.name
        told: dict[str, Any] = {name: given[name] for name in _KEPT if isinstance(given.get(name), str)}
        git = given.get("git")
        if isinstance(git, dict):
            told |= {f"git_{name}": git[name] for name in ("branch", "commit_hash") if isinstance(git.get(name), str)}
        self._tell(told)
        base = given.get("history_base")
        if base is not None:
            source = given.get("forked_from_id")
            self.inherits = source if isinstance(source, str) else "another"

    def _tell(self, more: dict[str, Any]) -> None:
        told = {**self._told[NAME], **more}
        if told != self._told[NAME]:
            self._told = {NAME: told}

    def _add(self, line: int, record: dict[str, Any], *, anew: bool) -> None:
        items = _items(record)
        if not items:
            return
        item = items[-1]
        by_user = not anew and item.get("type") == "message" and item.get("role") == "user" and not _is_context(item)
        if by_user:
            self._asked.append(self.tail)
            self._said_by_user = self._said_by_user or record.get("type") != "event_msg"
        turn = Turn(
            id=made_uuid(NAME, self.name, str(line)),
            line=(0, line),
            at_us=self._last_us,
            base=None if anew else self.tail,
            parent=self.tail,
            shown=anew or _is_shown(item),
            branch="rolled-back",
            trigger="compaction" if anew else "import",
            total=self._total,
            agent=NAME,
            metadata=self._told,
        )
        self.turns[turn.id] = turn
        self.tail = turn.id
        self._note_call(item)
        if turn.shown:
            self.ended = item.get("type") == "message" and item.get("role") == "assistant"

    def _note_call(self, item: dict[str, Any]) -> None:
        kind, id_ = str(item.get("type")), item.get("call_id")
        if not isinstance(id_, str):
            return
        if kind.endswith("_output"):
            self._open.pop(id_, None)
        elif kind.endswith("_call"):
            name = item.get("name")
            given = item.get("arguments", item.get("input", item.get("action")))
            args = arguments_of(given) if isinstance(given, str) else given
            self._open[id_] = PendingCall(id_, name if isinstance(name, str) and name else kind, args)

    def _count(self, info: Any) -> None:
        """All that was used so far, told after the fact: it belongs to the turn before."""
        used = info.get("total_token_usage") if isinstance(info, dict) else None
        if not isinstance(used, dict):
            return
        extra = {name: count for name in _EXTRA if (count := count_of(used.get(name)))}
        self._total = Usage(count_of(used.get("input_tokens")), count_of(used.get("output_tokens")), extra=extra)
        shown = shown_before(self.tail, self.turns)
        if shown is not None:
            self.turns[shown].total = self._total

    def _roll_back(self, turns: int) -> None:
        if turns and self._asked:
            self.tail = self._asked[max(0, len(self._asked) - turns)]
            del self._asked[max(0, len(self._asked) - turns) :]
            self._open.clear()
            self.ended = True

    def pending(self) -> list[PendingCall]:
        """The calls that no output follows."""
        return list(self._open.values())


def _is_context(item: dict[str, Any]) -> bool:
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else content
    text = first.get("text") if isinstance(first, dict) else first
    return isinstance(text, str) and text.lstrip().startswith(_CONTEXT)


def _is_shown(item: dict[str, Any]) -> bool:
    """True for what a person would call a step: not what the program tells the model, not a thought alone."""
    if item.get("type") == "message":
        return item.get("role") in ("user", "assistant") and not _is_context(item)
    return item.get("type") != "reasoning"
