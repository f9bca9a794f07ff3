"""A scripted Claude Code: it sends the events of its hooks in their order, and does real work on files between them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOOK = [sys.executable, "-m", "backstay", "hook"]
Tree = dict[str, tuple[int, bytes]]


def tree(root: Path) -> Tree:
    """Everything in a folder but our own: modes and contents, where a link leads."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if not name.startswith(".backstay"):
            mode = path.lstat().st_mode
            data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[name] = (mode, data)
    return found


class FakeClaude:
    """One session in a folder. `home` has transcripts and sockets; `alone`: no helper can be had."""

    def __init__(self, project: Path, home: Path, *, session: str | None = None, alone: bool = False) -> None:
        self.project = project
        self.home = home
        self.session = session or str(uuid.uuid4())
        self.transcript = home / "projects" / f"{self.session}.jsonl"
        self.transcript.parent.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if k not in ("XDG_RUNTIME_DIR", "BACKSTAY_URL")}
        sockets = home / "nowhere" if alone else home
        self.env = {**kept, "CLAUDE_PROJECT_DIR": str(project), "TMPDIR": str(sockets)}
        self.file_limit: int | None = None
        self._last: str | None = None
        self._calls = 0

    # hooks

    def hook(self, event: str, **fields: Any) -> float:
        """An event, and how long the agent had to wait for it."""
        return self.finish(self.begin_hook(event, **fields))

    def begin_hook(self, event: str, **fields: Any) -> subprocess.Popen[bytes]:
        return self.raw(json.dumps(self.payload(event, **fields)).encode())

    def payload(self, event: str, **fields: Any) -> dict[str, Any]:
        return {
            "session_id": self.session,
            "transcript_path": str(self.transcript),
            "cwd": str(self.project),
            "permission_mode": "default",
            "hook_event_name": event,
            **fields,
        }

    def raw(self, data: bytes) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        limit = self.file_limit

        def before() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        started = subprocess.Popen(
            HOOK,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=self.env,
            cwd=self.project,
            preexec_fn=before,  # noqa: PLW1509 - no test here has threads at that moment
        )
        assert started.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            started.stdin.write(data)
            started.stdin.close()
        started.stdin = None
        return started

    @staticmethod
    def finish(started: subprocess.Popen[bytes]) -> float:
        """The agent never hears of it: exit code 0, and not a word."""
        began = time.monotonic()
        out, err = started.communicate(timeout=60)
        assert (started.returncode, out, err) == (0, b"", b"")
        return time.monotonic() - began

    # a session

    def say(self, role: str, content: Any, **more: Any) -> str:
        """A line of the transcript."""
        id_ = str(uuid.uuid4())
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            message["id"] = f"msg_{id_}"
        line = {"type": role, "uuid": id_, "parentUuid": self._last, "sessionId": self.session, "message": message}
        with self.transcript.open("a") as file:
            file.write(json.dumps({**line, **more}) + "\n")
        self._last = id_
        return id_

    def start(self, source: str = "startup") -> None:
        self.hook("SessionStart", source=source, model="claude-fake")

    def await_helper(self) -> int:
        """The number of the helper, once it is up: on a busy machine the first hooks may have worked alone."""
        until = time.monotonic() + 60
        while not (found := list(helpers(Path(self.env["TMPDIR"])))):
            assert time.monotonic() < until
            time.sleep(0.01)
        return found[0]

    def prompt(self, text: str) -> None:
        self.hook("UserPromptSubmit", prompt=text)
        self.say("user", text)

    def tool(self, name: str, given: dict[str, Any], work: Callable[[], Any], **more: Any) -> str:
        """A tool call: the question, the hook before, the work, the hook after, the result."""
        id_ = self.ask(name, given)
        call = {"tool_name": name, "tool_input": given, "tool_use_id": id_, **more}
        self.hook("PreToolUse", **call)
        try:
            result = work()
        except Exception as error:  # noqa: BLE001
            self.hook("PostToolUseFailure", **call, error=str(error), is_interrupt=False)
            result = str(error)
        else:
            self.hook("PostToolUse", **call, tool_response={"ok": result})
        self.say("user", [{"type": "tool_result", "tool_use_id": id_, "content": str(result)}])
        return id_

    def ask(self, name: str, given: dict[str, Any]) -> str:
        self._calls += 1
        id_ = f"toolu_{self.session[:8]}_{self._calls}"
        self.say("assistant", [{"type": "tool_use", "id": id_, "name": name, "input": given}])
        return id_

    def write(self, path: str, text: str, **more: Any) -> str:
        given = {"file_path": str(self.project / path), "content": text}
        return self.tool("Write", given, lambda: (self.project / path).write_text(text), **more)

    def edit(self, path: str, old: str, new: str) -> str:
        file = self.project / path

        def work() -> int:
            return file.write_text(file.read_text().replace(old, new))

        return self.tool("Edit", {"file_path": str(file), "old_string": old, "new_string": new}, work)

    def bash(self, line: str, **more: Any) -> str:
        def work() -> str:
            done = subprocess.run(["sh", "-c", line], cwd=self.project, capture_output=True, check=True)
            return done.stdout.decode()

        return self.tool("Bash", {"command": line}, work, **more)

    def stop(self, answer: str = "Done.") -> str:
        id_ = self.say("assistant", [{"type": "text", "text": answer}])
        self.hook("Stop", stop_hook_active=False, last_assistant_message=answer)
        return id_

    def end(self) -> None:
        self.hook("SessionEnd", reason="other")


def helpers(home: Path) -> Iterator[int]:
    """The process numbers of the helpers that meet in a folder."""
    for lock in home.glob("backstay-*/*.lock"):
        number = lock.read_text().strip()
        if number and Path(f"/proc/{number}").exists():
            yield int(number)


def kill_helpers(home: Path, how: signal.Signals = signal.SIGKILL) -> int:
    """End them, and wait until they are gone; how many there were."""
    found = list(helpers(home))
    for number in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, how)
    until = time.monotonic() + 30
    while any(_runs(number) for number in found):
        assert time.monotonic() < until
        time.sleep(0.01)
    return len(found)


def _runs(number: int) -> bool:
    try:
        text = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
