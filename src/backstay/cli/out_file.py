"""`--out FILE`: a value into a file that is made for it: private, whole or not there, and never through a link."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import backstay

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def write_out(path: str, value: Any, *, overwrite: bool = False, hint: str = "give --out a new name") -> int:
    """Write a value: text and bytes as they are, anything else as JSON; `-` is standard output. How many bytes.

    With `overwrite`, what is at the path gives way once all is written; a link gives way itself, and is not followed.
    """
    data = _bytes(value)
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return len(data)
    target = Path(path)
    if overwrite:
        from backstay.upkeep.export_file import refuse_odd

        refuse_odd(target)
    made = target.with_name(f".{secrets.token_hex(8)}.backstay") if overwrite else target
    try:
        handle = os.open(made, _NEW, 0o600)
    except FileExistsError:
        message = f"{path} is there already; nothing was written"
        raise backstay.AlreadyExistsError(message, hint=hint) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if overwrite:
            made.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            made.unlink()
        raise
    return len(data)


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    from backstay import shapes

    return (shapes.dump(shapes.plain(value)) + "\n").encode()
