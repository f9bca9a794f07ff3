"""Messages as a reader sees them: who speaks, what is said, which tools are called, and which call a result answers.

The shapes in use are those of OpenAI (chat and Responses), Anthropic, LangChain and plain roles. Pure; nothing here is
made harmless: the face that shows it does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """A call that a message asks for; `args` as they stand in it, which may be JSON text."""

    id: str
    name: str
    args: Any


class Said(NamedTuple):
    """A piece of a message: text, or a block that is none (an image, say). `kind` is that of the block."""

    kind: str
    text: str | None
    block: Any = None


QUIET = ("thinking", "reasoning", "tool_result")  # kinds of text that are not the message itself

_SPEAKERS = {"human": "user", "ai": "assistant"}  # as LangChain calls them


def role_of(message: Mapping[str, Any]) -> str:
    """The speaker of a message; one of a user's with results alone (Anthropic) is the tools'."""
    content = message.get("content")
    if isinstance(content, list) and content:
        kinds = [block.get("type") if isinstance(block, Mapping) else None for block in content]
        if all(kind == "tool_result" for kind in kinds):
            return "tool"
    for key in ("role", "type"):
        if isinstance(message.get(key), str):
            return str(message[key])
    return "message"


def speaker_of(message: Mapping[str, Any]) -> str:
    """The role of a message in one of the usual words; an item of OpenAI's Responses is the assistant's or a tool's."""
    role = role_of(message)
    if "role" not in message and role.endswith("_output"):
        return "tool"
    if "role" not in message and (role.endswith("_call") or role == "reasoning"):
        return "assistant"
    return _SPEAKERS.get(role, role)


def answered_by(message: Mapping[str, Any]) -> list[str]:
    """The ids of the calls whose results a message has."""
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    found = [message.get("tool_call_id"), message.get("call_id")]
    found += [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    return [id_ for id_ in found if isinstance(id_, str)]


def said_in(message: Mapping[str, Any]) -> Iterator[Said]:
    """What a message says, piece by piece; its calls are left out."""
    content = message.get("content", message.get("text", message.get("output")))
    if isinstance(content, str):
        if content:
            yield Said("text", content)
    elif isinstance(content, list):
        for block in content:
            yield from _block(block)
    elif content is not None:
        yield Said("value", None, content)


def _block(block: Any) -> Iterator[Said]:
    if not isinstance(block, Mapping):
        yield Said("text", block) if isinstance(block, str) else Said("value", None, block)
        return
    kind = block.get("type")
    name = kind if isinstance(kind, str) else "block"
    text = block.get("text", block.get("thinking", block.get("content")))
    if kind in ("tool_use", "tool_call"):
        return
    if isinstance(text, str):
        yield Said(name, text, block)
    elif isinstance(text, list):
        for each in text:
            yield from _block(each)
    else:
        yield Said(name, None, block)


def asked_in(message: Mapping[str, Any]) -> list[Asked]:
    """The calls that a message asks for."""
    found: list[Asked] = []
    calls, content = message.get("tool_calls"), message.get("content")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping):
            inner = call["function"] if isinstance(call.get("function"), Mapping) else call
            given = inner.get("arguments", inner.get("args", inner.get("input")))
            found.append(Asked(str(call.get("id")), str(inner.get("name")), given))
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    found += [
        Asked(str(block.get("id")), str(block.get("name")), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    kind = message.get("type")
    if isinstance(kind, str) and kind.endswith("_call") and "role" not in message:  # an item of OpenAI's Responses
        given = message.get("arguments", message.get("input", message.get("action")))
        found.append(Asked(str(message.get("call_id")), str(message.get("name", kind)), given))
    return found
