"""Neighbours that the command line starts by name: each in a room of its own, and with an extra that may be missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from backstay.errors import UnsupportedError

# Name of the room: the extra it needs, and a package of that extra.
NEIGHBOURS = {
    "web": ("web", ("starlette", "uvicorn", "jinja2", "python_multipart")),
    "adapters.claude_code.client": ("", ()),
    "adapters.claude_code.places": ("", ()),
    "adapters.claude_code.settings": ("", ()),
}


def neighbour(name: str) -> ModuleType:
    """The room of that name; UnsupportedError if what it needs is not installed."""
    extra, needed = NEIGHBOURS[name]
    try:
        return importlib.import_module(f"backstay.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in needed:
            raise
        message = f"`backstay {name}` needs {error.name}, which is not installed"
        raise UnsupportedError(message, hint=f"pip install 'backstay[{extra}]'") from error
