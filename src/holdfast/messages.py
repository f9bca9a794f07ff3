"""What is generally known of messages: enough to say in one line what a checkpoint holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SUMMARY_CHARS = 60


def summarise(state: Mapping[str, Any], part: str = "messages") -> str:
    """One short line about a state: its last message if it has messages, otherwise the names of its parts."""
    messages = state.get(part)
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        return _clip(_message_line(messages[-1]))
    return _clip(", ".join(map(str, list(state)[:8])))


def _message_line(message: Mapping[str, Any]) -> str:
    role = message.get("role", message.get("type", ""))
    calls = message.get("tool_calls")
    text = _first_text(message.get("content")).strip()
    if not text and isinstance(calls, list) and calls:
        text = "-> " + ", ".join(_call_name(call) for call in calls[:3])
    return f"{role}: {text}" if isinstance(role, str) and role else text


def _call_name(call: object) -> str:
    if isinstance(call, Mapping):
        function = call.get("function")
        name = function.get("name") if isinstance(function, Mapping) else call.get("name")
        return str(name)
    return "?"


def _first_text(content: object) -> str:
    if isinstance(content, str):
        return content[:400]
    if isinstance(content, list):  # content parts, as OpenAI and Anthropic write them
        for part in content:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str) and text.strip():
                return text[:400]
    return ""


def _clip(text: str) -> str:
    """The first line that says something, without control characters, at most as long as a line of a log."""
    text = text[:400].lstrip()
    if not text.isprintable():
        text = next((line for line in text.splitlines() if line.strip()), "")
        text = text if text.isprintable() else "".join([char if char.isprintable() else " " for char in text])
    if "  " in text:
        text = " ".join(text.split())
    return text.rstrip() if len(text) <= _SUMMARY_CHARS else text[: _SUMMARY_CHARS - 1].rstrip() + "…"
