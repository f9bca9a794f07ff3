"""What the items of a conversation are after a crash: those of the last boundary, and what the journal has behind it.

Each call has one output and each output its call, as the API demands. Nothing is invented: of what is not known it is
said that it is not.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable
from typing import Any, Literal

from agents import ItemHelpers

from backstay import errors
from backstay.messages import OUTCOME_UNKNOWN, repair_messages
from backstay.model import Call
from backstay.run import Run

PART = "messages"
NOT_RUN = "Not run: the process was interrupted before this call was begun."
PAIRED = ("function_call", "custom_tool_call")  # tools whose calls the hooks are told by their ids

Items = list[Any]


def output_item(call: Any, result: object) -> Any:
    """The item that tells the model what a tool gave."""
    if call is None:
        return str(result)
    if call.type == "function_call":
        return ItemHelpers.tool_call_output_item(call, result)
    return {"type": f"{call.type}_output", "call_id": call.call_id, "output": str(result)}


def take_in(run: Run) -> bool:
    """Put what the run before left in the journal into the items; the next boundary makes it history."""
    calls = run.session.calls(run.branch, pending=True)
    run.state = {**run.state, PART: mended(items_of(run.state), calls)} if calls else run.state
    for call in calls:
        if call.parent is not None:
            continue  # goes with the call it was made in
        with contextlib.suppress(errors.CallFailedError):
            calling = run.begin(call.name, key=call.key, kind=_kind_of(call), args=call.args, on_doubt="unknown")
            if not calling.done:  # somebody said: make it again. The model is told that it was not made
                calling.finish(NOT_RUN)
        if _is_answer(call):
            run.use(**call.result.get("usage", {}))
    return bool(calls)


def mended(items: Items, calls: Iterable[Call]) -> Items:
    """The items and behind them what these calls have brought; of what is not known it is said that it is not."""
    calls = list(calls)
    begun = {call.key for call in calls if call.kind == "tool" and call.status != "retry"}
    # Of a call that waited for an approval it may have been said that it was not run. Now it was.
    items = [each for each in items if not (_is_said(each) and each["output"] == NOT_RUN and each["call_id"] in begun)]
    tail: Items = []
    for call in calls:
        if _is_answer(call):
            tail.extend(call.result["output"])
        elif call.kind == "tool" and call.status != "retry":
            tail.extend(_outcome(call, [*items, *tail]))
    for item in list(tail):
        if item.get("type") in PAIRED and item["call_id"] not in begun:
            tail.append({"type": f"{item['type']}_output", "call_id": item["call_id"], "output": NOT_RUN})
    return repair_messages([*items, *tail])


def items_of(state: dict[str, Any]) -> Items:
    """The items in a state, which somebody else may have made."""
    items = state.get(PART, [])
    if not isinstance(items, list) or not all([isinstance(each, dict) for each in items]):
        message = f"state[{PART!r}] is not a list of dicts: this session was not made by BackstaySession"
        raise errors.InvalidInputError(message, hint="use another id, or session.commit({**state, 'messages': […]})")
    return items


def own(items: Iterable[Any]) -> Items:
    """Copies as dicts: the caller keeps his, and we compare with ours at the next change."""
    plain = [each.model_dump(exclude_unset=True) if hasattr(each, "model_dump") else each for each in items]
    for index, each in enumerate(plain):
        if not isinstance(each, dict):
            message = f"items[{index}] must be a dict, not {type(each).__name__}"
            raise errors.InvalidInputError(message, hint='{"role": "user", "content": "…"}')
    return copy.deepcopy(plain)


def only_added(new: Items) -> bool:
    """True if these items go behind any others: none of them is a call, or its outcome, that may be there already."""
    return not any([_kind(each).endswith(("_call", "_call_output")) for each in new])


def joined(old: Items, new: Items) -> Items:
    """The items and those that are added. What we took from the journal and the SDK brings after all is there once.

    It may hold back an answer while it waits for an approval. If another run began meanwhile, that one has found the
    answer in the journal, and said of its calls that they were not run.
    """
    brought = {each.get("call_id") for each in new if _kind(each).endswith(("_call", "_call_output"))}
    said = {each["call_id"] for each in old if _is_said(each)} & brought if brought else set()
    if not said:
        return [*old, *new]
    old = [each for each in old if not (_is_said(each) and each["call_id"] in said)]
    ids = {each["call_id"] for each in new if _kind(each) in PAIRED}  # 0.22 brings outputs only
    if not said & ids:
        return [*old, *new]
    first = min(_last(old, PAIRED, call_id) for call_id in said & ids)
    while first and (old[first - 1] in new or old[first - 1].get("call_id") in ids):
        first -= 1  # what the model said before it asked for the tool
    return [*old[:first], *[each for each in old[first:] if each not in new and each.get("call_id") not in ids], *new]


def is_known(items: Items, name: str, call_id: str | None, arguments: object) -> bool:
    """Whether an outcome of this very call is among the items, also one that says that it is unknown."""
    outcome = max(
        [
            index
            for index, each in enumerate(items)
            if _kind(each).endswith("_output") and each.get("call_id") == call_id
        ],
        default=-1,
    )
    call = _last(items, PAIRED, call_id)
    if call < 0 or outcome < call or items[outcome].get("output") == NOT_RUN:
        return False
    return (items[call].get("name"), items[call].get("arguments", items[call].get("input"))) == (name, arguments)


def _kind(item: Any) -> str:
    return str(item.get("type", "")) if isinstance(item, dict) else ""


def _kind_of(call: Call) -> Literal["tool", "llm"]:
    return "llm" if call.kind == "llm" else "tool"


def _is_said(item: Any) -> bool:
    return _kind(item).endswith("_output") and item.get("output") in (NOT_RUN, OUTCOME_UNKNOWN)


def _last(items: Items, kinds: tuple[str, ...], call_id: str | None) -> int:
    found = [index for index, each in enumerate(items) if _kind(each) in kinds and each.get("call_id") == call_id]
    return found[-1] if found else -1


def _is_answer(call: Call) -> bool:
    output = call.result.get("output") if call.kind == "llm" and isinstance(call.result, dict) else None
    return isinstance(output, list) and all([isinstance(item, dict) for item in output])


def _outcome(call: Call, items: Items) -> Items:
    """What the model is told of a tool: what came out, or what somebody has decided since."""
    if isinstance(call.result, dict) and str(call.result.get("type", "")).endswith("_output"):
        return [call.result]
    asked = [item for item in items if item.get("type") in PAIRED and item.get("call_id") == call.key]
    if not asked or call.status not in ("done", "failed"):
        return []
    text = str(call.result) if call.status == "done" else f"The call failed: {call.error}"
    return [{"type": f"{asked[-1]['type']}_output", "call_id": call.key, "output": text}]
