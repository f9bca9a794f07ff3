"""`backstay hook`: hands an event of Claude Code to the helper of its project. It says nothing and never fails.

Claude Code waits for this process before it goes on, so it loads little, and leaves after 2 seconds at the latest; the
helper then goes on without it. Where no helper can be had, a child of this process does the work.
"""

from __future__ import annotations

import os
import sys
import time

from backstay.adapters.claude_code import places

TYPE_CHECKING = False  # `typing`, `contextlib` and `socket` take longer to load than all of this needs to run
if TYPE_CHECKING:
    import _socket
    import subprocess
    from collections.abc import Sequence

MAX_BYTES = 32 * 1024 * 1024
HELLO = b"backstay-hook 1 "
_PATIENCE_S = 2.0
_POLL_S = 0.01


def run(args: Sequence[str]) -> int:
    """One event, from standard input. The exit code is 0 whatever happens: any other would speak to the agent."""
    project = ""
    try:
        deadline = time.monotonic() + _PATIENCE_S
        url = _store(args)
        payload = sys.stdin.buffer.read(MAX_BYTES + 1)
        project = _project(payload)
        if len(payload) > MAX_BYTES:
            places.note_problem(project, f"an event of more than {MAX_BYTES:,} bytes was not recorded")
        else:
            _deliver(payload, project, url, deadline)
    except BaseException as error:  # noqa: BLE001 - see above
        _complain(project, error)
    return 0


def _complain(project: str, error: BaseException) -> None:
    try:  # noqa: SIM105 - contextlib is slow to load
        places.note_problem(project or os.getcwd(), f"a hook failed: {type(error).__name__}: {error}")  # noqa: PTH109
    except BaseException:  # noqa: BLE001, S110 - there is nowhere left to say it
        pass


def _store(args: Sequence[str]) -> str | None:
    for at, word in enumerate(args):
        if word == "--store":
            return args[at + 1] if at + 1 < len(args) else None
        if word.startswith("--store="):
            return word.partition("=")[2]
    return os.environ.get("BACKSTAY_URL") or None


def _project(payload: bytes) -> str:
    """Claude Code names the project's folder in the environment; else the event says where the session is."""
    named = os.environ.get("CLAUDE_PROJECT_DIR")
    if named and os.path.isdir(named):  # noqa: PTH112
        return os.path.realpath(named)
    start = os.getcwd()  # noqa: PTH109
    try:
        import json  # noqa: PLC0415 - seldom needed

        told = json.loads(payload)["cwd"]
        start = told if os.path.isdir(told) else start  # noqa: PTH112
    except (ValueError, TypeError, LookupError, RecursionError):
        pass  # the helper says what is wrong with it
    return places.project_of(start)


def _deliver(payload: bytes, project: str, url: str | None, deadline: float) -> None:
    folder = places.socket_folder()
    if folder is None:
        _work_alone(payload, project, url, deadline)
        return
    os.chdir(folder)  # a socket is named by 107 bytes at most: its bare name always fits
    name = places.socket_name(project, url)
    for _ in range(2):  # a helper that dies over it has left the event to the next one
        connection = _connected(name, project, url, deadline)
        if connection is None:
            break
        connection.settimeout(max(0.05, deadline - time.monotonic()))
        try:
            connection.sendall(HELLO + b"%d\n" % len(payload) + payload)
            if connection.recv(16):
                return
        except TimeoutError:
            return  # the helper has it, and goes on
        except OSError:
            pass
        finally:
            connection.close()
    _work_alone(payload, project, url, deadline)


def _connected(name: str, project: str, url: str | None, deadline: float) -> _socket.socket | None:
    """A connection to the helper, which is started if there is none; None if it does not come up."""
    found = _connect(name)
    if found is not None:
        return found
    helper = _start(name, project, url)
    while time.monotonic() < deadline - 0.2:
        found = _connect(name)
        if found is not None or helper is None:
            return found
        if helper.poll() not in (None, 0):  # 0: another hook's helper was first, and comes up
            return None
        time.sleep(_POLL_S)
    return None


def _connect(name: str) -> _socket.socket | None:
    import _socket  # noqa: PLC0415 - a hook without sockets works, too

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        return None
    if places.peer_uid(connection) not in (None, os.getuid()):
        connection.close()
        return None
    return connection


def _start(name: str, project: str, url: str | None) -> subprocess.Popen[bytes] | None:
    import subprocess  # noqa: PLC0415 - once per helper

    words = [sys.executable, "-m", "backstay.adapters.claude_code.hook_server", name, project, *([url] if url else [])]
    try:
        return subprocess.Popen(  # noqa: S603 - this very interpreter
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None


def _work_alone(payload: bytes, project: str, url: str | None, deadline: float) -> None:
    """Have a child do it; one that takes long goes on when this process has left."""
    if not hasattr(os, "fork"):
        _work(payload, project, url)
        return
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):  # Claude Code waits until these are closed
                os.dup2(silent, stream)
            _work(payload, project, url)
        finally:
            os._exit(0)
    while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(_POLL_S)


def _work(payload: bytes, project: str, url: str | None) -> None:
    from backstay.adapters.claude_code.hooked import work_once  # noqa: PLC0415 - all of Backstay

    work_once(payload, project, url)
