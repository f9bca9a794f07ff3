"""Rules of ignore files: which paths of a folder do not belong to what is captured. Pure; the rules come as text.

The rules of a folder are those of its ignore file, and before these the rules of the folders above it, as git has it:
the last rule that fits decides, and nothing below an ignored folder is looked at. Callers keep decisions by folder and
ask again only where `digest` differs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

from backstay.wildcards import IgnorePattern, pattern_of

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
_MARK = b"\xef\xbb\xbf"  # some editors begin a text with it
_MEANING = b"git's"  # goes into digests: decisions that were made by another reading of the same rules are made again


class IgnoreRules:
    """The rules that hold in one folder. `inside` gives those of a folder in it."""

    __slots__ = ("_texts", "digest", "is_empty")

    def __init__(self, texts: Sequence[tuple[bytes, _IgnoreText]], digest: bytes) -> None:
        self._texts = tuple(texts)  # with the folder that each is of; those that decide last come last
        self.digest = digest
        self.is_empty = not self._texts

    def inside(self, folder: str, text: str | None) -> IgnoreRules:
        """The rules of a folder with an ignore file of this text; these very rules if it has none."""
        if text is None:
            return self
        raw, where = _raw(text), _raw(folder)
        return IgnoreRules(
            [*self._texts, (where + b"/" if where else b"", _IgnoreText(raw.removeprefix(_MARK)))],
            sha256(b"\0".join([self.digest, where, raw])).digest(),
        )

    def ignores(self, path: str, *, folder: bool) -> bool:
        """True if a path does not belong; the folders above it are known to belong."""
        return self.says(path, folder=folder) is True

    def says(self, path: str, *, folder: bool) -> bool | None:
        """True if a path is ignored, False if a rule takes it in again, None if no rule fits it."""
        raw = _raw(path)
        for start, text in reversed(self._texts):
            if raw.startswith(start):
                said = text.says(raw[len(start) :], folder=folder)
                if said is not None:
                    return said
        return None


def rules_of(lines: Sequence[str], salt: bytes = b"") -> IgnoreRules:
    """Rules that hold from the root on: those of the caller, and the built-in ones. `salt` goes into their digest."""
    text = _raw("\n".join(lines))
    return IgnoreRules([(b"", _IgnoreText(text))] if lines else [], sha256(_MEANING + salt + text).digest())


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class _IgnoreText:
    """The patterns of one ignore file, all of a kind in one expression: the one that fits first is the last line."""

    __slots__ = ("_matchers", "_patterns")

    def __init__(self, text: bytes) -> None:
        lines = [line.removesuffix(b"\r") for line in text.split(b"\n")]
        self._patterns = [pattern for line in lines if (pattern := pattern_of(line)) is not None]
        self._matchers: dict[bool, tuple[_Matcher, _Matcher]] = {}

    def says(self, path: bytes, *, folder: bool) -> bool | None:
        if not self._patterns:
            return None
        matchers = self._matchers.get(folder)
        if matchers is None:
            fitting = [
                (number, pattern) for number, pattern in enumerate(self._patterns) if folder or not pattern.folders_only
            ]
            names = [(number, pattern) for number, pattern in fitting if pattern.of_name]
            paths = [(number, pattern) for number, pattern in fitting if not pattern.of_name]
            matchers = self._matchers[folder] = _Matcher(names), _Matcher(paths)
        of_names, of_paths = matchers
        last = max(of_names.last(path[path.rfind(b"/") + 1 :]), of_paths.last(path))
        return None if last < 0 else not self._patterns[last].is_negated


class _Matcher:
    """Several patterns as one expression."""

    __slots__ = ("_expression", "_numbers")

    def __init__(self, patterns: list[tuple[int, IgnorePattern]]) -> None:
        self._numbers = [number for number, _ in reversed(patterns)]
        joined = b"|".join([b"(" + pattern.expression + b")" for _, pattern in reversed(patterns)])
        self._expression = re.compile(b"(?s:" + joined + b")") if patterns else None

    def last(self, text: bytes) -> int:
        """The number of the last pattern that fits; -1 if none does."""
        found = None if self._expression is None else self._expression.fullmatch(text)
        return -1 if found is None or found.lastindex is None else self._numbers[found.lastindex - 1]
