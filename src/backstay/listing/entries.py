"""One path of a captured folder, as a list of files has it.

A path is bytes, as the file system gives it, relative to the root, with `/` between its parts; the root itself is the
empty path. Nothing is normalised. Modes are those of `stat`: the kind and the permission bits in one number.
"""

from __future__ import annotations

import stat
from typing import Literal

import msgspec

FileKind = Literal["file", "link", "folder"]

# Marks of an entry whose contents are not, or not exactly, those of the file.
KEPT = ""  # the contents are in the store
SECRET = "secret"  # only size, mode and a keyed digest are known  # noqa: S105 - no password
PRIVATE = "private"  # a secret whose contents are in the store, because that was asked for
FORGOTTEN = "forgotten"  # the contents were kept once: no list has this, the store says it of its groups
OLDER = "older"  # the file has outgrown the limit since: these are its last contents below it

_KINDS: dict[int, FileKind] = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}
PERMISSIONS = 0o777  # bits that a restore sets; setuid, setgid and sticky are recorded and never set


OWN = b".backstay"  # Backstay's own folder in a workspace
# A path with one of these in it is git's own or ours; on file systems that do not tell cases apart, too.
_RESERVED = frozenset({b".git", OWN})


class ContentPlace(msgspec.Struct, frozen=True, gc=False):
    """Where the contents of a file lie: in a numbered group, from an offset on.

    `pieces` is not 0 for a file that is cut into so many groups of its own, numbered from `group` on.
    """

    group: int
    offset: int = 0
    pieces: int = 0


class FileEntry(msgspec.Struct, frozen=True, gc=False):
    """A file, a symbolic link or a folder as it was captured.

    `digest` is the sha256 of a file's contents; where `mark` is SECRET it is keyed, and tells only whether the file is
    the same. `target` is where a link leads. `mtime_ns` is of when the contents were captured, and no part of what
    makes two entries the same.
    """

    path: bytes
    mode: int
    size: int = 0
    digest: bytes = b""
    target: bytes = b""
    mtime_ns: int = 0
    place: ContentPlace | None = None
    mark: str = KEPT

    @property
    def kind(self) -> FileKind:
        """What it is. Nothing else is ever captured."""
        return _KINDS[stat.S_IFMT(self.mode)]

    @property
    def permissions(self) -> int:
        """The bits that a restore sets."""
        return self.mode & PERMISSIONS

    @property
    def has_contents(self) -> bool:
        """True if a restore can put it back: a link, a folder, or a file whose contents are kept."""
        return self.place is not None or not stat.S_ISREG(self.mode)

    def same_contents(self, other: FileEntry) -> bool:
        """True if both are of one kind and hold the same, whatever their permissions."""
        return (
            self.digest == other.digest
            and self.target == other.target
            and stat.S_IFMT(self.mode) == stat.S_IFMT(other.mode)
            and (self.mark == SECRET) == (other.mark == SECRET)
        )

    def same(self, other: FileEntry) -> bool:
        """True if a restore from one to the other has nothing to do."""
        return self.permissions == other.permissions and self.same_contents(other)


def shown(path: bytes) -> str:
    """A path as text: UTF-8 as it is, other bytes spelled out. For people; several paths may look the same."""
    return path.decode("utf-8", "backslashreplace")


def parent_of(path: bytes) -> bytes:
    """The folder that a path is in; the root is its own."""
    return path.rpartition(b"/")[0]


def unsafe(path: bytes, *, git: bool = False) -> str | None:
    """Why nothing may ever be put at a path, whatever list names it; None if it may. With `git`, git's own may.

    A list may come from an import. One that names `.git/hooks/post-commit` or `../x` would run or reach things that no
    checkpoint may.
    """
    parts = path.split(b"/")
    if b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        return "it is no path beneath the folder"
    own = {part.lower().rstrip(b" .") for part in parts} & _RESERVED
    if own and not (git and own == {b".git"}):
        return "it belongs to git or to Backstay"
    return None
