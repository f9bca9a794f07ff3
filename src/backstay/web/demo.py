"""The made-up store of `backstay web --demo`: written by a process of its own that is killed inside a tool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import backstay

_PATIENCE_S = 120


def make(place: Path) -> None:
    """Write the store. The process that does it dies as the story wants: that is how its last call comes in doubt."""
    command = [sys.executable, "-m", "backstay.web.demo_agents", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)  # noqa: S603 - our own
    with backstay.open(place) as store:
        if not store.crashed():
            message = f"the demo could not be made: {done.stderr.strip().rpartition(chr(10))[2]}"
            raise backstay.UnavailableError(message)
