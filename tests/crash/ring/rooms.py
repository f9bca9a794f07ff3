"""Where a ring is run: in memory if there is a place for that, because a ring needs the order of calls, not a disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")


@contextmanager
def room() -> Iterator[Path]:
    """A folder that goes away afterwards."""
    quick = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-ring-", dir=quick) as folder:
        yield Path(folder)
