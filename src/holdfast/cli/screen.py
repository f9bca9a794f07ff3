"""How commands write to people: one console, plain when it is not a terminal or `NO_COLOR` is set.

Loads the terminal library, so commands import this when they run. Text is shown as it is, never read as markup, and
never wrapped or cut here: who prints it knows how wide it may be.
"""

from __future__ import annotations

import os
from typing import NoReturn

from rich.console import Console
from rich.text import Text


class Screen:
    """Standard output, with a little style where that can be seen."""

    def __init__(self) -> None:
        plain = bool(os.environ.get("NO_COLOR"))
        self._console = _Console(color_system=None if plain else "auto", highlight=False, soft_wrap=True)

    def line(self, *pieces: str | tuple[str, str]) -> None:
        """One line of pieces: a text, or a text and its style."""
        self._console.print(Text.assemble(*pieces))


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        # The library would end the process here; what a closed pipe means is decided in one place, `main`.
        raise BrokenPipeError
