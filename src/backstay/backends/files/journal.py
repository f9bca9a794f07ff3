"""One session's journal: the file, what is known of it, and the two ways it changes, appending and writing anew.

A file grows in steps: when a line does not fit, room for more is made behind it with spaces, because a disk syncs
bytes that replace others twice as fast as bytes that make a file longer. `jq` passes over them; the room is given back
when the store is closed. A failed write or sync is taken back by cutting the file off where it last was whole.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

from backstay.backend import FORMAT_VERSION, Row
from backstay.backends.files.disk import Disk
from backstay.backends.files.index import Entry, Index
from backstay.backends.files.leases import Witness
from backstay.backends.files.ledger import Span
from backstay.backends.files.lines import (
    FIRST_BYTES,
    TAIL_BYTES,
    Line,
    first_line,
    open_first,
    open_line,
    salvage,
    to_record,
    to_row,
)
from backstay.delta import Record
from backstay.errors import CorruptionError

_MAX_ROOM_BYTES = 128 * 1024
_MIN_ROOM_BYTES = 4 * 1024
_TAIL_READ_BYTES = 64 * 1024


class Journal:
    """An open journal. Not thread-safe: whoever uses it holds the backend's lock."""

    def __init__(self, disk: Disk, path: Path, file: int) -> None:
        self.path = path
        self.index = Index()
        self.held = False  # by a thread of this process that writes: what lies behind the end is not for reading yet
        self.writing = False  # something was begun and not brought to its end
        self.cut_at: int | None = None  # where a failed write began that could not be taken back
        self.settled = False  # its name in the folder is known to be on the disk
        self.room_made = False
        self.first_damaged = False
        self._disk = disk
        self._file = file
        self._identity = self._stat_identity()
        self._limited = False  # what lies behind the end is what a failed write left
        self._name = str(path)
        self._size = 0
        self._generation = -1
        self._tail = b""

    def _stat_identity(self) -> tuple[int, int]:
        found = self._disk.stat(self._file)
        return found.st_dev, found.st_ino

    @classmethod
    def open(
        cls, disk: Disk, path: Path, *, limit: int | None = None, witnesses: Sequence[Witness] = ()
    ) -> Journal | None:
        """The journal at a path, read from its beginning; None if there is none.

        `limit` is where it was last whole, if a write of ours failed and could not be taken back.
        """
        try:
            file = disk.open(path)
        except FileNotFoundError:
            return None
        journal = cls(disk, path, file)
        try:
            journal._read(limit, witnesses)
        except BaseException:
            journal.close()
            raise
        return journal

    def _read(self, limit: int | None, witnesses: Sequence[Witness]) -> None:
        size = self._size = self._disk.stat(self._file).st_size
        self._limited = limit is not None
        data = self._disk.read(self._file, size if limit is None else min(size, limit), 0)
        begin = data.find(b"\n", 0, FIRST_BYTES) + 1
        first = open_first(data[:begin])
        self.first_damaged = first is None
        if first is not None and first.format > FORMAT_VERSION:
            message = f"{self.path.name} is of format {first.format}; this version knows {FORMAT_VERSION}"
            raise CorruptionError(message, hint="upgrade: pip install -U backstay")
        if first is None:
            begin = len(first_line(0, FORMAT_VERSION))
        self.index.end, surely = begin, 0 if first is None else int(first.lines)
        self.index.feed(data[begin:], surely=surely)
        mine = self.index.born, self.index.epoch
        seen = max([lines for born, epoch, lines in witnesses if (born, epoch) == mine], default=0)
        if seen > self.index.lines:
            # What looks like a write that never ended was there: it is damage.
            self.index = Index(end=begin)
            self.index.feed(data[begin:], surely=max(surely, seen))
        self._remember_tail()

    def refresh(self, generation: int = -1) -> bool:
        """Take in what others have appended; False if the file is not the one it was and must be opened anew.

        In a `generation` in which the file was looked at already, nobody has put another in its place.
        """
        if self.held:
            return True
        if generation < 0 or generation != self._generation:
            try:
                found = self._disk.stat(self._name)
            except FileNotFoundError:
                return False
            if (found.st_dev, found.st_ino) != self._identity:
                return False
            self._size, self._generation = found.st_size, generation
        index = self.index
        seen = self._disk.read(self._file, TAIL_BYTES + 1, index.end - TAIL_BYTES)
        if seen[:TAIL_BYTES] != self._tail or index.torn:
            return False
        if not self._limited and seen[TAIL_BYTES:].strip(b" \0"):
            size = max(self._disk.stat(self._file).st_size - index.end, _TAIL_READ_BYTES)
            known = len(index.damage)
            index.feed(self._disk.read(self._file, size, index.end))
            self._remember_tail()
            return len(index.damage) == known
        return True

    def _remember_tail(self) -> None:
        at = self.index.end - TAIL_BYTES
        self._tail = self._disk.read(self._file, TAIL_BYTES, max(at, 0))

    def cut(self, size: int) -> None:
        """Take back what a failed write left; under the store's lock."""
        self._disk.truncate(self._file, size)
        self._limited, self._size = False, size

    def close(self) -> None:
        """Let the file go."""
        file, self._file = self._file, -1
        if file >= 0:
            self._disk.close(file)

    # reading

    def line(self, span: Span) -> bytes:
        """The bytes of a line, its newline put right."""
        return self._disk.read(self._file, max(span.size - 1, 0), span.at) + b"\n"

    def _open(self, span: Span, entry: Entry, what: str) -> Line:
        line = open_line(self.line(span)) if span.size else None
        if line is None or line.what != what or line.about is None or line.about.id != entry.about.id:
            part = "line" if what == "checkpoint" else what
            message = f"session {self.index.id!r}: the {part} of checkpoint {entry.about.id[:12]} is damaged"
            raise CorruptionError(message, hint="session.newest_intact() finds the newest one that is whole")
        return line

    def row(self, entry: Entry) -> Row:
        """A checkpoint's own line, verified; what it is linked to must be there too."""
        link = entry.about.link
        if link is not None and link not in self.index.entries:
            message = f"session {self.index.id!r}: checkpoint {link[:12]} is lost; {entry.about.id[:12]} was made on it"
            raise CorruptionError(message, hint="run verify to see what is intact")
        return to_row(self._open(entry.own, entry, "checkpoint"), link)

    def places(self, entry: Entry) -> Mapping[str, bytes]:
        """Where in its state a checkpoint keeps results of the calls it took in, by call; verified."""
        return self._open(entry.own, entry, "checkpoint").places

    def record(self, entry: Entry, what: str) -> Record:
        """A checkpoint's delta or whole copy, verified."""
        span = entry.delta if what == "delta" else entry.whole
        if span is None:
            message = f"session {self.index.id!r}: checkpoint {entry.about.id[:12]} has no {what}"
            raise CorruptionError(message, hint="run verify to see what is intact")
        return to_record(self._open(span, entry, what))

    def salvaged(self, entry: Entry, what: str) -> Record | None:
        """The shape of a delta or whole copy whose line is damaged, if that much is left."""
        span = entry.delta if what == "delta" else entry.whole
        return None if span is None or not span.size else salvage(self.line(span))

    # writing

    def append(self, lines: Sequence[bytes], *, sync: bool) -> list[Span]:
        """Write some lines at the end, on the disk when this returns. OSError if not, and then nothing was written.

        The index does not know them yet: `known` tells it, or `feed`.
        """
        index = self.index
        data, at = b"".join(lines), index.end
        torn = index.torn
        if torn:
            self._disk.truncate(self._file, at)
            index.torn = False
        size = at if torn else self._size
        text = data if not index.mend else b"\n" + data
        start = at - index.mend
        self.writing = True
        try:
            if at + len(data) <= size:
                self._disk.write(self._file, text, start)
            else:
                self._grow(text, start)
            if sync:
                self._disk.sync(self._file)
        except BaseException:
            # Whether the bytes reached the disk is unknown, and asking again would not tell: they are taken back.
            self.cut_at = start
            self._disk.truncate(self._file, start)
            self.cut_at = None
            raise
        spans = []
        for line in lines:
            spans.append(Span(at, len(line)))
            at += len(line)
        return spans

    def _grow(self, text: bytes, start: int) -> None:
        """Write beyond what the file has, with room for the next lines if this one is not the first to be added."""
        room = min(max(start // 2, _MIN_ROOM_BYTES), _MAX_ROOM_BYTES)
        try:
            self._disk.write(self._file, text + b" " * room, start)
            self._size = start + len(text) + room
            self.room_made = True
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._disk.truncate(self._file, start)
            self._disk.write(self._file, text, start)

    def known(self, lines: Sequence[bytes], end: int) -> None:
        """These lines are in the index now."""
        self.index.end, self.index.mend, self.writing = end, False, False
        self._tail = lines[-1][-TAIL_BYTES:]

    def feed(self, lines: Sequence[bytes]) -> None:
        """Let the index take in lines that were just appended."""
        self.writing = False
        self.index.feed(b"".join(lines))
        self._tail = lines[-1][-TAIL_BYTES:]

    def restore_first(self, *, sync: bool) -> None:
        """Write the first line anew; under the store's lock."""
        self._disk.write(self._file, first_line(self.index.lines, FORMAT_VERSION), 0)
        if sync:
            self._disk.sync(self._file)

    def tidy(self, *, sync: bool) -> None:
        """Give back the room behind the end and note how many lines there are; under the store's lock."""
        index = self.index
        if index.torn or index.mend or index.damage or self.first_damaged:
            return  # what is damaged stays as it is until somebody has looked at it
        with contextlib.suppress(OSError):
            self._disk.write(self._file, first_line(index.lines, FORMAT_VERSION), 0)
            if self._disk.stat(self._file).st_size > index.end:
                self._disk.truncate(self._file, index.end)
            if sync:
                self._disk.sync(self._file)
