"""The command line as tests use it: in this process where that is enough, in one of its own, or at a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from backstay.cli import main
from tests.faces.cli import story

CLI = [sys.executable, "-m", "backstay"]
_SPOKEN_TO = ("NO_COLOR", "FORCE_COLOR", "PAGER", "LESS", "COLUMNS", "LINES", "TERM")


def plain_environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("BACKSTAY") and k not in _SPOKEN_TO}
    return kept | more


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(*args: str, folder: Path, columns: int | None = 80, **env: str) -> Done:
    """One command line in this process, at the hour of the story, with nobody to answer a question."""
    given = plain_environment(**({} if columns is None else {"COLUMNS": str(columns)}), **env)
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, given, clear=True),
        mock.patch("backstay.shapes.text.now", return_value=story.NOW),
        mock.patch("sys.stdin", io.StringIO()),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(args)
    return Done(code, out.getvalue(), err.getvalue())


def process(*args: str, folder: Path, **env: str) -> Done:
    """One command line in a process of its own, its output piped."""
    done = subprocess.run(
        [*CLI, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=plain_environment(**env),
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Terminal:
    """A person at a terminal: sees what a command writes, and types."""

    def __init__(
        self, *args: str, folder: Path, columns: int = 80, lines: int = 24, env: dict[str, str] | None = None
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._process = subprocess.Popen(
            [*CLI, *args],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=plain_environment(**({"TERM": "xterm-256color"} | (env or {}))),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - or Ctrl-C would reach nobody
        )
        os.close(theirs)
        self.seen = ""

    def until(self, text: str, *, within_s: float = 60) -> None:
        """Read on until a text has been seen."""
        end = time.monotonic() + within_s
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} was not seen in {self.seen!r}"
            if not self._read():
                assert text in self.seen, self.seen
                return

    def types(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ends(self) -> int:
        """Read to the end, and give the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self._process.wait(60)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 60)
        assert ready, f"nothing more came after {self.seen!r}"
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.seen += chunk.decode(errors="replace").replace("\r\n", "\n")
        return bool(chunk)
