"""The plan of a restore: what is put back, what is removed, and what stays because it is a person's.

For every path that differs between the disk and the target, the authors of its changes since the target decide:

| changed by | keep_mine=True | "always" | False | None |
|---|---|---|---|---|
| calls | put back | put back | put back | put back |
| others | kept | kept | put back | conflict |
| both, on other lines | merged | merged | put back | conflict |
| both, on the same lines, or no text | conflict | kept | put back | conflict |

A path that the caller gives by its own name is put back in every case; so is one that is missing in another folder than
the one that was captured: an import, or a folder that was emptied.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Literal

import msgspec

from backstay.listing.changes import FileChange, difference
from backstay.listing.entries import OLDER, SECRET, FileEntry, parent_of
from backstay.listing.lists import MISSING, OUTSIDE, Listing
from backstay.listing.plan import GitHead, PlaceStep, RestorePlan, in_order

_IGNORE_FILES = frozenset({b".gitignore", b".backstayignore"})

KeepMine = Literal["always"] | bool | None
Merge = Callable[[FileChange], bytes | None]


class Wish(msgspec.Struct, frozen=True):
    """What a restore was asked for. `paths`: only these, and what is below them. `since`: the capture to go back to.

    `folds`: the file system does not tell names apart that differ in case or in how letters are composed. `taken_ns` is
    when the target was recorded.
    """

    keep_mine: KeepMine = None
    paths: tuple[bytes, ...] | None = None
    since: int = 0
    folds: bool = False
    taken_ns: int = 0


def plan_restore(disk: Listing, target: Listing, wish: Wish, merge: Merge) -> RestorePlan:
    """What a restore from the list of the disk to that of a target does. `merge` puts both changes of a text together.

    `merge` is asked only where others and calls changed one file.
    """
    changes = difference(disk, target).changes
    other_rules = disk.about.rules != target.about.rules or any(_is_rules(change.path) for change in changes)
    plan = _Sorting(disk, wish, merge, other_rules=other_rules)
    for change in changes:
        if change.path and _is_wanted(change.path, wish.paths):
            plan.sort(change)
    plan.make_ways(changes)
    plan.conflict_folded(target)
    plan.keep_ways()
    return RestorePlan(
        in_order(list(plan.steps.values())),
        kept=tuple(sorted(plan.kept)),
        merged=tuple(sorted(path for path in plan.merged if path in plan.steps)),
        conflicts=tuple(sorted(plan.conflicts)),
        without_contents=tuple(sorted(plan.without)),
        never_captured=tuple(sorted(plan.never)),
        git_moved=_git_moved(disk, target),
    )


def _git_moved(disk: Listing, target: Listing) -> tuple[GitHead, GitHead] | None:
    then, now = target.about.git, disk.about.git
    return (then, now) if then is not None and now is not None and then != now else None


def _is_wanted(path: bytes, paths: tuple[bytes, ...] | None) -> bool:
    if paths is None:
        return True
    return any(path == given or not given or path.startswith(given + b"/") for given in paths)


class _Sorting:
    """The paths of a plan as they are sorted."""

    def __init__(self, disk: Listing, wish: Wish, merge: Merge, *, other_rules: bool) -> None:
        self._disk = disk
        self._other_rules = other_rules
        self._wish = wish
        self._merge = merge
        self.steps: dict[bytes, PlaceStep] = {}
        self.kept: set[bytes] = set()
        self.merged: set[bytes] = set()
        self.conflicts: set[bytes] = set()
        self.without: set[bytes] = set()
        self.never: set[bytes] = set()

    def sort(self, change: FileChange) -> None:
        """One path that differs: `before` is on the disk, `after` in the target."""
        path, before, after = change.path, change.before, change.after
        if after is not None and not after.has_contents and before is None:
            self.never.add(path)
            return
        if (after is not None and not after.has_contents) or (before is not None and before.mark in (SECRET, OLDER)):
            self.without.add(path)
            return
        if after is None and self._may_have_been_there(before):
            self.kept.add(path)
            return
        keep = self._wish.keep_mine
        named = self._wish.paths is not None and path in self._wish.paths
        mine, calls = self._changed_by(change)
        if keep is False or named or not mine:
            self.steps[path] = PlaceStep(path, before, after)
        elif keep is None:
            self.conflicts.add(path)
        elif not calls:
            self.kept.add(path)
        else:
            self._sort_both(change)

    def _may_have_been_there(self, before: FileEntry | None) -> bool:
        """True for a file that another ignore rule may have left out of the target: it is older than that."""
        if not self._other_rules or before is None or before.kind != "file":
            return False
        return 0 < before.mtime_ns < self._wish.taken_ns

    def _changed_by(self, change: FileChange) -> tuple[bool, bool]:
        """Whether others and whether calls changed a path since the target."""
        authors = self._disk.authors_since(change.path, self._wish.since)
        if not authors:  # a folder comes and goes with what is in it; a file of which nothing is known is a person's
            return not _is_folder(change), False
        if change.before is None and authors[-1] == MISSING:
            return False, False
        return OUTSIDE in authors, any(author not in (OUTSIDE, MISSING) for author in authors)

    def _sort_both(self, change: FileChange) -> None:
        path, before, after = change.path, change.before, change.after
        contents = None
        if before is not None and after is not None and before.kind == after.kind == "file":
            contents = self._merge(change)
        if contents is not None and after is not None:
            self.merged.add(path)
            new = msgspec.structs.replace(after, size=len(contents), digest=sha256(contents).digest(), place=None)
            self.steps[path] = PlaceStep(path, before, new, contents)
        elif self._wish.keep_mine == "always":
            self.kept.add(path)
        else:
            self.conflicts.add(path)

    # what follows from what is put, and from what is kept

    def make_ways(self, changes: Iterable[FileChange]) -> None:
        """A path that is put back by its own name needs the folders that lead to it, where they are gone."""
        needed = {above for step in self.steps.values() if step.after is not None for above in _above(step.path)}
        for change in changes:
            if change.path in needed and change.before is None and _is_folder(change):
                self.steps.setdefault(change.path, PlaceStep(change.path, None, change.after))

    def keep_ways(self) -> None:
        """A path that stays needs the folders that lead to it, and leaves no room for a path below it."""
        staying = self.kept | self.conflicts | self.without
        needed = {above for path in staying if self._is_there(path) for above in _above(path)}
        for path in needed & self.steps.keys():
            after = self.steps[path].after
            if after is None or after.kind != "folder":
                del self.steps[path]
                if after is not None:
                    self.kept.add(path)
        files = {path for path in staying if self._is_there(path) and self._disk[path].kind != "folder"}
        for path in list(self.steps):
            if files.intersection(_above(path)):
                del self.steps[path]
                self.kept.add(path)

    def _is_there(self, path: bytes) -> bool:
        return path in self._disk

    def conflict_folded(self, target: Listing) -> None:
        """Names that would be one file on this file system: neither is put back."""
        if not self._wish.folds:
            return
        names: dict[str, bytes] = {}
        for entry in target:
            folded = fold(entry.path)
            other = names.setdefault(folded, entry.path)
            if other != entry.path:
                for path in (other, entry.path):
                    self.conflicts.add(path)
                    self.steps.pop(path, None)


def _is_rules(path: bytes) -> bool:
    return path.rpartition(b"/")[2] in _IGNORE_FILES


def fold(path: bytes) -> str:
    """A path as a file system sees it that knows neither case nor composition."""
    return unicodedata.normalize("NFC", path.decode("utf-8", "surrogateescape")).casefold()


def _is_folder(change: FileChange) -> bool:
    return all(entry is None or entry.kind == "folder" for entry in (change.before, change.after))


def _above(path: bytes) -> Iterable[bytes]:
    while path:
        path = parent_of(path)
        if path:
            yield path
