"""Writing a journal anew with what holds: a checkpoint a line, the calls of a journal a line, names, the session.

It is written aside, synced and renamed into its place, whatever the durability: all that there is would be at stake.
Its first line says how many lines it began with, so that none of them can be lost unnoticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from backstay.backends.files.folder import SESSIONS, Folder
from backstay.backends.files.journal import JournalFile
from backstay.backends.files.lines import FORMAT, Header, JournalLine, Put, seal, sum_of, to_put
from backstay.port import Key, Kind, Row

_WASTE, _WASTE_FROM = 4, 256  # a commit puts three rows, of which one stays
_ROWS_A_LINE = 100


def is_wasteful(journal: JournalFile) -> bool:
    """True if most of what is in a journal has been superseded."""
    rows = journal.rows
    there = 1 + len(rows.names) + sum([len(places) for places in rows.places.values()])
    return not rows.damage and rows.written > _WASTE * there + _WASTE_FROM


def rewrite(folder: Folder, journal: JournalFile) -> None:
    """Write a journal anew; whoever called opens it again. With the store's lock held."""
    disk, aside = folder.disk, folder.aside()
    count = sum([1 for _ in _lines(journal)])
    file = disk.create(aside)
    try:
        text = seal(Header("journal", FORMAT, journal.born.hex(), journal.generation + 1, count))
        disk.write(file, text, 0)
        end, last = len(text), sum_of(text)
        for number, puts in enumerate(_lines(journal), 1):
            text = seal(JournalLine(number, number, last, None, tuple(puts)))
            disk.write(file, text, end)
            end, last = end + len(text), sum_of(text)
        disk.sync(file)
        disk.rename(aside, folder.journal(journal.name))
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(aside)
        raise
    finally:
        disk.close(file)
    disk.sync_folder(folder.path / SESSIONS)


def _lines(journal: JournalFile) -> Iterator[list[Put]]:
    rows = journal.rows
    places: list[list[tuple[Kind, Key]]] = [
        [(Kind.CHECKPOINT, at), (Kind.KEYFRAME, at)] for at in rows.places[Kind.CHECKPOINT]
    ]
    places += [[(Kind.CALL, key) for key in rows.places[Kind.CALL].under(at)] for at in rows.calls]
    for keys in places:
        puts = [put for key in keys if (put := rows.put_at(*key)) is not None]
        if puts:
            yield puts
    mutable: list[Row] = [*rows.names.values(), rows.session]
    for at in range(0, len(mutable), _ROWS_A_LINE):
        yield [to_put(row, rows.session.uid, ()) for row in mutable[at : at + _ROWS_A_LINE]]
