"""The helper of a project's hooks: one process that has the store open, and the folder's files in mind.

The first hook starts it; a lock beside its socket keeps a second one away. It does what hooks bring, tells each when
that is on disk, and leaves after ten minutes without one. Killed at any moment it leaves nothing that the next helper,
or a hook alone, does not go on with.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from backstay.adapters.claude_code import places
from backstay.adapters.claude_code.client import HELLO, MAX_BYTES
from backstay.adapters.claude_code.hooked import HookedProject

IDLE_S = 600.0
_POLL_S = 0.5
_SEND_S = 10.0  # that a hook may take to hand its event over
_WAITING = 64


class HookServer:
    """Serves the hooks of a project at a socket of that name in a folder. The process then works in the project."""

    def __init__(self, folder: str, name: str, project: HookedProject, *, idle_s: float = IDLE_S) -> None:
        self._folder = folder
        self._name = name
        self._project = project
        self._idle_s = idle_s
        self._busy = 0
        self._last = time.monotonic()
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def serve(self) -> bool:
        """Serve until it is idle or told to stop; False if another helper does so already."""
        os.chdir(self._folder)  # a socket's name has 107 bytes at most: its bare name always fits
        held = os.open(f"{self._name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _is_first(held):
                return False
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name)  # noqa: PTH108 - of a helper that was killed
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                before = os.umask(0o077)
                listener.bind(self._name)
                os.umask(before)
                listener.listen(_WAITING)
                os.ftruncate(held, 0)
                os.write(held, b"%d\n" % os.getpid())  # it is up; for people who look for it
                listener.settimeout(_POLL_S)
                os.chdir(self._project.project)  # where a relative URL of the store begins
                self._accept(listener)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{self._folder}/{self._name}")  # noqa: PTH108
            self._project.close()
            return True
        finally:
            os.close(held)

    def stop(self) -> None:
        """Leave when what is being done is done."""
        self._stopped.set()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                self._project.tend()
                with self._lock:
                    if not self._busy and time.monotonic() - self._last > self._idle_s:
                        break
                continue
            with self._lock:
                self._busy += 1
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()
        until = time.monotonic() + _SEND_S
        while self._busy and time.monotonic() < until:
            time.sleep(0.01)

    def _handle(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_SEND_S)
                if places.peer_uid(connection) not in (None, os.getuid()):
                    return
                raw = _event(connection)
                if raw is not None:
                    said = b"ok\n" if self._project.take(raw) else b"no\n"
                    connection.sendall(said)
        except OSError:
            pass  # the hook has left
        finally:
            with self._lock:
                self._busy -= 1
                self._last = time.monotonic()


def _event(connection: socket.socket) -> bytes | None:
    """The event that a hook hands over; None if that is cut off, or no hook."""
    data = b""
    while b"\n" not in data:
        more = connection.recv(4096)
        if not more or len(data) > len(HELLO) + 4096:
            return None
        data += more
    first, _, rest = data.partition(b"\n")
    length = first.removeprefix(HELLO)
    if first == length or not length.isdigit() or len(length) > len(str(MAX_BYTES)) or int(length) > MAX_BYTES:
        return None
    parts, missing = [rest], int(length) - len(rest)
    while missing > 0:
        more = connection.recv(min(missing, 1 << 20))
        if not more:
            return None
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def _is_first(handle: int) -> bool:
    import fcntl  # noqa: PLC0415 - sockets with names are not on Windows either

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def main(args: Sequence[str]) -> int:
    """Serve one project: its socket's name, its folder, its store."""
    name, project, *url = args
    folder = places.socket_folder()
    if folder is None:
        return 1
    helper = HookServer(folder, name, HookedProject(project, url[0] if url else None))
    signal.signal(signal.SIGTERM, lambda *_: helper.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    helper.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
