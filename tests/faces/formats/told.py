"""Transcripts as Claude Code and Codex leave them: small ones, written here after the shape of theirs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.faces.formats.made import put

SESSION = "0a0a0a0a-0000-4000-8000-000000000001"
THREAD = "01990000-0000-7000-8000-000000000001"


def lines(records: Iterable[Any]) -> str:
    return "".join([json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in records])


def at(second: int) -> str:
    return f"2026-06-15T10:{second // 60:02d}:{second % 60:02d}.250Z"


# Claude Code


def entry(id_: str, before: str | None, second: int, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "parentUuid": before,
        "isSidechain": False,
        "userType": "external",
        "cwd": "/work/app",
        "sessionId": SESSION,
        "version": "2.1.173",
        "gitBranch": "main",
        "type": message["role"],
        "message": message,
        "uuid": id_,
        "timestamp": at(second),
    } | more


def user(id_: str, before: str | None, second: int, content: Any, **more: Any) -> dict[str, Any]:
    return entry(id_, before, second, {"role": "user", "content": content}, **more)


def reply(id_: str, before: str | None, second: int, block: Any, key: str, out: int = 5, **more: Any) -> dict[str, Any]:
    message = {
        "id": key,
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [block if isinstance(block, dict) else {"type": "text", "text": block}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 100, "output_tokens": out},
    }
    return entry(id_, before, second, message, requestId=f"req_{key}", **more)


def use(id_: str, name: str = "Bash", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


def result(id_: str, text: str = "done") -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": id_, "content": text}]


def claude_talk() -> list[dict[str, Any]]:
    """A prompt, a thought, two calls at once whose results hang on the lines that asked, and an answer."""
    return [
        {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
        user("u1", None, 0, "List the files and count them."),
        reply("a1", "u1", 1, {"type": "thinking", "thinking": "Two calls.", "signature": "s"}, "msg_1", 9),
        reply("a2", "a1", 2, "I look.", "msg_1", 9),
        reply("a3", "a2", 3, use("t1", command="ls"), "msg_1", 9),
        reply("a4", "a3", 4, use("t2", command="wc"), "msg_1", 9),
        user("r1", "a3", 5, result("t1", "a.txt"), toolUseResult={"stdout": "a.txt"}),
        user("r2", "a4", 6, result("t2", "1"), toolUseResult={"stdout": "1"}),
        {"type": "system", "subtype": "turn_duration", "uuid": "s1", "parentUuid": "r2", "timestamp": at(6)},
        reply("a5", "s1", 7, "There is one file.", "msg_2"),
    ]


def claude(base: Path, records: Iterable[Any], session: str = SESSION) -> Path:
    text = lines(records).replace(SESSION, session)
    return put(base / "projects" / "-work-app" / f"{session}.jsonl", text)


# Codex


def rollout(second: int, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": at(second), "type": kind, "payload": payload}


def said(second: int, role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return rollout(second, "response_item", {"type": "message", "role": role, "content": content})


def item(second: int, **payload: Any) -> dict[str, Any]:
    return rollout(second, "response_item", payload)


def tokens(second: int, given: int, made: int) -> dict[str, Any]:
    used = {
        "input_tokens": given,
        "cached_input_tokens": given // 2,
        "output_tokens": made,
        "total_tokens": given + made,
    }
    return rollout(second, "event_msg", {"type": "token_count", "info": {"total_token_usage": used}})


def codex_talk() -> list[dict[str, Any]]:
    meta = {"id": THREAD, "timestamp": at(0), "cwd": "/work/app", "originator": "codex_cli_rs", "cli_version": "0.50.0"}
    return [
        rollout(0, "session_meta", meta | {"git": {"branch": "main", "commit_hash": "abc"}}),
        said(0, "user", "<environment_context>\n<cwd>/work/app</cwd>\n</environment_context>"),
        rollout(0, "turn_context", {"cwd": "/work/app", "model": "gpt-5-codex"}),
        said(1, "user", "How many files?"),
        rollout(1, "event_msg", {"type": "user_message", "message": "How many files?"}),
        item(2, type="reasoning", summary=[{"type": "summary_text", "text": "I count."}], encrypted_content="x"),
        item(3, type="function_call", name="shell", arguments='{"command":["ls"]}', call_id="c1"),
        tokens(3, 100, 20),
        item(4, type="function_call_output", call_id="c1", output="a.txt"),
        rollout(5, "event_msg", {"type": "agent_message", "message": "One."}),
        said(5, "assistant", "One."),
        tokens(5, 250, 30),
    ]


def codex(base: Path, records: Iterable[Any], thread: str = THREAD) -> Path:
    folder = base / "sessions" / "2026" / "06" / "15"
    return put(folder / f"rollout-2026-06-15T10-00-00-{thread}.jsonl", lines(records))
