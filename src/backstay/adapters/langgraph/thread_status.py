"""How a thread stands at a checkpoint, told from what LangGraph writes: going on, finished, interrupted or failed."""

from __future__ import annotations

from typing import Any

from backstay.adapters.langgraph.rows import MINE, Entries
from backstay.bookkeeping import INNER_PART, WRITES_PART
from backstay.model import Outcome, StateDict, Status

# Channels of LangGraph's own.
_ERROR, _INTERRUPT, _RESUME, _START, _SENT = "__error__", "__interrupt__", "__resume__", "__start__", "__pregel_tasks"
_ASKED_CHARS = 200


def status_of(state: StateDict) -> Outcome | Status:
    """Waiting while a task has an interrupt that was not resumed; failed while one has raised and done nothing since.

    Where a graph was stopped by `interrupt_before` LangGraph writes nothing about it: that is in progress.
    """
    entries: Entries = state.get(WRITES_PART, [])
    resumed = {entry[1] for entry in entries if entry[3] == _RESUME}
    asked = [entry for entry in entries if entry[3] == _INTERRUPT and entry[1] not in resumed]
    if asked:
        said = ", ".join(filter(None, [_question(entry[4]) for entry in asked]))
        return Status.WAITING(f"for the answer to an interrupt{': ' if said else ''}{said}"[:_ASKED_CHARS])
    done = {entry[1] for entry in entries if entry[2] >= 0}
    raised = [entry for entry in entries if entry[3] == _ERROR and entry[1] not in done]
    if raised:
        return Status.FAILED((_text(raised[0][4]) or "a node raised")[:_ASKED_CHARS])
    return Status.COMPLETED if not entries and _is_finished(state) else Status.IN_PROGRESS


def _is_finished(state: StateDict) -> bool:
    """True if no node is to run. Of a graph that was not built by StateGraph or entrypoint it is not known."""
    about = dict(state.get(MINE, {}).get("cp", ()))
    versions, seen = about.get("channel_versions", {}), about.get("versions_seen", {})
    if _START not in versions:
        return False
    for name, value in state.get(INNER_PART, {}).items():
        is_trigger = name == _START or name.startswith("branch:to:") or _is_joined(name, value)
        is_trigger = is_trigger or (name == _SENT and bool(value))
        if is_trigger and all([known.get(name) != versions.get(name) for known in seen.values()]):
            return False
    return True


def _is_joined(name: str, value: Any) -> bool:
    """True for a channel `join:a+b:c` that all of its nodes have written to."""
    kind, _, rest = name.partition(":")
    # A sealed one does not say, and then it may.
    return kind == "join" and (not isinstance(value, set) or value == set(rest.rpartition(":")[0].split("+")))


def _question(interrupts: Any) -> str:
    """What the interrupts of a task ask, as text; nothing if it is sealed."""
    found = []
    for interrupt in interrupts if isinstance(interrupts, list | tuple) else ():
        content = interrupt.get("as") if isinstance(interrupt, dict) else None
        fields = content[2] if isinstance(content, list | tuple) and len(content) > 2 else None  # noqa: PLR2004
        if isinstance(fields, dict) and "value" in fields:
            found.append(_text(fields["value"]))
    return ", ".join(found)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if "lc" in value:
            return ""
        asked = value.get("action_requests")  # of LangChain's and deepagents' approvals
        if isinstance(asked, list) and all([isinstance(each, dict) and "name" in each for each in asked]):
            return ", ".join([f"{each['name']}({_text(each.get('args'))})" for each in asked])
        return ", ".join([f"{key}: {_text(item)}" for key, item in value.items()])
    return "" if value is None else repr(value)
