"""Small files that a capture needs beside those it captures: a clock, the key of a folder's secrets, git's HEAD."""

from __future__ import annotations

import contextlib
import os
import secrets
import time

from backstay.errors import BackstayError
from backstay.workspace.open_root import BlockedError, OpenRoot

_KEY_BYTES = 32
_PACKED_BYTES = 1 << 20


def clock_of(root: OpenRoot) -> int:
    """The time by the file system's own clock: that of a file that is touched now."""
    with contextlib.suppress(OSError, BackstayError):
        own = root.own_folder()
        try:
            handle = os.open(
                b"clock", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=own
            )
            try:
                os.utime(handle)
                return os.fstat(handle).st_mtime_ns
            finally:
                os.close(handle)
        finally:
            os.close(own)
    return time.time_ns() // 1_000_000_000 * 1_000_000_000  # a folder that cannot be written: a coarse clock of ours


def secret_key(root: OpenRoot) -> bytes:
    """The key of a folder's secrets: it never leaves the folder."""
    own = root.own_folder()
    try:
        with contextlib.suppress(FileExistsError):
            handle = os.open(b"secret-key", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=own)
            try:
                os.write(handle, secrets.token_bytes(_KEY_BYTES))
            finally:
                os.close(handle)
        handle = os.open(b"secret-key", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=own)
        try:
            return os.read(handle, _KEY_BYTES)
        finally:
            os.close(handle)
    finally:
        os.close(own)


def git_head(root: OpenRoot) -> tuple[str, str] | None:
    """Where git stands: the commit and the branch, as far as two small files say; None where there is no git."""
    head = _small(root, b".git/HEAD")
    if head is None:
        return None
    if not head.startswith("ref: "):
        return head, ""
    name = head.removeprefix("ref: ")
    commit = _small(root, b".git/" + os.fsencode(name)) if ".." not in name else None
    return commit or _packed(root, name), name.removeprefix("refs/heads/")


def _packed(root: OpenRoot, name: str) -> str:
    """The commit of a branch that git keeps in one file with others."""
    for line in (_small(root, b".git/packed-refs", most=_PACKED_BYTES) or "").splitlines():
        commit, _, of = line.partition(" ")
        if of == name:
            return commit
    return ""


def _small(root: OpenRoot, path: bytes, *, most: int = 4096) -> str | None:
    try:
        with root.parent_of(path) as (folder, name):
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                return os.read(handle, most).decode("utf-8", "replace").strip()
            finally:
                os.close(handle)
    except (OSError, BlockedError):
        return None
