"""Where the other systems keep their sessions when they are not told otherwise, and what they are also called."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ALSO_CALLED = {"sh_layer2": "continuum"}


def default_folders(system: str) -> list[Path]:
    """The folders of a system, the likeliest first; none where it has none of its own."""
    return _FOLDERS[system]() if system in _FOLDERS else []


def _ccswarm() -> list[Path]:
    return [_home() / ".ccswarm" / "checkpoints", Path(".ccswarm") / "checkpoints"]


def _ares() -> list[Path]:
    return [_data() / "ares" / "checkpoints"]


def _continuum() -> list[Path]:
    shared = Path(tempfile.gettempdir()) / "continuum_checkpoints"
    return [_data() / "continuum" / "checkpoints", _home() / ".continuum" / "checkpoints", shared]


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none


def _data() -> Path:
    given = os.environ.get("XDG_DATA_HOME", "")
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support"
    return Path(given) if os.path.isabs(given) else _home() / ".local" / "share"  # noqa: PTH117 - of a text


_FOLDERS: dict[str, Callable[[], list[Path]]] = {"ccswarm": _ccswarm, "ares": _ares, "continuum": _continuum}
