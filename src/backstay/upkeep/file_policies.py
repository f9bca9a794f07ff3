"""What of a session's files is needed: all, what a retention keeps, or all but what is to be forgotten."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from backstay.listing import FileEntry
from backstay.retention import Candidate, Retention, fork_points, to_drop
from backstay.upkeep.file_uses import PINNED, UNWANTED, FilePoint


class KeepEverything:
    """The files of a session that nothing is asked of."""

    def begin(self, points: list[FilePoint]) -> None:
        """See FilePolicy."""

    def pins(self, _point: FilePoint) -> bool:
        """See FilePolicy."""
        return False

    def weight(self, _point: FilePoint, _entry: FileEntry) -> int:
        """See FilePolicy."""
        return PINNED

    def rewrites(self, _entry: FileEntry) -> bool:
        """See FilePolicy."""
        return False


class KeepByRetention(KeepEverything):
    """What `files_days` and `files_last` keep; what `files_bytes` may take, oldest first, has its time for a weight."""

    def __init__(self, retention: Retention, now_us: int) -> None:
        self._retention = retention
        self._now_us = now_us
        self._pinned: set[int] = set()
        self._gone: set[int] = set()
        self._ages: dict[int, int] = {}

    def begin(self, points: list[FilePoint]) -> None:
        """See FilePolicy."""
        retention = self._retention
        found = [Candidate(point.sequence, point.parent, point.at_us, point.labelled) for point in points]
        self._pinned = {point.sequence for point in points if point.kept} | fork_points(found)
        if retention.keep_labelled:
            self._pinned |= {point.sequence for point in points if point.labelled}
        latest = 0
        for point in points:
            latest = max(latest, point.at_us, 1)
            self._ages[point.sequence] = latest
        rule = retention.of_files
        heads = {point.sequence for point in points if point.head}
        self._gone = set() if rule is None else set(to_drop(found, heads, self._pinned, rule, now_us=self._now_us))

    def pins(self, point: FilePoint) -> bool:
        """See FilePolicy."""
        return point.sequence in self._pinned

    def weight(self, point: FilePoint, _entry: FileEntry) -> int:
        """See FilePolicy."""
        if point.sequence in self._pinned:
            return PINNED
        return UNWANTED if point.sequence in self._gone else self._ages[point.sequence]


class ForgetBefore(KeepEverything):
    """All files go of checkpoints before one, but for heads, tags, labels and what an undo leads to."""

    def __init__(self, before: int) -> None:
        self._before = before

    def pins(self, point: FilePoint) -> bool:
        """See FilePolicy."""
        return point.kept or point.labelled

    def weight(self, point: FilePoint, _entry: FileEntry) -> int:
        """See FilePolicy."""
        return UNWANTED if point.sequence < self._before and not self.pins(point) else PINNED


class ForgetPaths(KeepEverything):
    """Some files go, of every checkpoint or of those before one, whatever leads to it."""

    def __init__(self, matches: Callable[[FileEntry], bool], before: int | None = None) -> None:
        self._matches = matches
        self._before = before

    def weight(self, point: FilePoint, entry: FileEntry) -> int:
        """See FilePolicy."""
        goes = (self._before is None or point.sequence < self._before) and self._matches(entry)
        return UNWANTED if goes else PINNED

    def rewrites(self, entry: FileEntry) -> bool:
        """See FilePolicy."""
        return self._matches(entry)


def matcher(patterns: Sequence[str]) -> Callable[[bytes], bool]:
    """True for a path that is one of these, is below one, or fits one with `*`, `?` or `[…]`; a bare name anywhere."""

    def matches(path: bytes) -> bool:
        text = os.fsdecode(path)
        name = text.rpartition("/")[2]
        for pattern in patterns:
            plain = pattern.strip("/")
            if text == plain or text.startswith(plain + "/") or fnmatchcase(text, plain):
                return True
            if "/" not in plain and fnmatchcase(name, plain):
                return True
        return False

    return matches
