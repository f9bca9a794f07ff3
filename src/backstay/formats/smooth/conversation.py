"""Conversations of smooth: the fields a checkpoint must have, what it becomes here, and how it is written again."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from backstay.formats.chat import ROLES, ChatMessage, arguments_of, flatten, moment_us
from backstay.formats.dialect import DamagedError, JsonWriter, Sorted, nanoseconds, time_text
from backstay.formats.exporter import Exporter, is_jsonable, jsonable, made_uuid, micros, own
from backstay.formats.model import FoundPoint, GivenFields, PendingCall
from backstay.model import Checkpoint, StateDict

NAME = "smooth"
MAX_CONTEXT_TOKENS = 100_000
# Perhaps a number with an exponent: smooth writes `1e+16`, and with an older library wrote `1e16`.
HAS_EXPONENT = re.compile(rb"\de[+]?\d")
_FIELDS = frozenset({"id", "role", "content", "tool_call_id", "tool_name", "tool_calls", "reasoning_content", "images"})
_MAX_ITERATION = 2**32
_NUMBER = "backstay.sequence"
_DIGITS = re.compile(r"\d{1,10}", re.ASCII).fullmatch
TIE = 4  # where `order` of a point has the number of its row


def check_conversation(value: Any) -> dict[str, Any]:
    """A conversation, or DamagedError."""
    given = GivenFields(value if isinstance(value, dict) else {}, "conversation.")
    given.text("id")
    given.whole("max_context_tokens", low=0)
    for message in given.items("messages"):
        told = GivenFields(message if isinstance(message, dict) else {}, "messages: ")
        told.text("id")
        if told.text("role") not in ROLES:
            raise DamagedError(f"messages: role is {told.text('role')[:40]!r}, which is none")
        told.text("content")
        nanoseconds(told.text("timestamp"))
        told.maybe_text("tool_call_id")
        calls = told.maybe("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            asked = GivenFields(call if isinstance(call, dict) else {}, "tool_calls: ")
            asked.text("id")
            asked.text("name")
            asked.value("arguments")
    found: dict[str, Any] = value
    return found


def make_point(
    *,
    id_: str,
    agent: str,
    conversation: dict[str, Any],
    iteration: int,
    metadata: dict[str, Any],
    at_ns: int,
    where: str,
    tie: int,
    load: Callable[[], StateDict],
) -> FoundPoint:
    """A checkpoint as Backstay keeps it. Its metadata still lacks how its time was written."""
    if not 0 <= iteration < _MAX_ITERATION:
        raise DamagedError(f"iteration is {iteration}, which cannot be")
    if not all([type(value) is str for value in metadata.values()]):
        raise DamagedError("metadata holds something that is not text")
    kept: dict[str, Any] = {
        "id": id_,
        "conversation_id": conversation["id"],
        "max_context_tokens": conversation["max_context_tokens"],
        "metadata": metadata,
    }
    more = {key: value for key, value in conversation.items() if key not in ("id", "messages", "max_context_tokens")}
    if more:
        kept["conversation"] = more
    return FoundPoint(
        id=id_,
        order=(at_ns // 10**9, at_ns % 10**9, iteration, len(conversation["messages"]), numbered(metadata) or tie, id_),
        at_us=at_ns // 1000,
        load=load,
        where=where,
        step=iteration,
        agent=agent,
        metadata={NAME: kept},
    )


def numbered(metadata: dict[str, Any]) -> int | None:
    """The number that an export gave a checkpoint, which tells apart those of one second."""
    told = metadata.get(_NUMBER)
    return int(told) if isinstance(told, str) and _DIGITS(told) else None


def find_pending(messages: list[Any]) -> list[PendingCall]:
    """The calls of the last reply that no result follows."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.get("role") == "tool":
            answered.add(message.get("tool_call_id"))
            continue
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        return [
            PendingCall(call["id"] or None, call["name"] or "tool", call["arguments"])
            for call in calls or []
            if call["id"] not in answered
        ]
    return []


# writing


def conversation_of(exporter: Exporter, checkpoint: Checkpoint) -> dict[str, Any]:
    """The conversation of a checkpoint as smooth writes it."""
    kept = own(checkpoint, NAME)
    exporter.note_parts(checkpoint.state, {"messages"})
    messages = checkpoint.state.get("messages", [])
    written: list[dict[str, Any]] = []
    for at, message in enumerate(messages if isinstance(messages, list) else []):
        written += _messages(exporter, checkpoint, at, message)
    return {
        "id": kept.get("conversation_id") or made_uuid(exporter.session),
        "messages": written,
        "max_context_tokens": kept.get("max_context_tokens", MAX_CONTEXT_TOKENS),
        **kept.get("conversation", {}),
    }


def _messages(exporter: Exporter, checkpoint: Checkpoint, at: int, message: Any) -> list[dict[str, Any]]:
    """A message as smooth keeps it: its own as it is, any other with every field of the kind that smooth reads."""
    timed = isinstance(message, dict) and isinstance(message.get("timestamp"), datetime)
    given = {**message, "timestamp": message["timestamp"].isoformat()} if timed else message
    jsonable(given, NAME, ("messages", at))
    if _is_smooths(message):
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return [message]
        return [{**message, "tool_calls": [{**call, "arguments": Sorted(call["arguments"])} for call in calls]}]
    return [
        _chat_message(exporter, checkpoint, (at, number), said, message)
        for number, said in enumerate(flatten(message, at))
    ]


def _chat_message(
    exporter: Exporter, checkpoint: Checkpoint, place: tuple[int, int], said: ChatMessage, message: Any
) -> dict[str, Any]:
    at, number = place
    told: dict[str, Any] = message if isinstance(message, dict) else {}
    if said.role not in ROLES:
        exporter.note(f"smooth has no role {said.role[:40]!r}; such messages were written as the user's")
    for name in set(said.fields) - _FIELDS - {"timestamp"}:
        if said.fields[name] is not None:
            exporter.note(f"the field {name!r} of a message has no place there and stays behind")
    id_ = told.get("id")
    if number or id_ is None or isinstance(id_, bool) or not isinstance(id_, str | int):
        id_ = made_uuid(exporter.session, str(at), *([str(number)] if number else []))
    written: dict[str, Any] = {
        "id": str(id_),
        "role": said.role if said.role in ROLES else "user",
        "content": said.text,
    }
    if said.answers:
        written["tool_call_id"] = said.answers
    tool = told.get("tool_name", told.get("name") if said.role == "tool" else None)
    if isinstance(tool, str) and tool:
        written["tool_name"] = tool
    if said.calls:
        written["tool_calls"] = [
            {
                "id": call.id,
                "name": call.name,
                "arguments": Sorted(
                    arguments_of(call.arguments) if isinstance(call.arguments, str) else call.arguments
                ),
            }
            for call in said.calls
        ]
    thought = told.get("reasoning_content") or said.thought
    if isinstance(thought, str) and thought:
        written["reasoning_content"] = thought
    images = [*_images(told.get("images")), *said.images]
    if images:
        written["images"] = images
    at_us = moment_us(told.get("timestamp"))
    written["timestamp"] = time_text(micros(checkpoint.created_at) if at_us is None else at_us)
    return written


def _images(given: Any) -> list[dict[str, Any]]:
    return [one for one in given if _is_image(one)] if isinstance(given, list) else []


def _is_image(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("url"), str) and _is_text(value.get("detail"))


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_smooths(message: Any) -> bool:
    """True for a message that smooth itself could have written: it is kept to the byte."""
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return False
    if not all([isinstance(message.get(name), str) for name in ("id", "content", "timestamp")]):
        return False
    if not all([_is_text(message.get(name)) for name in ("tool_call_id", "tool_name", "reasoning_content")]):
        return False
    calls, images = message.get("tool_calls"), message.get("images")
    if not (calls is None or (isinstance(calls, list) and all([_is_call(call) for call in calls]))):
        return False
    if not (images is None or (isinstance(images, list) and all([_is_image(one) for one in images]))):
        return False
    try:
        nanoseconds(message["timestamp"])
    except DamagedError:
        return False
    return True


def _is_call(call: Any) -> bool:
    texts = isinstance(call, dict) and isinstance(call.get("id"), str) and isinstance(call.get("name"), str)
    return texts and "arguments" in call


def metadata_of(exporter: Exporter, checkpoint: Checkpoint) -> dict[str, str]:
    """The texts that smooth keeps beside a conversation: its own, or what Backstay knows and the caller gave."""
    kept = own(checkpoint, NAME).get("metadata")
    tags = exporter.tags.get(checkpoint.id)
    if isinstance(kept, dict):
        return {**kept, "tags": ", ".join(tags)} if tags else kept
    used = checkpoint.total_usage
    told = {
        "label": checkpoint.label,
        "status": checkpoint.status.value,
        "reason": checkpoint.reason,
        "trigger": checkpoint.trigger,
        "resume_hint": checkpoint.resume_hint,
        "tags": ", ".join(tags) if tags else None,
        "tokens_in": used.tokens_in or None,
        "tokens_out": used.tokens_out or None,
        "cost": used.cost or None,
        "tasks_completed": used.tasks_completed or None,
        "usage": dict(used.extra) or None,
    }
    if checkpoint.agent != exporter.session:
        told["agent"] = checkpoint.agent
    written: dict[str, str] = {}
    for key, value in checkpoint.metadata.items():
        if is_jsonable(value):
            written[key] = _as_text(value)
        else:
            exporter.note(f"the metadata {key!r} holds a value that JSON has no form for, and stays behind")
    for key, value in told.items():  # a name that the caller uses is the caller's
        if value is not None:
            written[key if key not in written else f"backstay.{key}"] = _as_text(value)
    written[_NUMBER] = str(checkpoint.sequence)
    return written


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else JsonWriter().compact(value).decode()


def iteration_of(checkpoint: Checkpoint) -> int:
    """Its step, or its number."""
    step = checkpoint.step if checkpoint.step is not None else checkpoint.sequence
    return min(max(step, 0), _MAX_ITERATION - 1)
