"""Claude Code's hooks: how long an agent waits for one, with the helper up, in a folder of 10,000 files.

The agent waits for the hook's process and for the work of the helper, one after the other. By processor time, both
together: what else the machine does is not counted.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import Figure

if TYPE_CHECKING:
    from bench.measuring import Settings

FILES, QUICK_FILES = 10_000, 1_000
TIMES = 9
_MUST_MS = 100.0


def hooks(settings: Settings) -> list[Figure]:
    """A call that edits a file: the hook before it, and the one after it."""
    count = settings.scaled(FILES, QUICK_FILES)
    with settings.folder() as folder:
        project = folder / "project"
        for number in range(count):
            file = project / f"d{number % (count // 13 + 1)}" / f"f{number}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"value = {number}\n" * (number % 100))
        agent = _Agent(project, folder)
        try:
            return agent.measure(count)
        finally:
            agent.end()


class _Agent:
    def __init__(self, project: Path, sockets: Path) -> None:
        self._project = project
        self._sockets = sockets
        self._env = {**os.environ, "CLAUDE_PROJECT_DIR": str(project), "TMPDIR": str(sockets)}
        for name in ("XDG_RUNTIME_DIR", "BACKSTAY_URL"):
            self._env.pop(name, None)

    def measure(self, count: int) -> list[Figure]:
        self._hook("SessionStart", source="startup")
        self._hook("UserPromptSubmit", prompt="work")
        before, after, walls = [], [], []
        for number in range(TIMES + 2):
            time.sleep(0.1)  # as an agent does, which asks a model between two calls
            call = {"tool_name": "Edit", "tool_input": {"file_path": "f5.py"}, "tool_use_id": f"t{number}"}
            before.append(self._took("PreToolUse", **call))
            (self._project / "d5" / "f5.py").write_text(f"edit {number}\n")
            begun = time.perf_counter()
            after.append(self._took("PostToolUse", **call, tool_response={"ok": True}))
            walls.append((time.perf_counter() - begun) * 1e3)
        wall = statistics.median(walls[2:])
        return [
            Figure("hooks", f"before a call, {count:,} files", statistics.median(before[2:]), "ms", _MUST_MS),
            Figure("hooks", f"after an edit, {count:,} files", statistics.median(after[2:]), "ms", _MUST_MS),
            Figure("hooks", "the same by the clock", wall, "ms"),
        ]

    def _took(self, event: str, **fields: Any) -> float:
        begun = self._used_ms()
        self._hook(event, **fields)
        return self._used_ms() - begun

    def _hook(self, event: str, **fields: Any) -> None:
        payload = {"session_id": "bench", "cwd": str(self._project), "hook_event_name": event, **fields}
        words = [sys.executable, "-m", "backstay", "hook"]
        subprocess.run(words, input=json.dumps(payload).encode(), env=self._env, cwd=self._project, check=True)

    def _used_ms(self) -> float:
        """The processor time of all hooks that have ended, and of the helper: its threads that have ended, too."""
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        clock = ~self._helper() << 3 | 2  # as clock_getcpuclockid(3) of Linux gives it
        return (ours.ru_utime + ours.ru_stime + time.clock_gettime(clock)) * 1e3

    def _helper(self) -> int:
        (lock,) = self._sockets.glob("backstay-*/*.lock")
        return int(lock.read_text())

    def end(self) -> None:
        for lock in self._sockets.glob("backstay-*/*.lock"):
            os.kill(int(lock.read_text()), signal.SIGTERM)
            while Path(f"/proc/{lock.read_text().strip()}").exists():
                time.sleep(0.05)
