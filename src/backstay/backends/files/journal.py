"""One session's journal: the file, what was read of it, and the ways it changes: appending, renaming, rewriting.

A file grows in steps: when a line does not fit, room for more is made behind it with spaces, because a disk syncs bytes
that replace others twice as fast as bytes that make a file longer. Whole lines are read without the store's lock. What
follows the last whole line was never acknowledged, unless the note beside the journal, or its first line, says that
more lines were: then they are lost.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from backstay.backends.files.disk import NONSENSE
from backstay.backends.files.folder import JOURNAL, SESSIONS, Folder
from backstay.backends.files.index import Rows
from backstay.backends.files.lines import (
    BLANKS,
    FORMAT,
    KIND_NAMES,
    TAIL_BYTES,
    Header,
    JournalLine,
    Note,
    Put,
    open_header,
    open_line,
    seal,
    sum_of,
    to_put,
)
from backstay.errors import CorruptionError
from backstay.port import Key, Kind, LaneRow, Row, SessionRow
from backstay.port.lease import Claim, here
from backstay.port.rows import key_of, kind_of

_MAX_ROOM_BYTES = 128 * 1024
_MIN_ROOM_BYTES = 4 * 1024
_PIECE_BYTES = 1024 * 1024
_LINE_BYTES = 8 * 1024
# What looks damaged may be a line that another process is writing this moment, page by page.
_LOOKS = 3
_BORN_BYTES = 8
_SECOND_LOOKS_S = (0.001, 0.01, 0.05)


class JournalFile:
    """An open journal. Not thread-safe: whoever uses it holds the backend's lock."""

    def __init__(self, folder: Folder, name: str, file: int) -> None:
        self.name = name
        self.born = b""
        self.generation = 1
        self.lines = 0
        self.end = 0
        self.begun = 0  # where the lines end with which it was written anew
        self.synced = 0  # how many lines are known to be on the disk
        self.settled = True  # False: others wrote lines behind those, and nobody knows whether they were synced
        self.epoch = 0  # of the backend, when this was last compared with the file
        self.writable = False
        self.damaged_header = False
        self.claims: dict[str, tuple[int, Claim]] = {}
        self.rows = Rows(self.line)
        self._folder, self._disk, self._path = folder, folder.disk, folder.journal(name)
        self._file = file
        self._last = ""
        self._size = self._begun_lines = 0
        self._renewals = -1  # of the store's counter, when its note was last read
        self._safe_end = 0  # where the lines end that are known to be on the disk
        self._kept_end = 0  # where they ended when this was last read or synced
        self._torn = self._mend = self._sync_name = self._failed = False
        self._recent: tuple[int, JournalLine | None] = (-1, None)

    # reading

    @classmethod
    def open(cls, folder: Folder, name: str, *, locked: bool) -> JournalFile | None:
        """The journal of this name, read from its beginning; None if there is none, or nothing was ever recorded."""
        journal = cls._open(folder, name)
        for wait_s in () if locked else _SECOND_LOOKS_S:
            if journal is None or not journal.rows.damage:
                break
            time.sleep(wait_s)
            journal.close()
            journal = cls._open(folder, name)
        return journal

    @classmethod
    def _open(cls, folder: Folder, name: str) -> JournalFile | None:
        missed = 0
        while True:
            note = folder.read_note(name)  # before the journal, which may be ahead of it but never behind
            try:
                file = folder.disk.open(folder.journal(name))
            except FileNotFoundError:
                missed += 1
                if note is not None and missed < _LOOKS:  # it may be about to be removed, its note first
                    continue
                if note is not None:
                    hint = "put it back from a copy; a repair gives it up"
                    raise CorruptionError(f"session {note.id!r}: its journal is missing", hint=hint) from None
                return None
            journal = cls(folder, name, file)
            try:
                journal._read(note)
            except NONSENSE as error:
                journal.close()
                hint = "put it back from a copy; other sessions are not touched"
                raise CorruptionError(f"{name}{JOURNAL}: a line of it means nothing", hint=hint) from error
            except BaseException:
                journal.close()
                raise
            if folder.disk.is_same(file, folder.journal(name)):
                return journal
            journal.close()  # it was replaced or renamed meanwhile: what was read is nobody's

    def _read(self, note: Note | None) -> None:
        data = self._disk.read(self._file, _LINE_BYTES, 0)
        begin = data.find(b"\n") + 1
        header = open_header(data[:begin])
        sure = 0
        if header is not None:
            self.born, self.generation, sure = bytes.fromhex(header.born), header.generation, header.lines
            self._begun_lines = sure
            self.end, self._last = begin, sum_of(data[:begin])
        elif note is not None:
            self.born, self.generation = bytes.fromhex(note.born), note.generation
        self.damaged_header = header is None
        self.synced, self._safe_end = sure, self.end
        heeded = note if note is not None and note.boot in ("", _boot()) else None
        if heeded is not None:
            sure = max(sure, self._heed(heeded))
        self._replay(sure, heeded)
        if self.damaged_header and note is None and self.lines:
            self.rows.damage.append("its first line is damaged, and who uses which blob is not known")
        if heeded is not None and (heeded.born != self.born.hex() or heeded.generation > self.generation):
            self.rows.lose("an older copy, or another journal, is in its place", self.end)
            self.rows.restore(Put(KIND_NAMES[Kind.SESSION], heeded.id, heeded.body), self.end)
            self.rows.settle(self.name)
        self.settled, self._kept_end = self.synced >= self.lines, self.end

    def _heed(self, note: Note) -> int:
        """What a note says about this very file: renewed leases, and how many lines were acknowledged."""
        if note.generation != self.generation or note.born != self.born.hex():
            return 0
        self.claims = dict(note.claims)
        if not note.boot and note.lines > self.synced:
            self.synced, self._safe_end = note.lines, note.end
        return note.lines

    def _replay(self, sure: int, note: Note | None) -> None:
        """Take in the whole lines behind the end; `sure` of all lines were acknowledged."""
        rows, moving, bad = self.rows, None, False
        pieces = self._pieces(self.end)
        for at, raw in pieces:
            line = open_line(raw)
            if line is None or line.n <= self.lines:
                bad = bad or (at > 0 and bool(raw.strip(BLANKS + b"\n")))
                continue
            if moving is not None:
                self._take(*moving)
                moving = None
            whole = not bad and line.n == self.lines + 1 and line.prev == (self._last or line.prev)
            if not whole and self.lines >= sure and self._is_torn(at):
                bad = True
                break
            if not whole:
                rows.lose(f"{self.name}{JOURNAL}: line {_span(self.lines + 1, line.n - 1)} cannot be read", self.end)
            bad = False
            if line.to not in (None, self.name):
                moving = line, at, raw
            else:
                self._take(line, at, raw)
        self._size = self._disk.stat(self._file).st_size
        behind = self._disk.read(self._file, max(self._size - self.end, 0), self.end).strip(BLANKS)
        self._torn = bool(behind)
        if sure > self.lines:
            self._lose_tail(sure, note)
        rows.settle(self.name)
        rows.account()
        rows.released.clear()

    def _lose_tail(self, sure: int, note: Note | None) -> None:
        """Lines at the end that were acknowledged are lost; what follows is written behind where they stood."""
        rows, first = self.rows, self.lines + 1
        rows.lose(f"{self.name}{JOURNAL}: line {_span(first, sure)} cannot be read", self.end)
        data = self._disk.read(self._file, max(self._size - self.end, 0), self.end).rstrip(BLANKS)
        self.end = max(self.end + len(data), 1)
        if note is not None and note.generation == self.generation and note.lines == sure:
            self.end, self._last = max(self.end, note.end), note.last
            rows.restore(Put(KIND_NAMES[Kind.SESSION], note.id, note.body), self.end)
        self.lines, self._torn = sure, False
        self._mend = self._disk.read(self._file, 1, self.end - 1) != b"\n"

    def _is_torn(self, at: int) -> bool:
        """True if all lines from this place on were written with those that are missing before it, by one write."""
        found = [line for _, raw in self._pieces(at) if (line := open_line(raw)) is not None]
        return all([line.first <= self.lines + 1 for line in found])

    def _take(self, line: JournalLine, at: int, raw: bytes) -> None:
        self.rows.take(line, at)
        self.lines, self.end, self._last = line.n, at + len(raw), sum_of(raw)
        if line.n <= self._begun_lines:
            self.begun = self.end

    def _pieces(self, at: int) -> Iterator[tuple[int, bytes]]:
        """What stands between newlines from a place on, with the newline."""
        rest = b""
        while True:
            data = self._disk.read(self._file, _PIECE_BYTES, at + len(rest))
            if not data:
                return
            *pieces, rest = (rest + data).split(b"\n")
            for piece in pieces:
                yield at, piece + b"\n"
                at += len(piece) + 1

    def refresh(self) -> bool:
        """Take in what others have appended; False if the file is not the one it was and must be opened anew."""
        note = self._folder.read_note(self.name)
        if self._mend or self.rows.damage or not self._disk.is_same(self._file, self._path):
            return False
        seen = self._disk.read(self._file, TAIL_BYTES + 1, max(self.end - TAIL_BYTES, 0))
        if sum_of(seen[:TAIL_BYTES]) != self._last:
            return False
        self._size = self._disk.stat(self._file).st_size
        sure = 0 if note is None else self._heed(note)
        if self._torn or seen[TAIL_BYTES:].strip(BLANKS) or sure > self.lines:
            self._replay(sure, note)
            if self.rows.damage or not self._disk.is_same(self._file, self._path):
                return False
        self.settled, self._kept_end = self.synced >= self.lines, self.end
        return True

    def line(self, at: int) -> JournalLine | None:
        """The line at a place, verified."""
        if self._recent[0] != at:
            self._recent = at, open_line(self._raw(at))
        return self._recent[1]

    def packed(self, at: int) -> bytes:
        """What is packed in the line at a place, verified as far as its sum goes."""
        line = open_line(self._raw(at), unpack=False)
        return b"" if line is None else line.packed

    def _raw(self, at: int) -> bytes:
        data = self._disk.read(self._file, _LINE_BYTES, at)
        while b"\n" not in data and len(more := self._disk.read(self._file, 2 * len(data), at)) > len(data):
            data = more
        return data[: data.find(b"\n") + 1]

    def forget_recent(self) -> None:
        """Let go of the line that was read last."""
        self._recent = (-1, None)

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever recorded: what is there is left from a write that was cut short."""
        return not self.lines and not self.rows.damage

    def renew(self, renewals: int) -> None:
        """Let branches have their leases as they were last renewed, by whatever process."""
        if renewals != self._renewals:
            note = self._folder.read_note(self.name)
            if note is not None:
                self._heed(note)
            self._renewals = renewals
        for name, (at, claim) in self.claims.items():
            lane = self.rows.names.get(name)
            if isinstance(lane, LaneRow) and at == self.rows.name_at[name]:
                self.rows.names[name] = msgspec.structs.replace(lane, claim=claim)

    def renew_claims(self, lanes: Iterable[Row]) -> None:
        """Renew leases; `write_note` tells others."""
        for lane in lanes:
            if isinstance(lane, LaneRow) and lane.claim is not None and lane.name in self.rows.names:
                self.claims[lane.name] = self.rows.name_at[lane.name], lane.claim
                self.rows.names[lane.name] = lane

    def close(self) -> None:
        """Let the file go."""
        file, self._file = self._file, -1
        if file >= 0:
            self._disk.close(file)

    # writing; with the store's lock held

    def take_file(self) -> None:
        """Make sure that the file can be written to."""
        if not self.writable and self._file >= 0:
            file = self._disk.open(self._path, write=True)
            self.close()
            self._file, self.writable = file, True

    @classmethod
    def create(cls, folder: Folder, name: str, born: bytes) -> JournalFile:
        """A new journal, in the place of what a write that was cut short may have left."""
        try:
            file = folder.disk.create(folder.journal(name))
        except FileExistsError:
            file = folder.disk.open(folder.journal(name), write=True)
        journal = cls(folder, name, file)
        journal.born, journal.writable, journal._sync_name = born, True, True
        journal._torn = folder.disk.stat(file).st_size > 0
        return journal

    def append(self, rows: Sequence[Row], drops: Sequence[tuple[Kind, Key]], *, to: str | None = None) -> None:
        """Write a line behind the last one; `sync` makes it last. After an OSError nothing was written."""
        self.take_file()
        self._settle()
        rows = _once(rows)
        uid = next((row.uid for row in rows if isinstance(row, SessionRow)), self.rows.session.uid)
        puts = tuple([to_put(row, uid, self._refs(row) if getattr(row, "refs", ()) is None else ()) for row in rows])
        names = tuple([(KIND_NAMES[kind], key) for kind, key in drops])
        start, text = self.end, b""
        if not self.end:
            text = seal(Header("journal", FORMAT, self.born.hex(), self.generation, 0))
            self._last = sum_of(text)
        line = JournalLine(self.lines + 1, self.synced + 1, self._last, to, puts, names)
        raw = seal(line)
        text += b"\n" + raw if self._mend else raw
        try:
            if self._torn:
                self._disk.truncate(self._file, start)
                self._size, self._torn = start, False
            self._write(text, start)
        except BaseException:
            self._torn = True
            self._disk.truncate(self._file, start)
            raise
        self._mend = False
        self._take(line, start + len(text) - len(raw), raw)
        for row in rows if self.claims else ():
            if isinstance(row, LaneRow):
                self.claims.pop(row.name, None)
        self.rows.settle(to or self.name, rows)

    def _refs(self, row: Row) -> tuple[str, ...]:
        put = self.rows.put_at(kind_of(row), key_of(row))
        return () if put is None else put.refs

    def _write(self, text: bytes, start: int) -> None:
        end = start + len(text)
        if end <= self._size or not start:
            self._disk.write(self._file, text, start)
            self._size = max(self._size, end)
            return
        room = min(max(start // 2, _MIN_ROOM_BYTES), _MAX_ROOM_BYTES)
        try:
            self._disk.write(self._file, text + b" " * room, start)
            self._size = end + room
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._disk.truncate(self._file, start)
            self._disk.write(self._file, text, start)
            self._size = end

    def _settle(self) -> None:
        """Lines that others wrote and may not have synced are written again: a sync that failed once never repeats."""
        if not self.settled and self._folder.durable:
            self.take_file()
            data = self._disk.read(self._file, self.end - self._safe_end, self._safe_end)
            self._disk.write(self._file, data, self._safe_end)
            self._sync_name = True
        self.settled = True

    def sync(self) -> None:
        """All lines are on the disk when this returns."""
        self._settle()
        if self._folder.durable and (self.synced < self.lines or self._sync_name):
            self.take_file()
            if self._failed:
                raise OSError(errno.EIO, "an earlier sync failed")
            self._failed = True  # until it did not: a sync that failed once says nothing when it is repeated
            self._disk.sync(self._file)
            if self._sync_name:
                self._folder.sync_folder(SESSIONS)
            self._failed = self._sync_name = False
            self.synced, self._safe_end, self._kept_end = self.lines, self.end, self.end
        self._kept_end = self.end

    def undo(self) -> None:
        """Cut off what was appended since the last sync."""
        self.take_file()
        self._disk.truncate(self._file, self._kept_end)

    def move(self, name: str) -> None:
        """The line just written renames the session: it counts once the file has the name it says."""
        self.sync()
        self._folder.drop_note(self.name)
        self._disk.rename(self._path, self._folder.journal(name))
        self.name, self._path = name, self._folder.journal(name)
        self._folder.sync_folder(SESSIONS)

    def write_note(self) -> None:
        """How far this journal is acknowledged, and its summary."""
        rows = self.rows
        if rows.session_put is None:
            return
        note = Note(
            self.born.hex(),
            self.generation,
            self.lines,
            self.end,
            self._last,
            str(rows.session_put.key),
            rows.session_put.body,
            "" if self._folder.durable else _boot(),
            rows.marks,
            bool(rows.foreign),
            {name: claim for name, claim in self.claims.items() if rows.name_at.get(name) == claim[0]},
        )
        self._folder.write_note(self.name, note)

    @property
    def has_room(self) -> bool:
        """True if there is nothing but room behind the end."""
        behind = self._disk.read(self._file, max(self._size - self.end, 0), self.end)
        return bool(behind) and not behind.strip(BLANKS) and not self.rows.damage

    def trim(self) -> None:
        """Give back the room behind the end."""
        if self.has_room:
            self.take_file()
            self._disk.truncate(self._file, self.end)
            self._size = self.end


def _once(rows: Sequence[Row]) -> list[Row]:
    """The last of the rows with one key; where it leaves references as they are kept, with those of the one before."""
    found: dict[object, Row] = {}
    for row in rows:
        key = None if isinstance(row, SessionRow) else (kind_of(row), key_of(row))
        before = found.get(key)
        keeps = before is not None and getattr(row, "refs", ()) is None
        found[key] = msgspec.structs.replace(row, refs=getattr(before, "refs", None)) if keeps else row
    return list(found.values())


def is_noted(folder: Folder, name: str, note: Note) -> bool:
    """True if a journal ends where its note says, so that its summary is right."""
    try:
        file = folder.disk.open(folder.journal(name))
    except (FileNotFoundError, CorruptionError):
        return False
    try:
        seen = folder.disk.read(file, TAIL_BYTES + 1, max(note.end - TAIL_BYTES, 0))
    finally:
        folder.disk.close(file)
    return sum_of(seen[:TAIL_BYTES]) == note.last and not seen[TAIL_BYTES:].strip(BLANKS)


def new_born() -> bytes:
    """What a new journal is known by to its blobs."""
    return secrets.token_bytes(_BORN_BYTES)


def _span(first: int, last: int) -> str:
    return f"{first} to {last}" if first < last else str(first)


def _boot() -> str:
    return here().boot or "-"
