"""The switch beneath Python's own file calls, for what a backend does past SQLite or without it.

Stands in for the calls of `os` that change a disk, as long as they are about one folder; all others pass untouched.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.faults.switch import Call, Faults, Verb

_CALLS = (
    "open",
    "write",
    "pwrite",
    "ftruncate",
    "fsync",
    "fdatasync",
    "replace",
    "rename",
    "unlink",
    "remove",
    "mkdir",
)


class Posix:
    """While it is entered, every change this process makes in the folder by `os` meets the switch."""

    def __init__(self, faults: Faults, folder: Path) -> None:
        self._faults = faults
        self._folder = os.path.realpath(folder)
        self._real: dict[str, Any] = {}
        self._ends: dict[str, int] = {}  # how far each file is known to be written

    def __enter__(self) -> Self:
        self._real = {name: getattr(os, name) for name in _CALLS}
        for name in _CALLS:
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    # paths and descriptors

    def _name(self, path: Any) -> str | None:
        """The path inside the folder, or None if it is elsewhere. The folder itself is `.`."""
        if not isinstance(path, str | os.PathLike):
            return None
        text = os.path.realpath(path)
        if text != self._folder and not text.startswith(self._folder + os.sep):
            return None
        return os.path.relpath(text, self._folder)

    def _name_of(self, descriptor: Any) -> str | None:
        if not isinstance(descriptor, int):
            return self._name(descriptor)
        try:
            found = Path(f"/proc/self/fd/{descriptor}").readlink()
        except OSError:
            return None
        return None if found.name.endswith(" (deleted)") else self._name(found)

    def _meet(self, verb: Verb, name: str, do: Callable[[bytes], Any], *, offset: int = 0, data: bytes = b"") -> Any:
        if verb == "write":
            self._ends[name] = max(self._ends.get(name, 0), offset + len(data))
        elif verb in ("create", "truncate"):
            self._ends[name] = offset
        result: list[Any] = []
        self._faults.meet(Call(verb, name, offset, data), lambda kept: result.append(do(kept)))
        return result[0] if result else None

    def _notice(self, name: str) -> None:
        """Meet what a buffered file has written by itself since it was last looked at."""
        end = self._ends.get(name)
        path = Path(self._folder, name)
        if end is not None and path.stat().st_size > end:
            with path.open("rb") as file:
                file.seek(end)
                self._meet("write", name, lambda _: None, offset=end, data=file.read())

    # the calls

    def _mkdir(self, path: Any, *arguments: Any, **named: Any) -> None:
        name = self._name(path)
        real = self._real["mkdir"]
        if name is None or os.path.lexists(path):
            real(path, *arguments, **named)
        else:
            self._meet("make_folder", name, lambda _: real(path, *arguments, **named))

    def _open(self, path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        real = self._real["open"]
        name = self._name(path) if not named and flags & os.O_CREAT else None
        if name is None or os.path.lexists(path):
            return int(real(path, flags, *arguments, **named))
        return int(self._meet("create", name, lambda _: real(path, flags, *arguments)))

    def _write(self, descriptor: int, data: Any) -> int:
        name = self._name_of(descriptor)
        if name is None:
            return int(self._real["write"](descriptor, data))
        at = self._end(descriptor)
        written = self._meet(
            "write", name, lambda kept: self._real["write"](descriptor, kept), offset=at, data=bytes(data)
        )
        return int(written)

    def _end(self, descriptor: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
            return os.fstat(descriptor).st_size
        return os.lseek(descriptor, 0, os.SEEK_CUR)

    def _pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        name = self._name_of(descriptor)
        real = self._real["pwrite"]
        if name is None:
            return int(real(descriptor, data, offset))
        return int(
            self._meet("write", name, lambda kept: real(descriptor, kept, offset), offset=offset, data=bytes(data))
        )

    def _ftruncate(self, descriptor: int, length: int) -> None:
        name = self._name_of(descriptor)
        real = self._real["ftruncate"]
        if name is None:
            real(descriptor, length)
        else:
            self._meet("truncate", name, lambda _: real(descriptor, length), offset=length)

    def _fsync(self, descriptor: Any) -> None:
        self._sync("fsync", descriptor)

    def _fdatasync(self, descriptor: Any) -> None:
        self._sync("fdatasync", descriptor)

    def _sync(self, which: str, descriptor: Any) -> None:
        name = self._name_of(descriptor)
        real = self._real[which]
        if name is None:
            real(descriptor)
            return
        folder = Path(self._folder, name).is_dir()
        if not folder:
            self._notice(name)
        self._meet("sync_folder" if folder else "sync", name, lambda _: real(descriptor))

    def _replace(self, source: Any, target: Any, **named: Any) -> None:
        self._move("replace", source, target, named)

    def _rename(self, source: Any, target: Any, **named: Any) -> None:
        self._move("rename", source, target, named)

    def _move(self, which: str, source: Any, target: Any, named: dict[str, Any]) -> None:
        name, new = self._name(source), self._name(target)
        real = self._real[which]
        if name is None or new is None:
            real(source, target, **named)
        else:
            self._notice(name)
            self._ends[new] = self._ends.pop(name, 0)
            self._meet("rename", name, lambda _: real(source, target, **named), data=new.encode())

    def _unlink(self, path: Any, **named: Any) -> None:
        self._drop("unlink", path, named)

    def _remove(self, path: Any, **named: Any) -> None:
        self._drop("remove", path, named)

    def _drop(self, which: str, path: Any, named: dict[str, Any]) -> None:
        name = self._name(path)
        real = self._real[which]
        # What is not there is not deleted, and costs the disk nothing.
        if name is None or named or not os.path.lexists(path):
            real(path, **named)
        else:
            self._meet("delete", name, lambda _: real(path))
