"""How commands write to people: lines with a little style, plain when it is not a terminal or `NO_COLOR` is set.

Text is shown as it is given; who prints it has made it harmless (`shown.safe`) and knows how wide it may be. Long
output at a terminal goes through the pager, started only once there is more than one screen of it. The few escapes
needed are written here and not by the terminal library, which takes longer to load than most commands to run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    import subprocess

Piece = str | tuple[str, str]

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_EARLY_LINES = 60  # are written out at once, so that a reader has a first screen soon


class Screen:
    """Standard output. As a context manager with `paged`, what does not fit one screen goes through the pager.

    With `aside` it is standard error: for people, while a program reads the output.
    """

    def __init__(self, *, paged: bool = False, aside: bool = False) -> None:
        # Without a standard output (`>&-`) there is nothing to write to, which is no reason to fail.
        out = sys.stderr if aside else sys.stdout
        self._out: IO[str] = out if out is not None else Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        self.is_terminal = self._out.isatty()
        self.colour = _wants_colour(terminal=self.is_terminal)
        columns, self._height = _size()
        self.width = max(40, min(columns, 400))
        # Where no width is known, names are not cut: they may be on their way to another program.
        self.cuts_names = self.is_terminal or bool(os.environ.get("COLUMNS"))
        self._pager = _pager() if paged and self.is_terminal else None
        self._held: list[str] | None = [] if self._pager else None
        self._paging: subprocess.Popen[str] | None = None
        self._written = 0

    def line(self, *pieces: Piece) -> None:
        """One line of pieces: a text, or a text and its style."""
        if self.colour:
            text = "".join([piece if isinstance(piece, str) else self._styled(*piece) for piece in pieces])
        else:
            text = "".join([piece if isinstance(piece, str) else piece[0] for piece in pieces])
        if self._held is None:
            self._write(text + "\n")
            return
        self._held.append(text + "\n")
        if len(self._held) >= self._height - 1:
            self._start_pager()

    def text(self, text: str) -> None:
        """Text that is not styled, each of its lines made harmless."""
        from backstay.cli.text import safe

        for line in text.splitlines():
            self.line(safe(line))

    def flush(self) -> None:
        """Everything so far is to be seen now."""
        self._out.flush()

    def _styled(self, text: str, style: str) -> str:
        if not style or not text:
            return text
        codes = ";".join([_CODES[word] for word in style.split()])
        return f"\x1b[{codes}m{text}\x1b[0m"

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._written += 1
        if self._written == _EARLY_LINES or (self.is_terminal and self._paging is None):
            self._out.flush()

    def _start_pager(self) -> None:
        import subprocess

        held, self._held = self._held or [], None
        environment = {"LESS": "FRX", "LV": "-c"} | os.environ
        with contextlib.suppress(OSError):
            self._paging = subprocess.Popen(  # noqa: S602 - PAGER is a command of the user's own, as for git and man
                self._pager or "", shell=True, stdin=subprocess.PIPE, env=environment, text=True, errors="replace"
            )
        if self._paging is not None and self._paging.stdin is not None:
            self._out = self._paging.stdin
        for text in held:
            self._write(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        for text in self._held or ():
            self._write(text)
        self._held = None
        if self._paging is None:
            return False
        # Ctrl-C goes to the pager too, which only stops searching at it: it is left when its reader leaves it.
        with contextlib.suppress(BrokenPipeError):
            self._out.close()
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                self._paging.wait()
                break
        self._out = sys.stdout
        return kind is BrokenPipeError  # who has seen enough has not broken anything


def _wants_colour(*, terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return terminal and os.environ.get("TERM", "dumb") != "dumb"


def _size() -> tuple[int, int]:
    """Columns and lines: as the environment says, else as the terminal does, else 80 by 24."""
    found = (80, 24)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = tuple(os.get_terminal_size(sys.__stdout__.fileno()))  # type: ignore[assignment, union-attr]
    said = [os.environ.get(name, "") for name in ("COLUMNS", "LINES")]
    chosen = [int(text) if text.isdecimal() and int(text) > 0 else size for text, size in zip(said, found, strict=True)]
    return chosen[0] or 80, chosen[1] or 24


def _pager() -> str | None:
    """The pager to use: PAGER, else less; none where that is `cat`, empty, or not there."""
    import shutil

    asked = os.environ.get("PAGER")
    if asked is None:
        return "less" if shutil.which("less") and os.environ.get("TERM", "dumb") != "dumb" else None
    if asked.strip() in ("", "cat"):
        return None
    import shlex

    try:
        program = shlex.split(asked)[0]
    except ValueError:
        return None  # an open quote
    # A variable before it, or what only a shell knows, is left to the shell.
    return asked if "=" in program or shutil.which(program) else None
