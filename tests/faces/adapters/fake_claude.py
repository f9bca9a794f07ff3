"""A scripted Claude Code: it sends the events of its hooks in their order, and does real work on files between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOOK = [sys.executable, "-m", "backstay", "hook"]


class FakeClaude:
    """One session in a folder. `sockets` is where helpers meet; `alone`: no helper can be had."""

    def __init__(self, project: Path, home: Path, *, session: str | None = None, alone: bool = False) -> None:
        self.project = project
        self.session = session or str(uuid.uuid4())
        self.transcript = home / "projects" / f"{self.session}.jsonl"
        self.transcript.parent.mkdir(parents=True, exist_ok=True)
        self.env = {**os.environ, "CLAUDE_PROJECT_DIR": str(project), "TMPDIR": str(home)}
        self.env.pop("XDG_RUNTIME_DIR", None)
        self.env.pop("BACKSTAY_URL", None)
        if alone:
            self.env["TMPDIR"] = str(home / "nowhere")
        self._last: str | None = None
        self._calls = 0
        self.outputs: list[subprocess.CompletedProcess[bytes]] = []

    # hooks

    def hook(self, event: str, **fields: Any) -> subprocess.CompletedProcess[bytes]:
        return self.finish(self.begin_hook(event, **fields))

    def begin_hook(self, event: str, **fields: Any) -> subprocess.Popen[bytes]:
        payload = {
            "session_id": self.session,
            "transcript_path": str(self.transcript),
            "cwd": str(self.project),
            "permission_mode": "default",
            "hook_event_name": event,
            **fields,
        }
        return self.raw(json.dumps(payload).encode())

    def raw(self, data: bytes) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        started = subprocess.Popen(HOOK, stdin=pipe, stdout=pipe, stderr=pipe, env=self.env, cwd=self.project)
        assert started.stdin is not None
        try:
            started.stdin.write(data)
            started.stdin.close()
        except BrokenPipeError:
            pass
        started.stdin = None
        return started

    def finish(self, started: subprocess.Popen[bytes]) -> subprocess.CompletedProcess[bytes]:
        out, err = started.communicate(timeout=60)
        done = subprocess.CompletedProcess(HOOK, started.returncode, out, err)
        self.outputs.append(done)
        assert (done.returncode, done.stdout) == (0, b""), (done, err)
        return done

    # a session

    def say(self, role: str, content: Any, **more: Any) -> str:
        """A line of the transcript."""
        id_ = str(uuid.uuid4())
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            message["id"] = f"msg_{id_}"
        line = {
            "type": role,
            "uuid": id_,
            "parentUuid": self._last,
            "sessionId": self.session,
            "message": message,
            **more,
        }
        with self.transcript.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._last = id_
        return id_

    def start(self, source: str = "startup") -> None:
        self.hook("SessionStart", source=source, model="claude-fake")

    def prompt(self, text: str) -> None:
        self.hook("UserPromptSubmit", prompt=text)
        self.say("user", text)

    def tool(self, name: str, given: dict[str, Any], work: Callable[[], Any], **more: Any) -> str:
        """A tool call: the question, the hook before, the work, the hook after, the result."""
        id_ = self.ask(name, given)
        self.hook("PreToolUse", tool_name=name, tool_input=given, tool_use_id=id_, **more)
        try:
            result = work()
        except Exception as error:  # noqa: BLE001
            self.hook("PostToolUseFailure", tool_name=name, tool_input=given, tool_use_id=id_, error=str(error), **more)
            result = str(error)
        else:
            self.hook(
                "PostToolUse", tool_name=name, tool_input=given, tool_use_id=id_, tool_response={"ok": result}, **more
            )
        self.say("user", [{"type": "tool_result", "tool_use_id": id_, "content": str(result)}])
        return id_

    def ask(self, name: str, given: dict[str, Any]) -> str:
        self._calls += 1
        id_ = f"toolu_{self.session[:8]}_{self._calls}"
        self.say("assistant", [{"type": "tool_use", "id": id_, "name": name, "input": given}])
        return id_

    def write(self, path: str, text: str) -> str:
        return self.tool("Write", {"file_path": path, "content": text}, lambda: self._write(path, text))

    def _write(self, path: str, text: str) -> int:
        return (self.project / path).write_text(text)

    def edit(self, path: str, old: str, new: str) -> str:
        def work() -> int:
            return self._write(path, (self.project / path).read_text().replace(old, new))

        return self.tool("Edit", {"file_path": path, "old_string": old, "new_string": new}, work)

    def bash(self, line: str) -> str:
        def work() -> str:
            done = subprocess.run(["sh", "-c", line], cwd=self.project, capture_output=True, check=True)
            return done.stdout.decode()

        return self.tool("Bash", {"command": line}, work)

    def stop(self, answer: str = "Done.") -> str:
        id_ = self.say("assistant", [{"type": "text", "text": answer}])
        self.hook("Stop", stop_hook_active=False, last_assistant_message=answer)
        return id_

    def end(self) -> None:
        self.hook("SessionEnd", reason="other")
