"""Journals written anew: without the checkpoints that were deleted, or from a session that comes from elsewhere.

The lines go to a file aside, one after the other, and the file takes the journal's place when it is complete. Lines
that stay are copied as they are, under a new number; a damaged one is copied with its damage, so that a deletion
beside it neither hides it nor makes it worse.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from backstay.backend import FORMAT_VERSION, Kept, Moved, Rewrite, Totals
from backstay.backends.files.folder import Folder
from backstay.backends.files.index import Entry, Index
from backstay.backends.files.journal import Journal
from backstay.backends.files.ledger import Called, Group, Ledger, Span
from backstay.backends.files.lines import (
    About,
    Brief,
    Rest,
    RunState,
    Snapshot,
    checkpoint_lines,
    first_line,
    joined,
    open_line,
    record_rest,
    record_rest_of,
    row_rest_of,
    session_lines,
    snapshot_lines,
)
from backstay.backends.files.runlines import brief_of, call_lines, called_line, input_sum, write_input
from backstay.backends.files.running import read, settled_runs
from backstay.delta import Record
from backstay.errors import CorruptionError

_BATCH_BYTES = 1024 * 1024
_NO_TOTALS = Totals(None, "in_progress", None, None, b"", 0)  # of a session none of whose commits can be read


def without(
    journal: Journal, gone: Collection[str], rewrites: Mapping[str, Rewrite], links: Mapping[str, str | None]
) -> Iterator[list[bytes]]:
    """The lines of a journal without some checkpoints; `links` says where the rewritten ones are linked now."""
    index, n = journal.index, 3
    yield session_lines(1, index.id or "", created_us=index.created_us, born=index.born)
    sequences = {index.entries[id_].about.sequence for id_ in gone}
    for called in index.ledger.staying(gone, sequences):
        yield _call(journal, called, n)
        n += 2
    for id_, entry in index.entries.items():
        if id_ not in gone:
            rewrite = rewrites.get(id_)
            lines = (
                _copied(journal, entry, n) if rewrite is None else _rewritten(journal, entry, n, rewrite, links[id_])
            )
            yield lines
            n += len(lines)
    yield snapshot_lines(n, _names_without(index, gone))


class Settled(NamedTuple):
    """The names of a journal that has lost lines, each at a checkpoint that is there, and what became of them."""

    snapshot: Snapshot
    moved: list[str]
    lost: list[str]


def settled(index: Index) -> Settled:
    """Names as far as they are known; those that lead nowhere lead to the newest checkpoint that is left."""
    newest = next(reversed(index.entries), None)
    branches, moved = {}, []
    for name, branch in index.branches.items():
        head = branch.head_id if branch.head_id in index.entries else newest
        if head is not None:
            branches[name] = head, branch.undo_id if branch.undo_id in index.entries else None
        if head != branch.head_id:
            moved.append(f"branch {name!r} led nowhere and stands at the newest checkpoint that is left")
    tags = {name: id_ for name, id_ in index.tags.items() if id_ in index.entries}
    standing = {name: index.entries[head].about.sequence for name, (head, _) in branches.items()}
    runs, lost = settled_runs(index, standing)
    moved += [f"tag {name!r} led nowhere and was removed" for name in index.tags.keys() - tags.keys()]
    logical = sum([entry.about.size_bytes for entry in index.entries.values()])
    counts = len(index.entries), logical
    names = _snapshot(index.totals or _NO_TOTALS, branches, tags, index.sequence, index.epoch + 1, counts)
    return Settled(_with_runs(names, runs, index.ledger), moved, lost)


def rest(journal: Journal, names: Snapshot) -> Iterator[list[bytes]]:
    """The lines that a journal still has, and the names as they are settled."""
    index, n = journal.index, 3
    yield session_lines(1, index.id or "", created_us=index.created_us, born=index.born)
    for called in index.ledger.staying((), ()):
        yield _call(journal, called, n)
        n += 2
    for entry in index.entries.values():
        lines = _copied(journal, entry, n)
        yield lines
        n += len(lines)
    yield snapshot_lines(n, names)


def _call(journal: Journal, called: Called, n: int) -> list[bytes]:
    """A call as it stands, in two lines; one whose words are lost with what is left of them."""
    was = called.brief
    brief = Brief(was.id, was.run, called.after, was.slot, called.status, was.token)
    taken_by = journal.index.ledger.taken.get(called.group)
    places: Mapping[str, bytes] = {}
    with contextlib.suppress(CorruptionError, KeyError):
        places = {} if taken_by is None else journal.places(journal.index.entries[taken_by])
    try:
        return call_lines(n, brief, read(journal, called, places).call, same_args=False)
    except CorruptionError:
        spans = [span for span in (called.span, called.args) if span.size]
        damaged = [raw for raw in map(journal.line, spans) if open_line(raw) is None]
        return [damaged[0] if damaged else b"\n", called_line(n + 1, brief)]


def _with_runs(names: Snapshot, runs: dict[str, RunState], ledger: Ledger) -> Snapshot:
    inputs = {branch: write_input(data) for branch, data in ledger.inputs().items() if runs[branch].input_sum}
    return msgspec.structs.replace(
        names, runs=runs, inputs=inputs, last_run=ledger.last_run, last_slot=ledger.last_slot
    )


def _copied(journal: Journal, entry: Entry, n: int) -> list[bytes]:
    records = [span for span in (entry.delta, entry.whole) if span is not None]
    return _numbered(journal, n, _bare(entry.about), records, entry)


def _bare(about: About) -> About:
    """What it did to runs is told by the lines of calls and names that come with it."""
    if about.run is None and about.took_up is None:
        return about
    return msgspec.structs.replace(about, run=None, ends_run=False, took_up=None)


def _rewritten(journal: Journal, entry: Entry, n: int, rewrite: Rewrite, link: str | None) -> list[bytes]:
    kind, record = chosen(journal, entry, rewrite)
    about = msgspec.structs.replace(_bare(entry.about), link=link, records=(kind,))
    return _numbered(journal, n, about, [entry.whole if record is None else record], entry)


def _numbered(
    journal: Journal, n: int, about: About, records: Sequence[Span | Record | None], entry: Entry
) -> list[bytes]:
    """The lines of a checkpoint under new numbers: records as they stand in the journal, or fresh ones."""
    rests: list[Rest] = []
    damaged: dict[int, bytes] = {}
    for at, record in enumerate(records):
        raw = b"\n"
        if isinstance(record, Record):
            rests.append(record_rest(record))
            continue
        if record is not None and record.size:
            raw = journal.line(record)
        whole = open_line(raw) is not None
        rests.append(record_rest_of(raw) if whole else (b"", b""))
        damaged |= {} if whole else {at: raw}
    raw = journal.line(entry.own) if entry.own.size else b"\n"
    whole = open_line(raw) is not None
    damaged |= {} if whole else {len(rests): raw}
    lines = joined(n, about, rests, row_rest_of(raw) if whole else b"")
    return [damaged.get(at, line) for at, line in enumerate(lines)]


def chosen(journal: Journal, entry: Entry, rewrite: Rewrite) -> tuple[str, Record | None]:
    """What a rewritten checkpoint stands on: its own whole copy (None) if that can be read, else what is brought."""
    if entry.whole is not None:
        with contextlib.suppress(CorruptionError):
            journal.record(entry, "whole")
            return "whole", None
    if rewrite.whole is not None:
        return "whole", rewrite.whole
    if rewrite.delta is not None:
        return "delta", rewrite.delta
    return "whole", None


def _names_without(index: Index, gone: Collection[str]) -> Snapshot:
    branches: dict[str, tuple[str, str | None]] = {}
    for name, branch in index.branches.items():
        head = staying(index, branch.head_id, gone)
        if head is not None:
            branches[name] = head, None if branch.undo_id in gone else branch.undo_id
    counts = (
        index.checkpoints - len(gone),
        index.logical_bytes - sum([index.entries[id_].about.size_bytes for id_ in gone]),
    )
    names = _snapshot(index.session_row().totals, branches, index.tags, index.sequence, index.epoch + 1, counts)
    return _with_runs(names, index.ledger.states, index.ledger)


def _snapshot(
    totals: Totals,
    branches: dict[str, tuple[str, str | None]],
    tags: dict[str, str],
    sequence: int,
    epoch: int,
    counts: tuple[int, int],
) -> Snapshot:
    return Snapshot(
        branches=branches,
        tags=tags,
        sequence=sequence,
        epoch=epoch,
        checkpoints=counts[0],
        logical_bytes=counts[1],
        at_us=totals.at_us,
        status=totals.status,
        agent=totals.agent,
        reason=totals.reason,
        last_step=totals.last_step,
        usage=totals.usage,
    )


def staying(index: Index, id_: str | None, gone: Collection[str]) -> str | None:
    """The checkpoint, or its nearest ancestor that is not among those that go."""
    while id_ is not None and id_ in gone:
        id_ = index.entries[id_].about.link
    return id_


def adopted(moved: Moved, history: Iterable[Kept], numbers: Iterator[int]) -> Iterator[list[bytes]]:
    """The lines of a session that comes from elsewhere."""
    line, n, logical, count = moved.line, 3, 0, 0
    number = next(numbers)
    yield session_lines(1, line.id, created_us=line.created_us, born=number)
    totals, runs = line.totals, _numbers(moved)
    counts = Counter([(call.run, call.after) for call in moved.calls])
    for slot, journaled in enumerate(moved.calls, 1):
        brief = brief_of(journaled.call, run=runs[journaled.run], after=journaled.after, slot=slot)
        yield call_lines(n, brief, journaled.call, same_args=False)
        n += 2
    for kept in history:
        row, logical, count, number = kept.row, logical + kept.size_bytes, count + 1, next(numbers)
        records = {
            kind: record for kind, record in (("delta", kept.delta), ("whole", kept.whole)) if record is not None
        }
        about = About(
            id=row.id,
            branch="",
            sequence=row.sequence,
            number=number,
            digest=row.digest.hex(),
            records=tuple(records),
            size_bytes=kept.size_bytes,
            checkpoints=count,
            branches=0,
            logical_bytes=logical,
            at_us=totals.at_us,
            status=totals.status,
            link=row.link_id,
            took=_took(kept, runs, counts),
        )
        lines = checkpoint_lines(n, about, list(records.values()), row, ours=False)
        yield lines
        n += len(lines)
    branches = {branch.name: (branch.head_id, branch.undo_id) for branch in moved.names.branches}
    tags = {tag.name: tag.id for tag in moved.names.tags}
    names = _snapshot(totals, branches, tags, moved.sequence, 0, (count, logical))
    yield snapshot_lines(n, _arrived(names, moved, runs))


def _numbers(moved: Moved) -> dict[int, int]:
    """How the runs of a session from elsewhere are numbered here."""
    numbers: dict[int, int] = {}
    for number in [*[row.run for row in moved.runs], *[journaled.run for journaled in moved.calls]]:
        numbers.setdefault(number, len(numbers) + 1)
    return numbers


def _took(kept: Kept, runs: Mapping[int, int], counts: Mapping[Group, int]) -> tuple[int, int, int] | None:
    if kept.took is None or kept.took[0] not in runs:
        return None
    return runs[kept.took[0]], kept.took[1], counts.get(kept.took, 0)


def _arrived(names: Snapshot, moved: Moved, runs: Mapping[int, int]) -> Snapshot:
    """The names, with the runs of a session from elsewhere: no lease came along, and nobody has crashed here."""
    # The token goes on from where it was: a call that was started elsewhere must not look like the next run's own.
    states = {
        row.branch: RunState(
            runs[row.run], row.token, unfinished=row.unfinished or row.entered, input_sum=input_sum(row.input)
        )
        for row in moved.runs
    }
    inputs = {row.branch: write_input(row.input) for row in moved.runs if row.input is not None}
    return msgspec.structs.replace(names, runs=states, inputs=inputs, last_run=len(runs), last_slot=len(moved.calls))


def write_aside(folder: Folder, transactions: Iterable[list[bytes]], *, slow: bool = False) -> Path:
    """A complete journal in a file of its own, on the disk; nothing is left if it cannot be completed."""
    disk, aside = folder.disk, folder.aside(slow=slow)
    file = disk.create(aside)
    try:
        waiting = [first_line(0, FORMAT_VERSION)]
        at, size, count = 0, len(waiting[0]), 0
        for lines in transactions:
            waiting += lines
            count += len(lines)
            size += sum(map(len, lines))
            if size >= _BATCH_BYTES:
                disk.write(file, b"".join(waiting), at)
                at, size, waiting = at + size, 0, []
        disk.write(file, b"".join(waiting), at)
        disk.write(file, first_line(count, FORMAT_VERSION), 0)
        if folder.durable:
            disk.sync(file)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(aside)
        raise
    finally:
        disk.close(file)
    return aside


def put_in_place(folder: Folder, aside: Path, path: Path) -> None:
    """The file aside becomes the journal."""
    folder.announce()
    try:
        folder.disk.rename(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.disk.unlink(aside)
        raise
    folder.sync_sessions()
