"""`--out FILE`: a value into a file that is made for it: private, whole or not there, and never through a link."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import backstay

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def write_out(path: str, value: Any) -> int:
    """Write a value: text and bytes as they are, anything else as JSON; `-` is standard output. How many bytes."""
    data = _bytes(value)
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return len(data)
    try:
        handle = os.open(path, _NEW, 0o600)
    except FileExistsError:
        message = f"{path} is there already; nothing was written"
        raise backstay.AlreadyExistsError(message, hint="give --out a new name") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(path).unlink()
        raise
    return len(data)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    from backstay import shapes

    return (shapes.dump(shapes.plain(value)) + "\n").encode()
