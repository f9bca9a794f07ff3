"""The log beside a store, looked at from outside SQLite: grown to its size, and watched for damage.

SQLite reads its log up to the first frame that does not fit and takes what follows for the rest of an unfinished
write. So a flipped bit in the log would take back, without a word, what had been acknowledged. Against that a note is
kept in `<store>-tail` by the group commit: the salts of the log and how many of its frames are committed. It is written
after the sync, without one of its own, and so never promises what was not on disk; a log with those salts and fewer
good frames is damaged. A log that is gone, was begun anew or is all zeros contradicts nothing; one whose head alone is
zeros, with frames behind it that the note knows, has lost its first bytes.
What can be done then: bring the log back from a copy; or delete the note, and the store opens with what its log still
holds up to the damage; or delete log and note, and it opens as it was when the log was last moved into it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from pathlib import Path

import apsw

from backstay.backends.sqlite.file_system import open_plain
from backstay.errors import CorruptionError

WAL_BYTES = 1024 * 1024

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_SALTS = slice(16, 24)
_FRAME_SALTS_AT = 8
_PAGE_BYTES = 4096
_MOST_BYTES = 256 * 1024 * 1024  # of a log, looked through: a file may claim to be as long as it pleases
NOTE_MAGIC = b"BSt1"
_NOTE_BYTES = 20
_LOOKS = 200
_LITTLE_ENDIAN_WORDS, _BIG_ENDIAN_WORDS = 0x377F0682, 0x377F0683


def beside(path: Path, ending: str) -> str:
    """The path of a file that goes with a store."""
    return str(path) + ending


def _seek_and_read(file: int, size: int, at: int) -> bytes:
    os.lseek(file, at, os.SEEK_SET)
    return os.read(file, size)


def _seek_and_write(file: int, data: bytes, at: int) -> int:
    os.lseek(file, at, os.SEEK_SET)
    return os.write(file, data)


read_at = os.pread if hasattr(os, "pread") else _seek_and_read
write_at = os.pwrite if hasattr(os, "pwrite") else _seek_and_write


def grow(path: Path) -> None:
    """Give the log its size. Inside a write transaction nobody else appends to it, nor looks beyond its end."""
    # Zeros really written, not only allocated: an allocated block still costs the file system a journal entry.
    # Where there is no room for zeros there may be room for the commit, or SQLite says that there is none.
    with contextlib.suppress(OSError):
        log = open_plain(beside(path, "-wal"), os.O_RDWR)
        try:
            size = os.fstat(log).st_size
            if size < WAL_BYTES:
                write_at(log, bytes(WAL_BYTES - size), size)
        finally:
            os.close(log)


def refuse_lost_commits(connection: apsw.Connection, path: Path) -> None:
    """CorruptionError if commits that were on disk are no longer in the log."""
    note = _read_note(path)
    if note is None and _header_is_good(path):
        return
    # SQLite looks at its log only when something is read.
    connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    frames = _frames(connection)
    if _header_is_good(path) and (note is None or frames >= note[1] or note[0] not in _salts(path)):
        return
    # It may be that somebody began the log anew at this moment. With the lock in hand nobody does.
    connection.execute("BEGIN IMMEDIATE")
    try:
        _refuse_damaged(path)
    finally:
        connection.execute("ROLLBACK")


def _frames(connection: apsw.Connection) -> int:
    """How many frames of the log SQLite takes; -1 if others keep moving it, and a closer look must tell."""
    for _ in range(_LOOKS):
        try:
            return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        except apsw.BusyError:  # another process is moving its log at this moment: SQLite does not wait for that
            time.sleep(0.002)
    return -1


def refuse_log_alone(path: Path) -> None:
    """CorruptionError if there is a log, but not the store it belongs to: SQLite would throw it away."""
    header = _read_header(path)
    if any(header):
        message = f"{path} is missing or empty, and its log {path.name}-wal is there"
        raise CorruptionError(message, hint="bring the store back; to begin anew delete the log")


def _refuse_damaged(path: Path) -> None:
    if not _header_is_good(path):
        message = f"the head of the log {path}-wal is damaged"
        hint = "bring the log back from a copy, or delete it: the newest checkpoints go with it, all others are intact"
        raise CorruptionError(message, hint=hint)
    note = _read_note(path)
    if note is None or note[0] not in _salts(path):
        return
    good = _good_frames(path, up_to=note[1])
    if good < note[1]:
        message = f"the log {path}-wal is damaged: {note[1]} pages of it were committed, {good} can be read"
        hint = f"bring the log back from a copy; or delete {path.name}-tail to go on without the newest checkpoints"
        raise CorruptionError(message, hint=hint)


def _read_note(path: Path) -> tuple[bytes, int] | None:
    """The salts and the number of frames; None if there is no note, or none that can be trusted."""
    data = _read(beside(path, "-tail"), _NOTE_BYTES)
    body = data[:-4]
    if len(data) != _NOTE_BYTES or not body.startswith(NOTE_MAGIC) or zlib.crc32(body).to_bytes(4, "big") != data[-4:]:
        return None
    return body[4:12], int.from_bytes(body[12:], "big")


def _read_header(path: Path) -> bytes:
    return _read(beside(path, "-wal"), _HEADER_BYTES)


def _read(path: str, size: int) -> bytes:
    # SQLite locks the store and its shared memory, never the log: a descriptor of ours takes no lock away.
    try:
        file = open_plain(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return read_at(file, size, 0)
    finally:
        os.close(file)


def _salts(path: Path) -> set[bytes]:
    """The salts of a log; of its frames, where its head is zeros: SQLite takes that for a log that holds nothing."""
    header = _read_header(path)
    if any(header):
        return {header[_SALTS]}
    found: set[bytes] = set()
    with contextlib.suppress(OSError):
        log = open_plain(beside(path, "-wal"), os.O_RDONLY)
        try:
            size, step = min(os.fstat(log).st_size, _MOST_BYTES), _FRAME_HEADER_BYTES + _PAGE_BYTES
            found.update([read_at(log, 8, at + _FRAME_SALTS_AT) for at in range(_HEADER_BYTES, size, step)])
        finally:
            os.close(log)
    return found


def _header_is_good(path: Path) -> bool:
    """True if SQLite will read what follows, or if there is nothing to read."""
    header = _read_header(path)
    if len(header) < _HEADER_BYTES or not any(header):
        return True
    order = _word_order(header)
    return order is not None and _checksum(header[:24], (0, 0), order) == struct.unpack(">II", header[24:])


def _word_order(header: bytes) -> str | None:
    return {_LITTLE_ENDIAN_WORDS: "<", _BIG_ENDIAN_WORDS: ">"}.get(int.from_bytes(header[:4], "big"))


def _good_frames(path: Path, *, up_to: int) -> int:
    """How many frames SQLite would take, one after the other."""
    header = _read_header(path)
    order = _word_order(header)
    if len(header) < _HEADER_BYTES or order is None:
        return 0
    page_bytes = int.from_bytes(header[8:12], "big")
    sums: tuple[int, int] = struct.unpack(">II", header[24:])
    with Path(beside(path, "-wal")).open("rb") as log:
        log.seek(_HEADER_BYTES)
        for number in range(up_to):
            frame = log.read(_FRAME_HEADER_BYTES + page_bytes)
            if len(frame) < _FRAME_HEADER_BYTES + page_bytes or frame[8:16] != header[_SALTS]:
                return number
            sums = _checksum(frame[:8] + frame[_FRAME_HEADER_BYTES:], sums, order)
            if sums != struct.unpack(">II", frame[16:24]):
                return number
    return up_to


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    """SQLite's own, over pairs of words."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, other in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
