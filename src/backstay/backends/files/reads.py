"""Reading: each function is given a journal that was just brought up to date, and verifies every line it uses."""

from __future__ import annotations

from backstay.backend import GROUP_DELTAS, Chain, Kept, Row, next_prefix
from backstay.backends.files.index import Entry
from backstay.backends.files.journal import Journal
from backstay.delta import Record
from backstay.errors import CorruptionError


def find_row(journal: Journal, id_: str) -> Row | None:
    """One checkpoint."""
    entry = journal.index.find_entry(id_)
    return None if entry is None else journal.row(entry)


def line(journal: Journal, id_: str, limit: int) -> list[Row]:
    """A checkpoint and its ancestors."""
    entry: Entry | None = journal.index.entry(id_)
    rows: list[Row] = []
    while entry is not None and len(rows) < limit:
        rows.append(journal.row(entry))
        entry = None if entry.about.link is None else journal.index.entries[entry.about.link]
    return rows


def find_ids(journal: Journal, prefix: str, limit: int) -> list[str]:
    """Ids that begin like this."""
    return sorted([id_ for id_ in journal.index.ids() if id_.startswith(prefix)])[:limit] if prefix else []


def chain(journal: Journal, id_: str, *, salvage: bool) -> Chain:
    """The records of one state, back to the nearest whole copy that can be read."""
    index = journal.index
    entry = index.entry(id_)
    row = journal.row(entry)
    records: list[Record] = []
    while True:
        whole = None if entry.whole is None else _whole(journal, entry, salvage=salvage)
        if whole is not None:
            break
        records.append(_delta(journal, entry, salvage=salvage))
        link = entry.about.link
        if link is None or link not in index.entries:
            message = f"session {index.id!r}: the checkpoint that {entry.about.id[:12]} was made on is lost"
            raise CorruptionError(message, hint="run verify to see what is intact")
        entry = index.entries[link]
    records.append(whole)
    records.reverse()
    prefix = b""
    for place, record in enumerate(records[1:], 1):
        prefix = b"" if (place - 1) % GROUP_DELTAS == 0 else prefix
        prefix = next_prefix(place, prefix, record.body)
    return Chain(
        row=row,
        records=tuple(records),
        singles=len(records) - 1,
        roll_base=entry.about.id,
        whole_bytes=entry.about.size_bytes,
        place=len(records) - 1,
        prefix=prefix,
        epoch=index.epoch,
    )


def _whole(journal: Journal, entry: Entry, *, salvage: bool) -> Record | None:
    """A whole copy; None if it is damaged but there is a way round, by the delta beside it."""
    try:
        return journal.record(entry, "whole")
    except CorruptionError:
        if entry.delta is not None:
            return None
        shape = journal.salvaged(entry, "whole") if salvage else None
        if shape is None:
            raise
        return shape


def _delta(journal: Journal, entry: Entry, *, salvage: bool) -> Record:
    try:
        return journal.record(entry, "delta")
    except CorruptionError:
        shape = journal.salvaged(entry, "delta") if salvage else None
        if shape is None:
            raise
        return shape


def history(journal: Journal, after: int, limit: int) -> list[Kept]:
    """A page of checkpoints with their records."""
    index, kept = journal.index, []
    for id_ in index.ids():
        entry = index.entries[id_]
        if entry.about.sequence > after:
            delta = None if entry.delta is None else journal.record(entry, "delta")
            whole = None if entry.whole is None else journal.record(entry, "whole")
            took = None if entry.about.took is None else entry.about.took[:2]
            kept.append(Kept(journal.row(entry), entry.about.size_bytes, delta, whole, took))
            if len(kept) == limit:
                break
    return kept
