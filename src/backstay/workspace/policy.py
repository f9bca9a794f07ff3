"""What of a folder is captured: the options of a Workspace, refused roots, limits, and the names of secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import translate
from pathlib import Path
from typing import Literal

import msgspec

from backstay.errors import InvalidInputError
from backstay.retention import to_bytes

Secrets = Literal["hash", "capture", "skip"]
Git = Literal["skip", "capture"]

MAX_FILES = 200_000
_MAX_FILE_BYTES = 1 << 30  # a file is read as a whole

# Names whose contents are kept from the store unless it is asked for. A dot in what follows `id_` is a program's file.
_SECRET_NAMES = (".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "id_*", ".netrc", ".npmrc", ".pypirc", ".pgpass")
_NO_SECRETS = (".env.example", ".env.sample", ".env.template", ".env.dist", "id_*.*", "*.pub")
_CREDENTIALS = r"credentials(\.(json|ini|toml|ya?ml|xml|txt|csv|cfg|conf))?\Z"
_IS_SECRET = re.compile("|".join([_CREDENTIALS, *map(translate, _SECRET_NAMES)]))
_IS_NONE = re.compile("|".join(map(translate, _NO_SECRETS)))
_SECRET_FOLDERS = frozenset({".aws", ".ssh", ".gnupg"})
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----")
_LOOK_BYTES = 64 * 1024
_NO_TILDE = "`~` is not expanded: give the path in full, or Path('~/project').expanduser()"


class Workspace:
    """A folder whose files are kept with a session's checkpoints.

    `include` and `exclude` are patterns as in .gitignore and come before what `ignore` files say. A file beyond
    `max_file` is left out and listed; a folder beyond `max_total` is refused. `secrets`: keep a keyed digest of them,
    capture them as other files, or skip them. `git="capture"` takes .git folders as any other. A capture that takes
    longer than `budget_s` is finished by the next one, and says that it is not exact. Contents of files may take
    `files_bytes` in the store: beyond that the oldest are forgotten, unless a branch, tag or label leads to them.
    """

    __slots__ = (
        "budget_s",
        "exclude",
        "files_bytes",
        "git",
        "ignore",
        "include",
        "max_file",
        "max_total",
        "path",
        "secrets",
    )

    def __init__(
        self,
        path: str | os.PathLike[str] = ".",
        *,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        ignore: Iterable[str] = (".gitignore", ".backstayignore"),
        max_file: int | str = "64MiB",
        max_total: int | str = "2GiB",
        secrets: Secrets = "hash",
        git: Git = "skip",
        budget_s: float = 2.0,
        files_bytes: int | str | None = "5GiB",
    ) -> None:
        self.path = os.path.realpath(path)
        self.include, self.exclude = _patterns(include, "include"), _patterns(exclude, "exclude")
        self.ignore = _patterns(ignore, "ignore")
        self.max_file, self.max_total = to_bytes(max_file, "max_file"), to_bytes(max_total, "max_total")
        self.secrets, self.git, self.budget_s = secrets, git, float(budget_s)
        self.files_bytes = None if files_bytes is None else to_bytes(files_bytes, "files_bytes")
        if secrets not in ("hash", "capture", "skip"):
            message = f"secrets must be 'hash', 'capture' or 'skip', not {secrets!r}"
            raise InvalidInputError(message)
        if git not in ("skip", "capture"):
            message = f"git must be 'skip' or 'capture', not {git!r}"
            raise InvalidInputError(message)
        if self.max_file > _MAX_FILE_BYTES:
            message = f"max_file is {self.max_file:,} bytes, more than the limit of {_MAX_FILE_BYTES:,}"
            raise InvalidInputError(message, hint="a file is read as a whole: leave larger ones out")
        refuse_root(self.path)

    def __repr__(self) -> str:
        return f"<Workspace {self.path!r}>"


def workspace_of(given: Workspace | str | os.PathLike[str] | None) -> Workspace | None:
    """A Workspace as a caller may give it: one, or the path of a folder."""
    return given if given is None or isinstance(given, Workspace) else Workspace(given)


def refuse_root(path: str) -> None:
    """InvalidInputError for a folder that is too much to be one project's."""
    home = os.path.realpath(Path.home())
    if not os.path.isdir(path):  # noqa: PTH112 - a path that was just resolved
        message = f"the workspace {path} is no folder"
        hint = _NO_TILDE if f"{os.sep}~" in path else "give the folder that the agent works in"
        raise InvalidInputError(message, hint=hint)
    if path in {os.path.sep, home} or home.startswith(path.rstrip(os.path.sep) + os.path.sep):
        message = f"the workspace {path} is too much: it is your home, or contains it"
        raise InvalidInputError(message, hint="give the folder of one project")
    if os.path.basename(path) == ".backstay":  # noqa: PTH119
        message = f"the workspace {path} is Backstay's own folder"
        raise InvalidInputError(message, hint="give the folder that the agent works in")


def is_secret_name(path: str) -> bool:
    """True for a path whose name says that it holds a secret."""
    *above, name = path.split("/")
    if not _SECRET_FOLDERS.isdisjoint(above):
        return True
    return _IS_SECRET.match(name) is not None and _IS_NONE.match(name) is None


def has_private_key(contents: bytes) -> bool:
    """True if a private key stands near the beginning."""
    start = contents[:_LOOK_BYTES]
    return b"PRIVATE KEY-----" in start and _PRIVATE_KEY.search(start) is not None


class FolderSize(msgspec.Struct, frozen=True, gc=False):
    """How much of a scan lies in one folder, without those below it."""

    path: str
    files: int
    size_bytes: int


def refuse_size(root: str, sizes: list[FolderSize], max_total: int) -> None:
    """InvalidInputError if there is more than a workspace may have, with the folders that have most of it."""
    files, total = sum([size.files for size in sizes]), sum([size.size_bytes for size in sizes])
    if files <= MAX_FILES and total <= max_total:
        return
    tops: dict[str, list[int]] = {}
    for size in sizes:
        top = tops.setdefault("/".join(size.path.split("/")[:2]), [0, 0])
        top[0] += size.files
        top[1] += size.size_bytes
    largest = sorted(tops.items(), key=lambda item: (-item[1][1], item[0]))[:10]
    lines = [f"  {path or '.'}/  {count:,} files, {bytes_:,} bytes" for path, (count, bytes_) in largest]
    message = f"the workspace {root} has {files:,} files and {total:,} bytes to capture:\n" + "\n".join(lines)
    raise InvalidInputError(
        message, hint="leave folders out by a line in .backstayignore (as `data/`), or raise max_total"
    )


def _patterns(given: Iterable[str], what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not all([isinstance(pattern, str) for pattern in given]):
        message = f"{what} takes several patterns: a list or tuple of texts"
        raise InvalidInputError(message)
    return tuple(given)
