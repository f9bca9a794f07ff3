"""Writing a journal anew with what holds: checkpoints packed, the calls of a journal a line, names, the session.

It is written aside, synced and renamed into its place, whatever the durability: all that there is would be at stake.
Its first line says how many lines it began with, so that none of them can be lost unnoticed.

A commit writes three rows in base64, of which one stays. So a journal is written anew when what was appended since the
last time is half as long as what was written then. A packed line of which nothing has changed is copied as it is.
Keyframes have lines of their own: a damaged line costs its checkpoints, and those on them up to the next keyframe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain, groupby

from backstay.backends.files.folder import SESSIONS, Folder
from backstay.backends.files.journal import JournalFile
from backstay.backends.files.lines import (
    FORMAT,
    PACKED_BYTES,
    PACKED_ROWS,
    Header,
    JournalLine,
    Put,
    pack_rows,
    seal,
    sum_of,
    to_put,
)
from backstay.port import SEGMENTS, Kind, Row

TAIL_BYTES = 64 * 1024  # so much is appended to a short journal before it is written anew
_WASTE, _WASTE_FROM = 4, 256
_MOST_BYTES = 32 * 1024 * 1024  # a commit does not wait until more than that is copied
_ROWS_A_LINE = 100
_FULL_ROWS = PACKED_ROWS // 2


def is_wasteful(journal: JournalFile) -> bool:
    """True if most of what is in a journal has been superseded, or much of it is not packed."""
    rows = journal.rows
    there = 1 + len(rows.names) + sum([len(places) for places in rows.places.values()])
    tail = journal.end - journal.begun
    return not rows.damage and (
        rows.written > _WASTE * there + _WASTE_FROM
        or (journal.begun <= _MOST_BYTES and tail > journal.begun // 2 + TAIL_BYTES)
    )


def rewrite(folder: Folder, journal: JournalFile) -> None:
    """Write a journal anew; whoever called opens it again. With the store's lock held."""
    disk, aside = folder.disk, folder.aside()
    packed = list(_packed(journal))  # but for what is copied: a fifth of the journal at most
    count = len(packed) + sum([1 for _ in _others(journal)])
    file = disk.create(aside)
    try:
        text = seal(Header("journal", FORMAT, journal.born.hex(), journal.generation + 1, count))
        disk.write(file, text, 0)
        end, last = len(text), sum_of(text)
        lines = chain((_line(journal, each) for each in packed), ((puts, b"") for puts in _others(journal)))
        for number, (puts, data) in enumerate(lines, 1):
            text = seal(JournalLine(number, number, last, None, puts, packed=data))
            disk.write(file, text, end)
            end, last = end + len(text), sum_of(text)
        folder.need(SEGMENTS)
        disk.sync(file)
        disk.rename(aside, folder.journal(journal.name))
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(aside)
        raise
    finally:
        disk.close(file)
    disk.sync_folder(folder.path / SESSIONS)


def _line(journal: JournalFile, packed: bytes | int | Put) -> tuple[tuple[Put, ...], bytes]:
    """The rows of a line as they are, and those that are packed in it."""
    if isinstance(packed, Put):
        return (packed,), b""
    return (), packed if isinstance(packed, bytes) else journal.packed(packed)


def _packed(journal: JournalFile) -> Iterator[bytes | int | Put]:
    """All checkpoints, packed; or where a line stands that is copied because they are so already; or a long one."""
    rows = journal.rows
    places = rows.places[Kind.CHECKPOINT]
    portion: list[Put] = []
    weight = 0
    for at, group in groupby(places, places.at):
        keys = list(group)
        copied = at is not None and len(keys) == rows.packed_at.get(at, 0) >= _FULL_ROWS
        puts = [] if copied else [put for key in keys if (put := rows.put_at(Kind.CHECKPOINT, key, at)) is not None]
        for put in puts:
            size = memoryview(put.body).nbytes
            if portion and (len(portion) == PACKED_ROWS or weight + size > PACKED_BYTES):
                yield pack_rows(portion)
                portion, weight = [], 0
            if size > PACKED_BYTES:
                yield put
            else:
                portion.append(put)
                weight += size
        if copied and portion:
            yield pack_rows(portion)
            portion, weight = [], 0
        if copied and at is not None:
            yield at
    if portion:
        yield pack_rows(portion)


def _others(journal: JournalFile) -> Iterator[tuple[Put, ...]]:
    """Keyframes, calls, names and the session."""
    rows = journal.rows
    for at in rows.places[Kind.KEYFRAME]:
        keyframe = rows.put_at(Kind.KEYFRAME, at) if at in rows.places[Kind.CHECKPOINT] else None
        if keyframe is not None:
            yield (keyframe,)
    for under in rows.calls:
        keys = rows.places[Kind.CALL].under(under)
        calls = [put for key in keys if (put := rows.put_at(Kind.CALL, key)) is not None]
        if calls:
            yield tuple(calls)
    mutable: list[Row] = [*rows.names.values(), rows.session]
    for at in range(0, len(mutable), _ROWS_A_LINE):
        yield tuple([to_put(row, rows.session.uid, ()) for row in mutable[at : at + _ROWS_A_LINE]])
