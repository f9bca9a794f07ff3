"""A `.gitignore` for a `.backstay/` that was just made, so that `git add -A` takes neither the store nor its keys."""

from __future__ import annotations

import contextlib
import os

_EVERYTHING = b"*\n"


def keep_from_git(folder: str | os.PathLike[str] | None = None, *, descriptor: int | None = None) -> None:
    """Have git pass a folder by, given by its path or held open. A file that is there stays; no failure matters."""
    name = ".gitignore" if folder is None else os.path.join(folder, ".gitignore")  # noqa: PTH118 - hooks load this
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    with contextlib.suppress(OSError):
        handle = os.open(name, flags, 0o600, dir_fd=descriptor)
        try:
            os.write(handle, _EVERYTHING)
        finally:
            os.close(handle)
