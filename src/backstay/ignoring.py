"""Rules of ignore files: which paths of a folder do not belong to what is captured. Pure; the rules come as text.

`pathspec` knows the words of .gitignore. The rules of a folder are those of its ignore file, and before these the rules
of the folders above it, as git has it: the last rule that fits decides, and nothing below an ignored folder is looked
at. A decision costs 20 microseconds, so callers keep decisions by folder and ask again only where `digest` differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from backstay.errors import UnsupportedError

# Left out where no ignore file says anything at all, because they are made by tools and can be made again.
BUILT_IN = (
    "node_modules/",
    ".venv/",
    "venv/",
    "target/",
    "dist/",
    "build/",
    "__pycache__/",
    ".tox/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".gradle/",
    ".next/",
    "*.pyc",
)


class IgnoreRules:
    """The rules that hold in one folder. `inside` gives those of a folder in it."""

    __slots__ = ("_specs", "digest", "is_empty")

    def __init__(self, specs: Sequence[tuple[str, Any]], digest: bytes) -> None:
        self._specs = tuple(specs)  # with the folder that each is of; those that decide last come last
        self.digest = digest
        self.is_empty = not self._specs

    def inside(self, folder: str, text: str | None) -> IgnoreRules:
        """The rules of a folder with an ignore file of this text; these very rules if it has none."""
        if text is None:
            return self
        lines = text.splitlines()
        return IgnoreRules(
            [*self._specs, (folder + "/" if folder else "", _spec(lines))],
            sha256(b"\0".join([self.digest, folder.encode("utf-8", "surrogateescape"), _raw(text)])).digest(),
        )

    def ignores(self, path: str, *, folder: bool) -> bool:
        """True if a path does not belong; the folders above it are known to belong."""
        return self.says(path, folder=folder) is True

    def says(self, path: str, *, folder: bool) -> bool | None:
        """True if a path is ignored, False if a rule takes it in again, None if no rule fits it."""
        for start, spec in reversed(self._specs):
            if path.startswith(start):
                below = path[len(start) :]
                included = spec.check_file(below + "/" if folder else below).include
                if included is not None:
                    return bool(included)
        return None


def rules_of(lines: Sequence[str], salt: bytes = b"") -> IgnoreRules:
    """Rules that hold from the root on: those of the caller, and the built-in ones. `salt` goes into their digest."""
    text = "\n".join(lines)
    return IgnoreRules([("", _spec(lines))] if lines else [], sha256(salt + _raw(text)).digest())


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def require_rules() -> None:
    """UnsupportedError if what reads ignore files is not installed."""
    try:
        import pathspec  # noqa: F401, PLC0415 - an extra: only a workspace needs it
    except ImportError:
        message = "a workspace needs pathspec for its ignore files, and it is not installed"
        raise UnsupportedError(message, hint="pip install 'backstay[files]'") from None


def _spec(lines: Sequence[str]) -> Any:
    require_rules()
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - as above

    return GitIgnoreSpec.from_lines(_usable(lines))


def _usable(lines: Sequence[str]) -> list[str]:
    """The lines that are patterns. git passes over one that means nothing, and so does this."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - as above

    usable: list[str] = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        usable.append(line)
    return usable
