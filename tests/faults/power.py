"""Power loss: every state in which the disk may be found, worked out from a recorded trace.

What was synced is there. Of what was not, any part may be: each write, truncation, creation, renaming and deletion
may have happened or not, and a write may have reached the disk in part, sector by sector. A sync covers its own file;
names are the folder's, and are sure once the folder was synced. After a sync that failed, what it should have kept is
never sure again, however often it is synced later, unless it is written anew.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from tests.faults.switch import SECTOR_BYTES, Call

# What becomes of one storage call that was not sure: it happened, it did not, or only these sectors of it did.
Fate = bool | frozenset[int]
Files = dict[str, bytes]

_SURE, _PENDING, _DOOMED = range(3)


class _Inode:
    """The contents of one file: what is sure, and what came after in the order it came."""

    __slots__ = ("base", "is_folder", "log")

    def __init__(self, *, is_folder: bool) -> None:
        self.base = bytearray()
        self.is_folder = is_folder
        self.log: list[tuple[int, Call]] = []

    def sync(self, *, failed: bool) -> None:
        self.log = [(_rank(status, failed=failed), call) for status, call in self.log]
        while self.log and self.log[0][0] == _SURE:
            _apply(self.base, self.log.pop(0)[1], fate=True)


def _rank(status: int, *, failed: bool) -> int:
    return status if status != _PENDING else _DOOMED if failed else _SURE


def _apply(content: bytearray, call: Call, *, fate: Fate) -> None:
    if fate is False:
        return
    if call.verb == "truncate":
        del content[call.offset :]
        content.extend(bytes(call.offset - len(content)))
        return
    end = call.offset + len(call.data)
    if fate is True:
        content.extend(bytes(max(0, end - len(content))))
        content[call.offset : end] = call.data
        return
    for sector in sorted(fate):
        start = max(call.offset, sector * SECTOR_BYTES)
        stop = min(end, (sector + 1) * SECTOR_BYTES)
        content.extend(bytes(max(0, stop - len(content))))
        content[start:stop] = call.data[start - call.offset : stop - call.offset]


class Crash:
    """One state after a power cut: the files as they are found, and what had been acknowledged before."""

    __slots__ = ("files", "folders", "how", "marks", "number")

    def __init__(self, number: int, marks: int, files: Files, folders: set[str], how: str) -> None:
        self.number, self.marks, self.files, self.folders, self.how = number, marks, files, folders, how

    def put(self, place: Path) -> None:
        """Make a folder look like this."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for folder in sorted(self.folders):
            (place / folder).mkdir()
        for name, data in self.files.items():
            (place / name).write_bytes(data)

    def __hash__(self) -> int:
        return hash((self.marks, tuple(sorted(self.folders)), tuple(sorted(self.files.items()))))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Crash) and (self.marks, self.folders, self.files) == (
            other.marks,
            other.folders,
            other.files,
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(data)}" for name, data in sorted(self.files.items()))
        return f"<power cut after call {self.number}, {self.marks} acknowledged, {self.how}: {sizes}>"


class Moment:
    """The disk between two storage calls, with everything that is still uncertain. Ends when the next begins."""

    def __init__(
        self, number: int, marks: int, names: Mapping[str, int], inodes: Mapping[int, _Inode], unsure: Sequence[_Change]
    ) -> None:
        self.number, self.marks = number, marks
        self._names, self._inodes, self._unsure = names, inodes, unsure
        self.open_calls = [
            (inode, at)
            for inode, found in inodes.items()
            for at, (status, _) in enumerate(found.log)
            if status != _SURE
        ]

    def crash(self, fate: Callable[[int, Call], Fate], *, names: Collection[int] | None = None, how: str) -> Crash:
        """The files if each uncertain call has this fate, and these of the uncertain changes of names happened."""
        found = dict(self._names)
        for number, change in enumerate(self._unsure):
            if names is None or number in names:
                _enter(found, change)
        order = {place: number for number, place in enumerate(self.open_calls)}
        files: Files = {}
        for name, inode in found.items():
            if self._inodes[inode].is_folder or not _reachable(name, found):
                continue
            content = bytearray(self._inodes[inode].base)
            for at, (status, call) in enumerate(self._inodes[inode].log):
                _apply(content, call, fate=True if status == _SURE else fate(order[inode, at], call))
            files[name] = bytes(content)
        folders = {name for name, inode in found.items() if self._inodes[inode].is_folder and _reachable(name, found)}
        return Crash(self.number, self.marks, files, folders, how)

    @property
    def size(self) -> int:
        """How many systematic states there are."""
        return 2 + len(self.open_calls) + len(self._unsure)

    def systematic(self) -> Iterator[Crash]:
        """Nothing uncertain, everything, and everything but one."""
        yield self.crash(lambda *_: False, names=(), how="nothing that was not synced")
        yield self.crash(lambda *_: True, how="everything")
        for missing in range(len(self.open_calls)):
            yield self.crash(_all_but(missing), how=f"all but uncertain call {missing}")
        for names in range(len(self._unsure)):
            yield self.crash(lambda *_: True, names=range(names), how=f"{names} changes of names")

    def chance(self, chosen: random.Random) -> Crash:
        """Any subset, some of it torn."""
        share, tears = chosen.choice((0.2, 0.5, 0.8, 0.95)), chosen.choice((0.0, 0.1, 0.5))

        def fate(_: int, call: Call) -> Fate:
            if call.verb == "write" and chosen.random() < tears:
                sectors = range(call.offset // SECTOR_BYTES, (call.offset + len(call.data) - 1) // SECTOR_BYTES + 1)
                return frozenset(sector for sector in sectors if chosen.random() < 0.5)
            return chosen.random() < share

        return self.crash(fate, names=self._some_names(chosen), how=f"by chance, {share:.0%} kept, {tears:.0%} torn")

    def _some_names(self, chosen: random.Random) -> set[int]:
        # What happened to one name happened in its order; between names there is none.
        kept: set[int] = set()
        stuck: set[str] = set()
        for number, change in enumerate(self._unsure):
            touched = {name for name, _ in change}
            if touched & stuck or chosen.random() < 0.3:
                stuck |= touched
            else:
                kept.add(number)
        return kept


def _all_but(missing: int) -> Callable[[int, Call], Fate]:
    return lambda number, _: number != missing


_Change = tuple[tuple[str, int | None], ...]  # names, and the inodes they lead to from then on, all in one step


def _enter(names: dict[str, int], change: _Change) -> None:
    for name, inode in change:
        names.pop(name, None)
        if inode is not None:
            names[name] = inode


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0] or "."


def _reachable(name: str, names: Mapping[str, int]) -> bool:
    above = _folder_of(name)
    return above == "." or (above in names and _reachable(above, names))


class Timeline:
    """A recorded trace, played call by call."""

    def __init__(self, trace: Sequence[Call]) -> None:
        self.trace = trace

    def __iter__(self) -> Iterator[Moment]:
        self._names: dict[str, int] = {}  # what is sure
        self._seen: dict[str, int] = {}  # what a process sees
        self._unsure: list[_Change] = []
        self._inodes: dict[int, _Inode] = {}
        marks = 0
        for number, call in enumerate(self.trace):
            if call.verb == "mark":
                marks = call.offset
            else:
                self._play(call)
            yield Moment(number, marks, self._names, self._inodes, tuple(self._unsure))

    def _play(self, call: Call) -> None:
        if call.verb == "sync_folder":
            # The change is sure when the folder is that in which the name came or went.
            sure = [change for change in self._unsure if _folder_of(change[0][0]) == call.file]
            self._unsure = [change for change in self._unsure if change not in sure]
            for change in sure:
                _enter(self._names, change)
            return
        if call.verb == "delete":
            self._change((call.file, None))
            return
        if call.verb == "rename":
            self._change((call.data.decode(), self._seen[call.file]), (call.file, None))
            return
        if call.file not in self._seen:
            self._inodes[len(self._inodes)] = _Inode(is_folder=call.verb == "make_folder")
            self._change((call.file, len(self._inodes) - 1))
        inode = self._inodes[self._seen[call.file]]
        if call.verb in ("write", "truncate"):
            inode.log.append((_PENDING, call))
        elif call.verb in ("sync", "failed_sync"):
            inode.sync(failed=call.verb == "failed_sync")

    def _change(self, *change: tuple[str, int | None]) -> None:
        self._unsure.append(change)
        _enter(self._seen, change)
