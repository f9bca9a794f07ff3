"""Files of a checkpoint as JSON, and the words that a face has for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backstay.file_model import File

MARKS = {
    "secret": "secret: only a digest",
    "older": "outgrew the limit since",
    "private": "a captured secret",
    "forgotten": "forgotten",
}


def file(found: File) -> dict[str, Any]:
    """A file, link or folder."""
    return {
        "path": spelled(found.path),
        "kind": found.kind,
        "size": found.size,
        "mode": f"{found.mode:04o}",
        "digest": found.digest,
        "target": None if found.target is None else spelled(found.target),
        "author": found.author,
        "mark": found.mark,
    }


def spelled(path: str) -> str:
    """A path as text: bytes that are none are spelled out."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def name_of(found: File) -> str:
    """A path, and by its end what it is."""
    end = f" -> {spelled(found.target)}" if found.target else "/" if found.kind == "folder" else ""
    return spelled(found.path) + end
