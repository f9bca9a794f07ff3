"""Messages of any provider as chat messages: a role, a text, the tools it calls, or the call it answers. Pure.

OpenAI chat, OpenAI Responses and Anthropic write calls and results in three ways; systems that know only one of them
get all three through `flatten`. A message may become several: Anthropic puts the results of three calls into one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from backstay.formats.dialect import DamagedError, JsonWriter, nanoseconds

ROLES = ("system", "user", "assistant", "tool")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Tuples, because what stands in a field may be anything, and not everything can be looked up in a set.
_TEXTS = ("text", "input_text", "output_text", "summary_text", "refusal")
_THOUGHTS = ("thinking", "reasoning", "redacted_thinking")
# A number is a time in seconds, milliseconds, microseconds or nanoseconds; which, its size says.
_UNITS = ((10**11, 10**6), (10**14, 10**3), (10**17, 1))
_UNDERSTOOD = frozenset(
    {"type", "role", "content", "tool_calls", "tool_call_id", "call_id", "name", "arguments", "input", "output"}
    | {"summary", "encrypted_content", "action", "refusal", "function_call", "text"}
)


class ChatCall(msgspec.Struct, frozen=True):
    """A call that a message asks for. `arguments` as they stand: values, or the text of some."""

    id: str
    name: str
    arguments: Any


class ChatMessage(msgspec.Struct):
    """One message. `fields` are those that it had beside what is here; `thought` is reasoning that can be read."""

    role: str
    text: str = ""
    calls: list[ChatCall] = []
    answers: str | None = None
    images: list[dict[str, Any]] = []
    thought: str = ""
    fields: dict[str, Any] = {}


def flatten(message: Any, at: int) -> list[ChatMessage]:
    """The message at that place of a conversation, as one or more."""
    if not isinstance(message, dict):
        return [ChatMessage("user", text_of(message))]
    fields = {key: value for key, value in message.items() if key not in _UNDERSTOOD}
    kind = message.get("type")
    if isinstance(kind, str) and "role" not in message:
        item = _item(kind, message, at)
        item.fields = fields
        return [item]
    role = message.get("role")
    said = ChatMessage(role if isinstance(role, str) else "user", fields=fields)
    before: list[ChatMessage] = []
    content = message.get("content", message.get("text"))
    if isinstance(content, list):
        before = list(_take_blocks(content, said, at))
    else:
        said.text = text_of(content)
    if not said.text and isinstance(message.get("refusal"), str):
        said.text = message["refusal"]
    said.calls += list(_chat_calls(message, at))
    answered = message.get("tool_call_id")
    if answered is not None:
        said.answers = _id(answered)
    if before and not (said.text or said.calls or said.images or said.thought):
        before[0].fields = fields
        return before
    return [*before, said]


def _item(kind: str, item: dict[str, Any], at: int) -> ChatMessage:
    """An item of OpenAI's Responses."""
    call = item.get("call_id", item.get("id"))
    if kind.endswith("_output"):
        return ChatMessage("tool", text_of(item.get("output")), answers=_id(call))
    if kind.endswith("_call"):
        given = item.get("arguments", item.get("input", item.get("action")))
        name = item.get("name")
        found = ChatCall(
            _id(call) or f"call-{at}", name if isinstance(name, str) else kind.removesuffix("_call"), given
        )
        return ChatMessage("assistant", calls=[found])
    if kind == "reasoning":
        return ChatMessage("assistant", thought=text_of(item.get("summary") or item.get("content")))
    return ChatMessage("user", text_of(item.get("content", item.get("text"))))


def _take_blocks(content: list[Any], said: ChatMessage, at: int) -> Iterator[ChatMessage]:
    """The parts of a content go to the message; results of calls come as messages of their own."""
    texts: list[str] = []
    thoughts: list[str] = []
    said.images = []
    said.calls = []
    for number, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(block, dict):
            texts.append(text_of(block))
        elif kind == "tool_use":
            said.calls.append(
                ChatCall(_id(block.get("id")) or f"call-{at}-{number}", str(block.get("name", "")), block.get("input"))
            )
        elif kind == "tool_result":
            yield ChatMessage("tool", text_of(block.get("content")), answers=_id(block.get("tool_use_id")))
        elif kind in _THOUGHTS:
            thoughts.append(text_of(block.get("thinking", block.get("text"))))
        elif (image := _image(block)) is not None:
            said.images.append(image)
        elif isinstance(block.get("text"), str) and (kind in _TEXTS or kind is None):
            texts.append(block["text"])
        else:
            texts.append(JsonWriter().compact(block).decode())
    said.text = "".join(texts)
    said.thought = "".join(thoughts)


def _image(block: dict[str, Any]) -> dict[str, Any] | None:
    """A picture as `{url, detail?}`, from any of the three."""
    given, detail = block.get("image_url"), block.get("detail")
    if isinstance(given, dict):
        detail = given.get("detail", detail)
        given = given.get("url")
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, dict):
        data = source.get("data")
        given = source.get("url") or (f"data:{source.get('media_type')};base64,{data}" if data else None)
    if not isinstance(given, str):
        return None
    return {"url": given, "detail": detail} if isinstance(detail, str) else {"url": given}


def _chat_calls(message: dict[str, Any], at: int) -> Iterator[ChatCall]:
    calls = message.get("tool_calls")
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        if isinstance(call, dict):
            function: dict[str, Any] = call["function"] if isinstance(call.get("function"), dict) else call
            given = function.get("arguments", function.get("args", function.get("input")))
            yield ChatCall(_id(call.get("id")) or f"call-{at}-{number}", str(function.get("name", "")), given)


def _id(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def text_of(content: Any) -> str:
    """The text of a message's content, whatever form it has."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        plain = [text for text in texts if isinstance(text, str)]
        if len(plain) == len(texts):
            return "".join(plain)
    return JsonWriter().compact(content).decode()


def calls_in(messages: Any) -> list[dict[str, Any]]:
    """The tool calls in messages, each `{id, name, arguments}` with its `result` where one follows (else None)."""
    found: dict[str, dict[str, Any]] = {}
    for at, message in enumerate(messages if isinstance(messages, list) else []):
        for said in flatten(message, at):
            for call in said.calls:
                found[call.id] = {"id": call.id, "name": call.name, "arguments": call.arguments, "result": None}
            if said.role == "tool" and said.answers in found:
                found[said.answers]["result"] = said.text
    return list(found.values())


def arguments_text(arguments: Any) -> str:
    """Arguments as text: a text as it is, anything else as JSON."""
    return arguments if isinstance(arguments, str) else JsonWriter().compact(arguments).decode()


def arguments_of(text: str) -> Any:
    """Arguments as values, where the text is JSON; the text itself otherwise."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def moment_us(value: Any) -> int | None:
    """Microseconds since 1970 of a time in any usual form; without a zone it is taken for UTC. None if it is none."""
    if isinstance(value, datetime):
        at: datetime = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (at - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number_us(value)
    if not isinstance(value, str):
        return None
    for text in (value, f"{value}Z"):
        try:
            return nanoseconds(text) // 1000
        except DamagedError:
            continue
    try:
        return _number_us(float(value))
    except ValueError:
        return None


def _number_us(value: float) -> int | None:
    if not 0 <= value < 10**20:  # a NaN is neither
        return None
    for below, factor in _UNITS:
        if value < below:
            return int(value * factor)
    return int(value) // 1000
