"""Where the other systems keep their sessions when they are not told otherwise, and what they are also called."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from backstay.errors import InvalidInputError, NotFoundError
from backstay.hints import Hint

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


def _claude_code() -> list[Path]:
    return [_from("CLAUDE_CONFIG_DIR", _home() / ".claude") / "projects"]


def _codex() -> list[Path]:
    home = _from("CODEX_HOME", _home() / ".codex")
    return [home / "sessions", home / "archived_sessions"]


def _from(variable: str, otherwise: Path) -> Path:
    told = os.environ.get(variable)
    return Path(told).expanduser() if told else otherwise


def find_folders(system: str) -> list[Path]:
    """Those of a system's folders that are there; an error says plainly where it was looked for."""
    hint = Hint("give the path", f"backstay import {system} PATH")
    folders = default_folders(system)
    if not folders:
        message = f"{system} has no folder of its own"
        raise InvalidInputError(message, hint=hint)
    found = {folder.resolve(): folder for folder in folders if folder.is_dir()}
    if not found:
        message = f"{system} keeps its sessions in {' or '.join(map(str, folders))}, and there is no such folder"
        raise NotFoundError(message, hint=hint)
    return list(found.values())


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none


def _data() -> Path:
    given = os.environ.get("XDG_DATA_HOME", "")
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support"
    return Path(given) if os.path.isabs(given) else _home() / ".local" / "share"  # noqa: PTH117 - of a text


_FOLDERS: dict[str, Callable[[], list[Path]]] = {
    "ccswarm": _ccswarm,
    "ares": _ares,
    "continuum": _continuum,
    "claude-code": _claude_code,
    "codex": _codex,
}
