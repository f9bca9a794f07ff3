"""A child process that is killed at an exact line of the code under test: SIGKILL, no clean-up, nothing flushed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import backstay

SOURCES = Path(str(backstay.__file__)).parent


class Lines:
    """Counts the lines that are run in some modules, and ends the process at one of them."""

    def __init__(self, modules: tuple[str, ...], die_at: int | None) -> None:
        self._starts = tuple(str(SOURCES.joinpath(*name.split("."))) for name in modules)
        self._die_at = die_at
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._starts) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def run_killed(do: Callable[[], object], modules: tuple[str, ...], die_at: int | None) -> int | None:
    """Run something in a child that dies at the nth line of these modules.

    None if it died there; else how many lines there were.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            lines = Lines(modules, die_at)
            sys.settrace(lines)
            do()
            sys.settrace(None)
            os.write(writing, str(lines.count).encode())
            status = 0
        except BaseException as error:  # noqa: BLE001 - told to the parent
            sys.settrace(None)
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        said = told.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0, said
    return int(said)
