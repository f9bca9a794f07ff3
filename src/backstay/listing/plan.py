"""A restore of files as pure data: each path with what is there before and what is to be there after.

The steps are in the order in which they are done: removals first, deepest first; then folders before what is in them;
then files and links. A step is done only where the disk still holds `before`.
"""

from __future__ import annotations

import msgspec

from backstay.listing.entries import FileEntry

GitHead = tuple[str, str]  # a commit and its branch; either may be empty


class PlaceStep(msgspec.Struct, frozen=True, gc=False):
    """One path. `before` None: nothing is there; `after` None: nothing is to be there.

    `contents` are given where `after` is a file that is in no list: one that was merged by lines.
    """

    path: bytes
    before: FileEntry | None
    after: FileEntry | None
    contents: bytes | None = None


class RestorePlan(msgspec.Struct, frozen=True):
    """The steps of a restore, and the paths that it leaves as they are, each with why.

    `kept`: changed by others than the session's calls, and kept for them. `merged`: changed by both, and put together
    line by line; their steps are in `steps`. `conflicts`: changed by both, and not to be put together: nothing is done
    until the caller says which. `without_contents`: the contents were never in the store (a secret, a long file).
    `never_captured`: so it is, and the file is not in the folder any more; it cannot come back.
    `forgotten`: they were, and are no longer; they cannot come back. `blocked`: paths among the steps whose folder
    cannot be written now. `git_moved`: where git was at the target and where it is now, each a commit and its branch,
    if that is not the same.
    """

    steps: tuple[PlaceStep, ...] = ()
    kept: tuple[bytes, ...] = ()
    merged: tuple[bytes, ...] = ()
    conflicts: tuple[bytes, ...] = ()
    without_contents: tuple[bytes, ...] = ()
    never_captured: tuple[bytes, ...] = ()
    forgotten: tuple[bytes, ...] = ()
    blocked: tuple[bytes, ...] = ()
    git_moved: tuple[GitHead, GitHead] | None = None

    def __bool__(self) -> bool:
        return bool(self.steps)

    @property
    def put(self) -> list[PlaceStep]:
        """Steps that write something."""
        return [step for step in self.steps if step.after is not None]

    @property
    def remove(self) -> list[PlaceStep]:
        """Steps that take something away."""
        return [step for step in self.steps if step.after is None]

    @property
    def size_bytes(self) -> int:
        """How many bytes of contents are to be written, at most."""
        return sum([step.after.size for step in self.put if step.after is not None])


def in_order(steps: list[PlaceStep]) -> tuple[PlaceStep, ...]:
    """The steps in the order in which they can be done. A path that changes its kind is removed before it is put."""
    removals = [step for step in steps if step.after is None]
    folders = [step for step in steps if step.after is not None and step.after.kind == "folder"]
    others = [step for step in steps if step.after is not None and step.after.kind != "folder"]
    removals.sort(key=lambda step: (-step.path.count(b"/"), step.path))
    folders.sort(key=lambda step: step.path)
    others.sort(key=lambda step: step.path)
    return (*removals, *folders, *others)
