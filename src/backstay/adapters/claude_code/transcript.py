"""The conversation of a Claude Code session, read from its transcript as far as that has grown since the last look.

The transcript stays Claude Code's; here it is mirrored into `state["messages"]`, so that a checkpoint has talk and
files. Lines of one reply become one message, and so do the results of calls made at once. A prompt that stands behind
an earlier line than the last is a rewind inside Claude Code: what it left goes from the state, and stays in history.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from backstay.bookkeeping import TRANSCRIPT_PART
from backstay.messages import message_of_line
from backstay.model import StateDict

PART = TRANSCRIPT_PART  # of the state: how far the transcript was read, and the line that each message ends with


class Transcript:
    """One transcript. `links` are lines without a message, each with the line before it."""

    def __init__(self) -> None:
        self._links: dict[str, str | None] = {}

    def read(self, state: StateDict, path: str) -> bool:
        """Put what is new behind the messages of a state; False if there is no such transcript."""
        known = _known(state, path)
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError:
            return False
        with os.fdopen(handle, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < known["read"]:  # another file than was read
                known = _fresh(state, path)
            file.seek(known["read"])
            data = file.read(size - known["read"])
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._take(state["messages"], known, line)
        known["read"] += len(whole)
        state[PART] = known
        return True

    def is_behind(self, state: StateDict, path: str) -> bool:
        """True if the transcript has grown since it was read."""
        known = state.get(PART)
        read = known.get("read") if isinstance(known, dict) and known.get("transcript") == path else 0
        try:
            return Path(path).stat().st_size > (read or 0)
        except OSError:
            return False

    def _take(self, messages: list[Any], known: dict[str, Any], line: bytes) -> None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return  # a line that was cut off by a crash of Claude Code
        if not isinstance(record, dict):
            return
        uuid, before = record.get("uuid"), record.get("parentUuid")
        message = message_of_line(storable(record))
        if message is None or record.get("isSidechain") is True:
            if isinstance(uuid, str):
                self._links[uuid] = before if isinstance(before, str) else None
            return
        lines: list[Any] = known["lines"]
        if record.get("isCompactSummary") is True:
            messages.clear()
            lines.clear()
        elif _is_prompt(message) and before is not None:
            at = self._at(before, lines)
            if at is not None:
                del messages[at + 1 :], lines[at + 1 :]
        reply = record["message"].get("id")
        if _joins(messages, message, reply, known.get("reply")):
            messages[-1] = {**messages[-1], "content": [*_blocks(messages[-1]), *_blocks(message)]}
            lines[-1] = uuid
        else:
            messages.append(message)
            lines.append(uuid)
        if message["role"] == "assistant":
            known["reply"], known["answer"] = reply, uuid

    def _at(self, before: Any, lines: list[Any]) -> int | None:
        """The number of the message that a line ends; past lines that are none."""
        for _ in range(len(self._links) + 1):
            if before in lines:
                return len(lines) - 1 - lines[::-1].index(before)
            if before not in self._links:
                return None
            before = self._links[before]
        return None


def _known(state: StateDict, path: str) -> dict[str, Any]:
    known = state.get(PART)
    fits = isinstance(known, dict) and known.get("transcript") == path and isinstance(state.get("messages"), list)
    if fits and isinstance(known, dict) and len(known.get("lines", ())) == len(state["messages"]):
        return dict(known, lines=list(known["lines"]))
    return _fresh(state, path)


def _fresh(state: StateDict, path: str) -> dict[str, Any]:
    state["messages"] = []
    return {"transcript": path, "read": 0, "lines": []}


def answer_of(state: StateDict) -> str | None:
    """The line of the last answer in a state: Claude Code can resume a session there."""
    known = state.get(PART)
    answer = known.get("answer") if isinstance(known, dict) else None
    return answer if isinstance(answer, str) else None


def storable(value: Any, *, longest: int | None = None, depth: int = 40) -> Any:
    """A value of JSON in a form that can be kept; texts beyond `longest` are cut."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode() if not value.isascii() else value
        return text if longest is None or len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"
    if isinstance(value, dict | list) and depth == 0:
        return "…"
    if isinstance(value, dict):
        return {storable(k): storable(v, longest=longest, depth=depth - 1) for k, v in value.items()}
    if isinstance(value, list):
        return [storable(each, longest=longest, depth=depth - 1) for each in value]
    if type(value) is int and not -(2**63) <= value < 2**63:
        return str(value)
    return value


def _is_prompt(message: dict[str, Any]) -> bool:
    return message["role"] == "user" and not _is_results(message)


def _is_results(message: dict[str, Any]) -> bool:
    content = message["content"]
    return (
        message["role"] == "user"
        and isinstance(content, list)
        and any(_type(block) == "tool_result" for block in content)
    )


def _type(block: Any) -> Any:
    return block.get("type") if isinstance(block, dict) else None


def _joins(messages: list[Any], message: dict[str, Any], reply: Any, last: Any) -> bool:
    """True if a line goes on with the last message: a block of the same reply, or one more result."""
    if not messages:
        return False
    if message["role"] == "assistant":
        return messages[-1]["role"] == "assistant" and reply is not None and reply == last
    return _is_results(message) and _is_results(messages[-1])


def _blocks(message: dict[str, Any]) -> list[Any]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
