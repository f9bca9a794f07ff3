"""The sessions of one project, as Claude Code's hooks tell of them: which event is of which session and branch."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import backstay
from backstay.adapters.claude_code import places
from backstay.adapters.claude_code.turns import Payload, Turns
from backstay.errors import BackstayError, ClosedError, ConflictError, FencedError, InvalidInputError, UnsupportedError
from backstay.face import Session, Store
from backstay.names import check_name
from backstay.port import LaneQuery
from backstay.port.rows import ENTERED
from backstay.run import RunEnded

AGENT = "claude-code"
# Tools that cannot change a file. Any other may, those of MCP servers too.
READERS = frozenset(
    {
        *("Read", "Grep", "Glob", "LS", "NotebookRead", "TodoRead", "TodoWrite", "WebFetch", "WebSearch", "Skill"),
        *("BashOutput", "TaskOutput", "AskUserQuestion", "EnterPlanMode", "ExitPlanMode", "ToolSearch"),
        *("ListMcpResourcesTool", "ReadMcpResourceTool"),
    }
)
_TOOL_EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")


class HookedProject:
    """The sessions of one project, kept between events by the helper. Threads may give it events at once."""

    def __init__(self, project: str, url: str | None) -> None:
        self.project = project
        self._url = url
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._opened: tuple[Path, tuple[int, int]] | None = None
        self._sessions: dict[str, HookedSession] = {}

    def take(self, raw: bytes) -> bool:
        """Record an event; what cannot be done is written down for `backstay status`, and False."""
        session, event = "", None
        try:
            payload = json.loads(raw)
            if not isinstance(payload, dict):
                raise InvalidInputError("an event is a JSON object")
            event = payload.get("hook_event_name")
            session = check_name(payload.get("session_id"), "the session_id of an event")
            self._take(payload, session)
        except Exception as error:  # noqa: BLE001 - the agent goes on, whatever it is
            what = error.args[0] if isinstance(error, BackstayError) else f"{type(error).__name__}: {error}"
            places.note_problem(self.project, f"{event or 'an event'} was not recorded: {what}", session=session)
            return False
        return True

    def _take(self, payload: Payload, id_: str) -> None:
        event = payload.get("hook_event_name")
        if event in _TOOL_EVENTS and payload.get("tool_name") in READERS:
            return
        session = self._session(id_)
        with session.lock:
            problem = session.take(event, payload)
        if problem is not None:
            places.note_problem(self.project, f"{event}: {problem}", session=id_)
        elif event in ("Stop", "SessionEnd"):
            places.forget_problems(self.project, id_)
        if event == "SessionEnd":
            with self._lock:
                self._sessions.pop(id_, None)

    def _session(self, id_: str) -> HookedSession:
        with self._lock:
            store = self._current_store()
            if id_ not in self._sessions:
                self._sessions[id_] = HookedSession(store, id_, self.project)
            return self._sessions[id_]

    def _current_store(self) -> Store:
        """The store; opened again if its file is another than before."""
        if self._store is not None and self._opened is not None and _inode(self._opened[0]) != self._opened[1]:
            self._close()
        if self._store is None:
            from backstay import opening  # noqa: PLC0415 - what is heavy is loaded at the first event

            url = self._url
            if url is None:
                here = Path(self.project)
                url = str((opening.nearest_folder(here) or opening.make_folder(here)) / "store.db")
            self._store = backstay.open(url)
            place = opening.place(url)
            self._opened = None if place is None else (place.absolute(), _inode(place))
        return self._store

    def tend(self) -> None:
        """Leave runs that were asked to stop: Claude Code may have been interrupted, and no event comes for them."""
        with self._lock:
            sessions = dict(self._sessions)
            asked = self._asked_to_stop() if any([session.at_work for session in sessions.values()]) else set()
        for id_, session in sessions.items():
            if session.lock.acquire(blocking=False):
                try:
                    session.heed_stop({branch for of, branch in asked if of == id_})
                finally:
                    session.lock.release()

    def _asked_to_stop(self) -> set[tuple[str, str]]:
        """The runs that were asked to stop, by session and branch: one that waits for a call hears of it so at once."""
        if self._store is None:
            return set()
        try:
            found = self._store.backend.lanes(LaneQuery(ENTERED))
        except BackstayError:
            return set()
        return {(one.session.id, one.lane.name) for one in found if one.lane.stop is not None}

    def close(self) -> None:
        """Leave what is open, to go on with at the next event."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        for session in self._sessions.values():
            with session.lock:
                session.rest()
        self._sessions.clear()
        if self._store is not None:
            with contextlib.suppress(BackstayError):
                self._store.close()
        self._store = self._opened = None


def _inode(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


class HookedSession:
    """One session of Claude Code: its conversation on `main`, and each sub-agent's on a branch of its own."""

    def __init__(self, store: Store, id_: str, project: str) -> None:
        self.lock = threading.Lock()
        self._store, self._id, self._project = store, id_, project
        self._opened: Session | None = None
        self._problem: str | None = None
        self._lines: dict[str, Turns] = {}

    @property
    def _session(self) -> Session:
        """The session, begun if it is new. Of a folder that is refused the talk is kept."""
        if self._opened is None:
            try:
                self._opened = _begun(self._store.session(self._id, agent=AGENT, workspace=self._project))
            except (InvalidInputError, UnsupportedError) as error:
                self._problem = f"files are not captured: {str(error.args[0]).splitlines()[0]}"
                self._opened = _begun(self._store.session(self._id, agent=AGENT))
        return self._opened

    def take(self, event: object, payload: Payload) -> str | None:
        """Record an event; what could not be captured."""
        agent = payload.get("agent_id")
        branch = f"agent-{agent}" if isinstance(agent, str) and agent else "main"
        if event == "SubagentStop" and branch == "main":
            return None  # early versions do not say whose end it is; its work is that of the call that began it
        problem = self._taken(branch, event, payload)
        if event == "SessionEnd":  # sub-agents that never said that they ended
            for left in [run.branch for run in self._session.runs() if run.branch.startswith("agent-")]:
                problem = self._taken(left, event, payload) or problem
        return problem or self._problem

    def _taken(self, branch: str, event: object, payload: Payload) -> str | None:
        line = self._lines.get(branch)
        if line is None:
            line = self._lines[branch] = Turns(self._session, check_name(branch, "a branch name"))
        try:
            return line.take(event, payload)
        except (FencedError, ClosedError, RunEnded) as error:  # it was rewound or stopped: go on from where it is now
            line.lose(error)
        except BaseException:
            line.rest()
            raise
        try:
            return line.take(event, payload)
        except RunEnded as error:
            line.lose(error)
            raise FencedError(f"branch {branch!r} was stopped again and again") from error
        except BaseException:
            line.rest()
            raise

    @property
    def at_work(self) -> bool:
        """True if one of its runs is held here."""
        return any([line.at_work for line in list(self._lines.values())])

    def heed_stop(self, branches: Collection[str]) -> None:
        """Leave the runs that were asked to stop: those of these branches, and those that have heard of it."""
        for name, line in self._lines.items():
            line.heed_stop(asked=name in branches)

    def rest(self) -> None:
        """Leave all runs, to go on with at the next event."""
        for line in self._lines.values():
            line.rest()


def _begun(session: Session) -> Session:
    """A session with its first checkpoint: the folder as it was before the agent did anything."""
    if session.head() is None:
        with contextlib.suppress(ConflictError):  # another process was first
            session.commit({"messages": []}, trigger="session_start")
    return session


def work_once(raw: bytes, project: str, url: str | None) -> None:
    """Record one event in this process, when others that do the same have done so: for a hook without a helper."""
    os.chdir(project)
    with _turn(project):
        here = HookedProject(project, url)
        try:
            here.take(raw)
        finally:
            here.close()


@contextlib.contextmanager
def _turn(project: str) -> Iterator[None]:
    own = places.own_folder(project, make=True)
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        handle = os.open(f"{own}/hook.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        yield  # the store's own rules keep order
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
