"""The switch beneath SQLite: a VFS over the ordinary one, for the database, its log and its journal.

The checksum VFS of a store sits on whatever was the default when it was first loaded, so `mount` comes before the
first store that this process opens. Reads pass; shared memory is memory.
"""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw

from tests.faults.switch import Call, Faults, Verb

_CODES: dict[str, int] = {
    "write": apsw.SQLITE_IOERR_WRITE,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "delete": apsw.SQLITE_IOERR_DELETE,
}
_KEPT = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
_LOGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL


def mount(faults: Faults, *, name: str = "backstay-faults") -> FaultVFS:
    """Make every database opened from now on meet the switch. To be entered, and left when they are closed."""
    return FaultVFS(faults, name)


class FaultVFS(apsw.VFS):
    """A VFS whose files meet the switch."""

    def __init__(self, faults: Faults, name: str) -> None:
        self.faults = faults
        self.below = str(apsw.vfs_details()[0]["zName"])
        super().__init__(name, self.below, makedefault=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        apsw.set_default_vfs(self.below)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's
        if name is None or not flags[0] & _KEPT:
            return apsw.VFSFile(self.below, name, flags)
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - SQLite's
        met(self.faults, Call("delete", Path(filename).name), lambda _: super(FaultVFS, self).xDelete(filename, False))
        if syncdir:
            met(self.faults, Call("sync_folder", "."), lambda _: None)


class _File(apsw.VFSFile):
    def __init__(self, vfs: FaultVFS, name: str | apsw.URIFilename, flags: list[int]) -> None:
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
        # SQLite syncs the folder together with the first sync of a log or journal that it has made.
        self._new = not path.exists() and bool(flags[0] & _LOGS)
        self._name = path.name
        self._faults = vfs.faults
        if not path.exists() and self._faults.record:
            self._faults.trace.append(Call("create", self._name))
        super().__init__(vfs.below, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - bytes or a Buffer, as the version has it
        write = super().xWrite
        self._meet("write", offset, bytes(data), lambda kept: write(kept, offset))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        truncate = super().xTruncate
        self._meet("truncate", newsize, b"", lambda _: truncate(newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        sync = super().xSync
        self._meet("sync", 0, b"", lambda _: sync(flags))
        if self._new:
            self._new = False
            met(self._faults, Call("sync_folder", "."), lambda _: None)

    def _meet(self, verb: Verb, offset: int, data: bytes, do: Any) -> None:
        met(self._faults, Call(verb, self._name, offset, data), do)


def met(faults: Faults, call: Call, do: Any) -> None:
    """A call at the switch; its refusal in SQLite's own words."""
    try:
        faults.meet(call, do)
    except OSError as refused:
        if refused.errno == errno.ENOSPC:
            raise apsw.FullError(str(refused)) from None
        error: Any = apsw.IOError(str(refused))
        error.extendedresult = _CODES.get(call.verb, apsw.SQLITE_IOERR)
        raise error from None
