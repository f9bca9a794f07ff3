"""Claude Code: `projects/<folder>/<session>.jsonl`, and `<session>/subagents/agent-<id>.jsonl` beside it.

A line has a `uuid` and a `parentUuid`: that is the tree. A reply comes as several lines of one `message.id`, one for
each block, and repeats its usage on each; the results of calls made at once hang on the lines that asked for them, so
the tree seems to fork there and does not. A line that goes on from an earlier one is a rewind, and the part that was
left is a branch. After a compaction the conversation begins anew with its summary. Sub-agents are branches.

The format has no specification and changes: a line of another kind is passed over, and one that lacks what it must
have is reported. Only the conversation is taken, not what the program notes for itself beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from backstay.formats.chat import moment_us
from backstay.formats.dialect import DamagedError, parse_object
from backstay.formats.exporter import made_uuid
from backstay.formats.jsonl import JsonLines
from backstay.formats.model import PendingCall, Reading
from backstay.formats.source import Entry, Parts, Source
from backstay.formats.transcript import Conversations, Turn, count_of, session_of, shown_before, usable_name
from backstay.messages import message_of_line
from backstay.model import Usage

NAME = "claude-code"
_LOOKS = 100  # at files of a folder, to see what it is
_PEEK_BYTES = 1 << 16
_THOUGHTS = ("thinking", "redacted_thinking")  # a tuple: the type of a block may be anything
_TITLES = {"custom-title": "customTitle", "agent-name": "agentName", "ai-title": "aiTitle", "summary": "summary"}
_RANK = {kind: rank for rank, kind in enumerate(_TITLES)}
_SPAWNS = frozenset({"Task", "Agent"})
_KEPT = ("cwd", "gitBranch", "version")
_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
_MAX_TITLE = 200


def recognise(source: Source) -> bool:
    """True if this looks like something of Claude Code's."""
    return any(_is_ours(source, entry) for entry in islice(_files(source), _LOOKS))


def _files(source: Source) -> Iterator[Entry]:
    for entry in source.walk():
        if entry.kind == "file" and entry.name.endswith(".jsonl"):
            yield entry


def _is_ours(source: Source, entry: Entry) -> bool:
    start = source.peek(entry.parts, _PEEK_BYTES)
    if b'"parentUuid"' in start or b'"leafUuid"' in start or (b'"sessionId"' in start and b'"type"' in start):
        return True
    # What `claude -p --output-format stream-json` prints. Codex has such ids too, with all it says in payloads.
    return b'"session_id"' in start and b'"subtype"' in start and b'"payload"' not in start


def read(source: Source, reading: Reading) -> None:
    """Every session that has something said in it."""
    agents: dict[Parts, list[Entry]] = {}
    mains: list[Entry] = []
    for entry in _files(source):
        if "subagents" in entry.parts:
            agents.setdefault(entry.parts[: entry.parts.index("subagents")], []).append(entry)
        elif _is_ours(source, entry):
            mains.append(entry)
        elif entry.name != "history.jsonl":
            reading.note(entry.shown, "it is not a transcript")
    for entry in mains:
        beside = agents.pop((*entry.parts[:-1], entry.name.removesuffix(".jsonl")), [])
        _read_session(source, entry, [one for one in beside if one.name.startswith("agent-")], reading)
    for entries in agents.values():  # the transcript they belong to is gone
        for entry in entries:
            if entry.name.startswith("agent-"):
                _read_session(source, entry, [], reading)


def _read_session(source: Source, entry: Entry, agents: list[Entry], reading: Reading) -> None:
    files = [JsonLines(source, one) for one in (entry, *agents)]
    scan = _ClaudeScan(reading)
    try:
        for number, file in enumerate(files):
            scan.begin(number, file.entry, agent=_agent_of(source, file.entry) if number else {})
            for line, record in file.read(reading):
                scan.take(line, record)
    except DamagedError as damage:
        reading.trouble(entry.shown, damage)
        return
    stem = entry.name.removesuffix(".jsonl")
    name = stem if not scan.sessions or stem in scan.sessions or stem.startswith("agent-") else scan.sessions[0]
    head = scan.head()
    found = session_of(
        usable_name(name) or stem,
        scan.turns,
        Conversations(source, lambda: _messages(files)),
        reading,
        where=lambda turn: f"{files[turn.line[0]].entry.shown}:{turn.line[1]}",
        head=head,
        pending=scan.pending(head),
        ended=scan.ended,
    )
    if found is not None:
        found.title = scan.title
        reading.sessions.append(found)
    else:
        reading.note(entry.shown, "nothing is said in it")


def _agent_of(source: Source, entry: Entry) -> dict[str, Any]:
    """What is told of a sub-agent beside its transcript."""
    try:
        return parse_object(source.read((*entry.parts[:-1], entry.name.removesuffix(".jsonl") + ".meta.json")))
    except DamagedError:
        return {}


def _messages(files: list[JsonLines]) -> dict[tuple[int, int], list[Any]]:
    found: dict[tuple[int, int], list[Any]] = {}
    for number, file in enumerate(files):
        for line, record in file.read():
            message = message_of_line(record)
            if message is not None:
                found[number, line] = [message]
    return found


class _Group(msgspec.Struct):
    """A reply on several lines: where it ends so far, results and all, and what was used before it."""

    tail: str
    before: Usage


class _ClaudeScan:
    """One session, line by line."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.turns: dict[str, Turn] = {}
        self.sessions: list[str] = []
        self.ended = False
        self._links: dict[str, str | None] = {}  # lines that are no turns, and what stands before them
        self._anew: set[str] = set()  # lines behind which the conversation begins anew
        self._groups: dict[str, _Group] = {}
        self._open: dict[str, tuple[str, PendingCall]] = {}
        self._spawned: dict[str, str] = {}  # calls that began a sub-agent, and the turn that asked
        self._calls: dict[str, str] = {}  # sub-agents, and the call that began each
        self._title: tuple[int, str] | None = None
        self._file, self._entry, self._agent = 0, Entry(("",), "file"), dict[str, Any]()
        self._last_us = 0
        self._last_main: str | None = None
        self._streamed: dict[str | None, str] = {}  # the last line of the main conversation and of each sub-agent
        self._told: dict[str, Any] = {}

    def begin(self, number: int, entry: Entry, *, agent: dict[str, Any]) -> None:
        """The next file."""
        self._file, self._entry, self._agent = number, entry, agent

    def take(self, line: int, record: dict[str, Any]) -> None:
        """A line."""
        session = record.get("sessionId", record.get("session_id"))
        if isinstance(session, str) and session not in self.sessions:
            self.sessions.append(session)
        self._note_title(record)
        message = message_of_line(record)
        id_ = record.get("uuid")
        if not isinstance(id_, str) or not id_:
            if message is None:
                return
            id_ = made_uuid(NAME, *self.sessions[:1], str(self._file), str(line))
        if id_ in self.turns or id_ in self._links:
            return
        # In a stream no parent is told: it is the line before, of the same sub-agent if it is one's.
        before = record.get("parentUuid", self._streamed.get(_caller(record)))
        before = before if isinstance(before, str) else None
        if message is None:
            if record.get("subtype") == "compact_boundary":
                after = record.get("logicalParentUuid")
                before = after if isinstance(after, str) else self._last_main
                self._anew.add(id_)
            self._links[id_] = before
            return
        self._add(id_, before, line, record, message)

    def _add(self, id_: str, before: str | None, line: int, record: dict[str, Any], message: dict[str, Any]) -> None:
        at_us = moment_us(record.get("timestamp"))
        self._last_us = self._last_us if at_us is None else at_us
        side = record.get("isSidechain") is True or _caller(record) is not None
        parent, anew = self._before(before)
        group = self._group_of(record, message, parent)
        if group is not None and group in self._groups and not anew:
            parent = self._groups[group].tail
        if parent is None and side:
            parent, anew = self._spawner(record), True
        elif parent is None and self._last_main is not None:
            parent = self._last_main if before is not None else None
        total = Usage() if parent is None else self.turns[parent].total
        turn = Turn(
            id=id_,
            line=(self._file, line),
            at_us=self._last_us,
            base=None if anew else parent,
            parent=parent,
            shown=_is_shown(record, message),
            group=group,
            branch=self._branch(record) if side else "rewound",
            trigger="compaction" if record.get("isCompactSummary") is True else "import",
            total=self._total(group, message, record, total),
            agent=self._agent_name() if side else NAME,
            metadata=self._metadata(record),
        )
        self.turns[id_] = turn
        if group is not None:
            self._groups.setdefault(group, _Group(id_, total)).tail = id_
        self._note_calls(turn, record, message)
        self._streamed[_caller(record)] = id_
        if not side:
            self._last_main = id_
            self.ended = message["role"] == "assistant"

    def _before(self, id_: str | None) -> tuple[str | None, bool]:
        """The turn that a line stands behind, past lines that are none; whether the conversation begins anew there."""
        seen: set[str] = set()
        anew = False
        while id_ is not None and id_ not in self.turns and id_ not in seen:
            seen.add(id_)
            anew = anew or id_ in self._anew
            id_ = self._links.get(id_)
        if id_ is None or id_ not in self.turns:
            return None, anew
        # What follows a reply follows all of its results.
        group = self.turns[id_].group
        return (id_ if group is None else self._groups[group].tail), anew

    def _group_of(self, record: dict[str, Any], message: dict[str, Any], parent: str | None) -> str | None:
        if message["role"] == "assistant":
            key = record["message"].get("id")
            return key if isinstance(key, str) and key else None
        results = isinstance(message["content"], list) and _has(message["content"], "tool_result")
        return self.turns[parent].group if results and parent is not None else None

    def _spawner(self, record: dict[str, Any]) -> str | None:
        """The turn that asked for a sub-agent: by the call it names, by its result, else the newest before it."""
        agent = record.get("agentId")
        call = (
            _caller(record)
            or self._agent.get("toolUseId")
            or (self._calls.get(agent) if isinstance(agent, str) else None)
        )
        found = self._spawned.get(call) if isinstance(call, str) else None
        if found is None and not self._file:
            found = self._last_main
        if found is None:
            earlier = [turn.id for turn in self.turns.values() if turn.line[0] == 0 and turn.at_us <= self._last_us]
            found = earlier[-1] if earlier else next(iter(self.turns), None)
        return found

    def _branch(self, record: dict[str, Any]) -> str:
        agent = record.get("agentId", _caller(record))
        if isinstance(agent, str) and agent:
            return f"agent-{agent}"
        return self._entry.name.removesuffix(".jsonl") if self._file else "sidechain"

    def _agent_name(self) -> str:
        kind = self._agent.get("agentType")
        return kind if isinstance(kind, str) and usable_name(kind) else NAME

    def _total(self, group: str | None, message: dict[str, Any], record: dict[str, Any], total: Usage) -> Usage:
        if message["role"] != "assistant":
            return total
        used = record["message"].get("usage")
        if not isinstance(used, dict):
            return total
        cached = {name: count_of(used.get(name)) for name in _CACHED}
        before = self._groups[group].before if group in self._groups and group is not None else total
        return before + Usage(
            tokens_in=count_of(used.get("input_tokens")) + sum(cached.values()),
            tokens_out=count_of(used.get("output_tokens")),
            extra={name: count for name, count in cached.items() if count},
        )

    def _metadata(self, record: dict[str, Any]) -> dict[str, Any]:
        """Where it happened and which model spoke. The same object as long as nothing of it changes."""
        told = {name: record[name] for name in _KEPT if isinstance(record.get(name), str)}
        model = record["message"].get("model") or self._told.get(NAME, {}).get("model")
        if isinstance(model, str):
            told["model"] = model
        if told != self._told.get(NAME):
            self._told = {NAME: told}
        return self._told

    def _note_calls(self, turn: Turn, record: dict[str, Any], message: dict[str, Any]) -> None:
        for block in message["content"] if isinstance(message["content"], list) else ():
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "tool_use" and isinstance(block.get("id"), str):
                name = block.get("name")
                name = name if isinstance(name, str) and name else "tool"
                self._open[block["id"]] = turn.id, PendingCall(block["id"], name, block.get("input"))
                if name in _SPAWNS:
                    self._spawned[block["id"]] = turn.id
            elif kind == "tool_result" and isinstance(block.get("tool_use_id"), str):
                self._open.pop(block["tool_use_id"], None)
                result = record.get("toolUseResult")
                agent = result.get("agentId") if isinstance(result, dict) else record.get("agentId")
                if isinstance(agent, str):
                    self._calls[agent] = block["tool_use_id"]

    def _note_title(self, record: dict[str, Any]) -> None:
        kind = record.get("type")
        field = _TITLES.get(kind) if isinstance(kind, str) else None
        title = record.get(field) if field else record.get("title")
        if field and isinstance(kind, str) and isinstance(title, str) and title.strip():
            rank = _RANK[kind]
            if self._title is None or rank <= self._title[0]:
                self._title = rank, title.replace("\0", "").strip()[:_MAX_TITLE]

    @property
    def title(self) -> str | None:
        """The title that ranks highest."""
        return None if self._title is None else self._title[1]

    def head(self) -> str | None:
        """The newest checkpoint of the main line."""
        return shown_before(self._last_main, self.turns)

    def pending(self, head: str | None) -> list[PendingCall]:
        """The calls at the head that no result follows."""
        if head is None:
            return []
        group = self.turns[head].group
        return [
            call
            for id_, call in self._open.values()
            if id_ == head or (group is not None and self.turns[id_].group == group)
        ]


def _caller(record: dict[str, Any]) -> str | None:
    """The call that a line of a stream belongs to, if a sub-agent says it."""
    call = record.get("parent_tool_use_id")
    return call if isinstance(call, str) and call else None


def _has(content: list[Any], kind: str) -> bool:
    return any(isinstance(block, dict) and block.get("type") == kind for block in content)


def _is_shown(record: dict[str, Any], message: dict[str, Any]) -> bool:
    """True for what a person would call a step: not a reminder to the model, not a thought alone."""
    if record.get("isMeta") is True:
        return False
    content = message["content"]
    if isinstance(content, str):
        return bool(content.strip())
    return any(not isinstance(block, dict) or block.get("type") not in _THOUGHTS for block in content)
