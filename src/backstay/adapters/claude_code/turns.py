"""The turns of one conversation, as Claude Code's hooks tell of them: which event does what.

A prompt begins a run, `Stop` ends it. Between them a tool call is journaled before it is made and after, with a look at
the folder each time; one that changed files is a boundary once no other is in flight. The run is left, paused, whenever
no call is in flight: Claude Code says nothing when it is interrupted, and a person may rewind then. Nothing is needed
from one event to the next but what the store has, so a helper that was killed, and a hook without a helper, differ from
a living helper only in speed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from backstay.adapters.claude_code.transcript import PART, Transcript, answer_of, storable
from backstay.errors import (
    AlreadyExistsError,
    BackstayError,
    CallFailedError,
    InDoubtError,
    InvalidInputError,
    LeaseHeldError,
)
from backstay.face import Session
from backstay.model import Call
from backstay.port.rows import UNKNOWN
from backstay.run import Run, RunEnded
from backstay.run.calling import Calling
from backstay.run.files import RunFiles

AT_WORK = "Claude Code is at work"
_DECIDED = ("done", "failed", "skipped", "unknown")
_LEASE_S = 10.0  # renewed while a call is in flight
_WAIT_S = 1.5  # for a lease that another process gives back soon
_LABEL_CHARS = 200
_INPUT_CHARS = 4000
_ARG_CHARS = 4000
_RESULT_CHARS = 16_000
Payload = dict[str, Any]


class Turns:
    """One branch: the main conversation or a sub-agent's. `open` are calls in flight that were begun here."""

    def __init__(self, session: Session, branch: str) -> None:
        self._session = session
        self._branch = branch
        self._run: Run | None = None
        self._files: RunFiles | None = None  # of the last run
        self._open: dict[str, Calling] = {}
        self._left: dict[str, Call] = {}  # calls in flight that another process has begun
        self._transcript = Transcript()
        self._events = {
            "SessionStart": self._start,
            "UserPromptSubmit": self._prompt,
            "PreToolUse": self._before_tool,
            "PostToolUse": self._after_tool,
            "PostToolUseFailure": self._after_tool,
            "Stop": self._stop,
            "SubagentStop": self._stop,
            "SessionEnd": self._end,
        }

    def take(self, event: object, payload: Payload) -> str | None:
        """Record an event; what of the files could not be captured."""
        do = self._events.get(event) if isinstance(event, str) else None
        if do is None:
            return None
        self._make_branch()
        do(payload)
        if not self._open:
            self.rest()
        return None if self._files is None else self._files.problem

    # events

    def _start(self, payload: Payload) -> None:
        if self._unfinished():  # Claude Code was killed
            self._settle(payload)

    def _prompt(self, payload: Payload) -> None:
        prompt = storable(str(payload.get("prompt", "")))
        if self._unfinished():  # Claude Code was interrupted, and says nothing of that
            self._settle(payload)
        run = self._entered(input=prompt[:_INPUT_CHARS] or None)
        label = next((line.strip() for line in prompt.splitlines() if line.strip()), "")[:_LABEL_CHARS]
        first = not run.state.get("messages")
        self._read(run, payload)
        if PART not in run.state:
            run.append({"role": "user", "content": prompt})
        run.checkpoint(label or None)
        if first and label and self._branch == "main":
            self._session.describe(title=label)

    def _before_tool(self, payload: Payload) -> None:
        name, key, args = _tool(payload)
        run = self._entered()
        if key in self._open or key in self._left:
            return  # the event came twice
        if run.files is not None and not self._open and not self._left and run.files.unrecorded(look=False).changes:
            run.checkpoint()  # what others did before the call, so that it is told from what the call does
            run.files.unrecorded(look=False)
        try:
            self._open[key] = run.begin(name, key=key, args=args)
        except InDoubtError:  # the same call is in flight already, begun by another process
            self._open[key] = run.begin(name, key=key, args={**args, "tool_use_id": key})

    def _after_tool(self, payload: Payload) -> None:
        name, key, args = _tool(payload)
        failed = payload.get("hook_event_name") == "PostToolUseFailure"
        text = storable(str(payload.get("error") or "failed"), longest=_ARG_CHARS)
        result = storable(payload.get("tool_response"), longest=_RESULT_CHARS)
        run = self._entered(ended=key)
        calling, call = self._open.pop(key, None), self._left.pop(key, None)
        with contextlib.suppress(CallFailedError):
            if calling is None and call is not None:
                if failed:
                    self._session.resolve(call.id, failed=text)
                again = run.begin(call.name, key=key, args=call.args, on_doubt=lambda _: result)
                if not again.done:  # a person had decided that it is to be made again
                    _finish(again, result)
            elif calling is not None or not self._is_known(key):  # else the event came twice
                calling = calling or run.begin(name, key=key, args=args)
                calling.give_up(ToolError(text)) if failed else _finish(calling, result)
        if run.files is not None and not self._open and not self._left and run.files.unrecorded(look=False).changes:
            self._read(run, payload)
            run.step()

    def _stop(self, payload: Payload) -> None:
        self._settle(payload)

    def _end(self, payload: Payload) -> None:
        head = self._session.head(self._branch)
        state = {} if head is None else self._session.load(self._branch)
        if self._unfinished() or self._transcript.is_behind(state, _transcript_of(payload, self._branch)):
            self._settle(payload)

    # the run

    def _make_branch(self) -> None:
        if self._branch == "main" or self._run is not None:
            return
        if self._session.head(self._branch) is None:
            with contextlib.suppress(AlreadyExistsError):
                self._session.fork("main", self._branch)

    def _unfinished(self) -> bool:
        """True if a run of this branch has not come to its end."""
        return self._run is not None or any([run.branch == self._branch for run in self._session.runs()])

    def _entered(self, *, input: str | None = None, ended: str = "") -> Run:
        """The run, entered; `ended`: the call that ended just now, which a helper that died may have recorded so."""
        if self._run is None:
            run = self._taken(input, ended)
            self._run, self._files = run, run.files
            if run.files is not None:
                run.files.unrecorded(look=False)  # entering has looked
            self._left = {}
            for call in self._session.calls(self._branch, pending=True):
                if call.status in _DECIDED:  # a boundary takes in what was asked for
                    with contextlib.suppress(CallFailedError, InvalidInputError):
                        run.begin(call.name, key=call.key, args=call.args)
                else:
                    self._left[call.key or call.id] = call
            if self._branch != "main" and not _is_ours(run.state, self._branch):
                run.state = {"messages": [], PART: {"agent": self._branch}}  # a sub-agent begins with nothing
        return self._run

    def _taken(self, input: str | None, ended: str) -> Run:
        for wait_s in _waits():
            run = self._session.run(branch=self._branch, input=input, lease_s=_LEASE_S)
            run.made_elsewhere = {ended}
            try:
                run.enter()
            except LeaseHeldError:
                if not wait_s:
                    raise
                time.sleep(wait_s)
            else:
                return run
        raise AssertionError("the last wait is none")

    def _settle(self, payload: Payload) -> None:
        """The end of a turn: no call is in flight any more, whatever became of it. Talk and files in one checkpoint."""
        run = self._entered()
        for calling in self._open.values():
            calling.skip(UNKNOWN)
        self._open.clear()
        for call in self._left.values():
            again = run.begin(call.name, key=call.key, args=call.args, on_doubt="unknown")
            if not again.done:
                again.skip(UNKNOWN)
        self._left.clear()
        self._read(run, payload)
        if PART not in run.state and isinstance(payload.get("last_assistant_message"), str):
            run.append({"role": "assistant", "content": storable(payload["last_assistant_message"])})
        self._run = None
        run.leave(None)

    def _read(self, run: Run, payload: Payload) -> None:
        path = _transcript_of(payload, self._branch)
        if path and self._transcript.read(run.state, path) and self._branch == "main":
            answer = answer_of(run.state)
            at = "" if answer is None else f" --resume-session-at {answer} -p 'go on'"  # it is refused without -p
            run.resume_hint = f"claude --resume {self._session.id}{at}"

    def _is_known(self, key: str) -> bool:
        """True if a call has its outcome already, here or in the last checkpoint."""
        calls = [*self._session.calls(self._branch, pending=True), *self._session.calls(self._branch)]
        return any([call.key == key for call in calls])

    def rest(self) -> None:
        """Leave the run, so that the branch is free; the next event goes on."""
        run, self._run = self._run, None
        self._open.clear()
        if run is None:
            return
        with contextlib.suppress(BackstayError):
            try:
                run.pause(AT_WORK)
            except RunEnded as end:
                run.leave(end)

    @property
    def at_work(self) -> bool:
        """True if a run is held here."""
        return self._run is not None

    def heed_stop(self, *, asked: bool) -> None:
        """Leave the run if it was asked to stop: it is cancelled then."""
        if self._run is not None and (asked or self._run.stopping is not None):
            self.rest()

    def lose(self, error: BaseException) -> None:
        """Forget a run that is not ours any more, or was asked to stop."""
        run, self._run = self._run, None
        self._open.clear()
        if run is not None and isinstance(error, RunEnded):
            with contextlib.suppress(BackstayError):
                run.leave(error)


class ToolError(Exception):
    """A tool of Claude Code failed."""


def _waits() -> Iterator[float]:
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        yield 0.02
    yield 0.0


def _is_ours(state: Any, branch: str) -> bool:
    """True if a state is of a sub-agent, not that of the main conversation that its branch began at."""
    known = state.get(PART)
    return isinstance(known, dict) and (known.get("agent") == branch or branch in str(known.get("transcript")))


def _finish(calling: Calling, result: Any) -> None:
    with contextlib.suppress(InvalidInputError):  # it is recorded as done; the transcript has what came out
        calling.finish(result)


def _tool(payload: Payload) -> tuple[str, str, dict[str, Any]]:
    """The name of a tool, the id of its call, and the arguments as far as they are kept."""
    name = storable(str(payload.get("tool_name") or "tool"))[:_LABEL_CHARS]
    given = payload.get("tool_input")
    args = storable(given, longest=_ARG_CHARS) if isinstance(given, dict) else {"input": storable(given)}
    key = payload.get("tool_use_id")
    if not isinstance(key, str) or not key:  # early versions name none
        key = sha256(f"{name} {json.dumps(given, sort_keys=True)}".encode()).hexdigest()[:16]
    return name, key, args


def _transcript_of(payload: Payload, branch: str) -> str:
    """The transcript of a conversation; a sub-agent's lies in a folder named after its session."""
    path = payload.get("transcript_path")
    path = os.path.expanduser(path) if isinstance(path, str) else ""  # noqa: PTH111 - a text that may be anything
    if branch == "main":
        return path
    own = payload.get("agent_transcript_path")
    if isinstance(own, str) and own:
        return os.path.expanduser(own)  # noqa: PTH111
    return f"{path.removesuffix('.jsonl')}/subagents/{branch}.jsonl" if path else ""
