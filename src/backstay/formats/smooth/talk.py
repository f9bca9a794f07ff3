"""Conversations of smooth: what a checkpoint must have, what it becomes here, and how it is written again."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from backstay.formats.dialect import DamagedError, Sorted, nanoseconds, time_text
from backstay.formats.exporter import Exporter, arguments_of, jsonable, made_uuid, micros, own, text_of
from backstay.formats.model import FoundPoint, GivenFields, PendingCall
from backstay.model import Checkpoint, StateDict

NAME = "smooth"
MAX_CONTEXT_TOKENS = 100_000
# Perhaps a number with an exponent: smooth writes `1e+16`, and with an older library wrote `1e16`.
HAS_EXPONENT = re.compile(rb"\de[+]?\d")
_ROLES = ("system", "user", "assistant", "tool")
_OPTIONAL = ("tool_call_id", "tool_name", "tool_calls", "reasoning_content", "images")
_MAX_ITERATION = 2**32


def check_conversation(value: Any) -> dict[str, Any]:
    """A conversation, or DamagedError."""
    given = GivenFields(value if isinstance(value, dict) else {}, "conversation.")
    given.text("id")
    given.whole("max_context_tokens", low=0)
    for message in given.items("messages"):
        told = GivenFields(message if isinstance(message, dict) else {}, "messages: ")
        told.text("id")
        if told.text("role") not in _ROLES:
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
        order=(at_ns // 10**9, at_ns % 10**9, iteration, len(conversation["messages"]), tie, id_),
        at_us=at_ns // 1000,
        load=load,
        where=where,
        step=iteration,
        agent=agent,
        metadata={NAME: kept},
    )


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
    state = jsonable(checkpoint.state, NAME)
    exporter.note_parts(state, {"messages"})
    messages = state.get("messages", [])
    return {
        "id": kept.get("conversation_id") or made_uuid(exporter.session),
        "messages": [
            _message(exporter, checkpoint, at, message)
            for at, message in enumerate(messages if isinstance(messages, list) else [])
        ],
        "max_context_tokens": kept.get("max_context_tokens", MAX_CONTEXT_TOKENS),
        **kept.get("conversation", {}),
    }


def _message(exporter: Exporter, checkpoint: Checkpoint, at: int, message: Any) -> dict[str, Any]:
    told = message if isinstance(message, dict) else {"role": "user", "content": message}
    if {"id", "role", "content", "timestamp"} <= set(told) and told["role"] in _ROLES:
        calls = told.get("tool_calls")
        if not isinstance(calls, list):
            return told
        return {**told, "tool_calls": [_call(call, at, number) for number, call in enumerate(calls)]}
    role = told.get("role")
    if role not in _ROLES:
        exporter.note(f"smooth has no role {str(role)[:40]!r}; such messages were written as the user's")
    left = set(told) - {"id", "role", "content", "timestamp", *_OPTIONAL}
    for name in sorted(left):
        exporter.note(f"the field {name!r} of a message has no place there and stays behind")
    written: dict[str, Any] = {
        "id": told["id"] if isinstance(told.get("id"), str) else made_uuid(exporter.session, str(at)),
        "role": role if role in _ROLES else "user",
        "content": text_of(told.get("content")),
    }
    calls = told.get("tool_calls")
    for name in _OPTIONAL:
        if told.get(name):
            written[name] = told[name]
    if isinstance(calls, list) and calls:
        written["tool_calls"] = [_call(call, at, number) for number, call in enumerate(calls)]
    written["timestamp"] = (
        told["timestamp"] if _is_time(told.get("timestamp")) else time_text(micros(checkpoint.created_at))
    )
    return written


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and nanoseconds(value) is not None
    except DamagedError:
        return False


def _call(call: Any, at: int, number: int) -> dict[str, Any]:
    told = call if isinstance(call, dict) else {}
    function = told.get("function")
    if isinstance(function, dict):  # as OpenAI writes it
        arguments = function.get("arguments")
        told = {
            "id": told.get("id"),
            "name": function.get("name"),
            "arguments": arguments_of(arguments) if isinstance(arguments, str) else arguments,
        }
    return {
        "id": told.get("id") or f"call-{at}-{number}",
        "name": str(told.get("name", "")),
        "arguments": Sorted(told.get("arguments")),
        **{key: value for key, value in told.items() if key not in ("id", "name", "arguments")},
    }


def metadata_of(checkpoint: Checkpoint) -> dict[str, str]:
    """What smooth keeps as text: its own, or what Backstay knows."""
    kept = own(checkpoint, NAME).get("metadata")
    if isinstance(kept, dict):
        return kept
    told = {"label": checkpoint.label, "reason": checkpoint.reason, "resume_hint": checkpoint.resume_hint}
    told |= {"status": checkpoint.status.value, "trigger": checkpoint.trigger}
    return {key: value for key, value in told.items() if value is not None}


def iteration_of(checkpoint: Checkpoint) -> int:
    """Its step, or its number."""
    step = checkpoint.step if checkpoint.step is not None else checkpoint.sequence
    return min(max(step, 0), _MAX_ITERATION - 1)
