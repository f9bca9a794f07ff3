"""Which file system a folder is on, and whether that is a network one; and files opened without being led astray.

SQLite's WAL needs shared memory and locks that network file systems do not give truly. Where the answer cannot be
had (a platform without a table of mounts), nothing is refused.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

from backstay.errors import FormatError, UnsupportedError

_NETWORK = re.compile(
    "9p|afpfs|afs|beegfs|ceph|cifs|coda|davfs|fuse[.](ceph|glusterfs|rclone|s3fs|sshfs)|gfs2?|gluster|glusterfs|"
    "lustre|ncpfs|nfs4?|ocfs2|orangefs|smb[23]|smbfs|webdav"
)
_POINT = 4  # which field of a line of mountinfo is the mount point
# Never a link, never waiting for the other end of a pipe, and no change of line ends on Windows.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_plain(path: str, flags: int) -> int:
    """A descriptor of a regular file. OSError where there is none, or something else by that name."""
    descriptor = os.open(path, flags | _CAREFUL, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path} is not a regular file")


def refuse_odd_neighbours(path: Path, endings: tuple[str, ...]) -> None:
    """FormatError if a name that SQLite uses beside a store is that of a link, a pipe or a folder."""
    for ending in endings:
        beside = path.with_name(path.name + ending)
        try:
            is_plain = stat.S_ISREG(beside.lstat().st_mode)
        except FileNotFoundError:  # they come and go with the other processes that have the store open
            continue
        if not is_plain:
            raise FormatError(f"{beside} is not a regular file", hint="move it away: SQLite keeps a file by that name")


def refuse_network(path: Path) -> None:
    """UnsupportedError for a store on a file system that other machines serve."""
    if is_network(kind := filesystem_of(path.parent)):
        message = f"{path}: SQLite is not safe on a network file system ({kind})"
        raise UnsupportedError(message, hint="keep the store on a local disk, or use PostgreSQL")


def is_network(kind: str | None) -> bool:
    """True for file systems that other machines serve."""
    return kind is not None and _NETWORK.fullmatch(kind) is not None


def filesystem_of(folder: Path) -> str | None:
    """The type of the file system that holds a folder; None if unknown."""
    place = str(folder.resolve())
    if sys.platform == "darwin":
        import subprocess  # noqa: PLC0415 - nobody else waits for it

        table = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False).stdout
        return _longest(_parse_mount(table), place)
    try:
        table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return _longest(_parse_mountinfo(table), place)


def _parse_mountinfo(table: str) -> list[tuple[str, str]]:
    """(mount point, type) of each line, later mounts last."""
    found = []
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) > _POINT and right:
            point = fields[_POINT]
            for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                point = point.replace(code, char)
            found.append((point, right.split(" ")[0]))
    return found


def _parse_mount(table: str) -> list[tuple[str, str]]:
    """The same from macOS's `device on /point (type, options)`."""
    found = []
    for line in table.splitlines():
        _, _, rest = line.partition(" on ")
        point, _, options = rest.rpartition(" (")
        if point:
            found.append((point, options.rstrip(")").split(",")[0]))
    return found


def _longest(mounts: list[tuple[str, str]], place: str) -> str | None:
    kind: str | None = None
    length = -1
    for point, found in mounts:
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= length:
            kind, length = found, len(point)
    return kind
