"""Where a ring is run: in memory if there is a place for that, because a ring needs the order of calls, not a disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import backstay
from backstay.face import Store

_MEMORY = Path("/dev/shm")
KINDS = ("sqlite", "files")


@contextmanager
def room() -> Iterator[Path]:
    """A folder that goes away afterwards."""
    quick = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="backstay-ring-", dir=quick) as folder:
        yield Path(folder)


class Place(NamedTuple):
    """A folder with a store of one kind in it, and what was exported from it."""

    folder: Path
    kind: str = "sqlite"
    url: str = ""  # of a store that lies elsewhere

    @property
    def path(self) -> Path:
        """Where the store lies."""
        return self.folder / ("store.db" if self.kind == "sqlite" else "store")

    @property
    def bundle(self) -> Path:
        """Where the export lies."""
        return self.folder / "alpha.backstay"

    def open(self, durability: str = "full") -> Store:
        """The store, made if there is none."""
        url = self.url or (str(self.path) if self.kind == "sqlite" else f"file:{self.path}")
        return backstay.open(url, durability=durability)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Nothing is left in the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
