"""Where each system keeps its files if it is not told otherwise."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from backstay.errors import InvalidInputError, NotFoundError
from backstay.hints import Hint


def default_folders(system: str) -> tuple[Path, ...]:
    """The folders a system uses by itself, whether they are there or not; none if it has none of its own."""
    home = Path.home()
    data = _from("XDG_DATA_HOME", home / ".local" / "share")
    apps = home / "Library" / "Application Support"
    mac = sys.platform == "darwin"
    places: dict[str, tuple[Path, ...]] = {
        "ccswarm": (home / ".ccswarm" / "checkpoints",),
        "ares": ((apps if mac else data) / "ares" / "checkpoints",),
        "continuum": (
            (apps if mac else data) / "continuum" / "checkpoints",
            Path(tempfile.gettempdir()) / "continuum_checkpoints",
            home / ".continuum" / "checkpoints",
        ),
        "claude-code": (_from("CLAUDE_CONFIG_DIR", home / ".claude") / "projects",),
        "codex": (_from("CODEX_HOME", home / ".codex") / "sessions",),
    }
    return places.get(system, ())


def find_default_folder(system: str) -> Path:
    """The one of them that is there; an error says plainly where it was looked for."""
    places = default_folders(system)
    if not places:
        message = f"{system} has no folder of its own"
        raise InvalidInputError(message, hint=Hint("give the path", f"backstay import {system} PATH"))
    there = [place for place in places if place.is_dir()]
    if not there:
        shown = " or ".join([_short(place) for place in places])
        message = f"{system} keeps its files in {shown}, and there is no such folder"
        raise NotFoundError(message, hint=Hint("give the path", f"backstay import {system} PATH"))
    if len(there) > 1:
        message = f"{system} has files in {' and in '.join([_short(place) for place in there])}"
        raise InvalidInputError(message, hint="give the one you mean")
    return there[0]


def _from(variable: str, otherwise: Path) -> Path:
    told = os.environ.get(variable)
    return Path(told).expanduser() if told else otherwise


def _short(place: Path) -> str:
    try:
        return f"~/{place.relative_to(Path.home())}"
    except ValueError:
        return str(place)
