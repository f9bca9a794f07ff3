"""Which file system a folder is on, and whether that is a network one.

SQLite's WAL needs shared memory and locks that network file systems do not give truly. Where the answer cannot be
had (a platform without a table of mounts), nothing is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

_NETWORK = frozenset(
    [
        "9p",
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs",
        "gfs2",
        "gluster",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "smb2",
        "smb3",
        "smbfs",
        "webdav",
    ]
)


_POINT = 4  # which field of a line of mountinfo is the mount point


def is_network(kind: str | None) -> bool:
    """True for file systems that other machines serve."""
    return kind in _NETWORK


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
