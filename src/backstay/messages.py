"""What is generally known of messages: enough to sum up a checkpoint in one line, and to pair calls with results.

Providers refuse a conversation in which a tool call has no result, a result no call, or the two stand apart. A crash
between two results leaves just that. `repair_messages` mends it in the three shapes in use (OpenAI chat, OpenAI
Responses, Anthropic) and never invents an outcome: what is not known is said to be unknown. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from backstay.errors import InvalidInputError

Message = Mapping[str, Any]

OUTCOME_UNKNOWN = (
    "Outcome unknown: the process was interrupted before the result of this call was recorded. "
    "The tool may or may not have run. Check before doing it again."
)

_SUMMARY_CHARS = 60
# A grey square. The answer to a `computer_call` is a picture and nothing else; the model sees that it shows nothing,
# and looks again.
_NO_SCREENSHOT = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAAAAACPAi4CAAAAKUlEQVR42u3MQREAAAwCIKMb3RD77SAA6VEEAoFAIBAIBAKBQCAQfA8G320AeXC6efoAAAAASUVORK5CYII="
)


def summarise(state: Mapping[str, Any], part: str = "messages") -> str:
    """One short line about a state: its last message if it has messages, otherwise the names of its parts."""
    messages = state.get(part)
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict | Mapping):  # a dict is told at once
        return _clip(_message_line(messages[-1]))
    return _clip(", ".join(map(str, list(state)[:8])))


def _message_line(message: Mapping[str, Any]) -> str:
    role = message.get("role", message.get("type", ""))
    content, calls = message.get("content"), message.get("tool_calls")
    text = (_first_text(content) or _first_text(message.get("output"))).strip()
    blocks = _mappings(content) if isinstance(content, list) else []
    if results := [block for block in blocks if block.get("type") == "tool_result"]:
        return f"tool_result: {_first_text(results[-1].get('content')).strip()}"
    if used := [block for block in blocks if block.get("type") == "tool_use"]:
        text = f"{text} {_asked(used)}".strip()
    elif not text and isinstance(calls, list) and calls:
        text = _asked(calls)
    elif not text and isinstance(role, str) and role.endswith("_call"):
        text = _asked([message])
    return f"{role}: {text}" if isinstance(role, str) and role else text


def _asked(calls: list[Any]) -> str:
    """The tools that are called; of many, the last, which is what is new."""
    return "-> " + ", ".join(_call_name(call) for call in calls[-3:])


def _call_name(call: object) -> str:
    if isinstance(call, Mapping):
        function = call.get("function")
        name = function.get("name") if isinstance(function, Mapping) else call.get("name", call.get("type"))
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


def repair_messages(messages: list[Any]) -> list[Any]:
    """The messages with every tool call paired with a result, as providers demand: after a crash, or a trimmed window.

    A call without a result gets one that says that its outcome is unknown; a result without a call, or a second one,
    goes; a result that stands too late moves to its call. What was in order comes back equal, and the list and the
    messages that were given are not touched.

    ```python
    import backstay

    call = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert backstay.repair_messages(messages)[1]["tool_call_id"] == "c1"
    ```
    """
    if not isinstance(messages, list):
        message = f"messages must be a list, not {type(messages).__name__}"
        raise InvalidInputError(message, hint="give state['messages']")
    for index, each in enumerate(messages):
        if not isinstance(each, Mapping):
            message = f"messages[{index}] must be a mapping, not {type(each).__name__}"
            raise InvalidInputError(message, hint="give messages as the provider takes them, as dicts")
    return _repair_blocks(_repair_chat(_repair_items(list(messages))))


def _pair(events: Iterable[tuple[str, bool, int]]) -> dict[int, int]:
    """Which result answers which call: events are (id, is it a result, number) in the order of the conversation.

    A result belongs to the last call of its id before it. Some servers count their ids anew in every turn, so a result
    that comes *before* the only call of its id is taken for one whose call was trimmed away: unknown is better than
    the outcome of another call.
    """
    latest: dict[str, int] = {}
    answers: dict[int, int] = {}
    for name, is_result, number in events:
        if not is_result:
            latest[name] = number
        elif name in latest:
            answers.setdefault(latest[name], number)
    return answers


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _mappings(value: object) -> list[Message]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


# OpenAI chat: the results are `tool` messages in one row right behind the assistant's message, in any order.


def _chat_calls(message: Message) -> list[str]:
    if message.get("role") != "assistant":
        return []
    return [*dict.fromkeys(filter(_is_text, [call.get("id") for call in _mappings(message.get("tool_calls"))]))]


def _chat_result(message: Message) -> str | None:
    name = message.get("tool_call_id") if message.get("role") == "tool" else None
    return name if _is_text(name) else None  # one without an id (Ollama) cannot be paired, and stays where it is


def _repair_chat(messages: list[Message]) -> list[Message]:
    calls: list[tuple[int, str]] = []  # where, which
    events: list[tuple[str, bool, int]] = []
    for index, message in enumerate(messages):
        for name in _chat_calls(message):
            events.append((name, False, len(calls)))
            calls.append((index, name))
        if (result := _chat_result(message)) is not None:
            events.append((result, True, index))
    if not events:
        return messages
    answers = _pair(events)
    owed: dict[int, list[int]] = {}
    for number, (index, _) in enumerate(calls):
        owed.setdefault(index, []).append(number)
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        if _chat_result(message) is not None:
            continue  # it is put behind its call, or has none
        repaired.append(message)
        if index not in owed:
            continue
        row = index + 1
        while row < len(messages) and messages[row].get("role") == "tool":
            row += 1
        for number in _in_place_first(owed[index], answers, range(index, row)):
            known = answers.get(number)
            repaired.append(_unknown_chat(calls[number][1]) if known is None else messages[known])
    return repaired


def _in_place_first(calls: Iterable[int], answers: Mapping[int, int], here: range) -> list[int]:
    """The calls in the order that their results shall have: first those whose results are here, as they stand."""
    there = [number for number in calls if answers.get(number, -1) in here]
    return [*sorted(there, key=answers.__getitem__), *[number for number in calls if number not in there]]


def _unknown_chat(name: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": OUTCOME_UNKNOWN}


# Anthropic: the results are the first blocks of the user message that follows, all of them in that one. What a server
# tool did (`server_tool_use`, `mcp_tool_use`) stands in the assistant's own content and wants nothing from us.


def _block_calls(message: Message) -> list[str]:
    if message.get("role") != "assistant" or _chat_calls(message):
        return []
    blocks = _mappings(message.get("content"))
    return [*filter(_is_text, [block.get("id") for block in blocks if block.get("type") == "tool_use"])]


def _block_result(block: object) -> str | None:
    name = block.get("tool_use_id") if isinstance(block, Mapping) and block.get("type") == "tool_result" else None
    return name if _is_text(name) else None


def _content(message: Message) -> list[Any]:
    content = message.get("content")
    return content if message.get("role") == "user" and isinstance(content, list) else []


def _turns(messages: list[Message]) -> list[tuple[int, list[str]]]:
    """Where each turn with calls ends, and its calls.

    Neighbouring assistant messages are one turn to the provider, which joins them. To part them would leave the later
    ones without the thinking they began with. But text behind a call ends the turn: results must come before it.
    """
    turns: list[tuple[int, list[str]]] = []
    for index, message in enumerate(messages):
        if not (calls := _block_calls(message)):
            continue
        if turns and turns[-1][0] == index - 1 and _is_call(messages[index - 1], -1) and _is_call(message, 0):
            calls = [*turns.pop()[1], *calls]
        turns.append((index, [*dict.fromkeys(calls)]))
    return turns


def _is_call(message: Message, place: int) -> bool:
    block = message["content"][place]
    return isinstance(block, Mapping) and block.get("type") == "tool_use"


def _repair_blocks(messages: list[Message]) -> list[Message]:
    turns = dict(_turns(messages))
    calls: list[str] = []
    owed: dict[int, range] = {}  # by the message that ends a turn: its calls
    results: list[Message] = []
    given: dict[int, range] = {}  # by message: the results in it
    events: list[tuple[str, bool, int]] = []
    for index, message in enumerate(messages):
        if index in turns:
            owed[index] = range(len(calls), len(calls) + len(turns[index]))
            events.extend(zip(turns[index], [False] * len(owed[index]), owed[index], strict=True))
            calls.extend(turns[index])
        elif blocks := [block for block in _content(message) if _block_result(block) is not None]:
            given[index] = range(len(results), len(results) + len(blocks))
            events.extend(zip(map(_tool_use_id, blocks), [True] * len(blocks), given[index], strict=True))
            results.extend(blocks)
    if not events:
        return messages
    answers = _pair(events)
    repaired: list[Message] = []
    answered = False  # the message at hand is the home of the turn before it, and stands already
    for index, message in enumerate(messages):
        if not answered:
            repaired.extend([message] if index not in given else _with_results(message, []))
        answered = False
        if index not in owed:
            continue
        here = given.get(index + 1, range(0))
        order = _in_place_first(owed[index], answers, here)
        blocks = [results[answers[each]] if each in answers else _unknown_block(calls[each]) for each in order]
        # A message of ours goes in between, unless the next one already answers this turn: what the user said stays
        # as it was said, and two user messages in a row are one to the provider.
        answered = answers.get(order[0], -1) in here
        repaired.extend(_with_results(messages[index + 1] if answered else {"role": "user", "content": []}, blocks))
    return repaired


def _tool_use_id(block: Message) -> str:
    return str(block["tool_use_id"])


def _with_results(message: Message, results: list[Message]) -> list[Message]:
    """The message with these results in front, instead of those it has; none if nothing is left of it."""
    content = [*results, *[block for block in message["content"] if _block_result(block) is None]]
    if not content:
        return []
    return [message if content == message["content"] else {**message, "content": content}]


def _unknown_block(name: str) -> Message:
    return {"type": "tool_result", "tool_use_id": name, "content": OUTCOME_UNKNOWN, "is_error": True}


# OpenAI Responses: items in one flat list. What the model gave in one go (reasoning, messages, calls) stays together,
# the outputs follow. Reasoning wants the item that it led to right behind it, and is refused alone.

_CALL, _OUTPUT, _REASONING, _MODEL, _OTHER = "call", "output", "reasoning", "model", "other"
_FROM_MODEL = frozenset({_CALL, _REASONING, _MODEL})


def _kind(item: Message) -> str:
    kind = item.get("type")
    if not _is_text(kind) or kind == "message":
        plain = item.get("role") == "assistant" and not _chat_calls(item) and not _block_calls(item)
        return _MODEL if plain else _OTHER
    if _item_result(item) is not None:
        return _OUTPUT
    if kind.endswith("_call") and _is_text(item.get("call_id")):  # hosted tools (web_search_call, …) have none
        return _CALL
    return _REASONING if kind == "reasoning" else _MODEL


def _item_result(item: Message) -> str | None:
    kind = item.get("type")
    if not _is_text(kind) or not (kind.endswith("_call_output") or kind == "tool_search_output"):
        return None
    name = item.get("call_id")
    if name is None and kind == "local_shell_call_output":  # the reference says `id`, the guide `call_id`
        name = item.get("id")
    return name if _is_text(name) else None  # without: a search that the server made itself


def _repair_items(items: list[Message]) -> list[Message]:
    kinds = [_kind(item) for item in items]
    if not {_CALL, _OUTPUT, _REASONING}.intersection(kinds):
        return items
    events = _item_events(items, kinds)
    again = _logged_again(events, kinds)
    answers = _pair([event for event in events if event[2] not in again])
    in_place = {call: result for call, result in answers.items() if _is_in_place(kinds, call, result)}
    gone = {index for index, kind in enumerate(kinds) if kind == _OUTPUT} - {*in_place.values()}
    if any(item.get("type") == "item_reference" for item in items):
        gone &= {*answers.values()}  # the call of any other may be one that the provider keeps and we cannot see
    gone |= again
    order = _without_lone_reasoning([index for index in range(len(items)) if index not in gone], kinds)
    missing = {
        index: items[answers[index]] if index in answers else _unknown_item(items[index])
        for index in order
        if kinds[index] == _CALL and index not in in_place
    }
    return _placed(items, kinds, order, missing)


def _item_events(items: list[Message], kinds: list[str]) -> list[tuple[str, bool, int]]:
    events: list[tuple[str, bool, int]] = []
    by_item: dict[object, str] = {}  # the output of a local shell may name the item instead of the call
    for index, (kind, item) in enumerate(zip(kinds, items, strict=True)):
        if kind == _CALL:
            events.append((item["call_id"], False, index))
            if item["type"] == "local_shell_call" and _is_text(item.get("id")):
                by_item[item["id"]] = item["call_id"]
        elif (result := _item_result(item)) is not None:
            events.append((result if "call_id" in item else by_item.get(result, result), True, index))
    return events


def _logged_again(events: list[tuple[str, bool, int]], kinds: list[str]) -> set[int]:
    """Calls that are in the same turn for a second time, unanswered: providers refuse an id that is there twice."""
    again: set[int] = set()
    waiting: dict[str, int] = {}
    for name, is_result, index in events:
        if is_result:
            waiting.pop(name, None)
        elif name in waiting and _OTHER not in kinds[waiting[name] : index]:
            again.add(index)
        else:
            waiting[name] = index
    return again


def _without_lone_reasoning(order: list[int], kinds: list[str]) -> list[int]:
    kept: list[int] = []  # from the end
    for index in reversed(order):
        if kinds[index] != _REASONING or (kept and kinds[kept[-1]] in _FROM_MODEL):
            kept.append(index)
    return kept[::-1]


def _is_in_place(kinds: list[str], call: int, result: int) -> bool:
    """True when between the call and its result there is only the rest of what the model gave, and other outputs."""
    end = call
    while kinds[end] in _FROM_MODEL:
        end += 1  # ends at the latest at the result
    return kinds[end - 1] != _REASONING and all(kind == _OUTPUT for kind in kinds[end:result])


def _placed(items: list[Message], kinds: list[str], order: list[int], missing: Mapping[int, Message]) -> list[Message]:
    """The items in this order, and the missing outputs where they belong.

    That is behind the outputs that the turn already has, else right behind the calls. Not behind the whole turn then:
    some servers (DeepSeek's) want nothing but calls between a call and its output.
    """
    repaired: list[Message] = []
    at = 0
    while at < len(order):
        end = at
        while end < len(order) and kinds[order[end]] in _FROM_MODEL:
            end += 1
        tail = end
        while tail < len(order) and kinds[order[tail]] == _OUTPUT:
            tail += 1
        turn = order[at:end]
        answered = any(kinds[index] == _CALL and index not in missing for index in turn)
        waiting: list[Message] = []
        for place, index in enumerate(turn):
            repaired.append(items[index])
            waiting.extend([missing[index]] if index in missing else [])
            if not answered and (place + 1 == len(turn) or kinds[turn[place + 1]] != _CALL):
                repaired.extend(waiting)
                waiting = []
        repaired.extend([*[items[index] for index in order[end:tail]], *waiting])
        if tail == at:
            repaired.append(items[order[at]])
            tail += 1
        at = tail
    return repaired


def _unknown_item(call: Message) -> Message:
    kind, name = call["type"], call["call_id"]
    answer = {"type": f"{kind}_output", "call_id": name}
    if kind == "computer_call":
        # Pending safety checks are not acknowledged here: that is for a person to do.
        return {**answer, "output": {"type": "computer_screenshot", "image_url": _NO_SCREENSHOT}}
    if kind == "shell_call":
        output = {"stdout": "", "stderr": OUTCOME_UNKNOWN, "outcome": {"type": "timeout"}}
        return {**answer, "output": [output]}
    if kind == "apply_patch_call":
        return {**answer, "status": "failed", "output": OUTCOME_UNKNOWN}
    if kind == "tool_search_call":
        return {
            "type": "tool_search_output",
            "call_id": name,
            "execution": "client",
            "status": "incomplete",
            "tools": [],
        }
    return {**answer, "output": OUTCOME_UNKNOWN}


def message_of_line(record: dict[str, Any]) -> dict[str, Any] | None:
    """The message of a line of Claude Code's transcripts, as a provider takes it; None where a line has none."""
    message = record.get("message")
    if record.get("type") not in ("user", "assistant") or not isinstance(message, dict):
        return None
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant") or not isinstance(content, str | list) or not content:
        return None
    return {"role": role, "content": content}
